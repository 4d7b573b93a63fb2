"""locate, sniff and harvest over small forests, end to end: real files, the real catalog.

Sections: what finds what · locate · sniff · sniff against a plain reading of the rules · harvest ·
the catalog after random edits.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from small_forest import ask, grown, ids, planted, refusal, write

import forest
import vine
import words
from vine import Vine

# -------------------------------------------------------------------------------------------- what finds what

NFD = "Re\u0301sume\u0301"
FOUND_BY = [  # text in a node, queries that find it, queries that do not
    ("Résumé", ["resume", "RÉSUMÉ", "resumes", "re\u0301sume\u0301"], ["summary"]),
    (NFD, ["resume", "RÉSUMÉ", "resumes"], ["summary"]),
    ("Straße", ["strasse", "STRASSE"], ["strase"]),
    ("Łódź", ["lodz"], ["lod"]),
    ("Ørsted", ["orsted"], ["rsted"]),
    ("e-mail", ["email", "mail", "e-mail", "e‑mail"], ["emai"]),
    ("state-of-the-art", ["state of the art", "stateoftheart"], ["stat"]),
    ("snake_case_name", ["snake_case_name", "snakecasename", "snake case"], ["snak"]),
    ("1,250 units", ["1,250", "1250", "1250 unit"], ["12", "1,25"]),
    ("l'amour", ["amour", "l’amour"], ["lam"]),
    ("company's", ["company", "companies", "company’s"], ["lam"]),
    ("expenses", ["expense", "expenses"], ["expend"]),
    ("expense", ["expenses"], ["expend"]),
    ("policies", ["policy"], ["polic"]),
    ("policy", ["policies"], ["polic"]),
    ("reimbursed", ["reimbursement", "reimburse"], ["embursed"]),
    ("reimbursement", ["reimbursed"], ["embursed"]),
    ("ＡＢＣ１２", ["abc12", "ABC12"], ["abc"]),
    ("INV-1045", ["INV-1045", "inv1045", "1045", "inv", "inv-1045"], ["INV-104", "10450"]),
    (
        "parseHTTPResponse",
        ["parseHTTPResponse", "parsehttpresponse", "PARSEHTTPRESPONSE", "http", "response"],
        ["esponse"],
    ),
    ("Python 3.11", ["3.11", "python 3.11"], ["311", "3.1"]),
    ("C++ and more", ["C++", "c"], ["d"]),
    ("C# and more", ["C#", "c"], ["d"]),
    ("despesas", ["despesa"], ["despes"]),
    ("книги", ["книга", "КНИГИ"], ["кни"]),
    ("東京都の経費", ["東京", "京都", "経費", "都"], ["京東"]),
    ("Bee", ["bees"], ["be"]),
]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Every text of the table twice: as a title, and as a body. A third node holds nothing of either."""
    nodes = {}
    for n, (text, *_) in enumerate(FOUND_BY):
        nodes[f"title/t{n}"] = {"title": text, "summary": "-", "body": ""}
        nodes[f"body/b{n}"] = {"title": "-", "summary": "-", "body": f"Zzz {text} zzz."}
    with closing(Vine(grown(tmp_path_factory.mktemp("table") / "f", nodes))) as engine:
        yield engine


@pytest.mark.parametrize("n", range(len(FOUND_BY)), ids=[row[0] for row in FOUND_BY])
def test_every_row_of_the_folding_table(table, n):
    _, finding, missing = FOUND_BY[n]
    for query in finding:
        assert f"title/t{n}" in ids(ask(table, "locate", query=query, k=20)), query
        assert f"body/b{n}" in ids(ask(table, "harvest", query=query, k=10)), query
    for query in missing:
        assert f"title/t{n}" not in ids(ask(table, "locate", query=query, k=20)), query
        assert f"body/b{n}" not in ids(ask(table, "harvest", query=query, k=10)), query


