"""What stands in a source: its settings, its tree, its files, and the ids and names that they give.

Owns: `_meta/gardener.yaml`, the meaning of ignore rules, the walk, the reading of documents, the memory of
their hashes, the mapping from paths to ids, the search for the document that a link means.
Must never: write into a source, know a node's text, decide what happens to a node.

Sections: settings · ignore rules · walk · reading and the memory of hashes · ids · names.

Invariants
- A document whose bytes did not change costs one stat. Size, mtime, ctime, inode and device together are
  the proof, since the kernel sets ctime at every change and no caller can set it back. Facts younger than 2
  s when the file was hashed prove nothing yet (a clock tick may hide a change): they are not kept, and the
  file is hashed again next time.
- The same tree and the same placed nodes give the same ids.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import posixpath
import re
import stat
import time
import unicodedata
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator
from urllib.parse import unquote

import converters
import forest
from converters import Unusable
from forest import VineError

if TYPE_CHECKING:
    from gardener import Report

# ---------------------------------------------------------------------------------------------- settings

SETTINGS = "_meta/gardener.yaml"
_SHAPES = {"source_root": str, "dest": str, "sources": dict, "ignore": list, "converters": dict}
_SHAPES |= {"content": str, "archive": str, "curation": dict}
_NAMES = {str: "string", list: "list", dict: "map"}
_OWN_BLOCK = re.compile(r"([\"']?)(?:source_root|dest|sources)\1\s*:")


@dataclass(frozen=True)
class Source:
    """An adopted folder. `dest` is the branch path that its nodes stand under; empty for the forest's
    root."""

    id: str
    root: str
    dest: str


class Settings:
    """`_meta/gardener.yaml`, checked. Raises VineError E_SCHEMA that names the key."""

    def __init__(self, root: Path):
        path = root / SETTINGS
        self.text = path.read_text("utf-8", "replace") if path.is_file() else ""
        self.first_root = ""
        try:
            value = forest.parse_yaml(self.text)
        except VineError as error:
            raise _unusable(f"{error.message.replace('the frontmatter', 'the file')}") from None
        if value is not None and not isinstance(value, dict):
            raise _unusable("the file is no mapping")
        self.values: dict[str, Any] = value or {}
        self._check()
        self.unknown = [key for key in self.values if key not in _SHAPES]
        self.ignore: list[str] = self.values.get("ignore") or []
        self.hooks: dict[str, str] = self.values.get("converters") or {}
        curation = self.values.get("curation") or {}
        self.default_tags = converters.clean_tags(curation.get("default_tags") or [])
        self.sources = self._sources()

    def _check(self) -> None:
        values = {key: value for key, value in self.values.items() if value is not None}
        for key, kind in _SHAPES.items():
            if not isinstance(values.get(key, kind()), kind):
                raise _unusable(f"{key}: must be a {_NAMES[kind]}")
        if not all(isinstance(item, str) for item in values.get("ignore", [])):
            raise _unusable("ignore: must hold strings")
        if not all(isinstance(item, str) for item in values.get("converters", {}).values()):
            raise _unusable("converters: must hold strings")
        self._check_choices(values)
        for id, entry in values.get("sources", {}).items():
            if not isinstance(entry, dict) or not isinstance(entry.get("root"), str):
                raise _unusable(f"sources.{id}: must be a map with root and dest")
            if not isinstance(entry.get("dest") or "", str):
                raise _unusable(f"sources.{id}.dest: must be a string")

    @staticmethod
    def _check_choices(values: dict[str, Any]) -> None:
        if values.get("content", "inline") not in ("inline", "cached", "reference"):
            raise _unusable("content: must be inline, cached or reference")
        if "content" in values and values["content"] != "inline":
            raise _unusable("content: this version keeps bodies inline only")
        if values.get("archive", "never") not in ("always", "never"):
            raise _unusable("archive: must be always or never")
        curation = values.get("curation", {})
        if not isinstance(curation.get("directives") or "", str):
            raise _unusable("curation.directives: must be a string")
        tags = curation.get("default_tags") or []
        if not isinstance(tags, list) or len(tags) > 5 or not all(isinstance(tag, str) for tag in tags):
            raise _unusable("curation.default_tags: must be a list of up to 5 strings")

    def _sources(self) -> dict[str, Source]:
        found = {}
        for id, entry in (self.values.get("sources") or {}).items():
            found[id] = Source(id, entry["root"], (entry.get("dest") or "").strip("/"))
        self.first_root = self.values.get("source_root") or ""
        if self.first_root and all(source.root != self.first_root for source in found.values()):
            id = new_source_id(self.first_root, found)
            found[id] = Source(id, self.first_root, (self.values.get("dest") or "").strip("/"))
        return found

    def first_id(self) -> str | None:
        """The source that nodes without source_id belong to."""
        return next((s.id for s in self.sources.values() if s.root == self.first_root), None)

    def with_source(self, source: Source) -> bytes:
        """The file's new bytes with `source` recorded; other keys and their comments stay as they are."""
        every = self.sources | {source.id: source}
        first = every[self.first_id() or source.id]
        own: dict[str, Any] = {"source_root": first.root, "dest": first.dest}
        own["sources"] = {one.id: {"root": one.root, "dest": one.dest} for one in every.values()}
        blocks = re.split(r"^(?=[^\s#-])", self.text, flags=re.M)
        kept = "".join(block for block in blocks if not _OWN_BLOCK.match(block))
        text = forest.dump_yaml(own) + (kept.rstrip("\n") + "\n" if kept.strip() else "")
        with contextlib.suppress(VineError):
            if forest.parse_yaml(text) == self.values | own:
                return text.encode()
        return forest.dump_yaml(self.values | own).encode()  # a layout that cannot be cut into blocks


