"""Every verb on every node of a forest that was made to break budgets: each answer fits, each cut is told.

Sections: the forest · the sweep · single cuts.

`sweep(engine)` can be called on any forest; it is what was run over large adopted folders.
"""

from __future__ import annotations

from contextlib import closing

import pytest
from small_forest import ask, asked, grown, ids, planted, tokens, write

import demo
import forest
import vine
from vine import Vine

# ------------------------------------------------------------------------------------------------- the forest

CJK = "東京都の経費は月末までに申請する。領収書が必要。"
CODE = '{"key": "va\\\\lue", "other": [\'a\', "b\\t"]}\n'
RARE = "𓀀𓂀𓃀𐤀𐎀"  # letters that cost four tokens each

NASTY = {
    "headings": {
        "body": "".join(f"## Heading number {n} with some more words\n\nText {n}.\n\n" for n in range(120))
    },
    "many-headings": {"body": "".join(f"### {CJK} {n}\n\nx\n\n" for n in range(1500))},
    "long-summary": {"summary": "summary of many words " * 1250, "body": "short"},
    "long-title": {"title": "title of many words " * 1250, "body": "## Part\nshort"},
    "all-long": {
        "title": CJK * 300,
        "summary": CODE.replace("\n", " ") * 300,
        "tags": [CJK] * 20,
        "aliases": [CODE] * 16,
        "body": CODE * 400,
    },
    "huge-tags": {
        "tags": [f"tag number {n} {CJK}" for n in range(800)],
        "aliases": [f"alias {n}" for n in range(800)],
    },
    "odd-fields": {
        "type": "odd type " * 400,
        "updated": "date " * 900,
        "created": "c" * 9000,
        "source": "s " * 900,
        "entity_kind": "e " * 900,
    },
    "one-line": {"body": "word and words " * 6700},
    "no-blank": {"body": "x" * 100_000},
    "no-heading": {"body": "\n".join("A line of plain words that goes on for a while." for _ in range(900))},
    "cjk": {"body": f"## 経費\n\n{CJK * 400}\n\n## 領収書\n\n{CJK * 20}", "title": "東京都の経費"},
    "code": {"body": f"# Code\n\n## Quotes\n\n```\n{CODE * 500}```\n"},
    "controls": {"body": "\x01\x02\x03\x1f word " * 900},
    "rare": {"body": f"## {RARE * 40}\n\n{RARE * 900}", "title": RARE * 40, "summary": RARE * 40},
    "long-heading": {
        "body": f"## {'heading of many words ' * 900}\n\nneedle here\n\n### {'deeper ' * 900}\n\nneedle there"
    },
    "twelve-hundred": {"body": '"\\' * 1190},
    "dataset": {"type": "dataset", "body": f"# D\n\n## Notes\n{CJK * 300}\n\n## Query manual\n{CODE * 90}"},
    "same-names": {
        "body": "".join(f"## Same\n\n{'filler words here ' * 300}needle number {n}.\n\n" for n in range(6))
    },
    "blank": {"body": "", "summary": "", "title": "Blank"},
    "linked": {
        "links": [
            {"rel": "related-to", "target": f"far/away/{RARE}{n}", "confidence": 0.123456789}
            for n in range(300)
        ]
    },
    "odd-links": {
        "links": [{"rel": "rel " * 900, "target": "linked"}, {"rel": "related-to", "target": "t" * 9000}]
    },
}


def nasty(root):
    """Examples adopted by the Gardener, and beside them files that nobody should write."""
    demo.grow(root)
    children = {f"wide/n{n:04}": {"summary": f"Offspring {n}: {CJK}"} for n in range(3000)}
    inward = {f"fans/f{n}": {"links": [{"rel": "mentioned-in", "target": "nasty/linked"}]} for n in range(60)}
    deep = {
        "/".join(f"d{n}-{'deep' * 6}" for n in range(7)) + "/leaf": {"body": "needle", "summary": CJK * 40}
    }
    branches = {f"many/b{n}/_index": {"summary": CJK * 3} for n in range(60)}
    trails = {
        "trails/_index": {
            "body": "## Cross trails\n" + "".join(f"- {CJK} {n}\n" for n in range(200)),
            "summary": CJK * 100,
        }
    }
    grown(
        root,
        {f"nasty/{name}": told for name, told in NASTY.items()}
        | children
        | inward
        | deep
        | branches
        | trails,
    )
    return root


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with closing(Vine(nasty(tmp_path_factory.mktemp("budgets") / "forest"))) as engine:
        yield engine


# -------------------------------------------------------------------------------------------------- the sweep


