"""The forest format as a user meets it: files on disk, ids, passports, index files, commits, lint.

Sections: fixtures · init · ids · parents and trails · node files on disk · broken files · writing YAML ·
headings and sections · passport rules · links and dialect · index files · commits · graft · lint · repair.
"""

import datetime
import json
import os
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
import yaml

import forest
from forest import count_tokens, parse_node, render_node
from kit import (
    REPO, assert_whole, by_hand, children, codes, commits, git, graft, grow, head, plant, refusal, seed,
    status, subject, text, write,
)  # fmt: skip
from vine import Vine, init

TODAY = datetime.date.today().isoformat()

# ---------------------------------------------------------------------------------------------- fixtures


def read(root: Path, id: str) -> forest.Node:
    return parse_node((root / f"{id}.md").read_bytes(), id)


def entries(root: Path, branch: str, section: str) -> list[str]:
    return [line for _, line in forest.index_lines(read(root, branch).body, section)]


def see(vine: Vine) -> None:
    """Bring the catalog up to the files now; a user waits two seconds instead."""
    vine.catalog.check(force=True)


# ---------------------------------------------------------------------------------------------- init


def test_init_makes_three_files_and_one_commit(tmp_path):
    answer = init(tmp_path / "My trees")
    root = tmp_path / "My trees"
    assert answer == {"root": str(root), "title": "My trees", "commit": head(root)}
    assert commits(root) == 1 and status(root) == ""
    assert git(root, "ls-tree", "-r", "--name-only", "HEAD").split() == [
        ".gitignore",
        "_index.md",
        "_meta/schema.md",
    ]
    assert git(root, "log", "--format=%s|%an <%ae>|%cn <%ce>").strip() == (
        "init: forest 'My trees' (empty A.5 skeleton)|vine <vine@monkeyllm.local>|vine <vine@monkeyllm.local>"
    )
    assert git(root, "symbolic-ref", "HEAD").strip() == "refs/heads/main"
    assert (root / ".gitignore").read_text() == "_derived/\n.vine.lock\n*.db\n*.sqlite\n_assets/\n"
    assert_whole(root)


def test_a_new_master_has_its_parts_in_order(tmp_path):
    init(tmp_path / "f", "Garden", "Everything about the garden.")
    node = read(tmp_path / "f", "_index")
    assert list(node.fields) == ["id", "type", "title", "summary", "created", "updated", "coverage"]
    assert node.fields["coverage"] == "0 bananas, 0 sub-branches" and node.fields["created"] == TODAY
    assert node.body == (
        "# Garden\n> Everything about the garden.\n\n"
        "## Sub-branches\n## Direct bananas\n## Cross trails\n## Landmarks"
    )
    schema = read(tmp_path / "f", "_meta/schema")
    assert (schema.type, schema.title) == ("note", "Forest dialect")
    assert forest.outline(schema.body) == ["Node types (type)", "Edge types (rel)"]
    assert forest.parse_dialect(schema.body) == forest.BUILT_IN


@pytest.mark.parametrize("there", ["_index.md", "_meta/schema.md"])
def test_init_refuses_a_forest_and_touches_nothing(tmp_path, there):
    (tmp_path / there).parent.mkdir(exist_ok=True)
    (tmp_path / there).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    refusal("E_SCHEMA", init, tmp_path)
    assert sorted(tmp_path.rglob("*")) == before and (tmp_path / there).read_text() == "mine"


def test_init_keeps_other_files_and_the_lines_of_gitignore(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".gitignore").write_bytes(b"secret\n*.db\nlast line without end")
    init(tmp_path)
    assert (tmp_path / ".gitignore").read_text().splitlines() == [
        "secret",
        "*.db",
        "last line without end",
        "_derived/",
        ".vine.lock",
        "*.sqlite",
        "_assets/",
    ]
    assert status(tmp_path) == "?? notes.txt\n"


def test_init_uses_the_folders_own_repository_and_ignores_one_around_it(tmp_path):
    outer, own = tmp_path / "outer", tmp_path / "own"
    for folder in (outer, own):
        folder.mkdir()
        git(folder, "init", "-q", "-b", "trunk")
        (folder / "file").write_text("x")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "before")
    init(own)
    assert commits(own) == 2 and git(own, "symbolic-ref", "HEAD").strip() == "refs/heads/trunk"
    init(outer / "inner")
    assert commits(outer) == 1 and commits(outer / "inner") == 1


def test_a_failed_init_takes_back_what_it_made_and_nothing_else(tmp_path, monkeypatch):
    busy = tmp_path / "busy"
    (busy / "_derived").mkdir(parents=True)
    (busy / "_derived" / "heat of old").write_text("kept")
    git(busy, "init", "-q")
    (busy / ".git" / "MERGE_HEAD").write_text("0" * 40)
    refusal("E_LOCKED", init, busy)
    assert sorted(p.name for p in busy.iterdir()) == [".git", "_derived"]
    assert [p.name for p in (busy / "_derived").iterdir()] == ["heat of old"]
    monkeypatch.setenv("PATH", str(tmp_path / "no programs"))
    error = refusal("E_SCHEMA", init, tmp_path / "deep" / "er")
    assert "git" in error.message and not (tmp_path / "deep").exists()


@pytest.mark.parametrize("title", ["two\nlines", "x" * 201, "bell\x07"])
def test_init_refuses_a_bad_title(tmp_path, title):
    assert refusal("E_FRONTMATTER", init, tmp_path / "f", title).message.startswith("title")
    assert not (tmp_path / "f").exists()


# ---------------------------------------------------------------------------------------------- ids

GOOD_IDS = [
    "x", "a/x", "a/b/c/d/e/f/g/h", "a/v1.2_final-3", "a/" + "x" * 100, "a/1", "a/é", "a/日本語", "a/नमस्ते",
    "a/x.md.txt", "README", "a/x.MD", "a/_index", "b" * 100 + "/" + "c" * 100,
]  # fmt: skip
BAD_IDS = {
    "": "characters", "A B": "hold", "x.md": ".md", "a//b": "empty", "/x": "empty", "x/": "empty",
    ".hidden": "start",
    ".git/_index": "reserved", "_meta/x": "reserved", "_derived/x": "reserved", "_assets/x": "reserved",
    "_index/x": "start", "a/_index/b": "start", "a/_x": "start", "[[f]]": "start", "a\nb": "hold",
    "a\x00b": "hold",
    " x": "start", "x ": "hold", "a/../b": "dot", "..": "dot", "a/b.": "dot", "-x": "start", "a/x:y": "hold",
    "a\\b": "hold", "a/" + "x" * 101: "100", "1/2/3/4/5/6/7/8/9": "8 segments", "x" * 241: "240",
    "a/x²": "hold",
    "a/\u0301x": "start", "a/😀": "start", "a/x\u200b": "hold", "a/" + "日" * 81: "bytes", "_index.md": "start",
}  # fmt: skip


@pytest.mark.parametrize("id", GOOD_IDS)
def test_an_id_that_is_accepted(id):
    assert forest.check_id(id) == id


@pytest.mark.parametrize("id", BAD_IDS)
def test_an_id_that_is_refused_names_the_rule(id):
    error = refusal("E_SCHEMA", forest.check_id, id)
    rule = {"reserved": "nothing is planted"}.get(BAD_IDS[id], BAD_IDS[id])
    assert rule in error.message and "\n" not in error.message


@pytest.mark.parametrize("id", [None, 7, ["x"], True])
def test_an_id_that_is_no_string_is_refused(id):
    refusal("E_SCHEMA", forest.check_id, id)


def test_an_id_that_is_not_nfc_is_answered_with_its_nfc_spelling():
    error = refusal("E_SCHEMA", forest.check_id, "cafe\u0301")
    assert unicodedata.normalize("NFC", "cafe\u0301") in error.hint


@pytest.mark.parametrize(
    "id", ["A B", "x.md", "a//b", ".hidden", ".git/_index", "_meta/x", "[[f]]", "a/b\nc", "a/../x", "/etc/x"]
)
def test_a_plant_with_a_bad_id_leaves_nothing(vine, root, id):
    before = sorted(p for p in root.rglob("*") if ".git" not in p.parts and "_derived" not in p.parts)
    refusal("E_SCHEMA", plant, vine, id, parent="a/_index")
    assert sorted(p for p in root.rglob("*") if ".git" not in p.parts and "_derived" not in p.parts) == before
    assert status(root) == "" and commits(root) == 2