@pytest.mark.parametrize(
    "query, first, second",
    [
        ("3.11", "Python 3.11 news", "Version 3 with 11 parts"),
        ("C++", "C++ guide", "C# guide"),
        ("C#", "C# guide", "C++ guide"),
        ("state-of-the-art", "A state-of-the-art thing", "The art of a state"),
        ("policy", "The policy here", "The policies here"),
        ("INV-1045", "Bill INV-1045 here", "Bill 1045 of inv here"),
    ],
)
def test_the_closer_form_ranks_first(tmp_path, query, first, second):
    nodes = {"a/second": {"title": second, "body": second}, "b/first": {"title": first, "body": first}}
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        assert ids(ask(engine, "locate", query=query, scope="bananas"))[0] == "b/first"
        assert ids(ask(engine, "harvest", query=query))[0] == "b/first"


# ----------------------------------------------------------------------------------------------------- locate


def test_an_item_of_locate(tmp_path):
    with closing(
        Vine(grown(tmp_path / "f", {"a/b/leaf": {"title": "Leaf", "summary": "S" * 300}}))
    ) as engine:
        leaf = ask(engine, "locate", query="leaf")["results"][0]
        assert list(leaf) == ["id", "kind", "type", "title", "summary", "trail", "score", "heat"]
        assert leaf["trail"] == ["_index", "a/_index", "a/b/_index"] and leaf["summary"] == "S" * 300
        branch = ask(engine, "locate", query="b", scope="branches")["results"][0]
        assert list(branch) == [
            "id",
            "kind",
            "type",
            "title",
            "summary",
            "trail",
            "score",
            "heat",
            "coverage",
        ]
        assert (branch["id"], branch["coverage"]) == ("a/b/_index", "1 bananas, 0 sub-branches")


def test_9_stop_words_alone_never_return_a_node_when_there_is_a_better_term(tmp_path):
    nodes = {"stop": {"title": "What is the what", "summary": "the is what"}, "other": {"title": "Else"}}
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        assert ids(ask(engine, "locate", query="what is the policy")) == []
        assert "stop" in ids(ask(engine, "locate", query="what is the"))


def test_9_a_term_in_most_nodes_still_counts(tmp_path):
    nodes = {f"n{n}": {"title": "common" if n < 6 else "rest", "summary": "-"} for n in range(10)}
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        answer = ask(engine, "locate", query="common", k=20)
        assert len(ids(answer)) == 6 and all(item["score"] > 0 for item in answer["results"])


def test_a_title_or_alias_that_is_the_query_wins_over_any_heat(tmp_path):
    nodes = {
        "named": {"title": "Travel  Policy"},
        "alias": {"title": "-", "aliases": ["travel policy"]},
        "hot": {
            "title": "Travel policy travel policy notes",
            "aliases": ["travel", "policy"],
            "tags": ["travel", "policy"],
        },
    }
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        engine.heat.deposit({"hot": 1.0})
        answer = ask(engine, "locate", query="TRAVEL policy ", k=20)
        assert ids(answer)[:3] == ["alias", "named", "hot"]
        assert [item["score"] for item in answer["results"]][:2] == [1.0, 1.0]
        assert answer["results"][2]["score"] <= 0.91  # 0.7, lifted by full heat


def test_fields_weigh_title_aliases_tags_summary(tmp_path):
    nodes = {
        "d": {"title": "other words", "summary": "zebra here"},
        "c": {"title": "other words", "summary": "nothing here", "tags": ["zebra herd"]},
        "b": {"title": "other words", "summary": "nothing here", "aliases": ["zebra herd"]},
        "a": {"title": "zebra words", "summary": "nothing here"},
    }
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        assert ids(ask(engine, "locate", query="zebra")) == ["a", "b", "c", "d"]


def test_heat_lifts_and_equal_scores_go_by_id(tmp_path):
    with closing(
        Vine(grown(tmp_path / "f", {id: {"title": "Same words", "summary": "-"} for id in "cab"}))
    ) as engine:
        assert ids(ask(engine, "locate", query="same")) == ["a", "b", "c"]
        engine.heat.deposit({"c": 0.5})
        answer = ask(engine, "locate", query="same")
        assert ids(answer) == ["c", "a", "b"]
        assert answer["results"][0]["score"] == round(answer["results"][1]["score"] * (1 + 0.3 * 0.5), 4)