def nodes_of(engine) -> dict[str, forest.Node]:
    paths = (p for p in engine.root.rglob("*.md") if not {".git", "_derived"} & set(p.parts))
    found = (p.relative_to(engine.root).as_posix()[:-3] for p in paths)
    return {id: forest.parse_node((engine.root / f"{id}.md").read_bytes(), id) for id in found}


def check_look(engine, node, below):
    answer = ask(engine, "look", id=node.id)
    assert [key for key in ("id", "type", "title", "summary", "stats") if key in answer] == [
        "id",
        "type",
        "title",
        "summary",
        "stats",
    ]
    cut = answer.get("truncated_fields", [])
    assert ("truncated" in answer) == bool(cut) and len(set(cut)) == len(cut)
    whole = {"title": node.title, "summary": node.summary, "tags": node.tags, "type": node.type}
    whole["children"] = [{"id": one.id, "summary": one.summary} for one in below if node.kind == "branch"]
    whole["outline"] = forest.outline(node.body)
    for key, value in whole.items():
        if key in answer and key not in cut:
            shown = sorted(answer[key], key=lambda c: c["id"]) if key == "children" else answer[key]
            assert shown == value, (node.id, key)
    for fields in (
        ["tags", "aliases"],
        ["outline", "children", "cross_trails"],
        ["edges_out", "edges_in"],
        ["updated", "created", "source"],
    ):
        part = ask(engine, "look", id=node.id, fields=fields)
        if "truncated" not in part and "tags" in part:
            assert part["tags"] == node.tags


def check_move(engine, node, below):
    for args in ({"rel": "children"}, {"direction": "both"}, {"direction": "in"}):
        answer = ask(engine, "move", id=node.id, **args)
        if args == {"rel": "children"} and not answer["truncated"]:
            assert len(answer["neighbors"]) == (len(below) if node.kind == "branch" else 0)
        degree = ask(engine, "look", id=node.id, fields=["stats"])["stats"]["degree"]
        if args == {"direction": "both"} and not answer["truncated"]:
            assert len(answer["neighbors"]) == degree


def check_pick(engine, node, below):
    answer = ask(engine, "pick", id=node.id)
    assert answer["truncated"] is ("body" not in answer)
    assert answer.get("body", node.body) == node.body and answer["body_tokens"] == forest.count_tokens(
        node.body
    )
    for section in ["#1"] + [mark.text for mark in forest.headings(node.body) if 0 < len(mark.text) <= 240][
        :3
    ]:
        part = ask(engine, "pick", id=node.id, section=section)
        assert part["body"] in node.body and ("hint" in part) is part["truncated"]
        if section == "#1" and not part["truncated"]:
            assert part["body"] == node.body


def check_scan(engine, node, below):
    if node.kind == "branch":
        for fields in ([], list(vine.reading.SCAN_FIELDS)):
            answer = ask(engine, "scan", parent_id=node.id, fields=fields)
            assert answer["nodes"] or not below
            clipped = len(below) == 1 and "…" in forest.dumps(answer["nodes"])
            assert answer["truncated"] is (len(answer["nodes"]) < len(below) or clipped) or fields
            assert answer.get("total", len(below)) == len(below)
        ask(engine, "scan", parent_id=node.id, fields=list(vine.reading.SCAN_FIELDS), recursive=True)


def check_searches(engine, node, below):
    for query in {node.title[:4000], node.summary[:300]}:
        answer = ask(engine, "locate", query=query, k=20)
        assert answer["results"] or not vine.words.query_terms(query) or node.id.startswith("_meta/")
    word = max(node.body[:5000].split() or ["none"], key=len)[:100]
    for args in ({"terms": word, "k": 20}, {"terms": [word, "needle"], "scope": node.id}):
        if len(word) > 1:
            found = ask(engine, "sniff", **args)["results"]
            assert found or node.body == ""
            assert all(item["matches"] or item["match_count"] for item in found)
    check_harvest(engine, {"query": node.title[:300], "k": 10}, must_find=not node.id.startswith("_meta/"))
    check_harvest(engine, {"query": f"{node.title[:300]} needle", "terms": ["needle"]}, must_find=False)


def check_harvest(engine, args, must_find):
    answer = asked(engine, "harvest", args)
    for item in answer["results"]:
        assert item["content"], item["id"]
        for part in item["content"]:
            assert (
                part.get("body", "") is not None
                and part.get("outline", []) is not None
                and part.get("hint", "") is not None
            )
            assert "body" in part or "windows" in part
    assert answer["results"] or not must_find or not vine.words.query_terms(args["query"]), args