def test_case_twins_are_refused_whichever_way_they_got_there(vine, root):
    plant(vine, "a/case")
    assert "a/case" in refusal("E_SCHEMA", plant, vine, "a/Case").message
    by_hand(root, "a/Straße")
    (root / "a" / "Broken.md").write_text("no frontmatter")
    see(vine)
    assert "a/Straße" in refusal("E_SCHEMA", plant, vine, "a/STRASSE").message
    refusal("E_SCHEMA", plant, vine, "a/broken")
    assert not (root / "a" / "Case.md").exists() and not (root / "a" / "broken.md").exists()


def test_plant_never_overwrites_a_file_on_disk(vine, root):
    (root / "a" / "x.md").write_text("broken, but mine")
    refusal("E_SCHEMA", plant, vine, "a/x")
    (root / "a" / "y.md").symlink_to("/etc/hostname")
    refusal("E_SCHEMA", plant, vine, "a/y")
    assert text(root, "a/x") == "broken, but mine" and (root / "a" / "y.md").is_symlink()


def test_plant_refuses_the_name_of_a_folder(vine, root):
    (root / "a" / "z.md").mkdir()
    refusal("E_SCHEMA", plant, vine, "a/z")


@pytest.mark.parametrize("id", ["policies/../a/x", "a/x/", " a/x", "/a/x", "a/X", "", "a/x.md", "nope"])
@pytest.mark.parametrize(
    "verb, more", [("look", {}), ("pick", {}), ("move", {}), ("graft", {"patch": {"replace_body": ""}})]
)
def test_an_unknown_id_is_not_found_and_leaves_no_row(vine, root, verb, more, id):
    plant(vine, "a/x")
    before = children(vine, "a/_index")
    error = refusal("E_NOT_FOUND", vine.call, verb, {"id": id} | more)
    assert error.message == f"node not found: {id}" and error.hint == "Use locate() to find entry points."
    see(vine)
    with vine.catalog.reading() as reader:
        assert [row["id"] for row in reader.all_rows()] == ["_index", "_meta/schema", "a/_index", "a/x"]
    assert children(vine, "a/_index") == before


def test_a_node_is_never_written_through_a_linked_folder(vine, root, tmp_path):
    (tmp_path / "outside").mkdir()
    (root / "ln").symlink_to(tmp_path / "outside")
    refusal("E_SCHEMA", plant, vine, "ln/_index")
    assert list((tmp_path / "outside").iterdir()) == [] and commits(root) == 2


def test_a_node_behind_a_linked_folder_is_never_read(vine, root, tmp_path):
    by_hand(tmp_path / "outside", "secret", title="Secret")
    (root / "ln").symlink_to(tmp_path / "outside")
    link = {"rel": "related-to", "target": "ln/secret"}
    refusal("E_NOT_FOUND", plant, vine, "a/x", links=[link])
    refusal("E_NOT_FOUND", vine.call, "pick", {"id": "ln/secret"})


def test_a_file_with_a_bad_path_is_readable_graftable_and_reported(vine, root):
    by_hand(root, "a/Old file (2)", "# Old\nPlums.\n")
    see(vine)
    assert "Plums" in vine.call("pick", {"id": "a/Old file (2)"})["body"]
    graft(vine, "a/Old file (2)", set_frontmatter={"title": "New"})
    assert read(root, "a/Old file (2)").title == "New"
    assert codes(vine.validate(), "a/Old file (2)") == ["bad-id"]


def test_a_file_name_with_a_line_break_forges_no_entry(vine, root):
    by_hand(root, "a/x\n- [[a/evil]] — Trust me")
    plant(vine, "a/y")
    lines = text(root, "a/_index").split("\n")
    assert not [line for line in lines if line.startswith("- [[a/evil")]


def test_a_file_name_that_is_not_utf8_hides_no_other(vine, root):
    plant(vine, "a/x")
    shutil.copy(root / "a" / "x.md", os.fsencode(root / "a") + b"/caf\xe9.md")
    see(vine)
    assert vine.call("look", {"id": "a/x"})["id"] == "a/x"


# ----------------------------------------------------------------------------------------- parents and trails


@pytest.mark.parametrize(
    "id, parent, trail",
    [
        ("_index", None, []),
        ("x", "_index", ["_index"]),
        ("a/_index", "_index", ["_index"]),
        ("a/b", "a/_index", ["_index", "a/_index"]),
        ("a/b/_index", "a/_index", ["_index", "a/_index"]),
        ("a/b/c", "a/b/_index", ["_index", "a/_index", "a/b/_index"]),
        ("_meta/schema", None, ["_index"]),
    ],
)
def test_parent_and_trail(id, parent, trail):
    assert forest.parent_of(id) == parent and forest.ancestors(id) == trail


def test_kind_follows_the_type_and_coverage_is_always_plural():
    assert forest.Node("a/_index", {"type": "branch"}, "").kind == "branch"
    assert forest.Node("a/x", {"type": "note"}, "").kind == "banana"
    assert forest.coverage(1, 1) == "1 bananas, 1 sub-branches"


def test_a_plants_parent_must_exist_be_a_branch_and_be_the_one_implied(vine):
    plant(vine, "a/x")
    plant(vine, "b/_index")
    refusal("E_NOT_FOUND", plant, vine, "c/x")
    refusal("E_NOT_FOUND", plant, vine, "a/y", parent="a/x")
    assert "a/_index" in refusal("E_SCHEMA", plant, vine, "a/y", parent="b/_index").message


def test_a_trail_names_existing_indexes_only(vine, root):
    by_hand(root, "a/gap/x")
    see(vine)
    assert vine.call("locate", {"query": "title of x"})["results"][0]["trail"] == ["_index", "a/_index"]


@pytest.mark.parametrize("id, kind", [("a/x", "branch"), ("b/_index", "note")])
def test_branch_and_index_agree(vine, id, kind):
    refusal("E_SCHEMA", plant, vine, id, type=kind)


# ----------------------------------------------------------------------------------------- node files on disk

TYPED = """\
id: a/x
type: note
title: no
summary: 1_000
created: 2026-08-01
updated: 2026-08-02
tags: [2026, yes, 1.0, null]
aliases: lone
rating: 0x1F
quota: 1_000
agreed: yes
sure: true
since: 2026-01-01
nothing: null
octal: 0o17
old octal: 017
big: .INF
"""


def test_known_fields_are_text_as_typed_and_others_are_core_yaml():
    node = parse_node(f"---\n{TYPED}---\n\nBody\n".encode(), "a/x")
    assert (node.title, node.summary, node.text("created")) == ("no", "1_000", "2026-08-01")
    assert node.tags == ["2026", "yes", "1.0", "null"] and node.aliases == ["lone"]
    rest = {key: node.fields[key] for key in list(node.fields)[8:]}
    assert rest == {
        "rating": 31,
        "quota": "1_000",
        "agreed": "yes",
        "sure": True,
        "since": "2026-01-01",
        "nothing": None,
        "octal": 15,
        "old octal": 17,
        "big": float("inf"),
    }


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data.replace(b"\n", b"\r"),
        lambda data: data.replace(b"---\n", b"---  \t\n"),
        lambda data: data.replace(b"---\n\n", b"---\n\n \n\t\n\n"),
        lambda data: data.rstrip() + b"  \n\n\n",
        lambda data: data.rstrip(),
    ],
    ids=["bom", "crlf", "cr", "blanks after ---", "blank top", "blank end", "no end"],
)
def test_other_editors_spellings_read_the_same(spoil):
    data = b"---\ntype: note\ntitle: T\n---\n\n# T\nText.\n"
    node = parse_node(spoil(data), "x")
    assert (node.fields, node.body) == ({"type": "note", "title": "T"}, "# T\nText.")


def test_only_a_line_of_three_dashes_alone_ends_the_block(vine, root):
    block = "id: a/x\ntype: note\ntitle: no\nsummary: S\ncreated: 2026-08-01\ntags: [2026]\n"
    block += 'keep: "\n  -----\n  ---\n  ---x"'
    (root / "a" / "x.md").write_bytes(
        b"\xef\xbb\xbf" + f"---\n{block}\n---\n\n# No\n---\nrule\n".replace("\n", "\r\n").encode()
    )
    see(vine)
    before = read(root, "a/x")
    assert (
        before.title == "no"
        and before.fields["keep"] == " ----- --- ---x"
        and before.body == "# No\n---\nrule"
    )
    graft(vine, "a/x", add_links=[{"rel": "related-to", "target": "_index"}])
    after = read(root, "a/x")
    assert after.body == before.body
    unchanged = {k: v for k, v in after.fields.items() if k not in ("links", "updated")}
    assert unchanged == before.fields
    assert list(after.fields) == [
        "id",
        "type",
        "title",
        "summary",
        "created",
        "updated",
        "tags",
        "links",
        "keep",
    ]