def test_a_query_without_a_term_has_no_result(tmp_path):
    with closing(Vine(grown(tmp_path / "f", {"odd": {"title": "???", "aliases": ["!"]}}))) as engine:
        for query in ("???", "!", "…", ""):
            assert ask(engine, "locate", query=query) == {"results": [], "truncated": False}
            answer = ask(engine, "harvest", query=query)
            assert list(answer) == ["query", "terms", "results", "truncated"] and answer["results"] == []


# ------------------------------------------------------------------------------------------------------ sniff


def sniff_one(tmp_path, body: str, terms, **fields) -> dict | None:
    with closing(Vine(grown(tmp_path / "f", {"n": {"body": body} | fields}))) as engine:
        return next(
            (item for item in ask(engine, "sniff", terms=terms)["results"] if item["id"] == "n"), None
        )


def test_an_item_of_sniff(tmp_path):
    item = sniff_one(tmp_path, "one\n## Two\nneedle\nneedle needle\n\nNeedle\nNEEDLE", "needle")
    assert list(item) == "id type title trail score heat match_count truncated_matches matches".split()
    assert (item["match_count"], item["truncated_matches"]) == (4, True)
    assert item["matches"] == [
        {"section": "Two", "line": 3, "snippet": "needle"},
        {"section": "Two", "line": 4, "snippet": "needle needle"},
        {"section": "Two", "line": 6, "snippet": "Needle"},
    ]


@pytest.mark.parametrize("term", ["résumé", "RE\u0301SUME\u0301", "resume", "ésum", "r\u00e9sume\u0301 of"])
def test_10_composition_case_and_accents_do_not_matter(tmp_path, term):
    assert sniff_one(tmp_path, "x\nthe " + NFD + " of", term)["matches"][0]["line"] == 2


@pytest.mark.parametrize("break_", ["\f", "\u2028", "\u2029", "\x85", "\v", "\x1c"])
def test_10_only_line_feeds_end_lines(tmp_path, break_):
    item = sniff_one(tmp_path, f"one{break_}two\nthree needle", "needle")
    assert item["matches"][0]["line"] == 2
    assert sniff_one(tmp_path, f"one{break_}two\nthree", "one two")["matches"][0]["line"] == 1


def test_10_the_line_counts_in_the_body_as_pick_returns_it(tmp_path):
    with closing(Vine(grown(tmp_path / "f", {"n": "x"}))) as engine:
        (engine.root / "n.md").write_bytes(
            "---\r\ntype: note\r\n---\r\n\r\n \r\none\r\ntwo\rneedle  \r\n".encode()
        )
        engine.catalog.stale()
        line = ask(engine, "sniff", terms="needle")["results"][0]["matches"][0]["line"]
        assert ask(engine, "pick", id="n")["body"].split("\n")[line - 1].strip() == "needle"


def test_10_sections_of_matches(tmp_path):
    body = "hit 1\n## A ##\nhit 2\n#### deeper\nhit 3\n```\n## fenced\nhit 4\n```\n"
    body += "### B\nhit 5\n# Top\nhit 6\n## hit 7"
    with closing(
        Vine(grown(tmp_path / "f", {f"n{n}": body.replace(f"hit {n}", f"needle {n}") for n in range(1, 8)}))
    ) as engine:
        sections = [
            ask(engine, "sniff", terms=f"needle {n}")["results"][0]["matches"][0]["section"]
            for n in range(1, 8)
        ]
        assert sections == [None, "A", "A", "A", "B", None, "needle 7"]


def test_snippets(tmp_path):
    long = "a" * 50 + " " + "b" * 49 + " needle " + "c" * 200
    item = sniff_one(tmp_path, f"  needle {'x' * 80}  \n{long}\nneedle {'y' * 200}\n", "needle")
    whole, middle, start = (m["snippet"] for m in item["matches"])
    assert whole == f"needle {'x' * 80}"
    at = long.index("needle")
    assert middle == "…" + long[at - 33 : at + 67].strip() + "…"
    assert start == f"needle {'y' * 93}…"
    item = sniff_one(tmp_path, "z" * 300 + " needle end", "needle")
    assert item["matches"][0]["snippet"] == "…" + ("z" * 300 + " needle end")[-100:]


