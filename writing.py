"""The write primitives and the transaction that every writer goes through.

Owns: what plant and graft accept and change, the index files that follow every change, `expect`, birth of a forest.
Must never: touch a file itself (store.py does), leave an index out of step with the change it commits.

Sections: the transaction · indexes that follow · plant · graft · expect · birth of a forest.

A transaction gathers whole nodes; at commit it works out every index file that the change touches, and hands one
Change to the store: node files and index files stand in one commit, or none of them anywhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Iterable

import forest
import store
from catalog import Catalog, node_path, read_bytes
from forest import Node, VineError, not_found
from reading import View, payload_bytes
from store import Change, GitFailed, Store
from trails import STRONG, Heat

log = logging.getLogger("vine.writing")

BODY_LIMIT = 1_000_000  # characters
LINKS_LIMIT = 50

# ---------------------------------------------------------------------------------------------- the transaction


class Transaction:
    """Pending changes of one forest, under its writer lock. Made by `Vine.writing`."""

    def __init__(self, root: Path, catalog: Catalog, heat: Heat, files: Store, keep: int, principal: str | None = None):
        self.root, self.catalog, self.heat, self.store, self.keep = root, catalog, heat, files, keep
        self.principal = principal
        self.today = date.today().isoformat()
        self.pending: dict[str, Node | None] = {}  # None: removed
        self._files: dict[str, bytes] = {}
        self._moves: dict[str, str] = {}

    def node(self, id: str) -> Node | None:
        """The node as it will be, or as its file is now; None when absent. E_FRONTMATTER for a broken file."""
        if id in self.pending:
            return self.pending[id]
        data = read_bytes(self.root, id)
        return None if data is None else forest.parse_node(data, id)

    def exists(self, id: str) -> str | None:
        """The id that stands in the way of a new node `id`: itself, or one that differs by letter case only."""
        key = forest.twin_key(id)
        for other, node in self.pending.items():
            if node is not None and forest.twin_key(other) == key:
                return other
        with self.catalog.reading() as reader:
            taken = [other for other in reader.twins(id) if self.pending.get(other, other) is not None]
        if taken:
            return taken[0]
        return id if id not in self.pending and os.path.lexists(node_path(self.root, id)) else None

    def put(self, id: str, fields: dict[str, Any], body: str) -> None:
        """Create or replace a node. A branch gets the parts that its body lacks; `created` and `updated` are
        today unless given."""
        fields = dict(fields)
        fields["id"] = id
        fields = forest.with_fields(fields, {k: self.today for k in ("created", "updated") if not fields.get(k)})
        node = Node(id, fields, body)
        if node.kind == "branch":
            node.body = forest.branch_body(body, node.title, node.summary, id == forest.MASTER)
        self.pending[id] = node

    def remove(self, id: str) -> None:
        self.pending[id] = None

    def move(self, old: str, new: str) -> None:
        """Give a node another id; its heat goes with it."""
        node = self.node(old)
        if node is None:
            raise not_found(old)
        self.remove(old)
        self.put(new, node.fields, node.body)
        self._moves[old] = new

    def file(self, path: str, data: bytes) -> None:
        """Write a tracked file that is no node, such as `_meta/gardener.yaml`."""
        self._files[path] = data

    def commit(self, subject: str, ids: Iterable[str] = ()) -> str | None:
        """Publish everything in one commit; its id, or None when nothing changes. All or nothing."""
        Indexes(self).follow()
        files = self._changed_files()
        if not files:
            return None
        change = Change(files, forest.one_line(subject), tuple(ids), self.principal)
        sha, record = self.store.apply(change, self.keep)
        # From here on the write has happened: nothing below may fail it. A record that stays tells the next writer,
        # in whatever process, to look at the files before it renders an index from the catalog.
        try:
            if self.catalog.absorb(path[:-3] for path in files if path.endswith(".md")):
                record.done()
            else:
                self.catalog.stale()
        except (OSError, sqlite3.Error):
            log.exception("a committed write could not be catalogued at once")
            self.catalog.stale()
        if self._moves:
            self.heat.rename(self._moves)
        return sha

    def _changed_files(self) -> dict[str, bytes | None]:
        files: dict[str, bytes | None] = {}
        for id, node in self.pending.items():
            data = None if node is None else forest.render_node(node.fields, node.body)
            if data != read_bytes(self.root, id):
                files[id + ".md"] = data
        for path, data in self._files.items():
            with contextlib.suppress(FileNotFoundError):
                if (self.root / path).read_bytes() == data:
                    continue
            files[path] = data
        return files


# ---------------------------------------------------------------------------------------------- indexes that follow


class Indexes:
    """Brings the index files in step with a transaction's nodes: entries, coverage, landmarks."""

    def __init__(self, tx: Transaction):
        self.tx = tx
        self.nodes = tx.pending
        with tx.catalog.reading() as reader:
            self.known = reader.rows(self.nodes)
        self._pending: dict[str | None, list[str]] = defaultdict(list)
        for id in self.nodes:
            self._pending[forest.parent_of(id)].append(id)
        self._children: dict[str, dict[str, tuple[str, str]]] = {}

    def follow(self) -> None:
        dirty = set()
        for id, node in self.nodes.items():
            row = self.known.get(id)
            if node is not None and node.kind == "branch":
                dirty.add(id)
            moved = row is None or node is None or (row["summary"], row["kind"]) != (node.summary, node.kind)
            if moved and forest.parent_of(id):
                dirty.add(forest.parent_of(id))
        done = set()
        while dirty - done:
            branch = max(dirty - done, key=lambda id: (id.count("/"), id))  # deepest first: coverage goes up
            done.add(branch)
            if self.rewrite(branch) and forest.parent_of(branch):
                dirty.add(forest.parent_of(branch))
        self._rewrite_landmarks()

    def rewrite(self, branch: str) -> bool:
        """Render one index; True when the entry that shows it one level up is out of date now."""
        node = self._index(branch)
        if node is None:
            return False
        body = forest.with_entries(node.body, self._entries(branch))
        covers = self._coverage(branch)
        if branch not in self.nodes and body == node.body and node.fields.get("coverage") == covers:
            return False
        changed = node.fields.get("coverage") != covers
        fields = forest.with_fields(node.fields, {"coverage": covers})
        if branch not in self.nodes:
            fields = forest.with_fields(fields, {"updated": self.tx.today})
        self.nodes[branch] = Node(branch, fields, body)
        return changed

    def _index(self, branch: str) -> Node | None:
        try:
            node = self.tx.node(branch)
        except VineError:
            return None  # broken by hand: lint tells, and the branch's next sound write catches up
        return node if node is not None and node.kind == "branch" else None

    def _entries(self, branch: str) -> dict[str, list[str]]:
        branches, bananas = [], []
        for id, (kind, summary) in sorted(self.children(branch).items()):
            if kind == "branch":
                branches.append(forest.entry(id, summary, self._coverage(id)))
            else:
                bananas.append(forest.entry(id, summary))
        return {forest.SUB_BRANCHES: branches, forest.DIRECT: bananas}

    def _coverage(self, branch: str) -> str:
        kinds = [kind for kind, _ in self.children(branch).values()]
        return forest.coverage(kinds.count("banana"), kinds.count("branch"))

    def children(self, branch: str) -> dict[str, tuple[str, str]]:
        """{id: (kind, summary)} of a branch's children as they will be."""
        if branch not in self._children:
            with self.tx.catalog.reading() as reader:
                found = reader.faces(branch)
            for id in self._pending[branch]:
                node = self.nodes[id]
                found.pop(id, None)
                if node is not None:
                    found[id] = (node.kind, node.summary)
            self._children[branch] = found
        return self._children[branch]

    def _rewrite_landmarks(self) -> None:
        changed = {id: node for id, node in self.nodes.items() if id in self.known}
        master = self._index(forest.MASTER) if changed else None
        lines = forest.index_lines(master.body, forest.LANDMARKS) if master else []
        if not any(id in changed for id, _ in lines):
            return
        entries = []
        for id, line in lines:
            if id not in changed:
                entries.append(line)
            elif changed[id] is not None:
                entries.append(forest.entry(id, changed[id].summary))
        body = forest.with_entries(master.body, {forest.LANDMARKS: entries})
        if body != master.body:
            fields = forest.with_fields(master.fields, {"updated": self.tx.today})
            self.nodes[forest.MASTER] = Node(forest.MASTER, fields, body)


