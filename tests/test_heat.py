"""Sessions, traces and heat, with a clock that tests move.

Sections: the clock · deposits · evaporation · sessions · close_session · traces.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from small_forest import ask, asked, grown, ids, planted, refusal

import forest
import vine
from trails import HALF_LIFE_DAYS, IDLE, Session
from vine import Pool, Vine

DAY = 86400
NODES = {
    "a/x": {"title": "Zebra", "body": "zebra"},
    "a/y": "lion",
    "a/b/z": "deep lion",
    "pic": {"title": "Picture zebra", "payload": "pic.png"},
}

# -------------------------------------------------------------------------------------------------- the clock


class Clock:
    """Stands still until a test moves it."""

    def __init__(self, monkeypatch):
        self.wall, self.steady = time.time(), time.monotonic()
        monkeypatch.setattr("trails.time.time", lambda: self.wall)
        self.patch = monkeypatch

    def sleep(self, seconds: float) -> None:
        self.wall += seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def engine(tmp_path):
    root = grown(tmp_path / "forest", NODES)
    (root / "pic.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with closing(Vine(root)) as engine:
        yield engine


def heat(engine, id: str, **how) -> float:
    return asked(engine, "look", {"id": id, "fields": ["stats"]}, **how)["stats"]["heat"]


def trace(engine, session: str | None = None) -> list[dict]:
    lines = (
        (engine.root / "_derived/traces" / f"{session or engine.session.id}.jsonl")
        .read_text("utf-8")
        .splitlines()
    )
    return [json.loads(line) for line in lines]


# --------------------------------------------------------------------------------------------------- deposits


def test_a_node_that_a_search_found_warms_once_when_it_is_picked(engine):
    assert "a/x" in ids(ask(engine, "locate", query="zebra"))
    for _ in range(100):
        ask(engine, "pick", id="a/x")
    assert heat(engine, "a/x") == 0.02
    ask(engine, "view", id="pic")
    assert heat(engine, "pic") == 0.02


@pytest.mark.parametrize("verb, args", [("sniff", {"terms": "zebra"}), ("harvest", {"query": "zebra"})])
def test_every_search_counts_as_finding(engine, verb, args):
    ask(engine, verb, **args)
    assert heat(engine, "a/x") == 0.0
    ask(engine, "pick", id="a/x", section="#1")
    assert heat(engine, "a/x") == 0.02


def test_nothing_else_deposits(engine):
    ask(engine, "pick", id="a/x")
    ask(engine, "locate", query="lion")
    ask(engine, "look", id="a/y")
    ask(engine, "move", id="a/y")
    ask(engine, "scan", parent_id="a/_index")
    ask(engine, "harvest", query="lion")
    engine.reindex()
    with pytest.raises(forest.VineError):
        engine.call("pick", {"id": "a/y", "section": "nope"})
    assert all(
        item["heat"] == 0.0
        for item in ask(engine, "scan", parent_id="_index", recursive=True, fields=["heat"])["nodes"]
    )


def test_what_was_dropped_to_fit_was_not_returned(tmp_path):
    nodes = {f"n{n:02}": {"title": "Zebra", "summary": "words " * 60} for n in range(20)}
    with closing(Vine(grown(tmp_path / "f", nodes))) as engine:
        shown = ids(ask(engine, "locate", query="zebra", k=20))
        dropped = next(id for id in nodes if id not in shown)
        ask(engine, "pick", id=dropped)
        assert heat(engine, dropped) == 0.0


def test_close_session_warms_answers_and_their_trails(engine):
    ask(engine, "close_session", success=True, answer_nodes=["a/x", "a/b/z"])
    assert heat(engine, "a/x") == heat(engine, "a/b/z") == heat(engine, "a/b/_index") == 0.1
    assert heat(engine, "a/_index") == heat(engine, "_index") == 0.2
    ask(engine, "close_session", success=False, answer_nodes=["a/x"])
    assert heat(engine, "a/x") == 0.1


def test_26_an_unknown_answer_deposits_nothing_and_leaves_the_session_open(engine):
    ask(engine, "look", id="a/x")
    error = refusal(engine, "close_session", {"success": True, "answer_nodes": ["a/x", "nope"]})
    assert error["message"] == "node not found: nope"
    assert heat(engine, "a/x") == 0.0
    assert ask(engine, "close_session", success=False)["metrics"]["calls"] == 2


def test_heat_stops_at_one(engine):
    for _ in range(12):
        ask(engine, "close_session", success=True, answer_nodes=["a/x"])
    assert heat(engine, "a/x") == heat(engine, "_index") == 1.0


def test_a_fortified_link_warms_both_ends_without_a_commit(tmp_path):
    vine.init(tmp_path / "f")
    with closing(Vine(tmp_path / "f")) as engine:
        planted(engine, "b")
        planted(engine, "a", links=[{"rel": "related-to", "target": "b"}])
        link = {"rel": "related-to", "target": "b"}
        answer = ask(engine, "graft", id="a", patch={"add_links": [link]})
        assert answer["commit"] is None and answer["fortified"] == [link]
        assert heat(engine, "a") == heat(engine, "b") == 0.1


def test_only_existing_nodes_gain_heat(tmp_path):
    vine.init(tmp_path / "f")
    with closing(Vine(tmp_path / "f")) as engine:
        planted(engine, "b")
        planted(engine, "a", links=[{"rel": "related-to", "target": "b"}])
        (engine.root / "b.md").unlink()
        engine.catalog.stale()
        ask(engine, "graft", id="a", patch={"add_links": [{"rel": "related-to", "target": "b"}]})
        planted(engine, "b")
        assert heat(engine, "b") == 0.0


# ------------------------------------------------------------------------------------------------ evaporation


def test_26_heat_halves_in_thirty_days_and_a_deposit_decays_first(engine, clock):
    engine.heat.deposit({"a/x": 0.5})
    clock.sleep(HALF_LIFE_DAYS * DAY)
    assert heat(engine, "a/x") == 0.25
    ask(engine, "close_session", success=True, answer_nodes=["a/x"])
    assert heat(engine, "a/x") == 0.35
    clock.sleep(HALF_LIFE_DAYS * DAY)
    assert heat(engine, "a/x") == 0.175


def test_dust_is_none_and_a_clock_that_runs_back_adds_nothing(engine, clock):
    engine.heat.deposit({"a/x": 0.02, "a/y": 0.5})
    clock.sleep(HALF_LIFE_DAYS * DAY)
    assert heat(engine, "a/x") == 0.01
    clock.sleep(1)
    assert heat(engine, "a/x") == 0.0
    clock.sleep(-99 * HALF_LIFE_DAYS * DAY)
    assert heat(engine, "a/y") == 0.5


def test_the_half_life_is_a_setting(engine, clock):
    (engine.root / "_meta/ranger.yaml").write_text("half_life_days: 1\n")
    engine.heat.deposit({"a/x": 0.8})
    clock.sleep(2 * DAY)
    assert heat(engine, "a/x") == 0.2
    (engine.root / "_meta/ranger.yaml").write_text("half_life_days: minus one\n")
    assert heat(engine, "a/x") == round(0.8 * 0.5 ** (2 / 30), 4)


def test_every_answer_shows_the_same_heat(engine, clock):
    engine.heat.deposit({"a/x": 0.123456})
    shown = {
        heat(engine, "a/x"),
        ask(engine, "locate", query="zebra", k=1)["results"][0]["heat"],
        ask(engine, "sniff", terms="zebra")["results"][0]["heat"],
        ask(engine, "scan", parent_id="a/_index", fields=["heat"])["nodes"][0]["heat"],
        ask(engine, "move", id="a/_index", rel="children", direction="in")["neighbors"][1]["heat"],
    }
    assert len(shown) == 2 and 0.1235 in shown and 0.0 in shown  # the branch a/b is the other child


def test_heat_is_stored_as_told_and_shared_with_other_processes(engine):
    ask(engine, "close_session", success=True, answer_nodes=["a/x"])
    with closing(sqlite3.connect(engine.root / "_derived/trails.db")) as db:
        rows = db.execute("SELECT node_id, heat, updated FROM heat WHERE node_id = 'a/x'").fetchall()
    assert [(id, value) for id, value, _ in rows] == [("a/x", 0.1)] and abs(rows[0][2] - time.time()) < 600
    closing_call = "call('close_session', {'success': True, 'answer_nodes': ['a/x']})"
    code = f"import sys, vine; vine.Vine(sys.argv[1]).{closing_call}"
    subprocess.run([sys.executable, "-c", code, engine.root], check=True, cwd=Path(vine.__file__).parent)
    assert heat(engine, "a/x") == 0.2


def test_a_heat_file_that_cannot_be_used_fails_no_call(tmp_path):
    root = grown(tmp_path / "f", NODES)
    (root / "_derived").mkdir()
    (root / "_derived/trails.db").write_bytes(b"this is no database at all, " * 50)
    with closing(Vine(root)) as engine:
        ask(engine, "close_session", success=True, answer_nodes=["a/x"])
        assert heat(engine, "a/x") == 0.1
    root = grown(tmp_path / "g", NODES)
    (root / "_derived/trails.db").mkdir(parents=True)
    (root / "_derived/traces").write_text("not a folder")
    with closing(Vine(root)) as engine:
        ask(engine, "locate", query="zebra")
        assert ask(engine, "pick", id="a/x")["body"] == "zebra"


# --------------------------------------------------------------------------------------------------- sessions


def test_a_session_ends_after_thirty_idle_minutes(engine, monkeypatch):
    steady = [time.monotonic()]
    monkeypatch.setattr("trails.time.monotonic", lambda: steady[0])
    ask(engine, "locate", query="zebra")
    first = engine.session.id
    steady[0] += IDLE - 1
    ask(engine, "look", id="a/x")
    assert engine.session.id == first
    steady[0] += IDLE + 1
    ask(engine, "pick", id="a/x")
    assert engine.session.id != first and heat(engine, "a/x") == 0.0
    assert [line["primitive"] for line in trace(engine, first)] == ["locate", "look"]


def test_ids_are_twelve_hex_characters_and_change_at_close(engine):
    first = engine.session.id
    report = ask(engine, "close_session", success=False)
    assert re.fullmatch("[0-9a-f]{12}", first) and report["session"] == first
    assert engine.session.id != first


def test_sessions_of_clients_never_mix(engine):
    one, two = Session(engine.root), Session(engine.root)
    asked(engine, "locate", {"query": "zebra"}, session=one)
    asked(engine, "pick", {"id": "a/x"}, session=two)
    assert heat(engine, "a/x", session=two) == 0.0
    asked(engine, "pick", {"id": "a/x"}, session=one)
    asked(engine, "locate", {"query": "zebra"}, session=two)
    asked(engine, "pick", {"id": "a/x"}, session=two)
    assert heat(engine, "a/x") == 0.04


def test_a_pool_forgets_a_client_that_left(engine):
    pool = Pool.single(engine.root)
    try:
        pool.call("look", {"id": "a/x"}, client="one")
        pool.end_client("one")
        assert pool.call("close_session", {"success": False}, client="one")["metrics"]["calls"] == 0
    finally:
        pool.close()


def test_memory_does_not_grow_with_calls(engine):
    for n in range(400):
        engine.session.record("look", None, 1, 1, 0.1)
        engine.session.found_ids([f"n{n}-{m}" for m in range(100)])
    state = {
        key: len(value)
        for key, value in vars(engine.session).items()
        if hasattr(value, "__len__") and key != "id"
    }
    assert all(size <= 10_000 for size in state.values()), state


# ---------------------------------------------------------------------------------------------- close_session


def test_what_close_session_reports(engine):
    ask(engine, "locate", query="lion")
    ask(engine, "look", id="a/_index")
    ask(engine, "move", id="a/_index", rel="children")
    ask(engine, "look", id="a/y")
    ask(engine, "pick", id="a/y")
    ask(engine, "pick", id="a/b/z")
    spent = sum(line["tokens_out"] for line in trace(engine))
    session = engine.session.id
    report = ask(engine, "close_session", success=True, answer_nodes=["a/b/z", "a/y"])
    assert list(report) == ["ts", "session", "outcome", "metrics", "suggest_shortcuts"]
    assert report["outcome"] == {"success": True, "answer_nodes": ["a/b/z", "a/y"]}
    assert report["metrics"] == {
        "hops_to_banana": 3,
        "trail_len": 4,
        "tokens_to_banana": spent,
        "calls": 6,
        "answer_nodes": 2,
    }
    assert report["suggest_shortcuts"] == ["a/b/z", "a/y"]
    assert trace(engine, session)[-1] == report


def test_short_trails_and_failures_suggest_no_shortcut(engine):
    ask(engine, "pick", id="a/y")
    report = ask(engine, "close_session", success=True, answer_nodes=["a/y"])
    assert report["metrics"]["trail_len"] == 0 and report["suggest_shortcuts"] == []
    for _ in range(5):
        ask(engine, "look", id="a/y")
    ask(engine, "pick", id="a/y")
    report = ask(engine, "close_session", success=False, answer_nodes=["a/y"])
    assert report["metrics"]["trail_len"] == 5 and report["suggest_shortcuts"] == []
    report = ask(engine, "close_session", success=True)
    assert report["metrics"] == {
        "hops_to_banana": None,
        "trail_len": None,
        "tokens_to_banana": 0,
        "calls": 0,
        "answer_nodes": 0,
    }


# ----------------------------------------------------------------------------------------------------- traces


def test_a_trace_line_tells_numbers_and_no_content(engine):
    ask(engine, "locate", query="zebra secret-word")
    ask(engine, "move", id="a/_index", rel="children")
    ask(engine, "scan", parent_id="a/_index")
    ask(engine, "sniff", terms="lion", scope="a")
    ask(engine, "view", id="pic")
    lines = trace(engine)
    assert all(
        list(line) == ["ts", "session", "primitive", "id", "tokens_in", "tokens_out", "elapsed_ms"]
        for line in lines
    )
    assert [(line["primitive"], line["id"]) for line in lines] == [
        ("locate", None),
        ("move", "a/_index"),
        ("scan", "a/_index"),
        ("sniff", None),
        ("view", "pic"),
    ]
    assert all(line["tokens_in"] > 0 and line["tokens_out"] > 0 and line["elapsed_ms"] >= 0 for line in lines)
    assert "secret-word" not in (engine.root / "_derived/traces" / f"{engine.session.id}.jsonl").read_text()


def test_harvest_leaves_its_steps(engine):
    found = ids(ask(engine, "harvest", query="zebra lion", k=3))
    told = [(line["primitive"], line["id"]) for line in trace(engine)]
    assert told == [("locate", None), ("sniff", None)] + [("pick", id) for id in found]


def test_refusals_and_unwritten_verbs_leave_no_line(engine):
    ask(engine, "look", id="a/x")
    for verb, args in (
        ("look", {"id": "nope"}),
        ("locate", {}),
        ("graft", {"id": "nope", "patch": {"replace_body": ""}}),
    ):
        refusal(engine, verb, args)
    engine.call("forests", {})
    assert [line["primitive"] for line in trace(engine)] == ["look"]


def test_writes_are_traced(tmp_path):
    vine.init(tmp_path / "f")
    with closing(Vine(tmp_path / "f")) as engine:
        planted(engine, "n")
        ask(engine, "graft", id="n", patch={"set_frontmatter": {"title": "New"}})
        assert [(line["primitive"], line["id"]) for line in trace(engine)] == [("plant", "n"), ("graft", "n")]


def test_heat_is_kept_again_after_derived_was_deleted(engine):
    ask(engine, "look", id="a/x")
    shutil.rmtree(engine.root / "_derived")
    ask(engine, "close_session", success=True, answer_nodes=["a/x"])
    with closing(Vine(engine.root)) as later:
        assert heat(later, "a/x") == 0.1
