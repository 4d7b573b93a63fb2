"""The Gardener: from folders of documents to nodes, and again when the folders change.

Owns: adopt and sync, the match of documents with their nodes, the order in which they land, the report.
Must never: write into a source, or into the forest by itself (the engine's `writing` does); hold the writer
lock while it reads or converts.

Sections: report · batch · preview · slot · adopt and sync.

The way of a batch: settings -> walk -> sort out (unchanged, moved, to convert, gone) -> moves land ->
documents are read, converted and land in chunks -> a second look at their links -> what is gone is told or
pruned -> report.

Invariants
- One landing is one commit. A killed batch leaves whole commits, and the slot's note tells the next batch
  to look again at the links of what had landed.
- A document is in one list of the report only.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import posixpath
import signal
import threading
import time
import unicodedata
from collections import Counter, defaultdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, Iterator

import converters
import forest
from converters import Unusable
from forest import Node, VineError
from landing import (
    Item,
    Landing,
    committed_bases,
    has_twin,
    linking,
    mentioning,
    names_of,
    page_addresses,
    taken,
    titles_below,
)
from sources import (
    SETTINGS,
    Document,
    Ids,
    Memory,
    Names,
    Settings,
    Source,
    Walk,
    Walker,
    index_documents,
    new_source_id,
    read_document,
)

log = logging.getLogger("vine.gardener")
Progress = Callable[[int, int, str], None]
Tell = Callable[[str], None]

# ---------------------------------------------------------------------------------------------- report

_STRINGS = "planted updated unchanged stale pruned branches branches_new unsupported errors".split()
_RECORDS = {"moved": "path", "duplicates": "path", "conflicts": "id"}  # sorted by this key


class Report:
    """What a batch did, in the shape that every surface shows."""

    def __init__(self, mode: str, head: str | None):
        self.mode, self.head = mode, head
        self.lists: dict[str, list] = {name: [] for name in (*_STRINGS, *_RECORDS)}
        self.details: list[dict] = []
        self.reasons: Counter[str] = Counter()
        self.skipped: list[str] = []
        self.commits: list[str] = []

    def skip(self, path: str, reason: str) -> None:
        self.reasons[reason] += 1
        self.skipped.append(path)

    def note(self, path: str, code: str, message: str, id: str | None = None) -> None:
        self.details.append({"path": path, "id": id, "code": code, "message": message})

    def fail(self, path: str, code: str, message: str, id: str | None = None) -> None:
        self.lists["errors"].append(f"{path}: {message}")
        self.note(path, code, message, id)

    def finished(self, interrupted: bool = False) -> dict:
        """The report as a dict; every list is there and sorted, none is cut."""
        lists = {name: sorted(set(self.lists[name])) for name in _STRINGS}
        lists |= {
            name: sorted(self.lists[name], key=lambda told: told[key]) for name, key in _RECORDS.items()
        }
        details = sorted(self.details, key=lambda told: (told["path"], told["code"], told["message"]))
        reasons, paths = dict(sorted(self.reasons.items())), sorted(self.skipped)[:100]
        return (
            lists
            | {"skipped": {"count": len(self.skipped), "reasons": reasons, "paths": paths}}
            | {"details": details, "mode": self.mode, "staged": [], "commits": self.commits}
            | {"commit_before": self.head, "commit": self.commits[-1] if self.commits else None}
            | {"rollup": None, "curated": False, "bound": False, "curation": None}
            | {"counts": {name: len(items) for name, items in lists.items()} | {"details": len(details)}}
            | ({"interrupted": True} if interrupted else {})
        )


# ---------------------------------------------------------------------------------------------- batch

CHUNK = 200  # documents of one commit
CHUNK_BYTES = 2 * 2**20  # of their files, so that no landing holds the writer lock for long
CHUNK_SECONDS = 5.0  # from the first document that is ready to its commit
LOCK_PATIENCE = 60.0  # seconds that a landing waits for other writers before the batch gives up


class _DropOne(Exception):
    """A document that cannot land; the others of its chunk land without it."""

    def __init__(self, path: str, code: str, message: str):
        super().__init__(message)
        self.path, self.code, self.message = path, code, message


class Batch:
    """One source's part of an adopt or sync."""

    def __init__(self, vine, source: Source, settings: Settings, report: Report, walk: Walk, tell: Tell):
        self.vine, self.source, self.settings = vine, source, settings
        self.report, self.walk, self.tell = report, walk, tell
        self.default_id = settings.first_id()
        self.config: bytes | None = None  # gardener.yaml to be written with the first commit
        self.preview: Preview | None = None
        self.interrupted = False
        ours = (record for record in vine.sources() if record.get("source_path") and self.belongs(record))
        self.records = {record["source_path"]: record for record in ours if not record.get("incoming_for")}
        self.placed = {path: record["id"] for path, record in self.records.items()}
        self.ids_of = Ids(source.dest, self.placed, lambda id: has_twin(vine, id))
        self.indexes = index_documents(walk.documents)
        paths = {**dict.fromkeys(document.path for document in walk.documents), **self.placed}
        self.names = Names(paths, walk.folders, self.indexes)
        self.memory = Memory(vine.root, source.id)
        self.ours: dict[str, bool] = {}
        self.waiting: set[str] = set()
        self.titled: set[str] = set()  # paths whose titles are among the names
        self.ready: list[Item] = []
        self.ready_since = 0.0
        self._children: dict[str, dict[str, str]] = {}

    # -- what landings ask ------------------------------------------------------------------------

    def belongs(self, keys: dict) -> bool:
        return (keys.get("source_id") or self.default_id) == self.source.id

    def base_of(self, node: Node) -> dict[str, str]:
        """The bases of a node's parts; for a node from before bases were kept, what ingest committed last."""
        base = node.fields.get("source_base")
        return base if isinstance(base, dict) else committed_bases(self.vine, node.id)

    def source_keys(self, item: Item, kept: Node | None = None) -> dict[str, Any]:
        """The ingest keys of a document; with `kept` those of a conversion stay as that node has them."""
        facts, converted = item.document.facts, item.converted
        keys: dict[str, Any] = {
            "source_id": self.source.id,
            "source_path": item.document.path,
            "source_hash": item.digest,
        }
        keys |= {"source_size": facts.st_size, "source_mtime": round(facts.st_mtime, 3)}
        if kept is None:
            keys |= {"source_encoding": converted.encoding, "source_front": converted.front or None}
        return keys

    def folder_title(self, branch: str) -> str:
        prefix = branch.removesuffix("/_index")
        folder = next((name for name, at in self.ids_of.folders.items() if at == prefix and name), prefix)
        return converters.stem_title(folder.rpartition("/")[2])

    def children(self, branch: str) -> dict[str, str]:
        """Titles of what stands under a branch, by id."""
        if branch not in self._children:
            self._children[branch] = titles_below(self.vine, branch)
        return self._children[branch]

    def learn_titles(self) -> None:
        """Make the titles, aliases and addresses of all placed documents known to the names."""
        ids = {id: path for path, id in self.placed.items() if path not in self.titled}
        for id, names in names_of(self.vine, ids).items():
            self.names.add_title(ids[id], names)
            self.titled.add(ids[id])

    # -- the run ----------------------------------------------------------------------------------

    def run(self, prune: bool, unfinished: bool, only: str | None = None) -> None:
        """Bring the forest up to the walk. After Ctrl-C what is converted lands and the rest is left."""
        try:
            work, moves, gone = self._sort_out()
            for start in range(0, len(moves), CHUNK):
                self._land_moves(moves[start : start + CHUNK])
            self._convert(work)
            self._land_ready()
            self._second_look(set(self.placed) if unfinished else set())
            self._gone([r for r in gone if only in (None, r["source_path"])], prune)
        except KeyboardInterrupt:
            self.interrupted = True
            self._land_ready()
        if self.config is not None:
            self.commit(lambda landing: None)
        if self.preview is None:
            walked = {document.path for document in self.walk.documents}
            self.memory.save(walked if only is None else walked | set(self.memory.entries))

    def _sort_out(self) -> tuple[list[Document], list[Item], list[dict]]:
        """(documents to convert, documents that moved, records whose document is gone)."""
        work, new = [], []
        walked = {document.path for document in self.walk.documents}
        absent = (path for path in self.records if path not in walked and not self._out_of_sight(path))
        gone = [self.records[path] for path in absent]
        for document in self.walk.documents:
            record = self.records.get(document.path)
            if record is None and gone:
                new.append(document)
            elif record is not None and self._digest(document) == record.get("source_hash"):
                self.tell(document.path)
                self.report.lists["unchanged"].append(record["id"])
            else:
                work.append(document)
        moves = self._matched(new, gone)
        moved = {item.document.path for item in moves}
        work = sorted(work + [d for d in new if d.path not in moved], key=lambda d: d.path.split("/"))
        left = {item.record["id"] for item in moves}
        return work, moves, [record for record in gone if record["id"] not in left]

    def _out_of_sight(self, path: str) -> bool:
        return any(not folder or path.startswith(folder + "/") for folder in self.walk.blind)

    def _digest(self, document: Document) -> str:
        """The hash of a document; empty when it cannot be had, which is told when it is converted."""
        digest = self.memory.known(document) or ""
        if not digest:
            with contextlib.suppress(Unusable):
                digest = read_document(document)[1]
                self.memory.learn(document, digest)
        return digest

    def _matched(self, new: list[Document], gone: list[dict]) -> list[Item]:
        """Moved documents with their records: the same name wins, then the same folder, then path order."""
        by_hash: dict[str, list[dict]] = defaultdict(list)
        for record in sorted(gone, key=lambda r: r["source_path"]):
            by_hash[record.get("source_hash", "")].append(record)
        left = {document.path: (document, self._digest(document)) for document in new}
        items = []
        for same in (lambda p: p.rpartition("/")[2], lambda p: p.rpartition("/")[0], lambda p: ""):
            for path, (document, digest) in list(left.items()):
                for record in by_hash.get(digest, ()):
                    if same(record["source_path"]) == same(path) and self._may_move(record, path):
                        by_hash[digest].remove(record)
                        items.append(Item(document, digest, None, record))
                        del left[path]
                        break
        return items

    def _may_move(self, record: dict, path: str) -> bool:
        """The text of a branch stays with its folder; all else goes where its document went."""
        folder = path.rpartition("/")[0]
        if forest.is_branch_id(record["id"]):
            return record["source_path"].rpartition("/")[0] == folder and self.indexes.get(folder) == path
        return True

    def _convert(self, work: list[Document]) -> None:
        for document in work:
            self.tell(document.path)
            record = self.records.get(document.path)
            id = record["id"] if record else None
            try:
                data, digest = read_document(document)
                converted = converters.convert(document.name, data)
            except Unusable as error:
                if error.code == "empty":
                    self.report.skip(document.path, "empty")
                else:
                    self.report.fail(document.path, error.code, error.message, id)
                continue
            except Exception:
                log.exception("conversion failed")
                self.report.fail(document.path, "internal", "the converter failed", id)
                continue
            self.memory.learn(document, digest)
            converted.tags = list(dict.fromkeys(converted.tags + self.settings.default_tags))[:20]
            told = [converted.title, *converted.aliases, *page_addresses(converted.front)]
            self.names.add_title(document.path, told)
            self.titled.add(document.path)
            self.ready_since = self.ready_since if self.ready else time.monotonic()
            self.ready.append(Item(document, digest, converted, record))
            if self._is_chunk():
                self._land_ready()

    def _is_chunk(self) -> bool:
        """Whether what is ready should land now."""
        size = sum(item.document.facts.st_size for item in self.ready)
        waited = time.monotonic() - self.ready_since
        return len(self.ready) >= CHUNK or size > CHUNK_BYTES or waited > CHUNK_SECONDS

    # -- landings ---------------------------------------------------------------------------------

    def _land_ready(self) -> None:
        while self.ready:
            try:
                self.commit(self._land_documents)
            except _DropOne as drop:
                self.ready = [item for item in self.ready if item.document.path != drop.path]
                record = self.records.get(drop.path)
                self.report.fail(drop.path, drop.code, drop.message, record["id"] if record else None)

    def _land_documents(self, landing: Landing) -> None:
        for act, known in ((landing.place, False), (landing.plant, False), (landing.refresh, True)):
            for item in self.ready:
                if bool(item.record) != known:
                    continue
                try:
                    act(item)
                except Unusable as error:
                    raise _DropOne(item.document.path, error.code, error.message) from None
                except VineError as error:
                    if error.code not in ("E_SCHEMA", "E_FRONTMATTER", "E_NOT_FOUND"):
                        raise
                    message = "the forest cannot hold this document"
                    raise _DropOne(item.document.path, "internal", message) from error
        landing.items = self.ready
        for item in self.ready:
            for code, message in item.converted.warnings:
                id = landing.ids.get(item.document.path) or item.record["id"]
                landing.warnings.append((item.document.path, code, message, id))

    def _land_moves(self, moves: list[Item]) -> None:
        referrers = mentioning(self.vine, {item.record["id"] for item in moves})

        def act(landing: Landing) -> None:
            for item in moves:
                self.tell(item.document.path)
                landing.move(item)
            names = {told["from"]: told["to"] for told in landing.lists["moved"]}
            landing.follow(names, referrers)

        self.commit(act)

    def _second_look(self, more: set[str]) -> None:
        """Links to documents that landed later, and links by title, once everything has landed."""
        paths = sorted(self.waiting | more)
        if paths:
            self.learn_titles()
        for start in range(0, len(paths), CHUNK):
            chunk = [(path, self.placed[path]) for path in paths[start : start + CHUNK]]
            self.commit(lambda landing: [landing.relink(path, id) for path, id in chunk])

    def _gone(self, gone: list[dict], prune: bool) -> None:
        if not prune:
            self.report.lists["stale"] += [record["id"] for record in gone]
            return
        for start in range(0, len(gone), CHUNK):
            chunk = gone[start : start + CHUNK]
            referrers = {record["id"]: linking(self.vine, record["id"]) for record in chunk}

            def act(landing: Landing) -> None:
                for record in chunk:
                    landing.prune(record, referrers[record["id"]])
                landing.clear_branches()

            self.commit(act)

    def commit(self, act: Callable[[Landing], Any]) -> None:
        """Make one landing and remember what it made. Waits for other writers up to LOCK_PATIENCE."""
        deadline = time.monotonic() + LOCK_PATIENCE
        with _uninterrupted():
            while True:
                try:
                    with self._transaction() as tx:
                        landing = Landing(self, tx)
                        act(landing)
                        landing.describe()
                        commit = self._published(landing, tx)
                    break
                except VineError as error:
                    if error.code != "E_LOCKED" or time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)
            self._merge(landing, commit)

    def _transaction(self):
        return contextlib.nullcontext(self.preview) if self.preview else self.vine.writing("adopt")

    def _published(self, landing: Landing, tx) -> str | None:
        subject, ids = landing.subject()
        if self.config is not None:
            tx.file(SETTINGS, self.config)
        return tx.commit(subject or f"gardener(source): {self.source.id}", ids)

    def _merge(self, landing: Landing, commit: str | None) -> None:
        report, lists = self.report.lists, landing.lists
        self.config = None
        self.ready = [] if landing.items else self.ready
        if commit:
            self.report.commits.append(commit)
        for name in ("planted", "updated", "unchanged", "moved", "conflicts", "pruned"):
            report[name] += lists[name]
        report["updated"] += set(lists["relinked"]) - set(report["planted"]) - set(report["updated"])
        report["unchanged"] = [id for id in report["unchanged"] if id not in set(lists["relinked"])]
        for id in [*lists["planted"], *lists["pruned"], *(told["to"] for told in lists["moved"])]:
            report["branches"].append(forest.parent_of(id))
        report["branches"] += landing.made
        report["branches_new"] += landing.made
        for path, id, message in landing.unresolved:
            self.report.note(path, "link_unresolved", message, id)
        for path, code, message, id in landing.warnings:
            self.report.note(path, code, message, id)
        left = {told["from"] for told in lists["moved"]}
        self.placed = {path: id for path, id in self.placed.items() if id not in left} | landing.ids
        self.ours |= dict.fromkeys(landing.made, True)
        self.waiting |= landing.waiting
        for branch, titles in landing.titles.items():
            if branch in self._children:
                children = self._children[branch] | titles
                self._children[branch] = {id: title for id, title in children.items() if title is not None}


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until the block is done, so that what landed is also known to have landed."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return
    came: list[int] = []
    old = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)
    if came:
        raise KeyboardInterrupt


