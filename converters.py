"""From the bytes of one file to the parts of a node: pure functions, one file at a time.

Owns: text decoding, front matter, titles, the rewriting of links inside a text, the converters of markdown
and plain text.
Must never: look at a forest, open a file or a connection, run a program, know where a document will land.

Sections: results · decoding · front matter · titles · links · converters.

Invariants
- `convert(name, data)` gives the same parts for the same arguments and day; it raises Unusable or nothing.
- No line of the source is lost: what leaves the body (front matter, a heading that became the title) is in
  the passport.
- `relink` never changes text inside code, and leaves a link as written unless the caller resolves it.
"""

from __future__ import annotations

import html
import re
import unicodedata
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Callable

import forest
from prose import CONTROLS, ITEM, LINK_TITLE, TARGET, TEXT, WIKI, fit_summary, one_line, plain, summarize

# ---------------------------------------------------------------------------------------------- results


class Unusable(Exception):
    """A file that gives no document. `code` is one of the codes of an ingest report (`encoding`, `not_text`,
    …)."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code, self.message = code, message


@dataclass
class Converted:
    """What a converter makes of one file. `body` begins with the title as H1; links in it are as written."""

    type: str
    title: str
    body: str
    summary: str
    tags: list[str] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    created: str | None = None
    updated: str | None = None
    front: dict[str, Any] = field(default_factory=dict)  # front matter that went nowhere else
    encoding: str | None = None  # None for UTF-8
    warnings: list[tuple[str, str]] = field(default_factory=list)


# ---------------------------------------------------------------------------------------------- decoding

_BOMS = (
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)


def decode(data: bytes) -> tuple[str, str | None]:
    """The text of `data`, with LF line ends and without control characters, and its encoding (None for
    UTF-8).

    Raises Unusable `not_text` for bytes with NUL that are no UTF-16, `encoding` for bytes that fit no
    encoding.
    """
    text, encoding = _decoded(data)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return CONTROLS.sub("", text), encoding


def _decoded(data: bytes) -> tuple[str, str | None]:
    for bom, name in _BOMS:
        if data.startswith(bom):
            text = _strictly(data[len(bom) :], name)
            if text is None:
                raise Unusable("encoding", f"the text breaks off its own encoding, {name}")
            return text, None if name == "utf-8" else name
    if b"\0" in data:
        return _without_bom_16(data)
    for name in ("utf-8", "cp932", "cp1252"):
        text = _strictly(data, name)
        if text is not None and (name != "cp932" or _is_japanese(text)):
            return text, {"utf-8": None, "cp932": "shift_jis", "cp1252": "windows-1252"}[name]
    raise Unusable("encoding", "the text is in none of the known encodings")


def _strictly(data: bytes, name: str) -> str | None:
    try:
        return data.decode(name)
    except UnicodeDecodeError:
        return None


def _without_bom_16(data: bytes) -> tuple[str, str]:
    """UTF-16 has its zero bytes on one side only and holds nothing that is unassigned; a binary file fails
    both. ASCII with a stray NUL is told by its few zeros among many ASCII bytes."""
    even, odd = data[::2].count(0), data[1::2].count(0)
    name = "utf-16-le" if odd and not even else "utf-16-be" if even and not odd else None
    ascii_bytes = len(data) - len(data.translate(None, bytes(range(9, 127))))
    if 4 * (even + odd) < len(data) and ascii_bytes > 0.9 * (len(data) - even - odd):
        name = None
    text = _strictly(data, name) if name else None
    if text is None or any(
        unicodedata.category(c) in ("Cn", "Co", "Cc") and c not in "\t\n\r" for c in set(text)
    ):
        raise Unusable("not_text", "the file holds NUL bytes and is no UTF-16 text")
    return text, name


def _is_japanese(text: str) -> bool:
    """Whether a text that decodes as Shift-JIS is in it. Accented letters of another encoding decode to
    single rare characters between ASCII letters; Japanese stands in runs."""
    foreign = [c for c in text if ord(c) > 127]
    known = sum(
        "\u3000" <= c <= "\u30ff" or "\u4e00" <= c <= "\u9fff" or "\uff00" <= c <= "\uff9f" for c in foreign
    )
    in_runs = sum(len(run) for run in re.findall(r"[^\x00-\x7f]{2,}", text))
    return known >= 0.9 * len(foreign) and in_runs >= 0.7 * len(foreign)


# ---------------------------------------------------------------------------------------------- front matter

MAX_FRONT = 4096  # bytes of YAML
_DATE = re.compile(r"(\d{4})[-/](\d{1,2})[-/](\d{1,2})(?:[T ].*)?\Z", re.S)


def split_front(text: str) -> tuple[dict[str, Any], str, str | None]:
    """(front matter, body, fault). A block that is no YAML mapping stays in the body and is told as the
    fault; an opening line that nothing closes is a rule of the text."""
    if not text.startswith("---"):
        return {}, text, None
    try:
        block, body = forest.split_front(text)
    except forest.VineError:
        return {}, text, None
    if not block.strip():
        return {}, body, None
    try:
        return forest.parse_node(f"---\n{block}---\n".encode("utf-8", "replace"), "front").fields, body, None
    except forest.VineError as error:
        return {}, text, error.message


def _take(front: dict[str, Any], *keys: str) -> Any:
    """The value of the first of `keys` that is there, taken out; None for a null."""
    key = next((key for key in keys if key in front), None)
    return front.pop(key) if key else None


def _as_list(value: Any) -> list[str]:
    """Strings of a list, or of one text split at commas, else at blanks."""
    if isinstance(value, str):
        value = value.split(",") if "," in value else value.split()
    items = value if isinstance(value, list) else []
    return [str(item) for item in items if isinstance(item, (str, int, float)) and not isinstance(item, bool)]


def clean_tags(values: list[str]) -> list[str]:
    """At most 20 tags: lower case, without `#`, blanks and `/` as `-`, only letters, digits, `_`, `-`."""
    tags = []
    for value in values:
        text = unicodedata.normalize("NFC", value).strip().lstrip("#").lower()
        text = re.sub(r"[\s/]+", "-", text)
        kept = "".join(c for c in text if c in "_-" or unicodedata.category(c)[0] in "LMN")
        tags.append(kept.strip("-")[:64])
    return list(dict.fromkeys(filter(None, tags)))[:20]


def _taken_date(front: dict[str, Any], keys: tuple[str, ...], earliest: str = "") -> str | None:
    """A real day up to today under the first of `keys` that is there; anything else stays in the front
    matter."""
    key = next((key for key in keys if key in front), None)
    match = _DATE.match(str(front[key]).strip()) if key else None
    if not match:
        return None
    try:
        day = date(*map(int, match.groups()))
    except ValueError:
        return None
    if day > date.today() or day.isoformat() < earliest:
        return None
    del front[key]
    return day.isoformat()


def _passport(front: dict[str, Any]) -> dict[str, Any]:
    """What the front matter says about the node; it takes the keys that it uses out of `front`."""
    title = _take(front, "title")
    summary_key = next((k for k in ("summary", "description", "abstract", "excerpt") if k in front), None)
    summary = fit_summary(front[summary_key]) if summary_key and isinstance(front[summary_key], str) else None
    if summary:
        del front[summary_key]
    aliases = _take(front, "aliases", "alias")
    aliases = [aliases] if isinstance(aliases, str) else _as_list(aliases)
    aliases = list(dict.fromkeys(filter(None, (one_line(alias, 80) for alias in aliases))))[:16]
    tags = clean_tags(_as_list(_take(front, "tags", "keywords", "categories")))
    created = _taken_date(front, ("date", "created", "published"))
    updated = _taken_date(front, ("updated", "modified", "lastmod"), created or "")
    title = one_line(str(title), 200) if isinstance(title, (str, int, float)) else ""
    return {
        "title": title,
        "summary": summary,
        "aliases": aliases,
        "tags": tags,
        "created": created,
        "updated": updated,
    }


def _fitting_front(front: dict[str, Any]) -> dict[str, Any]:
    """The keys, in order, that fit into 4 KiB of YAML."""
    kept: dict[str, Any] = {}
    room = MAX_FRONT
    for key, value in front.items():
        size = len(forest.dump_yaml({key: value}).encode())
        if size <= room:
            kept[key] = value
            room -= size
    return kept


# ---------------------------------------------------------------------------------------------- titles

_SETEXT = re.compile(r"^ {0,3}(\S[^\n]*)\n {0,3}(=+|-+)[ \t]*$", re.M)


def _first_heading(body: str) -> tuple[int, str, int, int] | None:
    """(level, text, start, end) of the first heading outside code, underlined ones included."""
    found = [(h.level, h.text, h.start, h.body) for h in forest.headings(body)[:1]]
    under = _SETEXT.search(body)
    fences = forest.fence_spans(body) if under else []
    while under and (
        any(a <= under.start() < b for a, b in fences) or re.match(r"[#>|`~]|[-*+]\s|-+\s*$", under[1])
    ):
        under = _SETEXT.search(body, under.end())
    if under:
        found.append(
            (1 if under[2][0] == "=" else 2, under[1].strip(), under.start(), min(under.end() + 1, len(body)))
        )
    return min(found, key=lambda heading: heading[2], default=None)


def stem_title(stem: str) -> str:
    """A title from a file or folder name: `_` and `-` as blanks."""
    return one_line(stem.replace("_", " ").replace("-", " "), 200) or one_line(stem, 200) or "node"


def _titled(body: str, title: str, stem: str) -> tuple[str, str]:
    """(title, body with that title as its H1). A heading that already says it moves to the top."""
    heading = _first_heading(body)
    own = one_line(plain(heading[1]), 200) if heading and heading[0] == 1 else ""
    title = title or own or stem_title(stem)
    line = f"# {title}"
    if heading and own == title:
        line = f"# {heading[1]}"
        body = body[: heading[2]] + body[heading[3] :]
    return title, f"{line}\n\n{body.strip(chr(10)).rstrip()}".rstrip()


# ---------------------------------------------------------------------------------------------- links

_OUTSIDE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//|#|\Z")
_HREF = re.compile(r"<a\b[^<>]*?\bhref\s*=\s*(?:\"([^\"]*)\"|'([^']*)')[^<>]*>(.*?)</a\s*>", re.S | re.I)
_INLINE_LINK = re.compile(rf"(!?)\[({TEXT})\]\(\s*({TARGET})?{LINK_TITLE}\s*\)", re.S)
_REF_LINK = re.compile(rf"(!?)\[({TEXT})\]\[([^\[\]]*)\]", re.S)
_ANY_LINK = re.compile(
    r"(?=[`\[!<])(?:"
    r"(?P<code>(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))"
    rf"|(?P<wiki>!?{WIKI.pattern})"
    rf"|(?P<inline>!?\[{TEXT}\]\(\s*(?:{TARGET})?{LINK_TITLE}\s*\))"
    rf"|(?P<ref>!?\[{TEXT}\]\[[^\[\]]*\])"
    r"|(?P<href><a\b[^<>]*\bhref\b[^<>]*>.*?</a\s*>))",
    re.S | re.I,
)
_REF_TARGET = re.compile(r"^ {0,3}\[([^\[\]]+)\]:[ \t]*<?([^\s<>]+)>?", re.M)
_PAGE_TAG = re.compile(r"\{[{%]-?\s*(?:\w+\s+)?[\"']([^\"']*)[\"'].*?[}%]\}(.*)", re.S)
_BASE_TAG = re.compile(r"\{\{[^{}]*\}\}")
LONGEST_PARAGRAPH = 100_000  # characters; past it a block is data, and links in it stay as written

Resolve = Callable[[str, bool], "str | None"]


def relink(body: str, resolve: Resolve) -> tuple[str, list[str], list[str]]:
    """Rewrite the links of `body` that lead to nodes.

    `resolve(target, wiki)` gets a target as written (without `#part`) and whether it stood in a wikilink; it
    gives a node id or None. Returns (new body, ids hit, targets missed), both in order of appearance, each
    once.
    """
    hits: dict[str, None] = {}
    misses: dict[str, None] = {}
    if not any(mark in body for mark in ("](", "][", "[[", "href", "HREF")):
        return body, [], []
    references = {m[1].casefold(): m[2] for m in _REF_TARGET.finditer(body)}

    def rewrite(match: re.Match) -> str:
        found = _link_parts(match, references)
        if not found:
            return match[0]
        target, part, text, wiki = found
        id = resolve(target, wiki)
        if id is None:
            misses[target] = None
            return match[0]
        hits[id] = None
        text = re.sub(r"[|\]]", " ", " ".join(text.split())).replace("[", " ").strip()
        return f"[[{id}{part}|{text}]]" if text and text != id else f"[[{id}{part}]]"

    pieces = [_ANY_LINK.sub(rewrite, piece) if linkable else piece for linkable, piece in _paragraphs(body)]
    return "".join(pieces), list(hits), list(misses)


def _link_parts(match: re.Match, references: dict[str, str]) -> tuple[str, str, str, bool] | None:
    """(target, `#part`, text, is a wikilink) of a link that may lead to a document; None for all else."""
    if match["code"]:
        return None
    if match["wiki"]:
        name, part, text = WIKI.search(match["wiki"]).groups()
        name = name.strip()
        return None if _OUTSIDE.match(name) else (name, part or "", text or name, True)
    if match["inline"]:
        image, text, target = _INLINE_LINK.match(match["inline"]).groups()
    elif match["ref"]:
        image, text, label = _REF_LINK.match(match["ref"]).groups()
        target = references.get((label or text).casefold())
    else:
        link = _HREF.match(match["href"])
        image, text, target = "", link and plain(link[3]), link and html.unescape(link[1] or link[2] or "")
    if image or not target:
        return None
    target = _bare_target(target)
    if _OUTSIDE.match(target):
        return None
    path, mark, part = target.partition("#")
    return path.partition("?")[0], mark + part, text, False


def _bare_target(target: str) -> str:
    """A link target without angle brackets and without the template tags of site generators."""
    target = target.strip().removeprefix("<").removesuffix(">")
    tag = _PAGE_TAG.fullmatch(target) if target.startswith("{") else None
    return tag[1] + tag[2] if tag else _BASE_TAG.sub("", target)


def _paragraphs(body: str) -> list[tuple[bool, str]]:
    """`body` in pieces that give it back when joined: (links may stand here, text)."""
    pieces: list[tuple[bool, str]] = []
    begin = 0
    for start, end in [*forest.fence_spans(body), (len(body), len(body))]:
        in_list = False
        for piece in re.split(r"(\n[ \t]*\n)", body[begin:start]):
            first = piece.lstrip("\n")
            indented = first.startswith(("    ", "\t"))
            in_list = (in_list and (indented or not first.strip())) or bool(
                ITEM.match(first.partition("\n")[0])
            )
            code = indented and not in_list
            pieces.append((not code and len(piece) <= LONGEST_PARAGRAPH, piece))
        pieces.append((False, body[start:end]))
        begin = end
    return pieces


def rename_links(body: str, names: dict[str, str]) -> str:
    """`body` with the wikilinks to the keys of `names` leading to its values; code stays."""
    if "[[" not in body:
        return body

    def rename(match: re.Match) -> str:
        name = match["wiki"] and WIKI.search(match["wiki"])[1]
        return match[0].replace(name, names[name.strip()], 1) if name and name.strip() in names else match[0]

    return "".join(
        _ANY_LINK.sub(rename, piece) if linkable else piece for linkable, piece in _paragraphs(body)
    )


# ---------------------------------------------------------------------------------------------- converters


def _from_markdown(stem: str, text: str, facts: str) -> Converted:
    front, body, fault = split_front(text)
    front = dict(front)
    passport = _passport(front)
    told = body
    if fault:  # the block stays in the body, but it is no prose
        told = re.sub(r"\A---[ \t]*\n.*?^---[ \t]*$", "", body, flags=re.S | re.M)
    title, body = _titled(body, passport.pop("title"), stem)
    summary = passport.pop("summary") or summarize(told, title, facts)
    warnings = [("bad_front_matter", fault)] if fault else []
    return Converted("note", title, body, summary, front=_fitting_front(front), warnings=warnings, **passport)


def _from_text(stem: str, text: str, facts: str) -> Converted:
    lines = text.strip("\n").rstrip().split("\n")
    title = stem_title(stem)
    first = one_line(lines[0], 200)
    if first and len(lines[0].strip()) <= 80 and (len(lines) == 1 or not lines[1].strip()) and len(lines) > 1:
        title, lines = first, lines[1:]
    escaped = [re.sub(r"^( {0,3})#", r"\1\\#", line) for line in lines]
    body = "\n".join(escaped).strip("\n")
    return Converted("note", title, f"# {title}\n\n{body}".rstrip(), summarize(body, title, facts))


_TEXT_FILES = {".md": _from_markdown, ".markdown": _from_markdown, ".txt": _from_text}
EXTENSIONS = frozenset(_TEXT_FILES)


def split_name(name: str) -> tuple[str, str]:
    """(stem, lower-case extension with its dot) of a file name."""
    stem, dot, extension = name.rpartition(".")
    return (stem, dot + extension.lower()) if stem else (name, "")


def convert(name: str, data: bytes) -> Converted:
    """Make the parts of a node from the bytes of the file `name`.

    Raises Unusable: `unsupported_type`, `not_text`, `encoding`, or `empty` for a text without a visible
    character.
    """
    stem, extension = split_name(name)
    if extension not in EXTENSIONS:
        raise Unusable("unsupported_type", f"no converter for {extension or 'files without an extension'}")
    text, encoding = decode(data)
    if not any(not c.isspace() and unicodedata.category(c) not in ("Cf", "Cc") for c in text):
        raise Unusable("empty", "no visible character")
    converted = _TEXT_FILES[extension](stem, text, f"note, {len(data)} bytes")
    converted.encoding = encoding
    return converted
