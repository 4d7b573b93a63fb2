"""The writer lock and the commits of a forest, next to whatever an operator's git is doing.

Sections: fixtures · writer lock · the operator's index · the operator's settings · states of HEAD ·
locks of git · no usable repository · recovery.
"""

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import store
import vine as engine
from kit import (
    REPO, assert_sound_git, assert_whole, commits, git, graft, grow, head, journal, plant, refusal, seed,
    status, text,
)  # fmt: skip
from store import Change, Store
from vine import Vine

# ---------------------------------------------------------------------------------------------- fixtures


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setenv("MONKEYLLM_LOCK_WAIT", "0")


HOLDER = """
import sys, time
from pathlib import Path
from store import WriterLock
with WriterLock(Path(sys.argv[1])).held("sync"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(root):
    """Another process that holds the writer lock."""
    command = [sys.executable, "-c", HOLDER, str(root)]
    child = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "held\n"
    yield child
    child.kill()
    child.wait()


def fake_git(folder: Path, script: str) -> str:
    """A PATH on which `git` is this shell script; `$git` in it is the real one."""
    folder.mkdir(exist_ok=True)
    (folder / "git").write_text(f"#!/bin/sh\ngit={shutil.which('git')}\n{script}\n")
    (folder / "git").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


# ---------------------------------------------------------------------------------------------- writer lock


def test_a_held_lock_names_its_holder(vine, root, holder, impatient):
    error = refusal("E_LOCKED", plant, vine, "a/x")
    note = json.loads((root / ".vine.lock").read_text())
    assert (note["pid"], note["host"], note["operation"]) == (holder.pid, socket.gethostname(), "sync")
    assert f"pid {holder.pid} on {note['host']} since {note['since']} (sync)" in error.message
    assert note["since"].endswith("Z") and commits(root) == 2
    assert vine.call("look", {"id": "a/_index"})["id"] == "a/_index", "reads never wait for it"


def test_the_death_of_the_holder_frees_the_lock(vine, root, holder):
    blocked: list = []
    waiting = threading.Thread(target=lambda: blocked.append(plant(vine, "a/x")))
    waiting.start()
    holder.send_signal(signal.SIGKILL)
    waiting.join()
    assert blocked[0]["id"] == "a/x"
    assert_whole(root, vine)


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b'{"pid": 1, "host": "other"}', b"[]", b"x" * 100_000])
def test_a_lock_file_left_behind_blocks_nobody(vine, root, impatient, content):
    (root / ".vine.lock").write_bytes(content)
    plant(vine, "a/x")
    assert not (root / ".vine.lock").exists()


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'"text"', b'{"pid": "x"}'])
def test_a_lock_whose_note_is_damaged_is_still_a_lock(vine, root, impatient, content):
    with open(root / ".vine.lock", "wb") as file:
        file.write(content)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "locked" in refusal("E_LOCKED", plant, vine, "a/x").message
    plant(vine, "a/x")


def test_a_lock_that_is_a_link_spares_what_it_points_to(vine, root, tmp_path, impatient):
    (tmp_path / "precious").write_text("precious")
    for n, target in enumerate([tmp_path / "precious", tmp_path / "absent"]):
        (root / ".vine.lock").symlink_to(target)
        plant(vine, f"a/x{n}")
    assert (tmp_path / "precious").read_text() == "precious" and not (tmp_path / "absent").exists()
    assert not os.path.lexists(root / ".vine.lock")


def test_a_folder_in_place_of_the_lock_is_told(vine, root):
    (root / ".vine.lock").mkdir()
    assert ".vine.lock" in refusal("E_LOCKED", plant, vine, "a/x").message


def test_a_file_system_without_locks_is_told(vine, root, monkeypatch):
    def no_locks(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert "lock" in refusal("E_LOCKED", plant, vine, "a/x").message
    monkeypatch.undo()
    plant(vine, "a/x")


def test_threads_wait_for_each_other_like_processes(vine, root):
    errors: list = []

    def work(n: int) -> None:
        try:
            plant(vine, f"a/t{n}")
        except engine.VineError as error:
            errors.append(error.message)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and commits(root) == 10
    assert_whole(root, vine)


def test_a_thread_that_does_not_wait_is_told(vine, root, impatient):
    with vine.store.lock.held("tend"):
        assert "tend" in refusal("E_LOCKED", plant, vine, "a/x").message
    plant(vine, "a/x")


def test_a_bad_wait_means_five_seconds(monkeypatch):
    for value, seconds in [("soon", 5.0), ("", 5.0), ("-3", 0.0), ("0", 0.0), ("2.5", 2.5)]:
        monkeypatch.setenv("MONKEYLLM_LOCK_WAIT", value)
        assert store.lock_wait() == seconds
    monkeypatch.delenv("MONKEYLLM_LOCK_WAIT")
    assert store.lock_wait() == 5.0


# --------------------------------------------------------------------------------------- the operator's index


def test_what_is_staged_stays_staged_and_out_of_the_commit(vine, root):
    (root / "other.txt").write_text("staged")
    git(root, "add", "other.txt")
    (root / "other.txt").write_text("and edited")
    (root / "loose.txt").write_text("untracked")
    git(root, "rm", "-q", "--cached", "_meta/schema.md")
    before = status(root)
    plant(vine, "a/x")
    graft(vine, "a/x", set_frontmatter={"title": "New"})
    assert status(root) == before == "D  _meta/schema.md\nAM other.txt\n?? _meta/schema.md\n?? loose.txt\n"
    assert git(root, "ls-tree", "-r", "--name-only", "HEAD").split() == [
        ".gitignore",
        "_index.md",
        "_meta/schema.md",
        "a/_index.md",
        "a/x.md",
    ]


def test_an_outside_edit_of_a_written_file_goes_into_its_commit(vine, root):
    plant(vine, "a/x", body="Body")
    (root / "a" / "x.md").write_text(text(root, "a/x").replace("Body", "By hand"))
    (root / "a" / "_index.md").write_text(text(root, "a/_index") + "- Own trail → [[_index]]\n")
    git(root, "add", "a/x.md")
    graft(vine, "a/x", set_frontmatter={"summary": "New."})
    assert "By hand" in git(root, "show", "HEAD:a/x.md") and "Own trail" in git(
        root, "show", "HEAD:a/_index.md"
    )
    assert status(root) == ""


def test_an_outside_edit_of_another_file_stays_as_it_was(vine, root):
    plant(vine, "a/x")
    plant(vine, "b/_index")
    (root / "a" / "x.md").write_text(text(root, "a/x") + "more\n")
    before = status(root)
    plant(vine, "b/y")
    assert status(root) == before == " M a/x.md\n"


def test_ignored_paths_are_committed_all_the_same(vine, root):
    (root / ".git" / "info").mkdir(exist_ok=True)
    (root / ".git" / "info" / "exclude").write_text("a/\n*.md\n")
    plant(vine, "a/x")
    assert "a/x.md" in git(root, "ls-tree", "-r", "--name-only", "HEAD")
    assert_whole(root, vine)


def test_a_repository_without_an_index_file_gets_one(vine, root):
    (root / ".git" / "index").unlink()
    plant(vine, "a/x")
    assert git(root, "ls-files").split() == ["_index.md", "a/_index.md", "a/x.md"]
    assert not {"a/x.md", "a/_index.md"} & {line[3:] for line in status(root).splitlines()}


@pytest.mark.parametrize("version", ["4"])
def test_other_index_formats_work(vine, root, version):
    git(root, "update-index", "--index-version", version)
    git(root, "update-index", "--split-index")
    plant(vine, "a/x")
    plant(vine, "a/y")
    assert_whole(root, vine)


# ------------------------------------------------------------------------------------ the operator's settings

HOSTILE = """
[user]
    name = Op