def test_unknown_keys_keep_value_and_place_through_a_graft(vine, root):
    write(root, "a/x", TYPED.replace("title: no", "zz: {b: [1, {c: 2}], a: x}\ntitle: no"))
    see(vine)
    before = read(root, "a/x").fields
    graft(vine, "a/x", set_frontmatter={"summary": "New."})
    after = read(root, "a/x").fields
    assert list(after) == list(before) and list(after)[2] == "zz"
    assert {k: v for k, v in after.items() if k not in ("summary", "updated")} == {
        k: v for k, v in before.items() if k not in ("summary", "updated")
    }


def test_unusable_values_read_as_their_defaults(vine, root):
    write(
        root,
        "a/x",
        "id: a/x\ntype: note\ntitle: [1]\nsummary: {a: b}\nconfidence: high\ntags: 7\nlinks: 5\naliases: {}",
        "Text.\n",
    )
    write(
        root,
        "a/y",
        "type: note\nconfidence: 7\nlinks: [x, {rel: 1}, {rel: related-to, target: a/x}]",
        "# From H1\n> From quote\n",
    )
    write(root, "a/z", "type: note", "Text first.\n> no summary\n")
    see(vine)
    x, y, z = (vine.node(f"a/{name}") for name in "xyz")
    assert (x.title, x.summary, x.confidence, x.tags, x.links, x.aliases) == ("a/x", "", 1.0, ["7"], [], [])
    assert (y.title, y.summary, y.confidence) == ("From H1", "From quote", 1.0)
    assert [link["target"] for link in y.links] == ["a/x"]
    assert (z.title, z.summary) == ("a/z", "")
    assert {"a/x", "a/y", "a/z"} <= {
        node["id"] for node in vine.call("scan", {"parent_id": "a/_index"})["nodes"]
    }


def test_a_repeated_key_counts_last():
    node = parse_node(b"---\ntype: note\ntitle: One\ntitle: Two\n---\n", "x")
    assert node.title == "Two" and node.repeated == ["title"]


# ---------------------------------------------------------------------------------------------- broken files

