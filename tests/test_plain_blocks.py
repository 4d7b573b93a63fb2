"""The quick way to read a frontmatter block and the YAML parser give the same fields."""

from __future__ import annotations

import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import forest

SCALARS = st.one_of(
    st.text(st.sampled_from(string.ascii_letters + string.digits + " :#'-_.,/[]{}&*!|>%@`\"?~=éß漢\u00a0\u2028"), max_size=12),
    st.sampled_from(["no", "2026-08-01", "1_000", "0o17", "1e3", ".inf", "null", "~", "true", "'it''s'", "''", "a:", "12:30"]),
)
KEYS = st.sampled_from(["id", "title", "tags", "aliases", "links", "confidence", "free", "other_key", "created", "yes"])
LINES = st.one_of(
    st.builds("{}: {}".format, KEYS, SCALARS),
    st.builds("{}:".format, KEYS),
    st.builds("- {}".format, SCALARS),
    st.builds("- {}: {}".format, st.sampled_from(["rel", "target", "note"]), SCALARS),
    st.builds("  {}: {}".format, st.sampled_from(["rel", "target", "confidence", "note"]), SCALARS),
)


def by_yaml(block: str):
    try:
        return forest._parse_yaml_block(block)
    except forest.VineError:
        return None


@given(st.lists(LINES, min_size=1, max_size=8))
@settings(max_examples=1500, deadline=None)
@example(["tags:", "- 2026", "- 'yes'", "links:", "- rel: related-to", "  target: 1", "  confidence: 0.5"])
@example(["title: a", "title: b"])
@example(["free: x", "- y"])
@example(["title: 'a' b"])
@example(["free:", "  note: x", "  rel: 5", "- y"])
@example(["free:", "  note: x", "  target: a"])
def test_what_the_quick_way_accepts_the_parser_reads_alike(lines):
    block = "".join(line + "\n" for line in lines)
    quick = forest._parse_plain(block)
    if quick is not None:
        assert (quick, []) == by_yaml(block)


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "a/b", "type": "note", "title": "no", "summary": "It's 5 o'clock: #1 of 2", "created": "2026-01-01"},
        {"id": "a", "tags": ["x", "2026"], "links": [{"rel": "related-to", "target": "a/b", "confidence": 0.3}]},
        {"id": "a", "confidence": 0.7, "source_size": 12, "source_mtime": 1783814400.25, "free": 3, "list": [1, "1"]},
    ],
)
def test_what_the_engine_writes_takes_the_quick_way(fields):
    block = forest.dump_yaml(fields)
    assert forest._parse_plain(block) == fields


@given(
    st.dictionaries(
        st.sampled_from(["title", "summary", "tags", "aliases", "free", "created", "confidence", "source_hash"]),
        st.one_of(
            SCALARS,
            st.text(max_size=20),
            st.text("0123456789abcdefx-", max_size=16),
            st.integers(),
            st.floats(),
            st.booleans(),
            st.lists(SCALARS, max_size=3),
        ),
        min_size=1,
    )
)
@settings(max_examples=2000, deadline=None)
def test_plain_lines_are_written_as_the_yaml_writer_writes_them(fields):
    try:
        expected = forest.dump_yaml(fields)
    except UnicodeEncodeError:
        return  # half a surrogate pair, which is refused before
    assert forest.dump_fields(fields) == expected