[core]
    hooksPath = {hooks}
    autocrlf = true
    attributesFile = {attributes}
    quotePath = true
[commit]
    gpgSign = true
    template = /nonexistent
[tag]
    gpgSign = true
[gpg]
    program = false
[filter "bad"]
    clean = false
    smudge = false
    required = true
[init]
    defaultBranch = other
    templateDir = {hooks}
[i18n]
    commitEncoding = latin1
"""


def hostile(folder: Path, monkeypatch) -> None:
    """A home whose git settings would break or change every commit."""
    hooks = folder / "hooks"
    (hooks / "hooks").mkdir(parents=True)
    for place in (hooks, hooks / "hooks"):
        for hook in "pre-commit commit-msg prepare-commit-msg post-commit reference-transaction".split():
            (place / hook).write_text("#!/bin/sh\necho hook >> " + str(folder / "ran") + "\nexit 1\n")
            (place / hook).chmod(0o755)
    (folder / "attributes").write_text("*.md filter=bad\n")
    (folder / ".gitconfig").write_text(HOSTILE.format(hooks=hooks, attributes=folder / "attributes"))
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


def test_settings_of_the_operator_change_nothing(tmp_path, monkeypatch):
    hostile(tmp_path / "home", monkeypatch)
    root = grow(tmp_path / "trees")
    with Vine(root) as vine:
        plant(vine, "a/ü", title="Ünïcode 日本", body="one\ntwo")
    data = (root / "a" / "ü.md").read_bytes()
    assert (
        b"\r" not in data
        and subprocess.run(["git", "cat-file", "blob", "HEAD:a/ü.md"], cwd=root, capture_output=True).stdout
        == data
    )
    assert git(root, "log", "-1", "--format=%an|%s").strip() == "vine|plant(a/ü): Ünïcode 日本 [source=agent]"
    assert git(root, "symbolic-ref", "HEAD").strip() == "refs/heads/main"
    assert not (tmp_path / "home" / "ran").exists() and not (root / ".git" / "hooks").exists()


def test_settings_of_the_repository_change_nothing(vine, root, tmp_path):
    for hook in "pre-commit commit-msg post-commit reference-transaction".split():
        (root / ".git" / "hooks").mkdir(exist_ok=True)
        (root / ".git" / "hooks" / hook).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 1\n")
        (root / ".git" / "hooks" / hook).chmod(0o755)
    for key, value in {
        "commit.gpgSign": "true",
        "gpg.program": "false",
        "core.autocrlf": "true",
        "core.fsmonitor": "true",
        "filter.bad.clean": "false",
        "filter.bad.required": "true",
        "fastimport.unpackLimit": "1",
    }.items():
        git(root, "config", key, value)
    (root / ".gitattributes").write_text("*.md text eol=crlf\n*.txt filter=bad\n")
    plant(vine, "a/x", body="one\ntwo")
    plant(vine, "a/y")
    assert not (tmp_path / "ran").exists() and b"\r" not in (root / "a" / "x.md").read_bytes()
    assert [line[3:] for line in status(root).splitlines()] == [".gitattributes"]


def test_git_variables_change_nothing(root, tmp_path, monkeypatch):
    for name, value in {
        "GIT_INDEX_FILE": tmp_path / "index",
        "GIT_DIR": tmp_path / "none",
        "GIT_WORK_TREE": tmp_path,
        "GIT_AUTHOR_NAME": "X",
        "GIT_OBJECT_DIRECTORY": tmp_path / "objects",
        "GIT_COMMITTER_DATE": "2001-01-01T00:00:00",
        "GIT_NAMESPACE": "n",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "commit.gpgSign",
        "GIT_CONFIG_VALUE_0": "true",
        "GIT_LITERAL_PATHSPECS": "1",
    }.items():
        monkeypatch.setenv(name, str(value))
    with Vine(root) as vine:
        plant(vine, "a/x")
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    assert commits(root) == 3 and git(root, "log", "-1", "--format=%an %cd", "--date=format:%Y").startswith(
        "vine 20"
    )
    assert git(root, "log", "-1", "--date=format:%Y", "--format=%cd").strip() != "2001"
    assert not (tmp_path / "index").exists()
    assert_whole(root)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_foreign_owner_of_the_folder_changes_nothing(root):
    for path in [root, *root.rglob("*")]:
        os.chown(path, 12345, 12345)
    with Vine(root) as vine:
        plant(vine, "a/x")
    assert commits(root) == 3


# --------------------------------------------------------------------------------------------- states of HEAD


def test_a_packed_branch(vine, root):
    git(root, "pack-refs", "--all")
    assert not (root / ".git" / "refs" / "heads" / "main").exists()
    plant(vine, "a/x")
    git(root, "gc", "-q")
    plant(vine, "a/y")
    assert commits(root) == 4
    assert_whole(root, vine)


def test_a_detached_head(vine, root):
    main = head(root)
    git(root, "checkout", "-q", "--detach")
    answer = plant(vine, "a/x")
    plant(vine, "a/y")
    assert commits(root) == 4 and git(root, "rev-parse", "main").strip() == main
    assert git(root, "rev-parse", "HEAD^").strip() == answer["commit"]
    assert git(root, "for-each-ref", "--format=%(refname)").split() == ["refs/heads/main"]
    assert_whole(root, vine)


def test_a_branch_with_a_strange_name_and_one_without_commits(vine, root):
    git(root, "checkout", "-q", "-b", "feature/ünd#1")
    plant(vine, "a/x")
    assert git(root, "rev-parse", "feature/ünd#1").strip() == head(root)
    git(root, "symbolic-ref", "HEAD", "refs/heads/empty")
    plant(vine, "a/y")
    assert commits(root) == 1 and git(root, "ls-tree", "--name-only", "HEAD", "a/").split() == [
        "a/_index.md",
        "a/y.md",
    ]


@pytest.mark.parametrize(
    "state", ["MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply"]
)
def test_an_operation_of_git_in_progress_is_told(vine, root, state):
    path = root / ".git" / state
    path.mkdir() if state.startswith("rebase") else path.write_text(head(root))
    error = refusal("E_LOCKED", plant, vine, "a/x")
    assert state.removesuffix("_HEAD").replace("_", "-").split("-")[0].lower() in error.message and error.hint
    assert not (root / "a" / "x.md").exists() and journal(root) == []


def test_a_real_merge_conflict_is_left_alone(vine, root):
    git(root, "checkout", "-q", "-b", "side")
    plant(vine, "a/x", summary="Of side.")
    git(root, "checkout", "-q", "main")
    vine.catalog.check(force=True)
    plant(vine, "a/x", summary="Of main.")
    git(root, "merge", "side", check=False)
    before = status(root)
    assert "a/x.md" in before
    refusal("E_LOCKED", plant, vine, "a/y")
    assert status(root) == before


def test_head_that_moved_meanwhile_is_built_upon(vine, root, monkeypatch):
    real, moved = store.Git._import, []

    def late(self, *args):
        if len(moved) < 2:
            sha = git(root, "commit-tree", "-p", "HEAD", "-m", f"other {len(moved)}", "HEAD^{tree}").strip()
            git(root, "update-ref", "HEAD", sha)
            moved.append(sha)
        return real(self, *args)

    monkeypatch.setattr(store.Git, "_import", late)
    answer = plant(vine, "a/x")
    assert git(root, "log", "--format=%s", "-3").splitlines() == [
        "plant(a/x): Title of x [source=agent]",
        "other 1",
        "other 0",
    ]
    assert answer["commit"] == head(root) and git(root, "rev-parse", "HEAD^").strip() == moved[-1]
    assert_whole(root, vine)


def test_a_worktree_is_a_forest_too(vine, root, tmp_path):
    git(root, "worktree", "add", "-q", "-b", "tree", str(tmp_path / "tree"))
    with Vine(tmp_path / "tree") as other:
        plant(other, "a/x")
    assert git(root, "rev-parse", "tree").strip() == head(tmp_path / "tree") != head(root)
    assert status(tmp_path / "tree") == ""


def test_a_sha256_repository(tmp_path):
    root = tmp_path / "trees"
    root.mkdir()
    git(root, "init", "-q", "--object-format=sha256", "-b", "main")
    grow(root)
    with Vine(root) as vine:
        assert len(plant(vine, "a/x")["commit"]) == 64
        with vine.writing("adopt") as tx:
            tx.remove("a/x")
            tx.commit("removed")
    assert_whole(root)


# ---------------------------------------------------------------------------------------------- locks of git


def test_a_foreign_index_lock_blocks_no_write_and_is_not_removed(vine, root):
    lock = root / ".git" / "index.lock"
    lock.write_text("somebody's")
    plant(vine, "a/x")
    graft(vine, "a/x", set_frontmatter={"title": "New"})
    assert lock.read_text() == "somebody's" and commits(root) == 4
    lock.unlink()
    plant(vine, "a/y")
    assert_whole(root, vine)


def test_an_index_that_could_not_be_told_is_told_at_the_next_opening(vine, root):
    (root / ".git" / "index.lock").touch()
    plant(vine, "a/x")
    (root / ".git" / "index.lock").unlink()
    assert "a/x.md" in status(root)
    with Vine(root, readonly=True):
        assert "a/x.md" in status(root)
    with Vine(root):
        assert status(root) == ""


@pytest.mark.parametrize("name", ["refs/heads/main.lock", "HEAD.lock"])
def test_a_foreign_ref_lock_is_waited_for_and_not_removed(vine, root, monkeypatch, name):
    lock = root / ".git" / name
    lock.touch()
    monkeypatch.setenv("MONKEYLLM_LOCK_WAIT", "0.2")
    refusal("E_LOCKED", plant, vine, "a/x")
    assert lock.exists() and not (root / "a" / "x.md").exists() and status(root) == ""
    monkeypatch.setenv("MONKEYLLM_LOCK_WAIT", "60")
    timer = threading.Timer(0.3, lock.unlink)
    timer.start()
    plant(vine, "a/x")
    timer.join()
    assert_whole(root, vine)


def test_a_ref_lock_of_a_dead_git_child_blocks_nobody(vine, root, tmp_path, monkeypatch, impatient):
    """The child dies with the branch locked, which a hook of git can show: it runs while the lock is held."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "reference-transaction").write_text('#!/bin/sh\ntest "$1" = prepared && kill -9 $PPID\nexit 0\n')
    (hooks / "reference-transaction").chmod(0o755)
    once = tmp_path / "once"
    script = f"""
case "$*" in *fast-import*) if mkdir {once} 2>/dev/null; then
  exec $git $(printf '%s ' "$@" | sed 's#core.hooksPath=/dev/null#core.hooksPath={hooks}#'); fi;; esac
exec $git "$@"
"""
    monkeypatch.setenv("PATH", fake_git(tmp_path / "bin", script))
    plant(vine, "a/x")
    assert once.exists(), "the first child was killed"
    monkeypatch.undo()
    assert not list((root / ".git").rglob("*.lock")) and commits(root) == 3
    assert_whole(root, vine)


