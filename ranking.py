"""Ranking: which documents answer a query, from postings and statistics alone.

Owns: BM25 over bodies, BM25 over the four metadata fields, the second look at the best bodies, the fusion of
both rankings. Constants that shape results stand at the top, each with its reason.
Must never: open a file or a database, know ids' meaning, scopes or heat's clock; count a document that is not
live.

Sections: constants · what an index offers · frequencies · matching groups · metadata · bodies · fusion.

Invariants
- Only live documents are scored or counted, so what a caller may not see changes nothing in his answer.
- Other things equal: a word as written ranks above the same word inside a compound, that above another word
  of its stem; the whole form of a compound above its parts, all parts above one.
- The second look re-orders and adds, it never takes a document out. It is the same for the same state.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import nlargest, nsmallest
from itertools import compress
from math import log
from operator import not_
from typing import NamedTuple, Protocol

import words
from words import DERIVED, Group

# ------------------------------------------------------------------------------------------- constants

K1, B = 1.2, 0.75  # BM25: how soon repetition stops to count, how much length is held against a text
FIELD_WEIGHTS = (4.0, 3.0, 2.0, 1.0)  # title, aliases, tags, summary: the shorter, the more deliberate
# One occurrence as written, inside a compound, of another word of the stem.
EXACT, WITHIN, STEM = 1.0, 0.95, 0.9
WHOLE = 0.1  # extra share of a compound's own score, so that the whole form beats its scattered parts
SOME_PARTS = 0.5  # what parts count when some of them are missing
LIGHT = 0.4  # share of its rarity that a light word (get, day, really) keeps: questions are full of them

CONTENDERS = 50  # ranks that are exact in the first look, well above what any answer shows
LOOK_AT = 6  # best bodies that are read again; more of them drift off the subject
SHORT, LONG = 250, 450  # words: up to SHORT a text has one subject, beyond LONG it has several
SHARED_BY = 2  # bodies that must hold a feedback term; a word of one body is that body's own affair
CANDIDATES, EXPANSIONS = 40, 20  # feedback terms weighed, feedback terms used
FEEDBACK = 0.5  # weight of the best feedback term against a query term of the same rarity
TRUST = 3  # exponent: a body far behind the best says little about the subject
COMMON, RARE = 0.05, 150  # share and number of documents up to which a term is rare enough for feedback

PASSAGES = 20  # best bodies whose passages are compared
PASSAGE = 500  # characters in a passage, some eighty words: a turn of talk, a long paragraph
CLOSENESS = 0.8  # weight of the best passage against the best body score

LOCATE_SHARE, BODY_SHARE = 0.6, 1.4  # metadata confirm a body match, they must not drown it
SCALE = 61.0  # best in both shows 2 / 61
HEAT = 0.3  # a node in full use gains this share
BEHIND_EXACT = 0.7  # strength of the best other node beside one whose title or alias is the query

# ------------------------------------------------------------------------------ what an index offers


class Index(Protocol):
    """Postings and statistics of one kind of texts. `live[doc]` is 1 for each document that counts."""

    live: bytearray
    total: int

    def postings(self, term: str) -> array:
        """Flat pairs (doc, count); dead and hidden documents may be among them."""

    def stem_class(self, stem: str) -> Iterable[str]:
        """The vocabulary terms of a stem, derived ones with their prefix."""


class Bodies(Index, Protocol):
    lengths: Sequence[int]  # words by document
    average: float

    def text(self, doc: int) -> str: ...


class Passports(Index, Protocol):
    """A count packs four 8-bit frequencies: title, aliases, tags, summary from the lowest bits up."""

    field_lengths: Sequence[Sequence[int]]
    field_averages: Sequence[float]


Scores = dict[int, float]

# ----------------------------------------------------------------------------------------- frequencies


def idf(total: int, holders: int) -> float:
    return log(1 + (total - holders + 0.5) / (holders + 0.5))


def _accepted(index: Index, group: Group) -> dict[str, float]:
    """The index terms that stand for a group's own forms, with what one occurrence counts."""
    weights = dict.fromkeys(group.forms, EXACT)
    # A compound is written with its joiners in the text; for a plain word the same entry is a compound around
    # it.
    derived = EXACT if group.parts else WITHIN
    for form in group.forms:
        weights[DERIVED + form] = derived
    for stem in group.stems:
        for term in index.stem_class(stem):
            weights.setdefault(term, STEM)
    return weights


