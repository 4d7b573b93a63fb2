"""How good the answers are: python bench/retrieval.py CORPUS_DIR QUERIES.jsonl [--k 10] [--splits 2]

The markdown files of CORPUS_DIR are adopted into a fresh forest and each question is asked through the public
calls, so budgets count: a result that an answer had no room for is a miss. Beside locate and harvest stand
two yardsticks over the same whole files: bm25s (Lucene's formula, Snowball stems, English stop words) and
SQLite's FTS5 with its porter stemmer. Printed: mean nDCG and recall at k, nDCG for each of the interleaved
splits of the questions (a setting that was fitted to some of them shows there), and milliseconds a question.

A line of QUERIES.jsonl is {"query": text, "relevant": {file stem: gain}}. A node counts for the stem of the
file that it came from, else for the last segment of its id.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from math import log2
from pathlib import Path, PurePosixPath
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import bm25s
import Stemmer

import gardener
import vine
import words

Ask = Callable[[str, int], list[str]]  # question, k -> stems, best first

# -------------------------------------------------------------------------------------------- measures


def ndcg(found: list[str], relevant: dict[str, float], k: int) -> float:
    gained = sum(relevant.get(stem, 0) / log2(rank + 2) for rank, stem in enumerate(found[:k]))
    ideal = sorted(relevant.values(), reverse=True)[:k]
    return gained / sum(gain / log2(rank + 2) for rank, gain in enumerate(ideal))


def recall(found: list[str], relevant: dict[str, float], k: int) -> float:
    return sum(stem in relevant for stem in found[:k]) / len(relevant)


# --------------------------------------------------------------------------------- engines under test


def verbs_of(engine: vine.Vine, corpus: Path) -> dict[str, Ask]:
    gardener.adopt(engine, str(corpus))
    origins = {
        entry["id"]: PurePosixPath(entry["source_path"]).stem
        for entry in engine.sources()
        if "source_path" in entry
    }

    def ask(verb: str) -> Ask:
        def run(query: str, k: int) -> list[str]:
            results = engine.call(verb, {"query": query, "k": k})["results"]
            return [origins.get(item["id"], item["id"].rsplit("/", 1)[-1]) for item in results]

        return run

    return {"locate": ask("locate"), "harvest": ask("harvest")}


def bm25s_of(texts: dict[str, str]) -> Ask:
    stems, stemmer = list(texts), Stemmer.Stemmer("english")

    def tokens(batch: list[str]):
        return bm25s.tokenize(batch, stopwords="en", stemmer=stemmer.stemWords, show_progress=False)

    index = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    index.index(tokens(list(texts.values())), show_progress=False)

    def run(query: str, k: int) -> list[str]:
        found, _ = index.retrieve(tokens([query]), k=min(k, len(stems)), show_progress=False)
        return [stems[place] for place in found[0]]

    return run


def fts5_of(texts: dict[str, str]) -> Ask:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE notes USING fts5(stem UNINDEXED, body, tokenize = 'porter unicode61')")
    db.executemany("INSERT INTO notes VALUES (?, ?)", texts.items())

    def run(query: str, k: int) -> list[str]:
        wanted = " OR ".join(f'"{form}"' for group in words.query_terms(query) for form in group.forms)
        rows = db.execute(
            "SELECT stem FROM notes WHERE notes MATCH ? ORDER BY bm25(notes) LIMIT ?", (wanted, k)
        )
        return [stem for (stem,) in rows]

    return run


# ------------------------------------------------------------------------------------------------- run


def report(name: str, ask: Ask, questions: list[dict], k: int, splits: int) -> None:
    began = time.perf_counter()
    found = [ask(question["query"], k) for question in questions]
    spent = (time.perf_counter() - began) * 1000 / len(questions)
    gains = [ndcg(stems, question["relevant"], k) for stems, question in zip(found, questions)]
    held = [recall(stems, question["relevant"], k) for stems, question in zip(found, questions)]
    parts = " ".join(f"{fmean(gains[part::splits]):.3f}" for part in range(min(splits, len(gains))))
    print(
        f"{name:10} nDCG@{k} {fmean(gains):.4f} recall@{k} {fmean(held):.4f}  splits {parts}  {spent:.0f} ms",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="nDCG and recall of locate and harvest.")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("queries", type=Path)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--splits", type=int, default=2)
    options = parser.parse_args()
    questions = [json.loads(line) for line in options.queries.read_text("utf-8").splitlines() if line.strip()]
    texts = {path.stem: path.read_text("utf-8") for path in sorted(options.corpus.rglob("*.md"))}
    with tempfile.TemporaryDirectory() as scratch:
        vine.init(Path(scratch) / "forest")
        with closing(vine.Vine(Path(scratch) / "forest")) as engine:
            engines = verbs_of(engine, options.corpus.resolve()) | {
                "bm25s": bm25s_of(texts),
                "fts5": fts5_of(texts),
            }
            for name, ask in engines.items():
                report(name, ask, questions, options.k, options.splits)


if __name__ == "__main__":
    main()