def test_blanks_stand_for_each_other_and_lines_are_not_crossed(tmp_path):
    body = "one \t two\u00a0\u3000three\nfour\nfive six"
    nodes = {"n": body, "m": "three four"}
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        assert ids(ask(engine, "sniff", terms="one  two three")) == ["n"]
        assert ids(ask(engine, "sniff", terms="three four")) == ["m"]
        assert ids(ask(engine, "sniff", terms=" five\tsix ")) == ["n"]


def test_terms_are_literal(tmp_path):
    nodes = {"a": "cost (net) a.b* [x] 50% c\\d", "b": "cost net axb 50 cd"}
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        for term in ("(net)", "a.b*", "[x]", "50%", "c\\d", "b*"):
            assert ids(ask(engine, "sniff", terms=term)) == ["a"], term
        assert ids(ask(engine, "sniff", terms="ost n", scope="_index")) == ["b"]
        assert sorted(ids(ask(engine, "sniff", terms="cos"))) == ["a", "b"]
        assert ids(ask(engine, "sniff", terms='"cost"')) == []


def test_frontmatter_is_not_searched_and_indexes_and_the_dialect_are(tmp_path):
    nodes = {
        "a/leaf": {"title": "needle", "summary": "needle", "body": "text"},
        "a/_index": {"body": "The needle branch."},
    }
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        answer = ask(engine, "sniff", terms="needle")
        assert ids(answer) == ["a/_index"]
        assert answer["scanned_nodes"] == 4
        assert ids(ask(engine, "sniff", terms="succeeds")) == ["_meta/schema"]


def test_bananas_come_before_indexes_then_score_count_and_id(tmp_path):
    nodes = {
        "a/_index": {"body": "needle\n" * 9},
        "z/two": "needle pin",
        "b": "needle",
        "c": "needle",
        "twice": "needle needle",
        "lines": "needle\nneedle",
    }
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        found = ids(ask(engine, "sniff", terms="needle", k=20))
        assert found[-1] == "a/_index" and found.index("b") < found.index("c")
        assert found.index("lines") < found.index("twice")
        assert ids(ask(engine, "sniff", terms=["needle", "pin"], k=20))[0] == "z/two"


def test_match_count_decides_among_many_that_tie(tmp_path):
    nodes = {f"a{n:03}": "needle needle" for n in range(130)} | {
        f"b{n:03}": "needle\nneedle" for n in range(130)
    }
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        assert ids(ask(engine, "sniff", terms="needle", k=5)) == [f"b{n:03}" for n in range(5)]


def test_the_score_counts_terms_first(tmp_path):
    nodes = {
        "one": "pin pin pin pin",
        "both": "pin needle and much more text that makes this body longer",
        "rest": "else",
    }
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        answer = ask(engine, "sniff", terms=["pin", "needle"])
        assert ids(answer) == ["both", "one"]
        assert answer["results"][0]["score"] == 1.0 and answer["results"][1]["score"] < 0.5
        engine.heat.deposit({"both": 1.0})
        assert ask(engine, "sniff", terms=["pin", "needle"])["results"][0]["score"] == 1.3


@pytest.mark.parametrize(
    "scope, scanned",
    [
        (None, 9),
        ("_index", 9),
        ("a", 5),
        ("a/", 5),
        ("a/_index", 5),
        ("a/b", 1),
        ("a/b/", 2),
        ("a/b/_index", 2),
        ("ab", 2),
        ("_meta/schema", 1),
    ],
)
def test_scopes_of_sniff(tmp_path, scope, scanned):
    nodes = {"a/x": "needle", "a/b/y": "needle", "a/b": "needle", "ab/z": "needle"}
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        assert ask(engine, "sniff", terms="needle", scope=scope)["scanned_nodes"] == scanned
        for wrong in ("A", "a/x/", "a//", "b", "nope/_index", "a/_index/"):
            assert (
                refusal(engine, "sniff", {"terms": "needle", "scope": wrong})["message"]
                == f"node not found: {wrong}"
            )