BROKEN = {
    "latin-1": "---\ntype: note\ntitle: café\n---\n".encode("latin-1"),
    "no opening": b"title: x\n---\n",
    "empty": b"",
    "no closing": b"---\ntitle: x\n",
    "indented closing": b"---\ntitle: x\n ---\n",
    "no yaml": b"---\ntitle: [x\n---\n",
    "a list": b"---\n- x\n---\n",
    "nothing": b"---\n---\n",
    "object tag": b"---\ntitle: !!python/object/apply:os.system [true]\n---\n",
    "object tag on the block": b"---\n!!python/object:os.system\ntitle: x\n---\n",
    "object tag on a key": b"---\n!!python/name:os.system x: 1\n---\n",
    "own tag": b"---\nx: !secret y\n---\n",
    "over 256 KiB": b"---\nx: " + b"y" * 262_144 + b"\n---\n",
    "over 100,000 values": b"---\na: &a [x,x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 10)) for c in b"bcde")
    + b"---\n",
    "an alias to itself": b"---\na: &a [*a]\n---\n",
    "a thousand levels": b"---\na: " + b"[" * 1000 + b"]" * 1000 + b"\n---\n",
    "too deep for a parser": b"---\na: " + b"[" * 200_000 + b"\n---\n",
    "two documents": b"---\na: 1\n...\nb: 2\n---\n",
    "nul": b"---\na: \x00\n---\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_says_so_and_hides_nothing_else(vine, root, name):
    plant(vine, "a/good", body="Quinces.")
    (root / "a" / "bad.md").write_bytes(BROKEN[name])
    see(vine)
    look = refusal("E_FRONTMATTER", vine.call, "look", {"id": "a/bad"})
    for verb, more in [("pick", {}), ("move", {}), ("view", {}), ("graft", {"patch": {"replace_body": "x"}})]:
        assert refusal("E_FRONTMATTER", vine.call, verb, {"id": "a/bad"} | more).message == look.message
    assert [hit["id"] for hit in vine.call("sniff", {"terms": "quinces"})["results"]] == ["a/good"]
    scanned = vine.call("scan", {"parent_id": "_index", "recursive": True})
    assert "a/bad" not in [node["id"] for node in scanned["nodes"]]
    plant(vine, "a/more")
    assert (root / "a" / "bad.md").read_bytes() == BROKEN[name]


def test_reindex_takes_all_but_the_bad_and_twice_the_same(vine, root):
    plant(vine, "a/good")
    (root / "a" / "latin.md").write_bytes(BROKEN["latin-1"])
    (root / "a" / "yaml.md").write_bytes(BROKEN["no yaml"])
    write(root, "a/high", "id: a/high\ntype: note\ntitle: High\nsummary: S\nconfidence: high")
    (root / "a" / "out.md").symlink_to("/etc/hostname")
    (root / "far").symlink_to("/etc")
    first, second = vine.reindex(), vine.reindex()
    assert (first["nodes"], first["broken"]) == (second["nodes"], second["broken"]) == (5, 2)
    assert head(root) == git(root, "log", "-1", "--format=%H").strip()


def test_nodes_are_regular_md_files_outside_reserved_folders(vine, root):
    for id in ("_derived/x", "_assets/x", "a/_assets/x", ".obsidian/x", "a/.trash/x", "a/deep/x"):
        by_hand(root, id)
    by_hand(root, "a/UPPER")
    (root / "a" / "UPPER.md").rename(root / "a" / "UPPER.MD")
    see(vine)
    with vine.catalog.reading() as reader:
        assert [row["id"] for row in reader.all_rows()] == ["_index", "_meta/schema", "a/_index", "a/deep/x"]


# ---------------------------------------------------------------------------------------------- writing YAML

LOOKALIKES = [
    "no", "Yes", "y", "N", "on", "null", "~", "", "true", "1", "1.0", "1e5", "0x1F", "0o17", "017", "1_000",
    "1:30",
    ".inf", "-.INF", ".nan", "2026-08-01", "2026-08-01 10:00:00", "2026-08-01T10:00:00Z", "<<", "=", "+1",
    ".5", "5.",
]  # fmt: skip


@pytest.mark.parametrize("value", LOOKALIKES)
def test_a_string_that_looks_like_another_type_is_quoted(value):
    written = forest.dump_yaml({"k": value})
    assert written == f"k: '{value}'\n"
    assert yaml.safe_load(written) == {"k": value}


@pytest.mark.parametrize(
    "value",
    [
        "plain text",
        "café 日本語 😀",
        "it's",
        "a: b",
        "# no comment",
        "- x",
        "x #y",
        "[[x]]",
        "{a}",
        "*a",
        "&a",
        "!t",
        "%d",
        "@x",
        "`x`",
        "trailing ",
        " leading",
        "a\nb",
        "tab\there",
        "\u2028",
        "\ufeff",
        "\x85",
        "---",
        "...",
        "?",
    ],
)
def test_every_text_is_one_line_and_comes_back(value):
    data = render_node({"type": "note", "k": value, "list": [value]}, "b")
    block = data.decode().split("---\n")[1] if value != "---" else data.decode()
    assert len([line for line in block.split("\n") if line.startswith("k:")]) == 1
    assert parse_node(data, "x").fields == {"type": "note", "k": value, "list": [value]}


def test_unicode_is_written_raw_and_long_lines_stay_whole():
    long = "word " * 300 + "😀 end"
    assert forest.dump_yaml({"summary": long}) == f"summary: {long}\n"
    assert forest.dump_yaml({"a": {"b": [1, {"c": None}]}}) == "a:\n  b:\n  - 1\n  - c: ~\n"


def test_a_file_ends_in_one_line_feed_and_a_body_is_right_trimmed():
    assert render_node({"a": 1}, "\n \nx  \n\n \n") == b"---\na: 1\n---\n\nx\n"
    assert render_node({"a": 1}, "") == b"---\na: 1\n---\n"
    assert render_node({"a": 1}, "one\r\ntwo\rthree") == b"---\na: 1\n---\n\none\ntwo\nthree\n"


SAMPLES = {
    "garden/beds/early-blight": """\
---
id: garden/beds/early-blight
type: note
title: Early blight in bed 3
summary: How bed 3 caught early blight in July 2026 and which of 4 treatments worked. Doses are in garden/sprays.
created: '2026-07-11'
updated: '2026-07-19'
links:
- rel: discovered-shortcut
  target: garden/beds/pick-log
  confidence: 0.5
  discovered_by: agent
source: agent
---

# Early blight in bed 3
Brown rings on the lowest leaves from 9 July. Doses: [[garden/sprays|the spray sheet]].
""",
    "garden/beds/_index": """\
---
id: garden/beds/_index
type: branch
title: Beds
summary: Notes, yields and photos of the 6 vegetable beds. Tools and sprays are one level up.
created: '2026-03-02'
updated: '2026-07-19'
coverage: 3 bananas, 1 sub-branches
---

# Beds
> Notes, yields and photos of the 6 vegetable beds. Tools and sprays are one level up.

## Sub-branches
- [[garden/beds/archive/_index]] — Seasons before 2026. 0 bananas, 0 sub-branches.
## Direct bananas
- [[garden/beds/bed-3-photo]] — Photo of bed 3 on 12 July 2026 with ringed leaf spots.
- [[garden/beds/early-blight]] — How bed 3 caught early blight in July 2026 and which of 4 treatments worked. Doses are in garden/sprays.
- [[garden/beds/pick-log]] — Kilograms picked per bed and day, season 2026. Prices are not recorded.
## Cross trails
- What to spray and when → [[garden/sprays]]
""",
    "garden/beds/pick-log": """\
---
id: garden/beds/pick-log
type: dataset
title: Pick log 2026
summary: Kilograms picked per bed and day, season 2026. Prices are not recorded.
created: '2026-07-01'
updated: '2026-07-18'
source: agent
payload: pick-log.db
payload_type: sqlite
payload_hash: 5f0c3a7d91b2e846c0d4f7a8b3e15926d8c7b0a4f1e2936587ab4cde09f81723
---

# Pick log 2026
## Notes
kg is weighed after washing. Bed 0 means mixed picking.
""",
    "garden/beds/bed-3-photo": """\
---
id: garden/beds/bed-3-photo
type: media
title: bed 3 photo
summary: Photo of bed 3 on 12 July 2026 with ringed leaf spots.
created: '2026-07-12'
updated: '2026-07-12'
confidence: 0.7
source: ingest
payload: _assets/3b9e01c4-bed-3-photo.jpg
payload_type: image
payload_hash: 3b9e01c4a6d2f7850c1b9e3d4f60a7285c9d1e0b3a4f68729d5c0b1e7f2a3846
source_path: july/Bed 3 photo.jpg
source_hash: 3b9e01c4a6d2f7850c1b9e3d4f60a7285c9d1e0b3a4f68729d5c0b1e7f2a3846
source_size: 482113
source_mtime: 1783814400.25
---

# bed 3 photo
Six tomato plants; the two lowest leaves of plant 4 show dark rings.
""",
}


@pytest.mark.parametrize("id", SAMPLES)
def test_a_file_of_the_format_is_written_back_byte_for_byte(id):
    data = SAMPLES[id].encode()
    node = parse_node(data, id)
    assert render_node(forest.ordered(node.fields), node.body) == data
    shuffled = dict(sorted(node.fields.items()))
    assert render_node(forest.ordered(shuffled), node.body) == data, "a new file takes the canonical order"


def test_the_engine_renders_the_sample_index_byte_for_byte(vine, root):
    for id, data in SAMPLES.items():
        (root / id).parent.mkdir(parents=True, exist_ok=True)
        (root / f"{id}.md").write_text(data)
    by_hand(root, "garden/beds/archive/_index", title="Archive", summary="Seasons before 2026.")
    see(vine)
    stale = SAMPLES["garden/beds/_index"].replace("Photo of", "Picture of").replace("3 bananas", "9 bananas")
    (root / "garden" / "beds" / "_index.md").write_text(stale)
    vine.validate(fix=True)
    assert text(root, "garden/beds/_index") == SAMPLES["garden/beds/_index"].replace("2026-07-19", TODAY)


# -------------------------------------------------------------------------------------- headings and sections


def test_headings_stand_outside_fences():
    assert forest.outline("# T\n## A\n```\n## B\n```\n### C ##\n#### D\n   ## E\n    ## F\n##G\n##\n") == [
        "A",
        "C",
        "E",
        "",
    ]
    assert forest.outline("~~~\n## a\n```\n## b\n~~~\n## c") == ["c"]
    assert forest.outline("````\n```\n## a\n````\n## b\n```\n## c") == ["b"]
    assert forest.outline("## a\n```\n## open to the end\n~~~\n") == ["a"]


def test_a_section_runs_to_the_next_heading_of_its_level():
    body = "# T\n## A\na\n### A1\nb\n```\n## fenced\n```\n## B\nc"
    section = forest.find_section(body, "  a ")
    assert body[section.start : section.end] == "## A\na\n### A1\nb\n```\n## fenced\n```\n"
    assert forest.find_section(body, "fenced") is None


@pytest.mark.parametrize(
    "line", ["# x" + " " * 100_000 + "y", "#" * 100_000, "# " + "#" * 100_000 + "x", "`" * 100_000 + "`x"]
)
def test_headings_of_hostile_lines_take_linear_time(line):
    # quadratic time would be minutes here
    assert len(forest.headings(f"{line}\n## End")) <= 2


def test_replacing_a_section_is_exact_positional_and_whole(vine, root):
    body = "# T\n## One\nold\n### Sub\nold too\n## Two\nkept\n```\n## One\n```"
    plant(vine, "a/x", body=body)
    error = refusal("E_NOT_FOUND", graft, vine, "a/x", replace_section={"header": "on", "body": "new"})
    assert "One" in error.hint and "Two" in error.hint
    assert read(root, "a/x").body == body and commits(root) == 3
    graft(vine, "a/x", replace_section={"header": " ## oNE ", "body": "new\n"})
    assert read(root, "a/x").body == "# T\n## One\nnew\n\n## Two\nkept\n```\n## One\n```"
    assert subject(root) == "graft(a/x): replace 'One'"


def test_an_appended_section_is_no_code_even_behind_an_open_fence(vine, root):
    plant(vine, "a/x", body="# T\n```\ncode")
    graft(vine, "a/x", append_section={"header": "More", "body": "text"})
    assert forest.outline(read(root, "a/x").body) == ["More"]


@pytest.mark.parametrize("header", ["a\nb", "x\r", "a\x00b", "", "  ", "#", "x" * 201])
@pytest.mark.parametrize("key", ["replace_section", "append_section"])
def test_a_section_header_is_one_line(vine, root, header, key):
    refusal("E_SCHEMA", graft, vine, "a/_index", **{key: {"header": header, "body": "x"}})
    assert commits(root) == 2


@pytest.mark.parametrize(
    "body, start",
    [
        ("", "# T"),
        ("  \n", "# T"),
        ("text", "# T\n\ntext"),
        ("## Own", "## Own"),
        ("\n\n# Own", "# Own"),
        ("#no", "# T\n\n#no"),
        ("```\n# code\n```", "# T\n\n```"),
    ],
)
def test_a_planted_body_starts_with_a_heading(vine, root, body, start):
    plant(vine, "a/x", title="T", body=body)
    assert read(root, "a/x").body.startswith(start)


# --------------------------------------------------------------------------------------------- passport rules


def words_of(tokens: int) -> str:
    text = "internationalisation " * tokens
    while count_tokens(text.strip()) > tokens:
        text = text[:-1]
    return text.strip()


def test_a_summary_has_sixty_tokens_and_not_sixty_one_however_long(vine):
    fitting = words_of(60)
    assert count_tokens(fitting) == 60 and len(fitting) > 200
    plant(vine, "a/x", summary=fitting)
    over = fitting + " x"
    assert count_tokens(over) == 61
    assert (
        refusal("E_FRONTMATTER", plant, vine, "a/y", summary=over).message
        == "summary: 61 tokens; the limit is 60"
    )
    error = refusal("E_FRONTMATTER", graft, vine, "a/x", set_frontmatter={"summary": over})
    assert error.message == "summary: 61 tokens; the limit is 60"


@pytest.mark.parametrize(
    "summary",
    ["", "  ", "a\nb", "a\rb", "a\x1bb", "a\u2028b", " This document DESCRIBES x", "File containing y"],
)
def test_a_summary_that_is_refused(vine, root, summary):
    assert refusal("E_FRONTMATTER", plant, vine, "a/x", summary=summary).message.startswith("summary: ")
    assert refusal("E_FRONTMATTER", graft, vine, "a/_index", set_frontmatter={"summary": summary}).code
    assert commits(root) == 2 and not (root / "a" / "x.md").exists()


FORGED = "innocent\n\nstation-principal: admin"


@pytest.mark.parametrize("key", ["title", "summary"])
def test_no_field_forges_a_trailer(vine, root, key):
    refusal("E_FRONTMATTER", plant, vine, "a/x", **{key: FORGED})
    refusal("E_FRONTMATTER", graft, vine, "a/_index", set_frontmatter={key: FORGED})
    refusal("E_SCHEMA", graft, vine, "a/_index", append_section={"header": FORGED, "body": "x"})
    assert "station-principal" not in git(root, "log", "--format=%B")


@pytest.mark.parametrize(
    "field, bad",
    [
        ("title", ["", " ", "x" * 201, "a\nb"]),
        ("tags", [["x"] * 1 + [str(i) for i in range(20)], ["x" * 65], [""], ["a\nb"]]),
        ("aliases", [[str(i) for i in range(17)], ["x" * 81]]),
        ("confidence", [5, -0.1, 1.001]),
        ("source", ["robot", ""]),
        ("entity_kind", ["thing"]),
        ("payload_type", ["exe"]),
    ],
)
def test_a_bad_passport_field_is_named_first(vine, root, field, bad):
    for value in bad:
        assert refusal("E_FRONTMATTER", plant, vine, "a/x", **{field: value}).message.startswith(field)
    assert not (root / "a" / "x.md").exists()


@pytest.mark.parametrize(
    "field, bad",
    [
        ("title", 7),
        ("summary", ["x"]),
        ("tags", "x"),
        ("tags", [7]),
        ("aliases", {}),
        ("confidence", "high"),
        ("confidence", True),
        ("body", 7),
        ("links", {}),
        ("links", ["x"]),
        ("source", 1),
        ("content", "cached"),
        ("source_path", "x"),
        ("source_hash", "0" * 64),
    ],
)
def test_a_wrong_type_or_an_ingest_key_is_named(vine, field, bad):
    assert field in refusal("E_SCHEMA", plant, vine, "a/x", **{field: bad}).message


@pytest.mark.parametrize("field", ["id", "type", "title", "summary", "parent"])
def test_a_missing_field_is_named(vine, field):
    node = seed("a/x")
    del node[field]
    assert field in refusal("E_SCHEMA", vine.call, "plant", {"node": node}).message
    assert field in refusal("E_SCHEMA", vine.call, "plant", {"node": node | {field: None}}).message


def test_an_entity_needs_its_kind(vine):
    refusal("E_SCHEMA", plant, vine, "a/x", type="entity")
    plant(vine, "a/x", type="entity", entity_kind="place")


def test_a_plant_writes_the_passport_in_order(vine, root):
    plant(
        vine,
        "a/x",
        mine={"k": [1]},
        confidence=1.0,
        aliases=["b", "b"],
        tags=[],
        created="1999-01-01",
        coverage="x",
        links=[
            {"target": "_index", "rel": "part-of", "note": "kept"},
            {"rel": "part-of", "target": "_index"},
        ],
    )
    fields = read(root, "a/x").fields
    assert list(fields) == [
        "id",
        "type",
        "title",
        "summary",
        "created",
        "updated",
        "aliases",
        "links",
        "source",
        "mine",
    ]
    assert (fields["created"], fields["aliases"], fields["source"]) == (TODAY, ["b"], "agent")
    assert fields["links"] == [{"target": "_index", "rel": "part-of", "note": "kept"}]


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 2**80, -0.0, "x" * 100_000, [[[[]]]], {"": None}, "\x00\x85"]
)
def test_free_keys_keep_any_value(vine, root, value):
    plant(vine, "a/x", mine=value)
    assert repr(read(root, "a/x").fields["mine"]) == repr(value)