# ---------------------------------------------------------------------------------------------- plant

_REQUIRED = ("id", "type", "title", "summary", "parent")
_STRINGS = frozenset((*_REQUIRED, "body", "source", "entity_kind", "payload", "payload_type", "payload_hash"))
_IGNORED = frozenset(("created", "updated", "coverage"))


@dataclass(frozen=True)
class Seed:
    """A plant's node, checked as far as it can be without the forest."""

    id: str
    parent: str
    fields: dict[str, Any]
    body: str
    links: list[dict]


def check_seed(given: dict, dialect: forest.Dialect) -> Seed:
    """The first fault of a plant's node is raised, in the order of the reference; no file is looked at."""
    given = {key: value for key, value in given.items() if value is not None}
    _check_shape(given)
    id = forest.check_id(given["id"])
    kind = given["type"]
    if (kind == "branch") != forest.is_branch_id(id):
        raise VineError("E_SCHEMA", "a node's id ends in _index exactly when its type is branch")
    if kind not in dialect.types:
        raise VineError(
            "E_SCHEMA", f"type: unknown type {kind[:64]!r}", f"Types of this forest: {', '.join(dialect.types)}"
        )
    links = check_links(given.get("links", []), dialect, id)
    for key in ("title", "summary", "tags", "aliases", "confidence", "source", "entity_kind", "payload_type"):
        if key in given:
            forest.check_field(key, given[key])
    if kind == "entity" and "entity_kind" not in given:
        raise VineError("E_SCHEMA", "entity_kind: required when type is entity")
    if "payload" in given and (fault := forest.payload_fault(given["payload"])):
        raise VineError("E_SCHEMA", f"payload: {fault}")
    for key in ("schema", "rows"):
        if key in given:
            raise VineError("E_SCHEMA", f"{key}: tables cannot be born by plant in this version")
    return Seed(id, given["parent"], _seed_fields(given, links), _seed_body(given), links)


