"""kill -9 at random moments of real processes that write.

After every death: what was acknowledged is there, and once somebody has opened the forest nothing is left
over. The seed of the moments is printed with a failure; MONKEYLLM_CRASH_SEED repeats it.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kit import REPO, assert_sound_git, assert_whole, commits, grow, plant, text
import vine
from vine import Vine, VineError

SEED = int(os.environ.get("MONKEYLLM_CRASH_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)

# Arguments: forest, name. Prints each write once it was acknowledged.
WRITER = """
import sys, vine
root, name = sys.argv[1:]
v, n = vine.Vine(root), 0
print("up", flush=True)
while True:
    n += 1
    id = f"a/{name}-{n}"
    node = {"id": id, "type": "note", "title": id, "summary": "Old.", "parent": "a/_index", "body": "w " * 50}
    v.call("plant", {"node": node})
    print("planted", id, flush=True)
    v.call("graft", {"id": id, "patch": {"set_frontmatter": {"summary": "New."}}})
    print("grafted", id, flush=True)
    if n % 3 == 0:
        with v.writing("adopt") as tx:
            for part, kind in [("_index", "branch"), ("y", "note"), ("z", "note")]:
                tx.put(f"{id}/{part}", {"type": kind, "title": part, "summary": f"{part}."}, "")
            tx.remove(f"a/{name}-{n - 1}")
            tx.commit("plant(batch): 3 nodes")
        print("batched", id, flush=True)