def _unusable(message: str) -> VineError:
    return VineError("E_SCHEMA", f"{SETTINGS}: {message}", "Repair the file by hand; nothing was written.")


def new_source_id(root: str, taken: Iterable[str]) -> str:
    """An id for a source folder: the slug of its name, with a number when that is taken."""
    name = slug(os.path.basename(root.rstrip("/")) or "root")
    used = {*taken, "upload", "compose"}
    return next(id for id in (name, *(f"{name}-{n}" for n in range(2, len(used) + 3))) if id not in used)


# ---------------------------------------------------------------------------------------------- ignore rules


@dataclass(frozen=True)
class _Rule:
    pattern: re.Pattern
    keeps: bool  # a line that starts with `!`
    folders_only: bool


def ignore_rules(text: str) -> list[_Rule]:
    """The rules of a `.gitignore`, with git's meaning."""
    rules = []
    for line in text.splitlines():
        line = re.sub(r"(?<!\\)[ \t]+$", "", line)
        if not line or line.startswith("#"):
            continue
        keeps, line = line.startswith("!"), line.removeprefix("!")
        folders_only, line = line.endswith("/"), line.rstrip("/")
        anchored = "/" in line
        if line:
            with contextlib.suppress(re.error):  # a pattern that git would match nothing with
                glob = _glob(line.removeprefix("/"))
                rules.append(
                    _Rule(re.compile(glob if anchored else f"(?:.*/)?{glob}", re.S), keeps, folders_only)
                )
    return rules


def _glob(pattern: str) -> str:
    out, i = "", 0
    while i < len(pattern):
        at_segment = i == 0 or pattern[i - 1] == "/"
        bracket = re.compile(r"\[(!|\^)?(\]?[^\]]*)\]").match(pattern, i)
        if at_segment and pattern.startswith("**/", i):
            out, i = out + "(?:.*/)?", i + 3
        elif at_segment and pattern[i:] == "**":
            out, i = out + ".+", i + 2
        elif pattern[i] == "*":
            out, i = out + "[^/]*", i + 1
        elif pattern[i] == "?":
            out, i = out + "[^/]", i + 1
        elif bracket:
            inner = bracket[2].replace("[", r"\[")
            out, i = out + f"(?!/)[{'^' if bracket[1] else ''}{inner}]", bracket.end()
        else:
            i += pattern[i] == "\\" and i + 1 < len(pattern)
            out, i = out + re.escape(pattern[i]), i + 1
    return out