# ------------------------------------------------------------------------------------------- a git that fails


def test_a_git_that_commits_and_then_fails_makes_one_commit(vine, root, tmp_path, monkeypatch):
    script = 'case "$*" in *fast-import*) $git "$@"; exit 1;; esac\nexec $git "$@"'
    monkeypatch.setenv("PATH", fake_git(tmp_path / "bin", script))
    answer = plant(vine, "a/x")
    monkeypatch.undo()
    assert answer["commit"] == head(root) and commits(root) == 3
    assert_whole(root, vine)


@pytest.mark.parametrize(
    "script",
    [
        'case "$*" in *fast-import*) exit 1;; esac',
        'case "$*" in *fast-import*) kill -9 $$;; esac',
        "exec 0<&-; exit 128",
    ],
    ids=["fails", "killed", "hangs up at once"],
)
def test_a_git_that_fails_leaves_everything_as_it_was(vine, root, tmp_path, monkeypatch, script):
    plant(vine, "a/big", body="word " * 100_000)
    before = status(root), head(root), text(root, "a/_index")
    monkeypatch.setenv("PATH", fake_git(tmp_path / "bin", f'{script}\nexec $git "$@"'))
    error = refusal("E_INTERNAL", graft, vine, "a/big", replace_body="other " * 100_000)
    assert "git" in error.message and str(tmp_path) not in error.message + error.hint
    monkeypatch.undo()
    assert (status(root), head(root), text(root, "a/_index")) == before
    assert_whole(root, vine)
    plant(vine, "a/x")
    assert_whole(root, vine)