"""


class Acknowledged:
    """What writers were told, and whether the forest still says so."""

    def __init__(self, root: Path):
        self.root = root
        self.summaries: dict[str, str] = {}
        self.removed: set[str] = set()
        self.writes = 0

    def told(self, action: str, id: str) -> None:
        self.writes += 1
        if action != "batched":
            self.summaries[id] = "New." if action == "grafted" else ""
            return
        self.summaries |= {f"{id}/_index": "_index.", f"{id}/y": "y.", f"{id}/z": "z."}
        name, n = id.rsplit("-", 1)
        self.removed.add(f"{name}-{int(n) - 1}")

    def check(self) -> None:
        for id, summary in self.summaries.items():
            if not (
                self.root / f"{id}.md"
            ).exists():  # then a batch took it, acknowledged or not: all of it is there
                name, n = id.rsplit("-", 1)
                births = self.root / f"{name}-{int(n) + 1}"
                assert sorted(path.name for path in births.iterdir()) == ["_index.md", "y.md", "z.md"], (
                    SEED,
                    id,
                )
            else:
                assert id not in self.removed and f"summary: {summary}" in text(self.root, id), (SEED, id)


def writer(root: Path, name: str) -> subprocess.Popen:
    command = [sys.executable, "-c", WRITER, str(root), name]
    child = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "up\n"
    return child


def reap(child: subprocess.Popen, acknowledged: Acknowledged) -> None:
    child.kill()
    for line in child.stdout.read().splitlines():
        if len(line.split()) == 2:  # the last line may be cut
            acknowledged.told(*line.split())
    child.wait()


@pytest.fixture
def root(tmp_path) -> Path:
    return grow(tmp_path / "trees")


def aftermath(root: Path, acknowledged: Acknowledged, n: int) -> None:
    with Vine(root) as vine:
        acknowledged.check()
        assert_whole(root, vine)
        before = commits(root)
        plant(vine, f"a/after-{n}")
        assert commits(root) == before + 1 and not (root / ".vine.lock").exists()
        assert_whole(root, vine)


def test_one_writer_killed_again_and_again(root):
    rounds, moments, acknowledged = 50, random.Random(SEED), Acknowledged(root)
    for n in range(rounds):
        child = writer(root, f"w{n}")
        time.sleep(moments.uniform(0.0, 0.4))
        reap(child, acknowledged)
        aftermath(root, acknowledged, n)
    assert acknowledged.writes > rounds / 2, f"seed {SEED}: the kills came too early to hit anything"
    assert_sound_git(root)


def test_two_writers_killed_while_a_third_reader_is_open(root):
    """Nobody opens the forest between the kills: the survivor settles what the dead one left."""
    moments, acknowledged = random.Random(SEED + 1), Acknowledged(root)
    with Vine(root) as vine:
        living = writer(root, "p0")
        for n in range(1, 26):
            other = writer(root, f"p{n}")
            time.sleep(moments.uniform(0.0, 0.25))
            living, dead = (living, other) if moments.random() < 0.5 else (other, living)
            reap(dead, acknowledged)
            assert vine.call("look", {"id": "a/_index"})["id"] == "a/_index"
        reap(living, acknowledged)
    aftermath(root, acknowledged, 0)
    assert_sound_git(root)


# ---------------------------------------------------------------------------------------------- the server


class Server:
    """`vine serve` over stdio, spoken to in raw JSON-RPC lines."""

    def __init__(self, root: Path):
        command = [sys.executable, str(REPO / "cli.py"), "serve", "--forest", str(root)]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        hello = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "crash", "version": "1"},
        }
        self.send("initialize", hello, id=0)
        assert json.loads(self.child.stdout.readline())["id"] == 0
        self.send("notifications/initialized", {})

    def send(self, method: str, params: dict, **more) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params} | more
        self.child.stdin.write(json.dumps(message) + "\n")
        self.child.stdin.flush()

    def plant(self, n: int, name: str) -> None:
        node = {"id": f"a/{name}-{n}", "type": "note", "title": name, "summary": "New.", "parent": "a/_index"}
        self.send("tools/call", {"name": "plant", "arguments": {"node": node}}, id=n)

    def killed(self) -> list[int]:
        """Kill -9; the numbers of the plants that had been answered by then."""
        self.child.kill()
        lines = self.child.stdout.read().splitlines()
        self.child.wait()
        answers = []
        for line in lines:
            try:
                answers.append(json.loads(line))
            except ValueError:
                assert line == lines[-1], "only the last line may be cut"
        assert not any(answer["result"].get("isError") for answer in answers if "result" in answer)
        return [answer["id"] for answer in answers if answer.get("id")]


def test_a_server_killed_while_it_writes(root):
    moments, acknowledged = random.Random(SEED + 2), Acknowledged(root)
    for n in range(16):
        server = Server(root)
        for plant_number in range(1, 40):
            server.plant(plant_number, f"s{n}")
        time.sleep(moments.uniform(0.0, 0.5))
        for answered in server.killed():
            acknowledged.told("grafted", f"a/s{n}-{answered}")
        aftermath(root, acknowledged, n)
    assert acknowledged.writes > 8, f"seed {SEED}"
    assert_sound_git(root)


# ---------------------------------------------------------------------------------------------- birth

BIRTH = "import sys, vine; print('up', flush=True); vine.init(sys.argv[1]); print('born', flush=True)"


def test_an_init_that_is_killed_can_be_run_again(tmp_path):
    moments = random.Random(SEED + 3)
    for n in range(12):
        root = tmp_path / f"f{n}"
        child = subprocess.Popen(
            [sys.executable, "-c", BIRTH, str(root)], cwd=REPO, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout.readline() == "up\n"
        time.sleep(moments.uniform(0.0, 0.12))
        child.kill()
        born = child.stdout.read() == "born\n"
        child.wait()
        again = subprocess.run(
            [sys.executable, str(REPO / "cli.py"), "--forest", str(root), "init"],
            capture_output=True,
            text=True,
        )
        assert again.returncode == 0 or "is a forest already" in again.stderr, (SEED, again.stderr)
        assert not born or again.returncode == 1
        assert commits(root) == 1
        assert_whole(root)


def test_what_a_killed_init_left_is_no_forest(tmp_path):
    root = tmp_path / "f"
    code = (
        "import os, sys, store, vine; store.Git.commit = lambda *_: os._exit(9); "
        "vine.init(__import__('pathlib').Path(sys.argv[1]))"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(root)], cwd=REPO)
    assert killed.returncode == 9 and (root / "_index.md").exists()
    with pytest.raises(VineError) as refused:
        Vine(root)
    assert refused.value.code == "E_NOT_FOUND"
    assert not (root / "_index.md").exists()
    vine.init(root)
    with Vine(root) as engine:
        assert engine.validate()["issues"] == []