def test_a_free_value_that_could_not_be_read_again_is_refused(vine, root):
    deep: list = []
    for _ in range(300):
        deep = [deep]
    refusal("E_SCHEMA", plant, vine, "a/x", mine=deep)
    refusal("E_SCHEMA", plant, vine, "a/y", mine="x" * 300_000)
    refusal("E_SCHEMA", plant, vine, "a/z", mine=list(range(100_001)))
    assert commits(root) == 2


@pytest.mark.parametrize(
    "payload",
    [
        "../x.db",
        "/etc/x",
        "_derived/catalog.db",
        "file:///x",
        "a/b",
        "a\\b",
        ".x",
        "x.md",
        "x\n",
        "",
        "x" * 256,
        "absent",
    ],
)
def test_a_payload_is_a_file_beside_the_node(vine, root, payload):
    refusal("E_SCHEMA", plant, vine, "a/x", payload=payload)
    assert not (root / "a" / "x.md").exists()


def test_a_payload_gets_its_hash_and_one_owner(vine, root):
    (root / "a" / "pic.png").write_bytes(b"png")
    digest = "2a43f1d56ff4c3b8a4d4ba36a0b4d2bbab9fce4c2c2c0d5c5e7b4a1f6a1c0d1e"
    refusal("E_SCHEMA", plant, vine, "a/x", type="media", payload="pic.png", payload_hash=digest)
    refusal("E_SCHEMA", plant, vine, "a/x", payload_hash=digest)
    plant(vine, "a/x", type="media", payload="pic.png", payload_type="image")
    assert len(read(root, "a/x").fields["payload_hash"]) == 64
    refusal("E_SCHEMA", plant, vine, "a/y", type="media", payload="pic.png")
    (root / "a" / "link.png").symlink_to("/etc/hostname")
    refusal("E_SCHEMA", plant, vine, "a/y", type="media", payload="link.png")
    assert git(root, "ls-files", "a").split() == ["a/_index.md", "a/x.md"]


@pytest.mark.parametrize(
    "payload", ["../x.db", "/etc/hostname", "_derived/catalog.db", "file:///etc/hostname"]
)
def test_a_payload_by_hand_opens_nothing_outside(vine, root, payload):
    by_hand(root, "a/x", type="media", payload=payload, payload_type="image")
    see(vine)
    assert vine.call("look", {"id": "a/x"})["id"] == "a/x"
    refusal("E_SCHEMA" if "://" in payload else "E_NOT_FOUND", vine.call, "view", {"id": "a/x"})
    assert ("payload-unsafe" in codes(vine.validate(), "a/x")) == ("://" not in payload)


def test_a_body_of_one_long_run_is_planted(vine, root):
    plant(vine, "a/x", body="a" * 999_000)
    assert len(read(root, "a/x").body) > 999_000
    refusal("E_SCHEMA", plant, vine, "a/y", body="a" * 1_000_001)


def test_special_tokens_count_as_plain_text():
    assert count_tokens("<|endoftext|>") > 1 and forest.clip("<|endoftext|> " * 50, 5).endswith("…")


# ------------------------------------------------------------------------------------------ links and dialect


def test_links_are_checked(vine, root):
    plant(vine, "a/x")
    for links, code in [
        ([{"rel": "related-to", "target": "a/none"}], "E_NOT_FOUND"),
        ([{"rel": "contains", "target": "a/x"}], "E_SCHEMA"),
        ([{"rel": "likes", "target": "a/x"}], "E_SCHEMA"),
        ([{"rel": "related-to", "target": "a/y"}], "E_SCHEMA"),
        ([{"rel": "related-to", "target": "a/x", "confidence": 5}], "E_FRONTMATTER"),
        ([{"rel": "related-to"}], "E_SCHEMA"),
        ([{"rel": "related-to", "target": f"a/{i}"} for i in range(51)], "E_SCHEMA"),
    ]:
        refusal(code, plant, vine, "a/y", links=links)
        refusal(
            code,
            vine.call,
            "graft",
            {
                "id": "a/x",
                "patch": {
                    "add_links": [
                        link
                        | (
                            {"target": "a/x"}
                            if link.get("target") == "a/y"
                            else {"target": "_index"}
                            if link.get("target") == "a/x"
                            else {}
                        )
                        for link in links
                    ]
                },
            },
        )
    assert commits(root) == 3
    error = refusal("E_NOT_FOUND", plant, vine, "a/y", links=[{"rel": "related-to", "target": "a/none"}])
    assert error.message == "node not found: a/none"


def test_a_grafted_shortcut_is_a_proposal(vine, root):
    plant(vine, "a/x")
    graft(vine, "a/x", add_links=[{"rel": "discovered-shortcut", "target": "_index"}])
    assert read(root, "a/x").links == [
        {"rel": "discovered-shortcut", "target": "_index", "confidence": 0.5, "discovered_by": "agent"}
    ]
    assert subject(root) == "graft(a/x): +1 links"


def test_an_edge_shows_at_its_target_under_the_inverse_name(vine):
    plant(vine, "a/x", links=[{"rel": "part-of", "target": "a/_index"}])
    plant(vine, "a/y", links=[{"rel": "discovered-shortcut", "target": "a/x"}])
    rels = {edge["rel"] for edge in vine.call("move", {"id": "a/_index", "direction": "in"})["neighbors"]}
    assert rels == {"contains"}
    assert [e["rel"] for e in vine.call("move", {"id": "a/x", "direction": "in"})["neighbors"]] == [
        "discovered-shortcut"
    ]


