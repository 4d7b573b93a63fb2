"""The Nth call to the file system, to git or to SQLite fails, for N = 1, 2, 3 … until the write gets through.

After each: the answer tells the truth (an error: nothing is there; success: all of it is), and the next write
leaves nothing behind. Then the same with a disk that is really full, files that may not grow, and folders
that cannot be written.

Sections: failing calls · the sweep · full disks and read-only folders.
"""

import builtins
import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

import vine as engine
from kit import (
    REPO, assert_sound_git, assert_whole, commits, git, graft, grow, head, plant, refusal, status, text, walk,
)  # fmt: skip
from vine import Vine, VineError, init

# ---------------------------------------------------------------------------------------------- failing calls


class Fault:
    """Counts calls while it is armed and fails the one that is due."""

    def __init__(self):
        self.due = self.count = 0
        self.armed = self.hit = False

    def now(self) -> bool:
        """Whether this call is the one that fails. Threads beside the write do not count."""
        if not self.armed or threading.current_thread() is not threading.main_thread():
            return False
        self.count += 1
        self.hit = self.hit or self.count == self.due
        return self.count == self.due

    @contextmanager
    def at(self, due: int):
        self.due, self.count, self.hit, self.armed = due, 0, False, True
        try:
            yield
        finally:
            self.armed = False

    def wrap(self, patch, owner, name: str, make) -> None:
        real = getattr(owner, name)

        def call(*args, **more):
            if self.now():
                raise make()
            return real(*args, **more)

        patch.setattr(owner, name, call)


FILE_CALLS = "rename replace link fsync unlink mkdir open listdir ftruncate pwrite rmdir stat scandir".split()


def full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def fail_files(fault: Fault, patch) -> None:
    for name in FILE_CALLS:
        fault.wrap(patch, os, name, full)
    fault.wrap(patch, builtins, "open", full)


def fail_forks(fault: Fault, patch) -> None:
    fault.wrap(patch, subprocess, "Popen", lambda: OSError(errno.EAGAIN, "fork"))


def fail_git(fault: Fault, patch) -> None:
    real = subprocess.Popen
    patch.setattr(
        subprocess,
        "Popen",
        lambda cmd, *a, **k: real(["false"] if cmd[0] == "git" and fault.now() else cmd, *a, **k),
    )


def kill_git_late(fault: Fault, patch) -> None:
    """git does its work, and then it looks as if it had failed."""
    real = subprocess.Popen

    def start(cmd, *args, **more):
        if cmd[0] == "git" and fault.now():
            cmd = ["sh", "-c", '"$@"; exit 1', "sh", *cmd]
        return real(cmd, *args, **more)

    patch.setattr(subprocess, "Popen", start)


def fail_sqlite(fault: Fault, patch) -> None:
    class Connection(sqlite3.Connection):
        def execute(self, *args):
            if fault.now():
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(*args)

        def executemany(self, *args):
            if fault.now():
                raise sqlite3.OperationalError("disk I/O error")
            return super().executemany(*args)

    real = sqlite3.connect
    patch.setattr(sqlite3, "connect", lambda *args, **more: real(*args, **{"factory": Connection} | more))


FAULTS = {
    "files": fail_files,
    "forks": fail_forks,
    "git": fail_git,
    "git, late": kill_git_late,
    "sqlite": fail_sqlite,
}

# ---------------------------------------------------------------------------------------------- the sweep


def do_plant(vine: Vine, n: int) -> None:
    plant(vine, f"a/n{n}")


def do_graft(vine: Vine, n: int) -> None:
    graft(vine, "a/_index", set_frontmatter={"title": f"A {n}", "summary": f"Number {n}."})


def do_batch(vine: Vine, n: int) -> None:
    """Births, a move and removals in several folders, in one commit."""
    here, there = (
        ("a/movable", "b/movable")
        if (vine.root / "a" / "movable.md").exists()
        else ("b/movable", "a/movable")
    )
    with vine.writing("adopt") as tx:
        tx.move(here, there)
        for id in ("c/_index", "c/x") if here[0] == "a" else ("d/_index", "d/x"):
            tx.put(
                id,
                {"type": "branch" if id.endswith("_index") else "note", "title": id, "summary": f"{id}."},
                "",
            )
        for id in ("d/_index", "d/x") if here[0] == "a" else ("c/_index", "c/x"):
            if tx.node(id):
                tx.remove(id)
        tx.file("_meta/gardener.yaml", f"n: {n}\n".encode())
        tx.commit("gardener(sync): 5 nodes")