def _check_shape(given: dict) -> None:
    for key in _REQUIRED:
        if key not in given:
            raise VineError("E_SCHEMA", f"{key}: required")
    for key, value in given.items():
        if key in _STRINGS and not isinstance(value, str):
            raise VineError("E_SCHEMA", f"{key}: must be a string")
        if key in forest.LIST_FIELDS and not (isinstance(value, list) and all(isinstance(v, str) for v in value)):
            raise VineError("E_SCHEMA", f"{key}: must be a list of strings")
        if key == "confidence" and not _is_number(value):
            raise VineError("E_SCHEMA", "confidence: must be a number")
        if key in ("schema", "rows") and not isinstance(value, dict):
            raise VineError("E_SCHEMA", f"{key}: must be an object")
        if key in forest.INGEST_ONLY:
            raise VineError("E_SCHEMA", f"{key}: only ingest sets this field")
    if len(given.get("body", "")) > BODY_LIMIT:
        raise VineError("E_SCHEMA", f"body: {len(given['body'])} characters; the limit is {BODY_LIMIT}")
    _check_link_shapes("links", given.get("links", []))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_link_shapes(name: str, links: Any) -> None:
    if not isinstance(links, list):
        raise VineError("E_SCHEMA", f"{name}: must be a list of links")
    for i, link in enumerate(links):
        if not isinstance(link, dict):
            raise VineError("E_SCHEMA", f"{name}[{i}]: must be an object with rel and target")
        for key in ("rel", "target"):
            if not isinstance(link.get(key), str):
                raise VineError("E_SCHEMA", f"{name}[{i}].{key}: must be a string")
        if link.get("confidence") is not None and not _is_number(link["confidence"]):
            raise VineError("E_SCHEMA", f"{name}[{i}].confidence: must be a number")