# ---------------------------------------------------------------------------------------------- preview


class Preview:
    """Stands in for the engine's transaction in a dry run: knows what would be, writes nothing."""

    def __init__(self, vine):
        self.vine = vine
        self.changed: dict[str, Node | None] = {}

    def node(self, id: str) -> Node | None:
        if id in self.changed:
            return self.changed[id]
        with contextlib.suppress(VineError):
            return self.vine.node(id)
        return None

    def exists(self, id: str) -> bool:
        key = forest.twin_key(id)
        pending = any(
            node is not None and forest.twin_key(other) == key for other, node in self.changed.items()
        )
        return pending or (id not in self.changed and taken(self.vine, id))

    def put(self, id: str, fields: dict, body: str) -> None:
        self.changed[id] = Node(id, fields, body)

    def remove(self, id: str) -> None:
        self.changed[id] = None

    def move(self, old: str, new: str) -> None:
        node = self.node(old)
        self.changed |= {old: None, new: Node(new, node.fields | {"id": new}, node.body)}

    def file(self, path: str, data: bytes) -> None:
        """A dry run leaves settings alone."""

    def commit(self, subject: str, ids: tuple[str, ...] = ()) -> None:
        return None


# ---------------------------------------------------------------------------------------------- slot


class _Slot:
    """The one batch of a forest, over all processes. `unfinished` tells that the batch before this one died
    or was stopped; `finished` is set by a batch that came to its end."""

    def __init__(self, unfinished: bool):
        self.unfinished, self.finished = unfinished, False


