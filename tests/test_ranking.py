"""Ranking: preferences other things equal, statistics of what is visible, the second look, the fusion."""

import random

import pytest
from memory_index import Bodies, Passports

import ranking
import words

FILL = [f"filler{n} text about nothing" for n in range(20)]


def order(texts, query, hidden=()):
    scores = ranking.rank_bodies(Bodies(texts, hidden), words.query_terms(query))
    return sorted(scores, key=lambda doc: (-scores[doc], doc))


def titles(texts, query):
    scores, _ = ranking.rank_meta(Passports([{"title": text} for text in texts]), words.query_terms(query))
    return sorted(scores, key=lambda doc: (-scores[doc], doc))


# ------------------------------------------------------------------------------------------ preferences


@pytest.mark.parametrize("ranked", [order, titles])
@pytest.mark.parametrize(
    ("query", "better", "worse"),
    [
        ("expense", "expense form", "expenses form"),
        ("response", "response code", "parseHTTPResponse code"),
        ("3.11", "python 3.11", "python 3 and 11"),
        ("C++", "C++ builds", "C# builds"),
        ("C#", "C# builds", "C++ builds"),
        ("e-mail", "our e-mail rules", "our mail rules only"),
        ("session-recall", "fix session-recall now", "fix recall session now"),
        ("session-recall", "session then recall works", "session then nothing works"),
        ("parseHTTPResponse", "parseHTTPResponse fails", "http fails"),
    ],
)
def test_better_match_first(ranked, query, better, worse):
    assert ranked([*FILL, worse, better], query)[:2] == [21, 20]
    assert ranked([*FILL, better, worse], query)[:2] == [20, 21]


def test_half_a_compound_counts_less_than_a_whole_word():
    assert order([*FILL, "session works", "budget works"], "session-recall budget")[:2] == [21, 20]


def test_a_compound_with_digits_needs_all_its_parts():
    assert order(["code INV only", "INV then 1045", "number 1045"], "INV-1045") == [1]


def test_a_term_in_most_documents_still_counts():
    scores = ranking.rank_bodies(Bodies(["bee"] * 6 + ["ant"] * 4), words.query_terms("bee"))
    assert len(scores) == 6 and min(scores.values()) > 0


def test_rare_words_weigh_more_than_common_ones():
    texts = ["budget report"] * 15 + ["budget zebra", "report zebra", "zebra", "budget"]
    assert set(order(texts, "budget zebra")[:3]) == {15, 16, 17}


def test_title_outweighs_alias_tag_and_summary():
    other = [{"title": f"page {n}", "aliases": "one", "tags": "two", "summary": "three"} for n in range(20)]
    fields = ["summary", "tags", "aliases", "title"]
    nodes = [
        {"title": "x", "aliases": "x", "tags": "x", "summary": "x"} | {name: "parking"} for name in fields
    ]
    scores, _ = ranking.rank_meta(Passports(other + nodes), words.query_terms("parking"))
    assert sorted(scores, key=scores.get) == [20, 21, 22, 23]


# ------------------------------------------------------------------------------------------- visibility


