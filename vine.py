"""The engine: one forest, its verbs, and the table that every shell is made from.

Owns: the verb table (names, parameters, limits, capabilities, budgets, texts), argument checks, sessions and heat of
calls, the one place where a fault inside becomes an error outside, and the pool of forests of a server.
Must never: know HTTP, MCP, argparse or principals; let anything but a VineError out of a call.

Sections: parameters · argument checks · running the verbs · the verb table · one forest · a pool of forests.

A call flows: arguments are checked against the table -> the catalog is brought up to the files -> the verb runs on a
view -> its answer is counted into the session -> the dict is returned. Nothing is looked up before the arguments
are right, so a bad argument gets the same answer for a present, an absent and a hidden node.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import sqlite3
import threading
import time
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator

import forest
import harvest
import lint
import reading
import store
import words
import writing
from catalog import Catalog
from forest import VineError
from reading import View
from trails import IDLE, STRONG, TRACED, WEAK, Heat, Session

__all__ = ["Param", "Verb", "VERBS", "Vine", "Pool", "VineError", "init"]

log = logging.getLogger("vine")
init = writing.init

# ---------------------------------------------------------------------------------------------- parameters

NOT_YET = "This version of the engine has no datasets yet."


@dataclass(frozen=True)
class Param:
    """One argument of a verb. `kind`: string, id, integer, boolean, object, strings, terms (strings or one string).
    `choices` may be the word `types` or `rels`: the forest's dialect decides. `text`: control characters count as
    blanks."""

    name: str
    kind: str
    description: str
    required: bool = False
    default: Any = None
    choices: tuple[str, ...] | str = ()
    minimum: int = 0
    maximum: int = 0
    max_length: int = 0
    max_items: int = 0
    text: bool = False

    def schema(self) -> dict:
        """JSON schema of the argument."""
        plain = {"type": "string"}
        shape: dict[str, Any] = {
            "string": plain,
            "id": plain,
            "integer": {"type": "integer"},
            "boolean": {"type": "boolean"},
            "object": {"type": "object"},
            "strings": {"type": "array", "items": plain},
            "terms": {"anyOf": [{"type": "array", "items": plain}, plain]},
        }[self.kind]
        shape = dict(shape)
        if isinstance(self.choices, tuple) and self.choices:
            shape["enum"] = list(self.choices)
        if not self.required and self.default is None:
            kinds = shape.pop("anyOf", None) or [shape]
            shape = {"anyOf": [*kinds, {"type": "null"}]}
        if not self.required:
            shape["default"] = self.default
        return shape | {"description": self.description}


@dataclass(frozen=True)
class Verb:
    """One primitive: everything that a shell needs to offer it and the engine needs to check and run it."""

    name: str
    title: str
    description: str
    params: tuple[Param, ...]
    capability: str | None
    budget: int
    run: Callable[["Call"], dict]
    write: bool = False
    destructive: bool = False

    def schema(self) -> dict:
        """JSON schema of the arguments, without the shells' own `forest`."""
        schema: dict[str, Any] = {"type": "object", "properties": {p.name: p.schema() for p in self.params}}
        required = [p.name for p in self.params if p.required]
        return schema | ({"required": required} if required else {}) | {"additionalProperties": False}


# ---------------------------------------------------------------------------------------------- argument checks


def check_arguments(verb: Verb, given: Any, dialect: forest.Dialect) -> dict:
    """Every argument of the verb, checked and with its default. E_SCHEMA names the argument that is wrong."""
    if not isinstance(given, dict):
        raise VineError("E_SCHEMA", "arguments must be an object")
    names = [p.name for p in verb.params]
    for name in given:
        if name not in names:
            hint = (
                f"Did you mean {forest.nearest(str(name), names)}? Arguments: {', '.join(names)}"
                if names
                else "It takes no arguments."
            )
            raise VineError("E_SCHEMA", f"{verb.name}: unknown argument {str(name)[:60]!r}", hint)
    return {p.name: _check(p, given.get(p.name), dialect) for p in verb.params}