@contextlib.contextmanager
def _slot(root: Path) -> Iterator[_Slot]:
    path = root / "_derived" / "cache" / "ingest.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError:
        raise VineError("E_READONLY", "the forest's folder cannot be written") from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.pread(fd, 200, 0).decode("utf-8", "replace")
            hint = "Wait for it to finish, or stop it."
            raise VineError(
                "E_LOCKED", f"an ingest job is already running on this forest: {who}", hint
            ) from None
        slot = _Slot(os.fstat(fd).st_size > 0)
        since = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"pid {os.getpid()}, started {since}".encode(), 0)
        yield slot
        if slot.finished:
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)


# --------------------------------------------------------------------------------------------- adopt and sync


def adopt(
    vine,
    source: str,
    dest: str | None = None,
    prune: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> dict:
    """Mirror a folder into the forest and record it as a source; a recorded folder is synced.

    `source` is the folder, `dest` the branch path for its nodes (None: the forest's root), `prune` removes
    unedited nodes whose document is gone, `dry_run` reports what would happen and writes nothing.
    `progress(done, total, current)` is called for each document. Returns the report, with `interrupted` after
    Ctrl-C. Raises VineError E_SCHEMA for an unusable folder, dest or gardener.yaml, E_LOCKED while another
    batch runs.
    """
    root = os.path.abspath(os.path.expanduser(source))
    settings = Settings(vine.root)
    _check_folder(vine.root, root)
    recorded = next((s for s in settings.sources.values() if _same(s.root, root)), None)
    wanted = None if dest is None else _checked_dest(vine, dest)
    if recorded and wanted not in (None, recorded.dest):
        raise VineError("E_SCHEMA", f"dest: this folder is recorded with dest {recorded.dest or '(root)'}")
    target = recorded or Source(new_source_id(root, settings.sources), root, wanted or "")
    return _run(vine, "adopt", settings, [target], prune, dry_run, progress)


def sync(
    vine,
    source: str | None = None,
    path: str | None = None,
    prune: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> dict:
    """Bring the nodes of recorded sources up to their folders.

    `source` is an id or a recorded folder (None: all of them), `path` one document, relative to its source's
    root. Everything else as in `adopt`.
    """
    settings = Settings(vine.root)
    chosen = _chosen(settings, source)
    if path is not None:
        if len(chosen) > 1:
            raise VineError("E_SCHEMA", "source: name the one that path is in", ", ".join(settings.sources))
        path = _checked_path(chosen[0].root, path)
    for one in chosen:
        _check_folder(vine.root, one.root)
    return _run(vine, "sync", settings, chosen, prune, dry_run, progress, path)


def _chosen(settings: Settings, source: str | None) -> list[Source]:
    known = list(settings.sources.values())
    if not known:
        raise VineError("E_SCHEMA", "no source is recorded in this forest", "Start with `vine adopt FOLDER`.")
    if source is None:
        return known
    root = os.path.abspath(os.path.expanduser(source))
    for one in known:
        if source == one.id or _same(one.root, root):
            return [one]
    if len(known) == 1 and not os.path.isdir(known[0].root) and os.path.isdir(root):
        return [Source(known[0].id, root, known[0].dest)]  # the folder was moved as a whole
    raise VineError("E_SCHEMA", f"source: not recorded: {source}", "Recorded: " + ", ".join(settings.sources))


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _check_folder(forest_root: Path, root: str) -> None:
    if not os.path.isdir(root):
        raise VineError("E_SCHEMA", f"source: no such folder: {root}")
    inner, outer = os.path.realpath(forest_root), os.path.realpath(root)
    if (inner + "/").startswith(outer.rstrip("/") + "/") or outer.startswith(inner + "/"):
        raise VineError("E_SCHEMA", "source: the folder is, holds or lies in this forest")


def _checked_dest(vine, dest: str) -> str:
    """A branch path without outer slashes and final `/_index`; E_SCHEMA when no branch may stand there."""
    dest = dest.strip("/")
    dest = "" if dest == forest.MASTER else dest.removesuffix("/" + forest.MASTER)
    if not dest:
        return ""
    try:
        forest.check_id(f"{dest}/{forest.MASTER}")
    except VineError as error:
        raise VineError("E_SCHEMA", f"dest: {error.message}", error.hint) from None
    if taken(vine, dest):
        raise VineError("E_SCHEMA", f"dest: {dest} is a leaf, not a branch")
    return dest


def _checked_path(root: str, path: str) -> str:
    if os.path.isabs(path):
        raise VineError("E_SCHEMA", "path: must be relative to the source's root")
    full = os.path.realpath(os.path.join(root, path))
    if os.path.isdir(full) or not full.startswith(os.path.realpath(root).rstrip("/") + "/"):
        raise VineError("E_SCHEMA", "path: must name a file inside the source")
    return unicodedata.normalize("NFC", posixpath.normpath(path))


def _run(
    vine,
    mode: str,
    settings: Settings,
    sources: list[Source],
    prune: bool,
    dry_run: bool,
    progress: Progress | None,
    only: str | None = None,
) -> dict:
    if not dry_run:
        vine.store.git.check_free()
    vine.catalog.check(force=True)
    report = Report(mode, vine.store.git.head())
    for key in settings.unknown:
        report.note(SETTINGS, "config", f"unknown key {key}")
    with contextlib.nullcontext(_Slot(False)) if dry_run else _slot(vine.root) as slot:
        if Settings(vine.root).text != settings.text:
            raise VineError("E_LOCKED", f"{SETTINGS} was changed a moment ago", "Try again.")
        walks = [_walked(source, settings, report, only) for source in sources]
        total, done = sum(len(walk.documents) for walk in walks), 0

        def tell(path: str) -> None:
            nonlocal done
            done += 1
            if progress:
                progress(min(done, total), total, path)

        interrupted = False
        for source, walk in zip(sources, walks, strict=True):
            batch = Batch(vine, source, settings, report, walk, tell)
            if prune and not walk.documents and batch.records and only is None:
                raise VineError(
                    "E_SCHEMA", f"prune: {source.root} holds no document", "Is the folder mounted?"
                )
            if settings.sources.get(source.id) != source:
                batch.config = settings.with_source(source)
            batch.preview = Preview(vine) if dry_run else None
            if only is not None:
                _tell_absent(batch, only)
            batch.run(prune, slot.unfinished, only)
            interrupted = interrupted or batch.interrupted
            if interrupted:
                break
        whole = only is None and {source.id for source in sources} >= set(settings.sources)
        slot.finished = not interrupted and (whole or not slot.unfinished)
    return report.finished(interrupted)


def _walked(source: Source, settings: Settings, report: Report, only: str | None) -> Walk:
    """The walk over a source; with `only` what the whole walk says about that one path."""
    if only is None:
        return Walker(source.root, settings, report).run()
    whole = Report(report.mode, None)
    walk = Walker(source.root, settings, whole).run()
    for path in whole.skipped:
        if only == path or only.startswith(path + "/"):
            report.skip(only, "ignored")
    report.lists["unsupported"] += [path for path in whole.lists["unsupported"] if path == only]
    report.details += [detail for detail in whole.details if detail["path"] == only]
    walk.documents = [document for document in walk.documents if document.path == only]
    return walk


def _tell_absent(batch: Batch, only: str) -> None:
    """A path that is neither in the source nor in the forest is an error."""
    report = batch.report
    known = (
        only in batch.records
        or only in report.lists["unsupported"]
        or report.skipped
        or report.lists["errors"]
    )
    if not batch.walk.documents and not known:
        report.fail(only, "missing", "no such document")