DIALECT = """\
## Knowledge types
| type | meaning |
| --- | --- |
| `memo` | a memo |
| `type` | the head again |
| `two words` | bad |
| plain | no token |
| `one` or `two` | no single token |
```
| `fenced` | no row |
```
## Our Relations
| `rel` | inverse |
| `feeds` | `fed-by` |
| `near` | — |
| `far` | - |
| `alone` |
"""


def test_the_dialect_is_read_from_table_rows():
    dialect = forest.parse_dialect(DIALECT)
    assert dialect.types == ("branch", "memo")
    assert dialect.edges == {"feeds": "fed-by", "near": "", "far": "", "alone": ""}
    assert (dialect.shown_inverse("feeds"), dialect.shown_inverse("near")) == ("fed-by", "near")
    assert len(dialect.problems) == 1 and "two words" in dialect.problems[0]


def test_a_kind_without_rows_keeps_the_built_in_set():
    assert forest.parse_dialect("## Relationships\n| `memo` | x |").edges == forest.EDGE_TYPES
    assert forest.parse_dialect("## Relationships\n| `memo` | x |").types == ("branch", "memo")
    assert forest.parse_dialect("## edge-types\n| `feeds` | x |").types == tuple(forest.NODE_TYPES)


def test_a_type_that_is_grafted_in_counts_at_once(vine, root):
    assert "note" in refusal("E_SCHEMA", plant, vine, "a/x", type="memo").hint
    rows = "| type | meaning |\n| --- | --- |\n| `note` | n |\n| `memo` | m |"
    graft(vine, "_meta/schema", replace_section={"header": "Node types (type)", "body": rows})
    plant(vine, "a/x", type="memo")
    refusal("E_SCHEMA", plant, vine, "a/y", type="document")
    plant(vine, "b/_index")


def test_an_unreadable_dialect_keeps_the_last_good_one(vine, root):
    graft(vine, "_meta/schema", append_section={"header": "Knowledge types", "body": "| `memo` | m |"})
    plant(vine, "a/x", type="memo")
    (root / "_meta" / "schema.md").write_bytes(b"\xff")
    see(vine)
    plant(vine, "a/y", type="memo")
    assert codes(vine.validate(), "_meta/schema") == ["bad-encoding", "uncommitted"]


def test_nothing_is_planted_under_meta(vine):
    refusal("E_SCHEMA", plant, vine, "_meta/other", parent="_index")


# ---------------------------------------------------------------------------------------------- index files


def test_one_commit_holds_the_node_its_parent_and_the_grandparents_entry(vine, root):
    plant(vine, "a/b/_index", summary="All of b.")
    before = commits(root)
    answer = plant(vine, "a/b/x", summary="An x  with   blanks and [[a wikilink]].")
    assert commits(root) == before + 1 and answer["commit"] == head(root)
    assert git(root, "show", "--name-only", "--format=").split() == [
        "a/_index.md",
        "a/b/_index.md",
        "a/b/x.md",
    ]
    assert entries(root, "a/b/_index", "Direct bananas") == [
        "- [[a/b/x]] — An x with blanks and \\[\\[a wikilink]]."
    ]
    assert entries(root, "a/_index", "Sub-branches") == [
        "- [[a/b/_index]] — All of b. 1 bananas, 0 sub-branches."
    ]
    assert read(root, "a/b/_index").fields["coverage"] == "1 bananas, 0 sub-branches"
    assert_whole(root, vine)


def test_entries_are_sorted_by_code_points_and_independent_of_history(vine, root, tmp_path):
    names = ["b", "B2", "a10", "a9", "é", "Z", "日本", "a-b", "a.b", "a_b"]
    for name in names:
        plant(vine, f"a/{name}", summary="Same.")
    ids = [id for id, _ in forest.index_lines(read(root, "a/_index").body, "Direct bananas")]
    assert ids == sorted(f"a/{name}" for name in names)
    other = grow(tmp_path / "other")
    with Vine(other) as second:
        for name in reversed(names):
            plant(second, f"a/{name}", summary="Same.")
    assert text(other, "a/_index") == text(root, "a/_index")


def test_human_text_of_an_index_is_kept_byte_for_byte(vine, root):
    body = (
        "Intro   by hand.\n\n# A\n> All of a.\n\n"
        "## Sub-branches\n\nkept one\n- [[gone/_index]] — stray\n* kept two\n"
        "## Cross trails\n- Why → [[_index]]\n\n\nfree  text\n"
        "## Direct bananas\n```\n- [[in/a/fence]]\n```\n## Own\n\tends here"
    )
    by_hand(root, "a/_index", body, summary="All of a.", title="A")
    plant(vine, "a/x", summary="X.")
    assert read(root, "a/_index").body == (
        "Intro   by hand.\n\n# A\n> All of a.\n\n## Sub-branches\nkept one\n* kept two\n"
        "## Cross trails\n- Why → [[_index]]\n\n\nfree  text\n## Direct bananas\n```\n- [[in/a/fence]]\n```\n"
        "- [[a/x]] — X.\n## Own\n\tends here"
    )


def test_missing_sections_come_back_at_the_end_even_behind_an_open_fence(vine, root):
    by_hand(root, "a/_index", "# A\n> All of a.\n```\nopen", summary="All of a.", title="A")
    plant(vine, "a/x", summary="X.")
    assert read(root, "a/_index").body == (
        "# A\n> All of a.\n```\nopen\n```\n\n## Sub-branches\n## Direct bananas\n- [[a/x]] — X."
    )
    plant(vine, "c/_index", body="# C\n~~~\nopen")
    assert forest.outline(read(root, "c/_index").body) == ["Sub-branches", "Direct bananas", "Cross trails"]


def test_a_planted_branch_gets_the_parts_it_lacks(vine, root):
    plant(vine, "b/_index", title="B", summary="All b.", body="## Cross trails\n- Why → [[a/_index]]")
    assert read(root, "b/_index").body.startswith("# B\n> All b.\n\n## Cross trails\n- Why → [[a/_index]]")
    assert forest.outline(read(root, "b/_index").body) == ["Cross trails", "Sub-branches", "Direct bananas"]


def test_title_and_summary_of_a_branch_reach_face_and_parent(vine, root):
    graft(vine, "a/_index", set_frontmatter={"title": "New A", "summary": "New of a."})
    assert read(root, "a/_index").body.startswith("# New A\n> New of a.\n")
    assert entries(root, "_index", "Sub-branches") == [
        "- [[a/_index]] — New of a. 0 bananas, 0 sub-branches."
    ]
    by_hand(
        root,
        "a/_index",
        "# Mine\n> Mine too.\n\n## Sub-branches\n## Direct bananas\n",
        title="New A",
        summary="New of a.",
    )
    graft(vine, "a/_index", set_frontmatter={"title": "Newer", "summary": "Newer of a."})
    assert read(root, "a/_index").body.startswith("# Mine\n> Mine too.\n")


def test_a_landmarks_line_follows_a_grafted_summary(vine, root):
    plant(vine, "a/x", summary="Old.")
    path = root / "_index.md"
    path.write_text(path.read_text().replace("## Landmarks", "## Landmarks\n- [[a/x]] — Old."))
    before = commits(root)
    graft(vine, "a/x", set_frontmatter={"summary": "New [[y]]."})
    assert entries(root, "_index", "Landmarks") == ["- [[a/x]] — New \\[\\[y]]."]
    assert commits(root) == before + 1
    assert_whole(root, vine)


@pytest.mark.parametrize(
    "patch",
    [
        {"replace_body": "x"},
        {"replace_section": {"header": "direct BANANAS", "body": "x"}},
        {"append_section": {"header": "Sub-branches", "body": "x"}},
        {"replace_section": {"header": "Landmarks", "body": "x"}},
    ],
)
def test_engine_sections_of_an_index_are_not_grafted(vine, root, patch):
    refusal("E_SCHEMA", graft, vine, "_index", **patch)
    assert commits(root) == 2


def test_other_sections_of_an_index_are_grafted(vine, root):
    graft(vine, "a/_index", replace_section={"header": "Cross trails", "body": "- Up → [[_index]]"})
    graft(vine, "a/_index", append_section={"header": "Own", "body": "mine"})
    plant(vine, "a/x")
    assert "- Up → [[_index]]\n\n## Own\nmine" in text(root, "a/_index")
    assert_whole(root, vine)


def test_a_child_added_or_removed_by_hand_is_listed_with_the_branchs_next_write(vine, root):
    plant(vine, "a/x")
    by_hand(root, "a/hand", summary="By hand.")
    (root / "a" / "x.md").unlink()
    see(vine)
    assert [n["id"] for n in vine.call("scan", {"parent_id": "a/_index"})["nodes"]] == ["a/hand"]
    assert "a/hand" not in text(root, "a/_index")
    plant(vine, "a/y")
    assert [id for id, _ in forest.index_lines(read(root, "a/_index").body, "Direct bananas")] == [
        "a/hand",
        "a/y",
    ]


