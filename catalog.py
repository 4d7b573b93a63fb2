"""The catalog: what all node files say, in `_derived/catalog.db`, kept fresh.

Owns: the schema of catalog.db, its connections, the freshness check, rows, edges, postings, and the in-memory
columns that searches rank on.
Must never: be the truth (files are); commit anything to git; let one bad file hide another.

Sections: schema · connections (and keeping fresh) · reading files · rows and edges · the search index.

How postings are kept
    vocabulary(term_id, term)      every term that any text put into the index
    stems(stem, term_id)           the stem class of a word is looked up here, so stems have no postings
    bodies(key, docs)              key = term_id << 24 | doc >> 10; docs = uint32 pairs (doc, tf)
    passports(key, docs)           the same over title, aliases, tags, summary; tf packs four 8-bit counts
A document number is never used twice: a changed text gets a new one, and `gone` says which numbers died. So
postings are only ever appended to, and searches skip the dead by their columns. When the dead outnumber the living,
the next opening rebuilds.

Freshness: a file is unchanged while its stamp (inode, size, mtime, ctime) is; the kernel sets ctime, so an edit
that restores size and mtime is seen. A stamp younger than the clock's grain proves nothing and is not kept.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import gc
import hashlib
import json
import logging
import os
import shutil
import sqlite3
import stat
import tempfile
import threading
import time
import weakref
from bisect import bisect_right
from collections import OrderedDict, defaultdict, deque
from itertools import compress, islice
from pathlib import Path
from typing import Any, Iterable, Iterator, NamedTuple

import forest
import words
from forest import Node, VineError

log = logging.getLogger("vine.catalog")

# ---------------------------------------------------------------------------------------------- schema

APPLICATION_ID, LAYOUT = 0x56494E45, 5
_TABLES = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {LAYOUT};
CREATE TABLE nodes (
    id TEXT PRIMARY KEY, doc INTEGER, twin TEXT NOT NULL, stamp TEXT NOT NULL, digest TEXT NOT NULL,
    fault TEXT, fault_kind TEXT,
    kind TEXT, type TEXT, title TEXT, summary TEXT, parent TEXT, tags TEXT, aliases TEXT, created TEXT, updated TEXT,
    confidence REAL, source TEXT, entity_kind TEXT, payload TEXT, payload_type TEXT, payload_hash TEXT,
    content TEXT, searched TEXT, ingest TEXT);
CREATE INDEX nodes_children ON nodes (parent, id, kind, summary);
CREATE INDEX nodes_sound ON nodes (fault, id);
CREATE INDEX nodes_twin ON nodes (twin);
CREATE INDEX nodes_ingest ON nodes (id) WHERE ingest IS NOT NULL;
CREATE TABLE edges (
    source TEXT, place INTEGER, rel TEXT, target TEXT, confidence REAL, PRIMARY KEY (source, place)) WITHOUT ROWID;
CREATE INDEX edges_target ON edges (target);
CREATE TABLE docs (
    doc INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT, kind TEXT, type TEXT, words INTEGER,
    title INTEGER, aliases INTEGER, tags INTEGER, summary INTEGER, names TEXT);
CREATE TABLE gone (seq INTEGER PRIMARY KEY AUTOINCREMENT, doc INTEGER);
CREATE TABLE state (mark INTEGER);
CREATE TABLE vocabulary (term_id INTEGER PRIMARY KEY, term TEXT UNIQUE);
CREATE TABLE stems (stem TEXT, term_id INTEGER, PRIMARY KEY (stem, term_id)) WITHOUT ROWID;
CREATE TABLE bodies (key INTEGER PRIMARY KEY, docs BLOB);
CREATE TABLE passports (key INTEGER PRIMARY KEY, docs BLOB);
"""
_CONTENTS = "nodes edges docs gone vocabulary stems bodies passports state".split()
_NODE_COLUMNS = (
    "id doc twin stamp digest fault fault_kind kind type title summary parent tags aliases created updated confidence "
    "source entity_kind payload payload_type payload_hash content searched ingest"
).split()
_PUT_NODE = f"INSERT OR REPLACE INTO nodes ({','.join(_NODE_COLUMNS)}) VALUES ({','.join('?' * len(_NODE_COLUMNS))})"
_READER_CACHE, _WRITER_CACHE = 4_000, 48_000  # KiB of pages that a connection keeps; writes touch rows all over
_BUCKET = 10  # 1,024 documents a postings row: appending rewrites at most 8 KB
_INGEST_KEYS = (
    "source_id source_path source_hash source_size source_mtime source_base source_pending incoming_for".split()
)

# ---------------------------------------------------------------------------------------------- connections