def _check(param: Param, value: Any, dialect: forest.Dialect) -> Any:
    if value is None:
        if param.required:
            raise VineError("E_SCHEMA", f"{param.name}: required")
        return param.default
    if param.kind == "terms" and not param.required and isinstance(value, str) and not value.strip():
        return param.default
    value = _typed(param, value)
    if _has_surrogate(value):
        raise VineError("E_SCHEMA", f"{param.name}: holds half a surrogate pair")
    if param.kind in ("string", "id"):
        return _check_string(param, value, dialect)
    if param.kind == "integer":
        return min(max(value, param.minimum), _maximum(param))
    if param.kind == "terms":
        return _check_terms(param, value)
    if param.kind == "strings":
        return _check_strings(param, value)
    return value


def _typed(param: Param, value: Any) -> Any:
    """The value when its JSON type is right; nothing is coerced but 3.0 to 3."""
    kind = param.kind
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)
    if kind == "terms" and isinstance(value, str):
        value = [value]
    good = {
        "string": isinstance(value, str),
        "id": isinstance(value, str),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "boolean": isinstance(value, bool),
        "object": isinstance(value, dict),
        "strings": isinstance(value, list) and all(isinstance(v, str) for v in value),
        "terms": isinstance(value, list) and all(isinstance(v, str) for v in value),
    }[kind]
    if not good:
        name = {"id": "a string", "integer": "an integer", "object": "an object", "strings": "a list of strings"}
        raise VineError(
            "E_SCHEMA", f"{param.name}: must be {name.get(kind) or 'a ' + kind.replace('terms', 'list of strings')}"
        )
    return value


_SURROGATE = re.compile("[\ud800-\udfff]")


def _has_surrogate(value: Any) -> bool:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str) and not item.isascii() and _SURROGATE.search(item):
            return True
        if isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            waiting += item
    return False


def _maximum(param: Param) -> int:
    return harvest_limit() if param.maximum < 0 else param.maximum


def harvest_limit() -> int:
    """Upper end of harvest's k, from MONKEYLLM_HARVEST_MAX_K; ValueError when that is no integer of 1 or more."""
    value = os.environ.get("MONKEYLLM_HARVEST_MAX_K", "10")
    if not re.fullmatch(r"[0-9]{1,6}", value) or int(value) < 1:
        raise ValueError("MONKEYLLM_HARVEST_MAX_K must be an integer of 1 or more")
    return int(value)