def test_a_git_that_is_slow_keeps_the_forest_locked_when_its_parent_dies(root, tmp_path):
    """The child outlives its parent: until it is done nobody may decide whether the write happened."""
    wait = tmp_path / "wait"
    wait.touch()
    script = f"""
case "$*" in *fast-import*) touch {tmp_path}/begun; while test -e {wait}; do sleep 0.02; done;; esac
exec $git "$@"
"""
    code = f"import vine; vine.Vine({str(root)!r}).call('plant', {{'node': {seed('a/x')!r}}})"
    env = os.environ | {"PATH": fake_git(tmp_path / "bin", script)}
    child = subprocess.Popen([sys.executable, "-c", code], cwd=REPO, env=env)
    while not (tmp_path / "begun").exists():
        assert child.poll() is None
        time.sleep(0.01)
    child.kill()
    child.wait()
    with open(root / ".vine.lock") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    threading.Timer(0.3, wait.unlink).start()
    with Vine(root) as vine:
        there = (root / "a" / "x.md").exists()
        assert there == (commits(root) == 3)
        assert_whole(root, vine)


# --------------------------------------------------------------------------------------- no usable repository


def test_a_forest_without_a_repository_says_what_to_run(vine, root, tmp_path):
    shutil.rmtree(root / ".git")
    for _ in range(2):
        with Vine(root) as fresh:
            assert "git init" in refusal("E_SCHEMA", plant, fresh, "a/x").hint
            assert fresh.call("look", {"id": "a/_index"})["id"] == "a/_index"
        git(tmp_path, "init", "-q")  # from now on a repository stands around it, which is not its own
    assert git(tmp_path, "status", "--porcelain") == "?? trees/\n" and not (root / "a" / "x.md").exists()


