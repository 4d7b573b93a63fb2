"""The Gardener on real folders and real forests: what adopt and sync plant, keep, refuse and report."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import converters
import forest
import gardener
import sources
import vine as engine
from forest import VineError

HERE = Path(__file__).resolve().parent.parent


@pytest.fixture
def home(tmp_path):
    """A new forest, open."""
    engine.init(tmp_path / "forest", title="Home", summary="A forest for tests; nothing is in it yet.")
    with engine.Vine(tmp_path / "forest") as opened:
        yield opened


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


def write(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def git(vine, *args: str) -> str:
    return subprocess.run(
        ["git", "-C", str(vine.root), *args], capture_output=True, text=True, check=True
    ).stdout


def subjects(vine) -> list[str]:
    """Commit subjects, newest first, without that of init."""
    return git(vine, "log", "--format=%s").splitlines()[:-1]


def codes(report: dict) -> dict[str, str]:
    return {detail["path"]: detail["code"] for detail in report["details"]}


def ids(vine) -> set[str]:
    return {record["id"] for record in vine.sources() if record.get("source_path")}


def edit(vine, id: str, old: str, new: str) -> None:
    """What a person does with an editor."""
    path = vine.root / f"{id}.md"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def state(folder: Path) -> dict[str, tuple]:
    """Bytes and mtimes of every file outside `_derived` and `.git`."""
    found = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and parts[0] not in ("_derived", ".git"):
            found["/".join(parts)] = (path.read_bytes(), path.stat().st_mtime_ns)
    return found


def assert_sound(vine) -> None:
    """Lint finds nothing, git has nothing left over, no temporary file stays."""
    report = vine.validate()
    assert report["issues"] == []
    assert git(vine, "status", "--porcelain") == ""
    left = [p.name for p in vine.root.rglob("*") if ".git" not in p.parts and p.suffix in (".part", ".tmp")]
    assert left == []


# ---------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize(
    "data, text, encoding",
    [
        ("Größe".encode(), "Größe", None),
        (b"\xef\xbb\xbf" + "Größe".encode(), "Größe", None),
        ("Größe 日本".encode("utf-16"), "Größe 日本", "utf-16-le"),
        ("plain words".encode("utf-16-le"), "plain words", "utf-16-le"),
        ("plain words".encode("utf-16-be"), "plain words", "utf-16-be"),
        (
            "二十五ユーロを超える支出には領収書が必要です。".encode("cp932"),
            "二十五ユーロを超える支出には領収書が必要です。",
            "shift_jis",
        ),
        (
            "Die Kündigung der Straße über Höfe".encode("cp1252"),
            "Die Kündigung der Straße über Höfe",
            "windows-1252",
        ),
        ("Résumé — naïve".encode("cp1252"), "Résumé — naïve", "windows-1252"),
        (b"one\r\ntwo\rthree\x07", "one\ntwo\nthree", None),
    ],
)
def test_text_is_decoded_as_a_person_would(data, text, encoding):
    assert converters.decode(data) == (text, encoding)


@pytest.mark.parametrize(
    "data, code",
    [
        (b"\x89PNG\r\n\x00\x00\x01\x02\x03\x00", "not_text"),
        (b"ab\x00cd\x00\x00x", "not_text"),
        (b"\x81\x8d\x8f then text \xff", "encoding"),
        (b"\xff\xfea", "encoding"),
        (b"  \n\t\n", "empty"),
    ],
)
def test_what_is_no_text_is_refused_with_its_reason(data, code):
    with pytest.raises(converters.Unusable) as refusal:
        converters.convert("x.md", data)
    assert refusal.value.code == code


# ---------------------------------------------------------------------------------------------- one document


def test_front_matter_goes_to_the_passport_and_leaves_the_body():
    text = "---\ntitle: no\ntags: [Big Data, '#Ops/Team', 2026]\nalias: Other name\n"
    text += "date: 2024-02-03\nupdated: 2024-05-06\ndescription: Rules for expenses.\nlayout: page\n"
    text += "id: evil\n---\nBody text stands here.\n"
    made = converters.convert("x.md", text.encode())
    assert (made.title, made.summary) == ("no", "Rules for expenses.")
    assert made.tags == ["big-data", "ops-team", "2026"]
    assert (made.aliases, made.created, made.updated) == (["Other name"], "2024-02-03", "2024-05-06")
    assert made.front == {"layout": "page", "id": "evil"}
    assert made.body == "# no\n\nBody text stands here."


def test_impossible_dates_are_not_taken():
    made = converters.convert(
        "x.md", b"---\ndate: 2999-01-01\nupdated: 2023-02-30\n---\nSome words are here.\n"
    )
    assert (made.created, made.updated) == (None, None)
    assert made.front == {"date": "2999-01-01", "updated": "2023-02-30"}


@pytest.mark.parametrize(
    "block", ["title: {% page %}\n", "- a\n- b\n", "a: b: c\n", "title: !!python/object x\n"]
)
def test_front_matter_that_is_no_mapping_stays_in_the_body(block):
    made = converters.convert("my-page.md", f"---\n{block}---\nReal words stand here.\n".encode())
    assert [code for code, _ in made.warnings] == ["bad_front_matter"]
    assert block in made.body and made.title == "my page"
    assert made.summary == "Real words stand here."


def test_a_rule_at_the_top_is_no_front_matter():
    made = converters.convert("x.md", b"---\nJust a line that follows a rule.\n")
    assert made.warnings == [] and "---\nJust a line" in made.body


@pytest.mark.parametrize(
    "name, text, title",
    [
        ("a_b-c.md", "Some text first.\n", "a b c"),
        ("x.md", "# From the *heading*\n\nText.\n", "From the heading"),
        ("x.md", "Under lined\n===\n\nText.\n", "Under lined"),
        ("x.md", "```sh\n# install\n```\n\nText.\n", "x"),
        ("x.md", "## Level two\n\n# Level one\n", "x"),
        ("x.txt", "A first line\n\nThen text.\n", "A first line"),
        ("my-log.txt", "A first line\nand a second at once.\n", "my log"),
        ("日本.md", "本文です。\n", "日本"),
    ],
)
def test_titles(name, text, title):
    made = converters.convert(name, text.encode())
    assert made.title == title
    first = made.body.splitlines()[0]
    assert first.startswith("# ") and forest.headings(made.body)[0].level == 1


def test_no_line_of_a_text_file_is_lost():
    made = converters.convert("x.txt", b"#hash\n  # two\n\n> quote\n[[1, 2], [3]]\n")
    assert made.body == "# x\n\n\\#hash\n  \\# two\n\n> quote\n[[1, 2], [3]]"


@pytest.mark.parametrize(
    "body, summary",
    [
        (
            "# T\n\nThe first sentence tells it. The second adds.\n",
            "The first sentence tells it. The second adds.",
        ),
        (
            "![badge](b.svg) [![ci](c.svg)](http://ci)\n\nIt parses *logs* and **mails**.\n",
            "It parses logs and mails.",
        ),
        ("Set `MAX` so that max_retry_count is kept.\n", "Set MAX so that max_retry_count is kept."),
        (
            "MIT License\n\nCopyright (c) 2020 Somebody\n\nIt turns notes into pages.\n",
            "It turns notes into pages.",
        ),
        (
            "Author: A. B. Cee\nPublished: 1962\n\nDrag was measured on cones.\n",
            "Drag was measured on cones.",
        ),
        ("[Next page](x.md)\n\nReports are due on Friday.\n", "Reports are due on Friday."),
        ("| a | b |\n|---|---|\n| 1 | 2 |\n\nPrices hold until June.\n", "Prices hold until June."),
        ("<div class='x'><p>Html holds <b>words</b> too.</p></div>\n", "Html holds words too."),
        ("{% alert %}\nOld page, beware of it.\n{% endalert %}\n\nThe new rule is short.\n", None),
        ("We need the following:\n\n- a pen\n- some ink\n", "We need the following: a pen; some ink."),
        ("- apples from here\n- pears from there\n", "apples from here; pears from there"),
        ("| Name | Port |\n|---|---|\n| a | 1 |\n| b | 2 |\n", "Table of Name, Port; 2 rows."),
        ("```python\n# Counts words in files\nx = 1\n```\n", "Counts words in files"),
        ("## Setup\n\n## Usage\n", "Setup; Usage"),
        ("This document describes nothing. Parking is free after six.\n", "Parking is free after six."),
        (
            "Mach 3.5 was reached by Dr. Cee, e.g. in 1962. It held well.\n",
            "Mach 3.5 was reached by Dr. Cee, e.g. in 1962. It held well.",
        ),
        ("領収書が必要です。七年間保管します。\n", "領収書が必要です。七年間保管します。"),
    ],
)
def test_summaries_are_the_first_real_sentences(body, summary):
    made = converters.convert("topic.md", body.encode()).summary
    if summary is None:
        assert made.startswith("The new rule is short.")
    else:
        assert made == summary


@pytest.mark.parametrize("unit", ["word ", "長い文", "Donaudampfschifffahrt ", "a,b;c:"])
def test_a_summary_always_fits_its_rule(unit):
    made = converters.convert("x.md", (unit * 400).encode())
    assert forest.summary_fault(made.summary) is None
    assert len(made.summary) <= 240 and made.summary.endswith("…")


def test_a_document_without_words_still_says_what_it_is():
    made = converters.convert("plan.md", b"---\ntitle: Plan B\n---\n![map](m.png)\n")
    assert made.summary == "Plan B, note, 36 bytes, no text."


_MARKUP = st.text(
    st.sampled_from(list("ab .\n#-*_`[]()<>!|~=:{}%\"'\\&;日。é\t0")) | st.characters(codec="utf-8"),
    max_size=300,
)


@settings(max_examples=300, deadline=None)
@given(_MARKUP | st.binary(max_size=200))
def test_any_file_is_a_document_or_refused(content):
    data = content if isinstance(content, bytes) else content.encode()
    try:
        made = converters.convert("some-file.md", data)
    except converters.Unusable as refusal:
        assert refusal.code in ("not_text", "encoding", "empty")
        return
    assert forest.summary_fault(made.summary) is None and len(made.summary) <= 240
    forest.check_field("title", made.title)
    forest.check_field("tags", made.tags)
    again = forest.parse_node(forest.render_node({"id": "x", "title": made.title}, made.body), "x")
    assert again.body == made.body.strip("\n").rstrip() and again.text("title") == made.title


@settings(max_examples=300, deadline=None)
@given(_MARKUP)
def test_links_that_lead_nowhere_leave_the_text_alone(body):
    same, hits, _ = converters.relink(body, lambda target, wiki: None)
    assert (same, hits) == (body, [])
    assert converters.rename_links(body, {"nothing": "else"}) == body


@given(st.text(max_size=120))
def test_any_name_gives_a_segment_of_an_id(name):
    assert forest.check_id("x/" + sources.slug(name).removesuffix(".md") + "-")


# ---------------------------------------------------------------------------------------------- ids


@pytest.mark.parametrize(
    "name, expected",
    [
        ("日本 メモ", "日本-メモ"),
        ("Ação_1 (b)", "ação_1-b"),
        ("  --Hello, World!--  ", "hello-world"),
        ("...", "node"),
        ("ŒUVRE", "œuvre"),
        ("e\u0301te\u0301", "été"),
    ],
)
def test_slugs(name, expected):
    assert sources.slug(name) == expected


@pytest.mark.parametrize(
    "name", ["x" * 250, "é" * 120, "日本語" * 60, "𐐀" * 99, "İ" * 90, "\u0301abc", "a" * 79 + ".md"]
)
def test_every_slug_may_stand_in_an_id(name):
    made = sources.slug(name)
    assert forest.check_id(made if not made.endswith(".md") else made[:-3]) and len(made) <= 80


# ---------------------------------------------------------------------------------------------- adopt


def test_adopt_makes_branches_nodes_and_one_commit(home, source):
    write(
        source,
        {
            "policies/expenses.md": "# Expenses\n\nReceipts above 25 euros.\n",
            "policies/travel/rail.md": "Rail first.\n",
        },
    )
    report = gardener.adopt(home, str(source))
    assert report["planted"] == ["policies/expenses", "policies/travel/rail"]
    assert report["branches_new"] == ["policies/_index", "policies/travel/_index"]
    assert report["counts"]["planted"] == 2 and report["commits"] == [report["commit"]]
    assert report["commit_before"] != report["commit"] == git(home, "rev-parse", "HEAD").strip()
    node = home.node("policies/expenses")
    assert (
        list(node.fields)[-6:]
        == "source_id source_path source_hash source_size source_mtime source_base".split()
    )
    assert (node.fields["confidence"], node.fields["source"], node.type) == (0.7, "ingest", "note")
    assert node.fields["source_mtime"] == round((source / "policies/expenses.md").stat().st_mtime, 3)
    branch = home.node("policies/_index")
    assert branch.title == "policies" and branch.summary == "Region 'policies': travel, Expenses."
    assert "- [[policies/expenses]] — Receipts above 25 euros." in branch.body
    assert (home.root / "_meta/gardener.yaml").read_text().startswith(f"source_root: {source}\n")
    assert home.call("locate", {"query": "receipts"})["results"][0]["id"] == "policies/expenses"
    assert_sound(home)


def test_one_new_document_is_committed_as_a_plant(home, source):
    write(source, {"a.md": "First words of it.\n"})
    gardener.adopt(home, str(source))
    write(source, {"b.md": "# Bees\n\nSecond words of it.\n"})
    gardener.sync(home)
    assert subjects(home) == ["plant(b): Bees [source=ingest]", "plant(a): a [source=ingest]"]


def test_dest_is_made_and_used_as_written(home, source):
    write(source, {"README.md": "# The team\n\nWe build it.\n", "a.md": "Words of a.\n"})
    report = gardener.adopt(home, str(source), dest="/Team_Docs/2026/_index")
    assert report["planted"] == ["Team_Docs/2026/_index", "Team_Docs/2026/a"]
    assert home.node("Team_Docs/_index").title == "Team Docs"
    assert home.node("Team_Docs/2026/_index").title == "The team"
    with pytest.raises(VineError) as refusal:
        gardener.adopt(home, str(source), dest="elsewhere")
    assert refusal.value.code == "E_SCHEMA" and "Team_Docs/2026" in refusal.value.message
    assert_sound(home)


@pytest.mark.parametrize("dest", ["_meta/x", "a b", "../x", "a/" * 8 + "x", "leaf"])
def test_unusable_dests_are_refused(home, source, dest):
    write(home.root, {})
    home.call(
        "plant",
        {"node": {"id": "leaf", "type": "note", "title": "L", "summary": "A leaf.", "parent": "_index"}},
    )
    write(source, {"a.md": "Words.\n"})
    before = state(home.root)
    with pytest.raises(VineError) as refusal:
        gardener.adopt(home, str(source), dest=dest)
    assert refusal.value.code == "E_SCHEMA" and "dest" in refusal.value.message
    assert state(home.root) == before


def test_folders_that_are_forests_or_nothing_are_refused(home, tmp_path):
    (tmp_path / "file").write_text("x")
    for bad in (tmp_path / "nowhere", tmp_path / "file", home.root, tmp_path, home.root / "_meta"):
        with pytest.raises(VineError) as refusal:
            gardener.adopt(home, str(bad))
        assert refusal.value.code == "E_SCHEMA"
    assert subjects(home) == []


def test_taken_names_and_twin_folders(home, source):
    write(
        source,
        {
            "a.md": "One is here.\n",
            "a.txt": "Two is here.\n",
            "a.markdown": "Three is here.\n",
            "A.txt": "Four is here.\n",
        },
    )
    write(
        source,
        {
            "Docs/x.md": "Upper is here.\n",
            "docs/x.md": "Lower is here.\n",
            "日本.md": "本文です。\n",
            "中国.md": "正文在这里。\n",
        },
    )
    report = gardener.adopt(home, str(source))
    assert report["errors"] == []
    by_path = {record["source_path"]: record["id"] for record in home.sources() if record.get("source_path")}
    assert by_path["日本.md"] == "日本" and by_path["中国.md"] == "中国"
    assert by_path["A.txt"] == "a" and by_path["a.md"] == "a-md" and by_path["a.txt"] == "a-txt"
    assert by_path["Docs/x.md"] == "docs/x" and re.fullmatch(r"docs-[0-9a-f]{6}/x", by_path["docs/x.md"])
    write(source, {"docs/y.md": "Another one is here.\n", "Docs/y.md": "Yet another is here.\n"})
    gardener.sync(home)
    by_path = {record["source_path"]: record["id"] for record in home.sources() if record.get("source_path")}
    assert by_path["docs/y.md"].rpartition("/")[0] == by_path["docs/x.md"].rpartition("/")[0]
    assert_sound(home)


def test_a_folder_beside_a_branch_of_other_case_gets_its_own(home, source):
    node = {"id": "Docs/_index", "type": "branch", "title": "Docs", "summary": "By hand.", "parent": "_index"}
    home.call("plant", {"node": node})
    write(source, {"docs/x.md": "Words of x.\n"})
    report = gardener.adopt(home, str(source))
    assert re.fullmatch(r"docs-[0-9a-f]{6}/x", report["planted"][0])
    assert_sound(home)


def test_awkward_names_are_planted_or_one_error_each(home, source):
    deep = "/".join(f"level-{n}" for n in range(12))
    write(
        source,
        {
            "n" * 240 + ".md": "Long name here.\n",
            "x.db/inside.md": "In a folder.\n",
            f"{deep}/deep.md": "Far down here.\n",
        },
    )
    write(
        source,
        {
            "two\nlines.md": "A name of two lines.\n",
            "nul.md": b"# Ti\x00tle\n\nText with a NUL inside.\n",
            "e.md.md": "Two endings here.\n",
            "ok.md": "Fine words here.\n",
        },
    )
    report = gardener.adopt(home, str(source))
    assert "ok" in report["planted"] and "x-db/inside" in report["planted"] and "e-md" in report["planted"]
    assert codes(report) == {"nul.md": "not_text", "two lines.md": "unreadable"}
    assert len(report["planted"]) == 5
    deepest = next(id for id in report["planted"] if id.endswith("deep"))
    assert deepest.startswith("level-0/level-1/") and deepest.count("/") == 7
    assert_sound(home)


def test_two_sources_into_one_dest_never_touch_each_other(home, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        write(
            folder,
            {
                "readme.md": f"# Of {folder.name}\n\nWords of {folder.name}.\n",
                "docs/x.md": f"Text of {folder.name}.\n",
            },
        )
    first = gardener.adopt(home, str(one), dest="lib")
    second = gardener.adopt(home, str(two), dest="lib")
    assert len({*first["planted"], *second["planted"]}) == 4
    before = {id: (home.root / f"{id}.md").read_bytes() for id in first["planted"]}
    write(two, {"docs/x.md": "Changed text of two.\n"})
    (two / "readme.md").unlink()
    report = gardener.sync(home, source="two", prune=True)
    assert len(report["updated"]) == 1 and len(report["pruned"]) == 1 and report["stale"] == []
    assert set(report["updated"] + report["pruned"]) <= set(second["planted"])
    after = {
        id: (home.root / f"{id}.md").read_bytes() for id in first["planted"] if not id.endswith("_index")
    }
    assert after.items() <= before.items()
    assert_sound(home)


# ---------------------------------------------------------------------------------------------- what is read


def test_what_is_not_read_is_skipped_with_its_reason(home, source, tmp_path):
    secret = tmp_path / "secret.md"
    secret.write_text("Never read this.\n")
    write(
        source,
        {
            ".env": "KEY=1",
            ".git/config": "x",
            "node_modules/a.md": "No.\n",
            "draft.tmp": "No",
            "empty.md": "",
            "blank.md": " \n\n",
        },
    )
    write(
        source,
        {
            "inner/_index.md": "x",
            "inner/_meta/schema.md": "x",
            "inner/a.md": "Of another forest.\n",
            "real.md": "Words to read.\n",
        },
    )
    os.symlink(secret, source / "leak.md")
    os.symlink(source, source / "loop")
    os.symlink(source / "real.md", source / "alias.md")
    os.symlink(source / "gone", source / "dangling.md")
    os.mkfifo(source / "pipe.md")
    report = gardener.adopt(home, str(source))
    expected = {"hidden": 2, "ignored": 2, "nested_forest": 1, "symlink": 3, "not_a_file": 1, "empty": 2}
    assert report["skipped"]["reasons"] == expected and report["skipped"]["count"] == 11
    assert "leak.md" in report["skipped"]["paths"] and report["planted"] == ["alias", "real"]
    assert "Never read" not in "".join(path.read_text() for path in home.root.glob("*.md"))


def test_gitignore_has_gits_meaning(home, source):
    names = [
        "a.log.md",
        "keep/a.log.md",
        "build/x.md",
        "sub/build/x.md",
        "doc/a.md",
        "doc/deep/b.md",
        "doc/keep.md",
        "t1.md",
        "tx.md",
    ]
    names += [
        "foo/bar/z.md",
        "foo/q/bar/z.md",
        "abc/in.md",
        "abc/x/in.md",
        "#hash.md",
        "trail.md",
        "only/here.md",
        "sub/only/here.md",
    ]
    write(source, {name: f"Words of {name}.\n" for name in names})
    rules = "*.log.md\n!keep/a.log.md\n/build/\ndoc/*\n!doc/keep.md\nt[0-9].md\nfoo/**/bar\nabc/**\n"
    rules += "\\#hash.md\ntrail.md   \n/only\n# comment\n"
    write(source, {".gitignore": rules, "sub/.gitignore": "!/build\n"})
    subprocess.run(["git", "init", "-q", str(source)], check=True)
    listed = subprocess.run(
        ["git", "-C", str(source), "ls-files", "--others", "--exclude-standard", "-z"],
        capture_output=True,
        check=True,
    )
    expected = {name for name in listed.stdout.decode().split("\0") if name.endswith(".md")}
    gardener.adopt(home, str(source))
    assert {record["source_path"] for record in home.sources() if record.get("source_path")} == expected
    assert "keep/a.log.md" in expected and "build/x.md" not in expected and "sub/build/x.md" in expected


def test_ignore_of_the_settings_and_a_known_file_that_is_now_ignored(home, source):
    write(source, {"a.md": "Words of a.\n", "old/b.md": "Words of b.\n"})
    gardener.adopt(home, str(source))
    settings = home.root / "_meta/gardener.yaml"
    settings.write_text(settings.read_text() + "# people wrote this\nignore:\n  - /old/\n")
    report = gardener.sync(home)
    assert report["stale"] == ["old/b"] and report["skipped"]["reasons"] == {"ignored": 1}


def test_unsupported_files_are_listed_and_do_no_harm(home, source):
    write(source, {"a.md": "Words of a.\n", "b.rtf": "x", "c.bin": b"\0", "noext": "x"})
    report = gardener.adopt(home, str(source))
    assert report["unsupported"] == ["b.rtf", "c.bin", "noext"] and report["errors"] == []
    assert set(codes(report).values()) == {"unsupported_type"}
    assert any(".docx" in detail["message"] for detail in report["details"])


def test_one_bad_document_never_stops_the_others(home, source):
    write(
        source,
        {
            "a.md": "Words of a.\n",
            "bad.md": b"\x00\x01\x02\x00\x00",
            "enc.txt": b"\x81\x8d\x8f \xff",
            "z.md": "Words of z.\n",
        },
    )
    report = gardener.adopt(home, str(source))
    assert report["planted"] == ["a", "z"]
    assert codes(report) == {"bad.md": "not_text", "enc.txt": "encoding"} and len(report["errors"]) == 2
    again = gardener.sync(home)
    assert again["unchanged"] == ["a", "z"] and again["commits"] == [] and len(again["errors"]) == 2


# ---------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    "text, key",
    [
        ("a: [", "gardener.yaml"),
        ("- x\n", "gardener.yaml"),
        ("ignore: x\n", "ignore"),
        ("sources: {a: 3}\n", "sources.a"),
        ("content: maybe\n", "content"),
        ("archive: 3\n", "archive"),
        ("curation: {default_tags: [a, b, c, d, e, f]}\n", "default_tags"),
        ("converters: [x]\n", "converters"),
    ],
)
def test_unusable_settings_are_refused_by_name(home, source, text, key):
    write(home.root, {"_meta/gardener.yaml": text})
    write(source, {"a.md": "Words.\n"})
    with pytest.raises(VineError) as refusal:
        gardener.adopt(home, str(source))
    assert refusal.value.code == "E_SCHEMA" and key in refusal.value.message
    assert (home.root / "_meta/gardener.yaml").read_text() == text


def test_settings_keep_what_people_wrote(home, source):
    text = "# ours\nignore: [x.md]  # not this\ncuration:\n  default_tags: [Intake]\nhouse_rule: 7\n"
    write(home.root, {"_meta/gardener.yaml": text})
    write(source, {"a.md": "Words of a.\n", "x.md": "Words of x.\n"})
    report = gardener.adopt(home, str(source))
    kept = (home.root / "_meta/gardener.yaml").read_text()
    assert text in kept and "sources:\n  notes:\n" in kept
    assert codes(report)["_meta/gardener.yaml"] == "config"
    assert report["planted"] == ["a"] and home.node("a").tags == ["intake"]


def test_a_converter_command_is_never_run(home, source, tmp_path):
    marker = tmp_path / "ran"
    write(home.root, {"_meta/gardener.yaml": f"converters:\n  .odt: touch {marker}\n"})
    write(source, {"a.odt": "x"})
    report = gardener.adopt(home, str(source))
    assert codes(report)["a.odt"] == "hook_not_allowed" and not marker.exists()


def test_source_ids_and_root_that_moved(home, tmp_path):
    write(tmp_path / "x/docs", {"a.md": "Words of a.\n"})
    write(tmp_path / "y/docs", {"b.md": "Words of b.\n"})
    gardener.adopt(home, str(tmp_path / "x/docs"))
    os.rename(tmp_path / "x", tmp_path / "z")
    report = gardener.sync(home, source=str(tmp_path / "z/docs"))
    assert report["unchanged"] == ["a"] and subjects(home)[0] == "gardener(source): docs"
    gardener.adopt(home, str(tmp_path / "y/docs"))
    settings = forest.parse_yaml((home.root / "_meta/gardener.yaml").read_text())
    assert list(settings["sources"]) == ["docs", "docs-2"]
    assert settings["source_root"] == settings["sources"]["docs"]["root"] == str(tmp_path / "z/docs")
    with pytest.raises(VineError):
        gardener.sync(home, source="nothing-known")


def test_sync_without_a_source_is_refused(home):
    with pytest.raises(VineError) as refusal:
        gardener.sync(home)
    assert refusal.value.code == "E_SCHEMA"


# ------------------------------------------------------------------------------------ README and index files


def test_a_readme_is_the_text_of_its_branch(home, source):
    text = "---\ntitle: The box\ntags: [box]\n---\n# The box\n\nIt holds screws.\n\n"
    text += "## Direct bananas\n\nFruit is kept here.\n\n## More\n\nLast words.\n"
    write(
        source,
        {"box/README.md": text, "box/a.md": "Words of a.\n", "README.md": "# Root\n\nAn ordinary leaf.\n"},
    )
    report = gardener.adopt(home, str(source))
    assert report["planted"] == ["box/_index", "box/a", "readme"]
    node = home.node("box/_index")
    assert (node.type, node.title, node.summary, node.tags) == (
        "branch",
        "The box",
        "It holds screws. Fruit is kept here.",
        ["box"],
    )
    assert node.body.startswith(
        "# The box\n> It holds screws. Fruit is kept here.\n\nIt holds screws.\n\n**Direct bananas**\n"
    )
    assert node.body.count("## Direct bananas") == 1 and "- [[box/a]] — Words of a." in node.body
    write(source, {"box/README.md": text.replace("screws", "nails")})
    report = gardener.sync(home)
    assert (
        report["updated"] == ["box/_index"] and "It holds nails.\n\n**Direct" in home.node("box/_index").body
    )
    assert gardener.sync(home)["commits"] == []
    assert_sound(home)


def test_the_second_index_file_is_an_ordinary_document(home, source):
    write(
        source,
        {
            "box/_index.md": "# First\n\nThe branch text.\n",
            "box/README.md": "# Second\n\nA leaf text.\n",
            "box/index.md": "Third text is here.\n",
        },
    )
    report = gardener.adopt(home, str(source))
    assert report["planted"] == ["box/_index", "box/index", "box/readme"]
    assert home.node("box/_index").title == "First"


def test_a_readme_never_replaces_the_text_of_somebody_elses_branch(home, source):
    home.call(
        "plant",
        {
            "node": {
                "id": "box/_index",
                "type": "branch",
                "title": "Mine",
                "summary": "By hand.",
                "parent": "_index",
            }
        },
    )
    write(source, {"box/README.md": "# Theirs\n\nText of the source.\n"})
    report = gardener.adopt(home, str(source))
    assert report["planted"] == ["box/readme"] and home.node("box/_index").title == "Mine"


# ---------------------------------------------------------------------------------------------- links


def test_links_lead_to_nodes_in_both_directions(home, source):
    write(source, {
        "a.md": "See [[B note]], [b](sub/b.md#part), [the c][c], ![[C]] and <a href='sub/c.md'>it</a>. "
        "`[[sub/c]]` [web](https://x.y)\n\n[c]: sub/c.md\n",
        "sub/b.md": "---\ntitle: B note\naliases: [Bee]\n---\n"
        "Back to [a](../a.md) and [[A|home]] and [[#part]].\n\n```\n[[A]]\n```\n",
        "sub/c.md": "To [[bee]], [gone](no.md), [folder](../sub/) and [me](c.md).\n",
    })  # fmt: skip
    report = gardener.adopt(home, str(source))
    a, b, c = home.node("a"), home.node("sub/b"), home.node("sub/c")
    assert a.links == [{"rel": "related-to", "target": id, "from": "source"} for id in ("sub/b", "sub/c")]
    assert (
        "See [[sub/b|B note]], [[sub/b#part|b]], [[sub/c|the c]], [[sub/c|C]] and [[sub/c|it]]. `[[sub/c]]` [web](https://x.y)"
        in a.body
    )
    assert (
        [link["target"] for link in b.links] == ["a"]
        and "```\n[[A]]\n```" in b.body
        and "[[a|home]] and [[#part]]" in b.body
    )
    assert [link["target"] for link in c.links] == ["sub/b", "sub/_index"] and "[gone](no.md)" in c.body
    unresolved = [d for d in report["details"] if d["code"] == "link_unresolved"]
    assert [(d["path"], d["id"]) for d in unresolved] == [("sub/c.md", "sub/c")]
    assert_sound(home)


def test_the_nearest_name_wins(home, source):
    write(
        source,
        {"x/one.md": "Far away words.\n", "y/one.md": "Near words here.\n", "y/two.md": "See [[one]].\n"},
    )
    gardener.adopt(home, str(source))
    assert [link["target"] for link in home.node("y/two").links] == ["y/one"]


def test_links_of_site_generators(home, source):
    write(source, {
        "guide/start.md": "---\nredirect_from:\n  - /old/start/\n---\nWords of the start.\n",
        "a.md": "Go [here]({% page \"/guide/start/\" %}), [there]({{ site.baseurl }}/guide/start/) "
        "or [back](/old/start/).\n",
    })  # fmt: skip
    gardener.adopt(home, str(source))
    assert home.node("a").body.count("[[guide/start|") == 3
    write(source, {"a.md": "Now [back](/old/start/) only.\n"})
    gardener.sync(home)
    assert "[[guide/start|back]]" in home.node("a").body


def test_links_over_many_chunks_and_no_commit_ahead_of_its_targets(home, source, monkeypatch):
    monkeypatch.setattr(gardener, "CHUNK", 5)
    count = 23
    write(
        source,
        {
            f"n{i:02}.md": f"{i}: [next](n{(i + 1) % count:02}.md), [far](n{(i + 12) % count:02}.md).\n"
            for i in range(count)
        },
    )
    report = gardener.adopt(home, str(source))
    for i in range(count):
        targets = [link["target"] for link in home.node(f"n{i:02}").links]
        assert targets == [f"n{(i + 1) % count:02}", f"n{(i + 12) % count:02}"]
    assert len(report["commits"]) > 5 and report["updated"] == []
    for commit in report["commits"]:
        files = git(home, "ls-tree", "--name-only", commit).split()
        for name in files:
            text = git(home, "show", f"{commit}:{name}") if name.startswith("n") else ""
            assert all(f"{target}.md" in files for target in re.findall(r"\[\[(n\d\d)", text))
    assert gardener.sync(home)["commits"] == []
    assert_sound(home)


def test_refresh_moves_the_links_of_the_source_and_keeps_all_others(home, source):
    write(
        source,
        {
            "a.md": "To [b](b.md).\n",
            "b.md": "Words of b.\n",
            "c.md": "Words of c.\n",
            "d.md": "Words of d.\n",
        },
    )
    gardener.adopt(home, str(source))
    home.call("graft", {"id": "a", "patch": {"add_links": [{"rel": "part-of", "target": "d"}]}})
    write(source, {"a.md": "To [c](c.md).\n"})
    gardener.sync(home)
    assert [(link["rel"], link["target"]) for link in home.node("a").links] == [
        ("part-of", "d"),
        ("related-to", "c"),
    ]


# ---------------------------------------------------------------------------------------------- sync


def test_the_same_again_changes_nothing_not_even_after_touch(home, source):
    write(
        source,
        {
            "a.md": "Words of a, to [b](x/b.md).\n",
            "x/b.md": "Words of b.\n",
            "x/README.md": "# X\n\nText of x.\n",
        },
    )
    gardener.adopt(home, str(source))
    before, head = state(home.root), git(home, "rev-parse", "HEAD")
    for path in source.rglob("*.md"):
        os.utime(path, (1_600_000_000, 1_600_000_000))
    for report in (gardener.sync(home), gardener.adopt(home, str(source)), gardener.sync(home)):
        assert (
            report["unchanged"] == ["a", "x/_index", "x/b"]
            and report["commits"] == []
            and report["commit"] is None
        )
    assert state(home.root) == before and git(home, "rev-parse", "HEAD") == head


def test_unchanged_files_are_not_read_again(home, source, monkeypatch):
    write(source, {f"n{i}.md": f"Words of note {i}.\n" for i in range(5)})
    gardener.adopt(home, str(source))
    monkeypatch.setattr(sources, "_SETTLED", -(10**12))  # as if the files had been at rest for long
    gardener.sync(home)
    read = []
    monkeypatch.setattr(
        gardener,
        "read_document",
        lambda document: read.append(document.path) or sources.read_document(document),
    )
    assert len(gardener.sync(home)["unchanged"]) == 5 and read == []
    os.utime(source / "n3.md", (1_600_000_000, 1_600_000_000))
    gardener.sync(home)
    assert read == ["n3.md"]
    gardener.sync(home)
    assert read == ["n3.md"]


def test_a_change_that_keeps_size_and_mtime_is_found(home, source):
    write(source, {"a.md": "Words of one.\n"})
    gardener.adopt(home, str(source))
    gardener.sync(home)
    facts = (source / "a.md").stat()
    write(source, {"a.md": "Words of two.\n"})
    os.utime(source / "a.md", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert (source / "a.md").stat().st_size == facts.st_size
    assert gardener.sync(home)["updated"] == ["a"] and "Words of two." in home.node("a").body


def test_refresh_replaces_only_what_nobody_edited(home, source):
    write(source, {"a.md": "---\ntags: [one]\n---\n# Title\n\nOld words here.\n"})
    gardener.adopt(home, str(source))
    created = home.node("a").text("created")
    home.call("graft", {"id": "a", "patch": {"set_frontmatter": {"title": "My title", "confidence": 0.9}}})
    write(source, {"a.md": "---\ntags: [two]\n---\n# New title\n\nNew words here.\n"})
    report = gardener.sync(home)
    node = home.node("a")
    assert report["updated"] == ["a"] and subjects(home)[0] == "gardener(sync): a"
    assert (node.title, node.tags, node.summary) == ("My title", ["two"], "New words here.")
    assert (
        node.body == "# New title\n\nNew words here."
        and node.confidence == 0.9
        and node.text("created") == created
    )


def test_bytes_that_mean_the_same_keep_the_node(home, source):
    write(source, {"a.md": "# A\n\nThe same words.\n"})
    gardener.adopt(home, str(source))
    body, digest = home.node("a").body, home.node("a").fields["source_hash"]
    write(source, {"a.md": "# A\r\n\r\nThe same words.\r\n\r\n"})
    report = gardener.sync(home)
    assert report["unchanged"] == ["a"] and report["updated"] == []
    assert home.node("a").body == body and home.node("a").fields["source_hash"] != digest
    assert gardener.sync(home)["commits"] == []


def test_an_edited_body_is_kept_and_the_new_one_waits_beside_it(home, source):
    write(source, {"x/a.md": "# A\n\nOld words of the source.\n"})
    gardener.adopt(home, str(source))
    edit(home, "x/a", "Old words of the source.", "Words of a person.")
    write(source, {"x/a.md": "# A\n\nNew words of the source.\n"})
    report = gardener.sync(home)
    told = {"id": "x/a", "path": "x/a.md", "kind": "body", "proposal": "x/a.incoming", "pending": False}
    assert report["conflicts"] == [told] and report["updated"] == [] and report["planted"] == []
    assert "Words of a person." in home.node("x/a").body
    proposal = home.node("x/a.incoming")
    assert proposal.title == "A (incoming)" and proposal.body == "# A\n\nNew words of the source."
    assert proposal.links == [{"rel": "derived-from", "target": "x/a"}] and proposal.confidence == 0.3
    head = git(home, "rev-parse", "HEAD")
    again = gardener.sync(home)
    assert again["conflicts"] == [told | {"pending": True}] and again["commits"] == []
    assert git(home, "rev-parse", "HEAD") == head
    write(source, {"x/a.md": "# A\n\nNewer words of the source.\n"})
    assert gardener.sync(home)["conflicts"] == [told] and "Newer words" in home.node("x/a.incoming").body
    edit(home, "x/a", "Words of a person.", "Newer words of the source.")
    done = gardener.sync(home)
    assert done["updated"] == ["x/a"] and done["conflicts"] == []
    assert not (home.root / "x/a.incoming.md").exists() and "source_pending" not in home.node("x/a").fields
    assert gardener.sync(home)["unchanged"] == ["x/a"]
    assert_sound(home)


def test_the_edited_text_of_a_branch_is_kept_too(home, source):
    write(source, {"x/README.md": "# X\n\nOld text of the branch.\n", "x/a.md": "Words of a.\n"})
    gardener.adopt(home, str(source))
    edit(home, "x/_index", "\nOld text of the branch.\n", "\nText of a person.\n")
    write(source, {"x/README.md": "# X\n\nNew text of the branch.\n"})
    report = gardener.sync(home)
    assert [c["proposal"] for c in report["conflicts"]] == ["x/index.incoming"]
    assert "Text of a person." in home.node("x/_index").body and home.node("x/index.incoming").type == "note"
    assert gardener.sync(home)["commits"] == []


def test_a_node_from_before_bases_were_kept(home, source):
    write(source, {"a.md": "# A\n\nOld words.\n", "b.md": "# B\n\nOld words.\n"})
    gardener.adopt(home, str(source))
    for id in ("a", "b"):
        text = (home.root / f"{id}.md").read_text()
        (home.root / f"{id}.md").write_text(re.sub(r"source_base:\n(?:  .*\n)+", "", text))
    edit(home, "b", "Old words.", "Words of a person.")
    write(source, {"a.md": "# A\n\nNew words.\n", "b.md": "# B\n\nNew words.\n"})
    report = gardener.sync(home)
    assert report["updated"] == ["a"] and [c["id"] for c in report["conflicts"]] == ["b"]


def test_a_renamed_file_takes_its_node_along(home, source):
    write(
        source,
        {
            "old/a.md": "# A\n\nWords of a.\n",
            "b.md": "See [a](old/a.md).\n",
            "old/keep.md": "Stays where it is.\n",
        },
    )
    gardener.adopt(home, str(source))
    edit(home, "old/a", "Words of a.", "Words of a, by a person.")
    home.call(
        "plant",
        {
            "node": {
                "id": "own",
                "type": "note",
                "title": "Own",
                "summary": "Mine.",
                "parent": "_index",
                "body": "Read [[old/a#x|it]].",
            }
        },
    )
    home.call("graft", {"id": "old/a", "patch": {"set_frontmatter": {"tags": ["mine"]}}})
    home.heat.deposit({"old/a": 0.5})
    heat = home.heat.of("old/a")
    (source / "new").mkdir()
    os.rename(source / "old/a.md", source / "new/Renamed.md")
    report = gardener.sync(home)
    assert report["moved"] == [{"from": "old/a", "to": "new/renamed", "path": "new/Renamed.md"}]
    assert report["planted"] == report["stale"] == report["updated"] == []
    node = home.node("new/renamed")
    assert (
        "by a person" in node.body and node.tags == ["mine"] and node.text("source_path") == "new/Renamed.md"
    )
    assert [link["target"] for link in home.node("b").links] == ["new/renamed"]
    assert "[[new/renamed|a]]" in home.node("b").body and "[[new/renamed#x|it]]" in home.node("own").body
    assert heat > 0 and home.heat.of("new/renamed") == pytest.approx(heat, rel=0.01)
    assert not (home.root / "old/a.md").exists()
    again = gardener.sync(home)
    assert again["unchanged"] == ["b", "new/renamed", "old/keep"] and again["commits"] == []
    write(source, {"b.md": "See [a](new/Renamed.md), changed.\n"})
    assert gardener.sync(home)["updated"] == ["b"]
    assert_sound(home)


def test_a_renamed_folder_moves_all_its_nodes(home, source):
    write(source, {f"one/n{i}.md": f"Words {i}, to [next](n{(i + 1) % 4}.md).\n" for i in range(4)})
    gardener.adopt(home, str(source))
    os.rename(source / "one", source / "two")
    report = gardener.sync(home)
    assert [m["to"] for m in report["moved"]] == [f"two/n{i}" for i in range(4)] and len(
        report["commits"]
    ) == 1
    assert subjects(home)[0] == "gardener(move): 4 nodes"
    for i in range(4):
        assert [link["target"] for link in home.node(f"two/n{i}").links] == [f"two/n{(i + 1) % 4}"]
    assert gardener.sync(home)["commits"] == []
    assert_sound(home)


def test_equal_files_stay_two_nodes(home, source):
    write(source, {"a.md": "The very same words.\n", "b.md": "The very same words.\n"})
    gardener.adopt(home, str(source))
    for _ in range(2):
        assert gardener.sync(home)["unchanged"] == ["a", "b"]
    os.rename(source / "a.md", source / "c.md")
    report = gardener.sync(home)
    assert report["moved"] == [{"from": "a", "to": "c", "path": "c.md"}] and ids(home) == {"b", "c"}


def test_gone_files_are_stale_until_pruned(home, source):
    write(
        source,
        {
            "a.md": "Words of a, to [b](x/b.md).\n",
            "x/b.md": "Words of b.\n",
            "x/y/c.md": "Words of c.\n",
            "x/d.md": "Words of d.\n",
        },
    )
    gardener.adopt(home, str(source))
    edit(home, "x/d", "Words of d.", "Words of a person.")
    for name in ("x/b.md", "x/y/c.md", "x/d.md"):
        (source / name).unlink()
    report = gardener.sync(home)
    assert report["stale"] == ["x/b", "x/d", "x/y/c"] and report["commits"] == []
    report = gardener.sync(home, prune=True)
    assert report["pruned"] == ["x/b", "x/y/_index", "x/y/c"] and report["stale"] == []
    assert report["conflicts"] == [
        {"id": "x/d", "path": "x/d.md", "kind": "deleted", "proposal": None, "pending": False}
    ]
    assert home.node("a").links == [] and "[[x/b" not in home.node("x/_index").body
    assert subjects(home)[0] == "gardener(prune): 3 nodes"
    assert [i["code"] for i in home.validate()["issues"] if i["level"] == "error"] == []


def test_a_pruned_readme_leaves_a_plain_branch(home, source):
    write(source, {"x/README.md": "# Nice\n\nText of x.\n", "x/a.md": "Words of a.\n"})
    gardener.adopt(home, str(source))
    (source / "x/README.md").unlink()
    assert gardener.sync(home, prune=True)["pruned"] == ["x/_index"]
    node = home.node("x/_index")
    assert (node.title, node.summary) == ("x", "Region 'x': a.") and "Text of x." not in node.body
    assert gardener.sync(home)["unchanged"] == ["x/a"]
    assert_sound(home)


def test_an_empty_source_is_not_pruned(home, source):
    write(source, {"a.md": "Words of a.\n"})
    gardener.adopt(home, str(source))
    (source / "a.md").unlink()
    with pytest.raises(VineError) as refusal:
        gardener.sync(home, prune=True)
    assert refusal.value.code == "E_SCHEMA" and home.node("a").title == "a"
    source.rmdir()
    with pytest.raises(VineError) as refusal:
        gardener.sync(home)
    assert refusal.value.code == "E_SCHEMA"


def test_what_cannot_be_reached_is_not_gone(home, source, monkeypatch):
    write(source, {"a.md": "Words of a.\n", "x/b.md": "Words of b.\n"})
    gardener.adopt(home, str(source))
    monkeypatch.setattr(sources, "MAX_DEPTH", 0)
    report = gardener.sync(home, prune=True)
    assert report["pruned"] == report["stale"] == [] and codes(report) == {"x": "path_too_long"}


def test_sync_of_one_path(home, source):
    write(source, {"a.md": "Words of a.\n", "x/b.md": "Words of b.\n", ".hidden.md": "No.\n"})
    gardener.adopt(home, str(source))
    write(source, {"a.md": "Other words of a.\n", "x/b.md": "Other words of b.\n", "c.md": "Words of c.\n"})
    assert gardener.sync(home, path="x/b.md")["updated"] == ["x/b"]
    assert "Other" not in home.node("a").body and not (home.root / "c.md").exists()
    assert gardener.sync(home, path="c.md")["planted"] == ["c"]
    assert gardener.sync(home, path=".hidden.md")["skipped"]["count"] == 1
    (source / "c.md").unlink()
    assert gardener.sync(home, path="c.md")["stale"] == ["c"]
    assert codes(gardener.sync(home, path="never.md")) == {"never.md": "missing"}
    for bad in (str(source / "a.md"), "x", "../notes", "../../etc/passwd"):
        with pytest.raises(VineError) as refusal:
            gardener.sync(home, path=bad)
        assert refusal.value.code == "E_SCHEMA"


def test_branch_summaries_follow_until_a_person_writes_one(home, source):
    write(source, {"x/a.md": "# Ants\n\nWords of a.\n"})
    gardener.adopt(home, str(source))
    write(source, {"x/b.md": "# Bees\n\nWords of b.\n"})
    gardener.sync(home)
    assert home.node("x/_index").summary == "Region 'x': Ants, Bees."
    home.call(
        "graft", {"id": "x/_index", "patch": {"set_frontmatter": {"summary": "Insects of the garden."}}}
    )
    write(source, {"x/c.md": "# Crickets\n\nWords of c.\n"})
    gardener.sync(home)
    assert (
        home.node("x/_index").summary == "Insects of the garden." and "[[x/c]]" in home.node("x/_index").body
    )


# ------------------------------------------------------------------------------- dry run, progress, crashes


def test_a_dry_run_tells_the_same_and_writes_nothing(home, source):
    write(
        source,
        {
            "a.md": "Words of a, to [b](x/b.md).\n",
            "x/b.md": "Words of b.\n",
            "bad.md": b"\0",
            "x/a.txt": "Words of text.\n",
        },
    )
    before = state(home.root)
    preview = gardener.adopt(home, str(source), dry_run=True)
    assert state(home.root) == before and preview["commit"] is None and preview["commits"] == []
    real = gardener.adopt(home, str(source))
    for name in ("planted", "branches", "branches_new", "errors", "details", "counts", "skipped"):
        assert preview[name] == real[name]
    write(source, {"a.md": "Other words of a.\n"})
    os.rename(source / "x/b.md", source / "x/c.md")
    (source / "x/a.txt").unlink()
    before = state(home.root)
    preview = gardener.sync(home, prune=True, dry_run=True)
    assert state(home.root) == before
    real = gardener.sync(home, prune=True)
    for name in ("updated", "moved", "pruned", "unchanged"):
        assert preview[name] == real[name] and (real[name] or name == "unchanged")


def test_progress_counts_every_document(home, source):
    write(source, {f"n{i}.md": f"Words of {i}.\n" for i in range(7)})
    seen = []
    gardener.adopt(
        home, str(source), progress=lambda done, total, current: seen.append((done, total, current))
    )
    assert [(done, total) for done, total, _ in seen] == [(n, 7) for n in range(1, 8)]
    assert {current for _, _, current in seen} == {f"n{i}.md" for i in range(7)}


def test_ctrl_c_lands_what_is_converted(home, source):
    write(source, {f"n{i}.md": f"Words of {i}, to [last](n9.md).\n" for i in range(10)})

    def stop(done, total, current):
        if done == 5:
            raise KeyboardInterrupt

    report = gardener.adopt(home, str(source), progress=stop)
    assert report["interrupted"] is True and report["planted"] == [f"n{i}" for i in range(4)]
    rest = gardener.sync(home)
    assert rest["planted"] == [f"n{i}" for i in range(4, 10)] and "interrupted" not in rest
    assert [link["target"] for link in home.node("n0").links] == ["n9"]
    assert gardener.sync(home)["commits"] == []
    assert_sound(home)


def test_links_by_title_hold_through_a_refresh(home, source):
    write(source, {"a.md": "See [[The other page]].\n", "b.md": "# The other page\n\nWords of b.\n"})
    gardener.adopt(home, str(source))
    assert "[[b|The other page]]" in home.node("a").body
    write(source, {"a.md": "See [[The other page]].\n\n"})
    report = gardener.sync(home)
    assert report["unchanged"] == ["a", "b"] and "[[b|The other page]]" in home.node("a").body
    edit(home, "a", "See", "Look at")
    write(source, {"a.md": "Look at [[The other page]].\n"})
    assert gardener.sync(home)["conflicts"] == [] and gardener.sync(home)["commits"] == []


def test_hand_edits_of_a_branch_face_survive_later_links(home, source):
    write(source, {"x/README.md": "# X\n\nSee [[Later]].\n", "x/a.md": "Words of a.\n"})
    gardener.adopt(home, str(source))
    edit(home, "x/_index", "\n# X\n", "\n# X, as we say\n")
    write(source, {"x/README.md": "# X\n\nSee [[Later]] and more.\n", "x/later.md": "Words of later.\n"})
    assert gardener.sync(home)["updated"] == ["x/_index"]
    body = home.node("x/_index").body
    assert body.startswith("# X, as we say\n") and "See [[x/later|Later]] and more." in body


_ADOPT = """
import sys
sys.path.insert(0, sys.argv[1])
import gardener, vine
gardener.CHUNK = 50
with vine.Vine(sys.argv[2]) as opened:
    gardener.adopt(opened, sys.argv[3], progress=lambda done, total, current: print(done, flush=True))
