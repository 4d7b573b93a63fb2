"""harvest: the one-shot read that ranks, reads and packs.

Owns: the fusion of metadata and body ranking, the lines that match, the levels of content, packing to the budget.
Must never: call a model, drop a result while a later one could still be shortened, return a result without content.

Sections: the call · ranking · matches · content by level · packing.

Levels of a result's content
    1  the whole body, up to 1,200 tokens
    2  up to two sections around matches
    3  the outline, and windows of lines around matches
    4  one small window
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, NamedTuple

import forest
import ranking
import reading
import words
from catalog import Index, Reader
from forest import Node, VineError
from reading import HARVEST, View, fits, size

BODY, WINDOW, LAST_WINDOW = 1200, 150, 60  # tokens of a whole body or section, of a window, of the last window
MOST_MATCHES, MOST_SECTIONS, MOST_WINDOWS = 5, 2, 3

# ---------------------------------------------------------------------------------------------- the call


def harvest(view: View, args: dict) -> dict:
    query, given = args["query"], args["terms"]
    terms = given or words.derived_terms(query)
    answer: dict[str, Any] = {"query": forest.clip(query, 200), "terms": terms, "results": [], "truncated": False}
    with view.catalog.searching(view.sees) as index:
        best = rank(view, index, query, given or [], args["k"])
        rows = index.reader.rows(hit.id for hit in best)
        trails = view.trails(index.reader, rows)
    with view.catalog.reading() as reader:
        results = [
            _result(view, reader, hit, rows[hit.id], trails[hit.id], terms, bool(given))
            for hit in best
            if hit.id in rows
        ]
    return pack(answer, results)


# ---------------------------------------------------------------------------------------------- ranking


class Found(NamedTuple):
    id: str
    score: float
    found_by: list[str]


def rank(view: View, index: Index, query: str, given: list[str], k: int) -> list[Found]:
    """The best k nodes, best first."""
    groups = words.query_terms(query, *given)
    if not groups:
        return []
    located, coverage = reading.strengths(index, query, words.query_terms(query), None)
    bodies = ranking.strengths(ranking.rank_bodies(index.for_bodies(), groups))
    ids = index.columns.ids
    heat = {index.columns.docs[id]: value for id, value in view.heat.hot().items() if id in index.columns.docs}
    order = ranking.fuse(located, coverage, bodies, heat, _literal_counts(index, given), ids, k)
    halves = (("locate", located), ("sniff", bodies))
    return [Found(ids[doc], score, [name for name, half in halves if doc in half]) for doc, score in order]


def _literal_counts(index: Index, given: list[str]) -> dict[int, int]:
    counts: dict[int, int] = {}
    live = index.columns.of(("banana",), index.sees).live
    for term in {words.literal(t).strip() for t in given}:
        for doc in index.occurrences(term, live):
            counts[doc] = counts.get(doc, 0) + 1
    return counts


# ---------------------------------------------------------------------------------------------- matches


@dataclass
class Result:
    """One result on its way into the answer: everything that its levels are made of."""

    head: dict
    node: Node
    body: str
    tokens: int
    places: list[tuple[int, int]]  # (line, offset) of the matches
    note: str
    level: int = 1
    gone: bool = False  # the body is kept elsewhere and not there
    made: dict[int, dict] = field(default_factory=dict)

    def item(self) -> dict:
        if self.level not in self.made:
            self.made[self.level] = _at_level(self)
        return self.made[self.level]


def _result(view: View, reader: Reader, hit: Found, row, trail: list[str], terms: list[str], literal: bool) -> Result:
    try:
        node = forest.parse_node(reading.read_bytes(view.catalog.root, hit.id) or b"", hit.id)
        body, gone = view.body(reader, node), False
    except (VineError, OSError):
        node, body, gone = Node(hit.id, {}, ""), "", True
    head = {"id": hit.id, "title": row["title"], "type": row["type"], "trail": trail, "summary": row["summary"]}
    head |= {"score": hit.score, "found_by": hit.found_by}
    places = [] if row["kind"] == "branch" else match_places(body, terms, literal)
    note = forest.clip(reading.notes(node), reading.NOTES) if row["type"] == "dataset" else ""
    result = Result(head, node, body, reading.body_tokens(body), places, note, gone=gone)
    result.level = 3 if gone else 1 if result.tokens <= BODY else 2 if _matched_sections(result) else 3
    return result


def match_places(body: str, terms: list[str], literal: bool) -> list[tuple[int, int]]:
    """(line, offset) of up to five lines that hold a term: the term with the fewest lines first, then line order."""
    folded = [words.literal(line) for line in body.split("\n")]
    by_stem = {} if literal else _words_by_stem(body)
    found = []
    for term in terms:
        test = _line_test(term, () if literal else by_stem.get(words.stem(term), ()))
        hits = [(n, place) for n, line in enumerate(folded, 1) if (place := test(line)) >= 0]
        if hits:
            found.append((len(hits), hits))
    found.sort(key=lambda pair: pair[0])
    places: dict[int, int] = {}
    for _, hits in found:
        for line, place in hits:
            places.setdefault(line, place)
    return list(places.items())[:MOST_MATCHES]


def _words_by_stem(body: str) -> dict[str | None, list[str]]:
    """The words of a body, folded, by their stem."""
    found: dict[str | None, list[str]] = {}
    for word, stem in words.index_terms(body).stems:  # a stem is of the word as written, which folding may change
        if word[0] != words.DERIVED:
            found.setdefault(stem, []).append(word)
    return found


def _line_test(term: str, forms: Iterable[str]) -> Callable[[str], int]:
    """Gives the offset of a hit in a folded line, or -1: the term itself, or one of the words that share its stem."""
    text = words.literal(term).strip()
    if not forms:
        return lambda line: line.find(text)
    pattern = re.compile("|".join([re.escape(text), *(rf"\b{re.escape(form)}\b" for form in sorted(forms))]))

    def test(line: str) -> int:
        hit = pattern.search(line)
        return hit.start() if hit else -1

    return test


# ---------------------------------------------------------------------------------------------- content by level


def _at_level(result: Result) -> dict:
    item = dict(result.head)
    places = result.places[:1] if result.level == 4 else result.places
    item["matches"] = [reading.match(result.body, line, place) for line, place in places]
    item["content"] = (_whole, _sections, _windows, _last_window)[result.level - 1](result)
    if result.note:
        item["notes"] = result.note
    return item


def _whole(result: Result) -> list[dict]:
    return [{"section": None, "body": result.body, "body_tokens": result.tokens}]


def _matched_sections(result: Result) -> list[forest.Heading]:
    """Up to two H2 or H3 sections that hold matches, in match order, by position."""
    marks = forest.headings(result.body)
    chosen: list[forest.Heading] = []
    for line, _ in result.places:
        holder = None
        for mark in marks:
            if mark.line > line:
                break
            holder = None if mark.level == 1 else mark if mark.level in (2, 3) else holder
        if holder and not any(h.start <= holder.start < h.end for h in chosen):
            chosen.append(holder)
    return chosen[:MOST_SECTIONS]


def _sections(result: Result) -> list[dict]:
    content = []
    for mark in _matched_sections(result):
        text = result.body[mark.start : mark.end].rstrip()
        tokens = forest.count_tokens(text)
        part: dict[str, Any] = {"section": mark.text, "body": text, "body_tokens": tokens}
        if tokens > BODY:
            part["body"] = _around_matches(result, mark, text)
            part |= {"body_tokens": forest.count_tokens(part["body"]), "truncated": True}
        content.append(part)
    return content


def _around_matches(result: Result, mark: forest.Heading, text: str) -> str:
    """The paragraphs of a long section that hold matches, and their neighbours while they fit."""
    first = mark.line
    lines = {line - first for line, _ in result.places if line >= first}
    paragraphs, hit, at = list(reading._paragraphs(text)), [], 0
    for n, paragraph in enumerate(paragraphs):
        span = paragraph.count("\n")
        if any(at <= line <= at + max(0, span - 1) for line in lines):
            hit.append(n)
        at += span
    chosen: list[int] = []
    room = BODY
    for n in sorted(range(len(paragraphs)), key=lambda n: (min(abs(n - h) for h in hit or [0]), n)):
        cost = forest.count_tokens(paragraphs[n])
        if cost > room:
            break
        chosen.append(n)
        room -= cost
    if not chosen:
        return _lines_around(text, min(lines & set(range(text.count("\n") + 1)), default=0) + 1, BODY)[1]
    return "".join(paragraphs[n] for n in sorted(chosen)).rstrip()


def _windows(result: Result) -> list[dict]:
    part: dict[str, Any] = {"section": None, "outline": forest.outline(result.body)}
    part["windows"] = [] if result.gone else _runs(result, MOST_WINDOWS, WINDOW)
    part |= {"body_tokens": result.tokens, "truncated": True, "hint": _hint(result)}
    return [part]


def _last_window(result: Result) -> list[dict]:
    part: dict[str, Any] = {"section": None, "windows": [] if result.gone else _runs(result, 1, LAST_WINDOW)}
    part |= {"body_tokens": result.tokens, "truncated": True, "hint": _hint(result)}
    return [part]


def _hint(result: Result) -> str:
    if result.gone:
        return "The body of this node is not available."
    return f"Shortened. pick(id, section=…) gives the whole text of {result.tokens} tokens."


def _runs(result: Result, most: int, limit: int) -> list[dict]:
    """Windows of lines around the matches, or the body's start when there are none."""
    windows: list[dict] = []
    covered: list[tuple[int, int]] = []
    for line, _ in result.places or [(1, 0)]:
        if len(windows) == most:
            break
        if any(start <= line <= end for start, end in covered):
            continue
        (start, end), text = _lines_around(result.body, line, limit)
        covered.append((start, end))
        windows.append({"section": reading.section_label(result.body, line), "line": start, "text": text})
    return windows


