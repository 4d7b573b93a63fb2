"""The forest format, as pure functions over text.

Owns: error type, token counts, ids, node files (frontmatter and body), markdown sections, passport rules, the
dialect, and the rendering of `_index.md`.
Must never: read or write a forest, look at a clock, start a process. (The tokenizer's rank file, which travels
with the package, is the one file that is opened here, once.)

Sections: errors · tokens · ids · node files · headings and sections · passport rules · dialect · index files.

Invariants
- `parse_node(render_node(fields, body))` gives back the same fields and body.
- Everything that is rendered is UTF-8 without BOM, LF line ends, one final newline.
- A value that a reader could take for another type is quoted, so a title `no` stays a title.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from binascii import a2b_base64
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Iterable

import yaml

# ---------------------------------------------------------------------------------------------- errors


class VineError(Exception):
    """A refusal or failure that a caller may see.

    `code` is one of the stable codes (E_NOT_FOUND, E_SCHEMA, …), `message` says what happened, `hint` what to do
    next. Shells turn it into an envelope in one place; every other exception is a bug or an outage.
    """

    def __init__(self, code: str, message: str, hint: str | None = None):
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint

    def __reduce__(self):
        return VineError, (self.code, self.message, self.hint), self.__dict__

    def envelope(self) -> dict:
        """The error as every surface sends it, at most 600 tokens."""
        error = {"code": self.code, "message": clip(self.message, 250)}
        if self.hint:
            error["hint"] = clip(self.hint, 250)
        return {"error": error}


def not_found(id: str) -> VineError:
    """The one answer for a node that is absent or out of the caller's sight."""
    shown = id if len(id) <= 240 else id[:239] + "…"
    return VineError("E_NOT_FOUND", f"node not found: {shown}", "Use locate() to find entry points.")


# ---------------------------------------------------------------------------------------------- tokens

RANKS_SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
# The split pattern of cl100k_base as tiktoken publishes it; the ranks alone do not define the encoding.
_SPLIT = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)


@cache
def _encoding():
    """The cl100k_base encoding from the packaged rank file; nothing is fetched. Loads once, at first use."""
    data = (Path(__file__).parent / "vine_data" / "cl100k_base.tiktoken").read_bytes()
    if hashlib.sha256(data).hexdigest() != RANKS_SHA256:
        raise VineError(
            "E_INTERNAL", "the tokenizer's rank file is damaged (sha256 mismatch)", "Reinstall the package."
        )
    import tiktoken  # here, because commands that count nothing should not pay for it

    ranks = {token: rank for rank, token in enumerate(map(a2b_base64, data.split()[::2]))}  # it lists them in order
    return tiktoken.Encoding("cl100k_base", pat_str=_SPLIT, mergeable_ranks=ranks, special_tokens={})


def count_tokens(text: str) -> int:
    """cl100k_base tokens of `text`; names of special tokens count as plain text."""
    return len(_encoding().encode_ordinary(text)) if text else 0


def fits(text: str, budget: int) -> bool:
    """Whether `text` has at most `budget` tokens. No token is empty, so few bytes answer without the encoder."""
    return len(text.encode("utf-8", "replace")) <= budget or count_tokens(text) <= budget


def clip(text: str, limit: int) -> str:
    """`text` cut to at most `limit` tokens, with `…` at the cut and inside the limit."""
    if len(text) <= limit * 64 and fits(text, limit):
        return text
    head = text[: limit * 64]  # enough to hold more than `limit` tokens of anything but endless blanks
    tokens = _encoding().encode_ordinary(head)
    if len(tokens) <= limit and len(head) == len(text):
        return text
    keep = min(limit, len(tokens))
    while keep > 0:
        keep -= 1
        cut = _encoding().decode_bytes(tokens[:keep]).decode("utf-8", "ignore").rstrip() + "…"
        if count_tokens(cut) <= limit:
            return cut
    return "…"


