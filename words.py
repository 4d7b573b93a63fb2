"""Text to terms: folding, words, compounds, stems, and what a query or a literal search asks for.

Owns: the one folding that both sides of every search use, the terms that a text puts into the index, the
groups of terms that a query looks for, the stop words, the pieces of a literal search.
Must never: see a catalog, a node or a file; rank anything.

Sections: folding · tokens · stems · terms of a text · groups of a query · literal search.

Invariants
- `fold` is idempotent and never fails; every comparison of texts is between folded texts.
- Surface words are stored plain, everything that is computed from them carries the prefix DERIVED. So the
  plain vocabulary is exactly what stands in the text: for scripts with blanks between words, its words are
  the longest runs of word characters of the folded text (a run starts with a letter or digit and goes on with
  letters, digits and marks). A literal search for such a run can therefore be answered from the vocabulary: a
  text holds the term as often as its words do, each word counted by its frequency.
- Han, kana, Hangul, Thai, Lao, Khmer and Myanmar have no blanks to rely on. Their runs ("pair scripts") are
  stored as each character and each pair of neighbours, plain too; a run of mixed scripts is cut where the
  kind changes.
- The same token gives the same terms in a text and in a query.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import pairwise
from threading import Lock
from typing import NamedTuple

import Stemmer

DERIVED = "\x01"  # no text that was folded from a node can start a word with it, so the two kinds never meet
LONGEST_DERIVED = 120  # characters; a longer compound is data (a key, a path), nobody types it as one word
LONGEST_STEM = 40  # characters; no word of a language is longer, and stemmers are slow on long strings

# --------------------------------------------------------------------------------------------- folding

_DASHES = re.compile(
    "[\u058a\u05be\u1400\u1806\u2010-\u2015\u2043\u2053\u207b\u208b\u2212\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u2e5d"
    "\u301c\u3030\u30a0\ufe31\ufe32\ufe58\ufe63\uff0d\U00010ead]"
)
# Soft hyphen, zero-width and direction characters, variation selectors, and Hebrew signs between the points.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u05c0\u05c3\u05c6\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\U000e0100-\U000e01ef]"
)
_STRIPPED = re.compile("[\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670\u0640]")
# Marks act on the character before them, so a stretch takes one ASCII character along and then stands for
# itself.
_BEYOND_ASCII = re.compile("[\x00-\x7f]?[^\x00-\x7f]+")
_SPELT_OUT = {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i"}
_SPELT = re.compile(f"[{''.join(_SPELT_OUT)}]")


def fold(text: str) -> str:
    """The form in which texts are compared: no case, no accents, one kind of dash, no compatibility forms."""
    return text.lower() if text.isascii() else _BEYOND_ASCII.sub(_fold_stretch, text).lower()


def _fold_stretch(found: re.Match) -> str:
    return _fold_short(found[0]) if len(found[0]) <= 40 else _finish(_prepare(found[0]))


@lru_cache(maxsize=1 << 14)
def _fold_short(stretch: str) -> str:
    return _finish(_prepare(stretch))


def _prepare(text: str) -> str:
    """The part of folding that keeps case, which inner capitals are read from."""
    if text.isascii():
        return text
    text = text.replace("\u0345", "\u03b9")  # the one mark that folding makes a letter of
    return unicodedata.normalize("NFKC", _DASHES.sub("-", _INVISIBLE.sub("", text)))


def _finish(prepared: str) -> str:
    if prepared.isascii():
        return prepared.lower()
    decomposed = unicodedata.normalize("NFD", prepared.casefold())
    composed = unicodedata.normalize("NFC", _STRIPPED.sub("", decomposed))
    return _SPELT.sub(lambda letter: _SPELT_OUT[letter[0]], composed).lower()  # Cherokee folds to capitals


# ---------------------------------------------------------------------------------------------- tokens

_PAIR_CHARS = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b"
    "\u3041-\u30ff\u3131-\u318e\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\ua9e0-\ua9ff\uaa60-\uaa7f"
    "\uac00-\ud7ff\uf900-\ufaff\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
)
_PAIR = re.compile(f"[{_PAIR_CHARS}]")
_BY_KIND = re.compile(f"[{_PAIR_CHARS}]+|[^{_PAIR_CHARS}]+")
# Within pair scripts: the stretches that carry meaning by themselves, hiragana (mostly grammar) left out.
_STRETCHES = re.compile(
    "[\u3005-\u3007\u3021-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+|[\u30a1-\u30ff]+"
    "|[\u1100-\u11ff\u3131-\u318e\ua960-\ua97f\uac00-\ud7ff]+|[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]+"
)
_SHAPES = re.compile("l(?=U)|U(?=Ul)")


class _Patterns(NamedTuple):
    run: re.Pattern  # a word
    token: re.Pattern  # a word or compound as written


def _patterns_for(run: str) -> _Patterns:
    joiner = r"(?:[-_.'’]|(?<=\d),(?=\d))"
    return _Patterns(re.compile(run), re.compile(rf"{run}(?:{joiner}{run})*(?:(?<=[A-Za-z])[+#]+)?"))


_ASCII = _patterns_for("[A-Za-z0-9]+")


@cache
def _unicode() -> _Patterns:
    """The same for all scripts. Made at first need: finding the marks takes some milliseconds."""
    ranges: list[list[int]] = []
    closed = True
    for code in range(0x300, 0x1F000):
        category = unicodedata.category(chr(code))[0]
        if category != "M":
            # Letters between two marks belong to the run anyway, and few long ranges make a fast pattern.
            closed = closed or category not in "LNC"
        elif closed:
            ranges.append([code, code])
            closed = False
        else:
            ranges[-1][1] = code
    marks = "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)
    return _patterns_for(rf"[^\W_]+(?:[{marks}]+[^\W_]*)*")


def _patterns(text: str) -> _Patterns:
    return _ASCII if text.isascii() else _unicode()


def _units(token: str) -> Iterator[tuple[str, bool]]:
    """Cut a token where the kind of script changes: (text, is it of a pair script)."""
    if token.isascii() or not _PAIR.search(token):
        yield token, False
        return
    for piece in _BY_KIND.findall(token):
        if _PAIR.match(piece):
            yield piece, True
        else:
            yield from ((part, False) for part in _patterns(piece).token.findall(piece))


def _pairs(run: str) -> list[str]:
    return [a + b for a, b in pairwise(run)]


def _camel_parts(run: str) -> list[str]:
    """`parseHTTPResponse` -> parse, HTTP, Response; an empty list for a word without inner capitals."""
    if run[1:].islower() or run.islower() or run.isupper():
        return []
    shape = "".join("U" if char.isupper() else "l" if char.islower() else "-" for char in run)
    cuts = [0, *(found.end() for found in _SHAPES.finditer(shape)), len(run)]
    return [run[start:end] for start, end in pairwise(cuts)] if len(cuts) > 2 else []


def _compound_forms(unit: str, runs: list[str]) -> list[str]:
    """Whole form and joined form of a compound, folded; an empty list for a plain word."""
    if unit == runs[0] or len(unit) > LONGEST_DERIVED:
        return []
    whole = _finish(unit).replace("’", "'")
    if len(runs) == 1 or re.fullmatch(r"[\d.]+", whole):
        return [whole]
    return [whole, "".join(map(_finish, runs)) + whole[len(whole.rstrip("+#")) :]]


# ----------------------------------------------------------------------------------------------- stems

_stemmers = {language: Stemmer.Stemmer(language) for language in ("english", "russian")}
_stemmers_lock = Lock()  # a stemmer keeps the word it works on in itself


@lru_cache(maxsize=1 << 16)
def stem(run: str) -> str | None:
    """The stem of one word, or None where words have none.

    Latin words of three letters or more give the English stem of the folded word. Cyrillic words give the
    Russian stem, so they must come unfolded: folding takes away й. Case never matters.
    """
    folded = _finish(run)
    if not 3 <= len(folded) <= LONGEST_STEM or not folded.isalpha():
        return None
    if max(folded) < "\u0250":
        language, word = "english", folded
    elif min(folded) >= "\u0400" and max(folded) < "\u0530":
        language, word = "russian", run.casefold()
    else:
        return None
    with _stemmers_lock:
        return _stemmers[language].stemWord(word)


# ------------------------------------------------------------------------------------ terms of a text


class Terms(NamedTuple):
    """What one text puts into the index."""

    counts: dict[str, int]  # term -> frequency
    length: int  # words, and characters of pair scripts
    stems: list[tuple[str, str]]  # (term, stem) for the vocabulary; a term may come with two stems


class _Parsed(NamedTuple):
    """The terms of one token."""

    terms: tuple[str, ...]
    length: int
    stems: tuple[tuple[str, str], ...]


_NOTHING = Terms({}, 0, [])
_MOST_KNOWN = 1 << 17
# chunk of text between blanks -> its only term, or all of _Parsed; and its stems. Whole texts are looked up in it
# by C loops, which makes this the difference between indexing hundreds and thousands of texts a second.
_known: tuple[dict[str, str | _Parsed], dict[str, tuple]] = ({}, {})


def index_terms(text: str, told: set[str] | None = None) -> Terms:
    """All terms of a body or of one metadata field.

    `told` names the chunks of text whose stems the caller has already: their stems are left out, and new chunks
    are added.
    """
    if not text:
        return _NOTHING
    chunks = _prepare(text).split()  # no token reaches over a blank
    distinct = set(chunks)
    long = [chunk for chunk in distinct if len(chunk) > LONGEST_DERIVED]
    if long:
        return _with_long_chunks(chunks, told)
    known, stems_of = _learned(distinct)
    counts: Counter = Counter(map(known.__getitem__, chunks))
    length = len(chunks)
    for parsed in [key for key in counts if key.__class__ is not str]:
        times = counts.pop(parsed)
        length += (parsed.length - 1) * times
        for term in parsed.terms:
            counts[term] += times
    fresh = distinct if told is None else distinct - told
    if told is not None:
        told |= fresh
    return Terms(counts, length, [pair for chunk in fresh for pair in stems_of[chunk]])


def _with_long_chunks(chunks: list[str], told: set[str] | None) -> Terms:
    """Long chunks (addresses, data, text of a script without blanks) hardly come twice: they are not remembered."""
    counts, length, stems = index_terms(" ".join(c for c in chunks if len(c) <= LONGEST_DERIVED), told)
    counts = Counter(counts)
    for chunk in chunks:
        if len(chunk) > LONGEST_DERIVED:
            parsed = _parse_chunk(chunk)
            counts.update(parsed.terms)
            length += parsed.length
            stems = stems + list(parsed.stems)
    return Terms(counts, length, stems)


def _learned(chunks: set[str]) -> tuple[dict[str, str | _Parsed], dict[str, tuple]]:
    """The two dictionaries with all of `chunks` in them. They are replaced when they have grown too large, never
    emptied, so that other threads keep theirs; a text of much data gets a pair of its own."""
    global _known
    new = chunks.difference(_known[0])
    if len(new) > _MOST_KNOWN // 8:
        known: tuple[dict, dict] = ({}, {})
        new = chunks
    elif len(_known[0]) + len(new) > _MOST_KNOWN:
        known = _known = ({}, {})
        new = chunks
    else:
        known = _known
    for chunk in new:
        parsed = _parse_chunk(chunk)
        known[1][chunk] = parsed.stems
        known[0][chunk] = parsed.terms[0] if len(parsed.terms) == parsed.length == 1 else parsed
    return known


def _parse_chunk(chunk: str) -> _Parsed:
    tokens = _patterns(chunk).token.findall(chunk)
    if len(tokens) == 1:
        return _parse(tokens[0])
    parsed = [_parse(token) for token in tokens]
    terms = tuple(term for one in parsed for term in one.terms)
    return _Parsed(terms, sum(one.length for one in parsed), tuple(pair for one in parsed for pair in one.stems))


def _parse(token: str) -> _Parsed:
    terms: list[str] = []
    stems: list[tuple[str, str]] = []
    length = 0

    def add(term: str, run: str) -> None:
        terms.append(term)
        if found := stem(run):
            stems.append((term, found))

    for unit, paired in _units(token):
        if paired:
            folded = _finish(unit)
            terms += [*folded, *_pairs(folded)]
            length += len(folded)
            continue
        runs = [run for run in _patterns(unit).run.findall(unit) if _finish(run)]
        length += len(runs)
        for run in runs:
            add(_finish(run), run)
            for part in _camel_parts(run):
                add(DERIVED + _finish(part), part)
        for form in _compound_forms(unit, runs) if runs else ():
            add(DERIVED + form, form)
    return _Parsed(tuple(terms), length, tuple(stems))


# --------------------------------------------------------------------------------- groups of a query

# Articles, pronouns, prepositions, conjunctions, auxiliaries and question words, folded.
_ENGLISH = """
a an the i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself
she her hers herself it its itself they them their theirs themselves one someone anyone everyone something
anything this that these those each every either neither both some any all such same other another of in on at
by for from to into onto upon with within without about against between among through during before after
above below over under across along around behind beside besides beyond despite except inside outside near per
since than toward towards until till via as like and or but nor so yet if because although though unless while
whereas whether am is are was were be been being do does did doing done have has had having can could may
might must shall should will would ought cannot not no there here what which who whom whose when where why how
whatever whichever whoever whenever wherever however dont doesnt didnt isnt arent wasnt werent cant couldnt
wont wouldnt shouldnt havent hasnt hadnt im ive ill youre whats
"""
_PORTUGUESE = """
o os a as um uma uns umas eu tu ele ela nos vos eles elas voce voces me te se lhe lhes meu minha meus minhas
teu tua teus tuas seu sua seus suas nosso nossa nossos nossas este esta estes estas esse essa esses essas
aquele aquela aqueles aquelas isto isso aquilo dele dela deles delas de do da dos das em no na nos nas por
pelo pela pelos pelas para pra com sem sob sobre entre ate desde apos ante contra perante ao aos num numa nuns
numas e ou mas nem porque pois que se embora enquanto portanto como sou es e somos sao era eram fui foi foram
ser sendo sido estou esta estamos estao estava estavam estar tenho tem temos tinha ter havia haver ha vou vai
vamos vao ir pode podem posso podemos deve devem devo qual quais quem quando onde quanto quanta quantos
quantas porque nao sim
"""
_SPANISH = """
el la los las lo un una unos unas yo tu usted ustedes ella ello nosotros nosotras vosotros ellos ellas me te
se le les nos os mi mis tu tus su sus nuestro nuestra nuestros nuestras vuestro vuestra este esta estos estas
ese esa esos esas aquel aquella aquellos aquellas esto eso aquello de del al a en por para con sin sobre entre
hasta desde hacia segun ante bajo contra tras durante mediante y e o u pero sino ni que si porque aunque
mientras como pues soy eres es somos son era eran fue fueron ser siendo sido estoy estas esta estamos estan
estaba estaban estar he ha hemos han habia haber hay tengo tiene tienen tenia tener puedo puede pueden podemos
debo debe deben voy va vamos van cual cuales quien quienes cuando donde cuanto cuanta cuantos cuantas no
"""
# Words that say little about a subject, but can: light verbs, words of degree and of time. They count for less.
_LIGHT = """
get gets getting got go goes going gone went come comes coming came want wants wanted need needs needed know knows known
knew see sees seen saw look looks looking looked find finds finding found make makes making made take takes taking took
taken give gives giving given gave use uses using used put puts keep keeps kept let lets tell tells told ask asks asked
say says said think thinks thought try tries tried trying call calls called work works working worked help helps happen
happens happened mean means meant set sets seem seems show shows showed become becomes turn turns start starts started
stop stops please really still already just also even only ever never always often sometimes soon now then today way
ways thing things stuff lot lots kind sort bit time times day days people person place places part parts good best
better right big little long new old much many more most less least few enough very too well quite exactly first next
last able sure possible necessary different following various available important
fazer faz ter quero quer preciso precisa saber sei ver dizer usar ficar dar coisa coisas vez vezes dia dias pessoa
pessoas muito muita muitos muitas mais menos bem agora hoje ainda sempre nunca novo nova grande primeiro ultimo
hacer hace quiero quiere necesito necesita saber ver decir usar dar cosa cosas vez veces dia dias persona personas
mucho mucha muchos muchas mas menos bien ahora hoy todavia siempre nunca nuevo nueva gran primero ultimo
"""
LIGHT_WORDS = frozenset(_LIGHT.split())
STOP_WORDS = frozenset(f"{_ENGLISH} {_PORTUGUESE} {_SPANISH}".split())
_CONTRACTION = re.compile(r"([a-z]+?)(?:n't|'(?:s|t|d|m|ll|re|ve))")
_NEGATED = STOP_WORDS | {"ca", "wo", "sha", "need"}


class Group(NamedTuple):
    """One thing that a query asks for; it matches by any of its forms, or by its parts.

    `forms` are written without DERIVED: each may stand in the index plain or derived. `stems` name the
    vocabulary classes that match more weakly. `parts` is empty for a plain word; with `single` one part is
    enough (weaker still), without it all parts must be there.
    """

    forms: tuple[str, ...]
    stems: tuple[str, ...]
    parts: tuple[Group, ...] = ()
    single: bool = False

    @property
    def light(self) -> bool:
        """Whether this is a plain word that says little about a subject."""
        return not self.parts and self.forms[0] in LIGHT_WORDS

    @property
    def stopped(self) -> bool:
        word = self.forms[0]
        if word in STOP_WORDS:
            return True
        found = _CONTRACTION.fullmatch(word)
        return bool(found) and found[1] in _NEGATED


def query_terms(*texts: str) -> tuple[Group, ...]:
    """The groups of a query (and of further terms given with it), in order, each once.

    Stop words are left out unless there is nothing else. No group at all means: an empty result.
    """
    groups: dict[str, Group] = {}
    for text in texts:
        prepared = _prepare(text)
        for token in _patterns(prepared).token.findall(prepared):
            for group in _groups(token):
                groups.setdefault(group.forms[0], group)
    wanted = tuple(group for group in groups.values() if not group.stopped)
    return wanted or tuple(groups.values())


def _groups(token: str) -> Iterator[Group]:
    for unit, paired in _units(token):
        if paired:
            folded = _finish(unit)
            yield from (Group((term,), ()) for term in _pairs(folded) or [folded])
        elif runs := [run for run in _patterns(unit).run.findall(unit) if _finish(run)]:
            yield _group(unit, runs)


def _group(unit: str, runs: list[str]) -> Group:
    forms = _compound_forms(unit, runs) or [_finish(run) for run in runs]
    pieces = [part for run in runs for part in _camel_parts(run) or [run]]
    stems = tuple(filter(None, map(stem, [unit] if len(runs) == 1 else forms)))
    if pieces == [unit]:
        return Group(tuple(forms), stems)
    words = [_plain_group(piece) for piece in pieces]
    if any(char.isdecimal() for char in unit):
        return Group(tuple(forms), stems, tuple(words))
    telling = [word for word in words if len(word.forms[0]) > 1 and not word.stopped]
    return Group(tuple(forms), stems, tuple(telling or words), True)


def _plain_group(run: str) -> Group:
    found = stem(run)
    return Group((_finish(run),), (found,) if found else ())


def derived_terms(query: str, limit: int = 8) -> list[str]:
    """The literal terms that harvest takes from a query, as written: identifiers first, then longer words."""
    prepared = _prepare(query)
    marked: list[str] = []
    plain: list[str] = []
    for token in _patterns(prepared).token.findall(prepared):
        for unit, paired in _units(token):
            group = next(_groups(unit), None)
            if paired:
                plain += _pair_terms(unit)
            elif group is None or group.stopped:
                continue
            elif len(unit) >= 2 and _is_marked(unit):
                marked.append(unit)
            elif len(unit) >= 4:
                plain.append(unit)
    first: dict[str, str] = {}
    for term in marked + plain:
        first.setdefault(fold(term), term)
    return list(first.values())[:limit]


def _is_marked(unit: str) -> bool:
    """A digit, an inner joiner (or `++`), or capitals only."""
    joined = _patterns(unit).run.match(unit).end() < len(unit)
    return joined or unit.isupper() or any(char.isdecimal() for char in unit)


def _pair_terms(run: str) -> list[str]:
    stretches = _STRETCHES.findall(run) or [run]
    return [term for part in stretches if len(part) > 1 for term in ([part] if len(part) <= 4 else _pairs(part))]


# --------------------------------------------------------------------------------- literal search


def places(folded: str, term: str) -> list[int]:
    """Where a term stands in a folded text as a word of its own (anywhere, for pair scripts): character
    offsets."""
    found = []
    paired = bool(_PAIR.match(term))
    at = folded.find(term)
    while at >= 0:
        end = at + len(term)
        if paired or not (folded[at - 1 : at].isalnum() or folded[end : end + 1].isalnum()):
            found.append(at)
        at = folded.find(term, end)
    return found


def literal(text: str) -> str:
    """A line or a term as literal search compares it: folded, each run of blanks one blank."""
    return re.sub(r"\s+", " ", fold(text))


class Pieces(NamedTuple):
    """How the index helps to find a literal term.

    A text that holds the term has, for each of `inside`, a plain vocabulary word that contains it, and all of
    `terms` as plain terms of its own. When `exact` holds, the reverse is true as well, and the frequencies
    add up to the number of occurrences; otherwise the text itself must be read. Both empty: nothing narrows
    the search.
    """

    inside: tuple[str, ...]
    terms: tuple[str, ...]
    exact: bool


def pieces(term: str) -> Pieces:
    """The pieces of a term that `literal` has given."""
    inside: list[str] = []
    terms: list[str] = []
    for token in _patterns(term).token.findall(term):
        for unit, paired in _units(token):
            if paired:
                terms += _pairs(unit) or [unit]
            else:
                inside += _patterns(unit).run.findall(unit)
    return Pieces(tuple(inside), tuple(terms), inside + terms == [term])


def is_pair_script(text: str) -> bool:
    """Whether a term holds a character of a script that is searched by pairs."""
    return bool(_PAIR.search(text))
