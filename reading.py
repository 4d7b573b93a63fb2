"""The read primitives: locate, look, move, pick, scan, sniff, harvest, view.

Owns: what each read answers, and how it is cut to its budget without ever being cut silently.
Must never: write a node, join a caller's id to a path, answer anything that the view does not see.

Sections: the view · budgets · digests of nodes · locate · look · move · pick · scan · sniff · harvest · view.

Every function takes a View (what the caller may see, over one forest) and checked arguments, and returns the dict
that is sent. Candidates come from the view, so a scope is applied before anything is ranked, counted or cut.
"""

from __future__ import annotations

import heapq
import json
import os
import re
import stat
from bisect import insort
from dataclasses import dataclass
from datetime import date
from itertools import compress
from typing import Any, Callable, Iterable

import forest
import ranking
import words
from catalog import Catalog, Index, Reader, folded_lines, read_bytes
from forest import Node, VineError, dumps, not_found
from trails import BOOST, Heat

LOCATE, LOOK, MOVE, PICK, SCAN, SNIFF, HARVEST = 800, 500, 600, 4000, 800, 800, 4000  # tokens of an answer

# ---------------------------------------------------------------------------------------------- the view


_WIKILINK = re.compile(r"\[\[([^\[\]|#]+)")
_COVERAGE = re.compile(r"\d+ bananas, \d+ sub-branches\.$")


@dataclass(frozen=True)
class View:
    """One forest as one caller sees it. `sees(id)` is None for the operator, who sees everything."""

    catalog: Catalog
    heat: Heat
    dialect: forest.Dialect
    sees: Callable[[str], bool] | None = None

    def visible(self, id: str) -> bool:
        return self.sees is None or self.sees(id)

    def row(self, reader: Reader, id: str):
        """The row of a visible node; the one not-found answer otherwise, E_FRONTMATTER for a broken file."""
        row = reader.row(id) if self.visible(id) else None
        if row is None:
            raise not_found(id)
        if row["fault"]:
            raise VineError(
                "E_FRONTMATTER", row["fault"], "Repair the file by hand; `vine validate` lists every fault."
            )
        return row

    def node(self, reader: Reader, id: str) -> Node:
        """The node behind a visible id, as its file is now."""
        self.row(reader, id)
        data = read_bytes(self.catalog.root, id)
        if data is None:
            raise not_found(id)
        return forest.parse_node(data, id)

    def shown(self, reader: Reader, id: str, body: str) -> str:
        """The body of a node's file as the caller may read it: an index loses the lines that link to what is out of
        his scope, with their continuation, and its counts are those of the children that are left."""
        if self.sees is None or not forest.is_branch_id(id):
            return body
        kept: list[str] = []
        hides = False
        for line in body.split("\n"):
            if hides and line[:1].isspace() and line.strip():
                continue
            hides = not all(self.visible(target.strip()) for target in _WIKILINK.findall(line))
            if not hides:
                entry = forest.entry_id(line)
                covers = _COVERAGE.search(line) if entry and forest.is_branch_id(entry) else None
                kept.append(f"{line[: covers.start()]}{self.coverage(reader, entry)}." if covers else line)
        return "\n".join(kept)

    def body(self, reader: Reader, node: Node) -> str:
        """The text that a node stands for; bodies kept elsewhere may be gone."""
        if node.text("content") != "cached":
            if node.text("content") == "reference":
                raise _no_body(node.id)
            return self.shown(reader, node.id, node.body)
        data = read_bytes(self.catalog.root / "_derived" / "bodies", node.id)
        if data is None:
            raise _no_body(node.id)
        return data.decode("utf-8", "replace").rstrip()

    def heat_of(self, id: str) -> float:
        return round(self.heat.of(id), 4)

    def boosts(self, index: Index) -> dict[int, float]:
        """What heat makes of a score, for the documents that have any."""
        docs = index.columns.docs
        return {docs[id]: 1 + BOOST * value for id, value in self.heat.hot().items() if id in docs}

    def trails(self, reader: Reader, ids: Iterable[str]) -> dict[str, list[str]]:
        """For each id its visible, existing ancestor indexes, root first."""
        chains = {id: [a for a in forest.ancestors(id) if self.visible(a)] for id in ids}
        there = reader.rows({ancestor for chain in chains.values() for ancestor in chain})
        return {id: [a for a in chain if a in there] for id, chain in chains.items()}

    def faces(self, reader: Reader, branch: str) -> dict[str, tuple[str, str]]:
        """{id: (kind, summary)} of a branch's visible children, by id."""
        faces = reader.faces(branch)
        return faces if self.sees is None else {id: face for id, face in faces.items() if self.sees(id)}

    def coverage(self, reader: Reader, branch: str) -> str:
        return covers(self.faces(reader, branch))


def covers(faces: dict[str, tuple[str, str]]) -> str:
    """The coverage of a branch with these children."""
    kinds = [kind for kind, _ in faces.values()]
    branches = kinds.count("branch")
    return forest.coverage(len(kinds) - branches, branches)


def _no_body(id: str) -> VineError:
    return VineError("E_NOT_FOUND", f"body not available: {id}", "look still works for this node.")


# ---------------------------------------------------------------------------------------------- budgets


def size(answer: Any) -> int:
    """Tokens of an answer as it is sent."""
    return forest.count_tokens(dumps(answer))


def fits(answer: Any, budget: int) -> bool:
    return forest.fits(dumps(answer), budget)