def _unseen(index: Index) -> set[int]:
    """Document numbers that may occur in postings but do not count."""
    return set(compress(range(len(index.live)), map(not_, index.live)))


def _frequencies(index: Index, unseen: set[int], weights: Mapping[str, float]) -> Scores:
    """Weighted occurrences of all these terms together, by live document."""
    found: Scores = {}
    for term, weight in weights.items():
        if flat := index.postings(term):
            counts = flat[1::2] if weight == 1.0 else map(weight.__mul__, flat[1::2])
            found = _sum(found, dict(zip(flat[::2], counts)))
    for doc in found.keys() & unseen:
        del found[doc]
    return found


def _sum(some: Scores, more: Scores) -> Scores:
    """Both added up, in the larger of the two, which is changed."""
    if len(some) < len(more):
        some, more = more, some
    for doc, score in more.items():
        some[doc] = some.get(doc, 0.0) + score
    return some


def _field_frequencies(index: Passports, weights: Mapping[str, float]) -> Scores:
    """The same over metadata: occurrences weighted by field and by the field's length."""
    live, found = index.live, {}
    fields = [
        (shift, lengths, weight * average, B, (1 - B) * average)
        for shift, lengths, weight, average in zip(
            (0, 8, 16, 24), index.field_lengths, FIELD_WEIGHTS, index.field_averages
        )
    ]
    for term, weight in weights.items():
        flat = index.postings(term)
        for doc, packed in zip(flat[::2], flat[1::2]):
            if live[doc]:
                amount = 0.0
                for shift, lengths, share, slope, base in fields:
                    if count := packed >> shift & 255:
                        amount += share * count / (base + slope * lengths[doc])
                found[doc] = found.get(doc, 0.0) + weight * amount
    return found


# ------------------------------------------------------------------------------------ matching groups

Frequencies = Callable[[Mapping[str, float]], Scores]
Saturation = Callable[[Scores, float], Scores]


class _Matched(NamedTuple):
    found: Scores  # of a plain word: weighted occurrences; of a compound: finished scores
    mass: float  # the idf of the group: how much of the query it is
    limit: float  # no document gets more from it
    compound: bool = False
    partly: frozenset[int] = frozenset()  # documents with some of a compound's parts only

    def scores(self, saturate: Saturation, only: Iterable[int] | None = None) -> Scores:
        """What the group gives to each document, or to each of `only`."""
        found = self.found
        if only is not None:
            found = {doc: found[doc] for doc in only if doc in found}
        return found if self.compound else saturate(found, self.mass)


def _match(index: Index, group: Group, frequencies: Frequencies, saturate: Saturation) -> _Matched:
    own = frequencies(_accepted(index, group))
    mass = idf(index.total, len(own)) * (LIGHT if group.light else 1.0)
    if not group.parts:
        return _Matched(own, mass, mass)
    parts: Scores = defaultdict(float)
    held: dict[int, int] = defaultdict(int)
    limit = 0.0
    for part in group.parts:
        found = frequencies(_accepted(index, part))
        weight = idf(index.total, len(found))
        limit += weight
        for doc, score in saturate(found, weight).items():
            parts[doc] += score
            held[doc] += 1
    partly = frozenset(doc for doc, count in held.items() if count < len(group.parts)) - own.keys()
    scores = {doc: score for doc, score in parts.items() if doc not in partly}
    if group.single:
        scores |= {doc: SOME_PARTS * parts[doc] for doc in partly}
    for doc, score in saturate(own, mass).items():
        scores[doc] = max(score, scores.get(doc, 0.0)) + WHOLE * score
    return _Matched(scores, mass, max(limit, mass) + WHOLE * mass, True, partly)


# -------------------------------------------------------------------------------------------- metadata


def rank_meta(index: Passports, groups: Iterable[Group]) -> tuple[Scores, Scores]:
    """Rank nodes by title, aliases, tags and summary.

    Returns scores, and the coverage: the share (0..1) of the query's idf mass that a node's metadata hold.
    """

    def saturate(found: Scores, weight: float) -> Scores:
        return {doc: weight * amount / (amount + K1) for doc, amount in found.items()}

    frequencies = partial(_field_frequencies, index)
    scores: Scores = defaultdict(float)
    coverage: Scores = defaultdict(float)
    whole = 0.0
    for group in groups:
        matched = _match(index, group, frequencies, saturate)
        whole += matched.mass
        for doc, score in matched.scores(saturate).items():
            scores[doc] += score
            coverage[doc] += matched.mass * (SOME_PARTS if doc in matched.partly else 1.0)
    return dict(scores), {doc: mass / whole for doc, mass in coverage.items()}


