"""Properties of the forest format that hold for any input: ids, frontmatter, sections, index rendering."""

import math
import unicodedata

import pytest
import yaml
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import forest
from forest import VineError, parse_node, render_node

FEW = settings(max_examples=60, deadline=None)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
LINE = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=40)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4)
)
FREE_KEYS = TEXT.filter(lambda key: key not in forest.KEY_ORDER)
TYPED_TEXT = LINE | st.sampled_from(["no", "Null", "~", "2026-01-01", "1_000", ".INF", "0o7", "y", "<<"])
FIELDS = st.fixed_dictionaries(
    {},
    optional={key: TYPED_TEXT for key in ("id", "type", "title", "summary", "created", "source")}
    | {"tags": st.lists(TYPED_TEXT, max_size=3)}
    | {
        "links": st.lists(
            st.fixed_dictionaries({"rel": TYPED_TEXT, "target": TYPED_TEXT}, optional={"n": VALUES}),
            max_size=2,
        )
    },
)
MARKS = [
    "# ",
    "## ",
    "### ",
    "#",
    "```",
    "~~~",
    "````",
    "    ## ",
    "- [[",
    "]] — x",
    "> ",
    "A",
    " b",
    "\n",
    "\n\n",
    "\t",
    "ü",
]
MARKDOWN = st.lists(
    st.sampled_from(MARKS + ["## Sub-branches\n", "## Direct bananas\n", "## Landmarks\n"]), max_size=30
).map("".join)
SEGMENT = st.from_regex(r"[a-zé日0-9][a-zé日0-9._-]{0,8}[a-z0-9]", fullmatch=True).filter(
    lambda s: not s.endswith(".md") and unicodedata.normalize("NFC", s) == s
)
IDS = st.lists(SEGMENT, min_size=1, max_size=8).map("/".join)

# ---------------------------------------------------------------------------------------------- ids


@FEW
@given(IDS, st.booleans())
def test_ids_by_the_grammar_are_accepted(id, branch):
    id = f"{id}/_index" if branch and id.count("/") < 7 else id
    assert forest.check_id(id) == id
    parent = forest.parent_of(id)
    assert forest.is_branch_id(parent) and forest.check_id(parent) == parent
    assert forest.ancestors(id)[-1] == parent and forest.ancestors(id)[0] == "_index"
    assert len(set(forest.ancestors(id))) == len(forest.ancestors(id))


@FEW
@given(
    TEXT
    | st.lists(st.sampled_from(["a", "/", ".", "..", "_index", ".md", " ", "\n", "[[", "é", "e\u0301"])).map(
        "".join
    )
)
def test_an_accepted_id_is_a_safe_path(id):
    try:
        forest.check_id(id)
    except VineError as error:
        assert error.code == "E_SCHEMA" and error.message.isprintable()
        return
    parts = id.split("/")
    assert all(part and part[0] not in "." and len(part.encode()) <= 255 for part in parts)
    assert not set(id) & set('\\:*?"<>|[]# \t\r\n\0') and unicodedata.normalize("NFC", id) == id


@FEW
@given(TEXT)
def test_twins_are_an_equivalence(id):
    assert forest.twin_key(id) == forest.twin_key(unicodedata.normalize("NFD", id))
    if "ı" not in id and "İ" not in id:
        assert forest.twin_key(forest.twin_key(id)) == forest.twin_key(id)


# ---------------------------------------------------------------------------------------------- frontmatter


@FEW
@given(FIELDS, st.dictionaries(FREE_KEYS, VALUES, max_size=4), TEXT)
@example({"title": "null"}, {"": None}, "")
@example({}, {"k" * 2000: ""}, "---\n---")
def test_what_is_written_is_read_back(fields, free, body):
    assume(fields or free)
    data = render_node(fields | free, body)
    node = parse_node(data, "x")
    assert node.fields == fields | free and list(node.fields) == [*fields, *free]
    assert render_node(node.fields, node.body) == data
    assert data.endswith(b"\n") and not data.endswith(b"\n\n") and b"\r" not in data
    assert node.body == node.body.rstrip()
    assert not node.body or node.body.split("\n")[0].strip(" \t\f\v")


@FEW
@given(st.dictionaries(LINE.filter(bool), SCALARS, min_size=1, max_size=4))
def test_every_scalar_is_one_line_and_another_reader_agrees(values):
    written = forest.dump_yaml(values)
    assert written.count("\n") == len(values)
    read = yaml.safe_load(written)
    assert {k: v for k, v in read.items() if isinstance(v, str)} == {
        k: v for k, v in values.items() if isinstance(v, str)
    }


@FEW
@given(st.binary(max_size=200) | TEXT.map(lambda t: f"---\n{t}\n---\n".encode()))
def test_any_bytes_give_a_node_or_one_kind_of_error(data):
    try:
        node = parse_node(data, "x")
    except VineError as error:
        assert error.code == "E_FRONTMATTER" and error.fault_kind in (
            "bad-encoding",
            "no-frontmatter",
            "bad-frontmatter",
        )
        return
    assert isinstance(node.title, str) and isinstance(node.summary, str) and 0 <= node.confidence <= 1
    assert all(isinstance(tag, str) for tag in node.tags + node.aliases) and node.links == list(node.links)
    assert len(node.version) == 16


@FEW
@given(
    st.sampled_from(
        ["title", "summary", "confidence", "tags", "aliases", "links", "type", "created", "coverage"]
    ),
    VALUES,
)
def test_any_value_of_a_known_field_reads_safely_and_is_kept(key, value):
    node = parse_node(
        render_node({key: value, "type": "note"} if key != "type" else {key: value}, "# H\n> q"), "x"
    )
    assert isinstance(node.title, str) and isinstance(node.summary, str) and isinstance(node.type, str)
    assert 0 <= node.confidence <= 1 and not math.isnan(node.confidence)
    assert all(isinstance(link, dict) for link in node.links)
    again = parse_node(render_node(node.fields, node.body), "x")
    assert again.fields == node.fields or again.fields[key] != again.fields[key]