class Catalog:
    """The catalog of one forest, for any number of threads and beside any number of processes."""

    CHECK_EVERY = 1.5  # seconds; outside edits are seen by every call that starts 2 s later

    def __init__(self, root: Path):
        self.root = root
        self.path = root / "_derived" / "catalog.db"
        self._pool: list[sqlite3.Connection] = []
        self._pool_lock = threading.Lock()
        self._inode = None
        self._scratch: Path | None = None
        self._check_lock = threading.Lock()
        self._checked = float("-inf")  # when the last finished check began
        self._called = float("-inf")
        self._watcher: threading.Thread | None = None
        self.writers = 0  # transactions of this process under way: they record their own files, nobody need look
        self.columns = Columns()
        self.search_lock = threading.Lock()
        self._open()

    def close(self) -> None:
        self._called = float("-inf")
        with self._pool_lock:
            for db in self._pool:
                db.close()
            self._pool.clear()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _open(self) -> None:
        """Make sure that a sound file is there; a missing, damaged or foreign one is replaced by an empty one,
        which the first check then fills."""
        try:
            self.path.parent.mkdir(exist_ok=True)
            with open(self.path.parent / "catalog.lock", "w") as guard:
                fcntl.flock(guard, fcntl.LOCK_EX)
                if not self.sound():
                    self._replace()
        except OSError:
            self._to_scratch()
        self._inode = os.stat(self.path).st_ino

    def _to_scratch(self) -> None:
        """`_derived/` cannot be written: a private catalog that lives as long as this process."""
        self._scratch = Path(tempfile.mkdtemp(prefix="vine-"))
        weakref.finalize(self, shutil.rmtree, self._scratch, True)
        self.path = self._scratch / "catalog.db"
        self._replace()

    def reopen(self) -> None:
        """After SQLite called the file damaged: start from an empty one, which the next check fills."""
        with self._pool_lock:
            for db in self._pool:
                db.close()
            self._pool.clear()
            with contextlib.suppress(OSError):
                self._replace()
            self._inode = inode(self.path)
        self.stale()

    def sound(self) -> bool:
        """Whether the file is a catalog of this layout that can be read, and not mostly dead documents."""
        if not self.path.exists():
            return False
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=60)) as db:
                marks = (
                    db.execute("PRAGMA application_id").fetchone()[0],
                    db.execute("PRAGMA user_version").fetchone()[0],
                )
                living, last = db.execute("SELECT count(*), coalesce(max(doc), 0) FROM docs").fetchone()
                db.execute("SELECT id FROM nodes LIMIT 1").fetchone()
                return marks == (APPLICATION_ID, LAYOUT) and last <= 2 * living + 5000
        except sqlite3.DatabaseError:
            return False

    def _replace(self) -> None:
        """Swap an empty catalog in. The journal files of the old one go first: SQLite would replay them into the
        new file."""
        part = self.path.with_name(f"catalog.{os.getpid()}.part")
        part.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as db:
            db.executescript("BEGIN;" + _TABLES + "COMMIT;")
        for suffix in ("-wal", "-shm", "-journal"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        os.replace(part, self.path)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._pool_lock:
            if self._inode != inode(self.path):  # another process put a new file there
                for old in self._pool:
                    old.close()
                self._pool.clear()
                if inode(self.path) is None:
                    self._open()
                self._inode = inode(self.path)
            db = self._pool.pop() if self._pool else None
        if db is None:
            db = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
            db.row_factory = sqlite3.Row
            db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA temp_store=MEMORY;")
        try:
            yield db
        except BaseException:
            db.close()
            raise
        with self._pool_lock:
            if len(self._pool) < 8 and self._inode == inode(self.path):
                self._pool.append(db)
                db = None
        if db:
            db.close()

    @contextlib.contextmanager
    def reading(self) -> Iterator["Reader"]:
        """A reader of one committed state, whatever writers do meanwhile. A new file is filled before it is read,
        whoever put it there."""
        with self._connection() as db:
            db.execute("BEGIN")
            if _mark(db) is None:
                db.execute("COMMIT")
                self.check()
                db.execute("BEGIN")
            yield Reader(self, db)
            db.execute("COMMIT")

    @contextlib.contextmanager
    def searching(self, sees=None) -> Iterator["Index"]:
        """The search index of one committed state. `sees(id)` limits it to what a caller may see (None: all).

        One search at a time in a process: searches are bound by the interpreter anyway, and so they share one set of
        columns. The state is taken inside the lock, so columns never run ahead of it. Other reads do not wait.
        """
        with self.search_lock, self.reading() as reader:
            self.columns.follow(reader.db)
            yield Index(reader, self.columns, sees)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._connection() as db:
            db.execute(f"PRAGMA cache_size = -{_WRITER_CACHE}")
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")
            db.execute(f"PRAGMA cache_size = -{_READER_CACHE}")

    # -- keeping fresh ----------------------------------------------------------------------------

    def fresh(self) -> None:
        """Called at the start of each call: waits for a check only when none began in the last 1.9 s, that is at
        the first call and after a pause. While calls come, a thread keeps checking beside them."""
        now = self._called = time.monotonic()
        if now - self._checked > 1.9:
            self.check()
        if self._watcher is None or not self._watcher.is_alive():
            self._watcher = threading.Thread(target=_watch, args=(weakref.ref(self),), daemon=True)
            self._watcher.start()

    def check(self, force: bool = False) -> int:
        """Bring the catalog up to the files; returns how many were read. `force` looks even when another thread
        has just done so."""
        asked = time.monotonic()
        with self._check_lock:
            if not force and self._checked >= asked:
                return 0
            began = time.monotonic()
            found = dict(walk(self.root))
            with self._connection() as db:
                known = {row["id"]: row["stamp"] for row in db.execute("SELECT id, stamp FROM nodes")}
                filled = _mark(db) is not None
            changed = [id for id, stamp in found.items() if known.get(id) != stamp or stamp[-1] == "?"]
            lost = [id for id in known if id not in found]
            if (changed or lost) and not self.absorb(changed + lost):
                self.absorb(changed + lost)  # once more for what changed meanwhile, or could not be opened just then
            if not filled:
                with self._writing() as db:
                    db.execute("INSERT INTO state SELECT random() WHERE NOT EXISTS (SELECT * FROM state)")
            self._checked = began
            return len(changed) + len(lost)

    def absorb(self, ids: Iterable[str]) -> bool:
        """Read these files again and record what they hold now, in one transaction. False when a file changed
        while it was read; the next check sees it."""
        ids = list(ids)
        if len(ids) > 50:
            return self._absorb_many(ids)
        loaded = [_load(self.root, id) for id in ids]  # few: read before the transaction, so that it stays short
        settled = True
        with self._writing() as db:
            writer = _Writer(db)
            for item in loaded:
                if _stamp_of(self.root, item.id) == (item.stamp and item.stamp.rstrip("?")):
                    writer.put(item)
                    settled = settled and item.digest != _UNREADABLE
                else:
                    settled = False
            writer.flush()
        return settled

    def _absorb_many(self, ids: list[str]) -> bool:
        settled = True
        with self._writing() as db, _no_collection():
            writer = _Writer(db)
            for id in ids:  # another process may be doing the same: look again inside
                stamp = _stamp_of(self.root, id)
                known = db.execute("SELECT stamp FROM nodes WHERE id = ?", (id,)).fetchone()
                if stamp is None or known is None or known["stamp"] != stamp:  # which no young one equals
                    item = _load(self.root, id)
                    writer.put(item)
                    settled = settled and item.digest != _UNREADABLE
            writer.flush()
        return settled

    def touch(self, ids: Iterable[str]) -> None:
        """Read again those of these ids whose files have changed: what a write looks at before it decides."""
        asked = [id for id in dict.fromkeys(ids) if _is_plain(id) and not _leads_through_link(self.root, id)]
        with self.reading() as reader:
            known = {id: row["stamp"] for id in asked if (row := reader.row(id))}
        changed = [id for id in asked if (_stamp_of(self.root, id) or "") != known.get(id, "").rstrip("?")]
        if changed:
            self.absorb(changed)

    def stale(self) -> None:
        """Make the next call check all files."""
        self._checked = float("-inf")

    def rebuild(self, ahead: bool = False) -> dict:
        """Index every file anew in one transaction; until it ends, everybody reads the old state. `ahead`: files are
        read by a forked process, which takes half the time and a process that has no threads."""
        began = time.monotonic()
        with self._check_lock, self._writing() as db, _no_collection():
            for table in _CONTENTS:  # sequences go on, so no document number comes back
                db.execute(f"DELETE FROM {table}")
            db.execute("INSERT INTO state VALUES (random())")
            writer = _Writer(db)
            ids = [id for id, _ in walk(self.root)]
            for item, texts in _read_ahead(self.root, ids) if ahead else ((_load(self.root, id), None) for id in ids):
                writer.put(item, texts)
            writer.flush()
            total, broken = db.execute("SELECT count(*), count(fault) FROM nodes").fetchone()
        with self._connection() as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._checked = began
        return {"nodes": total - broken, "broken": broken, "ms": round((time.monotonic() - began) * 1000, 2)}


def inode(path: Path) -> int | None:
    """What file stands at a path now; None for none."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def _watch(reference: "weakref.ref[Catalog]") -> None:
    """Body of the watching thread: check while calls come, end 10 s after the last one. Holds no strong reference
    between checks, so a forest that nobody uses any more can go."""
    while True:
        time.sleep(0.05)
        catalog = reference()
        if catalog is None or time.monotonic() - catalog._called > 10:
            return
        if time.monotonic() - catalog._checked >= Catalog.CHECK_EVERY and not catalog.writers:
            try:
                catalog.check()
            except (OSError, sqlite3.Error):
                log.exception("the freshness check failed")
                time.sleep(1)
        del catalog


def _mark(db: sqlite3.Connection) -> int | None:
    """What tells this file, since its last rebuild, from every other; None until it was filled."""
    row = db.execute("SELECT mark FROM state").fetchone()
    return row[0] if row else None


# ---------------------------------------------------------------------------------------------- reading files

_GRAIN = 20_000_000  # nanoseconds; file systems stamp by the timer tick, 1 to 10 ms


def walk(root: Path) -> Iterator[tuple[str, str]]:
    """(id, stamp) of every node file below the forest; links are never followed."""
    now = time.time_ns()
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        try:
            entries = os.scandir(os.path.join(root, prefix) if prefix else root)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # any other fault is one of the moment, and must not look like an empty folder
        with entries:
            for entry in entries:
                name = entry.name
                if not forest.is_text(name):
                    continue  # not UTF-8: no id can say it; lint does
                if name.endswith(".md") and entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(OSError):
                        yield prefix + name[:-3], _stamp(entry.stat(follow_symlinks=False), now)
                elif name[0] != "." and name not in ("_derived", "_assets") and entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{prefix}{name}/")


def _stamp(facts: os.stat_result, now: int) -> str:
    young = "?" if now - facts.st_ctime_ns < _GRAIN else ""
    return f"{facts.st_ino}.{facts.st_size}.{facts.st_mtime_ns}.{facts.st_ctime_ns}{young}"


def _stamp_of(root: Path, id: str, now: int | None = None) -> str | None:
    """The stamp of a node file, None when it is gone. With `now` a young one is marked by `?`: it never equals a
    settled stamp, so the next check reads the file again."""
    try:
        facts = os.stat(node_path(root, id), follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _stamp(facts, facts.st_ctime_ns + _GRAIN if now is None else now)


def node_path(root: Path, id: str) -> str:
    """Where a catalogued id lives. Callers' ids are looked up in the catalog before they come here."""
    return os.path.join(root, id + ".md")


def _is_plain(id: str) -> bool:
    """Whether a caller's id may be looked at on disk at all: one that could name a node, old or new."""
    try:
        return id == forest.SCHEMA or bool(forest.check_id(id))
    except VineError:
        return False


def _leads_through_link(root: Path, id: str) -> bool:
    folders = id.split("/")[:-1]
    return any(os.path.islink(os.path.join(root, *folders[:n])) for n in range(1, len(folders) + 1))


def read_bytes(root: Path, id: str) -> bytes | None:
    """Bytes of a node file; None when it is gone, a link, or no regular file. OSError when it is there and cannot be
    read, which must not look like absence: whoever renders an index would leave it out."""
    try:
        fd = os.open(node_path(root, id), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
            return None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):  # a folder may be called x.md
        os.close(fd)
        return None
    with open(fd, "rb") as file:
        return file.read()


class _Loaded(NamedTuple):
    id: str
    stamp: str | None  # None: the file is gone
    node: Node | None
    error: VineError | None
    digest: str


_UNREADABLE = "unreadable"  # in place of a digest


def _load(root: Path, id: str) -> _Loaded:
    stamp = _stamp_of(root, id, time.time_ns())
    try:
        data = read_bytes(root, id) if stamp else None
    except OSError:
        unreadable = VineError("E_FRONTMATTER", "the file cannot be read", "Check its permissions.")
        unreadable.fault_kind = "bad-encoding"
        return _Loaded(id, f"{stamp.rstrip('?')}?", None, unreadable, _UNREADABLE)
    if data is None:
        return _Loaded(id, None, None, None, "")
    try:
        node = forest.parse_node(data, id)
        return _Loaded(id, stamp, node, None, node.digest)
    except VineError as error:
        return _Loaded(id, stamp, None, error, hashlib.sha256(data).hexdigest())


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Indexing makes many small objects and no cycles: looking for cycles is an eighth of its time."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


class _Pairs(dict):
    """count -> (doc, count) as postings hold it; most terms of a document share a few counts."""

    def __init__(self, doc: int):
        self.doc = doc

    def __missing__(self, count: int) -> bytes:
        self[count] = array.array("I", (self.doc, count)).tobytes()
        return self[count]


class _Texts(NamedTuple):
    """The terms of a node: of its body, where that is ranked, and of its title, aliases, tags and summary."""

    body: words.Terms | None
    fields: list[words.Terms]


def _texts(node: Node, told: set[str]) -> _Texts:
    body = words.index_terms(node.body, told) if _body_is_ranked(node) else None
    return _Texts(body, [words.index_terms(text, told) for text in _passport_texts(node)])


_TOLD: set[str] = set()  # in a process that only reads


def _read_many(root: Path, ids: list[str]) -> list[tuple[_Loaded, _Texts | None]]:
    loaded = [_load(root, id) for id in ids]
    return [(item, _texts(item.node, _TOLD) if item.node else None) for item in loaded]


def _read_ahead(root: Path, ids: list[str]) -> Iterator[tuple[_Loaded, _Texts | None]]:
    """Read and split files in a process beside this one, a few hundred ahead."""
    import multiprocessing  # both here: only a reindex needs them
    from concurrent.futures import ProcessPoolExecutor

    _TOLD.clear()
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as reader:
        parts = (ids[start : start + 64] for start in range(0, len(ids), 64))
        waiting = deque(reader.submit(_read_many, root, part) for part in islice(parts, 8))
        while waiting:
            yield from waiting.popleft().result()
            for part in islice(parts, 1):
                waiting.append(reader.submit(_read_many, root, part))


class _Writer:
    """Puts loaded files into the tables. Postings are gathered and written in term order, a batch at a time."""

    BATCH = 2_000_000  # postings in memory before they are written

    def __init__(self, db: sqlite3.Connection):
        self.db = db
        self.bodies: dict[str, list[bytes]] = defaultdict(list)  # one packed pair a document
        self.passports: dict[str, list[bytes]] = defaultdict(list)
        self.stems: set[tuple[str, str]] = set()
        self.ids: dict[str, int] = {}  # of the terms written so far
        self.told: set[str] = set()  # tokens whose stems were recorded already
        self.held = 0
        self.bucket = -1

    def put(self, item: _Loaded, texts: _Texts | None = None) -> None:
        """Record one file; `texts` are its terms where somebody has worked them out already."""
        old = self.db.execute("SELECT doc, digest, searched FROM nodes WHERE id = ?", (item.id,)).fetchone()
        if old and item.stamp and old["digest"] == item.digest:
            self.db.execute("UPDATE nodes SET stamp = ? WHERE id = ?", (item.stamp, item.id))
            return
        if item.stamp is None or item.error:
            self._bury(old)
            self.db.execute("DELETE FROM nodes WHERE id = ?", (item.id,))
            self.db.execute("DELETE FROM edges WHERE source = ?", (item.id,))
            if item.error:
                self._put_broken(item)
            return
        self._put_node(item, old, texts)

    def _bury(self, old) -> None:
        if old and old["doc"]:
            self.db.execute("DELETE FROM docs WHERE doc = ?", (old["doc"],))
            self.db.execute("INSERT INTO gone (doc) VALUES (?)", (old["doc"],))

    def _put_broken(self, item: _Loaded) -> None:
        self.db.execute(
            "INSERT INTO nodes (id, twin, stamp, digest, fault, fault_kind) VALUES (?, ?, ?, ?, ?, ?)",
            (item.id, forest.twin_key(item.id), item.stamp, item.digest, item.error.message, item.error.fault_kind),
        )

    def _put_node(self, item: _Loaded, old, texts: _Texts | None) -> None:
        node = item.node
        searched = _searched(node)
        doc = old["doc"] if old and old["searched"] == searched else None
        if doc is None:
            self._bury(old)
            doc = self._index(node, texts or _texts(node, self.told))
        text = node.text
        ingest = {key: node.fields[key] for key in _INGEST_KEYS if node.fields.get(key) is not None}
        self.db.execute(
            _PUT_NODE,
            (
                node.id, doc, forest.twin_key(node.id), item.stamp, item.digest, None, None,
                node.kind, node.type, node.title, node.summary, forest.parent_of(node.id),
                json.dumps(node.tags), json.dumps(node.aliases), text("created") or None, text("updated") or None,
                node.confidence, text("source") or None, text("entity_kind") or None, text("payload") or None,
                text("payload_type") or None, text("payload_hash") or None, text("content") or None,
                searched, json.dumps(ingest) if ingest else None,
            ),
        )  # fmt: skip
        if old:
            self.db.execute("DELETE FROM edges WHERE source = ?", (node.id,))
        if links := node.links:
            rows = [(node.id, n, x["rel"], x["target"], forest.link_confidence(x)) for n, x in enumerate(links)]
            self.db.executemany("INSERT INTO edges VALUES (?, ?, ?, ?, ?)", rows)

    def _index(self, node: Node, texts: _Texts) -> int:
        """Give the node's texts a document number and gather their postings."""
        body, fields = texts
        names = "\n".join({words.literal(name).strip() for name in [node.title, *node.aliases]})
        doc = self.db.execute(
            "INSERT INTO docs (id, kind, type, words, title, aliases, tags, summary, names) VALUES (?,?,?,?,?,?,?,?,?)",
            (node.id, _doc_kind(node), node.type, body.length if body else 0, *(f.length for f in fields), names),
        ).lastrowid
        if doc >> _BUCKET != self.bucket or self.held > self.BATCH:
            self.flush()
            self.bucket = doc >> _BUCKET
        pairs = _Pairs(doc)
        if body:
            self.stems.update(body.stems)
            self.held += len(body.counts)
            gathered = self.bodies
            for term, count in body.counts.items():
                gathered[term].append(pairs[count])
        packed: dict[str, int] = defaultdict(int)
        for shift, terms in zip((0, 8, 16, 24), fields):
            self.stems.update(terms.stems)
            for term, count in terms.counts.items():
                packed[term] |= min(count, 255) << shift
        for term, count in packed.items():
            self.passports[term].append(pairs[count])
        return doc

    def flush(self) -> None:
        """Write the gathered postings; all of them belong to one bucket."""
        if not self.bodies and not self.passports:
            return
        ids = self._term_ids(sorted(self.bodies.keys() | self.passports.keys()))
        self.db.executemany(
            "INSERT OR IGNORE INTO stems VALUES (?, ?)", sorted((stem, ids[term]) for term, stem in self.stems)
        )
        for table, gathered in (("bodies", self.bodies), ("passports", self.passports)):
            rows = sorted((ids[term] << 24 | self.bucket, b"".join(docs)) for term, docs in gathered.items())
            self.db.executemany(
                # || would give text, which SQLite compares but does not cut: the cast keeps the bytes a blob
                f"INSERT INTO {table} VALUES (?, ?) ON CONFLICT (key) DO UPDATE "
                "SET docs = CAST(docs || excluded.docs AS BLOB)",
                rows,
            )
            gathered.clear()
        self.stems.clear()
        self.held = 0
        if len(self.told) > 1_000_000:
            self.told.clear()
            self.ids.clear()

    def _term_ids(self, terms: list[str]) -> dict[str, int]:
        ids = self.ids
        terms = [term for term in terms if term not in ids]
        self.db.executemany("INSERT OR IGNORE INTO vocabulary (term) VALUES (?)", ((term,) for term in terms))
        for start in range(0, len(terms), 500):
            part = terms[start : start + 500]
            marks = ",".join("?" * len(part))
            ids.update(
                (row[1], row[0])
                for row in self.db.execute(f"SELECT term_id, term FROM vocabulary WHERE term IN ({marks})", part)
            )
        return ids


def _passport_texts(node: Node) -> tuple[str, str, str, str]:
    return node.title, "\n".join(node.aliases), "\n".join(node.tags), node.summary


def _doc_kind(node: Node) -> str:
    return "meta" if node.id.startswith("_meta/") else node.kind


def _body_is_ranked(node: Node) -> bool:
    return _doc_kind(node) == "banana"


def _searched(node: Node) -> str:
    """Changes when a text of the node does that has postings."""
    told = [*_passport_texts(node), node.type, node.body if _body_is_ranked(node) else ""]
    return hashlib.blake2b("\0".join(told).encode("utf-8", "replace"), digest_size=16).hexdigest()


# ---------------------------------------------------------------------------------------------- rows and edges


class Reader:
    """One committed state of the catalog."""

    def __init__(self, catalog: Catalog, db: sqlite3.Connection):
        self.catalog, self.db = catalog, db

    def row(self, id: str) -> sqlite3.Row | None:
        """The row of an id, looked up character for character; None when absent. Broken files have one."""
        return self.db.execute("SELECT * FROM nodes WHERE id = ?", (id,)).fetchone()

    def rows(self, ids: Iterable[str]) -> dict[str, sqlite3.Row]:
        """Rows of the sound nodes among `ids`."""
        wanted, found = list(dict.fromkeys(ids)), {}
        for start in range(0, len(wanted), 500):
            part = wanted[start : start + 500]
            query = f"SELECT * FROM nodes WHERE fault IS NULL AND id IN ({','.join('?' * len(part))})"
            found.update((row["id"], row) for row in self.db.execute(query, part))
        return found

    def faces(self, branch: str) -> dict[str, tuple[str, str]]:
        """{id: (kind, summary)} of a branch's sound children, by id: what its index shows of them."""
        cursor = self.db.cursor()
        cursor.row_factory = None  # plain tuples: a branch may have thousands
        query = "SELECT id, kind, summary FROM nodes WHERE parent = ? ORDER BY id"
        return {id: (kind, summary) for id, kind, summary in cursor.execute(query, (branch,))}

    def listing(self, branch: str, recursive: bool, columns: list[str]) -> list[sqlite3.Row]:
        """These columns of a branch's sound children, or of everything under its folder by exact prefix (for the
        master: of all other nodes)."""
        asked = f"SELECT {', '.join(columns)} FROM nodes WHERE fault IS NULL AND "
        if not recursive:
            return self.db.execute(asked + "parent = ?", (branch,)).fetchall()
        if branch == forest.MASTER:
            return self.db.execute(asked + "id <> ?", (branch,)).fetchall()
        prefix = forest.folder_of(branch) if forest.is_branch_id(branch) else branch + "/"
        return self.db.execute(asked + "id > ? AND id < ? AND id <> ?", (prefix, prefix[:-1] + "0", branch)).fetchall()

    def direct(self, branch: str) -> list[sqlite3.Row]:
        return self.db.execute("SELECT * FROM nodes WHERE parent = ? AND fault IS NULL", (branch,)).fetchall()

    def edges_out(self, id: str) -> list[sqlite3.Row]:
        return self.db.execute("SELECT * FROM edges WHERE source = ? ORDER BY place", (id,)).fetchall()

    def edges_in(self, id: str) -> list[sqlite3.Row]:
        return self.db.execute("SELECT * FROM edges WHERE target = ? ORDER BY source, place", (id,)).fetchall()

    def all_edges(self) -> list[sqlite3.Row]:
        return self.db.execute("SELECT * FROM edges ORDER BY source, place").fetchall()

    def all_rows(self) -> list[sqlite3.Row]:
        """Every row, broken files included, by id."""
        return self.db.execute("SELECT * FROM nodes ORDER BY id").fetchall()

    def body(self, id: str) -> str:
        """The body of a catalogued id as its file is now; empty when the file is gone or broken."""
        try:
            data = read_bytes(self.catalog.root, id)
            return forest.body_text(data) if data is not None else ""
        except (VineError, OSError):
            return ""

    def twins(self, id: str) -> list[str]:
        """Catalogued ids that differ from `id` by letter case or composition only, `id` itself included."""
        query = "SELECT id FROM nodes WHERE twin = ? ORDER BY id"
        return [row[0] for row in self.db.execute(query, (forest.twin_key(id),))]

    def sources(self) -> list[dict]:
        """The ingest keys of every node that has any, with its id."""
        rows = self.db.execute("SELECT id, ingest FROM nodes WHERE ingest IS NOT NULL AND fault IS NULL ORDER BY id")
        return [{"id": row["id"]} | json.loads(row["ingest"]) for row in rows]


# ---------------------------------------------------------------------------------------------- the search index


class Columns:
    """What a search needs of every document, as arrays by document number, following the database."""

    def __init__(self):
        self.ids: list[str | None] = [None]
        self.docs: dict[str, int] = {}
        self.types: list[str | None] = [None]
        self.kinds: list[str | None] = [None]
        self.lengths = array.array("I", [0])
        self.fields = [array.array("I", [0]) for _ in range(4)]
        self.names: dict[str, list[int]] = defaultdict(list)
        self.statistics: dict[Any, Statistics] = {}
        self.mark: int | None = None  # which file and which rebuild of it this follows
        self.seq = 0
        self.top = 0
        self.terms = Vocabulary()
        self.texts = TextCache()

    def follow(self, db: sqlite3.Connection) -> None:
        """Catch up with a state of the database; from the start when it is another file, or was rebuilt."""
        mark = _mark(db)
        if mark != self.mark:
            self.__init__()
            self.mark = mark
        cursor = db.cursor()
        cursor.row_factory = None  # plain tuples: at the first search there is one for every node
        query = "SELECT doc, id, kind, type, words, title, aliases, tags, summary, names FROM docs WHERE doc > ?"
        rows = cursor.execute(query + " ORDER BY doc", (self.top,)).fetchall()
        if rows:
            self.top = rows[-1][0]
            self._grow(self.top)
        ids, kinds, types, lengths, docs = self.ids, self.kinds, self.types, self.lengths, self.docs
        titles, aliases, tags, summaries = self.fields
        for doc, id, kind, type, length, title, alias, tag, summary, names in rows:
            ids[doc], kinds[doc], types[doc], lengths[doc] = id, kind, type, length
            titles[doc], aliases[doc], tags[doc], summaries[doc] = title, alias, tag, summary
            docs[id] = doc
            for name in names.split("\n"):
                self.names[name].append(doc)
        changed = bool(rows)
        for seq, doc in db.execute("SELECT seq, doc FROM gone WHERE seq > ?", (self.seq,)):
            if doc < len(self.ids):
                if self.docs.get(self.ids[doc]) == doc:
                    del self.docs[self.ids[doc]]
                self.ids[doc] = self.kinds[doc] = None
            self.seq, changed = seq, True
        if changed:
            self.statistics.clear()

    def _grow(self, doc: int) -> None:
        more = doc + 1 - len(self.ids)
        if more > 0:
            for column in (self.ids, self.kinds, self.types):
                column.extend([None] * more)
            for column in (self.lengths, *self.fields):
                column.extend([0] * more)

    def of(self, kinds: tuple[str, ...], sees=None) -> "Statistics":
        """Mask and statistics of the living documents of these kinds that the caller may see."""
        key = (kinds, sees)
        if key not in self.statistics:
            if len(self.statistics) > 32:
                self.statistics.clear()
            live = bytearray(kind in kinds and (sees is None or sees(id)) for kind, id in zip(self.kinds, self.ids))
            total = sum(live)
            average = sum(compress(self.lengths, live)) / max(1, total)
            self.statistics[key] = Statistics(live, total, average, [_average(compress(f, live)) for f in self.fields])
        return self.statistics[key]


def _average(lengths: Iterable[int]) -> float:
    """Average length of a field where it is given: few nodes have aliases, and one of two words is not long."""
    given = list(filter(None, lengths))
    return sum(given) / max(1, len(given))


class Statistics(NamedTuple):
    live: bytearray  # by document number
    total: int
    average: float  # words a body
    field_averages: list[float]  # words a title, alias list, tag list, summary


class Vocabulary:
    """The plain terms as one long string, to find those that hold a given piece."""

    def __init__(self):
        self.text = "\n"
        self.ids = array.array("I")
        self.starts = array.array("I")
        self.top = 0

    def follow(self, db: sqlite3.Connection) -> None:
        rows = db.execute(
            "SELECT term_id, term FROM vocabulary WHERE term_id > ? ORDER BY term_id", (self.top,)
        ).fetchall()
        if not rows:
            return
        self.top = rows[-1][0]
        place = len(self.text)
        parts = []
        for term_id, term in rows:
            if not term.startswith(words.DERIVED):
                self.ids.append(term_id)
                self.starts.append(place)
                parts.append(term + "\n")
                place += len(term) + 1
        self.text += "".join(parts)

    def holding(self, piece: str) -> dict[int, int]:
        """{term_id: how often the term holds `piece`}."""
        found: dict[int, int] = defaultdict(int)
        text, size = self.text, len(piece)
        place = text.find(piece)
        while place >= 0:
            found[self.ids[bisect_right(self.starts, place) - 1]] += 1
            place = text.find(piece, place + size)
        return found


class TextCache:
    """Folded bodies that literal search had to read, newest kept, bounded in characters."""

    LIMIT = 16_000_000

    def __init__(self):
        self.held: OrderedDict[tuple[str, str], str] = OrderedDict()
        self.size = 0

    def get(self, key: tuple[str, str]) -> str | None:
        if key in self.held:
            self.held.move_to_end(key)
        return self.held.get(key)

    def put(self, key: tuple[str, str], text: str) -> None:
        self.held[key] = text
        self.size += len(text)
        while self.size > self.LIMIT and len(self.held) > 1:
            self.size -= len(self.held.popitem(last=False)[1])


class Index:
    """Postings and statistics of one state, for one caller. `for_bodies` and `for_passports` are the two index
    views that the ranking functions take."""

    def __init__(self, reader: Reader, columns: Columns, sees=None):
        self.reader, self.db, self.columns, self.sees = reader, reader.db, columns, sees
        self._term_ids: dict[str, int | None] = {}
        self._postings: dict[tuple[str, int | None], array.array] = {}

    def for_bodies(self) -> "BodyIndex":
        return BodyIndex(self)

    def for_passports(self) -> "PassportIndex":
        return PassportIndex(self)

    def term_id(self, term: str) -> int | None:
        if term not in self._term_ids:
            row = self.db.execute("SELECT term_id FROM vocabulary WHERE term = ?", (term,)).fetchone()
            self._term_ids[term] = row[0] if row else None
        return self._term_ids[term]

    def postings(self, table: str, term_id: int | None) -> array.array:
        """Flat pairs (doc, tf); dead documents included."""
        pairs = self._postings.get((table, term_id))
        if pairs is not None:
            return pairs
        pairs = self._postings[table, term_id] = array.array("I")
        if term_id is not None:
            low = term_id << 24
            for key, docs in self.db.execute(
                f"SELECT key, docs FROM {table} WHERE key BETWEEN ? AND ? ORDER BY key", (low, low | 0xFFFFFF)
            ):
                if self.sees is None:
                    pairs.frombytes(docs)
                else:
                    pairs.extend(self._in_sight(key - low, docs))
        return pairs

    def _in_sight(self, bucket: int, docs: bytes) -> array.array:
        """A bucket of postings without what the caller may not see: a narrow scope then works on few."""
        live = self.columns.of(("banana", "branch", "meta"), self.sees).live
        seen = array.array("I")
        if live.find(1, bucket << _BUCKET, bucket + 1 << _BUCKET) >= 0:
            pairs = array.array("I", docs)
            keep = bytes(map(live.__getitem__, pairs[::2]))
            seen.frombytes(bytes(2 * seen.itemsize * sum(keep)))
            seen[::2] = array.array("I", compress(pairs[::2], keep))
            seen[1::2] = array.array("I", compress(pairs[1::2], keep))
        return seen

    def stem_class(self, stem: str) -> list[str]:
        query = "SELECT term, term_id FROM stems JOIN vocabulary USING (term_id) WHERE stem = ?"
        found = dict(tuple(row) for row in self.db.execute(query, (stem,)))
        self._term_ids |= found
        return list(found)

    def named(self, text: str) -> list[int]:
        """Documents whose whole title or an alias is `text`, folded."""
        live = self.columns.of(("banana", "branch"), self.sees).live
        return [doc for doc in self.columns.names.get(words.literal(text).strip(), ()) if live[doc]]

    # -- literal search ---------------------------------------------------------------------------

    def occurrences(self, term: str, mask: bytearray) -> dict[int, int]:
        """{doc: how often its body holds the literal `term`} among the documents of `mask`.

        The vocabulary answers by itself where it can; otherwise it names the candidates, whose texts are read.
        """
        asked = words.pieces(term)
        self.columns.terms.follow(self.db)
        if asked.exact:
            counts: dict[int, int] = defaultdict(int)
            holding = {self.term_id(t): 1 for t in asked.terms} if asked.terms else {}
            for piece in asked.inside:
                holding = self.columns.terms.holding(piece)
            for term_id, times in holding.items():
                pairs = self.postings("bodies", term_id)
                for doc, tf in zip(pairs[::2], pairs[1::2]):
                    if mask[doc]:
                        counts[doc] += tf * times
            return counts
        candidates = self._candidates(asked, mask)
        counts = {doc: self.folded(doc).count(term) for doc in candidates}
        return {doc: count for doc, count in counts.items() if count}

    def _candidates(self, asked: words.Pieces, mask: bytearray) -> Iterable[int]:
        candidates: set[int] | None = None
        plain = [self.postings("bodies", self.term_id(t))[::2] for t in asked.terms]
        for piece in asked.inside:
            docs: set[int] = set()
            for term_id in self.columns.terms.holding(piece):
                docs.update(self.postings("bodies", term_id)[::2])
            plain.append(docs)
        for docs in plain:
            candidates = set(docs) if candidates is None else candidates.intersection(docs)
        if candidates is None:
            return [doc for doc, live in enumerate(mask) if live]
        return [doc for doc in candidates if mask[doc]]

    def folded(self, doc: int) -> str:
        """A document's body as literal search compares it, line by line."""
        id = self.columns.ids[doc]
        return self.folded_body(id) if id else ""

    def folded_body(self, id: str) -> str:
        """The same by id. Kept by the stamp of the file, which may be newer than what the catalog knows."""
        cache, stamp = self.columns.texts, _stamp_of(self.reader.catalog.root, id, time.time_ns()) or "?"
        text = cache.get((id, stamp))
        if text is None:
            text = folded_lines(self.reader.body(id))
            if not stamp.endswith("?"):
                cache.put((id, stamp), text)
        return text


def folded_lines(body: str) -> str:
    """Each line of `body` folded, runs of blanks as one; line for line the same."""
    return "\n".join(map(words.literal, body.split("\n")))


class BodyIndex:
    """Bodies of bananas, as the ranking functions want them."""

    def __init__(self, index: Index):
        self._index = index
        columns = index.columns
        self.live, self.total, self.average, _ = columns.of(("banana",), index.sees)
        self.lengths = columns.lengths

    def postings(self, term: str) -> array.array:
        return self._index.postings("bodies", self._index.term_id(term))

    def stem_class(self, stem: str) -> list[str]:
        return self._index.stem_class(stem)

    def text(self, doc: int) -> str:
        return self._index.reader.body(self._index.columns.ids[doc])


class PassportIndex:
    """Titles, aliases, tags and summaries of all nodes but `_meta`, as the ranking functions want them."""

    def __init__(self, index: Index):
        self._index = index
        columns = index.columns
        self.live, self.total, _, self.field_averages = columns.of(("banana", "branch"), index.sees)
        self.field_lengths = columns.fields

    def postings(self, term: str) -> array.array:
        return self._index.postings("passports", self._index.term_id(term))

    def stem_class(self, stem: str) -> list[str]:
        return self._index.stem_class(stem)
