"""Folding, terms and queries: what stands in a text, and what finds it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_index import Bodies, Passports

import ranking
import words

# A text, queries that find it, queries that do not.
FINDS = [
    ("Résumé", ["resume", "RÉSUMÉ", "resumes"], ["summary"]),
    ("Re\u0301sume\u0301", ["resume", "RÉSUMÉ", "resumes"], ["summary"]),
    ("Straße", ["strasse", "STRASSE"], ["strase"]),
    ("Łódź and Ørsted", ["lodz", "orsted"], []),
    ("e-mail", ["email", "mail", "e-mail", "e_mail", "emails"], ["emai"]),
    ("email", ["e-mail"], []),
    ("a state-of-the-art system", ["state of the art", "state-of-the-art", "stateoftheart"], []),
    ("snake_case_name", ["snake_case_name", "snakecasename", "snake case"], ["snak"]),
    ("1,250 units", ["1,250", "1250", "1250 unit"], ["12", "1,25", "125"]),
    ("l'amour", ["amour", "l’amour"], ["lam"]),
    ("the company's car", ["company", "companies", "company’s"], []),
    ("expenses", ["expense"], ["expend"]),
    ("expense", ["expenses"], ["expend"]),
    ("policies", ["policy"], []),
    ("policy", ["policies"], []),
    ("reimbursed", ["reimbursement"], []),
    ("reimbursement", ["reimbursed"], []),
    ("ＡＢＣ１２", ["abc12", "ABC12"], ["abc"]),
    ("INV-1045", ["INV-1045", "inv1045", "1045", "inv"], ["INV-104", "10450"]),
    (
        "parseHTTPResponse",
        ["parseHTTPResponse", "PARSEHTTPRESPONSE", "http", "response", "responses"],
        ["esponse"],
    ),
    ("Python 3.11", ["3.11"], ["311", "3.1"]),
    ("C++", ["C++", "c"], []),
    ("C#", ["C#", "c"], []),
    ("despesas", ["despesa"], []),
    ("книги", ["книга"], []),
    ("русский", ["РУССКИЙ", "русская"], []),
    ("東京都の経費", ["東京", "京都", "経費", "都"], ["京東"]),
    ("Bee", ["bees"], []),
    ("zero\u200bwidth soft\u00adhyphen", ["zerowidth", "softhyphen"], ["width"]),
    ("non\u2011breaking", ["non-breaking", "nonbreaking"], []),
]


def found(text, query):
    groups = words.query_terms(query)
    in_body = 0 in ranking.rank_bodies(Bodies([text, "something else"]), groups)
    in_title = 0 in ranking.rank_meta(Passports([{"title": text}, {"title": "something else"}]), groups)[0]
    assert in_body == in_title
    return in_body


@pytest.mark.parametrize(
    ("text", "query"), [(text, query) for text, queries, _ in FINDS for query in queries]
)
def test_found(text, query):
    assert found(text, query)


@pytest.mark.parametrize(
    ("text", "query"), [(text, query) for text, _, queries in FINDS for query in queries]
)
def test_not_found(text, query):
    assert not found(text, query)


# ------------------------------------------------------------------------------------------- stop words


def test_a_question_asks_for_its_telling_words_only():
    assert [group.forms[0] for group in words.query_terms("What is the policy, and who's in charge?")] == [
        "policy",
        "charge",
    ]
    assert [group.forms[0] for group in words.query_terms("qual é a política de férias?")] == [
        "politica",
        "ferias",
    ]
    assert [group.forms[0] for group in words.query_terms("¿Cuáles son las reglas?")] == ["reglas"]


def test_stop_words_are_left_out_even_when_the_other_word_matches_nothing():
    assert not found("what is the matter", "what is the zyzzyva")


def test_stop_words_alone_are_all_used():
    assert found("to be or not to be", "to be or not to be")


@pytest.mark.parametrize("query", ["", "  ", "?!", '"*-"', "\0", "🐒 ❤️", "\u0301", "ـ"])
def test_no_term_is_no_group(query):
    assert words.query_terms(query) == ()
    assert words.derived_terms(query) == []


def test_given_terms_join_the_query_once():
    assert [group.forms[0] for group in words.query_terms("leave policy", "policy", "the", "FMLA")] == [
        "leave",
        "policy",
        "fmla",
    ]


# ---------------------------------------------------------------------------------------- derived terms


def test_identifiers_come_first_and_keep_their_spelling():
    assert words.derived_terms("how do I fix the 421 from MCP") == ["421", "MCP"]
    assert words.derived_terms("does the invoice INV-1045 break session_recall in C++ or not") == [
        "INV-1045", "session_recall", "C++", "invoice", "break",
    ]  # fmt: skip


def test_derived_terms_are_few_and_differ():
    terms = words.derived_terms("Budget budget BUDGET " + " ".join(f"longword{c}" for c in "abcdefghijkl"))
    assert len(terms) == 8 and len({words.fold(term) for term in terms}) == 8


def test_derived_terms_of_scripts_without_blanks_are_short_stretches():
    assert words.derived_terms("経費精算の方法を教えて") == ["経費精算", "方法"]
    assert words.derived_terms("报销需要发票") == ["报销", "销需", "需要", "要发", "发票"]


# ------------------------------------------------------------------------------------------- properties

SPECIAL = (
    "aBcé\u0301\u0300-_.'’+#, \n\u200d東京かが\u3099กำИйъ12ßİıæ"
    "\u05d0\u05be\u05c3\u0640\u0345\u1100\u1161\ufe0f\u0915\u094d"
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(SPECIAL), max_size=40)


def test_folding_twice_changes_no_character():
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    once = [words.fold(char) for char in characters]
    assert [words.fold(text) for text in once] == once


@given(TEXTS)
def test_folding_twice_changes_no_text(text):
    assert words.fold(words.fold(text)) == words.fold(text)


@given(TEXTS)
def test_a_text_is_found_by_itself(text):
    terms = words.index_terms(text)
    stems = {stem for _, stem in terms.stems}
    for group in words.query_terms(text):
        for one in (group, *group.parts):
            assert any(form in terms.counts or words.DERIVED + form in terms.counts for form in one.forms)
            assert stems.issuperset(one.stems)


@given(TEXTS, st.data())
def test_the_plain_vocabulary_answers_literal_search(text, data):
    folded = words.fold(text)
    start = data.draw(st.integers(0, len(folded)))
    term = folded[start : start + data.draw(st.integers(1, 6))]
    if not term or words.fold(term) != term:
        return
    plain = {
        word: n for word, n in words.index_terms(text).counts.items() if not word.startswith(words.DERIVED)
    }
    asked = words.pieces(term)
    assert all(any(piece in word for word in plain) for piece in asked.inside)
    assert plain.keys() >= set(asked.terms)
    if asked.exact:
        holders = {term: plain[term]} if asked.terms else plain
        assert sum(n * _occurrences(word, term) for word, n in holders.items()) == _occurrences(folded, term)


def _occurrences(text, term):
    return sum(text.startswith(term, at) for at in range(len(text)))


@given(TEXTS)
def test_derived_terms_stand_in_the_query(text):
    assert all(words.fold(term) in words.fold(text) for term in words.derived_terms(text))


# ---------------------------------------------------------------------------------------- literal search


def test_literal_makes_one_blank_of_a_run():
    assert words.literal("Two\t \u00a0Words") == "two words"


def test_a_word_answers_alone_and_a_phrase_does_not():
    assert words.pieces("esponse") == words.Pieces(("esponse",), (), True)
    assert words.pieces("東京") == words.Pieces((), ("東京",), True)
    assert words.pieces("東京都") == words.Pieces((), ("東京", "京都"), False)
    assert words.pieces("max_retry count") == words.Pieces(("max", "retry", "count"), (), False)
    assert words.pieces("->") == words.Pieces((), (), False)


def test_length_counts_words_and_characters_of_pair_scripts():
    assert words.index_terms("one e-mail, 経費").length == 5


def test_places_are_whole_words():
    assert words.places("art, part of art", "art") == [0, 13]
    assert words.places("東京都", "京都") == [1]