def corpus(seed, count, size):
    rng = random.Random(seed)
    vocabulary = [f"{a}{b}{c}" for a in "bdfglmnprst" for b in "aeiou" for c in ("ra", "to", "mi", "sel")]
    weights = [1 / (n + 2) for n in range(len(vocabulary))]
    return [" ".join(rng.choices(vocabulary, weights, k=rng.randint(size // 2, size))) for _ in range(count)]


@pytest.mark.parametrize("size", [60, 900])
def test_hidden_documents_change_nothing(size):
    texts = corpus(1, 60, size)
    hidden = set(range(0, 60, 3))
    seen = [doc for doc in range(60) if doc not in hidden]
    groups = words.query_terms(" ".join(texts[3].split()[:8]))
    with_them = ranking.rank_bodies(Bodies(texts, hidden), groups)
    without = ranking.rank_bodies(Bodies([texts[doc] for doc in seen]), groups)
    assert with_them == {seen[doc]: score for doc, score in without.items()}
    nodes = [{"title": text[:30], "summary": text[30:99]} for text in texts]
    with_them = ranking.rank_meta(Passports(nodes, hidden), groups)
    without = ranking.rank_meta(Passports([nodes[doc] for doc in seen]), groups)
    assert with_them == tuple({seen[doc]: value for doc, value in part.items()} for part in without)


# --------------------------------------------------------------------------------------- the second look


def test_common_words_are_spared_only_where_it_cannot_show(monkeypatch):
    texts = corpus(2, 400, 60)
    queries = [" ".join(text.split()[:6]) for text in texts[:40]]
    index = Bodies(texts)
    monkeypatch.setattr(ranking, "FEEDBACK", 0.0)

    def best(scores):
        return [(doc, scores[doc]) for doc in sorted(scores, key=lambda doc: (-scores[doc], doc))[:20]]

    quick = [ranking.rank_bodies(index, words.query_terms(query)) for query in queries]
    monkeypatch.setattr(ranking, "CONTENDERS", len(texts))
    full = [ranking.rank_bodies(index, words.query_terms(query)) for query in queries]
    assert quick != full, "the corpus is too small to spare anything"
    assert list(map(best, quick)) == list(map(best, full))


def test_feedback_finds_the_subject_beyond_the_query():
    subject = "wing flutter aeroelastic vibration damping"
    texts = [f"flutter {subject} tunnel {n}" for n in range(4)]
    texts += ["aeroelastic vibration damping of a wing", "flutter of a banner in the wind"]
    texts += [f"cooking pasta with sauce {n} and cheese" for n in range(30)]
    assert order(texts, "flutter")[:5] == [0, 1, 2, 3, 4]


def test_long_texts_give_no_foreign_terms_and_one_place_decides():
    rng = random.Random(4)
    noise = [f"noise{n}" for n in range(400)]

    def long_text(*inserts):
        parts = rng.choices(noise, k=900)
        for place, insert in inserts:
            parts.insert(place, insert)
        return " ".join(parts)

    scattered = long_text((10, "violin"), (400, "lesson"), (880, "thursday"))
    together = long_text((500, "violin lesson on thursday"))
    others = [long_text() for _ in range(20)]
    found = order([scattered, together, *others], "when is the violin lesson on thursday")
    assert found == [1, 0]


def test_same_state_same_ranking():
    texts = corpus(5, 80, 50)
    query = " ".join(texts[7].split()[:5])
    assert order(texts, query) == order(texts, query)


# ------------------------------------------------------------------------------------------------ fusion


def test_strengths_are_shares_of_the_best():
    assert ranking.strengths({1: 4.0, 2: 1.0}) == {1: 1.0, 2: 0.25}
    assert ranking.strengths({}) == {}


def test_an_exact_name_stays_ahead_of_any_heat():
    strengths = ranking.strengths({1: 9.0, 2: 3.0, 3: 0.5}, [3])
    assert strengths[3] == 1.0
    assert strengths[3] > strengths[1] * (1 + ranking.HEAT)


def test_coverage_is_the_share_of_the_query():
    nodes = [
        {"title": "parking permit"},
        {"title": "parking"},
        {"title": "permit office"},
        {"title": "garden"},
    ]
    _, coverage = ranking.rank_meta(Passports(nodes), words.query_terms("parking permit"))
    assert coverage[0] == pytest.approx(1.0) and 0 < coverage[1] < 1 and 3 not in coverage


IDS = ["a", "b", "c", "d"]


def test_best_in_both_shows_the_full_score():
    assert ranking.fuse({0: 1.0}, {0: 1.0}, {0: 1.0}, {}, {}, IDS) == [(0, 0.0328)]


def test_weak_metadata_do_not_drown_a_strong_body():
    assert ranking.fuse({0: 1.0}, {0: 0.45}, {1: 1.0, 0: 0.6}, {}, {}, IDS)[0][0] == 1


def test_a_title_that_is_the_question_lifts_a_good_body():
    assert ranking.fuse({0: 1.0, 1: 0.2}, {0: 1.0, 1: 0.3}, {1: 1.0, 0: 0.8}, {}, {}, IDS)[0][0] == 0


def test_literal_terms_first_then_score_then_id():
    bodies = {0: 1.0, 1: 0.5, 2: 0.5, 3: 0.1}
    assert [doc for doc, _ in ranking.fuse({}, {}, bodies, {}, {3: 2, 1: 1}, IDS)] == [3, 1, 0, 2]
    assert [doc for doc, _ in ranking.fuse({}, {}, bodies, {}, {}, IDS)] == [0, 1, 2, 3]


def test_heat_raises_a_little():
    assert [doc for doc, _ in ranking.fuse({}, {}, {0: 0.9, 1: 0.8}, {1: 1.0}, {}, IDS)] == [1, 0]
    assert [doc for doc, _ in ranking.fuse({}, {}, {0: 0.9, 1: 0.5}, {1: 1.0}, {}, IDS)] == [0, 1]


@pytest.mark.parametrize("limit", [1, 2, 3, 9])
def test_a_limit_cuts_the_order_and_nothing_else(limit):
    bodies = {0: 0.5, 1: 0.9, 2: 0.50001, 3: 0.5}
    whole = ranking.fuse({2: 0.4}, {2: 0.1}, bodies, {3: 0.01}, {}, IDS)
    assert ranking.fuse({2: 0.4}, {2: 0.1}, bodies, {3: 0.01}, {}, IDS, limit) == whole[:limit]
