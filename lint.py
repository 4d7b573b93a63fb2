"""Lint: every problem of every file, in words a person can act on.

Owns: the checks of `vine validate`, and the repair of index files that drifted.
Must never: stop at a bad file; write anything but engine sections and coverage, and these only through a transaction.

Sections: the report · checks of one file · checks of the forest · repair.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections import Counter, defaultdict
from pathlib import Path
from typing import Iterator, NamedTuple

import forest
import trails
from catalog import Reader, node_path, read_bytes
from forest import Dialect, Node, VineError
from store import Git, GitFailed
from writing import Indexes, Transaction

# ---------------------------------------------------------------------------------------------- the report

ERRORS = frozenset(
    "bad-encoding bad-frontmatter missing-field bad-field unknown-type unknown-rel too-many-links bad-link broken-link "
    "id-mismatch branch-mismatch case-twin symlink payload-missing payload-unsafe payload-shared".split()
)


class Issue(NamedTuple):
    id: str
    code: str
    message: str


def report(root: Path, reader: Reader, dialect: Dialect, git: Git) -> dict:
    """`{errors, warnings, issues: [{id, path, level, code, message}]}`, by id then code."""
    nodes: dict[str, Node] = {}
    issues: list[Issue] = []
    rows = reader.all_rows()
    for row in rows:
        try:
            nodes[row["id"]] = forest.parse_node(read_bytes(root, row["id"]) or b"", row["id"])
        except VineError as error:
            issues.append(Issue(row["id"], error.fault_kind, error.message))
        except OSError:
            issues.append(Issue(row["id"], "bad-encoding", "the file cannot be read"))
    for node in nodes.values():
        if not node.id.startswith("_meta/"):
            issues += _check_node(node, dialect, nodes)
    issues += _twins(rows) + list(_payloads(root, nodes)) + list(_indexes(nodes)) + list(_passed_by(root))
    issues += _settings(root, dialect) + _uncommitted(git)
    told = [_told(issue) for issue in sorted(set(issues))]
    errors = sum(1 for issue in told if issue["level"] == "error")
    return {"errors": errors, "warnings": len(told) - errors, "issues": told}


def _told(issue: Issue) -> dict:
    level = "error" if issue.code in ERRORS else "warning"
    path = issue.id if issue.id.endswith(".yaml") else issue.id + ".md"
    return {"id": issue.id, "path": path, "level": level, "code": issue.code, "message": issue.message}


# ---------------------------------------------------------------------------------------------- checks of one file

_WIKILINK = re.compile(r"\[\[([^\[\]|#\n]+)(?:#[^\[\]|\n]*)?(?:\|[^\[\]\n]*)?\]\]")
_DATE = re.compile(r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])\Z")


def _check_node(node: Node, dialect: Dialect, nodes: dict[str, Node]) -> list[Issue]:
    found = [*_fields(node), *_node_links(node, dialect, nodes), *_wikilinks(node, nodes), *_headings(node)]
    try:
        forest.check_id(node.id)
    except VineError as error:
        found.append(("bad-id", error.message))
    if node.text("type") and node.type not in dialect.types:
        found.append(("unknown-type", f"type {node.type!r} is not in the dialect"))
    if (node.type == "branch") != forest.is_branch_id(node.id):
        found.append(("branch-mismatch", "type is branch exactly when the file is an _index.md"))
    return [Issue(node.id, code, message) for code, message in found]


def _fields(node: Node) -> Iterator[tuple[str, str]]:
    for key in ("id", "type") if node.kind == "branch" else ("id", "type", "title", "summary", "created"):
        if node.fields.get(key) is None:
            yield "missing-field", f"{key} is missing"
    if node.fields.get("id") not in (None, node.id):
        yield "id-mismatch", f"id is {str(node.fields['id'])[:240]!r}"
    for key in node.repeated:
        yield "duplicate-key", f"{key} stands more than once; the last one counts"
    for key, value in node.fields.items():
        fault = _field_fault(node, key, value)
        if fault:
            yield ("bad-summary" if key == "summary" else "bad-field"), f"{key}: {fault}"


def _field_fault(node: Node, key: str, value) -> str | None:
    if value is None:
        return None
    if key in forest.TEXT_FIELDS and not isinstance(value, str):
        return "must be text"
    if key in ("created", "updated") and not _DATE.match(value):
        return "must be a date YYYY-MM-DD"
    if key in forest.LIST_FIELDS and not (isinstance(value, list) and all(isinstance(v, str) for v in value)):
        return "must be a list of strings"
    if key == "confidence" and (not isinstance(value, (int, float)) or isinstance(value, bool)):
        return "must be a number"
    if key == "links" and not isinstance(value, list):
        return "must be a list"
    try:
        forest.check_field(key, value)
    except VineError as error:
        return error.message.partition(": ")[2]
    return "required for an entity" if key == "type" and value == "entity" and not node.text("entity_kind") else None


def _node_links(node: Node, dialect: Dialect, nodes: dict[str, Node]) -> Iterator[tuple[str, str]]:
    links = node.fields.get("links")
    if not isinstance(links, list):
        return
    if len(links) > 50:
        yield "too-many-links", f"{len(links)} links; the limit is 50"
    for n, link in enumerate(links):
        rel, target = (link.get("rel"), link.get("target")) if isinstance(link, dict) else (None, None)
        if not isinstance(rel, str) or not isinstance(target, str) or not rel or not target:
            yield "bad-link", f"links[{n}] has no rel or target"
            continue
        confidence = link.get("confidence", 1)
        if not isinstance(confidence, (int, float)) or isinstance(confidence, bool) or not 0 <= confidence <= 1:
            yield "bad-link", f"links[{n}].confidence must be a number from 0 to 1"
        if target == node.id:
            yield "bad-link", f"links[{n}] leads to the node itself"
        elif target not in nodes:
            yield "broken-link", f"links[{n}] leads to {target[:240]}, which is not there"
        if rel not in dialect.edges:
            yield "unknown-rel", f"links[{n}].rel {rel[:64]!r} is not in the dialect"


def _wikilinks(node: Node, nodes: dict[str, Node]) -> Iterator[tuple[str, str]]:
    fences = forest.fence_spans(node.body)
    engine = [forest.section_of(node.body, name) for name in forest.ENGINE_SECTIONS] if node.kind == "branch" else []
    spans = fences + [(mark.body, mark.end) for mark in engine if mark]
    for link in _WIKILINK.finditer(node.body):
        before = node.body[max(0, link.start() - 1) : link.start()]
        if before == "\\" or any(start <= link.start() < end for start, end in spans):
            continue
        if link[1].strip() not in nodes:
            yield "broken-wikilink", f"[[{link[1].strip()[:240]}]] leads to no node"


def _headings(node: Node) -> Iterator[tuple[str, str]]:
    counts = Counter(mark.text.casefold() for mark in forest.headings(node.body) if mark.level == 2 and mark.text)
    for text, count in counts.items():
        if count > 1:
            yield "duplicate-section", f"{count} sections are called {text[:200]!r}; writes reach the first"


# ---------------------------------------------------------------------------------------------- checks of the forest


def _twins(rows) -> list[Issue]:
    groups = defaultdict(list)
    for row in rows:
        groups[row["twin"]].append(row["id"])
    return [
        Issue(id, "case-twin", f"differs from {', '.join(o for o in ids if o != id)} by letter case only")
        for ids in groups.values()
        if len(ids) > 1
        for id in ids
    ]


def _payloads(root: Path, nodes: dict[str, Node]) -> Iterator[Issue]:
    owners = defaultdict(list)
    for node in nodes.values():
        name = node.fields.get("payload")
        if name is None or (isinstance(name, str) and "://" in name):
            continue
        folder = os.path.dirname(node_path(root, node.id))
        fault = forest.payload_fault(name)
        path = os.path.join(folder, name) if not fault else ""
        if not fault and _through_link(folder, path):
            fault = "leads through a link"
        if fault:
            yield Issue(node.id, "payload-unsafe", f"payload: {fault}")
            continue
        owners[path].append(node.id)
        if not os.path.isfile(path):
            yield Issue(node.id, "payload-missing", f"payload {name} is not there")
        elif node.text("payload_hash") and _sha256(path) != node.text("payload_hash"):
            yield Issue(node.id, "payload-drift", f"payload {name} differs from payload_hash")
    for path, ids in owners.items():
        for id in ids if len(ids) > 1 else ():
            yield Issue(id, "payload-shared", f"payload is also that of {', '.join(o for o in ids if o != id)}")


def _through_link(folder: str, path: str) -> bool:
    return os.path.islink(path) or (os.path.dirname(path) != folder and os.path.islink(os.path.dirname(path)))


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _indexes(nodes: dict[str, Node]) -> Iterator[Issue]:
    children: dict[str, dict[str, Node]] = defaultdict(dict)
    for node in nodes.values():
        if parent := forest.parent_of(node.id):
            children[parent][node.id] = node
    for branch, below in children.items():
        if branch not in nodes:
            yield Issue(branch, "missing-index", f"its folder holds {len(below)} nodes and no _index.md")
    for node in nodes.values():
        if node.kind == "branch":
            yield from _index_issues(node, children.get(node.id, {}), children)


def _index_issues(branch: Node, below: dict[str, Node], children) -> Iterator[Issue]:
    covers = _coverage(below)
    if branch.fields.get("coverage") not in (None, covers):
        yield Issue(branch.id, "coverage-drift", f"coverage says {branch.text('coverage')}; it is {covers}")
    listed = dict(forest.index_lines(branch.body, forest.SUB_BRANCHES) + forest.index_lines(branch.body, forest.DIRECT))
    for id, node in below.items():
        if id not in listed:
            yield Issue(branch.id, "index-missing", f"{id} has no entry")
            continue
        plain = forest.entry(id, node.summary)
        fits = (
            {plain, forest.entry(id, node.summary, _coverage(children.get(id, {})))}
            if node.kind == "branch"
            else {plain}
        )
        if listed[id].rstrip() not in {line.rstrip() for line in fits}:
            yield Issue(branch.id, "index-stale", f"the entry of {id} is out of date")
    for id in listed:
        if id not in below:
            yield Issue(branch.id, "index-stray", f"{id} has an entry and is no child")


def _coverage(below: dict[str, Node]) -> str:
    branches = sum(1 for node in below.values() if node.kind == "branch")
    return forest.coverage(len(below) - branches, branches)


def _passed_by(root: Path) -> Iterator[Issue]:
    """Files that the forest passes by: symbolic links where nodes would be, and names that are no text."""
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        try:
            entries = os.scandir(root / prefix)
        except OSError:  # nothing in it can be read, so nothing of it is in the forest
            continue
        with entries:
            for entry in entries:
                if entry.name[0] == "." or entry.name in ("_derived", "_assets"):
                    continue
                if not forest.is_text(entry.name):
                    shown = prefix + entry.name.encode("utf-8", "replace").decode()
                    yield Issue(shown.removesuffix(".md"), "bad-encoding", "the file name is not UTF-8")
                elif entry.is_symlink() and (entry.name.endswith(".md") or _is_folder(entry.path)):
                    yield Issue(
                        prefix + entry.name.removesuffix(".md"),
                        "symlink",
                        "is a link, which the forest does not follow",
                    )
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{prefix}{entry.name}/")


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return False


def _settings(root: Path, dialect: Dialect) -> list[Issue]:
    issues = [Issue(forest.SCHEMA, "bad-dialect", problem) for problem in dialect.problems]
    for name in ("gardener.yaml", "ranger.yaml"):
        path = root / "_meta" / name
        try:
            settings = forest.parse_yaml(path.read_text("utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, VineError):
            issues.append(Issue(f"_meta/{name}", "bad-config", "is not YAML"))
            continue
        if not isinstance(settings, dict):
            issues.append(Issue(f"_meta/{name}", "bad-config", "is not a mapping"))
        elif name == "ranger.yaml":
            issues += [Issue(f"_meta/{name}", "bad-config", fault) for fault in trails.settings_faults(settings)]
    return issues


def _uncommitted(git: Git) -> list[Issue]:
    try:
        changed = git.changed_paths()
    except (GitFailed, VineError):
        return []
    return [
        Issue(path[:-3], "uncommitted", "differs from the last commit")
        for path in changed
        if path.endswith(".md")
        and not any(part in ("_derived", "_assets") or part[0] == "." for part in path.split("/"))
    ]


# ---------------------------------------------------------------------------------------------- repair


def fix(tx: Transaction) -> str | None:
    """Rewrite engine sections and coverage of every drifted branch in one commit."""
    with tx.catalog.reading() as reader:
        rows = [row for row in reader.all_rows() if not row["fault"]]
    nodes = {row["id"]: node for row in rows if (node := tx.node(row["id"]))}
    drifted = {issue.id for issue in _indexes(nodes) if issue.id in nodes}
    indexes = Indexes(tx)
    for branch in sorted(drifted, key=lambda id: (-id.count("/"), id)):
        indexes.rewrite(branch)
    indexes.follow()
    return tx.commit(f"vine(fix): {len(tx.pending)} index file(s)") if tx.pending else None