def check_links(links: list[dict], dialect: forest.Dialect, id: str, name: str = "links") -> list[dict]:
    """Links with their rel checked, each (rel, target) once."""
    if len(links) > LINKS_LIMIT:
        raise VineError("E_SCHEMA", f"{name}: {len(links)} links; the limit is {LINKS_LIMIT}")
    unique: dict[tuple[str, str], dict] = {}
    for i, link in enumerate(links):
        if link["rel"] not in dialect.edges:
            raise VineError(
                "E_SCHEMA",
                f"{name}[{i}].rel: unknown rel {link['rel'][:64]!r}",
                f"Rels of this forest: {', '.join(dialect.edges)}",
            )
        unique.setdefault((link["rel"], link["target"]), {k: v for k, v in link.items() if v is not None})
    for i, link in enumerate(unique.values()):
        if not 0 <= link.get("confidence", 1) <= 1:
            raise VineError("E_FRONTMATTER", f"{name}[{i}].confidence: must be a number from 0 to 1")
    return list(unique.values())


def check_targets(tx: Transaction, view: View, links: list[dict], id: str) -> None:
    """Link targets are catalogued, visible, and not the node itself."""
    with tx.catalog.reading() as reader:
        there = reader.rows(link["target"] for link in links)
    for link in links:
        if link["target"] == id:
            raise VineError("E_SCHEMA", "links: a node cannot link to itself")
        if link["target"] not in there or not view.visible(link["target"]):
            raise not_found(link["target"])


def _seed_fields(given: dict, links: list[dict]) -> dict[str, Any]:
    fields = {k: v for k, v in given.items() if k not in _IGNORED and k not in ("parent", "body", "links")}
    for key in forest.LIST_FIELDS:
        fields[key] = list(dict.fromkeys(fields.get(key, [])))
    if links:
        fields["links"] = links
    fields.setdefault("source", "agent")
    if fields.get("confidence") == 1:
        del fields["confidence"]
    return forest.ordered({k: v for k, v in fields.items() if v != [] or k not in forest.LIST_FIELDS})


def _seed_body(given: dict) -> str:
    body = given.get("body", "").replace("\r\n", "\n").replace("\r", "\n").strip("\n").rstrip()
    if given["type"] == "branch":
        return body
    marks = forest.headings(body[:2000])
    starts_with_heading = bool(marks) and not body[: marks[0].start].strip()
    return body if starts_with_heading else f"# {given['title']}\n\n{body}".rstrip()


def plant(tx: Transaction, view: View, seed: Seed) -> dict:
    """Create one node; never overwrites."""
    tx.catalog.touch([seed.id, seed.parent, *(link["target"] for link in seed.links)])
    twin = tx.exists(seed.id)
    if twin:
        named = f"id already exists: {twin}" if view.visible(twin) else f"id is taken: {seed.id}"
        raise VineError("E_SCHEMA", named, "Change a node with graft; plant never overwrites.")
    with tx.catalog.reading() as reader:
        parent = reader.row(seed.parent)
        if parent is None or not view.visible(seed.parent) or (parent["kind"] != "branch" and not parent["fault"]):
            raise not_found(seed.parent)
        view.row(reader, seed.parent)
    if seed.parent != forest.parent_of(seed.id):
        raise VineError("E_SCHEMA", f"parent: the id implies {forest.parent_of(seed.id)}")
    check_targets(tx, view, seed.links, seed.id)
    fields = _with_payload(tx, seed)
    tx.put(seed.id, fields, seed.body)
    _check_storable(tx, seed.id)
    with tx.catalog.reading() as reader:  # before the commit: after it nothing may fail
        trail = view.trails(reader, [seed.id])[seed.id]
    commit = tx.commit(f"plant({seed.id}): {seed.fields['title']} [source={seed.fields['source']}]")
    return {"id": seed.id, "commit": commit, "trail": trail}


