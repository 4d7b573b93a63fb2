"""The verbs, one by one: arguments, answers, orders, cuts, refusals; and the faults that they must not have.

Sections: the forest · arguments · look · move · pick · scan · view · plant and graft ·
faults that must not exist · what a caller may see.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest
from small_forest import ask, asked, grown, ids, planted, refusal, tokens, write

import forest
import vine
from vine import Pool, Vine

# ------------------------------------------------------------------------------------------------- the forest

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 40
NODES = {
    "policies/_index": {
        "title": "Policies",
        "summary": "What we agreed on.",
        "body": "Intro.\n\n## Cross trails\n- see [[finance/x]]\n* and this",
    },
    "policies/expenses": {
        "title": "Expense policy",
        "summary": "What is reimbursed.",
        "tags": ["finance", "Política"],
        "aliases": ["Spesen"],
        "confidence": 0.9,
        "source": "manual",
        "links": [
            {"rel": "related-to", "target": "policies/travel", "confidence": 0.5},
            {"rel": "part-of", "target": "finance/x"},
            {"rel": "related-to", "target": "policies/nowhere"},
        ],
        "body": "# Expense policy\n\n## Limits\n\nForty.\n\n### Receipts\n\nOver 25 EUR.\n\n"
        "```\n## no heading\n```\n\n# Annex\n\n## Limits\n\nother",
    },
    "policies/travel": {
        "links": [
            {"rel": "related-to", "target": "policies/expenses"},
            {"rel": "author", "target": "policies/expenses"},
        ],
        "updated": "2026-05-31",
        "body": "On trains.",
    },
    "finance/x": {"body": "Money.", "type": "concept"},
    "finance/deep/er/leaf": "Deep down.",
    "empty/_index": {},
    "pics/plain": {
        "type": "media",
        "payload": "plain.png",
        "payload_type": "image",
        "payload_hash": "ab" * 32,
        "body": "A picture.",
    },
    "pics/lost": {"type": "media", "payload": "lost.png"},
    "pics/bare": {"type": "media"},
    "pics/remote": {"type": "media", "payload": "s3://bucket/x.png"},
    "pics/liar": {"type": "media", "payload": "liar.png"},
    "pics/sheet": {"type": "media", "payload": "sheet.pdf"},
    "pics/out": {"type": "media", "payload": "../policies/secret.png"},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = grown(tmp_path_factory.mktemp("primitives") / "forest", NODES)
    (root / "pics/plain.png").write_bytes(PNG)
    (root / "pics/liar.png").write_bytes(b"GIF or not")
    (root / "pics/sheet.pdf").write_bytes(b"%PDF-1.4")
    (root / "policies/secret.png").write_bytes(PNG)
    (root / "broken.md").write_text("no block here")
    return root


@pytest.fixture(scope="module")
def engine(root):
    with closing(Vine(root)) as engine:
        yield engine


@pytest.fixture
def writable(tmp_path):
    vine.init(tmp_path / "forest")
    with closing(Vine(tmp_path / "forest")) as engine:
        yield engine


def git(engine, *args) -> str:
    return subprocess.run(
        ["git", "-C", engine.root, *args], check=True, capture_output=True, text=True
    ).stdout


def hides(*hidden):
    """A scope: everything but these ids and what lies below these folders (given with a final slash)."""

    def sees(id: str) -> bool:
        return not any(id == h or (h.endswith("/") and id.startswith(h)) for h in hidden)

    return sees


def visible_only(*prefixes):
    return lambda id: id.startswith(prefixes)


# -------------------------------------------------------------------------------------------------- arguments

BAD = [  # verb, arguments, what the message starts with
    ("locate", {}, "query: required"),
    ("locate", {"query": None}, "query: required"),
    ("locate", {"query": 3}, "query: must be a string"),
    ("locate", {"query": ["x"]}, "query: must be a string"),
    ("locate", {"query": "x" * 4001}, "query: "),
    ("locate", {"query": "a\ud800b"}, "query: "),
    ("locate", {"query": "x", "k": "3"}, "k: must be an integer"),
    ("locate", {"query": "x", "k": True}, "k: must be an integer"),
    ("locate", {"query": "x", "k": 2.5}, "k: must be an integer"),
    ("locate", {"query": "x", "k": float("inf")}, "k: must be an integer"),
    ("locate", {"query": "x", "scope": "banana"}, "scope: unknown value 'banana'"),
    ("locate", {"query": "x", "scope": "All"}, "scope: unknown value 'All'"),
    ("locate", {"query": "x", "type_filter": "Note"}, "type_filter: unknown value 'Note'"),
    ("locate", {"query": "x", "limit": 3}, "locate: unknown argument 'limit'"),
    ("sniff", {"terms": []}, "terms: "),
    ("sniff", {"terms": "x"}, "terms: "),
    ("sniff", {"terms": ["ok", "  "]}, "terms: "),
    ("sniff", {"terms": ["y" * 201]}, "terms: "),
    ("sniff", {"terms": [f"term{n}" for n in range(9)]}, "terms: "),
    ("sniff", {"terms": {"a": 1}}, "terms: must be a list of strings"),
    ("sniff", {"terms": ["ok", 3]}, "terms: must be a list of strings"),
    ("sniff", {"terms": ["\udfff\udfff"]}, "terms: "),
    ("harvest", {"query": "x", "terms": [str(n) * 3 for n in range(9)]}, "terms: "),
    ("look", {"id": "policies/expenses", "fields": "notes"}, "fields: must be a list of strings"),
    ("look", {"id": "policies/expenses", "fields": ["Notes"]}, "fields: unknown value 'Notes'"),
    ("look", {"id": 5}, "id: must be a string"),
    ("look", {"id": ["_index"]}, "id: must be a string"),
    ("move", {"id": "policies/expenses", "direction": "sideways"}, "direction: unknown value 'sideways'"),
    ("move", {"id": "policies/expenses", "direction": "In"}, "direction: unknown value 'In'"),
    ("move", {"id": "policies/expenses", "rel": "relatedto"}, "rel: unknown value 'relatedto'"),
    ("pick", {"id": "policies/expenses", "section": "s" * 241}, "section: "),
    ("pick", {"id": "policies/expenses", "section": 1}, "section: must be a string"),
    ("scan", {"parent_id": "policies/_index", "recursive": "yes"}, "recursive: must be a boolean"),
    ("scan", {"parent_id": "policies/_index", "limit": "5"}, "limit: must be an integer"),
    ("scan", {"parent_id": "policies/_index", "fields": ["body"]}, "fields: unknown value 'body'"),
    ("scan", {"parent_id": "policies/_index", "filter": []}, "filter: must be an object"),
    ("plant", {"node": []}, "node: must be an object"),
    ("graft", {"id": "policies/expenses", "patch": "x"}, "patch: must be an object"),
    ("graft", {"id": "policies/expenses", "patch": {}}, "patch: "),
    ("close_session", {"success": "yes"}, "success: must be a boolean"),
    ("close_session", {"success": 1}, "success: must be a boolean"),
    ("close_session", {}, "success: required"),
    ("close_session", {"success": True, "answer_nodes": "_index"}, "answer_nodes: must be a list of strings"),
    ("close_session", {"success": True, "answer_nodes": [str(n) for n in range(51)]}, "answer_nodes: "),
    ("forests", {"x": 1}, "forests: unknown argument 'x'"),
]


@pytest.mark.parametrize("verb, args, start", BAD, ids=lambda v: v if isinstance(v, str) else None)
def test_bad_argument(engine, verb, args, start):
    error = refusal(engine, verb, args)
    assert error["code"] == "E_SCHEMA"
    assert error["message"].startswith(start)


@pytest.mark.parametrize(
    "verb, args, near",
    [
        ("locate", {"query": "x", "typefilter": "note"}, "type_filter"),
        ("locate", {"query": "x", "scope": "banana"}, "bananas"),
        ("locate", {"query": "x", "type_filter": "notes"}, "note"),
        ("move", {"id": "_index", "rel": "contain"}, "contains"),
        ("move", {"id": "_index", "direction": "ouT"}, "out"),
        ("look", {"id": "_index", "fields": ["outlines"]}, "outline"),
        ("scan", {"parent_id": "_index", "filter": {"tag_any": ["x"]}}, "tags_any"),
    ],
)
def test_the_nearest_valid_word_is_named(engine, verb, args, near):
    assert f"Did you mean {near}?" in refusal(engine, verb, args)["hint"]


@pytest.mark.parametrize(
    "args",
    [
        {"direction": "sideways"},
        {"rel": "nope"},
        {"id": None},
        {"depth": 1},
    ],
)
def test_a_bad_argument_is_told_the_same_whatever_the_id_names(engine, args):
    sees = hides("policies/travel")
    told = [
        refusal(engine, "move", {"id": id} | args, sees=sees)
        for id in ("policies/expenses", "policies/travel", "policies/absent", "broken")
    ]
    assert all(error == told[0] for error in told)


def test_null_blank_and_empty_optional_arguments_count_as_absent(engine):
    plain = ask(engine, "locate", query="policy")
    given = {"query": "policy", "k": None, "scope": "  ", "type_filter": ""}
    assert asked(engine, "locate", given) == plain
    assert asked(engine, "look", {"id": "_index", "fields": []}) == ask(engine, "look", id="_index")
    assert asked(engine, "pick", {"id": "finance/x", "section": " "}) == ask(engine, "pick", id="finance/x")
    assert asked(engine, "sniff", {"terms": "Money", "scope": ""}) == ask(engine, "sniff", terms="Money")
    assert asked(engine, "harvest", {"query": "money", "terms": []}) == ask(engine, "harvest", query="money")
    assert asked(engine, "harvest", {"query": "money", "terms": " "}) == ask(engine, "harvest", query="money")
    scan = {"parent_id": "_index", "filter": {}, "fields": [], "recursive": None, "limit": None}
    assert asked(engine, "scan", scan) == ask(engine, "scan", parent_id="_index")


@pytest.mark.parametrize("k, same", [(0, 1), (-5, 1), (1, 1), (3.0, 3), (20, 20), (10**30, 20)])
def test_an_integer_moves_to_the_nearest_limit(engine, k, same):
    assert ask(engine, "sniff", terms="index", k=k) == ask(engine, "sniff", terms="index", k=same)
    assert ask(engine, "locate", query="about", k=k) == ask(engine, "locate", query="about", k=same)


def test_control_characters_count_as_blanks(engine):
    assert ids(ask(engine, "locate", query="expense\0policy\x1b")) == ids(
        ask(engine, "locate", query="expense policy")
    )
    assert ids(ask(engine, "sniff", terms="25\0EUR")) == ["policies/expenses"]
    assert ask(engine, "pick", id="policies/expenses", section="Receipts\0")["body"].startswith(
        "### Receipts"
    )


def test_repeated_items_count_once(engine):
    assert ask(engine, "sniff", terms=["money", "MONEY", "money"]) == ask(engine, "sniff", terms="money")
    assert list(ask(engine, "scan", parent_id="empty/_index", fields=["title", "title"])) == [
        "nodes",
        "truncated",
    ]
    many = ["id"] * 60
    assert list(ask(engine, "look", id="_index", fields=many)) == ["id"]


def test_harvest_k_ends_where_the_environment_says(root, monkeypatch):
    monkeypatch.setenv("MONKEYLLM_HARVEST_MAX_K", "2")
    with closing(Vine(root)) as engine:
        assert len(ids(ask(engine, "harvest", query="about policy money deep trains", k=9))) == 2


def test_unknown_tool(engine):
    error = refusal(engine, "chop", {})
    assert (error["code"], error["message"]) == ("E_NOT_FOUND", "no such tool: chop")
    assert all(name in error["hint"] for name in vine.VERBS)


# ------------------------------------------------------------------------------------------------------- look


def test_look_at_a_leaf(engine):
    answer = ask(engine, "look", id="policies/expenses")
    assert list(answer) == (
        "id type title summary tags confidence updated version edges_out edges_in outline stats".split()
    )
    assert answer["tags"] == ["finance", "Política"]
    assert answer["confidence"] == 0.9
    assert answer["outline"] == ["Limits", "Receipts", "Limits"]
    assert answer["edges_out"] == [
        {"rel": "part-of", "target": "finance/x", "target_summary": "About x."},
        {"rel": "related-to", "target": "policies/nowhere", "target_summary": ""},
        {
            "rel": "related-to",
            "target": "policies/travel",
            "target_summary": "About travel.",
            "confidence": 0.5,
        },
    ]
    assert answer["edges_in"] == [
        {"rel": "author-of", "source": "policies/travel"},
        {"rel": "related-to", "source": "policies/travel"},
    ]
    body = ask(engine, "pick", id="policies/expenses")["body"]
    assert list(answer["stats"]) == ["body_tokens", "degree", "heat"]
    assert (answer["stats"]["body_tokens"], answer["stats"]["degree"]) == (forest.count_tokens(body), 5)
    assert len(answer["version"]) == 16 and set(answer["version"]) <= set("0123456789abcdef")


def test_look_at_a_branch(engine):
    answer = ask(engine, "look", id="policies/_index")
    assert (
        list(answer)
        == (
            "id type title summary tags confidence updated version edges_out edges_in children cross_trails "
            "coverage stats"
        ).split()
    )
    assert answer["cross_trails"] == ["see [[finance/x]]", "and this"]
    assert answer["coverage"] == "2 bananas, 0 sub-branches"
    assert [child["id"] for child in answer["children"]] == ["policies/expenses", "policies/travel"]
    assert ask(engine, "look", id="finance/_index")["children"][0]["id"] == "finance/deep/_index"
    assert ask(engine, "look", id="empty/_index")["cross_trails"] == []


def test_look_keeps_the_fields_asked_for(engine):
    answer = ask(
        engine,
        "look",
        id="policies/expenses",
        fields=["stats", "title", "aliases", "source", "created", "children"],
    )
    assert list(answer) == ["id", "title", "created", "source", "aliases", "stats"]
    assert (
        answer["aliases"] == ["Spesen"] and answer["source"] == "manual" and answer["created"] == "2026-01-02"
    )


def test_look_of_an_index_without_cross_trails(root):
    path = root / "plainbranch" / "_index.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text("---\ntype: branch\ntitle: Plain\nsummary: Bare.\n---\n\n# Plain\n")
    with closing(Vine(root)) as engine:
        assert "cross_trails" not in ask(engine, "look", id="plainbranch/_index")


def test_edges_are_capped_after_sorting_by_heat(tmp_path):
    nodes = {f"n{n:02}": "x" for n in range(20)}
    nodes["hub"] = {"links": [{"rel": "related-to", "target": id} for id in nodes]}
    nodes |= {f"s{n:02}": {"links": [{"rel": "author", "target": "hub"}]} for n in range(20)}
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        engine.heat.deposit({"n19": 0.5, "s17": 0.4})
        answer = ask(engine, "look", id="hub")
        assert [e["target"] for e in answer["edges_out"]][:3] == ["n19", "n00", "n01"]
        assert [e["source"] for e in answer["edges_in"]][:3] == ["s17", "s00", "s01"]
        assert answer["stats"]["degree"] == 40
        small = ask(engine, "look", id="hub", fields=["edges_in"])
        assert len(small["edges_in"]) == 12 and "truncated" not in small


def test_look_cuts_in_its_order_and_only_as_far_as_needed(tmp_path):
    nodes = {
        "long": {
            "body": "".join(f"## Heading number {n} of this long text\n\nx\n\n" for n in range(120)),
            "tags": ["t"],
        },
        "short": {"body": "".join(f"## H{n}\n\n" for n in range(20))},
        "wordy": {"summary": "word " * 2000, "title": "title " * 2000},
    }
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        cut = ask(engine, "look", id="long")
        assert cut["truncated"] is True and cut["truncated_fields"] == ["outline"]
        assert 15 <= len(cut["outline"]) < 120 and cut["tags"] == ["t"]
        one_more = json.loads(forest.dumps(cut))
        one_more["outline"].append(f"Heading number {len(cut['outline'])} of this long text")
        assert tokens(one_more) > 500
        assert "truncated" not in ask(engine, "look", id="short")
        clipped = ask(engine, "look", id="wordy")
        assert clipped["truncated_fields"] == ["summary", "title"]
        assert clipped["summary"].endswith("…") and clipped["title"].endswith("…")
        assert list(clipped)[:4] == ["id", "type", "title", "summary"] and "stats" in clipped


# ------------------------------------------------------------------------------------------------------- move


def neighbors(answer):
    return [(n["id"], n["rel"], n["direction"]) for n in answer["neighbors"]]


def test_move_along_edges(engine):
    answer = ask(engine, "move", id="policies/expenses", direction="both")
    assert list(answer) == ["neighbors", "truncated"] and answer["truncated"] is False
    assert list(answer["neighbors"][0]) == ["id", "rel", "direction", "type", "summary", "heat"]
    assert neighbors(answer) == [
        ("finance/x", "part-of", "out"),
        ("policies/nowhere", "related-to", "out"),
        ("policies/travel", "author-of", "in"),
        ("policies/travel", "related-to", "out"),
        ("policies/travel", "related-to", "in"),
    ]
    assert answer["neighbors"][1] | {"heat": 0} == {
        "id": "policies/nowhere",
        "rel": "related-to",
        "direction": "out",
        "type": "?",
        "summary": "",
        "heat": 0,
    }


@pytest.mark.parametrize("rel", ["author", "author-of"])
def test_an_incoming_edge_is_found_by_both_names(engine, rel):
    found = neighbors(ask(engine, "move", id="policies/expenses", rel=rel, direction="in"))
    assert found == [("policies/travel", "author-of", "in")]


def test_move_to_children(engine):
    answer = ask(engine, "move", id="finance/_index", rel="children", direction="in")
    assert neighbors(answer) == [("finance/deep/_index", "children", "out"), ("finance/x", "children", "out")]
    assert ask(engine, "move", id="finance/x", rel="children") == {"neighbors": [], "truncated": False}


def test_an_absent_target_has_no_heat(tmp_path):
    root = grown(tmp_path / "f", {"a": {"links": [{"rel": "related-to", "target": "b"}]}, "b": "x"})
    with closing(Vine(root)) as engine:
        engine.heat.deposit({"b": 0.5})
        assert ask(engine, "move", id="a")["neighbors"][0]["heat"] == 0.5
        (root / "b.md").unlink()
        engine.catalog.stale()
        found = ask(engine, "move", id="a")["neighbors"][0]
        assert (found["type"], found["summary"], found["heat"]) == ("?", "", 0)


# ------------------------------------------------------------------------------------------------------- pick


def test_pick_a_whole_body_and_a_section(engine):
    answer = ask(engine, "pick", id="policies/travel")
    assert list(answer) == ["id", "title", "body", "body_tokens", "truncated", "version"]
    part = ask(engine, "pick", id="policies/expenses", section="## RECEIPTS ")
    assert list(part) == ["id", "title", "section", "body", "body_tokens", "truncated", "version"]
    assert part["section"] == "## RECEIPTS "
    assert part["body"] == "### Receipts\n\nOver 25 EUR.\n\n```\n## no heading\n```"
    assert part["body_tokens"] == forest.count_tokens(part["body"])
    assert ask(engine, "pick", id="policies/expenses", section="Limits")["body"].startswith(
        "## Limits\n\nForty."
    )


def test_a_section_that_is_not_there(engine):
    error = refusal(engine, "pick", {"id": "policies/expenses", "section": "no heading"})
    assert (error["code"], error["message"]) == ("E_NOT_FOUND", "section not found: no heading")
    assert all(name in error["hint"] for name in ("Limits", "Receipts"))
    assert (
        refusal(engine, "pick", {"id": "policies/expenses", "section": "Limits#2"})["code"] == "E_NOT_FOUND"
    )
    assert refusal(engine, "pick", {"id": "finance/x", "section": "#2"})["code"] == "E_NOT_FOUND"


def whole_text(engine, id: str, section: str | None) -> str:
    """Follow the parts of a text from the first to the last."""
    name, found, number = section or "", [], 1
    while True:
        answer = ask(engine, "pick", id=id, section=f"{name}#{number}")
        assert answer["truncated"] is (number < answer["parts"]) and answer["part"] == number
        assert ("hint" in answer) is answer["truncated"]
        found.append(answer["body"])
        if not answer["truncated"]:
            return "".join(found)
        assert f"section={name}#{number + 1}" in answer["hint"]
        number += 1


LONG = {
    "paragraphs": "\n\n".join(f"Paragraph {n}. " + "some words of it " * 40 for n in range(60)),
    "one line": "word and another " * 6000,
    "quotes": '"\\"\t' * 4000,
    "lines": "\n".join(f'line {n}: x = "{n}"' for n in range(2500)),
    "cjk": "東京都の経費は月末までに申請する。" * 900,
    "fence": "```\n" + "\n\n".join(f"code {n}" for n in range(4000)) + "\n```",
    "odd breaks": "\f\u2028".join(f"piece {n} of a line" for n in range(3000)),
    "emoji": "👩‍🚀🧑🏽‍🌾" * 700,
}


@pytest.fixture(scope="module")
def long_forest(tmp_path_factory):
    nodes = {f"bare/{n}": text for n, text in enumerate(LONG.values())}
    nodes |= {
        f"headed/{n}": f"# T\n\nIntro.\n\n## Part\n{text}\n\n## After\nx"
        for n, text in enumerate(LONG.values())
    }
    with closing(Vine(grown(tmp_path_factory.mktemp("long") / "f", nodes))) as engine:
        yield engine


@pytest.mark.parametrize("n", range(len(LONG)), ids=list(LONG))
def test_no_text_is_out_of_reach(long_forest, n):
    text = list(LONG.values())[n].rstrip()
    answer = ask(long_forest, "pick", id=f"bare/{n}")
    assert list(answer) == ["id", "title", "outline", "body_tokens", "truncated", "hint", "version"]
    assert answer["outline"] == [] and answer["truncated"] is True
    assert "section=#1 to section=#" in answer["hint"]
    assert whole_text(long_forest, f"bare/{n}", None) == text
    first = ask(long_forest, "pick", id=f"headed/{n}", section="Part")
    assert list(first) == [
        "id",
        "title",
        "section",
        "body",
        "body_tokens",
        "truncated",
        "version",
        "part",
        "parts",
        "hint",
    ]
    assert (first["part"], first["truncated"]) == (1, True)
    assert whole_text(long_forest, f"headed/{n}", "Part") == f"## Part\n{text}"


def test_a_long_body_with_headings_answers_its_outline(long_forest):
    answer = ask(long_forest, "pick", id="headed/0")
    assert answer["outline"] == ["Part", "After"]
    assert answer["hint"] == "Body exceeds 4000 tokens. Use section=<header> to harvest one section."
    assert "body" not in answer


def test_an_outline_too_long_is_shortened_and_counted(tmp_path):
    body = "".join(f"## A heading with the number {n}\n\ntext\n\n" for n in range(1500))
    with closing(Vine(grown(tmp_path / "f", {"long": body}))) as engine:
        answer = ask(engine, "pick", id="long")
        shown = len(answer["outline"])
        assert 300 < shown < 1500 and str(shown) in answer["hint"] and "1500" in answer["hint"]


def test_section_matching(tmp_path):
    body = (
        "## Notes of the release\nrel\n## Notes\nnotes\n## One\none\n## Step#2\nwin\n## Step\n"
        + "step " * 9000
        + "\n## Step#3 more\nmore"
    )
    body += "\n## Straße (äußere)\nstreet\n## C#\nsharp"
    with closing(Vine(grown(tmp_path / "f", {"n": body}))) as engine:
        pick = lambda section: ask(engine, "pick", id="n", section=section)
        assert pick("notes")["body"] == "## Notes\nnotes"
        assert pick("Notes of")["body"].startswith("## Notes of the release")
        assert pick("strasse")["body"].startswith("## Straße")
        assert pick("C#")["body"] == "## C#\nsharp"
        assert pick("Step#2")["body"] == "## Step#2\nwin"
        assert pick("Step#3")["part"] == 3
        assert refusal(engine, "pick", {"id": "n", "section": "on"})["code"] == "E_NOT_FOUND"


# ------------------------------------------------------------------------------------------------------- scan


def test_scan_lists_children_and_everything_below(engine):
    answer = ask(engine, "scan", parent_id="finance/_index")
    assert answer == {
        "nodes": [
            {"id": "finance/deep/_index", "type": "branch", "summary": "About deep."},
            {"id": "finance/x", "type": "concept", "summary": "About x."},
        ],
        "truncated": False,
    }
    below = ids(ask(engine, "scan", parent_id="finance/_index", recursive=True, fields=["id"]))
    assert below == ["finance/deep/_index", "finance/deep/er/_index", "finance/deep/er/leaf", "finance/x"]
    everything = ids(ask(engine, "scan", parent_id="_index", recursive=True, fields=["id"]))
    assert "_meta/schema" in everything and "_index" not in everything and "broken" not in everything


def test_scan_fields_come_in_the_order_asked(engine):
    fields = [
        "heat",
        "parent",
        "trail",
        "coverage",
        "outline",
        "body_tokens",
        "entity_kind",
        "aliases",
        "confidence",
        "source",
    ]
    answer = ask(engine, "scan", parent_id="policies/_index", fields=fields)
    item = answer["nodes"][0]
    assert list(item) == ["id", *fields]
    assert item | {"body_tokens": 0, "heat": 0} == {
        "id": "policies/expenses",
        "heat": 0,
        "parent": "policies/_index",
        "trail": ["_index", "policies/_index"],
        "coverage": None,
        "outline": ["Limits", "Receipts", "Limits"],
        "body_tokens": 0,
        "entity_kind": None,
        "aliases": ["Spesen"],
        "confidence": 0.9,
        "source": "manual",
    }
    assert item["body_tokens"] == ask(engine, "look", id="policies/expenses")["stats"]["body_tokens"]


@pytest.mark.parametrize(
    "given, found",
    [
        ({"type": "concept"}, {"finance/x"}),
        ({"kind": "branch", "parent": "finance/_index"}, {"finance/deep/_index"}),
        ({"tags_any": ["POLITICA", "nope"]}, {"policies/expenses"}),
        ({"tags_all": ["politica", "finance"]}, {"policies/expenses"}),
        ({"tags_all": ["politica", "nope"]}, set()),
        ({"confidence": 0.9}, {"policies/expenses"}),
        ({"min_confidence": 0.95, "type": "concept"}, {"finance/x"}),
        ({"source": "manual"}, {"policies/expenses"}),
        ({"payload_type": "image"}, {"pics/plain"}),
        ({"updated_after": "2026-05"}, {"policies/travel"}),
        ({"updated_after": "2026-05-31T23:59:59Z"}, {"policies/travel"}),
        ({"updated_after": "2026-06-01"}, set()),
        ({"updated_before": "2026-05", "updated_after": "2026-05-31"}, {"policies/travel"}),
        ({"updated_before": "2026", "updated_after": "2026-04"}, {"policies/travel"}),
        ({"updated_before": "2025"}, set()),
        ({"created_before": "2025-12-31"}, set()),
    ],
)
def test_scan_filters(engine, given, found):
    assert (
        set(ids(ask(engine, "scan", parent_id="_index", recursive=True, filter=given, fields=["id"])))
        == found
    )


def test_a_node_without_a_date_never_matches_a_date(tmp_path):
    root = grown(
        tmp_path / "f",
        {"dated": "x", "vague": {"updated": "yesterday"}, "none": {"updated": None, "created": "9"}},
    )
    with closing(Vine(root)) as engine:
        for key in ("updated_after", "updated_before"):
            bound = "1999" if key.endswith("after") else "2999"
            assert ids(ask(engine, "scan", parent_id="_index", filter={key: bound})) == ["dated"]
        assert ids(ask(engine, "scan", parent_id="_index", filter={"created_after": "1999"})) == [
            "dated",
            "vague",
        ]


@pytest.mark.parametrize(
    "given",
    [
        {"tags_any": "x"},
        {"tags_any": []},
        {"tags_any": ["x"] * 21},
        {"tags_all": [1]},
        {"min_confidence": "high"},
        {"min_confidence": 1.5},
        {"confidence": True},
        {"type": "Note"},
        {"type": 3},
        {"kind": "leaf"},
        {"source": "web"},
        {"entity_kind": "robot"},
        {"payload_type": "exe"},
        {"updated_after": "yesterday"},
        {"updated_after": "2026-13"},
        {"created_before": "2026-02-30"},
        {"updated_after": 2026},
        {"updated_before": "٢٠٢٦"},
        {"parent": 1},
        {"parent": "x" * 241},
        {"colour": "red"},
    ],
)
def test_a_bad_filter_is_refused_on_an_empty_branch_too(engine, given):
    error = refusal(engine, "scan", {"parent_id": "empty/_index", "filter": given})
    assert error["code"] == "E_SCHEMA" and next(iter(given)) in error["message"]
    assert refusal(engine, "scan", {"parent_id": "nowhere/_index", "filter": given}) == error


def test_scan_of_a_leaf_and_of_nothing(engine):
    assert refusal(engine, "scan", {"parent_id": "finance/x"})["code"] == "E_SCHEMA"
    assert refusal(engine, "scan", {"parent_id": "finance"})["code"] == "E_NOT_FOUND"
    assert ask(engine, "scan", parent_id="empty/_index") == {"nodes": [], "truncated": False}


def test_scan_orders_by_heat_and_tells_the_total_when_cut(tmp_path):
    with closing(Vine(grown(tmp_path / "f", {f"n{n:03}": "x" for n in range(120)}))) as engine:
        engine.heat.deposit({"n100": 0.3, "n050": 0.4, "n051": 0.3})
        answer = ask(engine, "scan", parent_id="_index", limit=5, fields=["heat"])
        assert ids(answer) == ["n050", "n051", "n100", "n000", "n001"]
        assert answer["truncated"] is True and answer["total"] == 120
        assert list(answer) == ["nodes", "truncated", "total"]
        by_budget = ask(
            engine,
            "scan",
            parent_id="_index",
            limit=50,
            fields=["title", "trail", "summary"],
            filter={"type": "note"},
        )
        assert 1 <= len(by_budget["nodes"]) < 50 and by_budget["total"] == 120


def test_one_file_broken_a_moment_ago_does_not_fail_a_scan(tmp_path):
    root = grown(tmp_path / "f", {"a": "## H\nx", "b": "y"})
    with closing(Vine(root)) as engine:
        ask(engine, "look", id="a")
        (root / "a.md").write_bytes(b"\xff\xfe broken now")
        answer = ask(engine, "scan", parent_id="_index", fields=["outline", "body_tokens"])
        assert "b" in ids(answer)


# ------------------------------------------------------------------------------------------------------- view


def test_view_returns_the_bytes_and_tells_what_they_are(engine):
    answer = ask(engine, "view", id="pics/plain")
    assert answer == {
        "id": "pics/plain",
        "media_type": "image/png",
        "size": len(PNG),
        "payload_hash": "ab" * 32,
        "data": PNG,
    }


@pytest.mark.parametrize("id", ["pics/bare", "pics/lost", "pics/out", "finance/x", "pics/absent"])
def test_view_without_a_picture_is_the_not_found_answer(engine, id):
    assert refusal(engine, "view", {"id": id}) == {
        "code": "E_NOT_FOUND",
        "message": f"node not found: {id}",
        "hint": "Use locate() to find entry points.",
    }


@pytest.mark.parametrize("id, word", [("pics/remote", "s3"), ("pics/liar", ".png"), ("pics/sheet", ".pdf")])
def test_view_of_something_else_names_the_type(engine, id, word):
    error = refusal(engine, "view", {"id": id})
    assert error["code"] == "E_SCHEMA" and word in error["message"]


def test_view_stops_at_six_mebibytes(tmp_path):
    limit = 6 * 1024 * 1024
    root = grown(tmp_path / "f", {"fits": {"payload": "fits.png"}, "big": {"payload": "big.png"}})
    (root / "fits.png").write_bytes(PNG.ljust(limit, b"\0"))
    (root / "big.png").write_bytes(PNG.ljust(limit + 1, b"\0"))
    with closing(Vine(root)) as engine:
        assert ask(engine, "view", id="fits")["size"] == limit
        assert str(limit + 1) in refusal(engine, "view", {"id": "big"})["message"]


# -------------------------------------------------------------------------------------------- plant and graft


def test_plant_answers_id_commit_and_trail(writable):
    planted(writable, "a/_index")
    node = {"id": "a/n", "type": "note", "title": "N", "summary": "S.", "parent": "a/_index"}
    answer = ask(writable, "plant", node=node)
    assert list(answer) == ["id", "commit", "trail"]
    assert answer["commit"] == git(writable, "rev-parse", "HEAD").strip()
    assert answer["trail"] == ["_index", "a/_index"]
    assert ask(writable, "look", id="a/n", fields=["source"])["source"] == "agent"
    assert ids(ask(writable, "locate", query="N")) == ["a/n"]


GOOD = {"id": "n", "type": "note", "title": "T", "summary": "S.", "parent": "_index"}
FIRST_FAULTS = [  # in the order in which they are told
    ({"title": None}, "E_SCHEMA", "title"),
    ({"title": 5}, "E_SCHEMA", "title"),
    ({"links": [{"rel": "related-to"}]}, "E_SCHEMA", "links[0].target"),
    ({"id": "n\0"}, "E_SCHEMA", "id"),
    ({"type": "branch"}, "E_SCHEMA", "_index"),
    ({"type": "poem"}, "E_SCHEMA", "type"),
    ({"links": [{"rel": "likes", "target": "_index"}]}, "E_SCHEMA", "links[0].rel"),
    ({"links": [{"rel": "related-to", "target": f"t{n}"} for n in range(51)]}, "E_SCHEMA", "links"),
    ({"title": " "}, "E_FRONTMATTER", "title"),
    ({"summary": "word " * 80}, "E_FRONTMATTER", "summary"),
    ({"tags": ["t"] * 21}, "E_FRONTMATTER", "tags"),
    ({"aliases": ["a" * 81]}, "E_FRONTMATTER", "aliases"),
    ({"confidence": 2}, "E_FRONTMATTER", "confidence"),
    ({"source": "web"}, "E_FRONTMATTER", "source"),
    ({"entity_kind": "robot"}, "E_FRONTMATTER", "entity_kind"),
    ({"payload": "../x.db"}, "E_SCHEMA", "payload"),
    ({"id": "_index", "type": "branch"}, "E_SCHEMA", "_index"),
    ({"id": "no/where", "parent": "no/_index"}, "E_NOT_FOUND", "no/_index"),
    ({"id": "taken", "parent": "taken"}, "E_SCHEMA", "taken"),
    ({"links": [{"rel": "related-to", "target": "absent"}]}, "E_NOT_FOUND", "absent"),
]


@pytest.mark.parametrize("change, code, word", FIRST_FAULTS)
def test_a_refused_plant_changes_nothing(writable, change, code, word):
    planted(writable, "taken")
    before = git(writable, "rev-parse", "HEAD")
    error = refusal(writable, "plant", {"node": GOOD | change})
    assert error["code"] == code and word in error["message"]
    assert git(writable, "rev-parse", "HEAD") == before and git(writable, "status", "--porcelain") == ""
    assert refusal(writable, "look", {"id": "n"})["code"] == "E_NOT_FOUND"


def test_the_first_fault_of_a_plant_is_told(writable):
    """One fault after the other is mended: the order of the list is the order of the answers."""
    order = ["title", "id", "rel", "title text", "summary", "confidence"]
    node = GOOD | {
        "title": 5,
        "id": "bad id",
        "links": [{"rel": "likes", "target": "absent"}],
        "summary": "",
        "confidence": 7,
    }
    mends = [{"title": ""}, {"id": "n"}, {"links": []}, {"title": "T"}, {"summary": "S."}, {"confidence": 1}]
    starts = ["title: must be a string", "id ", "links[0].rel", "title: ", "summary: ", "confidence: "]
    for name, start, mend in zip(order, starts, mends):
        assert refusal(writable, "plant", {"node": node})["message"].startswith(start), name
        node |= mend
    assert ask(writable, "plant", node=node)["id"] == "n"


def test_graft_answers_id_commit_fortified_and_trail(writable):
    planted(writable, "a/n", links=[{"rel": "related-to", "target": "_index"}])
    patch = {"set_frontmatter": {"title": "New"}, "add_links": [{"rel": "related-to", "target": "_index"}]}
    answer = ask(writable, "graft", id="a/n", patch=patch)
    assert list(answer) == ["id", "commit", "fortified", "trail"]
    assert answer["fortified"] == [{"rel": "related-to", "target": "_index"}]
    assert answer["trail"] == ["_index", "a/_index"]
    assert ask(writable, "look", id="a/n")["title"] == "New"
    assert ids(ask(writable, "locate", query="New", scope="bananas")) == ["a/n"]


@pytest.mark.parametrize(
    "patch, code",
    [
        ({"colour": 1}, "E_SCHEMA"),
        ({"set_frontmatter": {"id": "x"}}, "E_READONLY"),
        ({"set_frontmatter": {"title": None}}, "E_FRONTMATTER"),
        ({"set_frontmatter": {"title": "two\nlines"}}, "E_FRONTMATTER"),
        ({"add_links": [{"rel": "related-to", "target": "absent"}]}, "E_NOT_FOUND"),
        ({"add_links": [{"rel": "related-to", "target": "n"}]}, "E_SCHEMA"),
        ({"replace_section": {"header": "Nope", "body": ""}}, "E_NOT_FOUND"),
        ({"append_section": {"header": "a\nb", "body": ""}}, "E_SCHEMA"),
        ({"append_section": {"header": "a" * 201, "body": ""}}, "E_SCHEMA"),
        ({"replace_body": "x", "append_section": {"header": "a", "body": ""}}, "E_SCHEMA"),
    ],
)
def test_a_refused_graft_changes_nothing(writable, patch, code):
    planted(writable, "n", "text")
    before = ask(writable, "look", id="n"), git(writable, "rev-parse", "HEAD")
    assert refusal(writable, "graft", {"id": "n", "patch": patch})["code"] == code
    assert (ask(writable, "look", id="n"), git(writable, "rev-parse", "HEAD")) == before


def test_a_read_only_engine_refuses_before_anything_else(writable):
    with closing(Vine(writable.root, readonly=True)) as engine:
        for verb in ("plant", "graft", "tend"):
            assert refusal(engine, verb, {"nonsense": 1})["code"] == "E_READONLY"
        assert ask(engine, "look", id="_index")["id"] == "_index"
        assert ask(engine, "close_session", success=False)["outcome"]["success"] is False


# --------------------------------------------------------------------------------- faults that must not exist


@pytest.mark.parametrize(
    "id",
    [
        "policies/../finance/x",
        "finance/x/",
        " finance/x",
        "finance/x ",
        "./finance/x",
        "FINANCE/X",
        "",
        "finance//x",
        "finance/x.md",
    ],
)
def test_1_other_spellings_of_an_id_are_absent_and_leave_nothing(engine, id):
    before = ask(engine, "sniff", terms="zzz")["scanned_nodes"]
    for verb in ("look", "move", "pick", "view"):
        error = refusal(engine, verb, {"id": id})
        assert error == {
            "code": "E_NOT_FOUND",
            "message": f"node not found: {id}",
            "hint": "Use locate() to find entry points.",
        }
    assert ask(engine, "sniff", terms="zzz")["scanned_nodes"] == before
    assert ids(ask(engine, "locate", query="x", k=20)).count("finance/x") == 1


def test_1_a_decomposed_spelling_is_absent(tmp_path):
    with closing(Vine(grown(tmp_path / "f", {"café": "x"}))) as engine:
        assert ask(engine, "look", id="caf\u00e9")["id"] == "caf\u00e9"
        assert refusal(engine, "look", {"id": "cafe\u0301"})["code"] == "E_NOT_FOUND"


def test_2_absent_and_hidden_ids_differ_by_the_id_alone(engine):
    sees = hides("policies/travel", "pics/plain", "policies/_index")
    calls = [
        ("look", "id", "policies/travel"),
        ("move", "id", "policies/travel"),
        ("pick", "id", "policies/travel"),
        ("view", "id", "pics/plain"),
        ("scan", "parent_id", "policies/_index"),
        ("query", "id", "policies/travel"),
        ("sniff", "scope", "policies/travel"),
        ("sniff", "scope", "policies"),
        ("graft", "id", "policies/travel"),
        ("close_session", "answer_nodes", "policies/travel"),
    ]
    rest = {
        "query": {"sql": "SELECT 1"},
        "sniff": {"terms": "on"},
        "graft": {"patch": {"replace_body": ""}},
        "close_session": {"success": True},
    }
    for verb, key, id in calls:
        wrap = (lambda one: [one]) if key == "answer_nodes" else (lambda one: one)
        hidden = refusal(engine, verb, rest.get(verb, {}) | {key: wrap(id)}, sees=sees)
        absent = refusal(engine, verb, rest.get(verb, {}) | {key: wrap("qqq")}, sees=sees)
        assert json.dumps(hidden).replace(id, "?") == json.dumps(absent).replace("qqq", "?"), verb
        assert hidden["message"] == f"node not found: {id}"


@pytest.mark.parametrize("id", ["x" * 1_000_000, "あ" * 300_000, "👩" * 1000, "a/" * 500_000])
def test_2_a_huge_id_gets_a_small_answer(engine, id):
    for verb, args in (
        ("look", {"id": id}),
        ("scan", {"parent_id": id}),
        ("sniff", {"terms": "xx", "scope": id}),
    ):
        error = refusal(engine, verb, args)
        assert error["code"] == "E_NOT_FOUND"
        assert f"node not found: {id[:239]}…".startswith(error["message"].removesuffix("…"))


@pytest.mark.parametrize(
    "query", ["\0", '"', "*", "a AND b OR", "-x", "...", "🚀🚀", "NEAR(", "'; DROP", "%", "\\", "()", " "]
)
def test_4_no_query_is_an_error(engine, query):
    for verb in ("locate", "harvest"):
        assert ask(engine, verb, query=query)["truncated"] is False
    assert ask(engine, "sniff", terms=[query + "!!"])["results"] == []


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    nodes = {f"big/n{n:04}": {"summary": f"Summary of the node with the number {n}."} for n in range(3000)}
    with closing(Vine(grown(tmp_path_factory.mktemp("wide") / "f", nodes))) as engine:
        yield engine


def test_6_a_branch_of_3000_children(wide):
    digest = ask(wide, "look", id="big/_index")
    assert (
        digest["truncated"] is True
        and digest["truncated_fields"] == ["children"]
        and len(digest["children"]) >= 10
    )
    assert digest["coverage"] == "3000 bananas, 0 sub-branches"
    answer = ask(wide, "move", id="big/_index", rel="children")
    assert answer["truncated"] is True and len(answer["neighbors"]) >= 5
    wide.heat.deposit({"big/n2999": 0.5})
    assert ids(ask(wide, "move", id="big/_index", rel="children"))[0] == "big/n2999"
    assert ask(wide, "look", id="big/_index")["children"][0]["id"] == "big/n2999"


def test_6_long_notes_of_a_dataset_are_cut_loudly(tmp_path):
    body = "## Notes\n" + "How to read this table, told at length. " * 400
    with closing(Vine(grown(tmp_path / "f", {"d": {"type": "dataset", "body": body}}))) as engine:
        answer = ask(engine, "look", id="d", fields=["notes"])
        assert forest.count_tokens(answer["notes"]) <= 200
        assert answer["truncated"] is True and answer["truncated_fields"] == ["notes"]


def test_8_filters_apply_before_any_cut(tmp_path):
    nodes = {f"b{n}/_index": {"title": "Bee bee bee"} for n in range(30)}
    nodes |= {f"n{n:03}": {"summary": "One bee."} for n in range(100)}
    nodes |= {
        f"e{n}": {"type": "event", "summary": "Something else about one bee in passing."} for n in range(3)
    }
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        answer = ask(engine, "locate", query="bee", scope="bananas", k=5)
        assert len(ids(answer)) == 5 and answer["truncated"] is True
        assert all(item["kind"] == "banana" for item in answer["results"])
        assert len(ids(ask(engine, "locate", query="bee", type_filter="event", k=5))) == 3
        assert all(id.endswith("_index") for id in ids(ask(engine, "locate", query="bee", scope="branches")))


def test_11_recursive_scan_goes_by_exact_prefix(tmp_path):
    nodes = {"a_b/one": "x", "axb/two": "x", "A_b/three": "x", "a_b0/four": "x", "a_b/sub/five": "x"}
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        found = ids(ask(engine, "scan", parent_id="a_b/_index", recursive=True, fields=["id"]))
        assert found == ["a_b/one", "a_b/sub/_index", "a_b/sub/five"]
        assert refusal(engine, "scan", {"parent_id": "a_b/one", "recursive": True})["code"] == "E_SCHEMA"


def test_24_writes_that_change_nothing_make_no_commit(writable):
    planted(writable, "a")
    planted(writable, "n", "text", title="T", links=[{"rel": "related-to", "target": "a"}])
    before = git(writable, "rev-parse", "HEAD")
    link = {"rel": "same-as", "target": "a"}
    for patch in (
        {"set_frontmatter": {"title": "T"}},
        {"add_links": [link], "remove_links": [link]},
        {"remove_links": [{"rel": "author", "target": "a"}]},
        {"replace_body": "# T\n\ntext"},
        {"set_frontmatter": {"tags": None, "confidence": 1}},
    ):
        assert ask(writable, "graft", id="n", patch=patch)["commit"] is None, patch
    assert git(writable, "rev-parse", "HEAD") == before and git(writable, "status", "--porcelain") == ""
    for title in ("A title\nstation-principal: admin", "A title\u2028x", "A\x85title"):
        assert (
            refusal(writable, "graft", {"id": "n", "patch": {"set_frontmatter": {"title": title}}})["code"]
            == "E_FRONTMATTER"
        )


def test_25_of_two_grafts_with_one_expect_one_wins(writable):
    planted(writable, "n", "text")
    version = ask(writable, "look", id="n")["version"]
    commits, told = [], []

    def write_one(word):
        patch = {"replace_body": word}
        try:
            commits.append(writable.call("graft", {"id": "n", "patch": patch, "expect": version})["commit"])
        except forest.VineError as error:
            told.append(error)

    threads = [threading.Thread(target=write_one, args=(word,)) for word in ("one", "two")]
    [t.start() for t in threads], [t.join() for t in threads]
    assert len(commits) == 1 and [error.code for error in told] == ["E_LOCKED"]
    assert ask(writable, "look", id="n")["version"] in told[0].hint


def test_25_a_birth_below_a_branch_leaves_its_version(writable):
    planted(writable, "a/_index")
    version = ask(writable, "look", id="a/_index")["version"]
    planted(writable, "a/n")
    assert ask(writable, "look", id="a/_index")["version"] == version
    ask(
        writable,
        "graft",
        id="a/_index",
        patch={"append_section": {"header": "H", "body": "b"}},
        expect=version,
    )
    assert ask(writable, "look", id="a/_index")["version"] != version


def test_27_clients_have_sessions_of_their_own(root):
    pool = Pool.single(root)
    try:
        for _ in range(3):
            pool.call("look", {"id": "finance/x"}, client="one")
        pool.call("pick", {"id": "finance/x"}, client="two")
        report = pool.call("close_session", {"success": False}, client="two")
        assert report["metrics"]["calls"] == 1
        assert pool.call("close_session", {"success": False}, client="one")["metrics"]["calls"] == 3
    finally:
        pool.close()


WRITER = """
import sys
from vine import Vine
engine = Vine(sys.argv[1])
for n in range(int(sys.argv[3])):
    id = f"a/{sys.argv[2]}{n}"
    node = {"id": id, "type": "note", "title": id, "summary": id, "parent": "a/_index"}
    engine.call("plant", {"node": node})
