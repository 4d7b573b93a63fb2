"""Several processes on one forest: writers side by side, readers beside a writer, hands and git beside both.

Sections: helpers · writers · readers · edits from outside.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest

import forest
from kit import (
    REPO, assert_sound_git, assert_whole, by_hand, commits, git, graft, head, plant, refusal, seed,
    status, text,
)  # fmt: skip
from vine import Vine

# ---------------------------------------------------------------------------------------------- helpers


def script(code: str, *args: object, **env: str) -> subprocess.Popen:
    """A Python process beside this one."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        cwd=REPO,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"MONKEYLLM_LOCK_WAIT": "60"} | env,
    )


def ended(child: subprocess.Popen) -> str:
    out, err = child.communicate()
    assert (child.returncode, err) == (0, ""), err
    return out


PLANTER = """
import sys, vine
root, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
v = vine.Vine(root)
for n in range(count):
    node = {"id": f"a/{name}{n}", "type": "note", "title": name, "summary": f"{n}.", "parent": "a/_index"}
    print(v.call("plant", {"node": node})["commit"])
"""

# ---------------------------------------------------------------------------------------------- writers


def test_two_processes_and_a_shell_write_one_branch(root):
    children = [script(PLANTER, root, name, 25) for name in "pq"]
    command = [sys.executable, str(REPO / "cli.py"), "--forest", str(root), "--json", "plant"]
    shell = []
    for n in range(6):
        done = subprocess.run(
            command,
            input=json.dumps(seed(f"a/s{n}")),
            capture_output=True,
            text=True,
            env=os.environ | {"MONKEYLLM_LOCK_WAIT": "60"},
        )
        assert done.returncode == 0, done.stdout
        shell.append(json.loads(done.stdout)["commit"])
    told = [sha for child in children for sha in ended(child).split()] + shell
    assert len(set(told)) == 56 and commits(root) == 58
    lines = forest.index_lines(text(root, "a/_index").split("---\n", 2)[2], "Direct bananas")
    assert len(lines) == 56 and "coverage: 56 bananas" in text(root, "a/_index")
    assert set(git(root, "log", "--format=%H").split()) >= set(told)
    assert_whole(root)
    assert_sound_git(root)


def test_two_processes_with_one_expect_write_once(root):
    with Vine(root) as vine:
        plant(vine, "a/x")
        version = vine.call("look", {"id": "a/x"})["version"]
    code = """
import sys, vine
v = vine.Vine(sys.argv[1])
try:
    patch = {"set_frontmatter": {"title": sys.argv[2]}}
    v.call("graft", {"id": "a/x", "patch": patch, "expect": sys.argv[3]})
    print("done")
except vine.VineError as error:
    print(error.code)
"""
    told = [
        ended(child).strip()
        for child in [script(code, root, name, version) for name in ("one", "two", "three")]
    ]
    assert sorted(told) == ["E_LOCKED", "E_LOCKED", "done"] and commits(root) == 4
    assert_whole(root)


def test_two_processes_plant_one_id_once(root):
    code = """
import sys, vine
v = vine.Vine(sys.argv[1])
for n in range(8):
    id = f"a/{'X' if sys.argv[2] == '1' else 'x'}{n}"
    node = {"id": id, "type": "note", "title": "T", "summary": "S.", "parent": "a/_index"}
    try:
        v.call("plant", {"node": node})
        print("done")
    except vine.VineError as error:
        assert error.code == "E_SCHEMA", error.code
"""
    children = [script(code, root, n) for n in range(2)]
    assert sum(ended(child).count("done") for child in children) == 8 and commits(root) == 10
    assert_whole(root)


def test_many_forests_are_born_in_one_folder_at_once(tmp_path):
    code = """
import sys, vine
try:
    vine.init(sys.argv[1])
    print("born")
except vine.VineError as error:
    print(error.code)
"""
    told = sorted(ended(child).strip() for child in [script(code, tmp_path / "one") for _ in range(3)])
    assert told.count("born") == 1 and set(told) <= {"born", "E_SCHEMA"}
    assert commits(tmp_path / "one") == 1
    assert_whole(tmp_path / "one")


# ---------------------------------------------------------------------------------------------- readers

BUSY = """
import sys, vine
v = vine.Vine(sys.argv[1])
print("up", flush=True)
n = 0
while True:
    n += 1
    word = ("odd" if n % 2 else "even") + "words"
    patch = {"set_frontmatter": {"summary": word}, "replace_body": f"# X\\n" + f"{word} " * 800}
    v.call("graft", {"id": "a/x", "patch": patch})
"""