def _lines_around(body: str, line: int, limit: int) -> tuple[tuple[int, int], str]:
    """The run of lines around a line, up to `limit` tokens: ((first, last), text)."""
    lines = body.split("\n")
    start = end = line
    text = lines[line - 1]
    if not forest.fits(text, limit):
        return (line, line), forest.clip(text, limit)
    room = limit - forest.count_tokens(text)
    grew = True
    while grew:
        grew = False
        for step in (1, -1):
            nxt = end + 1 if step == 1 else start - 1
            if not 1 <= nxt <= len(lines):
                continue
            cost = forest.count_tokens(lines[nxt - 1]) + 1
            if cost <= room:
                room -= cost
                start, end, grew = min(start, nxt), max(end, nxt), True
    return (start, end), forest.clip("\n".join(lines[start - 1 : end]).strip("\n"), limit)


# ---------------------------------------------------------------------------------------------- packing


def pack(answer: dict, results: list[Result]) -> dict:
    """Fit the results into the budget: the last is lowered level by level, then the one before it, down to the
    second; then results leave from the tail; the first is lowered only when it does not fit alone."""
    sizes = [size(r.item()) + 1 for r in results]
    room = HARVEST - size(answer) - 4

    def lower(n: int) -> None:
        results[n].level += 1
        if results[n].level == 2 and not _matched_sections(results[n]):
            results[n].level = 3
        sizes[n] = size(results[n].item()) + 1
        answer["truncated"] = True

    for n in range(len(results) - 1, 0, -1):
        while sum(sizes) > room and results[n].level < 4:
            lower(n)
    while len(results) > 1 and sum(sizes) > room:
        results.pop()
        sizes.pop()
        answer["truncated"] = True
    while results and sum(sizes) > room and results[0].level < 4:
        lower(0)
    answer["results"] = [r.item() for r in results]
    if sum(sizes) + 8 * len(sizes) < room:
        return answer  # the sum of the parts is that far below: counting the whole again would tell nothing
    while len(answer["results"]) > 1 and not fits(answer, HARVEST):
        answer["results"].pop()
        answer["truncated"] = True
    if answer["results"] and not fits(answer, HARVEST):
        answer["truncated"] = True
        reading.squeeze(answer, answer["results"][0], HARVEST)
    return answer