def _with_payload(tx: Transaction, seed: Seed) -> dict[str, Any]:
    """The passport with the payload's hash, once the file is known to be there and nobody else's."""
    name = seed.fields.get("payload")
    if name is None:
        if "payload_hash" in seed.fields:
            raise VineError("E_SCHEMA", "payload_hash: given without a payload")
        return seed.fields
    data = payload_bytes(tx.root, seed.id, name, 1 << 40)
    if data is None:
        raise VineError("E_SCHEMA", "payload: no such file beside the node")
    with tx.catalog.reading() as reader:
        folder = forest.parent_of(seed.id)
        if any(row["payload"] == name for row in reader.direct(folder) if row["id"] != seed.id):
            raise VineError("E_SCHEMA", "payload: the file belongs to another node")
    digest = hashlib.sha256(data).hexdigest()
    if seed.fields.get("payload_hash", digest) != digest:
        raise VineError("E_SCHEMA", "payload_hash: the file has another sha256")
    return forest.with_fields(seed.fields, {"payload_hash": digest})


def _check_storable(tx: Transaction, id: str) -> None:
    """What is written must be readable again: deep or huge values of free keys are refused before anything is."""
    node = tx.node(id)
    try:
        forest.parse_node(forest.render_node(node.fields, node.body), id)
    except (VineError, ValueError, RecursionError) as error:
        message = error.message if isinstance(error, VineError) else "it cannot be written as YAML"
        raise VineError("E_SCHEMA", f"the node cannot be stored: {message}") from None


# ---------------------------------------------------------------------------------------------- graft

_PATCH_KEYS = ("set_frontmatter", "add_links", "remove_links", "replace_section", "append_section", "replace_body")
_SETTABLE = ("title", "summary", "tags", "confidence", "aliases")


@dataclass
class Patch:
    """A graft's patch, checked as far as it can be without the node."""

    fields: dict[str, Any]
    add: list[dict]
    remove: list[tuple[str, str]]
    replace: tuple[str, str] | None
    append: tuple[str, str] | None
    body: str | None


def check_patch(given: dict, dialect: forest.Dialect, id: str) -> Patch:
    if not given:
        raise VineError("E_SCHEMA", "patch: is empty", f"Keys: {', '.join(_PATCH_KEYS)}")
    for key in given:
        if key not in _PATCH_KEYS:
            near = forest.nearest(key, _PATCH_KEYS)
            raise VineError(
                "E_SCHEMA", f"patch: unknown key {key[:60]!r}", f"Did you mean {near}? Keys: {', '.join(_PATCH_KEYS)}"
            )
    body = given.get("replace_body")
    if body is not None and not isinstance(body, str):
        raise VineError("E_SCHEMA", "patch.replace_body: must be a string")
    replace, append = _check_section(given, "replace_section"), _check_section(given, "append_section")
    if body is not None and (replace or append):
        raise VineError(
            "E_SCHEMA", "patch: replace_body cannot stand beside a section key", "Send the whole body, or sections."
        )
    if body is not None and forest.is_branch_id(id):
        raise VineError(
            "E_SCHEMA", "patch.replace_body: the body of an index is rendered", "Use section keys on an index."
        )
    add, remove = given.get("add_links") or [], given.get("remove_links") or []
    _check_link_shapes("patch.add_links", add)
    _check_link_shapes("patch.remove_links", remove)
    fields = _check_settings(given.get("set_frontmatter"))
    added = check_links(add, dialect, id, "patch.add_links") if len(add) <= 1 else _check_each(add, dialect, id)
    return Patch(fields, added, [(link["rel"], link["target"]) for link in remove], replace, append, body)


