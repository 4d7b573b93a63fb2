"""Forests for the tests of format, store and faults: what a test grows, breaks and asks of git."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import forest
from vine import Vine, VineError, init

REPO = Path(__file__).resolve().parent.parent


def grow(root: Path) -> Path:
    """A forest with one branch `a`."""
    init(root, "Trees", "A forest for tests.")
    with Vine(root) as vine:
        plant(vine, "a/_index", title="A", summary="All of a.")
    return root


def seed(id: str, **more) -> dict:
    """A complete node for plant; `more` overrides."""
    kind = "branch" if forest.is_branch_id(id) else "note"
    name = id.rpartition("/")[2]
    told = {"id": id, "type": kind, "title": f"Title of {name}", "summary": f"Summary of {name}."}
    return told | {"parent": forest.parent_of(id)} | more


def plant(vine: Vine, id: str, **more) -> dict:
    return vine.call("plant", {"node": seed(id, **more)})


def graft(vine: Vine, id: str, **patch) -> dict:
    return vine.call("graft", {"id": id, "patch": patch})


def refusal(code: str, call, *args, **more) -> VineError:
    """The VineError of a call that must fail with `code`."""
    with pytest.raises(VineError) as caught:
        call(*args, **more)
    assert caught.value.code == code, (caught.value.code, caught.value.message)
    return caught.value


def git(root: Path, *args: str, data: str = "", check: bool = True) -> str:
    """Output of an operator's git command in the forest."""
    who = ["-c", "user.name=Op", "-c", "user.email=op@example.org", "-c", "safe.directory=*"]
    done = subprocess.run(["git", *who, *args], cwd=root, input=data, capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


def status(root: Path) -> str:
    return git(root, "status", "--porcelain", "--untracked-files=all")


def head(root: Path) -> str:
    return git(root, "rev-parse", "HEAD").strip()


def commits(root: Path) -> int:
    return int(git(root, "rev-list", "--count", "HEAD"))


def subject(root: Path) -> str:
    return git(root, "log", "-1", "--format=%s").rstrip("\n")


def text(root: Path, id: str) -> str:
    return (root / f"{id}.md").read_text("utf-8")


def write(root: Path, id: str, block: str, body: str = "# Body\n") -> None:
    """Put a node file there by hand; `block` is its YAML."""
    path = root / f"{id}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\n{block.strip()}\n---\n\n{body}", "utf-8")


def by_hand(root: Path, id: str, body: str = "# Body\n", /, **fields) -> None:
    """Put a sound node file there by hand, with `fields` (JSON values; None: left out) over the usual."""
    told = {key: value for key, value in seed(id).items() if key != "parent"}
    told |= {"created": "2026-01-02", "updated": "2026-01-02"} | fields
    write(root, id, "\n".join(f"{k}: {json.dumps(v)}" for k, v in told.items() if v is not None), body)


def codes(report: dict, id: str | None = None) -> list[str]:
    """Lint codes of a report, or of one node in it."""
    return [issue["code"] for issue in report["issues"] if id in (None, issue["id"])]


def journal(root: Path) -> list[str]:
    folder = root / "_derived" / "journal"
    return os.listdir(folder) if folder.exists() else []


def children(vine: Vine, branch: str) -> int:
    """How many nodes the catalog lists below a branch."""
    with vine.catalog.reading() as reader:
        return len(reader.faces(branch))


def walk(root: Path) -> tuple[set[str], set[str]]:
    """Relative paths of a forest's folders and files, without what git and the engine keep for themselves."""
    folders, files = set(), set()
    for place, names, found in os.walk(root):
        names[:] = [name for name in names if name not in (".git", "_derived")]
        here = Path(place).relative_to(root)
        folders.update((here / name).as_posix() for name in names)
        files.update((here / name).as_posix() for name in found if name not in (".git", ".vine.lock"))
    return folders, files


def assert_whole(root: Path, vine: Vine | None = None) -> None:
    """Nothing is left of any write: git, journal, lint, index files and catalog agree."""
    own = vine or Vine(root)
    try:
        report = own.validate()
        assert report["issues"] == [], report["issues"]
        assert status(root) == "", status(root)
        assert journal(root) == [], journal(root)
        assert not (root / ".git" / "index.lock").exists()
        files = walk(root)[1]
        with own.catalog.reading() as reader:
            assert {row["id"] for row in reader.all_rows()} == {
                path[:-3] for path in files if path.endswith(".md")
            }
        assert not [path for path in files if path.endswith((".part", ".tmp", ".lock"))]
    finally:
        if vine is None:
            own.close()


def assert_sound_git(root: Path) -> None:
    done = subprocess.run(["git", "fsck", "--no-dangling"], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