def dumps(value: Any) -> str:
    """The compact JSON that every surface sends, and that budgets are measured on."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# ---------------------------------------------------------------------------------------------- ids

MASTER = "_index"
SCHEMA = "_meta/schema"
_PLAIN_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")


def check_id(id: Any) -> str:
    """`id` when it may name a new node; otherwise E_SCHEMA that names the broken rule."""
    if not isinstance(id, str):
        raise VineError("E_SCHEMA", "id must be a string")
    if not id or len(id) > 240:
        raise VineError("E_SCHEMA", "id must have 1 to 240 characters")
    if id == MASTER:
        return id
    shown = json.dumps(id, ensure_ascii=True)
    if not is_text(id):
        raise VineError("E_SCHEMA", f"id {shown} holds half a surrogate pair")
    if unicodedata.normalize("NFC", id) != id:
        raise VineError("E_SCHEMA", f"id {shown} is not in NFC", f"Use {unicodedata.normalize('NFC', id)}")
    segments = id.split("/")
    if segments[0] in ("_meta", "_derived", "_assets", ".git"):
        raise VineError("E_SCHEMA", f"id {shown}: nothing is planted under {segments[0]}/")
    if len(segments) > 8:
        raise VineError("E_SCHEMA", f"id {shown} has more than 8 segments")
    for i, segment in enumerate(segments):
        if segment == MASTER and i == len(segments) - 1:
            continue
        fault = _segment_fault(segment)
        if fault:
            raise VineError("E_SCHEMA", f"id {shown}: {fault}")
    if segments[-1].endswith(".md"):
        raise VineError("E_SCHEMA", f"id {shown}: an id is written without .md")
    return id


def _segment_fault(segment: str) -> str | None:
    if not segment:
        return "a segment is empty"
    if len(segment) > 100:
        return "a segment has more than 100 characters"
    if len(segment.encode()) > 240:  # file systems count bytes, and a temporary name needs a few more
        return "a segment has more than 240 bytes"
    if segment.endswith("."):
        return "a segment ends in a dot"
    if _PLAIN_SEGMENT.match(segment):
        return None
    for i, char in enumerate(segment):
        category = unicodedata.category(char)
        if category[0] == "L" or category == "Nd" or (i and (char in "._-" or category[0] == "M")):
            continue
        return f"a segment may not {'start with' if i == 0 else 'hold'} {json.dumps(char)}"
    return None


def is_branch_id(id: str) -> bool:
    return id == MASTER or id.endswith("/" + MASTER)


def parent_of(id: str) -> str | None:
    """The index that lists `id`: None for the master and for `_meta/schema`."""
    if id == MASTER or id.startswith("_meta/"):
        return None
    folder = id.removesuffix("/" + MASTER)
    return folder.rpartition("/")[0] + "/" + MASTER if "/" in folder else MASTER


def ancestors(id: str) -> list[str]:
    """Ids of all indexes above `id`, root first, whether they exist or not."""
    if id == MASTER:
        return []
    folders = id.removesuffix("/" + MASTER).split("/")[:-1]
    if id.startswith("_meta/"):
        folders = []
    return [MASTER] + ["/".join(folders[:n]) + "/" + MASTER for n in range(1, len(folders) + 1)]


def folder_of(branch_id: str) -> str:
    """Id prefix of everything below a branch: `a/` for `a/_index`, the empty string for the master."""
    return branch_id[: -len(MASTER)]


def twin_key(id: str) -> str:
    """Two ids with one key would be one file on a file system that ignores case."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", id).casefold())


def nearest(word: str, choices: Iterable[str]) -> str:
    """The choice that a mistyped word most likely means."""
    import difflib  # only mistakes need it

    choices = list(choices)
    close = difflib.get_close_matches(word[:100], choices, 1, 0.0)
    return close[0] if close else choices[0]


def is_text(name: str) -> bool:
    """Whether a file name is Unicode; the operating system hands others over with lone surrogates."""
    return name.isascii() or not any(0xD800 <= ord(char) < 0xE000 for char in name)


def one_line(text: str) -> str:
    return " ".join(text.split())


# ---------------------------------------------------------------------------------------------- node files

KEY_ORDER = (
    "id type title summary created updated tags aliases links confidence source payload payload_type payload_hash "
    "entity_kind coverage source_id source_path source_hash source_size source_mtime content source_base "
    "source_pending source_encoding source_url source_front incoming_for"
).split()
TEXT_FIELDS = frozenset(
    "id type title summary created updated source payload payload_type payload_hash entity_kind coverage source_id "
    "source_path source_hash content source_pending source_encoding source_url incoming_for".split()
)
LIST_FIELDS = frozenset(("tags", "aliases"))
MAX_BLOCK = 256 * 1024
MAX_VALUES = 100_000
MAX_DEPTH = 100  # levels of lists and mappings, so that no reader or writer of a block runs out of stack


@dataclass
class Node:
    """One node file. `fields` keeps the order and the values of the file; the properties read them safely: an
    unusable value reads as its default, so one bad field never hides a node."""

    id: str
    fields: dict[str, Any]
    body: str
    digest: str = ""  # sha256 of the file's bytes
    repeated: list[str] = field(default_factory=list)  # keys that stand more than once in the block

    def text(self, key: str) -> str:
        value = self.fields.get(key)
        return value if isinstance(value, str) else ""

    @property
    def type(self) -> str:
        return one_line(self.text("type")) or ("branch" if is_branch_id(self.id) else "note")

    @property
    def kind(self) -> str:
        return "branch" if self.type == "branch" else "banana"

    @property
    def title(self) -> str:
        return one_line(self.text("title")) or _first_h1(self.body) or self.id

    @property
    def summary(self) -> str:
        return one_line(self.text("summary")) or _first_quote(self.body)

    @property
    def tags(self) -> list[str]:
        return self._strings("tags")

    @property
    def aliases(self) -> list[str]:
        return self._strings("aliases")

    @property
    def confidence(self) -> float:
        return _unit(self.fields.get("confidence"), 1.0)

    @property
    def links(self) -> list[dict]:
        """Usable links, in file order, each (rel, target) once."""
        seen, links = set(), []
        value = self.fields.get("links")
        for link in value if isinstance(value, list) else ():
            if not isinstance(link, dict):
                continue
            rel, target = link.get("rel"), link.get("target")
            usable = isinstance(rel, str) and isinstance(target, str) and rel and target
            if usable and target != self.id and (rel, target) not in seen:
                seen.add((rel, target))
                links.append(link)
        return links

    def _strings(self, key: str) -> list[str]:
        value = self.fields.get(key)
        items = value if isinstance(value, list) else []
        return list(dict.fromkeys(one_line(v) for v in items if isinstance(v, str) and v.strip()))

    @property
    def version(self) -> str:
        """16 hex that change with the content. An index leaves out what births below it change by themselves."""
        if self.kind == "banana":
            return self.digest[:16]
        told = [self.text("title"), self.text("summary"), self.tags, self.aliases, human_part(self.body)]
        return hashlib.sha256(dumps(told).encode("utf-8", "replace")).hexdigest()[:16]


