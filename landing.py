"""One landing of the Gardener: how documents, moves and losses become the nodes of one commit.

Owns: what a document writes into its node, what an edit by a person protects, proposals, the texts and
summaries of branches, the subject of the commit.
Must never: read a source, convert, take the lock (its caller hands the transaction in).

Sections: branch texts · bases · questions to the forest · landing.

Words: the base of a part (body, title, summary, tags) is the hash of what ingest last wrote there, so a
part that differs from its base was edited by somebody.

Invariants
- A person's words are never replaced: an edited part stays, an edited body gets a proposal beside it.
- Links are written only to nodes that are in the forest or in the same commit.
- What a landing learns reaches its batch after the commit, so a landing that fails can be made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections import defaultdict
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Iterable

import converters
import forest
from converters import Converted, Unusable
from forest import Node, VineError
from sources import Document
from store import GitFailed

if TYPE_CHECKING:
    from gardener import Batch

# ---------------------------------------------------------------------------------------------- branch texts

_FACE = re.compile(r"\A# [^\n]*\n(?:> [^\n]*\n)?")
_INDEX_HEADING = re.compile(
    rf"^ {{0,3}}#{{1,6}}[ \t]+({'|'.join((*forest.ENGINE_SECTIONS, forest.CROSS))})[ \t#]*$", re.M | re.I
)


def branch_text(body: str) -> str:
    """What stands between the blockquote of an index and its Sub-branches."""
    mark = forest.section_of(body, forest.SUB_BRANCHES)
    return _FACE.sub("", body[: mark.start] if mark else body).strip("\n").rstrip()


def with_branch_text(body: str, text: str) -> str:
    """An index body with that text replaced."""
    mark = forest.section_of(body, forest.SUB_BRANCHES)
    face = _FACE.match(body)
    parts = [
        face[0].rstrip() if face else "",
        text,
        body[mark.start :] if mark else f"## {forest.SUB_BRANCHES}",
    ]
    return "\n\n".join(part for part in parts if part)


def as_branch_text(body: str) -> str:
    """A converted body without its H1; a heading named like an index section becomes a bold line."""
    return _INDEX_HEADING.sub(r"**\1**", body.partition("\n")[2].strip("\n")).rstrip()


def region_summary(title: str, titles: list[str]) -> str:
    """What a branch says of itself before anybody wrote a summary: the first titles below it."""
    told = f"Region '{title}': "
    for shown in range(min(len(titles), 24), 0, -1):  # 50 tokens never hold more titles
        more = f" (+{len(titles) - shown} more)" if shown < len(titles) else ""
        text = told + ", ".join(titles[:shown]) + more + "."
        if forest.fits(text, 50):
            return text
    return converters.fit_summary(f"{told}{len(titles)} entries.") or "Region."


# ---------------------------------------------------------------------------------------------- bases


def part_hash(text: str) -> str:
    """The base of a text."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _bases(body: str, title: str, summary: str, tags: list[str]) -> dict[str, str]:
    texts = {"body": body.strip("\n").rstrip(), "title": title, "summary": summary, "tags": "\n".join(tags)}
    return {part: part_hash(text) for part, text in texts.items()}


def node_bases(node: Node) -> dict[str, str]:
    """The parts of a node as they are now, hashed like bases."""
    body = branch_text(node.body) if forest.is_branch_id(node.id) else node.body
    return _bases(body, node.text("title"), node.text("summary"), node.tags)


# ------------------------------------------------------------------------------------ questions to the forest


def titles_below(vine, branch: str) -> dict[str, str]:
    """Titles of the direct children of a branch, by id."""
    with vine.catalog.reading() as reader:
        return {row["id"]: row["title"] for row in reader.direct(branch)}


def names_of(vine, ids: Iterable[str]) -> dict[str, list[str]]:
    """By id: title, aliases, and the addresses at which a site generator publishes the page."""
    with vine.catalog.reading() as reader:
        rows = reader.rows(ids)
    found = {}
    for id, row in rows.items():
        found[id] = [row["title"], *json.loads(row["aliases"] or "[]")]
        with contextlib.suppress(OSError, VineError):
            data = (vine.root / f"{id}.md").read_bytes()
            # Parsing every passport would be slow.
            if b"\n  permalink:" in data or b"\n  redirect_from:" in data:
                front = forest.parse_node(data, id).fields.get("source_front")
                found[id] += page_addresses(front) if isinstance(front, dict) else []
    return found