def test_a_machine_without_git_says_what_to_install(root, tmp_path, monkeypatch):
    with Vine(root) as vine:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert "git" in refusal("E_SCHEMA", plant, vine, "a/x").hint
        assert vine.call("look", {"id": "a/_index"})["id"] == "a/_index"
    assert not (root / "a" / "x.md").exists()


def test_a_path_with_odd_characters(tmp_path):
    root = grow(tmp_path / 'a #%41?"\\ ü $HOME')
    with Vine(root) as vine:
        plant(vine, "a/ü")
    assert_whole(root)
    (tmp_path / "link").symlink_to(root)
    with Vine(tmp_path / "link") as vine:
        plant(vine, "a/y")
    assert_whole(root)


# ---------------------------------------------------------------------------------------------- recovery


class Died(BaseException):
    """Stands for kill -9: nothing of ours runs after it."""


def died_at(monkeypatch, root: Path, place: str) -> None:
    """Leave behind what a process leaves that is killed during a plant of a/x, just before `place`."""

    def die(*_, **__):
        raise Died

    with monkeypatch.context() as patch, Vine(root) as vine:
        owner, name = {
            "commit": (store.Git, "commit"),
            "catalog": (type(vine.catalog), "absorb"),
            "news": (store._IndexUpdate, "finish"),
        }[place]
        if place == "catalog":
            vine.catalog.check(force=True)
        patch.setattr(owner, name, die)
        for undo in (
            (store._IndexUpdate, "drop"),
            (store._IndexUpdate, "_unlock"),
            (store.Record, "undo"),
            (store.Record, "done"),
        ):
            patch.setattr(*undo, lambda *_: None)
        if place == "news":
            patch.setattr(store.Record, "happened", lambda *_: False)
        with pytest.raises(Died), vine.writing("plant") as tx:
            tx.put("a/x", {"type": "note", "title": "X", "summary": "X."}, "# X")
            tx.commit("plant(a/x): X")
    assert journal(root) != []