def link_confidence(link: dict) -> float:
    return _unit(link.get("confidence"), 1.0)


def _unit(value: Any, default: float) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1
    return float(value) if good else default


def parse_node(data: bytes, id: str) -> Node:
    """Read one node file.

    Raises VineError E_FRONTMATTER, with a message that says what is broken, for bytes that are not UTF-8, a missing
    opening or closing line, and a block that is no YAML mapping, too large, or holds object tags. `fault_kind` of
    the error is `bad-encoding`, `no-frontmatter` or `bad-frontmatter`.
    """
    block, body = split_front(_decoded(data))
    fields, repeated = _parse_block(block)
    return Node(id, fields, body, hashlib.sha256(data).hexdigest(), repeated)


def body_text(data: bytes) -> str:
    """The body alone of a node file, without reading its block; raises as parse_node does."""
    return split_front(_decoded(data))[1]


def _decoded(data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _broken("the file is not UTF-8", "bad-encoding") from None
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


_OPEN = re.compile(r"---[ \t]*\n")
_CLOSE = re.compile(r"^---[ \t]*$", re.M)
_BLANK_TOP = re.compile(r"\A(?:[ \t\f\v]*\n)+")


def split_front(text: str) -> tuple[str, str]:
    """The YAML block and the body of a node's text (LF line ends)."""
    opening = _OPEN.match(text)
    if not opening:
        raise _broken("the first line is not ---", "no-frontmatter")
    closing = _CLOSE.search(text, opening.end())
    if not closing:
        raise _broken("the frontmatter has no closing ---", "bad-frontmatter")
    body = text[closing.end() + 1 :]
    return text[opening.end() : closing.start()], _BLANK_TOP.sub("", body).rstrip()


def _broken(message: str, kind: str) -> VineError:
    error = VineError("E_FRONTMATTER", message, "Repair the file by hand; `vine validate` lists every fault.")
    error.fault_kind = kind
    return error


class _CoreResolver(yaml.resolver.BaseResolver):
    """Plain scalars by the YAML 1.2 core schema: `yes` and dates are strings, there is no merge key."""

    def resolve(self, kind, value, implicit):
        if kind is yaml.ScalarNode:
            return _scalar_tag(value) if implicit[0] else "tag:yaml.org,2002:str"
        return _LIST_TAG if kind is yaml.SequenceNode else _MAP_TAG


_LIST_TAG, _MAP_TAG = "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"
_CORE_TAGS = {
    "null": re.compile(r"(?:~|null|Null|NULL|)\Z"),
    "bool": re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"),
    "int": re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z"),
    "float": re.compile(
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
    ),
}


@lru_cache(maxsize=4096)
def _scalar_tag(text: str) -> str:
    kind = next((kind for kind, pattern in _CORE_TAGS.items() if pattern.match(text)), "str")
    return f"tag:yaml.org,2002:{kind}"


_Parser = getattr(yaml, "_yaml", None) and yaml._yaml.CParser  # libyaml where PyYAML was built with it


if _Parser:

    class _Composer(_Parser, _CoreResolver):
        def __init__(self, stream):
            _Parser.__init__(self, stream)
            _CoreResolver.__init__(self)

else:

    class _Composer(
        yaml.reader.Reader, yaml.scanner.Scanner, yaml.parser.Parser, yaml.composer.Composer, _CoreResolver
    ):
        def __init__(self, stream):
            yaml.reader.Reader.__init__(self, stream)
            yaml.scanner.Scanner.__init__(self)
            yaml.parser.Parser.__init__(self)
            yaml.composer.Composer.__init__(self)
            _CoreResolver.__init__(self)


def parse_yaml(text: str) -> Any:
    """A YAML document as plain values by the 1.2 core types; E_FRONTMATTER when it cannot be one."""
    return _Builder().value(_compose(text))


def _compose(text: str):
    if len(text.encode("utf-8", "replace")) > MAX_BLOCK:
        raise _broken("the frontmatter is larger than 256 KiB", "bad-frontmatter")
    try:
        return _Composer(text).get_single_node()
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" near line {mark.line + 2}" if mark else ""
        raise _broken(f"the frontmatter is not YAML{where}", "bad-frontmatter") from None


# Most blocks are as the engine writes them: a plain or single-quoted scalar a line, and lists of such. They are read
# line by line, ten times faster than by a YAML parser; whatever else a block holds is left to the parser. A property
# test holds both ways to the same answer.
_PLAIN_LINE = re.compile(r"([a-z_]+):(?: (\S.*))?\Z|- (?:([a-z_]+): )?(\S.*)\Z|  ([a-z_]+): (\S.*)\Z")
_PLAIN_SCALAR = re.compile(r"(?:'((?:[^']|'')*)'|[^\W_](?:[^:#]|:(?=\S)|(?<=\S)#)*(?<=\S))\Z")


_NO_MAPPING = TEXT_FIELDS | LIST_FIELDS | {"links"}


def _parse_plain(block: str) -> dict[str, Any] | None:
    """The fields of a block of that kind; None for any other block."""
    fields: dict[str, Any] = {}
    name, items = "", None
    for line in block.split("\n")[:-1]:
        found = _PLAIN_LINE.match(line)
        if not found or not line.isprintable():
            return None
        key, text, item_key, item, more_key, more = found.groups()
        scalar = _PLAIN_SCALAR.match(text or item or more or "")
        if scalar is None and (key is None or text):
            return None
        if key:
            if key in fields or (text and (key in LIST_FIELDS or key == "links")):
                return None
            name, items = key, None
            fields[key] = _plain_value(scalar, key in TEXT_FIELDS) if text else None
        elif more_key:
            if items is None and fields.get(name, "") is None and name not in _NO_MAPPING:
                fields[name] = {}
            holder = items[-1] if items else fields.get(name)
            if not isinstance(holder, dict) or more_key in holder:
                return None
            holder[more_key] = _plain_value(scalar, name == "links" and more_key in ("rel", "target"))
        else:
            if items is None:
                if fields.get(name, "") is not None or name in TEXT_FIELDS:
                    return None
                items = fields[name] = []
            if item_key and name in LIST_FIELDS:
                return None
            value = _plain_value(scalar, name in LIST_FIELDS or (name == "links" and item_key in ("rel", "target")))
            items.append({item_key: value} if item_key else value)
    return fields or None


def _plain_value(scalar: re.Match, as_typed: bool) -> Any:
    if scalar[1] is not None:
        return scalar[1].replace("''", "'")
    return scalar[0] if as_typed else _scalar(yaml.ScalarNode(_scalar_tag(scalar[0]), scalar[0]))


def _parse_block(block: str) -> tuple[dict[str, Any], list[str]]:
    plain = _parse_plain(block) if len(block) < MAX_BLOCK // 4 else None
    return (plain, []) if plain is not None else _parse_yaml_block(block)


def _parse_yaml_block(block: str) -> tuple[dict[str, Any], list[str]]:
    root = _compose(block)
    if not isinstance(root, yaml.MappingNode):
        raise _broken("the frontmatter is not a mapping", "bad-frontmatter")
    _check_collection(root)
    builder = _Builder()
    fields: dict[str, Any] = {}
    repeated = []
    for key_node, value_node in root.value:
        typed = builder.as_typed(key_node)
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else dumps(typed)
        if key in fields:
            repeated.append(key)
        if key in TEXT_FIELDS:
            fields[key] = builder.as_typed(value_node)
        elif key in LIST_FIELDS:
            fields[key] = builder.strings(value_node)
        elif key == "links":
            fields[key] = builder.links(value_node)
        else:
            fields[key] = builder.value(value_node)
    return fields, repeated


def _check_collection(node) -> None:
    if node.tag not in (_MAP_TAG, _LIST_TAG, "!"):
        raise _broken("the frontmatter holds an object tag", "bad-frontmatter")


class _Builder:
    """Turns YAML nodes into values, counting them, so that aliases cannot blow a small file up."""

    def __init__(self):
        self.count = 0
        self.open: set[int] = set()

    def value(self, node) -> Any:
        self.count += 1
        if self.count > MAX_VALUES:
            raise _broken("the frontmatter holds over 100,000 values", "bad-frontmatter")
        if node is None:
            return None
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if id(node) in self.open:
            raise _broken("the frontmatter holds an alias to itself", "bad-frontmatter")
        if len(self.open) >= MAX_DEPTH:
            raise _broken(f"the frontmatter nests deeper than {MAX_DEPTH} levels", "bad-frontmatter")
        _check_collection(node)
        self.open.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            result: Any = [self.value(item) for item in node.value]
        else:
            result = {}
            for key, item in node.value:
                name = self.value(key)
                result[name if isinstance(name, str) else dumps(name)] = self.value(item)
        self.open.discard(id(node))
        return result

    def as_typed(self, node) -> Any:
        """The text of a scalar as it was typed; None for an empty one; other shapes as they are."""
        if isinstance(node, yaml.ScalarNode):
            self.count += 1
            _scalar(node)  # refuses object tags
            empty = not node.style and node.value in ("", "~")
            return None if empty else node.value
        return self.value(node)

    def strings(self, node) -> Any:
        if isinstance(node, yaml.SequenceNode):
            values = [self.value(item) for item in node.value]
            pairs = zip(node.value, values)
            return [item.value if isinstance(item, yaml.ScalarNode) else value for item, value in pairs]
        value = self.as_typed(node)
        return [value] if isinstance(value, str) else value

    def links(self, node) -> Any:
        value = self.value(node)
        if not isinstance(value, list):
            return value
        for link, item in zip(value, node.value):
            if not isinstance(link, dict):
                continue
            for key, part in item.value:
                if isinstance(key, yaml.ScalarNode) and key.value in ("rel", "target"):
                    link[key.value] = self.as_typed(part)
        return value


def _scalar(node) -> Any:
    kind = node.tag.rpartition(":")[2] if node.tag.startswith("tag:yaml.org,2002:") else node.tag
    text = node.value
    try:
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        if kind == "int":
            return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
        if kind == "float":
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:  # an explicit tag on text that does not fit it, or a number of thousands of digits
        return text
    if kind in ("str", "!"):
        return text
    raise _broken("the frontmatter holds an object tag", "bad-frontmatter")


# The writer quotes what either YAML version would read as something else: PyYAML's own resolver knows most of 1.1,
# the pattern below adds its one-letter booleans and what only 1.2 knows.
_ALSO_TYPED = re.compile(r"(?:[yYnN]|[-+]?(?:0o[0-7]+|\.?[0-9][0-9.]*(?:[eE][-+]?[0-9]+)?))\Z")
_BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _write_text(dumper, text: str):
    style = '"' if _BREAKS.search(text) else "'" if _ALSO_TYPED.match(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


class _Writer(yaml.SafeDumper):
    def ignore_aliases(self, data):
        return True


class _FastWriter(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):
    def ignore_aliases(self, data):
        return True


def _write_null(dumper, _):
    return dumper.represent_scalar("tag:yaml.org,2002:null", "~")  # in a text field the word null is a text


for _writer in (_Writer, _FastWriter):
    _writer.add_representer(str, _write_text)
    _writer.add_representer(type(None), _write_null)


def dump_yaml(value: Any) -> str:
    """Block style, one line per scalar, raw Unicode."""
    options = {"allow_unicode": True, "sort_keys": False, "default_flow_style": False, "width": 2**31 - 1}
    text = yaml.dump(value, Dumper=_FastWriter, **options)
    if "\\U" in text:  # libyaml escapes what lies beyond the basic plane; the Python writer does not
        text = yaml.dump(value, Dumper=_Writer, **options)
    return text


# Scalars whose form is known without a YAML writer: text that starts with a letter and holds no mark that could end
# it, hashes, dates, numbers.
_SURE = re.compile(r"[^\W\d_][^:#]*(?<=\S)\Z|(?!0b)[0-9a-f]*[acdf][0-9a-f]*\Z")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}\Z", re.A)
_WORDS = frozenset("y n yes no on off true false null".split())


def _sure_scalar(value: Any) -> str | None:
    if isinstance(value, str):
        if _SURE.match(value) and value.isprintable() and value.lower() not in _WORDS:
            return value
        return f"'{value}'" if _DAY.match(value) else None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        text = repr(value)
        return text if text.strip("-.0123456789") == "" else None
    return None


def dump_fields(fields: dict[str, Any]) -> str:
    """A frontmatter block: as dump_yaml writes it, with the plain lines written directly, which is most of them."""
    parts = []
    for key, value in fields.items():
        items = value if isinstance(value, list) and value else [value]
        lines = [_sure_scalar(item) for item in items] if key in KEY_ORDER else [None]
        if None in lines:
            parts.append(dump_yaml({key: value}))
        elif items is value:
            parts.append(f"{key}:\n" + "".join(f"- {line}\n" for line in lines))
        else:
            parts.append(f"{key}: {lines[0]}\n")
    return "".join(parts)


def ordered(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields in writing order: keys that are there keep their place, so pass the file's own dict first; for a new
    node the order of KEY_ORDER with unknown keys behind."""
    known = {key: fields[key] for key in KEY_ORDER if key in fields}
    return known | {key: value for key, value in fields.items() if key not in known}


def with_fields(fields: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy of `fields` with `changes` made: None removes, an existing key keeps its position, a new one goes to
    its place in KEY_ORDER."""
    result = dict(fields)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif key in result or key not in KEY_ORDER:
            result[key] = value
        else:
            result = _inserted(result, key, value)
    return result


def _inserted(fields: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    before = set(KEY_ORDER[: KEY_ORDER.index(key)])
    keys = list(fields)
    place = max((i + 1 for i, name in enumerate(keys) if name in before), default=0)
    items = list(fields.items())
    return dict(items[:place] + [(key, value)] + items[place:])


def render_node(fields: dict[str, Any], body: str) -> bytes:
    """The bytes of a node file."""
    body = _BLANK_TOP.sub("", body.replace("\r\n", "\n").replace("\r", "\n")).rstrip()
    text = "---\n" + dump_fields(fields) + "---\n\n" + body
    return (text.rstrip() + "\n").encode("utf-8")


# ---------------------------------------------------------------------------------------------- headings and sections


@dataclass(frozen=True)
class Heading:
    level: int
    text: str
    line: int  # from 1, in the body
    start: int  # offset of the heading line
    body: int  # offset just behind the heading line
    end: int  # offset where the section ends: the next heading of this or a higher level


# Searched in "\\n" + body: with a literal in front the search skips from line to line. So a match starts at the
# offset of its line in the body, and ends one behind the line's end there.
_MARKS = re.compile(r"\n {0,3}(?:(#{1,6})(?:[ \t](.*))?$|(`{3,})([^`\n]*)$|(~{3,})(.*)$)", re.M)
_CLOSING_HASHES = re.compile(r"(?:^|[ \t])#+$")


@lru_cache(maxsize=8)  # a body is asked several times in a row
def headings(body: str) -> tuple[Heading, ...]:
    """All headings outside code fences, in order."""
    found: list[list] = []
    fence = ""
    line, counted = 1, 0
    for mark in _MARKS.finditer("\n" + body):
        run = mark[3] or mark[5]
        if run:
            if not fence:
                fence = run
            elif run[0] == fence[0] and len(run) >= len(fence) and not (mark[4] or mark[6] or "").strip():
                fence = ""
        elif not fence:
            line += body.count("\n", counted, mark.start())
            counted = mark.start()
            text = _CLOSING_HASHES.sub("", (mark[2] or "").strip()).strip()
            found.append([len(mark[1]), text, line, mark.start(), min(mark.end(), len(body))])
    return _with_ends(found, len(body))


def _with_ends(found: list[list], length: int) -> tuple[Heading, ...]:
    ends = [length] * len(found)
    waiting: list[int] = []
    for i, item in enumerate(found):
        while waiting and found[waiting[-1]][0] >= item[0]:
            ends[waiting.pop()] = item[3]
        waiting.append(i)
    return tuple(Heading(*item, end) for item, end in zip(found, ends))


def outline(body: str) -> list[str]:
    """Texts of the H2 and H3 headings."""
    return [h.text for h in headings(body) if h.level in (2, 3)]


def _fences(body: str) -> tuple[list[tuple[int, int]], str]:
    """Offsets of the code fences, and the marks of the one that is open at the end ('' when none is)."""
    spans, fence, begin = [], "", 0
    if "```" not in body and "~~~" not in body:
        return spans, fence
    for mark in _MARKS.finditer("\n" + body):
        run = mark[3] or mark[5]
        if not run:
            continue
        if not fence:
            fence, begin = run, mark.start()
        elif run[0] == fence[0] and len(run) >= len(fence) and not (mark[4] or mark[6] or "").strip():
            spans.append((begin, mark.end() - 1))
            fence = ""
    return spans + ([(begin, len(body))] if fence else []), fence


def fence_spans(body: str) -> list[tuple[int, int]]:
    """Offsets of the lines inside and around code fences, as (start, end) pairs."""
    return _fences(body)[0]


def closed(body: str) -> str:
    """`body` with its open code fence closed, so that what is added behind it is no code."""
    fence = _fences(body)[1]
    return f"{body.rstrip()}\n{fence}" if fence else body


def find_section(body: str, header: str) -> Heading | None:
    """The first heading whose text equals `header`, trimmed, in any case."""
    wanted = header.strip().casefold()
    return next((h for h in headings(body) if h.text.casefold() == wanted), None)


def _first_h1(body: str) -> str:
    return next((one_line(h.text) for h in headings(body) if h.level == 1 and h.text), "")


def _first_quote(body: str) -> str:
    for line in body.split("\n", 200)[:200]:
        if line.startswith(">"):
            return one_line(line.lstrip("> "))
        if line.strip() and not line.lstrip().startswith("#"):
            return ""
    return ""


# ---------------------------------------------------------------------------------------------- passport rules

SUMMARY_TOKENS = 60
BANNED_OPENINGS = ("this document describes", "file containing")
SOURCES = ("manual", "ingest", "agent")
ENTITY_KINDS = ("person", "organization", "product", "place", "other")
PAYLOAD_TYPES = ("sqlite", "pdf", "docx", "image", "audio")
INGEST_ONLY = frozenset(
    "source_id source_path source_hash source_size source_mtime source_base source_pending source_encoding "
    "source_url source_front incoming_for content".split()
)


def has_breaks(text: str) -> bool:
    """Whether `text` holds a line break or a control character."""
    return bool(_BREAKS.search(text))


def summary_fault(summary: str) -> str | None:
    """What the summary rule has against `summary`, as a message without the field's name; None when it holds."""
    if not summary.strip():
        return "must not be blank"
    if has_breaks(summary):
        return "must be one line without control characters"
    lowered = summary.strip().casefold()
    for opening in BANNED_OPENINGS:
        if lowered.startswith(opening):
            return f"must not start with {opening!r}"
    tokens = count_tokens(summary) if len(summary.encode("utf-8", "replace")) > SUMMARY_TOKENS else 0
    return f"{tokens} tokens; the limit is {SUMMARY_TOKENS}" if tokens > SUMMARY_TOKENS else None


def check_field(key: str, value: Any) -> None:
    """E_FRONTMATTER, starting with the field, when a passport field has an unusable value. The JSON type is right
    already; fields without a rule of their own pass."""
    fault = None
    if key == "title":
        fault = _line_fault(value, 200)
    elif key == "summary":
        fault = summary_fault(value)
    elif key in LIST_FIELDS:
        count, length = (20, 64) if key == "tags" else (16, 80)
        if len(value) > count:
            fault = f"at most {count} items"
        for i, item in enumerate(value):
            item_fault = _line_fault(item, length)
            if item_fault and not fault:
                key, fault = f"{key}[{i}]", item_fault
    elif key == "confidence":
        fault = None if 0 <= value <= 1 else "must be a number from 0 to 1"
    elif key in _CLOSED:
        fault = None if value in _CLOSED[key] else "must be one of " + ", ".join(_CLOSED[key])
    if fault:
        raise VineError("E_FRONTMATTER", f"{key}: {fault}")


_CLOSED = {"source": SOURCES, "entity_kind": ENTITY_KINDS, "payload_type": PAYLOAD_TYPES}


def _line_fault(text: str, limit: int) -> str | None:
    if not text.strip():
        return "must not be blank"
    if has_breaks(text):
        return "must be one line without control characters"
    return f"{len(text)} characters; the limit is {limit}" if len(text) > limit else None


def payload_fault(name: Any) -> str | None:
    """What is wrong with a payload's file name; the file itself is not looked at."""
    if not isinstance(name, str) or not name:
        return "must be a file name"
    bare = name.removeprefix("_assets/")
    if "/" in bare or "\\" in bare or ":" in bare or has_breaks(bare):
        return "must be a file name beside the node, or one in _assets/"
    if not bare or bare.startswith(".") or len(bare.encode("utf-8", "replace")) > 255:
        return "must have 1 to 255 bytes and no leading dot"
    return "must not end in .md" if bare.lower().endswith(".md") else None


# ---------------------------------------------------------------------------------------------- dialect

NODE_TYPES = {
    "branch": "index of a folder",
    "note": "the usual leaf: one topic, written down",
    "document": "a file that was converted to text",
    "dataset": "tables that are asked in SQL",
    "entity": "a person, an organization, a product or a place",
    "concept": "an idea or a term and what it means",
    "event": "a dated fact",
    "media": "an image or a sound, described in text",
}
EDGE_TYPES = {
    "part-of": "contains",
    "related-to": "related-to",
    "mentioned-in": "mentions",
    "author": "author-of",
    "compared-with": "compared-with",
    "derived-from": "origin-of",
    "same-as": "same-as",
    "discovered-shortcut": "",
    "succeeds": "precedes",
}


@dataclass(frozen=True)
class Dialect:
    """The node types and edge types that a forest declares; `edges` maps a rel to its inverse name or ''."""

    types: tuple[str, ...]
    edges: dict[str, str]
    problems: tuple[str, ...] = ()

    def shown_inverse(self, rel: str) -> str:
        """The name under which the target of a link shows the edge."""
        return self.edges.get(rel) or rel

    @property
    def edge_names(self) -> list[str]:
        return sorted({*self.edges, *filter(None, self.edges.values())})


BUILT_IN = Dialect(tuple(NODE_TYPES), dict(EDGE_TYPES))
_ROW = re.compile(r"^[ \t]*\|[ \t]*`([^`|\n]*)`[ \t]*(?:\|([^|\n]*)|$)", re.M)
_EDGE_HEADING = re.compile(r"\b(?:edges?|rels?|relations?)\b", re.I)
_NO_INVERSE = {"", "-", "–", "—"}


def parse_dialect(body: str) -> Dialect:
    """The dialect that the table rows of `_meta/schema` declare; a kind without rows keeps the built-in set."""
    types: list[str] = []
    edges: dict[str, str] = {}
    problems = []
    marks = headings(body)
    fences = fence_spans(body)
    for row in _ROW.finditer(body):
        if any(start <= row.start() < end for start, end in fences):
            continue
        token, second = row[1].strip(), (row[2] or "").strip().strip("`").strip()
        heading = next((h.text for h in reversed(marks) if h.start <= row.start()), "")
        if token in ("type", "rel"):
            continue  # the head of a table
        if not 1 <= len(token) <= 64 or re.search(r"\s", token):
            problems.append(f"`{token[:64]}` is no name of a type")
        elif _EDGE_HEADING.search(heading):
            edges.setdefault(token, "" if second in _NO_INVERSE else second)
        else:
            types.append(token)
    types = list(dict.fromkeys(types)) or list(NODE_TYPES)
    if "branch" not in types:
        types.insert(0, "branch")
    return Dialect(tuple(types), edges or dict(EDGE_TYPES), tuple(problems))


def schema_body() -> str:
    """The body of a new forest's `_meta/schema`."""
    lines = [
        "# Forest dialect",
        "",
        "The node types and edge types of this forest. A row added here may be used at once.",
        "",
    ]
    lines += ["## Node types (type)", "", "| type | meaning |", "| --- | --- |"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in NODE_TYPES.items()]
    lines += ["", "## Edge types (rel)", "", "| rel | inverse |", "| --- | --- |"]
    lines += [f"| `{rel}` | {f'`{inverse}`' if inverse else '—'} |" for rel, inverse in EDGE_TYPES.items()]
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------- index files

SUB_BRANCHES, DIRECT, CROSS, LANDMARKS = "Sub-branches", "Direct bananas", "Cross trails", "Landmarks"
ENGINE_SECTIONS = (SUB_BRANCHES, DIRECT, LANDMARKS)


def coverage(bananas: int, branches: int) -> str:
    return f"{bananas} bananas, {branches} sub-branches"


@lru_cache(maxsize=16_384)  # an index is rendered whole at every birth below it, and most lines stay
def entry(id: str, summary: str, covers: str | None = None) -> str:
    """One entry line of an index; `covers` for a sub-branch."""
    text = one_line(summary).replace("[[", "\\[\\[")
    line = f"- [[{one_line(id)}]] — {text}"  # a file named by hand may hold a line break
    return line if covers is None else f"{line} {covers}."


def entry_id(line: str) -> str | None:
    """The id that an entry line is for; None for any other line."""
    end = line.find("]]")
    return line[4:end] if line.startswith("- [[") and end > 0 else None


def section_of(body: str, name: str, marks: Iterable[Heading] | None = None) -> Heading | None:
    """The first level-2 heading of exactly this text."""
    return next((h for h in (headings(body) if marks is None else marks) if h.level == 2 and h.text == name), None)


def _section_lines(body: str, mark: Heading) -> tuple[list[str], list[str]]:
    """The lines of a section: its entries, and all others. Nothing inside a code fence is an entry."""
    lines = body[mark.body : mark.end].split("\n")
    fences = fence_spans(body)
    if not fences:
        others = [line for line in lines if line[:4] != "- [["]
        return [line for line in lines if line[:4] == "- [["], others
    entries, others, place = [], [], mark.body
    for line in lines:
        fenced = any(start <= place < end for start, end in fences)
        (entries if line.startswith("- [[") and not fenced else others).append(line)
        place += len(line) + 1
    return entries, others


def with_entries(body: str, sections: dict[str, list[str]]) -> str:
    """`body` with the entry lines of the named engine sections replaced. Other lines of these sections stay, in
    order, above the entries; a section that is missing is added at the end."""
    for name in sections:
        if section_of(body, name) is None:
            body = closed(body).rstrip() + f"\n\n## {name}\n" if body.strip() else f"## {name}\n"
    marks = headings(body)
    places = [(section_of(body, name, marks), entries) for name, entries in sections.items()]
    for mark, entries in sorted(places, key=lambda place: -place[0].start):  # from the end: offsets before stay true
        text = closed("\n".join(_section_lines(body, mark)[1]).strip("\n"))
        lines = "\n".join(([text] if text else []) + entries)
        heading, rest = body[: mark.body].rstrip("\n"), body[mark.end :]
        body = f"{heading}\n{lines}\n{rest}" if lines else f"{heading}\n{rest}"
    return body.rstrip()


def branch_body(body: str, title: str, summary: str, master: bool = False) -> str:
    """A branch's body with the parts it lacks: H1, blockquote and sections."""
    marks = headings(body)
    if not any(h.level == 1 for h in marks):
        body = f"# {title}\n{body}".rstrip()
    if not re.search(r"^>", body, re.M):
        first = next(h for h in headings(body) if h.level == 1)
        body = body[: first.body].rstrip("\n") + f"\n> {summary}\n\n" + body[first.body :].lstrip("\n")
    for name in (SUB_BRANCHES, DIRECT, CROSS) + ((LANDMARKS,) if master else ()):
        if section_of(body, name) is None:
            body = closed(body).rstrip() + ("\n" if name != SUB_BRANCHES else "\n\n") + f"## {name}\n"
    return body.rstrip()


def with_new_face(body: str, old: tuple[str, str], new: tuple[str, str]) -> str:
    """An index body after a change of (title, summary): H1 and blockquote follow where they still showed the old."""
    first = next((h for h in headings(body) if h.level == 1), None)
    if first and first.text == old[0] and new[0] != old[0]:
        body = body[: first.start] + f"# {new[0]}\n" + body[first.body :]
    quoted = f"> {old[1]}"
    if new[1] != old[1]:
        lines = body.split("\n")
        if quoted in lines:
            lines[lines.index(quoted)] = f"> {new[1]}"
            body = "\n".join(lines)
    return body


def human_part(body: str) -> str:
    """An index body without the entries that the engine keeps."""
    marks = headings(body)
    places = filter(None, (section_of(body, name, marks) for name in ENGINE_SECTIONS))
    for mark in sorted(places, key=lambda place: -place.start):
        kept = [line for line in _section_lines(body, mark)[1] if line.strip()]
        body = body[: mark.body] + "".join(x + "\n" for x in kept) + body[mark.end :]
    return body.rstrip()


def cross_trails(body: str) -> list[str] | None:
    """List lines of `## Cross trails` without their dash; None without that heading."""
    mark = section_of(body, CROSS)
    if mark is None:
        return None
    lines = (line.strip() for line in body[mark.body : mark.end].split("\n"))
    return [line[2:].strip() for line in lines if line[:2] in ("- ", "* ")]


def index_lines(body: str, name: str) -> list[tuple[str, str]]:
    """(id, line) of the entries in an engine section."""
    mark = section_of(body, name)
    lines = _section_lines(body, mark)[0] if mark else ()
    return [(entry_id(line), line) for line in lines if entry_id(line)]