WRITES = {"plant": do_plant, "graft": do_graft, "batch": do_batch}
SWEEPS = [
    ("files", "plant"),
    ("files", "graft"),
    ("files", "batch"),
    ("forks", "plant"),
    ("git", "graft"),
    ("git", "batch"),
    ("git, late", "plant"),
    ("git, late", "batch"),
    ("sqlite", "plant"),
    ("sqlite", "batch"),
]


def state(root: Path) -> dict[str, bytes]:
    """Every node file and setting."""
    return {path: (root / path).read_bytes() for path in walk(root)[1]}


def folders(root: Path) -> set[str]:
    return walk(root)[0]


@pytest.mark.parametrize("kind, write", SWEEPS)
def test_whichever_call_fails_the_answer_is_true(tmp_path, kind, write):
    root = grow(tmp_path / "trees")
    fault = Fault()
    with pytest.MonkeyPatch.context() as patch:
        FAULTS[kind](fault, patch)
        with Vine(root) as vine:
            plant(vine, "b/_index")
            plant(vine, "a/movable")
            n = 0
            while n == 0 or fault.hit:
                n += 1
                before, dirs, start = state(root), folders(root), head(root)
                error = None
                with fault.at(n):
                    try:
                        WRITES[write](vine, n)
                    except VineError as caught:
                        error = caught
                    except (OSError, sqlite3.Error, engine.store.GitFailed):
                        assert write == "batch", "only a transaction lets its caller see these"
                        error = VineError("E_INTERNAL", "")
                if error:
                    codes = ("E_INTERNAL", "E_SCHEMA", "E_LOCKED", "E_NOT_FOUND")
                    assert error.code in codes, (n, error.code)
                    if left(root):  # nobody could say whether it happened; the next writer settles it
                        with vine.writing("recover"):
                            pass
                    assert (state(root), folders(root), head(root)) == (before, dirs, start), n
                else:
                    assert commits_since(root, start) == 1 and state(root) != before, n
                graft(vine, "b/_index", set_frontmatter={"title": f"Next {n}"})
                vine.catalog.check(force=True)
                assert_consistent(root, vine)
            assert n > 2 and error is None
        assert_whole(root)
        assert_sound_git(root)


def left(root: Path) -> bool:
    return any(name != "index-debt.json" for name in os.listdir(root / "_derived" / "journal"))


def commits_since(root: Path, start: str) -> int:
    return int(git(root, "rev-list", "--count", f"{start}..HEAD"))


def assert_consistent(root: Path, vine: Vine) -> None:
    """The cheap part of assert_whole, for hundreds of rounds."""
    assert status(root) == "" and os.listdir(root / "_derived" / "journal") == []
    with vine.catalog.reading() as reader:
        known = {row["id"] for row in reader.all_rows()}
    assert known == {path[:-3] for path in state(root) if path.endswith(".md")}


@pytest.mark.parametrize("kind", ["files", "forks", "git", "git, late"])
def test_whichever_call_of_init_fails_nothing_or_all_is_there(tmp_path, kind):
    fault = Fault()
    with pytest.MonkeyPatch.context() as patch:
        FAULTS[kind](fault, patch)
        n = 0
        while n == 0 or fault.hit:
            n += 1
            root = tmp_path / f"deep {n}" / "trees"
            error = None
            with fault.at(n):
                try:
                    init(root)
                except VineError as caught:
                    error = caught
            if error:
                assert error.code in ("E_INTERNAL", "E_SCHEMA", "E_LOCKED"), (n, error.code, error.message)
                rest = [p for p in root.rglob("*") if ".git" not in p.parts]
                # a removal that fails itself may leave folders and an empty lock, never a file of a forest
                files = [
                    p for p in rest if p.is_file() and p.name != ".vine.lock" and "_derived" not in p.parts
                ]
                assert files == [], n
                init(root)
            assert commits(root) == 1, n
            assert status(root) == "", n
            with Vine(root) as vine:
                assert vine.validate()["issues"] == [], n
        assert n > 3


def test_an_index_that_cannot_be_opened_just_now_is_not_left_out(tmp_path):
    root = grow(tmp_path / "trees")
    real, failed = os.open, []

    def open_late(path, *args, **more):
        if str(path).endswith("a/_index.md") and not failed:
            failed.append(path)
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, *args, **more)

    with Vine(root) as vine, pytest.MonkeyPatch.context() as patch:
        vine.catalog.check(force=True)
        patch.setattr(os, "open", open_late)
        try:
            plant(vine, "a/x")
        except VineError:
            assert not (root / "a" / "x.md").exists()
        assert failed and (root / "a" / "x.md").exists() == ("a/x" in text(root, "a/_index"))