def shrink(answer: dict, key: str, budget: int) -> dict:
    """Take whole items from the tail of `answer[key]` until it fits; the first stays, clipped when it must be."""
    if fits(answer, budget):
        return answer
    answer["truncated"] = True
    items = answer[key]
    room = budget - size(answer | {key: []})
    kept = 0
    for item in items:  # one pass: each item is measured once
        room -= size(item) + 1
        if room < 0 and kept:
            break
        kept += 1
    answer[key] = items[:kept]
    while len(answer[key]) > 1 and not fits(answer, budget):
        answer[key].pop()
    if answer[key] and not fits(answer, budget):
        squeeze(answer, answer[key][0], budget)
    return answer


def squeeze(answer: dict, item: dict, budget: int) -> None:
    """Clip one item of an answer that does not fit alone: its longest strings wherever they stand in it (summary
    first), then its longest lists, which keep their first. Ids, bodies and versions stay whole."""
    for _ in range(60):
        over = size(answer) - budget
        if over <= 0:
            return
        texts, lists = _clippable(item)
        if texts:
            holder, key = max(texts, key=lambda place: (place == (item, "summary"), len(place[0][place[1]])))
            text = holder[key]
            clipped = forest.clip(text, max(4, forest.count_tokens(text) - over - 2))
            holder[key] = clipped if clipped != text else text[:19] + "…"
        elif lists:
            holder, key = max(lists, key=lambda place: len(dumps(place[0][place[1]])))
            holder[key] = holder[key][: len(holder[key]) // 2]
        else:
            return


_WHOLE = frozenset(("id", "body", "version"))
_SHORT = 20  # characters; shorter texts are not clipped


def _clippable(item: dict) -> tuple[list[tuple[dict, str]], list[tuple[dict, str]]]:
    """The strings and the lists in an item that may be clipped, as (holder, key)."""
    texts, lists, waiting = [], [], [item]
    while waiting:
        holder = waiting.pop()
        for key, value in holder.items():
            if isinstance(value, str) and len(value) > _SHORT and key not in _WHOLE:
                texts.append((holder, key))
            elif isinstance(value, list):
                lists += [(holder, key)] if len(value) > 1 else []
                waiting += [part for part in value if isinstance(part, dict)]
            elif isinstance(value, dict):
                waiting.append(value)
    return texts, lists


def pop_until(answer: dict, holder: dict, key: str, floor: int, budget: int) -> bool:
    """Shorten the list or mapping `holder[key]` from the tail down to `floor`, only as far as needed. True when
    anything went."""
    whole = holder.get(key)
    if not whole or len(whole) <= floor or fits(answer, budget):
        return False
    items = list(whole.items()) if isinstance(whole, dict) else list(whole)
    rebuild = dict if isinstance(whole, dict) else list
    over = size(answer) - budget
    while len(items) > floor and over > 0:
        over -= size(items.pop())
    holder[key] = rebuild(items)
    while len(items) > floor and not fits(answer, budget):
        items.pop()
        holder[key] = rebuild(items)
    return True


# ---------------------------------------------------------------------------------------------- locate


def strengths(index: Index, query: str, groups, allowed: Callable[[int], bool] | None):
    """({doc: strength 0..1}, {doc: cov}) of the nodes whose passports match, among those allowed."""
    scores, covered = ranking.rank_meta(index.for_passports(), groups)
    exact = set(index.named(query)) if groups else set()
    if allowed:
        scores = {doc: score for doc, score in scores.items() if allowed(doc)}
        exact = {doc for doc in exact if allowed(doc)}
    return ranking.strengths(scores, exact), covered


def locate(view: View, args: dict) -> dict:
    with view.catalog.searching(view.sees) as index:
        columns = index.columns
        groups = words.query_terms(args["query"])
        allowed = _filter(columns, args["scope"], args["type_filter"])
        strong, _ = strengths(index, args["query"], groups, allowed)
        ids, boosts = columns.ids, view.boosts(index)
        scores = {doc: round(strength * boosts.get(doc, 1.0), 4) for doc, strength in strong.items()}
        best = heapq.nsmallest(args["k"], scores, key=lambda doc: (-scores[doc], ids[doc]))
        rows = index.reader.rows(ids[doc] for doc in best)
        trails = view.trails(index.reader, rows)
        results = []
        for doc in best:
            row = rows.get(ids[doc])
            if row is None:
                continue
            id = row["id"]
            item = {"id": id, "kind": row["kind"], "type": row["type"], "title": row["title"]}
            item |= {"summary": row["summary"], "trail": trails[id], "score": scores[doc], "heat": view.heat_of(id)}
            if row["kind"] == "branch":
                item["coverage"] = view.coverage(index.reader, id)
            results.append(item)
    return shrink({"results": results, "truncated": len(scores) > len(best)}, "results", LOCATE)


def _filter(columns, scope: str, type: str | None):
    if scope == "all" and type is None:
        return None
    kind = {"branches": "branch", "bananas": "banana", "all": None}[scope]
    kinds, types = columns.kinds, columns.types
    return lambda doc: (kind is None or kinds[doc] == kind) and (type is None or types[doc] == type)


# ---------------------------------------------------------------------------------------------- look

EDGES_SHOWN = 12
ON_DEMAND = ("created", "source", "aliases", "entity_kind", "payload_type")
LOOK_FIELDS = (
    "id type title summary tags confidence updated version edges_out edges_in children cross_trails coverage outline "
    "query_manual sample_rows notes payload_missing stats".split()
    + list(ON_DEMAND)
)
_FIRST_CUT = (("edges_in", 4), ("outline", 15), ("children", 10), ("edges_out", 4), ("cross_trails", 3))


def look(view: View, args: dict) -> dict:
    with view.catalog.reading() as reader:
        node = view.node(reader, args["id"])
        return cut_digest(digest(view, reader, node, args["fields"]))


def digest(view: View, reader: Reader, node: Node, fields: list[str] | None) -> dict:
    """A node's digest before it is cut; only the parts asked for are worked out."""
    wanted = set(fields or LOOK_FIELDS) - (set() if fields else set(ON_DEMAND))
    outgoing, incoming = _edges(view, reader, node.id)
    body = view.shown(reader, node.id, node.body)
    parts: dict[str, Callable[[], Any]] = {
        "type": lambda: node.type,
        "title": lambda: node.title,
        "summary": lambda: node.summary,
        "tags": lambda: node.tags,
        "confidence": lambda: node.confidence,
        "updated": lambda: node.text("updated") or None,
        "created": lambda: node.text("created") or None,
        "source": lambda: node.text("source") or None,
        "aliases": lambda: node.aliases or None,
        "entity_kind": lambda: node.text("entity_kind") or None,
        "payload_type": lambda: node.text("payload_type") or None,
        "version": lambda: node.version,
        "edges_out": lambda: outgoing[:EDGES_SHOWN],
        "edges_in": lambda: incoming[:EDGES_SHOWN],
    }
    if node.kind == "branch":
        faces = view.faces(reader, node.id) if wanted & {"children", "coverage"} else {}
        parts["children"] = lambda: _children(view, faces)
        parts["cross_trails"] = lambda: forest.cross_trails(body)
        parts["coverage"] = lambda: covers(faces)
    else:
        parts["outline"] = lambda: forest.outline(body)
    if node.type == "dataset":
        parts["notes"] = lambda: notes(node) or None
    parts["stats"] = lambda: {
        "body_tokens": body_tokens(body),
        "degree": len(outgoing) + len(incoming),
        "heat": view.heat_of(node.id),
    }
    answer: dict[str, Any] = {"id": node.id}
    for key, make in parts.items():
        if key in wanted:
            value = make()
            if value is not None or key == "updated":
                answer[key] = value
    return answer


_counted: dict[tuple[int, int], int] = {}


def body_tokens(body: str) -> int:
    """Tokens of a body, remembered by its hash: the index of a large branch takes long to count."""
    key = len(body), hash(body)
    if key not in _counted:
        if len(_counted) > 20_000:
            _counted.clear()
        _counted[key] = forest.count_tokens(body)
    return _counted[key]


NOTES = 200  # tokens of a dataset's notes in an answer


def notes(node: Node) -> str:
    """What people wrote under `## Notes` of a dataset."""
    mark = forest.section_of(node.body, "Notes")
    return node.body[mark.body : mark.end].strip() if mark else ""


def _edges(view: View, reader: Reader, id: str) -> tuple[list[dict], list[dict]]:
    """Visible edges in both directions, hottest other end first."""
    out = [e for e in reader.edges_out(id) if view.visible(e["target"])]
    into = [e for e in reader.edges_in(id) if view.visible(e["source"])]
    out.sort(key=lambda e: (-view.heat_of(e["target"]), e["rel"], e["target"]))
    shown = {id: view.dialect.shown_inverse(id) for id in {e["rel"] for e in into}}
    into.sort(key=lambda e: (-view.heat_of(e["source"]), shown[e["rel"]], e["source"]))
    there = reader.rows(e["target"] for e in out[:EDGES_SHOWN])
    outgoing = []
    for edge in out:
        row = there.get(edge["target"])
        item = {
            "rel": edge["rel"],
            "target": edge["target"],
            "target_summary": forest.clip(row["summary"], 25) if row else "",
        }
        if edge["confidence"] < 1:
            item["confidence"] = edge["confidence"]
        outgoing.append(item)
    return outgoing, [{"rel": shown[e["rel"]], "source": e["source"]} for e in into]


_MOST_CHILDREN = 80  # more never fit a digest


def _children(view: View, faces: dict[str, tuple[str, str]]) -> list[dict]:
    most = _MOST_CHILDREN + 1
    branches = hottest(view, [id for id, (kind, _) in faces.items() if kind == "branch"], most)
    leaves = hottest(view, [id for id, (kind, _) in faces.items() if kind != "branch"], most - len(branches))
    return [{"id": id, "summary": faces[id][1]} for id in branches + leaves]


def cut_digest(answer: dict, budget: int = LOOK) -> dict:
    """Cut a digest to its budget, only as far as needed, and name what was cut."""
    cut: list[str] = []
    children = answer.get("children")
    if children and len(children) > _MOST_CHILDREN:
        answer["children"] = children[:_MOST_CHILDREN]
        cut.append("children")
    if "notes" in answer and not forest.fits(answer["notes"], NOTES):
        answer["notes"] = forest.clip(answer["notes"], NOTES)
        cut.append("notes")
    if not cut and fits(answer, budget):
        return answer
    answer["truncated"], answer["truncated_fields"] = True, cut

    def pop(key: str, floor: int) -> None:
        already = key in cut
        if not already:
            cut.append(key)  # while measuring, for the name costs tokens too
        if not pop_until(answer, answer, key, floor, budget) and not already:
            cut.remove(key)

    for key, floor in _FIRST_CUT:
        pop(key, floor)
    for key, _ in _FIRST_CUT:
        pop(key, 0)
    if "notes" in answer and not fits(answer, budget):
        cut += ["notes"] if "notes" not in cut else []
        answer["notes"] = forest.clip(answer["notes"], 60)
    pop("tags", 0)
    pop("aliases", 0)
    for key in ("summary", "title"):
        if answer.get(key) and not fits(answer, budget):
            cut.append(key)
            over = size(answer) - budget
            answer[key] = forest.clip(answer[key], max(8, forest.count_tokens(answer[key]) - over - 4))
    if not fits(answer, budget):  # a file written by hand, with a type or a date of hundreds of words
        before = dict(answer)
        squeeze(answer, answer, budget - 30)  # the names of what it clips need room too
        cut += [key for key in before if answer[key] != before[key] and key not in cut]
    return answer


# ---------------------------------------------------------------------------------------------- move

_MOST_NEIGHBORS = 60  # more never fit an answer


def move(view: View, args: dict) -> dict:
    with view.catalog.reading() as reader:
        id, rel = args["id"], args["rel"]
        row = view.row(reader, id)
        if rel == "children":
            found = _child_neighbors(view, reader, row)
        else:
            found = _edge_neighbors(view, reader, id, rel, args["direction"])
        found.sort(key=lambda n: (-n["heat"], n["id"], n["rel"], n["direction"] != "out"))
        rows = reader.rows(n["id"] for n in found[:_MOST_NEIGHBORS])
        for neighbor in found[:_MOST_NEIGHBORS]:
            there = rows.get(neighbor["id"])
            neighbor["type"] = there["type"] if there else "?"
            neighbor["summary"] = there["summary"] if there else ""
    answer = {"neighbors": found[:_MOST_NEIGHBORS], "truncated": len(found) > _MOST_NEIGHBORS}
    return shrink(answer, "neighbors", MOVE)


def _neighbor(view: View, id: str, rel: str, direction: str) -> dict:
    return {"id": id, "rel": rel, "direction": direction, "type": "?", "summary": "", "heat": view.heat_of(id)}


def _child_neighbors(view: View, reader: Reader, row) -> list[dict]:
    faces = view.faces(reader, row["id"]) if row["kind"] == "branch" else {}
    return [_neighbor(view, id, "children", "out") for id in hottest(view, list(faces), _MOST_NEIGHBORS + 1)]


def _edge_neighbors(view: View, reader: Reader, id: str, rel: str | None, direction: str) -> list[dict]:
    found = []
    if direction in ("out", "both"):
        edges = [e for e in reader.edges_out(id) if rel in (None, e["rel"]) and view.visible(e["target"])]
        there = reader.rows(edge["target"] for edge in edges)
        for edge in edges:
            neighbor = _neighbor(view, edge["target"], edge["rel"], "out")
            found.append(neighbor if edge["target"] in there else neighbor | {"heat": 0.0})
    if direction in ("in", "both"):
        for edge in reader.edges_in(id):
            shown = view.dialect.shown_inverse(edge["rel"])
            if rel in (None, edge["rel"], shown) and view.visible(edge["source"]):
                found.append(_neighbor(view, edge["source"], shown, "in"))
    return found


# ---------------------------------------------------------------------------------------------- pick

_PART = re.compile(r"(.*)#([0-9]{1,6})\Z", re.S)
_PART_ROOM = 3700  # tokens of text in one part; the rest is for the answer around it


def pick(view: View, args: dict) -> dict:
    with view.catalog.reading() as reader:
        node = view.node(reader, args["id"])
        body = view.body(reader, node)
    if args["section"] is None:
        return _whole(node, body)
    return _section(node, body, args["section"])


def _whole(node: Node, body: str) -> dict:
    tokens = body_tokens(body)
    answer = {"id": node.id, "title": node.title, "body": body, "body_tokens": tokens}
    answer |= {"truncated": False, "version": node.version}
    if tokens <= PICK and fits(answer, PICK):
        return answer
    names = forest.outline(body)
    answer = {"id": node.id, "title": node.title, "outline": names, "body_tokens": tokens, "truncated": True}
    if forest.headings(body):
        answer["hint"] = f"Body exceeds {PICK} tokens. Use section=<header> to harvest one section."
    else:
        answer["hint"] = (
            f"Body exceeds {PICK} tokens and has no headings. Use section=#1 to section=#{len(parts(body))}."
        )
    answer["version"] = node.version
    if not fits(answer, PICK):
        answer["hint"] += f" The outline shows 0 of {len(names)} headings."
        pop_until(answer, answer, "outline", 0, PICK)
        shown = len(answer["outline"])
        answer["hint"] = answer["hint"].replace("shows 0 of", f"shows {shown} of")
    if not fits(answer, PICK):
        squeeze(answer, answer, PICK)
    return answer


def _section(node: Node, body: str, asked: str) -> dict:
    text, number = _find_text(body, asked)
    if text is None:
        names = forest.outline(body)
        hint = "Sections: " + "; ".join(names) if names else "This node has no sections."
        raise VineError("E_NOT_FOUND", f"section not found: {asked}", hint)
    answer = {"id": node.id, "title": node.title, "section": asked, "body": text}
    answer |= {"body_tokens": forest.count_tokens(text), "truncated": False, "version": node.version}
    if number is None and answer["body_tokens"] <= PICK and fits(answer, PICK):
        return answer
    cut = parts(text)
    number = 1 if number is None else number
    if not 1 <= number <= len(cut):
        raise VineError("E_NOT_FOUND", f"section not found: {asked}", f"It has {len(cut)} part(s), #1 to #{len(cut)}.")
    answer["body"] = cut[number - 1]
    answer["body_tokens"] = forest.count_tokens(answer["body"])
    answer |= {"part": number, "parts": len(cut)}
    if number < len(cut):
        answer["truncated"] = True
        base = _PART.match(asked)
        name = base[1] if base and _find_text(body, asked)[1] is not None else asked
        answer["hint"] = f"Part {number} of {len(cut)}. Use section={name}#{number + 1} for the next one."
    if not fits(answer, PICK):
        squeeze(answer, answer, PICK)
    return answer


def _find_text(body: str, asked: str) -> tuple[str | None, int | None]:
    """The text that a section argument names, and the part number when it names one."""
    part = _PART.match(asked)
    text = find_section(body, asked, whole=bool(part))
    if text is not None or not part:
        return text, None
    name = part[1].strip()
    text = find_section(body, name) if name.strip("# ") else body
    return (find_section(body, asked), None) if text is None else (text, int(part[2]))


def find_section(body: str, asked: str, whole: bool = False) -> str | None:
    """A section with its heading: the first equal heading of any level, else (not with `whole`) the first that
    begins so and goes on with a non-word character."""
    wanted = words.fold(re.sub(r"^#+[ \t]+", "", asked.strip())).strip()
    if not wanted:
        return None
    marks = forest.headings(body)
    folded = [words.fold(mark.text).strip() for mark in marks]
    for mark, text in zip(marks, folded):
        if text == wanted:
            return body[mark.start : mark.end].rstrip()
    for mark, text in zip(marks, folded):
        if not whole and text.startswith(wanted) and not (text[len(wanted)].isalnum() or text[len(wanted)] == "_"):
            return body[mark.start : mark.end].rstrip()
    return None


def parts(text: str) -> list[str]:
    """Cut a text between paragraphs into runs that fit an answer; a paragraph too long alone between lines, such a
    line between characters. The parts joined are the text, and the cut depends on the text alone."""
    found: list[str] = []
    run, room = "", _PART_ROOM
    for piece in _pieces(text):
        cost = forest.count_tokens(dumps(piece)) + 1
        if run and cost > room:
            found.append(run)
            run, room = "", _PART_ROOM
        run, room = run + piece, room - cost
    return found + [run] if run or not found else found


def _pieces(text: str) -> Iterable[str]:
    for paragraph in _paragraphs(text):
        if _is_short(paragraph):
            yield paragraph
            continue
        for line in paragraph.splitlines(keepends=True) if "\n" in paragraph else [paragraph]:
            if _is_short(line):
                yield line
            else:
                yield from (line[at : at + 900] for at in range(0, len(line), 900))


def _is_short(text: str) -> bool:
    return len(text.encode()) < 900 or forest.count_tokens(dumps(text)) < _PART_ROOM


def _paragraphs(text: str) -> Iterable[str]:
    """Paragraphs with the blank lines behind them; code fences are not cut."""
    fences = forest.fence_spans(text)
    start = 0
    for blank in re.finditer(r"\n(?:[ \t]*\n)+", text):
        if not any(begin <= blank.start() < end for begin, end in fences):
            yield text[start : blank.end()]
            start = blank.end()
    if start < len(text):
        yield text[start:]


# ---------------------------------------------------------------------------------------------- scan

SCAN_FIELDS = (
    "id kind type title summary tags aliases created updated confidence source entity_kind payload_type parent trail "
    "coverage body_tokens outline heat".split()
)
_DATE = re.compile(r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2})(?:[T ].*)?)?)?\Z")