def strengths(scores: Scores, exact: Iterable[int] = ()) -> Scores:
    """Scores as shares of the best one. `exact`: documents whose whole title or alias is the query; they get
    1.0 and no other more than BEHIND_EXACT, whatever heat adds."""
    best = max(scores.values(), default=0.0)
    named = dict.fromkeys(exact, 1.0)
    limit = BEHIND_EXACT if named else 1.0
    return {doc: limit * score / best for doc, score in scores.items()} | named


# ---------------------------------------------------------------------------------------------- bodies


def rank_bodies(index: Bodies, groups: Sequence[Group]) -> Scores:
    """Rank documents by their full text: BM25, then a second look at the best.

    The look does what suits their length. Short texts have one subject: terms that the best of them share are
    added to the query. In long texts these would come from anywhere, but a question is about one place in
    them: those count more that hold the query's words close together.
    """
    frequencies = partial(_frequencies, index, _unseen(index))
    saturate = _saturation(index)
    matches = [_match(index, group, frequencies, saturate) for group in groups]
    scores = _first_look(matches, saturate)
    if not scores:
        return {}
    best = _best(scores, PASSAGES)
    top = best[:LOOK_AT]
    peak = scores[top[0]]
    trust = {doc: (scores[doc] / peak) ** TRUST for doc in top}
    length = sum(index.lengths[doc] for doc in top) / len(top)
    several = min(max((length - SHORT) / (LONG - SHORT), 0.0), 1.0)
    if several > 0:
        for doc, share in _closeness(index, groups, [matched.mass for matched in matches], best).items():
            scores[doc] += CLOSENESS * several * peak * share
    if several < 1:
        for family, weight in _expansions(index, groups, trust):
            found = frequencies(dict.fromkeys(family, EXACT))
            scores = _sum(scores, saturate(found, FEEDBACK * (1 - several) * weight))
    return scores


def _saturation(index: Bodies) -> Saturation:
    lengths, base, slope = index.lengths, K1 * (1 - B), K1 * B / max(index.average, 1.0)

    def saturate(found: Scores, weight: float) -> Scores:
        return {doc: weight * amount / (amount + base + slope * lengths[doc]) for doc, amount in found.items()}

    return saturate


def _first_look(matches: Iterable[_Matched], saturate: Saturation) -> Scores:
    """Plain BM25. Rare words come first; once the common ones that remain cannot lift a document among the
    best CONTENDERS, they are no longer added to it: it keeps a lower score than it has, at a rank that nobody
    asks for."""
    waiting = sorted(matches, key=lambda matched: -matched.mass)
    left = sum(matched.limit for matched in waiting)
    scores: Scores = {}
    for matched in waiting:
        only = None
        if len(scores) > CONTENDERS:
            needed = nlargest(CONTENDERS, scores.values())[-1] - left
            if needed > 0:
                only = [doc for doc, score in scores.items() if score >= needed]
        scores = _sum(scores, matched.scores(saturate, only))
        left -= matched.limit
    return scores


def _best(scores: Scores, count: int) -> list[int]:
    """The documents of the best scores, best first."""
    limit = nlargest(count, scores.values())[-1]
    return sorted((doc for doc, score in scores.items() if score >= limit), key=lambda doc: (-scores[doc], doc))[:count]


def _shared_terms(index: Bodies, groups: Iterable[Group], trust: Scores) -> Scores:
    """Stems (or words without one) that the trusted bodies share beyond the query, weighed by frequency and
    trust."""
    asked = {key for group in groups for one in (group, *group.parts) for key in one.stems or one.forms}
    gains: Scores = defaultdict(float)
    held: dict[str, int] = defaultdict(int)
    for doc, weight in trust.items():
        terms = words.index_terms(index.text(doc))
        stems, counts = dict(terms.stems), defaultdict(int)
        for term, count in terms.counts.items():
            if len(term) > 1 and term[0] != DERIVED and term not in words.STOP_WORDS:
                counts[stems.get(term, term)] += count
        norm = K1 * (1 - B + B * terms.length / max(index.average, 1.0))
        for stem, count in counts.items():
            gains[stem] += weight * count / (count + norm)
            held[stem] += 1
    return {stem: gain for stem, gain in gains.items() if held[stem] >= SHARED_BY and stem not in asked}


