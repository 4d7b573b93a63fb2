"""How bytes get into a forest and stay whole: writer lock, journal, publication, git.

Owns: `.vine.lock`, `_derived/journal/`, and every process of git.
Must never: know what a node is; leave a half write that the next writer does not settle.

Sections: the change · writer lock · git · journal and publication.

The act, and what a crash leaves at each step
    1  journal record with the new bytes of every file beside hard links to the old ones
           before it is renamed into place: a folder that ends in `.part`, which is thrown away
    2  each file renamed into place                 undo: put old files back where ours still stand
    3  commit built from the old HEAD's tree        undo, until HEAD holds our blobs; then finish
    4  the operator's index told of the new blobs   finish: tell it again from HEAD
    5  record removed                               nothing to do
HEAD decides. A record whose blobs stand in HEAD's tree, or in that of a commit on the way to it, is a write that
happened; any other record is one that did not. Files that somebody changed after a dead write are never put back.

The lock's file descriptor is inherited by git children: a child that outlives its killed parent keeps the forest
locked until it is done, so nobody decides about HEAD while it may still move.

`index.lock` is taken by linking a file of the journal to that name. A crash then leaves a lock whose inode the
record owns, which is how a dead write's lock is told from anybody else's. git's own lock on the branch is told by
the commit that stands in it. Locks of others are waited for or worked around, never removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Callable, Iterable, Iterator

from forest import VineError

log = logging.getLogger("vine.store")

# ---------------------------------------------------------------------------------------------- the change


@dataclass(frozen=True)
class Change:
    """A write before it is an act: what every file will hold (None: gone) and what the commit will say.

    Paths are relative to the forest, with `/`. `principal` is stamped as the last line of the message.
    """

    files: dict[str, bytes | None]
    subject: str
    ids: tuple[str, ...] = ()
    principal: str | None = None

    @property
    def message(self) -> str:
        parts = [self.subject]
        if self.ids:
            parts.append("\n".join(self.ids))
        if self.principal:
            parts.append(f"station-principal: {self.principal}")
        return "\n\n".join(parts) + "\n"


# ---------------------------------------------------------------------------------------------- writer lock

LOCK_NAME = ".vine.lock"


def lock_wait() -> float:
    """Seconds that a writer waits for another one, from MONKEYLLM_LOCK_WAIT."""
    try:
        return max(0.0, float(os.environ.get("MONKEYLLM_LOCK_WAIT", "5")))
    except ValueError:
        return 5.0


class WriterLock:
    """One kernel lock on `.vine.lock`, for processes and for threads of one process alike.

    The kernel frees it when its holder dies, so a file left behind never blocks anybody, whatever it holds.
    """

    def __init__(self, root: Path):
        self.path = root / LOCK_NAME
        self._threads = threading.Lock()

    @contextlib.contextmanager
    def held(self, operation: str, wait: float | None = None) -> Iterator[int]:
        """Hold the lock and yield its file descriptor.

        Raises VineError E_LOCKED naming the holder after `wait` seconds, E_READONLY where no file can be made.
        """
        deadline = time.monotonic() + (lock_wait() if wait is None else wait)
        if not self._threads.acquire(timeout=max(0.0, deadline - time.monotonic()) or 0.001):
            raise self._locked()
        try:
            fd = self._take(deadline)
            try:
                self._sign(fd, operation)
                yield fd
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(self.path)
                os.close(fd)
        finally:
            self._threads.release()

    def _take(self, deadline: float) -> int:
        pause = 0.001
        while True:
            fd = self._open()
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _same_file(fd, self.path):
                    return fd
                os.close(fd)  # its holder removed the name while we waited: that file locks nothing
                continue
            except BlockingIOError:
                os.close(fd)
            except OSError:
                os.close(fd)
                raise VineError(
                    "E_LOCKED", "this file system has no file locks, so the forest cannot be written"
                ) from None
            if time.monotonic() >= deadline:
                raise self._locked()
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)

    def _open(self) -> int:
        for _ in range(100):
            try:
                return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            except OSError as error:
                if error.errno == errno.ELOOP:  # a link: the name is ours, what it points to is not
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self.path)
                elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                    raise VineError("E_READONLY", "the forest's folder cannot be written") from None
                elif error.errno == errno.EISDIR:
                    break
                else:
                    raise
        raise VineError("E_LOCKED", f"{LOCK_NAME} cannot be opened as a file", f"Remove {LOCK_NAME} by hand.")

    def _sign(self, fd: int, operation: str) -> None:
        since = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        note = {"pid": os.getpid(), "host": socket.gethostname(), "since": since, "operation": operation}
        with contextlib.suppress(OSError):  # the note is for people; the lock is the kernel's
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(note).encode(), 0)

    def _locked(self) -> VineError:
        try:
            with open(os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                note = json.loads(file.read(4096))
            who = f"pid {note['pid']} on {note['host']} since {note['since']} ({note['operation']})"
        except (OSError, ValueError, KeyError, TypeError):
            who = "another writer"
        return VineError("E_LOCKED", f"the forest is locked by {who}", "Try again in a moment.")


def _same_file(fd: int, path: Path) -> bool:
    try:
        there, ours = os.stat(path, follow_symlinks=False), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


# ---------------------------------------------------------------------------------------------- git

AUTHOR = "vine <vine@monkeyllm.local>"
# What an operator configured for their own commits (hooks, signing, filters, line ends) must not reach ours.
_SETTINGS = {
    "safe.directory": "*",
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.autocrlf": "false",
    "core.attributesFile": "/dev/null",
    "core.quotePath": "false",
    "core.fsync": "committed,loose-object,reference",
    "commit.gpgSign": "false",
    "core.compression": "1",  # the index of a large branch is compressed at every birth below it
    "gc.auto": "0",
    "fastimport.unpackLimit": "1",  # one small pack a commit, half the time of loose objects; fold_packs joins them
}
_MOST_PACKS = 50
_BUSY = {
    "MERGE_HEAD": "merge",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
}
_RUN_GIT_INIT = "Run `git init` in the forest's folder, then commit its files."


class GitFailed(Exception):
    """A git child ended badly; its words are for the log, never for a caller."""


def _environment() -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    fixed = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_TERMINAL_PROMPT": "0"}
    return env | fixed | {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_REPLACE_OBJECTS": "1", "LC_ALL": "C"}


class Git:
    """The repository of one forest. Every call is one process, free of the operator's settings."""

    def __init__(self, root: Path):
        self.root = root
        self._facts: tuple[Path, Path, str] | None = None

    def run(self, *args: str, data: bytes = b"", index: Path | None = None, keep: int | None = None) -> bytes:
        """Standard output of one git command; GitFailed when it exits other than 0. `keep` is a file descriptor
        that the child inherits, `index` the index file that it uses."""
        child = self.start(*args, index=index, keep=keep)
        with contextlib.suppress(BrokenPipeError):  # it died early; its exit code says so
            # All at once: communicate() feeds 4 KiB a turn. No git command here answers before its input has
            # ended, and none says more on standard error than a pipe holds.
            child.stdin.write(data)
            child.stdin.flush()
        out, err = child.communicate()
        return self.ended(child, args, out, err)

    def start(self, *args: str, index: Path | None = None, keep: int | None = None) -> subprocess.Popen:
        command = ["git"]
        for key, value in _SETTINGS.items():
            command += ["-c", f"{key}={value}"]
        env = _environment()
        if index:
            env["GIT_INDEX_FILE"] = str(index)
        try:
            return subprocess.Popen(
                command + list(args),
                cwd=self.root,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=() if keep is None else (keep,),
                start_new_session=True,  # Ctrl-C is for us: we undo, git must not die half-way
            )
        except FileNotFoundError:
            raise VineError("E_SCHEMA", "git is not installed", "Install git, for example `apt install git`.") from None

    @staticmethod
    def ended(child: subprocess.Popen, args: tuple[str, ...], out: bytes, err: bytes) -> bytes:
        if child.returncode:
            log.info("git %s exited %s: %s", args[0], child.returncode, err.decode("utf-8", "replace").strip())
            raise GitFailed(args[0])
        return out

    # -- facts ------------------------------------------------------------------------------------

    def _look(self) -> tuple[Path, Path, str]:
        """Git folder, common folder and object format; E_SCHEMA when the forest has no repository of its own."""
        if self._facts is None:
            try:
                out = self.run(
                    "rev-parse", "--show-toplevel", "--absolute-git-dir", "--git-common-dir", "--show-object-format"
                )
            except GitFailed:
                raise VineError("E_SCHEMA", "the forest has no git repository", _RUN_GIT_INIT) from None
            top, own, common, form = os.fsdecode(out).rstrip("\n").split("\n")
            if os.path.realpath(top) != os.path.realpath(self.root):
                raise VineError("E_SCHEMA", "the forest has no git repository of its own", _RUN_GIT_INIT)
            self._facts = Path(own), Path(os.path.join(self.root, common)), form
        return self._facts

    @property
    def folder(self) -> Path:
        return self._look()[0]

    def check_free(self) -> None:
        """E_LOCKED while a merge, rebase, cherry-pick or revert is under way."""
        folder = self.folder
        for name, what in _BUSY.items():
            if (folder / name).exists():
                raise VineError(
                    "E_LOCKED", f"a git {what} is in progress in this forest", f"Finish or abort the {what} first."
                )

    def branch(self) -> str | None:
        """The ref that HEAD names, or None when HEAD is detached."""
        text = (self.folder / "HEAD").read_text().strip()
        return text[5:].strip() if text.startswith("ref: ") else None

    def head(self) -> str | None:
        """The commit that HEAD stands on; None before the first one. Loose refs are read as files, which saves a
        process on every write; anything else is asked of git."""
        ref = self.branch()
        if ref is None:
            return (self.folder / "HEAD").read_text().strip()
        with contextlib.suppress(OSError):
            text = (self._look()[1] / ref).read_text().strip()
            if len(text) >= 40 and all(c in "0123456789abcdef" for c in text):
                return text
        try:
            return self.run("rev-parse", "--verify", "--quiet", "HEAD").decode().strip()
        except GitFailed:
            return None

    def blob_id(self, data: bytes) -> str:
        name = "sha256" if self._look()[2] == "sha256" else "sha1"
        return hashlib.new(name, b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()

    def newer(self, base: str | None, head: str | None) -> list[str]:
        """`head` and the commits that led from `base` to it, newest first."""
        if head is None:
            return []
        asked = ["rev-list", "--ignore-missing", "--max-count=1000", head, *([f"^{base}"] if base else [])]
        return list(dict.fromkeys([head, *self.run(*asked).decode().split()]))

    def blobs(self, commit: str | None, paths: list[str]) -> dict[str, str]:
        """Blob ids that the tree of `commit` holds at `paths`; absent paths are left out."""
        if commit is None:
            return {}
        wanted = set(paths)
        found: dict[str, str] = {}
        for start in range(0, len(paths), 200):
            literal = ["--literal-pathspecs", "ls-tree", "-z", commit, "--"]
            for line in self.run(*literal, *paths[start : start + 200]).split(b"\0"):
                facts, _, name = line.partition(b"\t")
                if os.fsdecode(name) in wanted:
                    found[os.fsdecode(name)] = facts.split()[2].decode()
        return found

    def read_blob(self, commit: str, path: str) -> bytes | None:
        """Bytes of a file in a commit; None where the commit or the file is not there."""
        try:
            return self.run("cat-file", "blob", f"{commit}:{path}")
        except GitFailed:
            return None

    def changed_paths(self) -> list[str]:
        """Paths that `git status` names, untracked ones included."""
        parts = self.run("status", "--porcelain", "-z", "--untracked-files=all", "--no-renames").split(b"\0")
        return [os.fsdecode(part[3:]) for part in parts if part]

    # -- commits ----------------------------------------------------------------------------------

    def commit(self, change: Change, keep: int) -> str:
        """Commit the change's files on top of HEAD's tree and move HEAD, in one fast-import.

        fast-import refuses to move a branch that is not where the commit builds on; then the commit is built again
        on the new place. GitFailed when it cannot be done, or when it was done and the news of it got lost.
        """
        new = {path: None if data is None else self.blob_id(data) for path, data in change.files.items()}
        for attempt in range(5):
            base, ref = self.head(), self.branch()
            try:
                return self._import(change, base, ref, keep)
            except GitFailed:
                moved = (self.head(), self.branch()) != (base, ref)
                if moved and self.holds(self.head(), new):
                    raise
                if attempt == 4 or not moved:
                    self.release_ref(base, new)
                    self._wait_for_ref()
                    if attempt == 4 or (attempt and self.head() == base):
                        raise
        raise GitFailed("fast-import")

    def holds(self, commit: str | None, new: dict[str, str | None]) -> bool:
        """Whether the tree of `commit` has these blobs at these paths, and nothing where the blob is None."""
        return self.blobs(commit, list(new)) == {path: blob for path, blob in new.items() if blob is not None}

    def _ref_locks(self) -> list[Path]:
        """The files that git holds while it moves HEAD, in the order in which it lets go of them."""
        ref, head = self.branch(), self.folder / "HEAD.lock"
        return [self._look()[1] / f"{ref}.lock", head] if ref else [head]

    def release_ref(self, base: str | None, new: dict[str, str | None]) -> None:
        """Remove the locks on the branch that a dead git child of ours left: its commit stands in the lock. Any
        other lock is somebody else's."""
        locks = self._ref_locks()
        with contextlib.suppress(OSError, ValueError, GitFailed):
            sha = bytes.fromhex(locks[0].read_text().strip()).hex()
            parents = self.run("rev-list", "--parents", "--max-count=1", sha).decode().split()[1:]
            if parents == ([base] if base else []) and self.holds(sha, new):
                for lock in reversed(locks):
                    lock.unlink(missing_ok=True)

    def fold_packs(self, keep: int) -> None:
        """Join the packs that single commits leave, once there are many: every git process opens each of them. In
        a joined pack the versions of an index are stored as differences. Nothing is lost when it is killed."""
        try:
            packs = sum(name.endswith(".pack") for name in os.listdir(self._look()[1] / "objects" / "pack"))
            if packs > _MOST_PACKS:
                self.run("repack", "-d", "-q", "--geometric=2", keep=keep)
        except (OSError, GitFailed):
            log.info("packs were not joined", exc_info=True)

    def _wait_for_ref(self) -> None:
        """Somebody else's lock on the branch: wait for it as long as for a writer."""
        deadline = time.monotonic() + lock_wait()
        while any(lock.exists() for lock in self._ref_locks()):
            if time.monotonic() > deadline:
                raise VineError(
                    "E_LOCKED", "git holds a lock on the forest's branch", "Try again when that git command ended."
                )
            time.sleep(0.02)

    def _import(self, change: Change, base: str | None, ref: str | None, keep: int) -> str:
        target = ref or "refs/vine/pending"
        moment = datetime.now().astimezone().strftime("%s %z")
        message = change.message.encode()
        lines = [f"feature done\ncommit {target}\nmark :1\ncommitter {AUTHOR} {moment}\ndata {len(message)}\n".encode()]
        lines.append(message)
        if base:
            lines.append(f"from {base}\n".encode())
        for path, data in change.files.items():
            name = _quoted(path)
            if data is None:
                lines.append(b"D %s\n" % name)
            else:
                lines += [b"M 100644 inline %s\ndata %d\n" % (name, len(data)), data, b"\n"]
        lines.append(b"get-mark :1\ndone\n")
        force = () if ref else ("--force",)
        sha = self.run("fast-import", "--quiet", "--depth=0", *force, data=b"".join(lines), keep=keep).decode().strip()
        if ref is None:
            self.run("update-ref", "--no-deref", "HEAD", sha, base or "", keep=keep)
            self.run("update-ref", "-d", target, keep=keep)
        return sha


def _quoted(path: str) -> bytes:
    raw = os.fsencode(path)
    escaped = raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return b'"' + escaped + b'"'


def init_repository(root: Path) -> bool:
    """Make `root` the top of its own repository on branch `main`; True when that was needed."""
    if (root / ".git").exists():
        return False
    birth = root / "_derived" / "birth"  # made aside, so that a death half-way leaves no half repository
    remove_tree(birth)
    birth.mkdir(parents=True)
    Git(birth).run("init", "--quiet", "--template=", "--initial-branch=main", ".")
    os.rename(birth / ".git", root / ".git")
    birth.rmdir()
    return True


# ---------------------------------------------------------------------------------------------- journal and publication


class Store:
    """Lock, journal and git of one forest."""

    def __init__(self, root: Path):
        self.root = root
        self.git = Git(root)
        self.lock = WriterLock(root)
        self.journal = root / "_derived" / "journal"
        self._debt = self.journal / "index-debt.json"

    def apply(self, change: Change, keep: int) -> tuple[str, "Record"]:
        """Publish `change` and commit it. The caller holds the lock (`keep` is its descriptor) and, when it has
        brought its own books up to date, calls `done` on the record.

        Whatever fails before HEAD has moved is undone before the error is raised: VineError E_INTERNAL, or the
        exception itself for an interrupt.
        """
        self.git.check_free()
        _check_folders(self.root, change.files)
        self.git.fold_packs(keep)
        record = Record.write(self, change, self.git.head())
        index = _IndexUpdate(self, record)
        try:
            index.begin(keep)
            record.publish()
            sha = self.git.commit(change, keep)
        except BaseException as error:
            try:
                happened = record.happened()
            except GitFailed:  # nobody can say now; the record stays, and the next writer will know
                index.drop()
                raise failure(error) from error
            if happened:  # the commit is there, only its news did not reach us
                index.finish()
                if not isinstance(error, (OSError, GitFailed)):
                    raise
                return self.git.head(), record
            index.drop()
            record.undo()
            if isinstance(error, (OSError, GitFailed)):
                raise failure(error) from error
            raise
        index.finish()
        return sha, record

    def leftovers(self) -> bool:
        """Whether a dead write, or an index that could not be told, waits to be settled. Costs one listing."""
        try:
            return bool(os.listdir(self.journal))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def abandoned(self) -> bool:
        """Whether a record of a process that is gone waits; that of a living writer is its own affair."""
        try:
            names = os.listdir(self.journal)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return any(not _lives_elsewhere(name) for name in names)

    def settle(self, keep: int) -> bool:
        """Finish or undo what dead writers left. The caller holds the lock. True when node files may have changed."""
        touched = False
        for folder in sorted(self.journal.iterdir()) if self.leftovers() else ():
            if folder == self._debt:
                continue
            record = Record.read(self, folder)
            if record is None:
                remove_tree(folder)
                continue
            touched = True
            record.release_index()
            self.git.release_ref(record.head, record.new)
            if record.happened():
                self._owe_index(list(record.new))
                record.done()
            else:
                record.undo()
        self._pay_index(keep)
        return touched

    # -- the operator's index ---------------------------------------------------------------------

    def _owe_index(self, paths: list[str]) -> None:
        owed = sorted({*self._owed(), *paths})
        self.journal.mkdir(parents=True, exist_ok=True)
        part = self._debt.with_suffix(".part")
        part.write_text(json.dumps(owed))
        os.replace(part, self._debt)

    def _owed(self) -> list[str]:
        try:
            owed = json.loads(self._debt.read_text())
        except (OSError, ValueError):
            return []
        return [path for path in owed if isinstance(path, str)] if isinstance(owed, list) else []

    def _pay_index(self, keep: int) -> None:
        """Tell the index what HEAD holds at the owed paths. Somebody else's index.lock: next time."""
        owed = self._owed()
        if not owed:
            return
        blobs = self.git.blobs(self.git.head(), owed)
        record = Record(self, self.journal / f"{_stamp()}.part", None, {}, {path: blobs.get(path) for path in owed})
        record.folder.mkdir()
        index = _IndexUpdate(self, record)
        try:
            index.begin(keep)
            paid = index.finish()
        finally:
            remove_tree(record.folder)
        if paid:
            self._debt.unlink(missing_ok=True)


class Record:
    """One journalled write: `old` and `new` are the blob ids of its files, None for absent ones.

    Folder: `record.json`, `new/<n>` (bytes to publish), `old/<n>` (links to what was there), `index.mine` (the
    inode that proves an index.lock to be ours).
    """

    def __init__(self, store: Store, folder: Path, head: str | None, old: dict, new: dict):
        self.store, self.folder, self.head, self.old, self.new = store, folder, head, old, new

    @classmethod
    def write(cls, store: Store, change: Change, head: str | None) -> "Record":
        part = store.journal / f"{_stamp()}.part"
        old: dict[str, str | None] = {}
        new: dict[str, str | None] = {}
        record = cls(store, part.with_suffix(""), head, old, new)
        try:
            (part / "new").mkdir(parents=True)
            (part / "old").mkdir()
            for n, (path, data) in enumerate(change.files.items()):
                old[path] = cls._keep_old(store, path, part / "old" / str(n))
                new[path] = None if data is None else store.git.blob_id(data)
            born = [(part / "new" / str(n), data) for n, data in enumerate(change.files.values()) if data is not None]
            _write_all_durably(born)
            text = json.dumps({"head": head, "old": old, "new": new}, ensure_ascii=True)
            _write_durably(part / "record.json", text.encode())
            os.rename(part, record.folder)
            _sync_folder(store.journal)
        except OSError as error:
            record.done()
            raise failure(error) from error
        return record

    @staticmethod
    def _keep_old(store: Store, path: str, kept: Path) -> str | None:
        source = store.root / path
        try:
            os.link(source, kept, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError:  # a file system without hard links
            shutil.copy2(source, kept, follow_symlinks=False)
        return store.git.blob_id(kept.read_bytes())

    @classmethod
    def read(cls, store: Store, folder: Path) -> "Record | None":
        """The record in a folder of the journal; None when it never became one."""
        if folder.suffix == ".part":
            return None
        try:
            facts = json.loads((folder / "record.json").read_text())
            return cls(store, folder, facts["head"], facts["old"], facts["new"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def publish(self) -> None:
        folders = set()
        for n, (path, blob) in enumerate(self.new.items()):
            target = self.store.root / path
            if blob is None:
                target.unlink(missing_ok=True)
                _prune_folders(target.parent, self.store.root)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(self.folder / "new" / str(n), target)
            folders.add(target.parent)
        for folder in folders:
            if folder.is_dir():
                _sync_folder(folder)

    def happened(self) -> bool:
        """Whether HEAD, or a commit on the way to it since the record was written, holds what this write made."""
        git = self.store.git
        head = git.head()
        return head != self.head and any(git.holds(commit, self.new) for commit in git.newer(self.head, head))

    def undo(self) -> None:
        """Put the old files back where what this write made still stands, then forget the write."""
        for n, (path, old) in enumerate(self.old.items()):
            target, kept = self.store.root / path, self.folder / "old" / str(n)
            ours = self._blob_at(target) == self.new[path]
            if old is None:
                if ours:
                    target.unlink(missing_ok=True)
                _prune_folders(target.parent, self.store.root)
            elif ours and kept.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(kept, target)
        self.done()

    def _blob_at(self, target: Path) -> str | None:
        try:
            return self.store.git.blob_id(target.read_bytes())
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def release_index(self) -> None:
        """Remove an index.lock that this dead write left; its inode says whose it is."""
        lock, mine = self.store.git.folder / "index.lock", self.folder / "index.mine"
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(lock, follow_symlinks=False), os.stat(mine)):
                os.unlink(lock)

    def done(self) -> None:
        # renamed first: a record that is half removed must not be read as one
        part = self.folder.with_suffix(".part")
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.folder, part)
        remove_tree(part)


_UPDATE = ("update-index", "-z", "--index-info")


class _IndexUpdate:
    """Tells the operator's index about new blobs, so that `git status` stays silent about them, while everything
    staged stays staged. git works on a copy, in parallel with the commit; the copy takes its place afterwards."""

    def __init__(self, store: Store, record: Record):
        self.store, self.record = store, record
        self.real = store.git.folder / "index"
        self.lock = store.git.folder / "index.lock"
        self.copy = record.folder / "index"
        self.child: subprocess.Popen | None = None
        self.feeder: threading.Thread | None = None
        self.locked = self.plain = False

    def begin(self, keep: int) -> None:
        mine = self.record.folder / "index.mine"
        mine.touch()
        for pause in (0.005, 0.02, 0.05, 0):  # `git status` of an operator holds the lock for a blink
            try:
                os.link(mine, self.lock)
                self.locked = True
                break
            except FileExistsError:
                time.sleep(pause)
            except OSError:  # .git is on another file system, or this one has no hard links
                self._lock_plainly()
                break
        if not self.locked:
            return
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(self.real, self.copy)
        self.child = self.store.git.start(*_UPDATE, index=self.copy, keep=keep)
        self.feeder = threading.Thread(target=self.child.communicate, args=(self._rows(),), daemon=True)
        self.feeder.start()

    def _lock_plainly(self) -> None:
        """Lock as git does; a crash then leaves a lock that nobody can tell from anybody else's."""
        try:
            os.close(os.open(self.lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            return
        self.locked = self.plain = True

    def _rows(self) -> bytes:
        none = "0" * len(self.store.git.blob_id(b""))
        rows = (f"100644 {b}\t{p}" if b else f"0 {none}\t{p}" for p, b in self.record.new.items())
        return b"".join(os.fsencode(row) + b"\0" for row in rows)

    def finish(self) -> bool:
        """After HEAD moved: put the copy in place. False, with a debt noted, when that is not possible now. The
        write has happened, so nothing here may fail it; what fails once is tried once more."""
        good = self.locked and (self._replace(self._fed) or self._replace(self._anew))
        self._unlock()
        if not good and self.record.new:
            try:
                self.store._owe_index(list(self.record.new))
            except OSError:
                log.exception("the index could not be told of %d files", len(self.record.new))
        return good

    def _replace(self, prepare: Callable[[], None]) -> bool:
        try:
            prepare()
            if self.plain:
                shutil.copyfile(self.copy, self.lock)
                os.replace(self.lock, self.real)
                self.locked = False
            else:
                os.replace(self.copy, self.real)
        except (OSError, GitFailed):
            log.info("the index could not be replaced", exc_info=True)
            return False
        return True

    def _fed(self) -> None:
        self._reap()
        if self.child is None or self.child.returncode:
            raise GitFailed("update-index")

    def _anew(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(self.real, self.copy)
        self.copy.with_suffix(".lock").unlink(missing_ok=True)
        self.store.git.run(*_UPDATE, index=self.copy, data=self._rows())

    def _reap(self) -> None:
        if self.feeder:
            self.feeder.join()
        if self.child and self.child.poll() is None:  # its feeder failed
            self.child.kill()
            self.child.wait()

    def drop(self) -> None:
        self._reap()
        self._unlock()

    def _unlock(self) -> None:
        for _ in range(2 if self.locked else 0):
            try:
                os.unlink(self.lock)
            except FileNotFoundError:
                pass
            except OSError:
                continue
            self.locked = False
            return


def failure(error: Exception) -> VineError:
    """The envelope of an outage: what is wrong in plain words, no path and no library text."""
    number = getattr(error, "errno", None)
    if isinstance(error, GitFailed):
        what = "git could not record the change"
    elif number in (errno.ENOSPC, errno.EDQUOT):
        what = "the disk is full"
    elif number in (errno.EROFS, errno.EACCES, errno.EPERM):
        what = "a file of the forest cannot be written"
    elif number == errno.ENAMETOOLONG:
        what = "a file name is too long for this file system"
    else:
        what = "the forest's files could not be written"
    return VineError("E_INTERNAL", what, "Nothing was changed; the server's log has the details.")


def _stamp() -> str:
    return f"{time.time_ns():020d}-{os.getpid()}"


def _lives_elsewhere(name: str) -> bool:
    """Whether the process that made a record is alive and not this one."""
    pid = name.removesuffix(".part").rpartition("-")[2]
    if not pid.isdecimal() or int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _write_durably(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _write_all_durably(files: list[tuple[Path, bytes]]) -> None:
    if len(files) < 8:
        for path, data in files:
            _write_durably(path, data)
        return
    with ThreadPoolExecutor(8) as threads:  # a file system can sync many files in one go, if it is asked at once
        list(threads.map(_write_durably, *zip(*files)))


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _check_folders(root: Path, paths: Iterable[str]) -> None:
    """E_SCHEMA when a path leads through a symbolic link: nothing is ever written outside the forest."""
    for folder in {parent for path in paths for parent in Path(path).parents}:
        if (root / folder).is_symlink() and folder != Path("."):
            raise VineError("E_SCHEMA", f"the folder {folder} is a link, which the forest does not follow")


def _prune_folders(folder: Path, root: Path) -> None:
    """Remove folders that a removed file left empty."""
    with contextlib.suppress(OSError):
        while folder != root:
            folder.rmdir()
            folder = folder.parent


def remove_tree(folder: Path) -> None:
    """Remove a file or folder if it is there; a link is removed, not followed."""
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)
    else:
        folder.unlink(missing_ok=True)