def test_the_type_filter_narrows_what_is_scanned(tmp_path):
    with closing(Vine(grown(tmp_path / "f", {"a": "hit", "b": {"type": "event", "body": "hit"}}))) as engine:
        answer = ask(engine, "sniff", terms="hit", type_filter="event")
        assert (ids(answer), answer["scanned_nodes"]) == (["b"], 1)
        assert ask(engine, "sniff", terms="hit", type_filter="branch")["scanned_nodes"] == 1


# ----------------------------------------------------------------- sniff against a plain reading of the rules

PIECES = st.sampled_from(
    [
        "a",
        "ab",
        "b",
        "A",
        "é",
        "e\u0301",
        "ß",
        "ﬁ",
        "東",
        "京",
        "都",
        "カ",
        "ﾞ",
        "ก",
        "한",
        "-",
        "‑",
        "_",
        ".",
        ",",
        "'",
        "1",
        "12",
        "3.1",
        "+",
        "#",
    ]
    + [
        " ",
        "  ",
        "\t",
        "\u00a0",
        "\n",
        "\n\n",
        "\f",
        "\u2028",
        "\u00ad",
        "\u200b",
        "ı",
        "İ",
        "Ⅷ",
        "☃",
        "👩",
        "й",
        "Книга",
        "`",
        "## ",
        "(",
        "İİ",
        "ﷺ",
    ]
)
TEXTS = st.lists(PIECES, max_size=14).map("".join)