# ---------------------------------------------------------------------------------------------- full disks


@contextmanager
def mounted(folder: Path, *options: str):
    """A file system of its own, where this user may mount one."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip("cannot mount here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_really_full(tmp_path):
    disk = tmp_path / "disk"
    with mounted(disk, "-t", "tmpfs", "-o", "size=3m", "none"):
        root = grow(disk / "trees")
        with Vine(root) as vine:
            for spare in (0, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 200, 300):
                before, start = state(root), head(root)
                filler = disk / "filler"
                with open(filler, "wb", buffering=0) as file:
                    try:
                        while file.write(b"x" * 4096):
                            pass
                    except OSError:
                        pass
                os.truncate(filler, max(0, filler.stat().st_size - spare * 1024))
                try:
                    plant(vine, f"a/n{spare}", body="word " * 4000)
                    happened = True
                except VineError as error:
                    assert error.code in ("E_INTERNAL", "E_READONLY")
                    happened = False
                filler.unlink()
                assert (root / f"a/n{spare}.md").exists() == happened == (head(root) != start), spare
                assert happened or state(root) == before, spare
                plant(vine, f"a/m{spare}")
                assert commits_since(root, start) == 1 + happened
                assert_consistent(root, vine)
            assert happened, "with enough space it works"
        assert_whole(root)


LIMITED = """
import resource, signal, sys, vine
from kit import plant
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
v = vine.Vine(sys.argv[1])
v.call("look", {"id": "a/_index"})
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    plant(v, "a/big", body="word " * 4000)
except vine.VineError as error:
    print(error.code, error.message)
else:
    print("done")
"""


@pytest.mark.parametrize("size", [0, 50, 500, 5000, 30_000, 500_000])
def test_files_that_may_not_grow(tmp_path, size):
    root = grow(tmp_path / "trees")
    env = os.environ | {"PYTHONPATH": f"{REPO}:{REPO / 'tests'}"}
    child = subprocess.run(
        [sys.executable, "-c", LIMITED, root, str(size)], capture_output=True, text=True, env=env
    )
    assert child.returncode == 0, child.stderr
    done = child.stdout == "done\n"
    assert (root / "a" / "big.md").exists() == done == (commits(root) == 3), child.stdout
    with Vine(root) as vine:
        assert_whole(root, vine)
        plant(vine, "a/next")
        assert_whole(root, vine)


@contextmanager
def read_only(folder: Path):
    """A folder that cannot be written: by a mount for root, whom modes do not stop, else by modes."""
    if os.geteuid() == 0:
        with mounted(folder, "--bind", "-o", "ro", str(folder)):
            subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True, capture_output=True)
            yield
        return
    paths = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in paths:
        path.chmod(0o500)
    try:
        yield
    finally:
        for path in paths:
            path.chmod(0o700)


@pytest.mark.parametrize("place", [".git", ".git/objects", ".git/refs/heads", "a", "_derived/journal"])
def test_a_folder_that_cannot_be_written(tmp_path, place):
    root = grow(tmp_path / "trees")
    with Vine(root) as vine:
        plant(vine, "a/x", body="Plums.")
        before, start = state(root), head(root)
        with read_only(root / place):
            error = refusal("E_INTERNAL", plant, vine, "a/y")
            assert str(tmp_path) not in f"{error.message} {error.hint}"
            assert (state(root), head(root)) == (before, start) and status(root) == ""
            assert "Plums" in vine.call("pick", {"id": "a/x"})["body"]
        plant(vine, "a/z")
        assert commits_since(root, start) == 1 and "a/y" not in text(root, "a/_index")
        assert_whole(root, vine)


def test_a_forest_on_a_read_only_disk_can_be_read(tmp_path):
    root = grow(tmp_path / "trees")
    with Vine(root) as vine:
        plant(vine, "a/x", body="Plums.")
    shutil.rmtree(root / "_derived")
    with read_only(root):
        with Vine(root) as vine:
            assert [hit["id"] for hit in vine.call("sniff", {"terms": "plums"})["results"]] == ["a/x"]
            refusal("E_READONLY", plant, vine, "a/y")
    assert not (root / "_derived").exists()