def _ignored(chain: list[tuple[str, list[_Rule]]], path: str, is_folder: bool) -> bool:
    """Whether the last rule that matches `path` ignores it. `chain` holds (folder with final `/`, rules),
    root first."""
    for base, rules in reversed(chain):
        below = path[len(base) :]
        for rule in reversed(rules):
            if (is_folder or not rule.folders_only) and rule.pattern.fullmatch(below):
                return not rule.keeps
    return False


# ---------------------------------------------------------------------------------------------- walk

MAX_DEPTH = 64
MAX_DOCUMENTS = 100_000
MAX_BYTES = 25 * 2**20
_IGNORED_FOLDERS = frozenset(("__pycache__", "node_modules", "_derived", "_assets"))
_IGNORED_FILES = re.compile(r"~\$.*|.*\.tmp|.*\.lock|Thumbs\.db|desktop\.ini", re.S)
_SAVE_AS = {".doc": ".docx", ".ppt": ".pptx", ".rtf": ".docx", ".odt": ".docx", ".ods": ".xlsx"}
_INDEX_NAMES = [stem + ext for stem in ("_index", "index", "readme") for ext in (".md", ".markdown")]


@dataclass
class Document:
    """One file of a source, as the walk saw it."""

    path: str  # below the source's root, NFC, `/`
    file: str  # where it is opened, links resolved
    facts: os.stat_result

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]


@dataclass
class Walk:
    """What stands in a source. `blind` are folders that could not be read: nothing below them counts as
    gone."""

    documents: list[Document] = field(default_factory=list)
    folders: set[str] = field(default_factory=lambda: {""})
    blind: list[str] = field(default_factory=list)