def scan(view: View, args: dict) -> dict:
    parent = args["parent_id"]
    with view.catalog.reading() as reader:
        row = view.row(reader, parent)
        if row["kind"] != "branch":
            raise VineError(
                "E_SCHEMA",
                f"parent_id: {parent} is no branch",
                "scan lists what is below a branch; use look for a leaf.",
            )
        columns = {"id"} | {_filter_column(key) for key in args["filter"]}
        rows = reader.listing(parent, args["recursive"], sorted(columns))
        tests = filter_tests(args["filter"])
        if tests or view.sees:
            rows = [r for r in rows if view.visible(r["id"]) and all(test(r) for test in tests)]
        found = [row["id"] for row in rows]
        best = hottest(view, found, args["limit"])
        fields = list(dict.fromkeys(["id"] + (args["fields"] or ["id", "type", "summary"])))
        whole = reader.rows(best)
        nodes = [_scanned(view, reader, whole[id], fields) for id in best]
    answer = {"nodes": nodes, "truncated": len(found) > len(best)}
    if answer["truncated"]:
        answer["total"] = len(found)
    if not fits(answer, SCAN):
        answer["total"] = len(found)
        shrink(answer, "nodes", SCAN)
    return answer


def hottest(view: View, ids: list[str], limit: int) -> list[str]:
    """The first ids by heat as shown, then by id. Few nodes are hot, so most are only compared as strings."""
    hot = {id: shown for id, value in view.heat.hot().items() if (shown := round(value, 4))}
    warm = sorted((id for id in ids if id in hot), key=lambda id: (-hot[id], id))[:limit] if hot else []
    return warm + heapq.nsmallest(limit - len(warm), (id for id in ids if id not in hot))