def sweep(engine, only=None) -> int:
    """Run every check on every node (or those that `only` takes); returns the number of nodes."""
    nodes = nodes_of(engine)
    below: dict[str, list] = {}
    for id in sorted(nodes):
        below.setdefault(forest.parent_of(id), []).append(nodes[id])
    chosen = [node for node in nodes.values() if only is None or only(node.id)]
    for node in chosen:
        for check in (check_look, check_move, check_pick, check_scan, check_searches):
            check(engine, node, below.get(node.id, []))
    return len(chosen)


def test_examples_and_branches(engine):
    def chosen(id: str) -> bool:
        return not id.startswith(("nasty/", "wide/n", "fans/f", "many/b"))

    assert sweep(engine, chosen) > 40


@pytest.mark.parametrize("name", NASTY)
def test_nasty_node(engine, name):
    assert sweep(engine, lambda id: id == f"nasty/{name}") == 1


def test_one_of_each_crowd(engine):
    assert sweep(engine, lambda id: id in ("wide/n0007", "fans/f3", "many/b7/_index")) == 3


# ------------------------------------------------------------------------------------------------ single cuts


def test_a_first_result_that_does_not_fit_alone_is_clipped_summary_first(engine):
    answer = ask(engine, "locate", query="summary of many words", k=1)
    assert ids(answer) == ["nasty/long-summary"] and answer["truncated"] is True
    item = answer["results"][0]
    assert item["title"] == "long-summary" and item["summary"].endswith("…")
    assert tokens(answer) > 700


def test_lists_leave_from_the_tail_and_whole(engine):
    answer = ask(engine, "locate", query="offspring", k=20)
    assert answer["truncated"] is True
    assert 5 <= len(answer["results"]) < 20
    assert ids(answer) == sorted(ids(answer))
    assert all(item["summary"].endswith(CJK) for item in answer["results"])


def test_locate_and_sniff_say_when_k_cut(tmp_path):
    with closing(Vine(grown(tmp_path / "f", {f"n{n}": "word" for n in range(5)}))) as engine:
        for verb, key in (("locate", "query"), ("sniff", "terms")):
            text = "about" if verb == "locate" else "word"
            scope = {"scope": "bananas"} if verb == "locate" else {}
            assert ask(engine, verb, **{key: text}, k=5, **scope)["truncated"] is False
            assert ask(engine, verb, **{key: text}, k=4, **scope)["truncated"] is True


def test_fixed_shapes_are_no_cut(tmp_path):
    root = grown(
        tmp_path / "f",
        {
            "a": {"links": [{"rel": "related-to", "target": "b"}]},
            "b": {"summary": "word " * 200, "body": "hit\n" * 9 + "x" * 300 + " hit"},
        },
    )
    with closing(Vine(root)) as engine:
        assert "truncated" not in ask(engine, "look", id="a")
        answer = ask(engine, "sniff", terms="hit")
        assert answer["truncated"] is False
        item = answer["results"][0]
        assert (item["match_count"], item["truncated_matches"], len(item["matches"])) == (10, True, 3)


def test_a_close_session_and_a_graft_with_long_lists_fit(tmp_path):
    vine.init(tmp_path / "f")
    with closing(Vine(tmp_path / "f")) as engine:
        folder = "folder-with-a-rather-long-name-for-a-folder/and-one-more-below-it"
        for n in range(50):
            write(engine.root, f"{folder}/node-number-{n}-of-many")
        engine.catalog.stale()
        names = [f"{folder}/node-number-{n}-of-many" for n in range(50)]
        report = ask(engine, "close_session", success=True, answer_nodes=names)
        assert report["metrics"]["answer_nodes"] == 50
        links = [{"rel": "related-to", "target": name} for name in names]
        planted(engine, "hub", links=links)
        answer = ask(engine, "graft", id="hub", patch={"add_links": links})
        assert answer["truncated"] is True and answer["commit"] is None and answer["fortified"]


def test_a_huge_error_is_cut(engine):
    for args in (
        {"query": "x", "scope": CJK * 500},
        {"query": "x", CJK * 500: 1},
        {"query": "x", "type_filter": RARE * 40},
    ):
        with pytest.raises(forest.VineError) as caught:
            engine.call("locate", args)
        assert tokens(caught.value.envelope()) <= 600
    with pytest.raises(forest.VineError) as caught:
        engine.call("pick", {"id": "nasty/many-headings", "section": "no such heading"})
    assert tokens(caught.value.envelope()) <= 600


def test_forests_of_a_crowded_root_fit(tmp_path):
    for n in range(400):
        folder = tmp_path / f"forest-{n:03}-{CJK[:8]}"
        folder.mkdir()
        (folder / "_index.md").write_text("x")
    pool = vine.Pool.registry(tmp_path)
    answer = pool.call("forests", {})
    assert answer["truncated"] is True and 50 < len(answer["forests"]) < 400 and tokens(answer) <= 2000
    assert answer["mode"] == "registry"