class Walker:
    """Reads a source's tree, in order of path segments."""

    def __init__(self, root: str, settings: Settings, report: Report):
        self.root, self.report, self.settings = root, report, settings
        self.real = os.path.realpath(root)
        self.own = [("", ignore_rules("\n".join(settings.ignore)))]
        self.walk = Walk()

    def run(self) -> Walk:
        self._folder(self.root, "", [], 0)
        return self.walk

    def _folder(self, folder: str, rel: str, chain: list, depth: int) -> None:
        if depth > MAX_DEPTH:
            self.walk.blind.append(rel)
            return self.report.fail(rel, "path_too_long", f"folders are followed {MAX_DEPTH} levels deep")
        try:
            entries = list(os.scandir(folder))
            chain = chain + [(rel and rel + "/", self._rules(folder, entries))]
        except OSError:
            self.walk.blind.append(rel)
            return self.report.fail(rel or ".", "unreadable", "the folder cannot be read")
        named = [(unicodedata.normalize("NFC", entry.name), entry) for entry in entries]
        named.sort(key=lambda pair: pair[0])
        seen: set[str] = set()
        for name, entry in named:
            path = f"{rel}/{name}" if rel else name
            if name in seen or forest.has_breaks(name) or any(0xD800 <= ord(char) < 0xE000 for char in name):
                shown = forest.one_line(path.encode("utf-8", "replace").decode())
                self.report.fail(shown, "unreadable", "the name is no plain text, or stands twice here")
                continue
            seen.add(name)
            self._entry(entry, name, path, chain, depth)

    @staticmethod
    def _rules(folder: str, entries: list[os.DirEntry]) -> list[_Rule]:
        if not any(entry.name == ".gitignore" and entry.is_file(follow_symlinks=False) for entry in entries):
            return []
        with open(os.path.join(folder, ".gitignore"), "rb") as file:
            return ignore_rules(file.read().decode("utf-8-sig", "replace"))

    def _entry(self, entry: os.DirEntry, name: str, path: str, chain: list, depth: int) -> None:
        is_folder = entry.is_dir(follow_symlinks=False)
        fixed = name in _IGNORED_FOLDERS if is_folder else bool(_IGNORED_FILES.fullmatch(name))
        if name.startswith("."):
            return self.report.skip(path, "hidden")
        if fixed or _ignored(chain, path, is_folder) or _ignored(self.own, path, is_folder):
            return self.report.skip(path, "ignored")
        file = entry.path
        if entry.is_symlink():
            file = os.path.realpath(entry.path)
            if not os.path.isfile(file) or not file.startswith(self.real.rstrip("/") + "/"):
                return self.report.skip(path, "symlink")
        if is_folder:
            if os.path.lexists(f"{file}/_index.md") and os.path.lexists(f"{file}/_meta/schema.md"):
                return self.report.skip(path, "nested_forest")
            self.walk.folders.add(path)
            return self._folder(file, path, chain, depth + 1)
        try:
            facts = os.stat(file) if entry.is_symlink() else entry.stat(follow_symlinks=False)
        except OSError:
            return self.report.fail(path, "unreadable", "the file cannot be read")
        if not stat.S_ISREG(facts.st_mode):
            return self.report.skip(path, "not_a_file")
        self._file(Document(path, file, facts))

    def _file(self, document: Document) -> None:
        extension = converters.split_name(document.name)[1]
        if extension not in converters.EXTENSIONS:
            self.report.lists["unsupported"].append(document.path)
            code = "unsupported_type"
            message = f"no converter for {extension or 'files without an extension'}"
            if extension in self.settings.hooks:
                code, message = "hook_not_allowed", f"the converter command for {extension} is not run"
            elif extension in _SAVE_AS:
                message += f"; save it as {_SAVE_AS[extension]}"
            self.report.note(document.path, code, message)
        elif document.facts.st_size == 0:
            self.report.skip(document.path, "empty")
        else:
            self.walk.documents.append(document)
            if len(self.walk.documents) > MAX_DOCUMENTS:
                raise VineError("E_SCHEMA", f"the source holds over {MAX_DOCUMENTS} documents")


def index_documents(documents: list[Document]) -> dict[str, str]:
    """By folder, the path of the document that may be the text of the folder's branch."""
    best: dict[str, tuple[int, str]] = {}
    for document in documents:
        name = document.name.lower()
        if name in _INDEX_NAMES:
            rank = (_INDEX_NAMES.index(name), document.path)
            best[document.folder] = min(best.get(document.folder, rank), rank)
    return {folder: path for folder, (_, path) in best.items()}


# --------------------------------------------------------------------------- reading and the memory of hashes

_SETTLED = 2_000_000_000  # ns; the coarsest clock of a file system that is trusted


def _marks(facts: os.stat_result) -> list[int]:
    return [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino, facts.st_dev]


def read_document(document: Document) -> tuple[bytes, str]:
    """The bytes of a document and their sha256; its facts become those of the bytes that were read.

    Raises Unusable `too_large`, `unreadable`, `changed_while_read`.
    """
    if document.facts.st_size > MAX_BYTES:
        raise Unusable("too_large", f"{document.facts.st_size} bytes; the limit is {MAX_BYTES}")
    try:
        with open(
            os.open(document.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb"
        ) as file:
            before = os.fstat(file.fileno())
            data = file.read(MAX_BYTES + 1)
            document.facts = os.fstat(file.fileno())
    except OSError:
        raise Unusable("unreadable", "the file cannot be read") from None
    if _marks(before) != _marks(document.facts) or len(data) != before.st_size:
        raise Unusable("changed_while_read", "the file changed while it was read; sync again")
    return data, hashlib.sha256(data).hexdigest()


class Memory:
    """Hashes of a source's files beside the stat facts that they were true for. Losing it costs time only."""

    def __init__(self, root: Path, source_id: str):
        self.path = (
            root / "_derived" / "cache" / f"source-{hashlib.sha256(source_id.encode()).hexdigest()[:16]}.json"
        )
        self.entries: dict[str, list] = {}
        with contextlib.suppress(OSError, ValueError):
            loaded = json.loads(self.path.read_bytes())
            self.entries = loaded if isinstance(loaded, dict) else {}
        self.changed = False

    def known(self, document: Document) -> str | None:
        entry = self.entries.get(document.path)
        return entry[-1] if entry and entry[:-1] == _marks(document.facts) else None

    def learn(self, document: Document, digest: str) -> None:
        marks = _marks(document.facts)
        if document.facts.st_ctime_ns < time.time_ns() - _SETTLED:
            self.entries[document.path] = [*marks, digest]
            self.changed = True

    def save(self, paths: set[str]) -> None:
        if not self.changed and len(self.entries) <= len(paths):
            return
        kept = {path: entry for path, entry in self.entries.items() if path in paths}
        part = self.path.with_suffix(f".{os.getpid()}.part")
        with contextlib.suppress(OSError):  # a forest whose _derived cannot be written hashes again next time
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(kept, ensure_ascii=False, separators=(",", ":")))
            part.replace(self.path)