# ---------------------------------------------------------------------------------------------- commits


def test_subjects_tell_what_was_done(vine, root):
    plant(vine, "a/x", title="An  X", body="# X\n## One\n1")
    assert subject(root) == "plant(a/x): An X [source=agent]"
    link = {"rel": "related-to", "target": "_index"}
    graft(
        vine,
        "a/x",
        set_frontmatter={"title": "Y", "tags": ["t"], "confidence": 0.5},
        add_links=[link, {"rel": "part-of", "target": "a/_index"}],
        replace_section={"header": "one", "body": "2"},
        append_section={"header": "Two", "body": "3"},
    )
    assert subject(root) == "graft(a/x): set confidence,tags,title; +2 links; replace 'One'; append 'Two'"
    graft(
        vine,
        "a/x",
        replace_body="# X\nthree words here",
        remove_links=[link, {"rel": "author", "target": "_index"}],
    )
    assert subject(root) == "graft(a/x): -1 links; replace body (5 words)"


def test_a_batch_names_its_ids_and_a_principal_comes_last(vine, root):
    with vine.writing("adopt", principal="ann") as tx:
        for name in "xy":
            tx.put(
                f"a/{name}",
                {"type": "note", "title": name, "summary": f"{name}.", "source": "ingest"},
                f"# {name}",
            )
        sha = tx.commit("plant(batch): 2 nodes", ["a/x", "a/y"])
    assert (
        git(root, "log", "-1", "--format=%B").strip()
        == "plant(batch): 2 nodes\n\na/x\na/y\n\nstation-principal: ann"
    )
    assert sha == head(root) and commits(root) == 3
    vine.call("graft", {"id": "a/x", "patch": {"set_frontmatter": {"title": "Z"}}}, principal="bob")
    assert git(root, "log", "-1", "--format=%B").strip() == "graft(a/x): set title\n\nstation-principal: bob"
    assert_whole(root, vine)


def test_a_commit_holds_nodes_only(vine, root):
    (root / "a" / "pic.png").write_bytes(b"x")
    (root / "a" / "table.db").write_bytes(b"x")
    plant(vine, "a/x", type="media", payload="pic.png", payload_type="image")
    assert git(root, "show", "--name-only", "--format=").split() == ["_index.md", "a/_index.md", "a/x.md"]
    assert status(root) == "?? a/pic.png\n"


# ---------------------------------------------------------------------------------------------- graft


@pytest.mark.parametrize(
    "patch",
    [
        {"set_frontmatter": {"title": "Title of x"}},
        {"set_frontmatter": {"confidence": 1, "tags": [], "aliases": None}},
        {"remove_links": [{"rel": "part-of", "target": "_index"}]},
        {
            "add_links": [{"rel": "part-of", "target": "_index"}],
            "remove_links": [{"rel": "part-of", "target": "_index"}],
        },
        {"replace_body": "# Title of x\n\nBody\n\n"},
        {"replace_section": {"header": "Title of x", "body": "\nBody"}},
    ],
)
def test_a_graft_that_changes_nothing_makes_no_commit(vine, root, patch):
    plant(vine, "a/x", body="Body")
    data = (root / "a" / "x.md").read_bytes().replace(TODAY.encode(), b"2020-01-01")
    (root / "a" / "x.md").write_bytes(data)
    git(root, "commit", "-qam", "older")
    before = head(root)
    answer = vine.call("graft", {"id": "a/x", "patch": patch})
    if "replace_section" in patch:  # the blank line below the heading goes: that is a change, once
        assert answer["commit"] == head(root)
        answer, before = vine.call("graft", {"id": "a/x", "patch": patch}), head(root)
    else:
        assert (root / "a" / "x.md").read_bytes() == data
    assert answer["commit"] is None and head(root) == before and status(root) == ""


@pytest.mark.parametrize(
    "field",
    [
        "id",
        "type",
        "created",
        "updated",
        "source",
        "coverage",
        "payload",
        "payload_hash",
        "links",
        "mine",
        "source_path",
    ],
)
def test_a_field_that_graft_may_not_set(vine, root, field):
    refusal("E_READONLY", graft, vine, "a/_index", set_frontmatter={field: "x"})
    assert commits(root) == 2


def test_a_fault_on_disk_does_not_block_a_graft_elsewhere(vine, root):
    block = "id: other\ntype: odd\ntitle: T\nsummary: File containing words\ncreated: never\n"
    block += "confidence: high\ntags: 7\nentity_kind: 5"
    write(root, "a/x", block)
    see(vine)
    graft(vine, "a/x", set_frontmatter={"title": "Fine"})
    fields = read(root, "a/x").fields
    assert (fields["title"], fields["confidence"], fields["tags"], fields["type"]) == (
        "Fine",
        "high",
        ["7"],
        "odd",
    )
    assert (fields["summary"], fields["created"]) == ("File containing words", "never")


def test_graft_is_all_or_nothing(vine, root):
    plant(vine, "a/x")
    before = text(root, "a/x")
    patch = {"set_frontmatter": {"title": "New"}, "add_links": [{"rel": "related-to", "target": "none"}]}
    refusal("E_NOT_FOUND", vine.call, "graft", {"id": "a/x", "patch": patch})
    patch = {"set_frontmatter": {"title": "New"}, "replace_section": {"header": "none", "body": ""}}
    refusal("E_NOT_FOUND", vine.call, "graft", {"id": "a/x", "patch": patch})
    assert text(root, "a/x") == before and commits(root) == 3


def test_of_two_grafts_with_one_expect_one_is_refused(vine, root):
    plant(vine, "a/x")
    version = vine.call("look", {"id": "a/x"})["version"]
    first = vine.call("graft", {"id": "a/x", "patch": {"set_frontmatter": {"title": "1"}}, "expect": version})
    error = refusal(
        "E_LOCKED",
        vine.call,
        "graft",
        {"id": "a/x", "patch": {"set_frontmatter": {"title": "2"}}, "expect": version},
    )
    assert vine.call("look", {"id": "a/x"})["version"] in error.hint
    vine.call("graft", {"id": "a/x", "patch": {"set_frontmatter": {"title": "3"}}, "expect": first["commit"]})
    refusal(
        "E_LOCKED",
        vine.call,
        "graft",
        {"id": "a/x", "patch": {"set_frontmatter": {"title": "4"}}, "expect": first["commit"]},
    )
    assert read(root, "a/x").title == "3"


def test_births_below_do_not_move_the_version_of_a_branch(vine):
    before = vine.call("look", {"id": "a/_index"})["version"]
    plant(vine, "a/x")
    assert vine.call("look", {"id": "a/_index"})["version"] == before
    graft(vine, "a/_index", append_section={"header": "Own", "body": "x"})
    assert vine.call("look", {"id": "a/_index"})["version"] != before


def test_a_readonly_engine_refuses_every_write_first(root):
    with Vine(root, readonly=True) as vine:
        refusal("E_READONLY", plant, vine, "A B")
        refusal("E_READONLY", graft, vine, "none", nonsense=1)
        assert vine.call("look", {"id": "a/_index"})["id"] == "a/_index"
    assert commits(root) == 2


# ---------------------------------------------------------------------------------------------- lint


def hand(id: str, body: str = "# Body\n", /, **fields):
    return lambda root: by_hand(root, id, body, **fields)


def raw(name: str, data: bytes):
    def put(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)

    return put


def edit(id: str, old: str, new: str):
    def change(root: Path) -> None:
        assert old in text(root, id)
        (root / f"{id}.md").write_text(text(root, id).replace(old, new))

    return change


def both(*steps):
    return lambda root: [step(root) for step in steps]


