"""Prints docs/verbs.md from the verb table: `python docs/reference.py > docs/verbs.md`.

A test compares the page with what this prints, so the two cannot drift apart.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from vine import VERBS, Param, Verb, harvest_limit  # noqa: E402

INTRO = """# The verbs

Written by `docs/reference.py` from the table in `vine.py`; edit that, not this page.

Over MCP every verb but `forests` also takes `forest`, the name of one forest, which is needed when a
server serves several. A verb that was refused answers `{"error": {"code", "message", "hint"}}`. Answers
are measured in cl100k_base tokens of their compact JSON and never pass the budget given here; one that
was cut says `truncated: true`. An integer outside its range is moved to the nearest limit.

| Verb | Does | Capability | Budget |
| --- | --- | --- | --- |"""


def _limits(param: Param) -> str:
    """The limits of a parameter in words."""
    parts = []
    if isinstance(param.choices, str):
        parts.append(
            {"types": "a node type of the forest", "rels": "an edge type of the forest"}[param.choices]
        )
    elif param.choices:
        parts.append("one of " + ", ".join(f"`{choice}`" for choice in param.choices))
    if param.kind == "integer":
        parts.append(f"{param.minimum} to {param.maximum if param.maximum > 0 else harvest_limit()}")
    if param.max_length:
        parts.append(f"at most {param.max_length:,} characters")
    if param.max_items:
        parts.append(f"at most {param.max_items} items")
    return "; ".join(parts)


def _kind(param: Param) -> str:
    kinds = {"id": "string", "strings": "list of strings", "terms": "string or list of strings"}
    return kinds.get(param.kind, param.kind)


def _budget(verb: Verb) -> str:
    return f"{verb.budget:,} tokens" if verb.budget else "none"


def _effect(verb: Verb) -> str:
    if verb.destructive:
        return "writes, and may replace what was there"
    return "writes" if verb.write else "reads"


def _section(verb: Verb) -> str:
    """One verb: what it does, then a table of its parameters."""
    lines = [f"## {verb.name}", "", f"{verb.title}. {verb.description}", "", f"It {_effect(verb)}."]
    if verb.params:
        lines += ["", "| Parameter | Type | Default | Limits | Meaning |", "| --- | --- | --- | --- | --- |"]
    for param in verb.params:
        default = "required" if param.required else f"`{json.dumps(param.default)}`"
        cells = [f"`{param.name}`", _kind(param), default, _limits(param), param.description]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    rows = [
        f"| [{verb.name}](#{verb.name}) | {verb.title} | {verb.capability or 'none'} | {_budget(verb)} |"
        for verb in VERBS.values()
    ]
    return "\n".join([INTRO, *rows, "", "\n\n".join(map(_section, VERBS.values()))]) + "\n"


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(page())