def page_addresses(front: dict[str, Any]) -> list[str]:
    """Addresses of a page in its front matter; links between pages of one site are written with them."""
    moved = front.get("redirect_from")
    found = [front.get("permalink"), *(moved if isinstance(moved, list) else [moved])]
    return [address for address in found if isinstance(address, str)]


def linking(vine, id: str) -> list[str]:
    """Ids of the nodes whose links lead to `id`."""
    with vine.catalog.reading() as reader:
        return sorted({row["source"] for row in reader.edges_in(id)})


def mentioning(vine, ids: set[str]) -> list[str]:
    """Ids of the nodes whose links or wikilinks lead to one of `ids`. Reads every node file once."""
    wikilink = re.compile(r"\[\[([^\[\]|#\n]+)")
    with vine.catalog.reading() as reader:
        rows = [row["id"] for row in reader.all_rows() if not row["fault"]]
        found = {row["source"] for row in reader.all_edges() if row["target"] in ids}
    for id in rows:
        with contextlib.suppress(OSError):
            text = (vine.root / f"{id}.md").read_text("utf-8", "replace")
            if "[[" in text and not ids.isdisjoint(name.strip() for name in wikilink.findall(text)):
                found.add(id)
    return sorted(found)


def taken(vine, id: str) -> bool:
    """Whether a node or a file, in any case, has this id."""
    with vine.catalog.reading() as reader:
        return bool(reader.twins(id)) or os.path.lexists(vine.root / f"{id}.md")


def has_twin(vine, id: str) -> bool:
    """Whether the forest has an id that differs from `id` by letter case only."""
    with vine.catalog.reading() as reader:
        return any(other != id for other in reader.twins(id))


def committed_bases(vine, id: str) -> dict[str, str]:
    """What ingest committed last for a node that has no bases of its own; nothing when there is no such
    commit."""
    own = r"^(plant\(.*\[source=ingest\]|plant\(batch\)|gardener\()"
    path = f"{id}.md"
    try:
        log_args = ("--literal-pathspecs", "log", "-1", "--format=%H", "-E", f"--grep={own}", "--", path)
        commit = vine.store.git.run(*log_args).decode().strip()
        data = vine.store.git.read_blob(commit, path) if commit else None
        return node_bases(forest.parse_node(data, id)) if data else {}
    except (GitFailed, VineError):
        return {}


# ---------------------------------------------------------------------------------------------- landing


@dataclass
class Item:
    """A document on its way into the forest. Without `converted` it only moves."""

    document: Document
    digest: str
    converted: Converted | None = None
    record: dict | None = None  # the ingest keys of the node that it has