def _scanned(view: View, reader: Reader, row, fields: list[str]) -> dict:
    item = {}
    for key in fields:
        if key in ("tags", "aliases"):
            item[key] = json.loads(row[key])
        elif key == "trail":
            item[key] = view.trails(reader, [row["id"]])[row["id"]]
        elif key == "parent":
            item[key] = row["parent"] if row["parent"] in view.trails(reader, [row["id"]])[row["id"]] else None
        elif key == "coverage":
            item[key] = view.coverage(reader, row["id"]) if row["kind"] == "branch" else None
        elif key == "heat":
            item[key] = view.heat_of(row["id"])
        elif key in ("body_tokens", "outline"):
            body = view.shown(reader, row["id"], reader.body(row["id"]))
            item[key] = body_tokens(body) if key == "body_tokens" else forest.outline(body)
        else:
            item[key] = row[key]
    return item


_EQUAL = {
    "kind": ("branch", "banana"),
    "source": forest.SOURCES,
    "entity_kind": forest.ENTITY_KINDS,
    "payload_type": forest.PAYLOAD_TYPES,
}
FILTER_KEYS = (
    "type kind source entity_kind payload_type parent tags_any tags_all confidence min_confidence updated_after "
    "updated_before created_after created_before".split()
)


def check_filter(given: dict, types: Iterable[str]) -> None:
    """E_SCHEMA, naming the key, for a filter that cannot be meant."""
    for key, value in given.items():
        if key not in FILTER_KEYS:
            near = forest.nearest(key, FILTER_KEYS)
            raise VineError(
                "E_SCHEMA", f"filter: unknown key {key[:60]!r}", f"Did you mean {near}? Keys: {', '.join(FILTER_KEYS)}"
            )
        fault = _filter_fault(key, value, types)
        if fault:
            raise VineError("E_SCHEMA", f"filter.{key}: {fault}")