# ---------------------------------------------------------------------------------------------- ids


def slug(segment: str) -> str:
    """A segment of an id from a file or folder name: lower case, every script kept, other runs as `-`."""
    text = unicodedata.normalize("NFC", unicodedata.normalize("NFC", segment).lower())
    if text.isascii():
        text = re.sub(r"[^a-z0-9._-]+", "-", text)
    else:
        text = re.sub("\x00+", "-", "".join(c if _may_stand(c) else "\x00" for c in text))
    while text and (text[0] in "-._" or unicodedata.category(text[0])[0] == "M"):
        text = text[1:]
    text = text.rstrip("-._")
    if len(text) > 80 or len(text.encode()) > 200:
        head = text[:73]
        while len(head.encode()) > 190:
            head = head[:-1]
        text = f"{head}-{_hex6(unicodedata.normalize('NFC', segment))}"
    return text or "node"


def _may_stand(char: str) -> bool:
    category = unicodedata.category(char)
    return category[0] in "LM" or category == "Nd" or char in "._-"


def _hex6(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _folder_slug(name: str) -> str:
    return re.sub(r"\.(db|sqlite)\Z", r"-\1", slug(name))


class Ids:
    """Where documents go. Folders that already have nodes keep their branch, whatever today's mapping would
    say."""

    def __init__(self, dest: str, placed: dict[str, str], is_twin: Callable[[str], bool]):
        """`placed` maps the source paths of existing nodes to their ids; `is_twin(id)` tells that the forest
        has an id that differs by letter case only."""
        self.dest, self.is_twin = dest, is_twin
        self.folders: dict[str, str] = {"": dest}
        for path, id in placed.items():
            self._learn(path.rpartition("/")[0], forest.parent_of(id) if not forest.is_branch_id(id) else id)
        self.taken = {forest.twin_key(branch) for branch in self.folders.values()}

    def _learn(self, folder: str, branch: str | None) -> None:
        prefix = (branch or forest.MASTER).removesuffix("_index").rstrip("/")
        names, segments = folder.split("/") if folder else [], prefix.split("/") if prefix else []
        base = self.dest.split("/") if self.dest else []
        if segments[: len(base)] == base and len(segments) == len(base) + len(names):
            for n in range(1, len(names) + 1):
                self.folders.setdefault("/".join(names[:n]), "/".join(segments[: len(base) + n]))

    def folder(self, folder: str) -> str:
        """The id prefix of a source folder, without final `/`; of two folders with one slug the later gets a
        hash."""
        if folder not in self.folders:
            above, _, name = folder.rpartition("/")
            base = self.folder(above)
            prefix = f"{base}/{_folder_slug(name)}" if base else _folder_slug(name)
            if forest.twin_key(prefix) in self.taken or self.is_twin(f"{prefix}/{forest.MASTER}"):
                prefix = f"{prefix}-{_hex6(folder)}"
            self.folders[folder] = prefix
            self.taken.add(forest.twin_key(prefix))
        return self.folders[folder]

    def branch(self, folder: str) -> str | None:
        """The branch of a source folder; None where it lies too deep to have one."""
        prefix = self.folder(folder)
        return None if prefix.count("/") > 6 else f"{prefix}/_index" if prefix else forest.MASTER

    def leaves(self, path: str) -> Iterator[str]:
        """Ids for a document, the wanted one first. Raises Unusable `path_too_long` when none can fit."""
        folder, _, name = path.rpartition("/")
        stem, extension = converters.split_name(name)
        leaf = re.sub(r"\.md\Z", "-md", slug(stem))
        for ending in ("", f"-{extension[1:]}", f"-{_hex6(path)}", f"-{_hex6(path)}-2"):
            yield self._fitted(self.folder(folder), leaf, ending)

    @staticmethod
    def _fitted(prefix: str, leaf: str, ending: str) -> str:
        segments = prefix.split("/") if prefix else []
        if len(segments) > 7:
            segments, leaf = segments[:7], slug("-".join([*segments[7:], leaf]))
        base = "".join(segment + "/" for segment in segments)
        room = min(100, 240 - len(base)) - len(ending)
        if room < 1:
            raise Unusable("path_too_long", "the path gives an id of over 240 characters")
        id = base + (leaf[:room].rstrip("-._") or "node"[:room]) + ending
        try:
            return forest.check_id(id)
        except VineError:
            raise Unusable("path_too_long", "the path gives no id that the forest can hold") from None


# ---------------------------------------------------------------------------------------------- names


_LINKED = {*converters.EXTENSIONS, ".html", ".htm"}  # site generators publish a page as html


class Names:
    """Finds the document that a link means: by path, then by file name, then by title, alias or page
    address."""

    def __init__(self, paths: Iterable[str], folders: Iterable[str], indexes: dict[str, str]):
        self.by_path: dict[str, str] = {}
        self.by_name: dict[str, list[str]] = defaultdict(list)
        self.by_title: dict[str, list[str]] = defaultdict(list)
        for path in paths:
            bare = path[: -len(converters.split_name(path.rpartition("/")[2])[1]) or None]
            self.by_path[path.casefold()] = path
            self.by_path.setdefault(bare.casefold(), path)
            self.by_name[bare.rpartition("/")[2].casefold()].append(path)
        for folder in filter(None, folders):
            self.by_path.setdefault(folder.casefold(), indexes.get(folder, folder + "/"))

    def add_title(self, path: str, names: Iterable[str]) -> None:
        for name in names:
            self.by_title[name.strip().strip("/").casefold()].append(path)

    def find(self, target: str, origin: str, titles: bool) -> str | None:
        """The path of a document (or of a folder, with a final `/`) that `target`, written in `origin`,
        means."""
        target = unicodedata.normalize("NFC", unquote(target)).strip()
        folder = origin.rpartition("/")[0]
        for base in (folder, "") if not target.startswith("/") else ("",):
            path = posixpath.normpath(posixpath.join(base, target.lstrip("/") or "."))
            if path.startswith("..") or path == ".":
                continue
            for wanted in (path, re.sub(r"\.html?\Z", "", path)):
                found = self.by_path.get(wanted.casefold())
                if found and found != origin:
                    return found
        name = target.rstrip("/").rpartition("/")[2]
        stem, extension = converters.split_name(name)
        hits = self.by_name.get((stem if extension in _LINKED else name).casefold(), [])
        if not hits and titles:
            hits = self.by_title.get(target.strip("/").casefold(), [])
        nearest = ((_distance(folder, path.rpartition("/")[0]), len(path), path) for path in hits)
        return min(nearest, default=(0, 0, None))[2]


def _distance(one: str, other: str) -> int:
    """Steps between two folders."""
    a, b = one.split("/") if one else [], other.split("/") if other else []
    shared = len(os.path.commonprefix([a, b]))
    return len(a) + len(b) - 2 * shared