def _check_each(links: list[dict], dialect: forest.Dialect, id: str) -> list[dict]:
    """As check_links, but repeats stay: the second one fortifies."""
    check_links(links, dialect, id, "patch.add_links")
    return [{k: v for k, v in link.items() if v is not None} for link in links]


def _check_settings(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise VineError("E_SCHEMA", "patch.set_frontmatter: must be an object")
    for key, value in given.items():
        if key not in _SETTABLE:
            raise VineError(
                "E_READONLY", f"{key[:60]}: graft cannot set this field", f"It sets {', '.join(_SETTABLE)}."
            )
        if value is None:
            if key in ("title", "summary"):
                raise VineError("E_FRONTMATTER", f"{key}: cannot be cleared")
            continue
        if key in ("title", "summary") and not isinstance(value, str):
            raise VineError("E_SCHEMA", f"{key}: must be a string")
        if key in forest.LIST_FIELDS and not (isinstance(value, list) and all(isinstance(v, str) for v in value)):
            raise VineError("E_SCHEMA", f"{key}: must be a list of strings")
        if key == "confidence" and not _is_number(value):
            raise VineError("E_SCHEMA", "confidence: must be a number")
        forest.check_field(key, value)
    return given


def _check_section(given: dict, key: str) -> tuple[str, str] | None:
    section = given.get(key)
    if section is None:
        return None
    name = f"patch.{key}"
    if not isinstance(section, dict):
        raise VineError("E_SCHEMA", f"{name}: must be an object with header and body")
    for part in section:
        if part not in ("header", "body"):
            raise VineError("E_SCHEMA", f"{name}: unknown key {part[:60]!r}", "Keys: header, body")
    header, body = section.get("header"), section.get("body")
    for part, value in (("header", header), ("body", body)):
        if not isinstance(value, str):
            raise VineError("E_SCHEMA", f"{name}.{part}: must be a string")
    if forest.has_breaks(header):
        raise VineError("E_SCHEMA", f"{name}.header: must be one line without control characters")
    header = re.sub(r"^#+(?=\s|$)|^\s+", "", header.strip()).strip()
    if not header or len(header) > 200:
        raise VineError("E_SCHEMA", f"{name}.header: must have 1 to 200 characters")
    return header, body.replace("\r\n", "\n").replace("\r", "\n").strip("\n").rstrip()


def graft(tx: Transaction, view: View, id: str, patch: Patch, expect: str | None) -> dict:
    """Change one node: fields, links, sections or body; all of it or nothing."""
    tx.catalog.touch([id, *(link["target"] for link in patch.add)])
    with tx.catalog.reading() as reader:
        node = view.node(reader, id)
        trail = view.trails(reader, [id])[id]
    check_expect(tx, node, expect)
    told: list[str] = []
    fields = _graft_fields(node, patch, told)
    fields, fortified = _graft_links(tx, view, node, fields, patch, told)
    body = _graft_body(node, patch, told)
    with tx.catalog.reading() as reader:
        ends = reader.rows([id, *(link["target"] for link in fortified)])
    if node.kind == "branch":
        new = Node(id, fields, body)
        body = forest.with_new_face(body, (node.title, node.summary), (new.title, new.summary))
    commit = None
    if (fields, body) != (node.fields, node.body):
        tx.put(id, forest.with_fields(fields, {"updated": tx.today}), body)
        _check_storable(tx, id)
        commit = tx.commit(f"graft({id}): {'; '.join(told)}")
    for link in fortified:
        tx.heat.deposit({end: STRONG for end in (id, link["target"]) if end in ends})
    return {"id": id, "commit": commit, "fortified": fortified, "trail": trail}


def _graft_fields(node: Node, patch: Patch, told: list[str]) -> dict[str, Any]:
    now = {"title": node.title, "summary": node.summary, "tags": node.tags, "aliases": node.aliases}
    now["confidence"] = node.confidence
    changes: dict[str, Any] = {}
    for key, value in patch.fields.items():
        if key in forest.LIST_FIELDS:
            value = list(dict.fromkeys(value or []))
        elif key == "confidence":
            value = 1.0 if value is None else float(value)
        if value != now[key]:
            changes[key] = None if value in ([], 1.0) else value
    if changes:
        told.append("set " + ",".join(sorted(changes)))
    return forest.with_fields(node.fields, changes)


def _graft_links(tx, view, node: Node, fields: dict, patch: Patch, told: list[str]) -> tuple[dict, list[dict]]:
    links = node.links
    pairs = {(link["rel"], link["target"]) for link in links}
    check_targets(tx, view, [link for link in patch.add if (link["rel"], link["target"]) not in pairs], node.id)
    fortified, added = [], 0
    for link in patch.add:
        pair = (link["rel"], link["target"])
        if pair in pairs:
            fortified.append({"rel": pair[0], "target": pair[1]})
            continue
        if link["rel"] == "discovered-shortcut":
            link = {"rel": link["rel"], "target": link["target"], "confidence": 0.5, "discovered_by": "agent"} | link
        pairs.add(pair)
        links.append(link)
        added += 1
    if len(links) > LINKS_LIMIT and added:
        raise VineError("E_SCHEMA", f"patch.add_links: {len(links)} links in all; the limit is {LINKS_LIMIT}")
    kept = [link for link in links if (link["rel"], link["target"]) not in patch.remove]
    told += [f"+{added} links"] if added else []
    told += [f"-{len(links) - len(kept)} links"] if len(kept) < len(links) else []
    if not added and len(kept) == len(links):
        return fields, fortified
    return forest.with_fields(fields, {"links": kept or None}), fortified


def _graft_body(node: Node, patch: Patch, told: list[str]) -> str:
    body = node.body
    if patch.body is not None:
        body = patch.body.replace("\r\n", "\n").replace("\r", "\n").strip("\n").rstrip()
        if body != node.body:
            told.append(f"replace body ({len(body.split())} words)")
    if patch.replace:
        header, text = patch.replace
        _guard_sections(node, header)
        mark = forest.find_section(body, header)
        if mark is None:
            names = forest.outline(body)
            hint = "Sections: " + "; ".join(names) if names else "This node has no sections."
            raise VineError("E_NOT_FOUND", f"section not found: {header}", hint)
        heading, rest = body[mark.start : mark.body].rstrip("\n"), body[mark.end :]
        changed = f"{body[: mark.start]}{heading}\n{text}".rstrip() + ("\n\n" + rest if rest else "")
        if changed.rstrip() != body:
            body = changed.rstrip()
            told.append(f"replace '{mark.text}'")
    if patch.append:
        header, text = patch.append
        _guard_sections(node, header)
        body = f"{forest.closed(body).rstrip()}\n\n## {header}\n{text}".strip("\n").rstrip()
        told.append(f"append '{header}'")
    if len(body) > BODY_LIMIT:
        raise VineError("E_SCHEMA", f"patch: the body would have {len(body)} characters; the limit is {BODY_LIMIT}")
    return body


def _guard_sections(node: Node, header: str) -> None:
    if node.kind == "branch" and header.casefold() in (name.casefold() for name in forest.ENGINE_SECTIONS):
        raise VineError("E_SCHEMA", f"the section {header!r} of an index is kept by the engine")


# ---------------------------------------------------------------------------------------------- expect

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")


def check_expect(tx: Transaction, node: Node, expect: str | None) -> None:
    """E_LOCKED unless the node is what the caller saw: by version, or by a commit that holds the same content."""
    if expect is None or expect == node.version:
        return
    if _COMMIT.match(expect):
        data = tx.store.git.read_blob(expect, f"{node.id}.md")
        with contextlib.suppress(VineError):
            if data is not None and forest.parse_node(data, node.id).version == node.version:
                return
    raise VineError(
        "E_LOCKED", f"{node.id} has changed since you read it", f"Read it again; its version is now {node.version}."
    )


# ---------------------------------------------------------------------------------------------- birth of a forest

IGNORED = ("_derived/", ".vine.lock", "*.db", "*.sqlite", "_assets/")


def init(root: Path, title: str | None = None, summary: str | None = None) -> dict:
    """Make `root` a forest: master branch, dialect, .gitignore, one commit. Other files stay as they are.

    Returns `{root, title, commit}`. Raises VineError E_SCHEMA when it is one already; after any failure what the
    call made is gone again.
    """
    root = Path(os.path.abspath(root))
    files = Store(root)
    title = title or root.name or "Forest"
    summary = (
        summary or "A new forest. It is empty so far: its branches and notes will be listed here as they are planted."
    )
    forest.check_field("title", title)
    forest.check_field("summary", summary)
    absent = [path for path in (root / "_derived", root, *root.parents) if not os.path.lexists(path)]
    try:
        if not files.abandoned():
            _check_unborn(root)
        root.mkdir(parents=True, exist_ok=True)
        with files.lock.held("init") as keep:
            if files.leftovers():  # of an init that died: half-way, or when all was done
                files.settle(keep)
            _check_unborn(root)
            sha = _give_birth(files, title, summary, keep)
    except BaseException as error:
        with contextlib.suppress(OSError):
            for folder in absent:
                folder.rmdir()
        if isinstance(error, (OSError, GitFailed)):
            raise store.failure(error) from error
        raise
    return {"root": str(root), "title": title, "commit": sha}


def _check_unborn(root: Path) -> None:
    if os.path.lexists(root / "_index.md") or os.path.lexists(root / "_meta" / "schema.md"):
        raise VineError("E_SCHEMA", f"{root.name} is a forest already")


def _give_birth(files: Store, title: str, summary: str, keep: int) -> str:
    """Repository, first files and first commit, or nothing at all. Under the lock of the forest to be."""
    made_git = False
    try:
        made_git = store.init_repository(files.root)
        change = Change(_birth_files(files.root, title, summary), f"init: forest '{title}' (empty A.5 skeleton)")
        sha, record = files.apply(change, keep)
    except BaseException:
        if made_git:
            store.remove_tree(files.root / ".git")
        store.remove_tree(files.root / "_derived" / "birth")
        with contextlib.suppress(OSError):
            files.journal.rmdir()
        raise
    with contextlib.suppress(OSError):  # a record that stays is settled at the next opening
        record.done()
    return sha


def _birth_files(root: Path, title: str, summary: str) -> dict[str, bytes | None]:
    today = date.today().isoformat()
    face = {"created": today, "updated": today}
    master = {"id": forest.MASTER, "type": "branch", "title": title, "summary": summary} | face
    master["coverage"] = forest.coverage(0, 0)
    about = "The node types and edge types that this forest uses. Rows added here may be used at once."
    dialect = {"id": forest.SCHEMA, "type": "note", "title": "Forest dialect", "summary": about} | face
    return {
        "_index.md": forest.render_node(master, forest.branch_body("", title, summary, True)),
        "_meta/schema.md": forest.render_node(dialect, forest.schema_body()),
        ".gitignore": _ignore_file(root),
    }


def _ignore_file(root: Path) -> bytes:
    try:
        old = (root / ".gitignore").read_bytes()
    except FileNotFoundError:
        old = b""
    lines = old.decode("utf-8", "surrogateescape").splitlines()
    missing = [line for line in IGNORED if line not in lines]
    if old and not old.endswith(b"\n"):
        old += b"\n"
    return old + "".join(line + "\n" for line in missing).encode()