class Landing:
    """One commit in the making: everything that it knows is new is kept apart until the commit stands."""

    def __init__(self, batch: "Batch", tx):
        self.batch, self.tx = batch, tx
        self.lists: dict[str, list] = defaultdict(list)
        self.ids: dict[str, str] = {}  # source path -> id
        self.claimed: set[str] = set()  # ids of new documents, without case
        self.waiting: set[str] = set()
        self.made: set[str] = set()  # branches
        self.touched: set[str] = set()  # branches whose children changed
        # By branch and child; None for a child that is gone.
        self.titles: dict[str, dict[str, str | None]] = defaultdict(dict)
        self.items: list[Item] = []  # documents that this landing takes
        self.unresolved: list[tuple[str, str, str]] = []  # (path, id, message)
        self.warnings: list[tuple[str, str, str, str]] = []  # (path, code, message, id)

    def node(self, id: str) -> Node | None:
        """The node as it will be; None when it is absent or its file is broken."""
        with contextlib.suppress(VineError):
            return self.tx.node(id)
        return None

    # -- branches ---------------------------------------------------------------------------------

    def ours(self, branch: str) -> bool:
        """Whether this source made the branch."""
        if branch not in self.batch.ours and branch not in self.made:
            node = self.node(branch)
            made = node is not None and node.text("source") == "ingest" and self.batch.belongs(node.fields)
            self.batch.ours[branch] = made and branch != forest.MASTER
        return branch in self.made or self.batch.ours[branch]

    def ensure(self, branch: str) -> None:
        """Make the branch and those above it where they are missing; note that its children change."""
        self.touched.add(branch)
        if branch in self.made or branch in self.batch.ours or self.tx.exists(branch):
            return
        self.ensure(forest.parent_of(branch))
        title = self.batch.folder_title(branch)
        summary = region_summary(title, [title])
        fields = {"id": branch, "type": "branch", "title": title, "summary": summary, "created": _today()}
        fields |= {"updated": _today(), "source": "ingest", "source_id": self.batch.source.id}
        fields["source_base"] = {"title": part_hash(title), "summary": part_hash(summary)}
        self.tx.put(branch, fields, forest.branch_body("", title, summary))
        self.made.add(branch)
        self.show(branch, title)

    def show(self, id: str, title: str | None) -> None:
        """Note what the branch above `id` has to say of it from now on; None: nothing."""
        branch = forest.parent_of(id)
        self.titles[branch][id] = title
        self.touched.add(branch)

    def children(self, branch: str) -> dict[str, str]:
        """Titles of what will stand under a branch, by id."""
        children = self.batch.children(branch) | self.titles.get(branch, {})
        return {id: title for id, title in children.items() if title is not None}

    def describe(self) -> None:
        """Renew the summaries of branches that nobody has described."""
        for branch in sorted(self.touched, key=lambda id: (-id.count("/"), id)):
            node = self.node(branch) if self.ours(branch) else None
            inside = self.children(branch) if node else {}
            if not inside or "source_path" in node.fields:
                continue
            base, old = self.batch.base_of(node), node.text("summary")
            order = sorted(inside, key=lambda id: (not forest.is_branch_id(id), id))
            summary = region_summary(node.title, [inside[id] for id in order])
            if summary != old and base.get("summary") == part_hash(old):
                changes = {"summary": summary, "updated": _today()}
                changes["source_base"] = {**base, "summary": part_hash(summary)}
                body = forest.with_new_face(node.body, (node.title, old), (node.title, summary))
                self.tx.put(branch, forest.with_fields(node.fields, changes), body)

    # -- ids and links ----------------------------------------------------------------------------

    def place(self, item: Item) -> str:
        """The id of a new document, with the branches above it made. Raises Unusable."""
        batch, path = self.batch, item.document.path
        branch = batch.ids_of.branch(item.document.folder)
        if branch and batch.indexes.get(item.document.folder) == path and branch != forest.MASTER:
            self.ensure(branch)
            node = self.node(branch)
            if self.ours(branch) and node is not None and "source_path" not in node.fields:
                self.ids[path] = branch
                return branch
        for id in batch.ids_of.leaves(path):
            key = forest.twin_key(id)
            if key not in self.claimed and not self.tx.exists(id):
                self.ensure(forest.parent_of(id))
                self.claimed.add(key)
                self.ids[path] = id
                return id
        raise Unusable("path_too_long", "every id for this path is taken")

    def linked(
        self, body: str, path: str, own_id: str, titles: bool = False, known: frozenset[str] = frozenset()
    ) -> tuple[str, list[str], list[str]]:
        """`body` with its links resolved as far as the forest goes now; (body, ids, targets missed).

        `titles`: links by title count too. `known`: ids that wikilinks of `body` name already.
        """
        batch = self.batch

        def resolve(target: str, wiki: bool) -> str | None:
            if wiki and target in known:
                return target
            found = batch.names.find(target, path, titles)
            if found is not None:
                if found.endswith("/"):
                    branch = batch.ids_of.branch(found[:-1])
                    return branch if branch and (branch in self.made or self.node(branch)) else None
                return self.ids.get(found) or batch.placed.get(found)
            return target if wiki and _is_id(target) and self.node(target) is not None else None

        body, hits, misses = converters.relink(body, resolve)
        return body, [id for id in hits if id != own_id], misses

    def links(self, old: list[dict], targets: list[str]) -> list[dict] | None:
        """The links of a node: those of other hands stay, those from the source follow it."""
        kept = [link for link in old if not (isinstance(link, dict) and link.get("from") == "source")]
        there = [(link.get("rel"), link.get("target")) for link in kept if isinstance(link, dict)]
        wanted = (id for id in targets if ("related-to", id) not in there)
        new = [{"rel": "related-to", "target": id, "from": "source"} for id in wanted]
        return kept + new[: max(0, min(40, 50 - len(kept)))] or None

    # -- documents --------------------------------------------------------------------------------

    def plant(self, item: Item) -> None:
        converted, path = item.converted, item.document.path
        id = self.ids[path]
        body, targets, missed = self.linked(converted.body, path, id)
        fields: dict[str, Any] = {"id": id, "type": converted.type, "title": converted.title}
        fields |= {"summary": converted.summary, "created": converted.created or _today()}
        fields["updated"] = max(converted.updated or _today(), fields["created"])
        fields |= {"tags": converted.tags, "aliases": converted.aliases, "links": self.links([], targets)}
        fields |= {"confidence": 0.7, "source": "ingest"} | self.batch.source_keys(item)
        if forest.is_branch_id(id):
            node = self.node(id)
            text = as_branch_text(body)
            fields |= {"type": "branch", "created": node.text("created")}
            fields["source_base"] = _bases(text, *_face(converted))
            fields = forest.with_fields(node.fields, {key: value or None for key, value in fields.items()})
            body = self.refaced(node, with_branch_text(node.body, text), fields)
        else:
            fields["source_base"] = _bases(body, *_face(converted))
            fields = forest.ordered({key: value for key, value in fields.items() if value})
        self.tx.put(id, fields, body)
        self.show(id, converted.title)
        self.lists["planted"].append(id)
        if missed:
            self.waiting.add(path)

    def refresh(self, item: Item) -> None:
        """Bring a changed document into its node, or beside it where a person edited the body."""
        converted, path = item.converted, item.document.path
        node = self.node(item.record["id"])
        if node is None:
            raise Unusable("internal", "the node's file is gone or broken; repair it and sync again")
        body, targets, missed = self.linked(converted.body, path, node.id)
        if missed:
            self.batch.learn_titles()
            body, targets, missed = self.linked(converted.body, path, node.id, titles=True)
        text = as_branch_text(body) if forest.is_branch_id(node.id) else body
        new, now, base = _bases(text, *_face(converted)), node_bases(node), self.batch.base_of(node)
        if now["body"] not in (base.get("body"), new["body"]):
            return self.conflict(item, node, body)
        unchanged = all(base.get(part) == new[part] for part in new)
        free = {part for part in new if now[part] in (base.get(part), new[part])}
        changes = self.batch.source_keys(item) | {"source_pending": None}
        changes["links"] = self.links(node.fields.get("links") or [], targets)
        changes["source_base"] = {**base, **{part: new[part] for part in free}}
        if not unchanged:
            changes["updated"] = max(converted.updated or _today(), node.text("created"))
        faces = {"title": converted.title, "summary": converted.summary, "tags": converted.tags or None}
        changes |= {part: value for part, value in faces.items() if part in free}
        fields = forest.with_fields(node.fields, changes)
        if forest.is_branch_id(node.id):
            body = self.refaced(node, with_branch_text(node.body, text), fields)
        self.drop_proposal(node.id)
        self.tx.put(node.id, fields, body)
        if fields["title"] != node.text("title"):
            self.show(node.id, fields["title"])
        self.lists["unchanged" if unchanged else "updated"].append(node.id)
        if missed:
            self.waiting.add(path)

    @staticmethod
    def refaced(node: Node, body: str, fields: dict[str, Any]) -> str:
        """An index body whose H1 and blockquote follow the passport where they showed the old one."""
        return forest.with_new_face(body, (node.title, node.summary), (fields["title"], fields["summary"]))

    def conflict(self, item: Item, node: Node, body: str) -> None:
        """Keep the node, write the new content beside it as a proposal."""
        id, converted = proposal_id(node.id), item.converted
        pending = node.text("source_pending") == item.digest
        told = {"id": node.id, "path": item.document.path, "kind": "body", "proposal": id, "pending": pending}
        self.lists["conflicts"].append(told)
        if pending:
            return
        old = self.node(id)
        if (old is None and self.tx.exists(id)) or (old is not None and old.text("incoming_for") != node.id):
            raise Unusable("internal", "the id of the proposal is taken")
        fields = {"id": id, "type": converted.type, "title": converted.title[:188] + " (incoming)"}
        fields |= {"summary": converted.summary, "created": old.text("created") if old else _today()}
        fields |= {"updated": _today(), "tags": converted.tags, "confidence": 0.3}
        fields["links"] = [{"rel": "derived-from", "target": node.id}]
        fields |= {"source": "ingest", "source_id": self.batch.source.id, "incoming_for": node.id}
        self.tx.put(id, forest.ordered({key: value for key, value in fields.items() if value}), body)
        self.tx.put(node.id, forest.with_fields(node.fields, {"source_pending": item.digest}), node.body)
        self.show(id, fields["title"])

    def drop_proposal(self, id: str) -> None:
        proposal = self.node(proposal_id(id))
        if proposal is not None and proposal.text("incoming_for") == id:
            self.tx.remove(proposal.id)
            self.show(proposal.id, None)

    def relink(self, path: str, id: str) -> None:
        """Second look at the links of a landed document, now that all others have landed too."""
        node = self.node(id)
        if node is None:
            return
        base, now = self.batch.base_of(node), node_bases(node)
        branch = forest.is_branch_id(id)
        known = frozenset(link["target"] for link in node.links if link.get("from") == "source")
        text = branch_text(node.body) if branch else node.body
        body, targets, missed = self.linked(text, path, id, titles=True, known=known)
        for target in missed:
            self.unresolved.append((path, id, f"no document for the link {target[:200]}"))
        if now["body"] != base.get("body"):
            return
        if body != text:
            changes: dict[str, Any] = {"links": self.links(node.fields.get("links") or [], targets)}
            changes["source_base"] = {**base, "body": _bases(body, "", "", [])["body"]}
            body = with_branch_text(node.body, body) if branch else body
            self.tx.put(id, forest.with_fields(node.fields, changes), body)
            self.lists["relinked"].append(id)

    # -- moved and gone ---------------------------------------------------------------------------

    def move(self, item: Item) -> None:
        """Take a node along to the id of its document's new path, with everything that it gathered."""
        old, path = item.record["id"], item.document.path
        id = self.moved_id(item, old)
        self.ids[path] = id
        if id != old:
            self.ensure(forest.parent_of(id))
            self.show(old, None)
            self.tx.move(old, id)
            if (beside := self.node(proposal_id(old))) is not None and beside.text("incoming_for") == old:
                self.tx.move(beside.id, proposal_id(id))
                changes = {"incoming_for": id, "links": [_renamed(link, {old: id}) for link in beside.links]}
                self.tx.put(proposal_id(id), forest.with_fields(beside.fields, changes), beside.body)
        node = self.node(id)
        self.tx.put(id, forest.with_fields(node.fields, self.batch.source_keys(item, node)), node.body)
        self.show(id, node.title)
        self.lists["moved"].append({"from": old, "to": id, "path": path})

    def moved_id(self, item: Item, old: str) -> str:
        if forest.is_branch_id(old):
            return old
        with contextlib.suppress(Unusable):  # no id fits the new path: the old one stays
            for id in self.batch.ids_of.leaves(item.document.path):
                if id == old or not self.tx.exists(id):
                    return id
        return old

    def follow(self, names: dict[str, str], referrers: Iterable[str]) -> None:
        """Rewrite links and wikilinks to moved nodes; a node that nobody edited stays unedited."""
        for referrer in referrers:
            node = self.node(names.get(referrer, referrer))
            if node is None:
                continue
            links = [_renamed(link, names) for link in node.fields.get("links") or []]
            body = converters.rename_links(node.body, names)
            if body == node.body and links == (node.fields.get("links") or []):
                continue
            base = node.fields.get("source_base")
            fields = forest.with_fields(node.fields, {"links": links or None})
            if isinstance(base, dict) and base.get("body") == node_bases(node)["body"]:
                changed = node_bases(Node(node.id, fields, body))["body"]
                fields = forest.with_fields(fields, {"source_base": {**base, "body": changed}})
            self.tx.put(node.id, fields, body)

    def prune(self, record: dict, referrers: Iterable[str]) -> None:
        """Remove the node of a document that is gone, unless a person edited it."""
        id, node = record["id"], self.node(record["id"])
        if node is None:
            return
        base, now = self.batch.base_of(node), node_bases(node)
        if any(now[part] != base.get(part) for part in now):
            told = {
                "id": id,
                "path": record["source_path"],
                "kind": "deleted",
                "proposal": None,
                "pending": False,
            }
            self.lists["conflicts"].append(told)
            return
        self.drop_proposal(id)
        if forest.is_branch_id(id):
            self.touched.add(id)
            self._plain_branch(node)
        else:
            self._drop_links(id, referrers)
            self.tx.remove(id)
            self.show(id, None)
        self.lists["pruned"].append(id)

    def _drop_links(self, id: str, referrers: Iterable[str]) -> None:
        for referrer in referrers:
            other = self.node(referrer)
            old = (other.fields.get("links") or []) if other is not None else []
            links = [link for link in old if not (isinstance(link, dict) and link.get("target") == id)]
            if len(links) != len(old):
                self.tx.put(other.id, forest.with_fields(other.fields, {"links": links or None}), other.body)

    def _plain_branch(self, node: Node) -> None:
        """The text of a branch is gone at the source: it becomes a folder like any other."""
        title = self.batch.folder_title(node.id)
        summary = region_summary(title, [title])
        gone = {*forest.INGEST_ONLY, "tags", "aliases", "confidence"}
        fields = {key: value for key, value in node.fields.items() if key not in gone}
        fields |= {"title": title, "summary": summary, "source_id": self.batch.source.id}
        fields["source_base"] = {"title": part_hash(title), "summary": part_hash(summary)}
        self.tx.put(node.id, fields, self.refaced(node, with_branch_text(node.body, ""), fields))
        self.show(node.id, title)

    def clear_branches(self) -> None:
        """Remove branches of this source that pruning left without a child, if nobody wrote into them."""
        waiting = sorted(self.touched, key=lambda id: (id.count("/"), id))
        while waiting:
            branch = waiting.pop()
            node = self.node(branch) if self.ours(branch) else None
            if node is None or self.children(branch):
                continue
            base = node.fields.get("source_base")
            faces = {"title": part_hash(node.text("title")), "summary": part_hash(node.text("summary"))}
            empty = forest.human_part(forest.branch_body("", node.title, node.summary))
            if base != faces or forest.human_part(node.body).split() != empty.split() or node.links:
                continue
            self.tx.remove(branch)
            self.show(branch, None)
            self.lists["pruned"].append(branch)
            self.touched.discard(branch)
            waiting.append(forest.parent_of(branch))

    # -- the commit -------------------------------------------------------------------------------

    def subject(self) -> tuple[str, tuple[str, ...]]:
        """The commit's subject and the ids that its message lists."""
        lists = self.lists
        births = lists["planted"] + sorted(self.made - set(lists["planted"]))
        changed = lists["updated"] + lists["unchanged"] + lists["relinked"]
        changed += [told["id"] for told in lists["conflicts"] if told["proposal"] and not told["pending"]]
        moves, pruned = lists["moved"], lists["pruned"]
        ids = tuple(births + changed + [m["to"] for m in moves] + pruned)
        if births and len(ids) == len(births):
            title = self.titles[forest.parent_of(births[0])].get(births[0])
            one = f"plant({births[0]}): {title} [source=ingest]"
            return (one, ()) if len(births) == 1 else (f"plant(batch): {len(births)} nodes", ids)
        if moves and len(ids) == len(moves) + len(births) and not lists["planted"]:
            one = f"gardener(move): {moves[0]['from']} -> {moves[0]['to']}"
            return (one, ()) if len(moves) == 1 else (f"gardener(move): {len(moves)} nodes", ids)
        kind = "prune" if pruned and len(ids) == len(pruned) else "sync"
        if not ids:
            return "", ()
        one = f"gardener({kind}): {ids[0]}"
        return (one, ()) if len(ids) == 1 else (f"gardener({kind}): {len(ids)} nodes", ids)


def _today() -> str:
    return date.today().isoformat()


def _face(converted: Converted) -> tuple[str, str, list[str]]:
    return converted.title, converted.summary, converted.tags


def proposal_id(id: str) -> str:
    """Where the waiting version of a node stands: a leaf beside it."""
    return (id[: -len("_index")] + "index" if forest.is_branch_id(id) else id) + ".incoming"


def _is_id(text: str) -> bool:
    try:
        return bool(forest.check_id(text))
    except VineError:
        return False


def _renamed(link: Any, names: dict[str, str]) -> Any:
    if isinstance(link, dict) and link.get("target") in names:
        return {**link, "target": names[link["target"]]}
    return link
