"""`vine demo`: an example forest, three questions to it, and the story told as a page.

Owns: where the example folders lie, what is asked of them, how the answers are shown.
Must never: invent a figure. Every token count is measured on the very answer that an agent would get.

Sections: the example forest · the questions · the story.
"""

from __future__ import annotations

import textwrap
from contextlib import closing
from pathlib import Path

import gardener
from forest import count_tokens, dumps
from vine import Pool, Vine, init

# ---------------------------------------------------------------------------------- the example forest

FOLDERS = ("handbook", "garden")


def examples() -> Path:
    """The example folders: beside this file in a checkout, inside vine_data in an installed package."""
    here = Path(__file__).resolve().parent
    checkout = here / "forests" / "examples"
    return checkout if checkout.is_dir() else here / "vine_data" / "examples"


def grow(target: Path) -> dict:
    """Make a forest of the example folders at `target`; returns its path, its documents and their tokens."""
    init(
        target, title="Demo forest", summary="A company handbook and a garden notebook, to try searching on."
    )
    with closing(Vine(target)) as engine:
        for folder in FOLDERS:
            gardener.adopt(engine, str(examples() / folder), dest=folder)
    texts = [path.read_text("utf-8") for folder in FOLDERS for path in (examples() / folder).rglob("*.md")]
    return {"forest": str(target), "documents": len(texts), "tokens": sum(map(count_tokens, texts))}


# --------------------------------------------------------------------------------------- the questions

EXPENSES = "handbook/money/expenses"

# Each question with the calls of an agent that wants to know.
QUESTIONS: tuple[tuple[str, list[tuple[str, dict]]], ...] = (
    (
        "Do I need a receipt for a lunch of 30 euros?",
        [
            ("locate", {"query": "receipts for expenses and travel", "k": 3}),
            ("look", {"id": EXPENSES}),
            ("pick", {"id": EXPENSES, "section": "Receipts"}),
        ],
    ),
    ("A sensor shows E-17. May I restart it?", [("harvest", {"query": "sensor error E-17 restart", "k": 1})]),
    ("Quando devo semear os tomates?", [("harvest", {"query": "quando semear tomates", "k": 1})]),
)


def ask(target: Path) -> list[dict]:
    """Ask the forest everything; each question comes back with its calls, their answers and tokens."""
    asked = []
    with closing(Pool.single(target)) as pool:
        for question, calls in QUESTIONS:
            answers = [{"verb": verb, "args": args, "answer": pool.call(verb, args)} for verb, args in calls]
            for call in answers:
                call["tokens"] = count_tokens(dumps(call["answer"]))
            asked.append(
                {"question": question, "calls": answers, "tokens": sum(c["tokens"] for c in answers)}
            )
    return asked


# ------------------------------------------------------------------------------------------- the story

LINES_AROUND = 4


def story(facts: dict, columns: int) -> str:
    """The forest and each question with what came back, as a page of `columns` columns."""
    lines = [
        f"A forest of {facts['documents']} markdown files grew at {facts['forest']}",
        f"Read whole they are {facts['tokens']:,} tokens. This is what an agent reads instead.",
    ]
    for number, asked in enumerate(facts["questions"], 1):
        lines += ["", rule(f"{number}. {asked['question']}", columns)]
        for call in asked["calls"]:
            lines += ["", _call(call, columns), textwrap.indent(_excerpt(call, columns - 2), "  ")]
        lines += [
            "",
            f"{asked['tokens']:,} tokens read, {asked['tokens'] / facts['tokens']:.0%} of the whole.",
        ]
    return "\n".join(lines)


def rule(title: str, columns: int) -> str:
    """A heading with a line to the right edge."""
    return f"── {title} ".ljust(columns, "─")


def _call(call: dict, columns: int) -> str:
    args = ", ".join(f"{name}={dumps(value)}" for name, value in call["args"].items())
    text, count = f"▸ {call['verb']}({args})", f"  {call['tokens']:,} tokens"
    return text + count.rjust(columns - len(text))


def _excerpt(call: dict, columns: int) -> str:
    """The telling part of an answer; a long text is cut and says so."""
    answer = call["answer"]
    if call["verb"] == "locate":
        return "\n".join(_clipped(f"{hit['id']:<25} {hit['summary']}", columns) for hit in answer["results"])
    if call["verb"] == "look":
        return f"{_clipped(answer['summary'], columns)}\nsections: {' · '.join(answer['outline'])}"
    if call["verb"] == "pick":
        return answer["body"]
    return "\n".join(f"{hit['id']}\n{_around_match(hit)}" for hit in answer["results"])


def _around_match(hit: dict) -> str:
    """The lines of a harvested body round its best match."""
    body = hit["content"][0]["body"].splitlines()
    best = hit["matches"][0]["snippet"].strip("…")
    spot = next((number for number, line in enumerate(body) if best in line), 0)
    start, end = max(spot - LINES_AROUND, 0), min(spot + LINES_AROUND + 1, len(body))
    above = [f"… {start} more above"] if start else []
    below = [f"… {len(body) - end} more below"] if end < len(body) else []
    return "\n".join([*above, *body[start:end], *below])


def _clipped(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(room - 1, 0)].rstrip() + "…"