@pytest.mark.parametrize("place, there", [("commit", False), ("news", True), ("catalog", True)])
def test_the_next_opening_settles_what_a_dead_write_left(root, monkeypatch, place, there):
    died_at(monkeypatch, root, place)
    with Vine(root) as vine:
        assert (root / "a" / "x.md").exists() == there
        assert_whole(root, vine)
        if there:
            refusal("E_SCHEMA", plant, vine, "a/x")
        else:
            plant(vine, "a/x")
        assert commits(root) == 3
        assert_whole(root, vine)


def test_the_next_write_settles_what_another_process_left(root, monkeypatch):
    with Vine(root) as waiting:
        died_at(monkeypatch, root, "commit")
        plant(waiting, "a/y")
        assert not (root / "a" / "x.md").exists()
        assert_whole(root, waiting)


def test_recovery_keeps_edits_made_after_the_death(root, monkeypatch):
    died_at(monkeypatch, root, "commit")
    (root / "a" / "x.md").write_text(text(root, "a/x") + "saved by hand\n")
    with Vine(root) as vine:
        assert "saved by hand" in text(root, "a/x") and "a/x" not in text(root, "a/_index")
        assert git(root, "diff", "--name-only") == "" and status(root) == "?? a/x.md\n"
        graft(vine, "a/x", set_frontmatter={"title": "Found"})