def _filter_fault(key: str, value: Any, types: Iterable[str]) -> str | None:
    if key in ("confidence", "min_confidence"):
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1
        return None if good else "must be a number from 0 to 1"
    if key in ("tags_any", "tags_all"):
        good = (
            isinstance(value, list)
            and 1 <= len(value) <= 20
            and all(isinstance(v, str) and len(v) <= 240 for v in value)
        )
        return None if good else "must be a list of 1 to 20 strings"
    if not isinstance(value, str) or len(value) > 240:
        return "must be a string of up to 240 characters"
    choices = tuple(types) if key == "type" else _EQUAL.get(key)
    if choices and value not in choices:
        return f"must be one of {', '.join(choices)} (nearest: {forest.nearest(value, choices)})"
    if key.endswith(("_after", "_before")) and _bound(value, key.endswith("_before")) is None:
        return "must be a date: YYYY, YYYY-MM or YYYY-MM-DD"
    return None


def _bound(text: str, last: bool) -> str | None:
    """A full date for a bound: a short one is its first day, or its last."""
    found = _DATE.match(text)
    if not found:
        return None
    year, month, day = found.groups()
    try:
        if day:
            return date(int(year), int(month), int(day)).isoformat()
        if month:
            date(int(year), int(month), 1)
        return f"{year}-{month or ('12' if last else '01')}-{'31' if last else '01'}"
    except ValueError:
        return None


