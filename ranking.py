"""Ranking: which documents answer a query, from postings and statistics alone.

Owns: BM25 over bodies, BM25 over the four metadata fields, the second look at the best bodies, the fusion of both
rankings. Constants that shape results stand at the top, each with its reason.
Must never: open a file or a database, know ids' meaning, scopes or heat's clock; count a document that is not live.

Sections: constants · what an index offers · frequencies · matching groups · metadata · bodies · fusion.

Invariants
- Only live documents are scored or counted, so what a caller may not see changes nothing in his answer.
- Other things equal: a word as written ranks above the same word inside a compound, that above another word of its
  stem; the whole form of a compound above its parts, all parts above one.
- The second look re-orders and adds, it never takes a document out. It is the same for the same state.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log
from typing import NamedTuple, Protocol

import words
from words import DERIVED, Group

# ------------------------------------------------------------------------------------------- constants

K1, B = 1.2, 0.75  # BM25: how soon repetition stops to count, how much length is held against a text
FIELD_WEIGHTS = (4.0, 3.0, 2.0, 1.0)  # title, aliases, tags, summary: the shorter, the more deliberate
EXACT, WITHIN, STEM = 1.0, 0.95, 0.9  # one occurrence as written, inside a compound, of another word of the stem
WHOLE = 0.1  # extra share of a compound's own score, so that the whole form beats its scattered parts
SOME_PARTS = 0.5  # what parts count when some of them are missing

LOOK_AT = 8  # best bodies that are read again; more of them drift off the subject
SHORT, LONG = 250, 450  # words: up to SHORT a text has one subject, beyond LONG it has several
SHARED_BY = 2  # bodies that must hold a feedback term; a word of one body is that body's own affair
CANDIDATES, EXPANSIONS = 60, 30  # feedback terms weighed, feedback terms used
FEEDBACK = 0.5  # weight of the best feedback term against a query term of the same rarity
TRUST = 3  # exponent: a body far behind the best says little about the subject
COMMON = 0.1  # share of the documents above which a feedback term tells nothing and costs time

PASSAGES = 20  # best bodies whose passages are compared
PASSAGE = 500  # characters in a passage, some eighty words: a turn of talk, a long paragraph
CLOSENESS = 1.0  # weight of the best passage against the best body score

LOCATE_SHARE, BODY_SHARE = 0.3, 1.7  # metadata confirm a body match, they must not drown it
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
    # A compound is written with its joiners in the text; for a plain word the same entry is a compound around it.
    derived = EXACT if group.parts else WITHIN
    for form in group.forms:
        weights[DERIVED + form] = derived
    for stem in group.stems:
        for term in index.stem_class(stem):
            weights.setdefault(term, STEM)
    return weights


def _frequencies(index: Index, weights: Mapping[str, float]) -> Scores:
    """Weighted occurrences of all these terms together, by live document."""
    live, found = index.live, {}
    for term, weight in weights.items():
        flat = index.postings(term)
        for doc, count in zip(flat[::2], flat[1::2]):
            if live[doc]:
                found[doc] = found.get(doc, 0.0) + weight * count
    return found


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
    scores: Scores
    mass: float  # the idf of the group: how much of the query it is
    partly: frozenset[int]  # documents with some of its parts only


def _match(index: Index, group: Group, frequencies: Frequencies, saturate: Saturation) -> _Matched:
    """What one group of a query gives to each document."""
    own = frequencies(_accepted(index, group))
    mass = idf(index.total, len(own))
    exact = saturate(own, mass)
    if not group.parts:
        return _Matched(exact, mass, frozenset())
    parts: Scores = defaultdict(float)
    held: dict[int, int] = defaultdict(int)
    for part in group.parts:
        found = frequencies(_accepted(index, part))
        for doc, score in saturate(found, idf(index.total, len(found))).items():
            parts[doc] += score
            held[doc] += 1
    partly = {doc for doc, count in held.items() if count < len(group.parts)} - exact.keys()
    scores = {doc: score for doc, score in parts.items() if doc not in partly}
    if group.single:
        scores |= {doc: SOME_PARTS * parts[doc] for doc in partly}
    for doc, score in exact.items():
        scores[doc] = max(score, scores.get(doc, 0.0)) + WHOLE * score
    return _Matched(scores, mass, frozenset(partly))


# -------------------------------------------------------------------------------------------- metadata


def rank_meta(index: Passports, groups: Iterable[Group]) -> tuple[Scores, Scores]:
    """Rank nodes by title, aliases, tags and summary.

    Returns scores, and the coverage: the share (0..1) of the query's idf mass that a node's metadata hold.
    """

    def saturate(found: Scores, weight: float) -> Scores:
        return {doc: weight * amount / (amount + K1) for doc, amount in found.items()}

    scores: Scores = defaultdict(float)
    coverage: Scores = defaultdict(float)
    whole = 0.0
    for group in groups:
        matched = _match(index, group, lambda weights: _field_frequencies(index, weights), saturate)
        whole += matched.mass
        for doc, score in matched.scores.items():
            scores[doc] += score
            coverage[doc] += matched.mass * (SOME_PARTS if doc in matched.partly else 1.0)
    return dict(scores), {doc: mass / whole for doc, mass in coverage.items()}


def strengths(scores: Scores, exact: Iterable[int] = ()) -> Scores:
    """Scores as shares of the best one. `exact`: documents whose whole title or alias is the query; they get 1.0
    and no other more than BEHIND_EXACT, whatever heat adds."""
    best = max(scores.values(), default=0.0)
    named = dict.fromkeys(exact, 1.0)
    limit = BEHIND_EXACT if named else 1.0
    return {doc: limit * score / best for doc, score in scores.items()} | named


# ---------------------------------------------------------------------------------------------- bodies


def rank_bodies(index: Bodies, groups: Sequence[Group]) -> Scores:
    """Rank documents by their full text: BM25, then a second look at the best.

    The look does what suits their length. Short texts have one subject: terms that the best of them share are
    added to the query. In long texts these would come from anywhere, but a question is about one place in them:
    those count more that hold the query's words close together.
    """
    matches = [_match(index, group, lambda weights: _frequencies(index, weights), _saturation(index)) for group in groups]
    scores: Scores = defaultdict(float)
    for matched in matches:
        for doc, score in matched.scores.items():
            scores[doc] += score
    if not scores:
        return {}
    order = sorted(scores, key=lambda doc: (-scores[doc], doc))
    top = order[:LOOK_AT]
    length = sum(index.lengths[doc] for doc in top) / len(top)
    several = min(max((length - SHORT) / (LONG - SHORT), 0.0), 1.0)
    looked = dict(scores)
    if several < 1 and len(top) >= SHARED_BY:
        _add_feedback(index, groups, scores, top, FEEDBACK * (1 - several), looked)
    if several > 0:
        masses = [matched.mass for matched in matches]
        _add_closeness(index, groups, masses, order[:PASSAGES], CLOSENESS * several * scores[top[0]], looked)
    return looked


def _saturation(index: Bodies) -> Saturation:
    lengths, base, slope = index.lengths, K1 * (1 - B), K1 * B / max(index.average, 1.0)

    def saturate(found: Scores, weight: float) -> Scores:
        return {doc: weight * amount / (amount + base + slope * lengths[doc]) for doc, amount in found.items()}

    return saturate


def _add_feedback(index: Bodies, groups: Iterable[Group], scores: Scores, top: Sequence[int], weight: float, looked: Scores) -> None:
    """Add what documents gain by the terms that the best bodies share beyond the query."""
    gains = _shared_terms(index, groups, scores, top)
    weighed = []
    for stem, gain in sorted(gains.items(), key=lambda item: (-item[1], item[0]))[:CANDIDATES]:
        family = list(index.stem_class(stem)) or [stem]
        holders = sum(sum(map(index.live.__getitem__, index.postings(term)[::2])) for term in family)
        if holders <= max(COMMON * index.total, LOOK_AT):
            rarity = idf(index.total, holders)
            weighed.append((gain * rarity, rarity, family))
    weighed.sort(key=lambda item: -item[0])
    saturate = _saturation(index)
    for value, rarity, family in weighed[:EXPANSIONS]:
        found = _frequencies(index, dict.fromkeys(family, EXACT))
        for doc, score in saturate(found, weight * rarity * value / weighed[0][0]).items():
            looked[doc] = looked.get(doc, 0.0) + score


def _shared_terms(index: Bodies, groups: Iterable[Group], scores: Scores, top: Sequence[int]) -> Scores:
    """Stems (or words without one) of the best bodies, outside the query, weighed by frequency and by trust."""
    asked = {key for group in groups for one in (group, *group.parts) for key in one.stems or one.forms}
    gains: Scores = defaultdict(float)
    held: dict[str, int] = defaultdict(int)
    for doc in top:
        terms = words.index_terms(index.text(doc))
        stems, counts = dict(terms.stems), defaultdict(int)
        for term, count in terms.counts.items():
            if len(term) > 1 and term[0] != DERIVED and term not in words.STOP_WORDS:
                counts[stems.get(term, term)] += count
        trust = (scores[doc] / scores[top[0]]) ** TRUST
        norm = K1 * (1 - B + B * terms.length / max(index.average, 1.0))
        for stem, count in counts.items():
            gains[stem] += trust * count / (count + norm)
            held[stem] += 1
    return {stem: gain for stem, gain in gains.items() if held[stem] >= SHARED_BY and stem not in asked}


def _add_closeness(index: Bodies, groups: Sequence[Group], masses: Sequence[float], top: Iterable[int], weight: float, looked: Scores) -> None:
    """Add to each of the best bodies the share of the query that its best passage holds."""
    wanted: dict[str, int] = {}
    for number, group in enumerate(groups):
        for one in (group, *group.parts):
            for term in _accepted(index, one):
                wanted.setdefault(term.removeprefix(DERIVED), number)
    whole = sum(masses)
    for doc in top:
        text = words.fold(index.text(doc))
        hits = sorted((at, number) for term, number in wanted.items() for at in words.places(text, term))
        looked[doc] += weight * _best_passage(hits, masses) / whole


def _best_passage(hits: Sequence[tuple[int, int]], masses: Sequence[float]) -> float:
    """The greatest sum of masses of the groups that stand within PASSAGE characters. `hits`: (place, group), in order."""
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


def fuse(located: Scores, coverage: Scores, bodies: Scores, heat: Mapping[int, float], literal: Mapping[int, int],
         ids: Sequence[str]) -> list[tuple[int, float]]:  # fmt: skip
    """The order of harvest: (document, score as shown), best first.

    located: strengths of the metadata ranking; coverage: the share of the query that metadata hold; bodies:
    strengths of the body ranking; heat: 0..1; literal: how many of the caller's own terms a document holds as
    written (all of it absent when none were given); ids: by document, for ties.
    """
    scored = {}
    for doc in located.keys() | bodies.keys():
        confirmed = LOCATE_SHARE * coverage.get(doc, 0.0) * located.get(doc, 0.0)
        relevance = (confirmed + BODY_SHARE * bodies.get(doc, 0.0)) / SCALE
        scored[doc] = round(relevance * (1 + HEAT * heat.get(doc, 0.0)), 4)
    return sorted(scored.items(), key=lambda item: (-literal.get(item[0], 0), -item[1], ids[item[0]]))