def _expansions(index: Bodies, groups: Iterable[Group], trust: Scores) -> Iterator[tuple[list[str], float]]:
    """Terms to add to the query, as families of one stem: the best has its rarity as weight, the others a
    part."""
    gains = _shared_terms(index, groups, trust)
    limit = max(COMMON * index.total, RARE)
    weighed = []
    for stem, gain in nsmallest(CANDIDATES, gains.items(), key=lambda item: (-item[1], item[0])):
        family = list(index.stem_class(stem)) or [stem]
        holders = _holders(index, family, limit)
        if holders <= limit:
            rarity = idf(index.total, holders)
            weighed.append((gain * rarity, rarity, family))
    weighed.sort(key=lambda item: -item[0])
    for value, rarity, family in weighed[:EXPANSIONS]:
        yield family, rarity * value / weighed[0][0]


def _holders(index: Index, family: Iterable[str], limit: float) -> int:
    """How many live documents hold a term of the family (those with two count twice); above `limit` any
    number above it, since counting all holders of a common word would cost more than its use."""
    holders, step = 0, int(limit) + 1
    for term in family:
        docs = index.postings(term)[::2]
        for start in range(0, len(docs), step):
            holders += sum(map(index.live.__getitem__, docs[start : start + step]))
            if holders > limit:
                return holders
    return holders


def _closeness(index: Bodies, groups: Sequence[Group], masses: Sequence[float], best: Iterable[int]) -> Scores:
    """For each of the best bodies the share (0..1) of the query's idf mass that its best passage holds."""
    wanted: dict[str, int] = {}
    for number, group in enumerate(groups):
        for one in (group, *group.parts):
            for term in _accepted(index, one):
                wanted.setdefault(term.removeprefix(DERIVED), number)
    shares = {}
    for doc in best:
        text = words.fold(index.text(doc))
        hits = sorted((at, number) for term, number in wanted.items() for at in words.places(text, term))
        shares[doc] = _best_passage(hits, masses) / sum(masses)
    return shares


def _best_passage(hits: Sequence[tuple[int, int]], masses: Sequence[float]) -> float:
    """The greatest sum of masses of the groups that stand within PASSAGE characters. `hits`: (place, group),
    in order."""
    best = mass = 0.0
    inside = [0] * len(masses)
    first = 0
    for at, group in hits:
        if not inside[group]:
            mass += masses[group]
        inside[group] += 1
        while hits[first][0] <= at - PASSAGE:
            left = hits[first][1]
            inside[left] -= 1
            if not inside[left]:
                mass -= masses[left]
            first += 1
        best = max(best, mass)
    return best


# ---------------------------------------------------------------------------------------------- fusion


def fuse(
    located: Scores,
    coverage: Scores,
    bodies: Scores,
    heat: Mapping[int, float],
    literal: Mapping[int, int],
    ids: Sequence[str],
    limit: int | None = None,
) -> list[tuple[int, float]]:
    """The order of harvest: (document, score as shown), best first, at most `limit` of them.

    located: strengths of the metadata ranking; coverage: the share of the query that metadata hold; bodies:
    strengths of the body ranking; heat: 0..1, of those that have any; literal: how many of the caller's own
    terms a document holds as written (empty when none were given); ids: by document, for ties.
    """
    scored = {doc: BODY_SHARE * strength / SCALE for doc, strength in bodies.items()}
    for doc, strength in located.items():
        scored[doc] = scored.get(doc, 0.0) + LOCATE_SHARE * coverage.get(doc, 0.0) * strength / SCALE
    for doc, warmth in heat.items():
        if doc in scored:
            scored[doc] *= 1 + HEAT * warmth
    order: Iterable[int] = scored
    if limit and limit < len(scored) and not literal:
        least = nlargest(limit, scored.values())[-1] - 0.0001  # what could show the same
        order = [doc for doc, score in scored.items() if score >= least]
    shown = [(doc, round(scored[doc], 4)) for doc in order]
    return sorted(shown, key=lambda item: (-literal.get(item[0], 0), -item[1], ids[item[0]]))[:limit]