def _filter_column(key: str) -> str:
    if key in ("tags_any", "tags_all"):
        return "tags"
    return key.removeprefix("min_").removesuffix("_after").removesuffix("_before")


def filter_tests(given: dict) -> list[Callable[[Any], bool]]:
    """One test on a catalog row for each key of a checked filter."""
    tests: list[Callable[[Any], bool]] = []
    for key, value in given.items():
        if key in ("tags_any", "tags_all"):
            wanted = {words.fold(tag).strip() for tag in value}
            combine = any if key == "tags_any" else all
            tests.append(lambda r, w=wanted, c=combine: c(tag in _folded_tags(r) for tag in w))
        elif key == "min_confidence":
            tests.append(lambda r, v=value: r["confidence"] >= v)
        elif key.endswith(("_after", "_before")):
            column, _, side = key.partition("_")
            bound = _bound(value, side == "before")
            if side == "after":
                tests.append(lambda r, c=column, b=bound: _day(r[c]) >= b)
            else:
                tests.append(lambda r, c=column, b=bound: "" < _day(r[c]) <= b)
        else:
            tests.append(lambda r, k=key, v=value: r[k] == v)
    return tests


_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _day(text: str | None) -> str:
    """The date that a stored text begins with, or the empty string."""
    found = _DAY.match(text or "")
    return found[0] if found else ""


def _folded_tags(row) -> set[str]:
    return {words.fold(tag).strip() for tag in json.loads(row["tags"])}


# ---------------------------------------------------------------------------------------------- sniff

SNIFF_MATCHES, SNIPPET = 3, 100