def test_commits_made_after_a_write_that_happened_do_not_undo_it(root, monkeypatch):
    died_at(monkeypatch, root, "news")
    (root / ".git" / "index.lock").unlink()
    (root / "a" / "x.md").write_text(text(root, "a/x") + "edited\n")
    git(root, "add", "--all")
    git(root, "commit", "-qm", "by hand")
    with Vine(root) as vine:
        assert "a/x" in text(root, "a/_index") and text(root, "a/x").endswith("edited\n")
        assert_whole(root, vine)


def test_commits_made_after_a_write_that_did_not_happen_do_not_save_it(root, monkeypatch):
    died_at(monkeypatch, root, "commit")
    (root / ".git" / "index.lock").unlink()
    (root / "other.txt").write_text("x")
    git(root, "add", "other.txt")
    git(root, "commit", "-qm", "by hand")
    with Vine(root) as vine:
        assert not (root / "a" / "x.md").exists()
        assert_whole(root, vine)


def test_rubbish_in_the_journal_is_swept(vine, root):
    folder = root / "_derived" / "journal"
    (folder / "file").write_text("x")
    (folder / "1-99999999").mkdir()
    (folder / "2-99999999").mkdir()
    (folder / "2-99999999" / "record.json").write_text("{")
    (folder / "3-99999999.part" / "new").mkdir(parents=True)
    (folder / "index-debt.json").write_text('{"a": 1}')
    plant(vine, "a/x")
    plant(vine, "a/y")
    assert [name for name in journal(root) if name != "index-debt.json"] == []


