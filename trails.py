"""Use leaves trails: heat, sessions, traces.

Owns: `_derived/trails.db` (heat), `_derived/traces/` (one line a call), the sessions of one process.
Must never: fail or delay a call, keep arguments or content, grow with the number of calls.

Sections: heat · sessions.

Heat is stored with the moment it was stored at and evaporates on reading: value x 0.5 ^ (age / half-life). So it
never depends on a maintenance run, and a deposit decays the old value before it adds.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import sqlite3
import threading
import time
from pathlib import Path

import forest
from catalog import inode

log = logging.getLogger("vine.trails")

# ---------------------------------------------------------------------------------------------- heat

LASTING = "forest"  # the scope of heat that is shared by all sessions
DUST = 0.01  # heat below this is none
BOOST = 0.3  # how much full heat raises a score
HALF_LIFE_DAYS = 30.0
STRONG, WEAK = 0.1, 0.02  # deposits: an answer or a fortified link; taking what a search had found


class Heat:
    """Heat of one forest's nodes. Deposits of other processes are seen by the next read."""

    def __init__(self, root: Path):
        self.root = root
        self._lock = threading.Lock()
        self.path = root / "_derived" / "trails.db"
        self._db = self._open()
        self._inode = inode(self.path)
        self._seen = None
        self._stored: dict[str, tuple[float, float]] = {}
        self._settings: tuple[object, float] = (None, HALF_LIFE_DAYS)

    def _open(self) -> sqlite3.Connection:
        path = self.path
        try:
            path.parent.mkdir(exist_ok=True)
            return _trails_db(path)
        except (OSError, sqlite3.OperationalError):  # no file to write, busy or full: that is no damage
            return _trails_db(":memory:")
        except sqlite3.DatabaseError:
            try:
                os.replace(path, path.with_suffix(".damaged"))
                return _trails_db(path)
            except (OSError, sqlite3.Error):
                return _trails_db(":memory:")

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def of(self, id: str) -> float:
        """Heat of a node now, 0 to 1, unrounded."""
        stored = self._stored.get(id)
        return _decayed(*stored, time.time(), self._half_life()) if stored else 0.0

    def hot(self) -> dict[str, float]:
        """Every node that has heat now."""
        now, half_life = time.time(), self._half_life()
        found = {id: _decayed(heat, updated, now, half_life) for id, (heat, updated) in self._stored.copy().items()}
        return {id: value for id, value in found.items() if value}

    def follow(self) -> None:
        """Catch up with what others stored; called at the start of each call."""
        with self._lock:
            if inode(self.path) != self._inode:  # somebody deleted the file: begin a new one
                self._db.close()
                self._db, self._seen, self._stored = self._open(), None, {}
                self._inode = inode(self.path)
            try:
                seen = self._db.execute("PRAGMA data_version").fetchone()[0]
                if seen != self._seen:
                    rows = self._db.execute("SELECT node_id, heat, updated FROM heat WHERE scope = ?", (LASTING,))
                    self._stored = {id: (heat, updated) for id, heat, updated in rows}
                    self._seen = seen
            except sqlite3.Error:
                log.exception("heat cannot be read")

    def deposit(self, amounts: dict[str, float]) -> None:
        """Add heat to nodes, at most up to 1.0 each."""
        if not amounts:
            return
        now, half_life = time.time(), self._half_life()
        with self._lock:
            try:
                stored = {}
                self._db.execute("BEGIN IMMEDIATE")
                for id, amount in amounts.items():
                    row = self._db.execute(
                        "SELECT heat, updated FROM heat WHERE scope = ? AND node_id = ?", (LASTING, id)
                    ).fetchone()
                    value = min(1.0, (_decayed(*row, now, half_life) if row else 0.0) + amount)
                    self._db.execute("INSERT OR REPLACE INTO heat VALUES (?, ?, ?, ?)", (LASTING, id, value, now))
                    stored[id] = (value, now)
                self._db.execute("COMMIT")
                self._stored |= stored
            except sqlite3.Error:
                log.exception("heat cannot be stored")
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def rename(self, moves: dict[str, str]) -> None:
        """Heat follows nodes that got a new id."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                for old, new in moves.items():
                    self._db.execute("UPDATE OR REPLACE heat SET node_id = ? WHERE node_id = ?", (new, old))
                    if old in self._stored:
                        self._stored[new] = self._stored.pop(old)
                self._db.execute("COMMIT")
            except sqlite3.Error:
                log.exception("heat cannot be renamed")
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def _half_life(self) -> float:
        """Seconds, from `half_life_days` of ranger.yaml; read again when that file changes."""
        path = self.root / "_meta" / "ranger.yaml"
        try:
            stat = os.stat(path)
            stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        except OSError:
            return HALF_LIFE_DAYS * 86400
        if self._settings[0] != stamp:
            self._settings = (stamp, _half_life_days(path))
        return self._settings[1] * 86400


def _trails_db(path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute(
        "CREATE TABLE IF NOT EXISTS heat (scope TEXT, node_id TEXT, heat REAL, updated REAL, "
        "PRIMARY KEY (scope, node_id))"
    )
    return db


def _decayed(heat: float, updated: float, now: float, half_life: float) -> float:
    value = heat * 0.5 ** (max(0.0, now - updated) / half_life)
    return value if value >= DUST else 0.0


SETTINGS = {  # of ranger.yaml: default, least, most
    "half_life_days": (HALF_LIFE_DAYS, 0.001, 1e6),
    "session_ttl_hours": (24, 0.001, 1e6),
    "promote_floor": (0.2, 0, 1),
    "promoted_confidence": (0.8, 0, 1),
    "prune_below": (0.5, 0, 1),
}


def settings_faults(settings: dict) -> list[str]:
    """What is wrong with the values of ranger.yaml; the default holds in place of a bad one."""
    return [
        f"{key} must be a number from {least:g} to {most:g}; {default:g} holds"
        for key, (default, least, most) in SETTINGS.items()
        if key in settings and not _within(settings[key], least, most)
    ]


def _within(value, least: float, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most


def _half_life_days(path: Path) -> float:
    try:
        days = forest.parse_yaml(path.read_text("utf-8"))["half_life_days"]
    except (OSError, ValueError, KeyError, TypeError, forest.VineError):
        return HALF_LIFE_DAYS
    return float(days) if _within(days, *SETTINGS["half_life_days"][1:]) else HALF_LIFE_DAYS


# ---------------------------------------------------------------------------------------------- sessions

IDLE = 30 * 60  # seconds after which the next call starts a new session
SHORTCUT_LENGTH = 4  # a trail this long is worth a shortcut
KEPT = 10_000  # ids that a session remembers of its searches and of its picks
TRACED = frozenset("locate look move pick view query scan sniff plant graft tend".split())


class Session:
    """What one client did in one forest since it came, in numbers that do not grow with its calls."""

    def __init__(self, root: Path):
        self.folder = root / "_derived" / "traces"
        self.lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self.id = secrets.token_hex(6)
        self.used = time.monotonic()
        self.found: dict[str, None] = {}  # ids that its searches returned, oldest first
        self.warmed: set[str] = set()
        self.taken: dict[str, int] = {}  # id -> events before its first pick or query
        self.events = self.steps = self.tokens = 0
        self.hops: int | None = None

    def wake(self) -> None:
        """Note a call; after a long pause a new session begins."""
        with self.lock:
            if time.monotonic() - self.used > IDLE:
                self._start()
            self.used = time.monotonic()

    def found_ids(self, ids) -> None:
        with self.lock:
            for id in ids:
                self.found[id] = None
            while len(self.found) > KEPT:
                del self.found[next(iter(self.found))]

    def earns_warmth(self, id: str) -> bool:
        """Whether taking `id` deposits heat: a search of this session found it, and it is the first time."""
        with self.lock:
            if id not in self.found or id in self.warmed:
                return False
            self.warmed.add(id)
            return True

    def record(self, primitive: str, id: str | None, tokens_in: int, tokens_out: int, elapsed_ms: float) -> None:
        """Count one successful call and append its trace line."""
        with self.lock:
            if primitive in ("pick", "query"):
                if self.hops is None:
                    self.hops = self.steps
                if id and len(self.taken) < KEPT:
                    self.taken.setdefault(id, self.events)
            elif primitive in ("look", "move"):
                self.steps += 1
            self.events += 1
            self.tokens += tokens_out
            line = {"ts": round(time.time(), 3), "session": self.id, "primitive": primitive, "id": id}
            line |= {"tokens_in": tokens_in, "tokens_out": tokens_out, "elapsed_ms": elapsed_ms}
            self._append(line)

    def close(self, success: bool, answer_nodes: list[str]) -> dict:
        """End the session and tell how it went; the next call starts a new one."""
        with self.lock:
            lengths = [self.taken[id] for id in answer_nodes if id in self.taken]
            trail = min(lengths) if lengths else None
            shortcut = success and trail is not None and trail >= SHORTCUT_LENGTH
            report = {
                "ts": round(time.time(), 3),
                "session": self.id,
                "outcome": {"success": success, "answer_nodes": answer_nodes},
                "metrics": {
                    "hops_to_banana": self.hops,
                    "trail_len": trail,
                    "tokens_to_banana": self.tokens,
                    "calls": self.events,
                    "answer_nodes": len(answer_nodes),
                },
                "suggest_shortcuts": answer_nodes if shortcut else [],
            }
            self._append(report)
            self._start()
            return report

    def _append(self, line: dict) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.folder / f"{self.id}.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
        except OSError as error:
            log.debug("no trace: %s", error)