def sniff(view: View, args: dict) -> dict:
    terms = [words.literal(term).strip() for term in args["terms"]]
    with view.catalog.searching(view.sees) as index:
        place = _place(view, index.reader, args["scope"])
        counts, scanned = _count(view, index, terms, place, args["type_filter"])
        scores = _sniff_scores(view, index, counts)
        best = _best_sniffed(view, index, scores, counts, terms, args["k"])
        ids = index.columns.ids
        rows = index.reader.rows(ids[doc] for doc in best)
        trails = view.trails(index.reader, rows)
        found = [(rows[ids[doc]], scores[doc]) for doc in best if ids[doc] in rows]
        results = [_sniffed(view, index, row, trails[row["id"]], score, terms) for row, score in found]
    answer = {"results": results, "scanned_nodes": scanned, "truncated": len(scores) > len(results)}
    return shrink(answer, "results", SNIFF)


def _place(view: View, reader: Reader, scope: str | None) -> Callable[[str], bool] | None:
    """The set of ids that a sniff looks into; None for the whole forest."""
    if scope is None or scope == forest.MASTER:
        if scope:
            view.row(reader, scope)
        return None
    row = reader.row(scope) if view.visible(scope) else None
    if row is not None and not forest.is_branch_id(scope):
        view.row(reader, scope)
        return lambda id: id == scope
    branch = scope if forest.is_branch_id(scope) else scope.removesuffix("/") + "/_index"
    if reader.row(branch) is None or not view.visible(branch):
        raise not_found(scope)
    view.row(reader, branch)
    prefix = forest.folder_of(branch)
    return lambda id: id.startswith(prefix)


Counts = list[dict[int, int]]  # for each term: {doc: occurrences}


def _count(view: View, index: Index, terms: list[str], place, type: str | None) -> tuple[Counts, int]:
    """Occurrences of each term, and the number of bodies in the set asked for."""
    columns = index.columns
    live = columns.of(("banana",), index.sees).live
    others = columns.of(("branch", "meta"), index.sees).live
    if place or type:

        def wanted(doc: int) -> bool:
            return (place is None or place(columns.ids[doc])) and (type is None or columns.types[doc] == type)

        live = bytearray(on and wanted(doc) for doc, on in enumerate(live))
        others = bytearray(on and wanted(doc) for doc, on in enumerate(others))
    counts = [index.occurrences(term, live) for term in terms]
    for doc, text in _other_bodies(view, index, others):
        for found, term in zip(counts, terms):
            if times := text.count(term):
                found[doc] = times
    return counts, sum(live) + sum(others)


def _other_bodies(view: View, index: Index, live: bytearray) -> Iterable[tuple[int, str]]:
    """Index and `_meta` nodes: their bodies follow their children, so they have no postings and are read."""
    ids = index.columns.ids
    for doc in compress(range(len(live)), live):
        yield doc, _folded(view, index, ids[doc])


def _folded(view: View, index: Index, id: str) -> str:
    """A body as literal search compares it. What a scope leaves of an index is made anew each time."""
    if view.sees is None or not forest.is_branch_id(id):
        return index.folded_body(id)
    return folded_lines(view.shown(index.reader, id, index.reader.body(id)))


def _sniff_scores(view: View, index: Index, counts: Counts) -> dict[int, float]:
    """{doc: score}: how many of the terms are there, then BM25 of their occurrences against the best."""
    columns = index.columns
    total, average = columns.of(("banana",), index.sees)[1:3]
    lengths, slope = columns.lengths, 0.9 / max(average, 1.0)
    strength: dict[int, float] = {}
    there: dict[int, int] = {}
    for found in counts:
        weight = 2.2 * ranking.idf(max(total, len(found)), len(found))
        for doc, tf in found.items():
            strength[doc] = strength.get(doc, 0.0) + weight * tf / (tf + 0.3 + slope * lengths[doc])
            there[doc] = there.get(doc, 0) + 1
    best = max(strength.values(), default=1.0)
    asked = len(counts)
    scores = {doc: (there[doc] - 1 + value / best) / asked for doc, value in strength.items()}
    for doc, boost in view.boosts(index).items():
        if doc in scores:
            scores[doc] *= boost
    return {doc: round(score, 4) for doc, score in scores.items()}


def _best_sniffed(
    view: View, index: Index, scores: dict[int, float], counts: Counts, terms: list[str], k: int
) -> list[int]:
    """The first k: bananas before index and `_meta` nodes, then by score, match count, id. Match counts need the
    texts, so they are counted only where they can decide: among the leaders and those that tie with the last."""
    ids, kinds = index.columns.ids, index.columns.kinds

    def most(doc: int) -> int:
        """An upper bound of the match count."""
        return sum(found.get(doc, 0) for found in counts)

    def rank(doc: int) -> tuple[bool, float]:
        return kinds[doc] != "banana", -scores[doc]

    def counted(doc: int) -> tuple[int, str]:
        lines = _match_count(view, index, ids[doc], terms) if most(doc) > 1 else 1
        return -lines, ids[doc]

    leaders = heapq.nsmallest(k, scores, key=rank)
    if not leaders:
        return []
    last = rank(leaders[-1])
    ahead = sorted((rank(doc), counted(doc), doc) for doc in leaders if rank(doc) != last)
    tied = [doc for doc in scores if scores[doc] == -last[1] and rank(doc) == last]
    room = k - len(ahead)
    once = heapq.nsmallest(room, (doc for doc in tied if most(doc) == 1), key=ids.__getitem__)
    best = sorted((counted(doc), doc) for doc in once)
    for bound, doc in sorted(((-most(doc), ids[doc]), doc) for doc in tied if most(doc) > 1):
        if len(best) >= room and best[room - 1][0] < bound:
            break  # this one and all behind it have at most as many lines as their bound says
        insort(best, (counted(doc), doc))
    return [doc for *_, doc in ahead] + [doc for _, doc in best[:room]]