@pytest.mark.parametrize("place", ["repository", "commit", "news"])
def test_an_init_that_died_can_be_run_again(tmp_path, monkeypatch, place):
    root = tmp_path / "trees"

    def die(*_, **__):
        raise Died

    with monkeypatch.context() as patch:
        owner, name = {
            "repository": (os, "rename"),
            "commit": (store.Git, "commit"),
            "news": (store._IndexUpdate, "finish"),
        }[place]
        patch.setattr(owner, name, die)
        patch.setattr(store, "remove_tree", lambda *_: None)
        for undo in (store._IndexUpdate, "drop"), (store.Record, "undo"), (store.Record, "done"):
            patch.setattr(*undo, lambda *_: None)
        if place == "news":
            patch.setattr(store.Record, "happened", lambda *_: False)
        with pytest.raises(Died):
            engine.init(root)
    if place == "news":
        refusal("E_SCHEMA", engine.init, root)
    else:
        engine.init(root)
    assert commits(root) == 1
    assert_whole(root)
    assert_sound_git(root)


def test_an_interrupt_undoes_everything(vine, root, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store.Git, "_import", interrupt)
        with pytest.raises(KeyboardInterrupt):
            plant(vine, "a/x")
    assert not (root / "a" / "x.md").exists() and commits(root) == 2
    assert_whole(root, vine)


def test_a_transaction_removes_and_moves(vine, root):
    for name in "xyz":
        plant(vine, f"a/b{name}", body=name)
    plant(vine, "c/_index")
    plant(vine, "c/only")
    with vine.writing("adopt") as tx:
        tx.remove("a/bx")
        tx.move("a/by", "c/by")
        tx.remove("c/only")
        tx.file("_meta/gardener.yaml", b"sources: {}\n")
        assert tx.commit("gardener(sync): 3 nodes", ["a/bx", "c/by", "c/only"]) == head(root)
    shown = git(root, "show", "--name-status", "--no-renames", "--format=").splitlines()
    assert shown == [
        "M\t_index.md",
        "A\t_meta/gardener.yaml",
        "M\ta/_index.md",
        "D\ta/bx.md",
        "D\ta/by.md",
        "M\tc/_index.md",
        "A\tc/by.md",
        "D\tc/only.md",
    ]
    assert_whole(root, vine)


def test_an_undone_removal_puts_the_file_back(vine, root, monkeypatch):
    plant(vine, "c/_index")
    data = (root / "c" / "_index.md").read_bytes()

    def fail(*_):
        raise store.GitFailed("fast-import")

    with monkeypatch.context() as patch:
        patch.setattr(store.Git, "_import", fail)
        with vine.writing("adopt") as tx:
            tx.remove("c/_index")
            refusal("E_INTERNAL", tx.commit, "removed")
    assert (root / "c" / "_index.md").read_bytes() == data
    assert_whole(root, vine)


def test_a_change_is_published_without_any_engine(root):
    files = Store(root)
    (root / "a" / "ranger.txt").write_text("beside")
    change = Change(
        {"_meta/ranger.yaml": b"prune_below: 0.4\n", 'a/odd "name"\\.md': b"x\n"},
        "config",
        ("one", "two"),
        "ann",
    )
    with files.lock.held("config") as keep:
        sha, record = files.apply(change, keep)
        record.done()
    assert sha == head(root)
    assert git(root, "log", "-1", "--format=%B").strip() == "config\n\none\ntwo\n\nstation-principal: ann"
    shown = git(root, "diff", "--name-only", "-z", "HEAD^", "HEAD").split("\0")
    assert shown == ["_meta/ranger.yaml", 'a/odd "name"\\.md', ""]
    assert status(root) == "?? a/ranger.txt\n" and journal(root) == []
