"""How fast the engine is, and how its cost grows: python bench/speed.py [--sizes 1000,10000,50000] [--calls 200]

For each size, in a process of its own: generated notes (bodies of 100 to 300 words of a Zipf vocabulary, 100
branches, links between neighbours) are adopted, the forest is reindexed, then each read runs 20 times to warm up and
`--calls` times with different arguments. Printed: rates, p50 and p95 in milliseconds, peak memory; SQLite's FTS5 over
the same bodies in the same process beside the searches; and how much each p95 grew from size to size. Figures of
two machines cannot be compared; the ratios within a run can.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gardener  # noqa: E402
import vine  # noqa: E402

BRANCHES, BIG_BRANCH = 100, 3000


def vocabulary(rnd: random.Random) -> tuple[list[str], list[float]]:
    syllables = [c + v for c in "bcdfglmnprstv" for v in "aeiou"]
    made = {"".join(rnd.choices(syllables, k=rnd.randint(1, 4))) for _ in range(30_000)}
    words = sorted(made)
    rnd.shuffle(words)
    return words, [1 / (n + 20) for n in range(len(words))]


def write_notes(folder: Path, count: int, rnd: random.Random) -> list[str]:
    words, weights = vocabulary(rnd)
    for n in range(count):
        text = rnd.choices(words, weights, k=rnd.randint(100, 300))
        sentences = [" ".join(text[at : at + 12]).capitalize() + "." for at in range(0, len(text), 12)]
        place = folder / f"area-{n % BRANCHES}"
        place.mkdir(exist_ok=True)
        link = f"\n\nSee [the next one](note-{n + BRANCHES}.md).\n" if n + BRANCHES < count else "\n"
        body = " ".join(sentences[:6]) + "\n\n## More\n\n" + " ".join(sentences[6:])
        (place / f"note-{n}.md").write_text(f"# {' '.join(text[:4])} {n}\n\n{body}{link}")
    return words


def timed(call, arguments: list) -> dict[str, float]:
    for argument in arguments[:20]:
        call(argument)
    spans = []
    for argument in arguments[20:]:
        began = time.perf_counter()
        call(argument)
        spans.append((time.perf_counter() - began) * 1000)
    spans.sort()
    return {"p50": round(statistics.median(spans), 2), "p95": round(spans[int(len(spans) * 0.95)], 2)}


def one_size(count: int, calls: int) -> dict:
    rnd = random.Random(count)
    with tempfile.TemporaryDirectory() as scratch:
        source, root = Path(scratch) / "notes", Path(scratch) / "forest"
        source.mkdir()
        words = write_notes(source, count, rnd)
        vine.init(root)
        engine = vine.Vine(root)
        began = time.perf_counter()
        gardener.adopt(engine, source)
        result: dict = {"nodes": count, "adopt_per_s": round(count / (time.perf_counter() - began))}
        command = [sys.executable, "-m", "cli", "--forest", str(root), "--json", "reindex"]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=Path(vine.__file__).parent).stdout
        result["reindex_per_s"] = round(1000 * count / json.loads(told)["ms"])
        result |= reads(engine, words, count, calls + 20, rnd)
        result |= fts5(root, words, calls + 20, rnd)
        result |= plants(engine)
        result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        engine.close()
    return result


def reads(engine: vine.Vine, words: list[str], count: int, calls: int, rnd: random.Random) -> dict:
    ids = [f"area-{n % BRANCHES}/note-{n}" for n in rnd.sample(range(count), min(calls, count))]
    some = [rnd.choices(words[:2000], k=3) for _ in range(calls)]
    long = [rnd.choices(words[:2000], k=6) for _ in range(calls)]

    def run(verb: str, **fixed):
        return lambda given: engine.call(verb, given | fixed)

    return {
        "look": timed(run("look"), [{"id": id} for id in ids]),
        "move": timed(run("move"), [{"id": id} for id in ids]),
        "pick": timed(run("pick"), [{"id": id} for id in ids]),
        "locate": timed(run("locate"), [{"query": " ".join(w)} for w in some]),
        "sniff": timed(run("sniff"), [{"terms": w[:1]} for w in some]),
        "sniff phrase": timed(run("sniff"), [{"terms": f"{w[0]} {w[1]}"} for w in some]),
        "harvest": timed(run("harvest"), [{"query": " ".join(w)} for w in long]),
        "scan all": timed(
            run("scan", parent_id="_index", recursive=True), [{"limit": 1 + n % 50} for n in range(calls)]
        ),
    }


def fts5(root: Path, words: list[str], calls: int, rnd: random.Random) -> dict:
    """The same kind of question to FTS5 with its porter stemmer, best 10, over the same bodies, in memory."""
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE t USING fts5(body, tokenize = 'porter unicode61')")
    db.executemany("INSERT INTO t VALUES (?)", ((p.read_text(),) for p in root.glob("area-*/note-*.md")))
    asked = [" OR ".join(rnd.choices(words[:2000], k=6)) for _ in range(calls)]
    query = "SELECT rowid FROM t WHERE t MATCH ? ORDER BY bm25(t) LIMIT 10"
    return {"fts5, 6 words": timed(lambda text: db.execute(query, (text,)).fetchall(), asked)}


def plants(engine: vine.Vine) -> dict:
    """Milliseconds of a plant at the beginning of a branch and at its 2,000th leaf; looks at a branch of 3,000."""

    def node(id: str) -> dict:
        summary = "A leaf that was planted to see what a plant costs. It says nothing else."
        return {
            "id": id,
            "type": "note",
            "title": f"Leaf {id}",
            "summary": summary,
            "parent": "big/_index",
            "body": "Text. " * 50,
        }

    branch = node("big/_index") | {"type": "branch", "parent": "_index", "body": ""}
    engine.call("plant", {"node": branch})
    early = timed(lambda id: engine.call("plant", {"node": node(id)}), [f"big/a{n}" for n in range(60)])
    with engine.writing("bench") as tx:
        for n in range(1940):
            leaf = node(f"big/b{n}")
            tx.put(leaf["id"], {k: leaf[k] for k in ("type", "title", "summary")}, leaf["body"])
        tx.commit("many leaves")
    late = timed(lambda id: engine.call("plant", {"node": node(id)}), [f"big/c{n}" for n in range(60)])
    with engine.writing("bench") as tx:
        for n in range(BIG_BRANCH - 2060):
            leaf = node(f"big/d{n}")
            tx.put(leaf["id"], {k: leaf[k] for k in ("type", "title", "summary")}, leaf["body"])
        tx.commit("many leaves")
    big = [{"id": "big/_index"}] * 60
    return {
        "plant, leaf 20 to 60": early,
        "plant, leaf 2,020 to 2,060": late,
        "look, 3,000 children": timed(lambda given: engine.call("look", given), big),
        "move, 3,000 children": timed(lambda given: engine.call("move", given | {"rel": "children"}), big),
    }


def report(results: list[dict]) -> None:
    for key in results[0]:
        values = [result[key] for result in results]
        if isinstance(values[0], dict):
            shown = "   ".join(f"p50 {v['p50']:>8.2f}  p95 {v['p95']:>8.2f}" for v in values)
            steps = zip(values, values[1:])
            growth = "  growth of p95 " + ", ".join(f"{b['p95'] / max(a['p95'], 0.01):.1f}x" for a, b in steps)
            print(f"{key:28} {shown}{growth if len(values) > 1 else ''}")
        else:
            print(f"{key:28} " + "   ".join(f"{value:>26}" for value in values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,10000,50000", help="numbers of nodes, with commas")
    parser.add_argument("--calls", type=int, default=200, help="measured calls of each read")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one_size(given.one, given.calls)))
        return
    results = []
    for size in map(int, given.sizes.split(",")):
        command = [sys.executable, __file__, "--one", str(size), "--calls", str(given.calls)]
        results.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    report(results)


if __name__ == "__main__":
    main()