def _match_count(view: View, index: Index, id: str, terms: list[str]) -> int:
    text = _folded(view, index, id)
    return sum(1 for line in text.split("\n") if any(term in line for term in terms))


def _sniffed(view: View, index: Index, row, trail: list[str], score: float, terms: list[str]) -> dict:
    body = view.shown(index.reader, row["id"], index.reader.body(row["id"]))
    hits = matching_lines(body, lambda line: first_hit(line, terms))
    item = {"id": row["id"], "type": row["type"], "title": row["title"], "trail": trail, "score": score}
    item |= {"heat": view.heat_of(row["id"]), "match_count": len(hits), "truncated_matches": len(hits) > SNIFF_MATCHES}
    item["matches"] = [match(body, line, place) for line, place in hits[:SNIFF_MATCHES]]
    return item


def first_hit(line: str, terms: list[str]) -> int:
    """Offset in a line of the leftmost literal hit, -1 without one."""
    folded = words.literal(line)
    at = min((place for place in map(folded.find, terms) if place >= 0), default=-1)
    if at <= 0 or len(folded) == len(line):
        return at
    return _unfolded_place(line, at)


def _unfolded_place(line: str, at: int) -> int:
    """The offset in `line` whose folded prefix has length `at`: folding may change lengths."""
    low, high = 0, len(line)
    while low < high:
        middle = (low + high) // 2
        if len(words.literal(line[:middle])) < at:
            low = middle + 1
        else:
            high = middle
    return low


def matching_lines(body: str, hit: Callable[[str], int]) -> list[tuple[int, int]]:
    """(line number from 1, offset of the hit) of the lines where `hit` gives an offset."""
    found = ((n, hit(line)) for n, line in enumerate(body.split("\n"), 1))
    return [(n, place) for n, place in found if place >= 0]


def match(body: str, line: int, place: int) -> dict:
    """One match as answers show it."""
    return {"section": section_label(body, line), "line": line, "snippet": snippet(body.split("\n")[line - 1], place)}


def section_label(body: str, line: int) -> str | None:
    """The last H2 or H3 at or above a line since the last H1."""
    label = None
    for mark in forest.headings(body):
        if mark.line > line:
            break
        if mark.level == 1:
            label = None
        elif mark.level in (2, 3):
            label = mark.text
    return label


def snippet(line: str, place: int) -> str:
    """Up to 100 characters of a line around a hit, `…` where it is cut."""
    lead = len(line) - len(line.lstrip())
    text = line.strip()
    place = min(max(0, place - lead), len(text))
    if len(text) <= SNIPPET:
        return text
    start = max(0, min(place - 33, len(text) - SNIPPET))
    end = start + SNIPPET
    return ("…" if start else "") + text[start:end].strip() + ("…" if end < len(text) else "")


# ---------------------------------------------------------------------------------------------- view

PICTURE_BYTES = 6 * 1024 * 1024
_PICTURES = {
    ".png": ("image/png", (b"\x89PNG\r\n\x1a\n",)),
    ".jpg": ("image/jpeg", (b"\xff\xd8\xff",)),
    ".jpeg": ("image/jpeg", (b"\xff\xd8\xff",)),
    ".gif": ("image/gif", (b"GIF87a", b"GIF89a")),
    ".webp": ("image/webp", (b"RIFF",)),
}


def picture(view: View, args: dict) -> dict:
    """The image behind a media node: `{id, media_type, size, payload_hash, data}`, data being its bytes."""
    id = args["id"]
    with view.catalog.reading() as reader:
        row = view.row(reader, id)
    name = row["payload"]
    if not name:
        raise not_found(id)
    if "://" in name:
        scheme = name.partition("://")[0][:20]
        raise VineError("E_SCHEMA", f"the payload of {id} is remote ({scheme}:) and is not fetched")
    data = payload_bytes(view.catalog.root, id, name, PICTURE_BYTES)
    if data is None:
        raise not_found(id)
    suffix = "." + name.rpartition(".")[2].lower()
    media_type, heads = _PICTURES.get(suffix, ("", ()))
    if not data[:12].startswith(tuple(heads)) or (suffix == ".webp" and data[8:12] != b"WEBP"):
        raise VineError(
            "E_SCHEMA", f"the payload of {id} is no png, jpeg, gif or webp image (its name ends in {suffix})"
        )
    return {
        "id": id,
        "media_type": media_type,
        "size": len(data),
        "payload_hash": row["payload_hash"] or "",
        "data": data,
    }


def payload_bytes(root, id: str, name: str, most: int) -> bytes | None:
    """Bytes of a node's payload file; None when its name is not allowed, it is absent, a link, or no regular file.
    E_SCHEMA when it is larger than `most` bytes."""
    if forest.payload_fault(name):
        return None
    folder = os.path.join(root, os.path.dirname(id))
    if name.startswith("_assets/") and os.path.islink(os.path.join(folder, "_assets")):
        return None
    try:
        fd = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            return None
        if facts.st_size > most:
            raise VineError("E_SCHEMA", f"the payload of {id} has {facts.st_size} bytes; the limit is {most}")
        return file.read(facts.st_size)