"""


def test_29_two_processes_plant_into_one_branch(writable, tmp_path):
    planted(writable, "a/_index")
    before = int(git(writable, "rev-list", "--count", "HEAD"))
    here = str(forest.__file__).rsplit("/", 1)[0]
    workers = [
        subprocess.Popen([sys.executable, "-c", WRITER, writable.root, word, "15"], cwd=here)
        for word in ("x", "y")
    ]
    assert [worker.wait() for worker in workers] == [0, 0]
    assert ask(writable, "look", id="a/_index")["coverage"] == "30 bananas, 0 sub-branches"
    assert ask(writable, "scan", parent_id="a/_index", limit=1)["total"] == 30
    assert (writable.root / "a/_index.md").read_text().count("- [[a/") == 30
    assert int(git(writable, "rev-list", "--count", "HEAD")) == before + 30


def test_30_outside_edits_are_seen_two_seconds_later(tmp_path):
    root = grown(tmp_path / "f", {"keep": "steady", "edit": "before", "drop": "gone soon"})
    with closing(Vine(root)) as engine:
        scanned = ask(engine, "sniff", terms="steady")["scanned_nodes"]
        write(root, "edit", "afterwards", title="Edited")
        write(root, "fresh", "brand new text")
        (root / "drop.md").unlink()
        (root / "bad.md").write_bytes(b"---\n\xff")
        time.sleep(2)
        assert ids(ask(engine, "sniff", terms="afterwards")) == ["edit"]
        assert ask(engine, "sniff", terms="brand new")["scanned_nodes"] == scanned
        assert ids(ask(engine, "sniff", terms="gone soon")) == []
        assert ids(ask(engine, "locate", query="Edited")) == ["edit"]
        assert refusal(engine, "look", {"id": "drop"})["code"] == "E_NOT_FOUND"
        assert refusal(engine, "look", {"id": "bad"})["code"] == "E_FRONTMATTER"
        assert ids(ask(engine, "scan", parent_id="_index")) == ["edit", "fresh", "keep"]


def test_answers_are_the_same_bytes_on_the_same_state(engine):
    for verb, args in (
        ("locate", {"query": "about policy"}),
        ("harvest", {"query": "policy money", "k": 5}),
        ("sniff", {"terms": ["ee", "on"]}),
    ):
        assert forest.dumps(asked(engine, verb, args)) == forest.dumps(asked(engine, verb, args))


# -------------------------------------------------------------------------------------- what a caller may see

VISIBLE = "policies/_index", "policies/expenses", "policies/sub/", "finance/x"
CALLS = [
    ("locate", {"query": "policy about money", "k": 20}),
    ("locate", {"query": "secret", "k": 20}),
    ("sniff", {"terms": ["on", "secret"], "k": 20}),
    ("sniff", {"terms": "policies/", "k": 20}),
    ("harvest", {"query": "policy money secret", "k": 10}),
    ("harvest", {"query": "policy", "terms": ["secret", "Forty"], "k": 10}),
    ("look", {"id": "policies/_index"}),
    ("look", {"id": "policies/expenses"}),
    ("look", {"id": "finance/x"}),
    ("look", {"id": "_index"}),
    ("look", {"id": "policies/secret"}),
    ("pick", {"id": "policies/_index"}),
    ("pick", {"id": "policies/_index", "section": "Sub-branches"}),
    ("pick", {"id": "policies/secret"}),
    ("move", {"id": "policies/expenses", "direction": "both"}),
    ("move", {"id": "policies/_index", "rel": "children"}),
    (
        "scan",
        {
            "parent_id": "policies/_index",
            "recursive": True,
            "fields": ["parent", "trail", "coverage", "heat", "body_tokens"],
        },
    ),
    ("scan", {"parent_id": "policies/_index", "filter": {"parent": "policies/_index"}}),
    ("scan", {"parent_id": "_index"}),
    ("sniff", {"terms": "on", "scope": "policies"}),
    ("sniff", {"terms": "on", "scope": "_index"}),
    ("sniff", {"terms": "on", "scope": "finance"}),
    ("close_session", {"success": False, "answer_nodes": ["policies/secret"]}),
]


def twin_forests(tmp_path):
    """A written forest with hidden nodes, and the same one that never had them."""
    roots = tmp_path / "a" / "f", tmp_path / "b" / "f"
    for root, whole in zip(roots, (True, False)):
        vine.init(root)
        with closing(Vine(root)) as engine:
            planted(engine, "policies/_index", "Intro of the policies.", title="Policies")
            planted(engine, "finance/_index")
            planted(
                engine, "policies/expenses", "# E\n\n## Limits\nForty on one secret.", title="Expense policy"
            )
            planted(
                engine,
                "policies/sub/leaf",
                "On money.",
                links=[{"rel": "related-to", "target": "policies/expenses"}],
            )
            planted(engine, "finance/x", "Money on policies/here.")
            if whole:
                planted(
                    engine,
                    "policies/secret",
                    "secret " * 30,
                    title="Secret policy",
                    links=[{"rel": "author", "target": "finance/x"}],
                )
                planted(
                    engine,
                    "policies/shut/leaf",
                    "# S\n\n## Limits\nsecret on money",
                    links=[{"rel": "author", "target": "policies/expenses"}],
                )
                planted(engine, "policies/sub/hushed", "money money")
                patch = {"add_links": [{"rel": "related-to", "target": "policies/secret"}]}
                engine.call("graft", {"id": "finance/x", "patch": patch})
                engine.call(
                    "graft",
                    {
                        "id": "policies/_index",
                        "patch": {
                            "replace_section": {
                                "header": "Cross trails",
                                "body": "- see [[policies/secret|x]]\n  goes on\n- see [[policies/expenses]]",
                            }
                        },
                    },
                )
            else:
                engine.call(
                    "graft",
                    {
                        "id": "policies/_index",
                        "patch": {
                            "replace_section": {
                                "header": "Cross trails",
                                "body": "- see [[policies/expenses]]",
                            }
                        },
                    },
                )
    return roots


def in_scope(id: str) -> bool:
    return (
        any(id == v or (v.endswith("/") and id.startswith(v)) for v in VISIBLE)
        and id != "policies/sub/hushed"
    )


def bare(answer):
    """An answer without what may differ: versions, clocks, sessions."""
    if isinstance(answer, dict):
        return {k: bare(v) for k, v in answer.items() if k not in ("version", "updated", "elapsed_ms")}
    return [bare(item) for item in answer] if isinstance(answer, list) else answer


def test_a_scoped_answer_is_that_of_a_forest_without_the_hidden_nodes(tmp_path):
    def told(engine, verb, args):
        try:
            return bare(asked(engine, verb, args, sees=in_scope))
        except forest.VineError as error:
            return error.envelope()

    whole, pruned = twin_forests(tmp_path)
    with closing(Vine(whole)) as many, closing(Vine(pruned)) as few:
        for verb, args in CALLS:
            assert forest.dumps(told(many, verb, args)) == forest.dumps(told(few, verb, args)), (verb, args)
        text = forest.dumps([told(many, verb, args) for verb, args in CALLS if "secret" not in str(args)])
        for marker in ("policies/secret", "shut", "hushed"):
            assert marker not in text


def test_8_hidden_better_matches_leave_a_full_list(tmp_path):
    nodes = {f"hidden/h{n:03}": {"title": "Bee bee", "body": "bee " * 20} for n in range(100)}
    nodes |= {f"open/o{n}": {"summary": "About one bee.", "body": "A bee came by."} for n in range(5)}
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        sees = visible_only("open/")
        for verb, args in (
            ("locate", {"query": "bee"}),
            ("sniff", {"terms": "bee"}),
            ("harvest", {"query": "bee", "k": 5}),
        ):
            answer = asked(engine, verb, args, sees=sees)
            assert sorted(ids(answer)) == [f"open/o{n}" for n in range(5)] and answer["truncated"] is False
        assert asked(engine, "sniff", {"terms": "bee"}, sees=sees)["scanned_nodes"] == 6
        full = asked(engine, "scan", {"parent_id": "open/_index", "recursive": True}, sees=sees)
        assert len(ids(full)) == 5


def test_writes_outside_the_scope_touch_nothing(writable):
    planted(writable, "a/n")
    planted(writable, "b/n")
    sees = visible_only("a/")
    node = {"id": "b/m", "type": "note", "title": "M", "summary": "M.", "parent": "b/_index"}
    assert refusal(writable, "plant", {"node": node}, sees=sees)["message"] == "node not found: b/_index"
    assert (
        refusal(writable, "graft", {"id": "b/n", "patch": {"replace_body": "x"}}, sees=sees)["message"]
        == "node not found: b/n"
    )
    patch = {"add_links": [{"rel": "related-to", "target": "b/n"}]}
    assert (
        refusal(writable, "graft", {"id": "a/n", "patch": patch}, sees=sees)["message"]
        == "node not found: b/n"
    )
    assert asked(writable, "plant", {"node": node | {"id": "a/m", "parent": "a/_index"}}, sees=sees)[
        "trail"
    ] == ["a/_index"]


def test_a_copy_of_the_files_answers_the_same(root, tmp_path):
    for name in ("one", "other"):
        shutil.copytree(root, tmp_path / name, ignore=shutil.ignore_patterns("_derived"))
    with closing(Vine(tmp_path / "one")) as engine, closing(Vine(tmp_path / "other")) as other:
        for verb, args in (
            ("locate", {"query": "about"}),
            ("look", {"id": "_index"}),
            ("sniff", {"terms": "on"}),
        ):
            other_told, told = asked(other, verb, args), asked(engine, verb, args)
            assert forest.dumps(other_told) == forest.dumps(told)
