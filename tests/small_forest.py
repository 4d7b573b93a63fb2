"""Small forests for tests of the primitives: node files written by hand, calls that check their budget."""

from __future__ import annotations

from pathlib import Path

import pytest

import forest
import vine

SCHEMA = {"type": "note", "title": "Forest dialect", "summary": "The types of this forest."}


def write(root: Path, id: str, body: str = "", **fields) -> Path:
    """Write one node file. Index files get the sections that the engine keeps, empty."""
    kind = "branch" if forest.is_branch_id(id) else "note"
    title = id.split("/")[-2 if id.endswith("/_index") else -1]
    known = {"id": id, "type": kind, "title": title, "summary": f"About {title}."}
    known |= {"created": "2026-01-02", "updated": "2026-03-04"} | fields
    if kind == "branch":
        body = forest.branch_body(body, known["title"], known["summary"], id == "_index")
    path = root / f"{id}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(forest.render_node(known, body))
    return path


def grown(root: Path, nodes: dict[str, str | dict]) -> Path:
    """A forest without a repository, for reading: {id: body or {"body": …, field: value}}."""
    write(root, "_index")
    write(root, "_meta/schema", forest.schema_body(), **SCHEMA)
    for id, told in nodes.items():
        told = {"body": told} if isinstance(told, str) else dict(told)
        for branch in forest.ancestors(id)[1:]:
            if branch not in nodes and not (root / f"{branch}.md").exists():
                write(root, branch)
        write(root, id, told.pop("body", ""), **told)
    return root


def planted(engine: vine.Vine, id: str, body: str = "", **fields) -> str:
    """Plant a node, and the branches above it that are missing; returns the commit."""
    for branch in forest.ancestors(id)[1:]:
        if not (engine.root / f"{branch}.md").exists():
            planted(engine, branch)
    kind = "branch" if forest.is_branch_id(id) else "note"
    node = {"id": id, "type": kind, "title": id, "summary": f"About {id}.", "parent": forest.parent_of(id)}
    return ask(engine, "plant", node=node | {"body": body} | fields)["commit"]


def tokens(answer) -> int:
    return forest.count_tokens(forest.dumps(answer))


def ask(engine: vine.Vine, verb: str, **args) -> dict:
    """Call as the operator; the answer must stay within the verb's budget."""
    return asked(engine, verb, args)


def asked(engine: vine.Vine, verb: str, args: dict, **how) -> dict:
    answer = engine.call(verb, args, **how)
    sent = {key: value for key, value in answer.items() if key != "data"}
    assert tokens(sent) <= vine.VERBS[verb].budget, (verb, args, tokens(sent))
    return answer


def refusal(engine: vine.Vine, verb: str, args: dict, **how) -> dict:
    """The envelope's inside of a call that must be refused; it must stay within 600 tokens."""
    with pytest.raises(forest.VineError) as caught:
        engine.call(verb, args, **how)
    envelope = caught.value.envelope()
    assert tokens(envelope) <= 600
    return envelope["error"]


def ids(answer: dict) -> list[str]:
    items = next(answer[key] for key in ("results", "nodes", "neighbors") if key in answer)
    return [item["id"] for item in items]