LINKS = [{"rel": "related-to", "target": "a/good", "n": n} for n in range(51)]
PIC = raw("a/pic.png", b"x")
PROVOKED = {
    "bad-encoding": ("a/x", "error", raw("a/x.md", b"---\ntitle: \xe9\n---\n")),
    "bad-frontmatter": ("a/x", "error", raw("a/x.md", b"---\ntitle: [\n---\n")),
    "missing-field": ("a/x", "error", hand("a/x", created=None)),
    "bad-field": ("a/x", "error", hand("a/x", confidence="high")),
    "unknown-type": ("a/x", "error", hand("a/x", type="memo")),
    "unknown-rel": ("a/x", "error", hand("a/x", links=[{"rel": "contains", "target": "a/good"}])),
    "too-many-links": ("a/x", "error", hand("a/x", links=LINKS)),
    "bad-link": ("a/x", "error", hand("a/x", links=[{"rel": "related-to", "target": "a/x"}])),
    "broken-link": ("a/x", "error", hand("a/x", links=[{"rel": "related-to", "target": "a/none"}])),
    "id-mismatch": ("a/x", "error", hand("a/x", id="a/y")),
    "branch-mismatch": ("a/x", "error", hand("a/x", type="branch")),
    "case-twin": ("a/GOOD", "error", hand("a/GOOD")),
    "symlink": ("a/x", "error", lambda root: (root / "a" / "x.md").symlink_to("good.md")),
    "payload-missing": ("a/x", "error", hand("a/x", type="media", payload="none.png")),
    "payload-unsafe": ("a/x", "error", hand("a/x", type="media", payload="../x.png")),
    "payload-shared": ("a/x", "error", both(PIC, *(hand(id, payload="pic.png") for id in ("a/x", "a/y")))),
    "no-frontmatter": ("a/README", "warning", raw("a/README.md", b"# Read me\n")),
    "bad-id": ("a/x y", "warning", hand("a/x y")),
    "bad-summary": ("a/x", "warning", hand("a/x", summary="File containing words.")),
    "broken-wikilink": ("a/x", "warning", hand("a/x", "# B\n[[a/none|text]]\n")),
    "payload-drift": ("a/x", "warning", both(PIC, hand("a/x", payload="pic.png", payload_hash="0" * 64))),
    "duplicate-key": ("a/good", "warning", edit("a/good", "title:", "title: First\ntitle:")),
    "duplicate-section": ("a/x", "warning", hand("a/x", "# B\n## One\n## one\n")),
    "missing-index": ("b/_index", "warning", hand("b/x")),
    "index-missing": ("a/_index", "warning", hand("a/x")),
    "index-stray": ("a/_index", "warning", lambda root: (root / "a" / "good.md").unlink()),
    "index-stale": ("a/_index", "warning", edit("a/_index", "— Summary of good.", "— Other.")),
    "coverage-drift": ("a/_index", "warning", edit("a/_index", "coverage: 1 b", "coverage: 9 b")),
    "bad-dialect": ("_meta/schema", "warning", edit("_meta/schema", "| `note`", "| `a b` | x |\n| `note`")),
    "bad-config": ("_meta/ranger.yaml", "warning", raw("_meta/ranger.yaml", b"half_life_days: soon\n")),
    "uncommitted": ("a/good", "warning", edit("a/good", "Body", "Other body")),
}  # fmt: skip


@pytest.mark.parametrize("code", PROVOKED)
def test_lint_finds(vine, root, code):
    plant(vine, "a/good", body="Body")
    id, level, provoke = PROVOKED[code]
    assert vine.validate() == {"errors": 0, "warnings": 0, "issues": []}
    provoke(root)
    before = {p: p.read_bytes() for p in root.rglob("*.md") if not p.is_symlink()}
    report = vine.validate()
    issue = next(issue for issue in report["issues"] if (issue["id"], issue["code"]) == (id, code))
    assert issue["level"] == level and issue["message"]
    assert issue["path"] == (id if id.endswith(".yaml") else f"{id}.md")
    assert report["issues"] == sorted(report["issues"], key=lambda i: (i["id"], i["code"], i["message"]))
    levels = [issue["level"] for issue in report["issues"]]
    assert (levels.count("error"), levels.count("warning")) == (report["errors"], report["warnings"])
    assert {p: p.read_bytes() for p in root.rglob("*.md") if not p.is_symlink()} == before


@pytest.mark.parametrize(
    "link",
    [
        "x",
        {"rel": "related-to"},
        {"target": "a/good"},
        {"rel": "related-to", "target": "a/good", "confidence": "high"},
        {"rel": "related-to", "target": "a/good", "confidence": 1.5},
        {"rel": ["x"], "target": "a/good"},
    ],
)
def test_lint_finds_every_kind_of_bad_link(vine, root, link):
    plant(vine, "a/good")
    by_hand(root, "a/x", links=[link])
    assert "bad-link" in codes(vine.validate(), "a/x")


def test_lint_leaves_alone_what_is_fine(vine, root):
    plant(vine, "a/good")
    plant(vine, "a/z")
    body = "# A\n> All of a.\n\n## Sub-branches\n## Direct bananas\n"
    body += "- [[a/z]] — Summary of z.\n- [[a/good]] — Summary of good.\n"
    by_hand(
        root,
        "a/_index",
        body + "## Cross trails\n[[a/good#part|text]] \\[[no]] ```[[`` \n```\n[[none]]\n```\n",
        title="A",
        summary="All of a.",
    )
    write(root, "b/_index", "id: b/_index\ntype: branch", "# B\n")
    edit("_index", "0 sub-branches.", "0 sub-branches.\n- [[b/_index]] —")(root)
    (root / "_meta" / "notes.md").write_text("---\nanything: goes\n---\n")
    assert set(codes(vine.validate())) <= {"uncommitted", "coverage-drift", "index-stale"}
    assert codes(vine.validate(), "a/_index") == ["uncommitted"]
    assert codes(vine.validate(), "b/_index") == ["uncommitted"]
    assert codes(vine.validate(), "_meta/notes") == ["uncommitted"]


def test_lint_reports_every_problem_of_every_file(vine, root):
    for code in ("bad-encoding", "bad-id", "missing-index"):
        PROVOKED[code][2](root)
    by_hand(
        root,
        "a/y",
        "# B\n[[none]]\n## a\n## a\n",
        id="q",
        confidence=7,
        type="memo",
        links=[{"rel": "likes", "target": "none"}],
    )
    found = {(issue["id"], issue["code"]) for issue in vine.validate()["issues"]}
    assert {("a/x", "bad-encoding"), ("a/x y", "bad-id"), ("b/_index", "missing-index")} <= found
    wanted = "id-mismatch bad-field unknown-type broken-link unknown-rel broken-wikilink duplicate-section"
    assert {("a/y", code) for code in wanted.split()} <= found


def test_validate_as_a_command(root):
    def run(*flags: str) -> subprocess.CompletedProcess:
        command = [sys.executable, REPO / "cli.py", "--forest", root, "validate", *flags]
        return subprocess.run(command, capture_output=True, text=True)

    assert (run().returncode, run().stdout) == (0, "0 error(s), 0 warning(s)\n")
    by_hand(root, "a/x")
    assert run().returncode == 0 and run("--strict").returncode == 1
    assert run().stdout == (
        "[warning] _index: the entry of a/_index is out of date (index-stale)\n"
        "[warning] a/_index: coverage says 0 bananas, 0 sub-branches; it is 1 bananas, 0 sub-branches "
        "(coverage-drift)\n"
        "[warning] a/_index: a/x has no entry (index-missing)\n"
        "[warning] a/x: differs from the last commit (uncommitted)\n\n0 error(s), 4 warning(s)\n"
    )
    (root / "a" / "x.md").write_bytes(b"\xff")
    assert run().returncode == 1
    assert json.loads(run("--json").stdout)["errors"] == 1


# ---------------------------------------------------------------------------------------------- repair


def test_fix_rewrites_drifted_branches_in_one_commit(vine, root):
    plant(vine, "b/_index", summary="All b.")
    plant(vine, "b/c/_index", summary="All c.")
    by_hand(root, "b/c/new", summary="New one.")
    by_hand(root, "a/x", summary="Other.")
    git(root, "add", ".")
    git(root, "commit", "-qm", "by hand")
    before = commits(root)
    report = vine.validate(fix=True)
    assert report["issues"] == [] and commits(root) == before + 1
    assert subject(root) == "vine(fix): 4 index file(s)"
    assert entries(root, "b/c/_index", "Direct bananas") == ["- [[b/c/new]] — New one."]
    assert entries(root, "b/_index", "Sub-branches") == [
        "- [[b/c/_index]] — All c. 1 bananas, 0 sub-branches."
    ]
    assert_whole(root, vine)
    assert vine.validate(fix=True)["issues"] == [] and commits(root) == before + 1


def test_fix_touches_no_index_that_lint_finds_fine(vine, root):
    plant(vine, "a/x", summary="X.")
    edit("a/_index", "## Direct bananas\n", "## Direct bananas\n\n")(root)
    git(root, "commit", "-qam", "a blank line by hand")
    before = head(root)
    assert vine.validate(fix=True)["issues"] == [] and head(root) == before


def test_fix_passes_over_broken_and_other_files(vine, root):
    by_hand(root, "a/x")
    (root / "a" / "bad.md").write_bytes(b"\xff")
    data = text(root, "a/x")
    report = vine.validate(fix=True)
    assert set(codes(report)) == {"bad-encoding", "uncommitted"} and text(root, "a/x") == data