def test_no_read_is_torn_beside_a_busy_writer(root):
    with Vine(root) as vine:
        plant(vine, "a/x", body="oddwords " * 800, summary="oddwords")
        writer = script(BUSY, root)
        assert writer.stdout.readline() == "up\n"
        start, faults, reads = commits(root), [], [0]

        def read(count: int) -> None:
            for n in range(count):
                body = forest.body_text((root / "a" / "x.md").read_bytes())
                if n % 10 == 0:
                    body = vine.call("pick", {"id": "a/x"})["body"]
                    index = (root / "a" / "_index.md").read_text()
                    if not index.endswith("words\n## Cross trails\n"):
                        faults.append(index)
                words = set(body.split()) - {"#", "X", "Title", "of", "x"}
                if len(words) != 1:
                    faults.append(words)
                reads[0] += 1

        threads = [threading.Thread(target=read, args=(2500,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        writer.kill()
        writer.communicate()
        assert faults == [] and reads[0] == 10_000
        assert commits(root) > start, "the writer was busy"
    assert_whole(root)


def test_a_read_does_not_wait_for_a_writer_that_holds_the_lock(root, monkeypatch):
    with Vine(root) as vine:
        plant(vine, "a/x", body="Plums.")
        with vine.writing("adopt"):
            answers: list = []
            asking = [
                threading.Thread(target=lambda verb=verb, args=args: answers.append(vine.call(verb, args)))
                for verb, args in [
                    ("look", {"id": "a/x"}),
                    ("sniff", {"terms": "plums"}),
                    ("locate", {"query": "title"}),
                ]
            ]
            for thread in asking:
                thread.start()
            for thread in asking:
                thread.join(timeout=60)
            assert len(answers) == 3


def test_a_write_of_another_process_is_seen_by_the_next_call(root):
    with Vine(root) as vine:
        vine.call("look", {"id": "a/_index"})
        for n in range(5):
            ended(script(PLANTER, root, f"n{n}-", 1))
            assert vine.call("look", {"id": f"a/n{n}-0"})["id"] == f"a/n{n}-0"


# ----------------------------------------------------------------------------------------- edits from outside


def within_two_seconds(vine: Vine) -> None:
    """A call that starts 2 s after an edit must know of it. Calls meanwhile keep the checks going."""
    for _ in range(4):
        time.sleep(0.5)
        vine.call("look", {"id": "_index"})


def found(vine: Vine, term: str) -> list[str]:
    return [hit["id"] for hit in vine.call("sniff", {"terms": term})["results"]]


@pytest.mark.parametrize("pause", ["busy", "idle"])
def test_edits_by_hand_and_by_git_are_seen_within_two_seconds(vine, root, pause):
    for name in ("edited", "deleted", "moved", "same", "reverted"):
        plant(vine, f"a/{name}", body=f"plum {name}")
    old = head(root)
    graft(vine, "a/reverted", replace_body="# R\ncherry")
    assert len(found(vine, "plum")) == 4
    path = root / "a" / "same.md"
    stat = path.stat()
    path.write_text(text(root, "a/same").replace("plum", "pear"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    (root / "a" / "edited.md").write_text(text(root, "a/edited").replace("plum", "quince"))
    (root / "a" / "deleted.md").unlink()
    (root / "a" / "moved.md").rename(root / "a" / "arrived.md")
    git(root, "checkout", "-q", old, "--", "a/reverted.md")
    by_hand(root, "a/born", "plum\n")
    if pause == "busy":
        within_two_seconds(vine)
    else:
        time.sleep(2)
    assert sorted(found(vine, "plum")) == ["a/arrived", "a/born", "a/reverted"]
    assert (
        found(vine, "pear") == ["a/same"]
        and found(vine, "quince") == ["a/edited"]
        and found(vine, "cherry") == []
    )
    refusal("E_NOT_FOUND", vine.call, "look", {"id": "a/deleted"})
    assert "a/deleted" not in [
        hit["id"] for hit in vine.call("locate", {"query": "title of deleted"})["results"]
    ]
    listed = [node["id"] for node in vine.call("scan", {"parent_id": "a/_index"})["nodes"]]
    assert sorted(listed) == ["a/arrived", "a/born", "a/edited", "a/reverted", "a/same"]


def test_a_git_pull_is_seen_and_written_upon(vine, root, tmp_path):
    git(tmp_path, "clone", "-q", str(root), "other")
    with Vine(tmp_path / "other") as other:
        plant(other, "a/pulled", body="plum")
    git(root, "pull", "-q", "--ff-only", str(tmp_path / "other"), "main")
    time.sleep(2)
    assert found(vine, "plum") == ["a/pulled"]
    plant(vine, "a/own")
    assert status(root) == "" and commits(root) == 4
    assert_whole(root, vine)


def test_a_write_sees_edits_of_what_it_touches_at_once(vine, root):
    plant(vine, "a/x", body="plum")
    version = vine.call("look", {"id": "a/x"})["version"]
    (root / "a" / "x.md").write_text(text(root, "a/x").replace("plum", "pear"))
    error = refusal(
        "E_LOCKED",
        vine.call,
        "graft",
        {"id": "a/x", "patch": {"set_frontmatter": {"title": "T"}}, "expect": version},
    )
    assert error.hint
    graft(vine, "a/x", set_frontmatter={"title": "T"})
    assert "pear" in text(root, "a/x")
    (root / "a" / "x.md").unlink()
    plant(vine, "a/x", body="cherry")
    assert found(vine, "cherry") == ["a/x"] and found(vine, "pear") == []


def test_a_catalog_that_is_gone_damaged_or_foreign_is_made_anew(root):
    with Vine(root) as vine:
        plant(vine, "a/x", body="plum")
    path = root / "_derived" / "catalog.db"
    for spoil in (
        path.unlink,
        lambda: path.write_bytes(b"x" * 10_000),
        lambda: path.write_bytes(b""),
        lambda: path.write_bytes(path.read_bytes()[:5000]),
        lambda: shutil.rmtree(root / "_derived"),
    ):
        spoil()
        with Vine(root) as vine:
            assert found(vine, "plum") == ["a/x"]
    assert_whole(root)