@FEW
@given(FIELDS, st.sampled_from(forest.KEY_ORDER), LINE)
def test_a_new_field_moves_no_other(fields, key, value):
    changed = forest.with_fields(fields, {key: value})
    assert [k for k in changed if k != key] == [k for k in fields if k != key]
    assert forest.with_fields(changed, {key: None}) == {k: v for k, v in fields.items() if k != key}


# ---------------------------------------------------------------------------------------------- sections


def plain_headings(body: str) -> list[tuple[int, str, int]]:
    """The rule of headings once more, line by line and as slow as it likes."""
    found, fence = [], ""
    for number, line in enumerate(body.split("\n"), 1):
        text = line.lstrip(" ")
        if len(line) - len(text) > 3:
            continue
        run = text[: len(text) - len(text.lstrip(text[0]))] if text and text[0] in "`~" else ""
        if fence:
            if run and run[0] == fence[0] and len(run) >= len(fence) and not text[len(run) :].strip():
                fence = ""
        elif len(run) >= 3 and not (run[0] == "`" and "`" in text[len(run) :]):
            fence = run
        else:
            hashes = len(text) - len(text.lstrip("#"))
            rest = text[hashes:]
            if 1 <= hashes <= 6 and (not rest or rest[0] in " \t"):
                words = rest.strip()
                bare = words.rstrip("#")
                found.append((hashes, (bare if not bare or bare[-1] in " \t" else words).strip(), number))
    return found


@FEW
@given(MARKDOWN)
def test_headings_follow_the_rule(body):
    assert [(h.level, h.text, h.line) for h in forest.headings(body)] == plain_headings(body)


@FEW
@given(MARKDOWN)
def test_sections_nest_and_cover(body):
    marks = forest.headings(body)
    for n, mark in enumerate(marks):
        assert mark.start < mark.body <= mark.end <= len(body)
        assert body[mark.start : mark.body].lstrip(" ").startswith("#" * mark.level)
        after = [other for other in marks[n + 1 :] if other.level <= mark.level]
        assert mark.end == (after[0].start if after else len(body))
    spans = forest.fence_spans(body)
    assert not any(start <= mark.start < end for mark in marks for start, end in spans)


@FEW
@given(MARKDOWN)
def test_a_closed_body_lets_text_follow(body):
    follow = forest.closed(body).rstrip() + "\n\n## Behind\n"
    assert forest.outline(follow)[-1] == "Behind" and follow.startswith(body.rstrip())


# ---------------------------------------------------------------------------------------------- index files

ENTRIES = st.dictionaries(IDS, LINE, max_size=4).map(
    lambda found: [forest.entry(id, s) for id, s in sorted(found.items())]
)


@FEW
@given(IDS, TEXT, st.none() | st.just("1 bananas, 0 sub-branches"))
def test_an_entry_is_one_line_that_names_its_id(id, summary, covers):
    line = forest.entry(id, summary, covers)
    assert "\n" not in line and forest.entry_id(line) == id and line.count("[[") == 1


@FEW
@given(MARKDOWN, ENTRIES, ENTRIES)
@example("```\nopen", ["- [[a]] — b"], [])
@example("## Direct bananas\n~~~\n- [[x]] — y", [], ["- [[a]] — b"])
def test_rendering_an_index_is_stable_and_shows_all_entries(body, branches, bananas):
    sections = {forest.SUB_BRANCHES: branches, forest.DIRECT: bananas}
    once = forest.with_entries(body, sections)
    assert forest.with_entries(once, sections) == once
    for name, lines in sections.items():
        assert [line.rstrip() for _, line in forest.index_lines(once, name)] == [
            line.rstrip() for line in lines
        ]
    empty = forest.with_entries(once, {forest.SUB_BRANCHES: [], forest.DIRECT: []})
    assert forest.human_part(once) == forest.human_part(empty), "what an index's version is made from"


@FEW
@given(MARKDOWN, LINE, LINE, st.booleans())
def test_a_branch_has_all_its_parts(body, title, summary, master):
    assume(title.strip() and summary.strip())
    made = forest.branch_body(body, title.strip(), summary.strip(), master)
    names = {mark.text for mark in forest.headings(made) if mark.level == 2}
    assert {"Sub-branches", "Direct bananas", "Cross trails"} | ({"Landmarks"} if master else set()) <= names
    assert any(mark.level == 1 for mark in forest.headings(made))
    assert forest.branch_body(made, title.strip(), summary.strip(), master) == made


@FEW
@given(MARKDOWN)
def test_any_schema_gives_a_dialect(body):
    dialect = forest.parse_dialect(body + "\n| `memo` | x |\n")
    assert "branch" in dialect.types and dialect.edges


# ---------------------------------------------------------------------------------------------- tokens


@FEW
@given(TEXT, st.integers(1, 30))
def test_a_clipped_text_fits_and_is_a_beginning(text, limit):
    cut = forest.clip(text, limit)
    assert forest.count_tokens(cut) <= limit
    assert cut == text or cut.endswith("…") and text.startswith(cut[:-1])


@pytest.mark.parametrize("piece", ["a", " ", "日", "😀", "\n", "1", "#"])
def test_a_long_run_is_counted_and_cut(piece):
    # a quadratic tokenizer would take minutes
    assert forest.count_tokens(piece * 300_000) > 1000
    assert forest.count_tokens(forest.clip(piece * 300_000, 50)) <= 50