def expected(bodies: dict[str, str], terms: list[str]) -> dict[str, list[int]]:
    """{id: lines with a term}, by reading every line of every body."""
    asked = [re.sub(r"\s+", " ", words.fold(term)).strip() for term in terms]
    found = {}
    for id, body in bodies.items():
        lines = [re.sub(r"\s+", " ", words.fold(line)) for line in body.split("\n")]
        hits = [n for n, line in enumerate(lines, 1) if any(term in line for term in asked)]
        if hits:
            found[id] = hits
    return found


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    root = grown(tmp_path_factory.mktemp("sniff") / "f", {})
    (root / "_index.md").write_text("---\ntype: branch\n---\n")
    (root / "_meta/schema.md").write_text("---\ntype: note\n---\n")
    with closing(Vine(root)) as engine:
        yield engine


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(TEXTS, min_size=1, max_size=4), st.lists(TEXTS, min_size=1, max_size=2))
@example(["## a\nb", "x\ufdfay"], ["ا"])
@example(["ab\u0301c"], ["abc"])
@example(["a\u0301\n\u0301b"], ["b"])
def test_sniff_is_what_reading_every_line_gives(bench, texts, terms):
    folded = [words.literal(re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", term)).strip() for term in terms]
    terms = [
        term
        for term, plain in zip(terms, folded)
        if (1 if words.is_pair_script(plain) else 2) <= len(plain) <= 200
    ]
    if not terms:
        return
    for old in bench.root.glob("t*.md"):
        old.unlink()
    for n, text in enumerate(texts):
        write(bench.root, f"t{n}", text)
    bench.catalog.stale()
    bodies = {f"t{n}": ask(bench, "pick", id=f"t{n}")["body"] for n in range(len(texts))}
    answer = ask(bench, "sniff", terms=terms, k=20)
    wanted = expected(bodies, [re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", term) for term in terms])
    assert {item["id"]: item["match_count"] for item in answer["results"]} == {
        id: len(hits) for id, hits in wanted.items()
    }
    for item in answer["results"]:
        assert [m["line"] for m in item["matches"]] == wanted[item["id"]][:3]
        for shown in item["matches"]:
            line = bodies[item["id"]].split("\n")[shown["line"] - 1].strip()
            assert len(shown["snippet"]) <= 102 and shown["snippet"].strip("…") in line


def test_sniff_finds_a_mark_that_folds_to_a_letter(tmp_path):
    assert sniff_one(tmp_path, "東\u0345", "東\u0345")


# ---------------------------------------------------------------------------------------------------- harvest


def test_an_item_of_harvest(tmp_path):
    nodes = {
        "a/n": {"title": "Bees", "body": "# Bees\n\nThey hum."},
        "a/d": {"type": "dataset", "title": "Bee counts", "body": "## Notes\nPer hive."},
    }
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        answer = ask(engine, "harvest", query="the bees?", k=10)
        assert list(answer) == ["query", "terms", "results", "truncated"]
        assert (answer["query"], answer["terms"], answer["truncated"]) == ("the bees?", ["bees"], False)
        note, data = answer["results"]
        assert list(note) == "id title type trail summary score found_by matches content".split()
        assert note["id"] == "a/n" and note["found_by"] == ["locate", "sniff"] and note["score"] == 0.0328
        assert note["matches"] == [{"section": None, "line": 1, "snippet": "# Bees"}]
        assert note["content"] == [
            {
                "section": None,
                "body": "# Bees\n\nThey hum.",
                "body_tokens": forest.count_tokens("# Bees\n\nThey hum."),
            }
        ]
        assert list(data)[-1] == "notes" and data["notes"] == "Per hive." and data["found_by"] == ["locate"]


def test_16_derived_terms(tmp_path):
    with closing(Vine(grown(tmp_path / "f", {"n": "x"}))) as engine:
        assert ask(engine, "harvest", query="how do I fix the 421 from MCP")["terms"] == ["421", "MCP"]
        many = " ".join(f"word{n}" for n in range(20))
        assert len(ask(engine, "harvest", query=many)["terms"]) == 8
        assert forest.count_tokens(ask(engine, "harvest", query="word " * 700)["query"]) <= 200


def section(name: str, size: int, word: str = "") -> str:
    return (
        f"## {name}\n\n"
        + "filler of plain words. " * size
        + f"\n\n{word}\n\n"
        + "more of the same kind. " * size
        + "\n\n"
    )


def test_14_a_long_result_without_a_matched_section_has_outline_and_windows(tmp_path):
    body = "Intro\n\n" + "".join(section(f"Part {n}", 200) for n in range(10))
    with closing(Vine(grown(tmp_path / "f", {"long": {"title": "Zebra", "body": body}}))) as engine:
        assert forest.count_tokens(body) > 9000
        answer = ask(engine, "harvest", query="zebra")
        (part,) = answer["results"][0]["content"]
        assert list(part) == ["section", "outline", "windows", "body_tokens", "truncated", "hint"]
        assert part["outline"] == [f"Part {n}" for n in range(10)] and part["truncated"] is True
        assert part["windows"][0]["line"] == 1 and part["windows"][0]["text"].startswith("Intro")


def test_14_a_long_result_without_headings_has_windows_around_its_matches(tmp_path):
    lines = [f"line {n} of plain words without any special meaning at all" for n in range(300)]
    lines[200] = "here is the zebra at last"
    with closing(Vine(grown(tmp_path / "f", {"long": "\n".join(lines)}))) as engine:
        item = ask(engine, "harvest", query="zebra")["results"][0]
        (part,) = item["content"]
        assert part["outline"] == [] and item["matches"][0]["line"] == 201
        (window,) = part["windows"]
        assert list(window) == ["section", "line", "text"]
        shown = window["text"].split("\n")
        assert lines[window["line"] - 1] == shown[0] and "here is the zebra at last" in shown
        assert forest.count_tokens(window["text"]) <= 150


def test_14_size_never_empties_an_answer(tmp_path):
    nodes = {
        "a": {"title": "zebra " * 3000, "summary": "zebra " * 3000, "body": "zebra\n" * 3000},
        "b": {"title": "Zebra", "body": "zebra " * 9000},
    }
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        for k in (1, 2):
            answer = ask(engine, "harvest", query="zebra", k=k)
            assert answer["results"] and all(item["content"] for item in answer["results"])
            assert answer["truncated"] is True or "a" not in ids(answer)


def test_15_a_section_is_found_by_position_not_by_name(tmp_path):
    body = section("Same", 90, "nothing") + section("Same", 90, "the zebra stands here")
    with closing(Vine(grown(tmp_path / "f", {"n": body}))) as engine:
        item = ask(engine, "harvest", query="zebra")["results"][0]
        (part,) = item["content"]
        assert list(part) == ["section", "body", "body_tokens"] and part["section"] == "Same"
        assert "the zebra stands here" in part["body"] and "nothing" not in part["body"]


def test_a_matched_section_too_long_is_cut_around_its_matches(tmp_path):
    body = (
        section("Small", 10)
        + section("Long", 500, "the zebra stands here")
        + section("Other", 90, "a zebra too")
    )
    with closing(Vine(grown(tmp_path / "f", {"n": body}))) as engine:
        long, other = ask(engine, "harvest", query="zebra")["results"][0]["content"]
        assert (long["section"], long["truncated"]) == ("Long", True) and "the zebra stands here" in long[
            "body"
        ]
        assert long["body_tokens"] <= 1200
        assert other["section"] == "Other" and "truncated" not in other


def test_15_ten_results_of_1100_tokens(tmp_path):
    body = "# Zebra\n\n" + "Zebra and some words that fill a body. " * 120
    body = forest.clip(body, 1100)
    nodes = {
        f"n{n}": {
            "title": f"Zebra {n}",
            "summary": "A summary of about twenty tokens that says what this is and what it is good for.",
            "body": body,
        }
        for n in range(10)
    }
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        answer = ask(engine, "harvest", query="zebra", k=10)
        assert len(answer["results"]) >= 8 and answer["truncated"] is True
        assert answer["results"][0]["content"][0]["body"] == body
        assert all(item["content"] for item in answer["results"])


def test_given_terms_are_literal_and_lift(tmp_path):
    nodes = {
        "much": {"title": "Reimbursement", "body": "reimbursement " * 9},
        "holds": {"title": "Other", "body": "reimbursement of INV-1045"},
    }
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        assert ids(ask(engine, "harvest", query="reimbursement"))[0] == "much"
        answer = ask(engine, "harvest", query="reimbursement", terms=["INV-1045"])
        assert answer["terms"] == ["INV-1045"] and ids(answer) == ["holds", "much"]
        assert answer["results"][1]["matches"] == []


def test_matches_take_the_rarest_term_first_and_the_same_stem(tmp_path):
    body = "\n".join(["policies apply"] * 4 + ["the zebra policy", "zebras", "policy"])
    with closing(
        Vine(grown(tmp_path / "f", {"n": body, "ru": "строка\nхороший новый дом\nновая книга"}))
    ) as engine:
        item = ask(engine, "harvest", query="zebra policy")["results"][0]
        assert [m["line"] for m in item["matches"]] == [5, 6, 1, 2, 3]
        item = ask(engine, "harvest", query="новый")["results"][0]
        assert [m["line"] for m in item["matches"]] == [2, 3]
        assert [m["line"] for m in ask(engine, "harvest", query="новая")["results"][0]["matches"]] == [2, 3]


def test_a_branch_found_by_its_passport_comes_without_matches(tmp_path):
    with closing(
        Vine(
            grown(
                tmp_path / "f",
                {"zebras/_index": {"title": "Zebras", "body": "zebras here"}, "zebras/x": "stripes"},
            )
        )
    ) as engine:
        item = ask(engine, "harvest", query="zebras")["results"][0]
        assert (item["id"], item["matches"], item["found_by"]) == ("zebras/_index", [], ["locate"])
        assert "zebras here" in item["content"][0]["body"]


def test_a_body_kept_elsewhere_and_gone(tmp_path):
    nodes = {"gone": {"title": "Zebra", "content": "cached"}, "kept": {"title": "Zebra", "content": "cached"}}
    root = grown(tmp_path / "f", nodes)
    (root / "_derived/bodies").mkdir(parents=True)
    (root / "_derived/bodies/kept.md").write_text("The text that is kept.\n")
    with closing(Vine(root)) as engine:
        assert ask(engine, "look", id="gone")["id"] == "gone"
        error = refusal(engine, "pick", {"id": "gone"})
        assert (error["code"], error["message"]) == (
            "E_NOT_FOUND",
            "body not available: gone",
        ) and "look" in error["hint"]
        assert ask(engine, "look", id="kept")["id"] == "kept"
        answer = ask(engine, "pick", id="kept")
        assert answer["body"] == "The text that is kept." and answer["body_tokens"] == forest.count_tokens(
            answer["body"]
        )
        for item in ask(engine, "harvest", query="zebra")["results"]:
            if item["id"] == "gone":
                assert item["content"][0]["windows"] == [] and item["matches"] == []


# ----------------------------------------------------------------------------- the catalog after random edits

WORDS = st.sampled_from("zebra zebras lion Löwe 東京 INV-1045 3.11 e-mail the of market".split())
SENTENCE = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)
NAMES = st.sampled_from([f"{folder}{leaf}" for folder in ("", "a/", "a/b/") for leaf in "xyz"])


class Edits(RuleBasedStateMachine):
    """Plants, grafts and edits by hand; after each, answers are those of a catalog made from the files."""

    @initialize()
    def open(self):
        self.folder = Path(tempfile.mkdtemp())
        vine.init(self.folder / "forest")
        self.engine = Vine(self.folder / "forest")
        planted(self.engine, "a/_index")
        planted(self.engine, "a/b/_index")

    def there(self, id: str) -> bool:
        return (self.engine.root / f"{id}.md").exists()

    @rule(id=NAMES, title=SENTENCE, body=SENTENCE)
    def plant(self, id, title, body):
        if not self.there(id):
            planted(self.engine, id, body, title=title)

    @rule(id=NAMES, title=SENTENCE, tags=st.lists(WORDS, max_size=2), other=NAMES)
    def graft(self, id, title, tags, other):
        if self.there(id):
            patch = {"set_frontmatter": {"title": title, "tags": tags}}
            if other != id and self.there(other):
                patch["add_links"] = [{"rel": "related-to", "target": other}]
            ask(self.engine, "graft", id=id, patch=patch)

    @rule(id=NAMES, summary=SENTENCE, body=SENTENCE)
    def edit_by_hand(self, id, summary, body):
        if self.there(id):
            write(self.engine.root, id, body, summary=summary)
            self.engine.catalog.stale()

    @rule(id=NAMES)
    def delete_by_hand(self, id):
        if self.there(id):
            (self.engine.root / f"{id}.md").unlink()
            self.engine.catalog.stale()

    @rule(old=NAMES, new=NAMES)
    def rename_by_hand(self, old, new):
        if self.there(old):
            os.replace(self.engine.root / f"{old}.md", self.engine.root / f"{new}.md")
            self.engine.catalog.stale()

    @rule(id=NAMES)
    def break_by_hand(self, id):
        if self.there(id):
            (self.engine.root / f"{id}.md").write_text("no block")
            self.engine.catalog.stale()
            assert refusal(self.engine, "look", {"id": id})["code"] == "E_FRONTMATTER"
            (self.engine.root / f"{id}.md").unlink()
            self.engine.catalog.stale()

    @rule()
    def reindex(self):
        self.engine.reindex()

    @invariant()
    def answers_are_those_of_the_files(self):
        if not hasattr(self, "engine"):
            return
        copy = self.folder / "copy"
        shutil.copytree(self.engine.root, copy, ignore=shutil.ignore_patterns("_derived", ".git"))
        with closing(Vine(copy)) as fresh:
            for verb, args in (
                ("locate", {"query": "zebra lion 東京 INV-1045", "k": 20}),
                ("sniff", {"terms": ["zebra", "rs l"], "k": 20}),
                ("sniff", {"terms": ["東京"], "scope": "a", "k": 20}),
                ("harvest", {"query": "the lions of 3.11", "k": 10}),
                ("scan", {"parent_id": "_index", "recursive": True, "fields": ["title", "tags", "parent"]}),
                ("move", {"id": "a/_index", "rel": "children"}),
                ("look", {"id": "a/b/_index"}),
            ):
                assert ask(self.engine, verb, **args) == ask(fresh, verb, **args), verb
        shutil.rmtree(copy)

    def teardown(self):
        if hasattr(self, "engine"):
            self.engine.close()
            shutil.rmtree(self.folder)


TestEdits = Edits.TestCase
TestEdits.settings = settings(max_examples=8, stateful_step_count=12, deadline=None)
