"""A search index in memory, for tests of words and ranking: the two views that the ranking functions read."""

from __future__ import annotations

from array import array
from collections import defaultdict

import words

FIELDS = ("title", "aliases", "tags", "summary")


class View:
    """One kind of texts: postings, stem classes and statistics; `hide` takes documents out of sight."""

    def __init__(self):
        self.live, self.total = bytearray(), 0
        self._postings: dict[str, array] = {}
        self._stems: dict[str, list[str]] = {}

    def postings(self, term):
        return self._postings.get(term, array("I"))

    def stem_class(self, stem):
        return self._stems.get(stem, [])

    def add(self, doc, counts, stems):
        for term, count in counts.items():
            self._postings.setdefault(term, array("I")).extend((doc, count))
        for term, stem in stems:
            if term not in self._stems.setdefault(stem, []):
                self._stems[stem].append(term)


class Bodies(View):
    def __init__(self, texts, hidden=()):
        super().__init__()
        self.texts, self.lengths = list(texts), array("I")
        for doc, text in enumerate(self.texts):
            terms = words.index_terms(text)
            self.add(doc, terms.counts, terms.stems)
            self.lengths.append(terms.length)
            self.live.append(doc not in hidden)
        self.total = sum(self.live)
        seen = [length for length, live in zip(self.lengths, self.live) if live]
        self.average = sum(seen) / max(len(seen), 1)

    def text(self, doc):
        return self.texts[doc]


class Passports(View):
    """`nodes` are dicts with any of FIELDS, each a text."""

    def __init__(self, nodes, hidden=()):
        super().__init__()
        self.field_lengths = [array("I") for _ in FIELDS]
        for doc, node in enumerate(nodes):
            packed, stems = defaultdict(int), set()
            for place, name in enumerate(FIELDS):
                terms = words.index_terms(node.get(name, ""))
                self.field_lengths[place].append(terms.length)
                stems.update(terms.stems)
                for term, count in terms.counts.items():
                    packed[term] |= min(count, 255) << 8 * place
            self.add(doc, packed, stems)
            self.live.append(doc not in hidden)
        self.total = sum(self.live)
        self.field_averages = [
            sum(n for n, live in zip(column, self.live) if live) / max(self.total, 1)
            for column in self.field_lengths
        ]