"""


def test_ctrl_c_on_a_real_process(home, source):
    write(source, {f"n{i:03}.md": f"Words of {i}.\n" for i in range(400)})
    script = _ADOPT.replace("gardener.adopt(", "report = gardener.adopt(") + "print(report)"
    command = [sys.executable, "-c", script, str(HERE), str(home.root), str(source)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    last = ""
    for line in child.stdout:
        if line.strip() == "130":
            child.send_signal(signal.SIGINT)
        last = line
    assert child.wait() == 0
    report = ast.literal_eval(last)
    assert report["interrupted"] and report["errors"] == [] and 100 <= len(report["planted"]) < 400
    with engine.Vine(home.root) as opened:
        rest = gardener.sync(opened)
        assert sorted(report["planted"] + rest["planted"]) == [f"n{i:03}" for i in range(400)]
        assert_sound(opened)


def test_a_killed_batch_is_completed_by_the_next_one(home, source, tmp_path):
    write(
        source,
        {
            f"d{i % 5}/n{i:03}.md": f"Words of {i}, to [other](../d{(i + 7) % 5}/n{(i + 7) % 300:03}.md).\n"
            for i in range(300)
        },
    )
    command = [sys.executable, "-c", _ADOPT, str(HERE), str(home.root), str(source)]
    for stop_at in (120, 230):
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for line in child.stdout:
            if int(line) >= stop_at:
                child.kill()
        child.wait()
        assert child.returncode == -signal.SIGKILL
    with engine.Vine(home.root) as opened:
        report = gardener.sync(opened)
        assert report["errors"] == []
        assert ids(opened) == {f"d{i % 5}/n{i:03}" for i in range(300)}
        for i in range(300):
            target = f"d{(i + 7) % 5}/n{(i + 7) % 300:03}"
            assert [link["target"] for link in opened.node(f"d{i % 5}/n{i:03}").links] == [target]
        assert gardener.sync(opened)["commits"] == []
        assert_sound(opened)


def test_one_batch_at_a_time_and_a_preview_needs_no_turn(home, source):
    write(source, {f"n{i}.md": f"Words of {i}.\n" for i in range(3)})
    refusals = []

    def intrude(done, total, current):
        with engine.Vine(home.root) as other:
            with pytest.raises(VineError) as refusal:
                gardener.adopt(other, str(source))
            refusals.append(refusal.value)
            assert gardener.adopt(other, str(source), dry_run=True)["counts"]["planted"] == 3

    gardener.adopt(home, str(source), progress=intrude)
    assert {error.code for error in refusals} == {"E_LOCKED"}
    assert f"pid {os.getpid()}" in refusals[0].message


def test_a_batch_waits_for_another_writer_and_never_holds_the_lock_while_it_reads(home, source):
    write(source, {"a.md": "Words of a.\n", "b.md": "Words of b.\n"})
    planted = []

    def plant_meanwhile(done, total, current):
        node = {"id": f"own-{done}", "type": "note", "title": "Own", "summary": "Mine.", "parent": "_index"}
        planted.append(home.call("plant", {"node": node})["id"])

    report = gardener.adopt(home, str(source), progress=plant_meanwhile)
    assert planted == ["own-1", "own-2"] and report["planted"] == ["a", "b"]
    assert_sound(home)


def test_two_thousand_small_notes_land_in_commits_of_two_hundred(home, source):
    write(source, {f"n{i:04}.md": f"# Note {i}\n\nThe words of note {i} are few.\n" for i in range(450)})
    report = gardener.adopt(home, str(source))
    assert report["counts"]["planted"] == 450 and len(report["commits"]) == 3
    assert subjects(home)[0].startswith("plant(batch): ")
    message = git(home, "log", "-1", "--format=%B")
    assert "n0449" in message.splitlines()
    assert json.loads(forest.dumps(report)) == report


def test_the_source_is_never_written(home, source):
    write(source, {"a.md": "Words of a.\n", "x/b.md": "Words of b.\n"})
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in source.rglob("*")}
    gardener.adopt(home, str(source))
    gardener.sync(home, prune=True)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in source.rglob("*")} == before