def _blanked(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(" " if unicodedata.category(c) == "Cc" else c for c in text)


def _check_string(param: Param, value: str, dialect: forest.Dialect) -> Any:
    if param.max_length and len(value) > param.max_length:
        raise VineError("E_SCHEMA", f"{param.name}: {len(value)} characters; the limit is {param.max_length}")
    if not param.required and not value.strip():
        return param.default
    if param.text:
        value = _blanked(value)
    choices = param.choices
    if choices == "types":
        choices = dialect.types
    elif choices == "rels":
        choices = (*dialect.edge_names, "children")
    if choices and value not in choices:
        hint = f"Did you mean {forest.nearest(value, choices)}? Values: {', '.join(choices)}"
        raise VineError("E_SCHEMA", f"{param.name}: unknown value {value[:60]!r}", hint)
    return value


def _check_terms(param: Param, value: list[str]) -> list[str] | None:
    if not value and not param.required:
        return None
    terms: dict[str, str] = {}
    for term in value:
        if len(term) > 4000:
            raise VineError("E_SCHEMA", f"{param.name}: a term has {len(term)} characters; the limit is 200")
        folded = words.literal(_blanked(term)).strip()
        least = 1 if words.is_pair_script(folded) else 2
        if not least <= len(folded) <= 200:
            raise VineError(
                "E_SCHEMA", f"{param.name}: a term has 2 to 200 characters", "Leave out terms of one letter."
            )
        terms.setdefault(folded, " ".join(_blanked(term).split()))
    if not 1 <= len(terms) <= 8:
        raise VineError("E_SCHEMA", f"{param.name}: 1 to 8 terms")
    return list(terms.values())


def _check_strings(param: Param, value: list[str]) -> list[str] | None:
    value = list(dict.fromkeys(value))
    if not value:
        return param.default
    if param.max_items and len(value) > param.max_items:
        raise VineError("E_SCHEMA", f"{param.name}: {len(value)} items; the limit is {param.max_items}")
    for item in value:
        if param.choices and item not in param.choices:
            hint = f"Did you mean {forest.nearest(item, param.choices)}? Values: {', '.join(param.choices)}"
            raise VineError("E_SCHEMA", f"{param.name}: unknown value {item[:60]!r}", hint)
    return value


# ---------------------------------------------------------------------------------------------- running the verbs


@dataclass(frozen=True)
class Call:
    """One checked call on its way to a verb."""

    vine: "Vine"
    view: View
    args: dict
    session: Session
    principal: str | None


def _read(function: Callable[[View, dict], dict]) -> Callable[[Call], dict]:
    return lambda call: function(call.view, call.args)


def _searched(function: Callable[[View, dict], dict]) -> Callable[[Call], dict]:
    """A search: what it returns may be taken later, and warms up then."""

    def run(call: Call) -> dict:
        answer = function(call.view, call.args)
        call.session.found_ids(item["id"] for item in answer["results"])
        return answer

    return run


def _taken(function: Callable[[View, dict], dict]) -> Callable[[Call], dict]:
    """Taking the content of a node that a search of this session had found leaves a little heat, once."""

    def run(call: Call) -> dict:
        answer = function(call.view, call.args)
        if call.session.earns_warmth(answer["id"]):
            call.vine.heat.deposit({answer["id"]: WEAK})
        return answer

    return run


def _scan(call: Call) -> dict:
    args = dict(call.args, filter=call.args["filter"] or {})
    reading.check_filter(args["filter"], call.view.dialect.types)
    return reading.scan(call.view, args)


def _plant(call: Call) -> dict:
    seed = writing.check_seed(call.args["node"], call.view.dialect)
    with call.vine.writing("plant", call.principal) as tx:
        return writing.plant(tx, call.view, seed)


def _graft(call: Call) -> dict:
    id = call.args["id"]
    patch = writing.check_patch(call.args["patch"], call.view.dialect, id)
    with call.vine.catalog.reading() as reader:
        call.view.row(reader, id)  # before the lock: an absent node waits for nobody
    with call.vine.writing("graft", call.principal) as tx:
        return reading.shrink(writing.graft(tx, call.view, id, patch, call.args["expect"]), "fortified", 1000)


def _no_datasets(call: Call) -> dict:
    with call.vine.catalog.reading() as reader:
        call.view.row(reader, call.args["id"])
    raise VineError("E_QUERY_FORBIDDEN", f"{call.args['id']} is no SQLite dataset", NOT_YET)


def _close_session(call: Call) -> dict:
    nodes, success = call.args["answer_nodes"] or [], call.args["success"]
    with call.vine.catalog.reading() as reader:
        for id in nodes:
            call.view.row(reader, id)
        trails = call.view.trails(reader, nodes)
    if success:
        amounts: dict[str, float] = {}
        for id in nodes:
            for warm in (id, *trails[id]):
                amounts[warm] = amounts.get(warm, 0.0) + STRONG
        call.vine.heat.deposit(amounts)
    report = call.session.close(success, nodes)
    if not reading.fits(report, 1000):
        report["truncated"] = True
        reading.pop_until(report, report["outcome"], "answer_nodes", 0, 1000)  # an echo: the count stays in metrics
        reading.pop_until(report, report, "suggest_shortcuts", 0, 1000)
    return report


# ---------------------------------------------------------------------------------------------- the verb table

_ID = Param("id", "id", "Id of the node, as an answer gave it.", required=True)
_EXPECT = Param(
    "expect",
    "string",
    "Write only if the node is still this version (from look or pick) or as in this commit.",
    max_length=240,
)
_TYPE = Param("type_filter", "string", "Only nodes of this type.", choices="types", max_length=240)


def _k(default: int, maximum: int) -> Param:
    return Param("k", "integer", "How many results.", default=default, minimum=1, maximum=maximum)


_TABLE = (
    Verb(
        "forests",
        "List forests",
        "Lists the forests that this server serves. Needs no capability.",
        (),
        None,
        2000,
        lambda call: {},
    ),
    Verb(
        "harvest",
        "Harvest material for a question",
        "One-shot: ranks metadata and bodies for a question and returns the best nodes with their text, or the "
        "sections and lines that match. At most 4000 tokens; needs read.",
        (
            Param("query", "string", "The question, in plain words.", required=True, max_length=4000, text=True),
            Param("terms", "terms", "Literal terms that the text should hold; derived from the query when left out."),
            _k(3, -1),
        ),
        "read",
        reading.HARVEST,
        _searched(harvest.harvest),
    ),
    Verb(
        "locate",
        "Locate entry points",
        "Searches titles, aliases, tags and summaries and returns ranked entry points. At most 800 tokens; needs read.",
        (
            Param("query", "string", "What to look for, in plain words.", required=True, max_length=4000, text=True),
            _k(5, 20),
            Param("scope", "string", "Kind of node.", default="all", choices=("all", "branches", "bananas")),
            _TYPE,
        ),
        "read",
        reading.LOCATE,
        _searched(reading.locate),
    ),
    Verb(
        "sniff",
        "Sniff literal text",
        "Finds literal text inside bodies and returns lines with their section. At most 800 tokens; needs read.",
        (
            Param("terms", "terms", "One string, or up to 8.", required=True),
            Param("scope", "string", "A branch or a leaf to look in."),
            _k(5, 20),
            _TYPE,
        ),
        "read",
        reading.SNIFF,
        _searched(reading.sniff),
    ),
    Verb(
        "look",
        "Look at a digest",
        "Returns a node's digest: summary, edges, outline or children, for a dataset how to query it. At most 500 "
        "tokens; needs read.",
        (_ID, Param("fields", "strings", "Only these parts.", choices=tuple(reading.LOOK_FIELDS))),
        "read",
        reading.LOOK,
        _read(reading.look),
    ),
    Verb(
        "move",
        "Move along edges",
        'Returns the neighbors of a node along its edges, or its children with rel="children". At most 600 '
        "tokens; needs read.",
        (
            _ID,
            Param("rel", "string", "An edge type, an inverse name, or children.", choices="rels", max_length=240),
            Param("direction", "string", "Direction of the edges.", default="out", choices=("out", "in", "both")),
        ),
        "read",
        reading.MOVE,
        _read(reading.move),
    ),
    Verb(
        "pick",
        "Pick text",
        "Returns a node's body, or one section of it. At most 4000 tokens; a longer body answers its outline, and a "
        "longer section comes in parts. Needs read.",
        (
            _ID,
            Param(
                "section", "string", "A heading from the outline, or heading#n for a part.", max_length=240, text=True
            ),
        ),
        "read",
        reading.PICK,
        _taken(reading.pick),
    ),
    Verb(
        "view",
        "View an image",
        "Returns the image of a media node beside a JSON header. Up to 6 MiB; needs read.",
        (_ID,),
        "read",
        1000,
        _taken(reading.picture),
    ),
    Verb(
        "scan",
        "Scan a branch",
        "Lists the nodes below a branch, filtered by metadata. Up to 50 nodes, at most 800 tokens; needs read.",
        (
            Param("parent_id", "id", "Id of the branch.", required=True),
            Param("filter", "object", "Metadata that must hold, such as type, tags_any, updated_after."),
            Param("fields", "strings", "Fields to return; id comes first.", choices=tuple(reading.SCAN_FIELDS)),
            Param("recursive", "boolean", "Everything below, not only children.", default=False),
            Param("limit", "integer", "How many nodes.", default=50, minimum=1, maximum=50),
        ),
        "read",
        reading.SCAN,
        _scan,
    ),
    Verb(
        "query",
        "Query a dataset",
        "Runs one SELECT on a dataset node and returns rows. Up to 200 rows, at most 2000 tokens; needs query.",
        (_ID, Param("sql", "string", "One SELECT statement.", required=True, max_length=100_000)),
        "query",
        2000,
        _no_datasets,
    ),
    Verb(
        "plant",
        "Plant a node",
        "Creates one node as a commit and returns its id. Never overwrites; needs write.",
        (
            Param(
                "node",
                "object",
                "id, type, title, summary, parent; optional body, tags, aliases, links and more.",
                required=True,
            ),
        ),
        "write",
        1000,
        _plant,
        write=True,
    ),
    Verb(
        "graft",
        "Graft a change",
        "Changes fields, links, sections or the body of one node as a commit. Needs write.",
        (
            _ID,
            Param(
                "patch",
                "object",
                "set_frontmatter, add_links, remove_links, replace_section, append_section, replace_body.",
                required=True,
            ),
            _EXPECT,
        ),
        "write",
        1000,
        _graft,
        write=True,
        destructive=True,
    ),
    Verb(
        "tend",
        "Tend a dataset",
        "Runs one INSERT, or one UPDATE or DELETE with WHERE, on a dataset node. Needs tend.",
        (_ID, Param("sql", "string", "One statement.", required=True, max_length=100_000), _EXPECT),
        "tend",
        1000,
        _no_datasets,
        write=True,
        destructive=True,
    ),
    Verb(
        "close_session",
        "Close the session",
        "Ends the session and says whether it found its answer; nodes that answered get warmer. Needs read.",
        (
            Param("success", "boolean", "Whether the answer was found.", required=True),
            Param("answer_nodes", "strings", "Ids of the nodes that the answer stands on.", default=[], max_items=50),
        ),
        "read",
        1000,
        _close_session,
        write=True,
    ),
)
VERBS: dict[str, Verb] = {verb.name: verb for verb in _TABLE}

# ---------------------------------------------------------------------------------------------- one forest


class Vine:
    """One open forest. Thread safe; any number of processes may hold the same forest."""

    def __init__(self, root: str | os.PathLike, readonly: bool = False):
        """Open a forest. VineError E_NOT_FOUND when the folder is none. `readonly`: every write is refused."""
        self.root = Path(os.path.abspath(root))
        self.name = self.root.name
        self.readonly = readonly
        self.store = store.Store(self.root)
        if not readonly:
            self._settle()  # first: what a killed init left is no forest
        if not (self.root / "_meta" / "schema.md").is_file() and not (self.root / "_index.md").is_file():
            raise VineError(
                "E_NOT_FOUND", f"{self.root} is not a forest (no _meta/schema.md)", "Make one with `vine init`."
            )
        self.catalog = Catalog(self.root)
        self.heat = Heat(self.root)
        self.session = Session(self.root)
        self._dialect: tuple[str | None, forest.Dialect] = (None, forest.BUILT_IN)

    def __enter__(self) -> "Vine":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self.catalog.close()
        self.heat.close()

    def _settle(self) -> None:
        """Finish or undo what a dead writer left; a git child of it may still hold the lock for a moment."""
        if self.store.abandoned():
            with contextlib.suppress(VineError, store.GitFailed, OSError), self.store.lock.held("recover") as keep:
                self.store.settle(keep)

    # -- calls ------------------------------------------------------------------------------------

    def call(
        self, name: str, args: dict, session: Session | None = None, sees=None, principal: str | None = None
    ) -> dict:
        """Run one verb and return its answer.

        `session` counts the call (default: the session of this object), `sees(id)` limits it to what a caller may
        see, `principal` is stamped on a commit. Every fault is a VineError; `view` answers with its bytes under `data`.
        """
        verb = VERBS.get(name)
        if verb is None:
            raise VineError("E_NOT_FOUND", f"no such tool: {str(name)[:60]}", f"Tools: {', '.join(VERBS)}")
        if self.readonly and verb.write and verb.capability in ("write", "tend"):
            raise VineError(
                "E_READONLY", "this forest is served read-only", "Start the server without --readonly to write."
            )
        try:
            return self._guarded(verb, args, session or self.session, sees, principal)
        except VineError:
            raise
        except (OSError, store.GitFailed) as error:
            log.exception("%s failed", name)
            raise store.failure(error) from error
        except Exception as error:
            reference = secrets.token_hex(4)
            log.exception("%s failed (reference %s)", name, reference)
            raise VineError(
                "E_INTERNAL", f"{name} failed unexpectedly", f"The log has the details under {reference}."
            ) from error

    def _guarded(self, verb: Verb, args: dict, session: Session, sees, principal) -> dict:
        try:
            return self._run(verb, args, session, sees, principal)
        except sqlite3.DatabaseError as error:  # never after a commit, so that a write may run again
            if isinstance(error, sqlite3.OperationalError) and self.catalog.sound():
                raise
            log.warning("the catalog is damaged and will be rebuilt: %s", error)
            self.catalog.reopen()
            return self._run(verb, args, session, sees, principal)

    def _run(self, verb: Verb, args: dict, session: Session, sees, principal) -> dict:
        started = time.perf_counter()
        self.catalog.fresh()
        self.heat.follow()
        dialect = self.dialect()
        checked = check_arguments(verb, args, dialect)
        session.wake()
        answer = verb.run(Call(self, View(self.catalog, self.heat, dialect, sees), checked, session, principal))
        elapsed = round((time.perf_counter() - started) * 1000, 2)
        self._trace(verb, args, answer, session, elapsed)
        return answer

    def _trace(self, verb: Verb, args: dict, answer: dict, session: Session, elapsed: float) -> None:
        if verb.name == "harvest":
            asked, told = forest.count_tokens(args.get("query") or ""), reading.size(answer)
            session.record("locate", None, asked, 0, elapsed)
            session.record("sniff", None, asked, 0, 0.0)
            share = told // max(1, len(answer["results"]))
            for item in answer["results"]:
                session.record("pick", item["id"], 0, share, 0.0)
        elif verb.name in TRACED:
            sent = {key: value for key, value in answer.items() if key != "data"}
            id = args.get("id") or args.get("parent_id") or answer.get("id")
            session.record(verb.name, id, reading.size(args), reading.size(sent), elapsed)

    def dialect(self) -> forest.Dialect:
        """The types that the forest declares; an unreadable declaration keeps the last good one."""
        with self.catalog.reading() as reader:
            row = reader.row(forest.SCHEMA)
            if row is not None and not row["fault"] and row["digest"] != self._dialect[0]:
                with contextlib.suppress(VineError, OSError):
                    node = forest.parse_node(reading.read_bytes(self.root, forest.SCHEMA) or b"", forest.SCHEMA)
                    self._dialect = (row["digest"], forest.parse_dialect(node.body))
        return self._dialect[1]

    # -- for the Gardener and the shells ----------------------------------------------------------

    @contextlib.contextmanager
    def writing(self, operation: str, principal: str | None = None) -> Iterator[writing.Transaction]:
        """The writer lock and a transaction under it, with everything settled that a dead writer left.

        VineError E_READONLY on a read-only engine, E_LOCKED when the lock is not had in time.
        """
        if self.readonly:
            raise VineError("E_READONLY", "this forest is served read-only")
        with self.store.lock.held(operation) as keep:
            if self.store.leftovers() and self.store.settle(keep):
                self.catalog.stale()
                self.catalog.check(force=True)
            self.catalog.writers += 1
            try:
                yield writing.Transaction(self.root, self.catalog, self.heat, self.store, keep, principal)
            finally:
                self.catalog.writers -= 1

    def node(self, id: str) -> forest.Node:
        """A node as its file is now; the not-found error when it is not catalogued."""
        self.catalog.fresh()
        with self.catalog.reading() as reader:
            return View(self.catalog, self.heat, self._dialect[1]).node(reader, id)

    def sources(self) -> list[dict]:
        """Id and ingest keys of every node that came from a source."""
        self.catalog.fresh()
        with self.catalog.reading() as reader:
            return reader.sources()

    def reindex(self, ahead: bool = False) -> dict:
        """Read every file anew: `{nodes, broken, ms}`. `ahead`: with a second process, for callers without threads."""
        return self.catalog.rebuild(ahead and os.cpu_count() != 1)

    def validate(self, fix: bool = False) -> dict:
        """Every problem of every file: `{errors, warnings, issues}`. `fix` first rewrites drifted index sections."""
        self.catalog.check(force=True)
        if fix:
            with self.writing("validate") as tx:
                lint.fix(tx)
        with self.catalog.reading() as reader:
            return lint.report(self.root, reader, self.dialect(), self.store.git)


# ---------------------------------------------------------------------------------------------- a pool of forests


class Pool:
    """The forests of one local server: one folder, or every forest below a root, opened at first touch."""

    def __init__(self, mode: str, path: Path, readonly: bool):
        self.mode, self.path, self.readonly = mode, path, readonly
        self._open: dict[str, Vine] = {}
        self._opening: dict[str, threading.Lock] = {}
        self._sessions: dict[tuple[str, str], Session] = {}
        self._lock = threading.Lock()

    @classmethod
    def single(cls, path: str | os.PathLike, readonly: bool = False) -> "Pool":
        return cls("single", Path(os.path.abspath(path)), readonly)

    @classmethod
    def registry(cls, root: str | os.PathLike, readonly: bool = False) -> "Pool":
        return cls("registry", Path(os.path.abspath(root)), readonly)

    def close(self) -> None:
        with self._lock:
            for vine in self._open.values():
                vine.close()
            self._open.clear()

    def forests(self) -> dict:
        """`{forests: [{id, active}], mode}`; opens nothing."""
        if self.mode == "single":
            return {"forests": [{"id": self.path.name, "active": True}], "mode": self.mode}
        names = self._names()
        return (
            reading.shrink(
                {"forests": [{"id": name, "active": name in self._open} for name in names], "mode": self.mode},
                "forests",
                2000,
            )
            if names
            else {"forests": [], "mode": self.mode}
        )

    def _names(self) -> list[str]:
        try:
            with os.scandir(self.path) as entries:
                folders = [e.name for e in entries if e.name[0] != "." and e.is_dir(follow_symlinks=False)]
        except OSError:
            return []
        return sorted(n for n in folders if (self.path / n / "_index.md").is_file())

    def vine(self, name: str | None) -> Vine:
        """The forest of a call, opened at first touch. E_NOT_FOUND for an unknown name, E_SCHEMA for none where
        one is needed."""
        if self.mode == "single":
            if name is not None and name != self.path.name:
                raise self._unknown(name)
            name = self.path.name
        elif name is None:
            raise VineError("E_SCHEMA", "forest: required", f"Forests: {', '.join(self._names()) or 'none'}")
        with self._lock:
            if name in self._open:
                return self._open[name]
            if self.mode == "registry" and name not in self._names():
                raise self._unknown(name)
            opening = self._opening.setdefault(name, threading.Lock())
        with opening:  # of this forest only: a slow one holds up no other
            if name not in self._open:
                self._open[name] = Vine(self.path if self.mode == "single" else self.path / name, self.readonly)
            return self._open[name]

    def _unknown(self, name: str) -> VineError:
        shown = name if len(name) <= 240 else name[:239] + "…"
        return VineError("E_NOT_FOUND", f"unknown forest: {shown}", "Call forests() for the list.")

    def call(self, name: str, args: dict, client: str = "") -> dict:
        """Run a verb. `args` may hold `forest`, `client` names the MCP session that calls. Every fault is a
        VineError."""
        if not isinstance(args, dict):
            raise VineError("E_SCHEMA", "arguments must be an object")
        args = dict(args)
        if name == "forests":
            check_arguments(VERBS["forests"], args, forest.BUILT_IN)
            return self.forests()
        if name not in VERBS:
            raise VineError("E_NOT_FOUND", f"no such tool: {str(name)[:60]}", f"Tools: {', '.join(VERBS)}")
        which = args.pop("forest", None)
        if which is not None and not isinstance(which, str):
            raise VineError("E_SCHEMA", "forest: must be a string")
        if _has_surrogate(which):
            raise VineError("E_SCHEMA", "forest: holds half a surrogate pair")
        try:
            vine = self.vine(which or None)
        except (OSError, sqlite3.Error) as error:
            log.exception("a forest could not be opened")
            raise VineError(
                "E_INTERNAL", "the forest could not be opened", "The server's log has the details."
            ) from error
        return vine.call(name, args, self._session(vine, client))

    def _session(self, vine: Vine, client: str) -> Session:
        with self._lock:
            now = time.monotonic()
            for key in [k for k, s in self._sessions.items() if now - s.used > IDLE]:
                del self._sessions[key]
            return self._sessions.setdefault((client, vine.name), Session(vine.root))

    def end_client(self, client: str) -> None:
        """Forget the sessions of an MCP session that ended."""
        with self._lock:
            for key in [key for key in self._sessions if key[0] == client]:
                del self._sessions[key]
