"""The catalog as a cache: lost, damaged, foreign, read-only, shared; and how soon it follows the files.

Sections: helpers · what stands in the way of a catalog · damage while serving · read-only folders ·
freshness · rebuilding · processes.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from small_forest import ask, grown, ids, planted, refusal, write

import forest
import vine
from catalog import Catalog
from vine import Vine

# ---------------------------------------------------------------------------------------------------- helpers

NODES = {f"a/n{n}": {"title": f"Node {n}", "body": f"zebra number{n}"} for n in range(30)}


@pytest.fixture
def root(tmp_path):
    return grown(tmp_path / "forest", NODES)


def catalog_file(root: Path) -> Path:
    return root / "_derived" / "catalog.db"


def works(engine, count: int = 30) -> None:
    """Every kind of read gives what the files hold."""
    assert ask(engine, "sniff", terms="zebra")["scanned_nodes"] == count + 3
    assert ids(ask(engine, "locate", query="Node 7"))[0] == "a/n7"
    assert ids(ask(engine, "harvest", query="number7")) == ["a/n7"]
    assert ask(engine, "look", id="a/_index")["coverage"] == f"{count} bananas, 0 sub-branches"
    assert ask(engine, "scan", parent_id="a/_index", limit=1)["total"] == count


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(
            "CREATE TABLE nodes (id TEXT); CREATE TABLE other (x); INSERT INTO other VALUES (1);"
        )


def garbage(path: Path) -> None:
    path.write_bytes(b"no database " * 4000)


def holes(path: Path) -> None:
    """A real catalog with its middle overwritten."""
    size = path.stat().st_size
    with open(path, "r+b") as file:
        for at in range(4096, size, 4096):
            file.seek(at)
            file.write(b"\xff" * 2048)


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def older_layout(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 0")


# ------------------------------------------------------------------------ what stands in the way of a catalog


@pytest.mark.parametrize("harm", [foreign, garbage, lambda path: path.write_bytes(b""), lambda path: None])
def test_whatever_lies_there_at_the_start_is_replaced(root, harm):
    catalog_file(root).parent.mkdir()
    harm(catalog_file(root))
    with closing(Vine(root)) as engine:
        works(engine)


@pytest.mark.parametrize("harm", [holes, cut_short, older_layout, garbage, foreign, Path.unlink])
def test_a_catalog_harmed_between_two_starts(root, harm):
    with closing(Vine(root)) as engine:
        works(engine)
    for path in root.glob("_derived/catalog.db-*"):
        path.unlink()
    if harm is foreign:
        catalog_file(root).unlink()
    harm(catalog_file(root))
    with closing(Vine(root)) as engine:
        works(engine)


def test_a_journal_of_another_file_is_not_replayed(root, tmp_path):
    with closing(Vine(root)) as engine:
        works(engine)
        shutil.copy(catalog_file(root), tmp_path / "old.db")
        shutil.copy(f"{catalog_file(root)}-wal", tmp_path / "old.wal")
    garbage(catalog_file(root))
    shutil.copy(tmp_path / "old.wal", f"{catalog_file(root)}-wal")
    write(root, "a/n7", "changed meanwhile", title="Node 7")
    with closing(Vine(root)) as engine:
        assert ids(ask(engine, "sniff", terms="changed meanwhile")) == ["a/n7"]


def test_the_dead_do_not_pile_up(root):
    with closing(Vine(root)) as engine:
        works(engine)
        with closing(sqlite3.connect(catalog_file(root))) as db:
            db.execute("INSERT INTO docs (doc, id, names) VALUES (90000, 'ghost', '')")
            db.commit()
    with closing(Vine(root)) as engine:
        works(engine)
        with closing(sqlite3.connect(catalog_file(root))) as db:
            assert db.execute("SELECT max(doc) FROM docs").fetchone()[0] < 1000


# --------------------------------------------------------------------------------------- damage while serving


def swapped(path: Path, harm) -> None:
    """Another file of this name, as a copy or a restore puts it there."""
    other = path.with_name("other")
    shutil.copy(path, other)
    if harm is foreign:
        other.unlink()
    harm(other)
    os.replace(other, path)


@pytest.mark.parametrize("harm", [holes, garbage, foreign])
def test_a_file_put_in_its_place_while_serving(root, harm):
    with closing(Vine(root)) as engine:
        works(engine)
        for path in root.glob("_derived/catalog.db-*"):
            path.unlink()
        swapped(catalog_file(root), harm)
        works(engine)
        works(engine)


@pytest.mark.parametrize("harm", [holes, garbage, cut_short])
def test_a_file_harmed_in_place_while_serving(root, harm):
    with closing(Vine(root)) as engine:
        works(engine)
        with closing(sqlite3.connect(catalog_file(root))) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        harm(catalog_file(root))
        engine.catalog.stale()
        works(engine)


def test_derived_deleted_while_serving(root):
    with closing(Vine(root)) as engine:
        works(engine)
        shutil.rmtree(root / "_derived")
        works(engine)
        assert catalog_file(root).exists()


def test_a_write_finds_a_damaged_catalog(tmp_path):
    vine.init(tmp_path / "f")
    with closing(Vine(tmp_path / "f")) as engine:
        planted(engine, "a/n")
        for path in engine.root.glob("_derived/catalog.db-*"):
            path.unlink()
        swapped(catalog_file(engine.root), garbage)
        assert len(planted(engine, "a/m")) == 40
        assert ask(engine, "look", id="a/_index")["coverage"] == "2 bananas, 0 sub-branches"
        assert (engine.root / "a/_index.md").read_text().count("- [[a/") == 2


def test_two_engines_beside_each_other_when_one_replaces_the_file(root):
    with closing(Vine(root)) as one, closing(Vine(root)) as two:
        works(one)
        works(two)
        one.catalog.reopen()
        works(one)
        write(root, "a/n30", "zebra number30")
        one.catalog.stale()
        two.catalog.stale()
        works(two, 31)
        works(one, 31)


# ------------------------------------------------------------------------------------------ read-only folders


def test_a_derived_that_is_no_folder_is_done_without(root):
    (root / "_derived").write_text("in the way")
    with closing(Vine(root)) as engine:
        works(engine)
        scratch = engine.catalog.path.parent
        write(root, "a/n30", "zebra number30")
        engine.catalog.stale()
        works(engine, 31)
    assert scratch != root / "_derived" and not scratch.exists()


READER = """
import os, sys
from vine import Vine

def read(root):
    engine = Vine(root, readonly=True)
    found = engine.call("sniff", {"terms": "zebra"})
    print(found["scanned_nodes"], engine.call("pick", {"id": "a/n7"})["body"])
    engine.call("close_session", {"success": True, "answer_nodes": ["a/n7"]})
    engine.close()

read(sys.argv[1])  # whatever Python loads late is loaded while everything may be read
os.setgid(65534)
os.setuid(65534)
read(sys.argv[2])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="takes a second user")
@pytest.mark.parametrize("built", [False, True], ids=["no catalog", "a catalog that cannot be written"])
def test_a_forest_that_may_only_be_read_is_served(built, root):
    with Readable() as readable:
        if built:
            with closing(Vine(readable)) as engine:
                works(engine)
        before = sorted(p.name for p in readable.rglob("*"))
        here = Path(forest.__file__).parent
        done = subprocess.run(
            [sys.executable, "-c", READER, root, readable], cwd=here, capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (0, "33 zebra number7\n" * 2), done.stderr
        assert sorted(p.name for p in readable.rglob("*")) == before


class Readable:
    """A forest below a folder that every user may enter, as pytest's own are not."""

    def __enter__(self) -> Path:
        self.folder = Path(f"/tmp/readable-forest-{os.getpid()}")
        self.folder.mkdir()
        return grown(self.folder / "forest", NODES)

    def __exit__(self, *_):
        shutil.rmtree(self.folder)


# -------------------------------------------------------------------------------------------------- freshness


def test_an_edit_that_restores_size_and_time_is_seen(root):
    with closing(Vine(root)) as engine:
        works(engine)
        path = root / "a/n7.md"
        stat = path.stat()
        path.write_bytes(path.read_bytes().replace(b"zebra", b"lions"))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        engine.catalog.stale()
        assert ids(ask(engine, "sniff", terms="lions")) == ["a/n7"]


def test_two_edits_within_one_tick_of_the_clock_are_both_seen(root):
    with closing(Vine(root)) as engine:
        works(engine)
        for n in range(20):
            write(root, "a/n7", f"edit number {n:02}")
            engine.catalog.stale()
            assert ids(ask(engine, "sniff", terms=f"edit number {n:02}")) == ["a/n7"]


def test_a_watcher_sees_edits_while_calls_come(root):
    """Calls every few milliseconds never pause long enough for a check of their own."""
    with closing(Vine(root)) as engine:
        works(engine)
        write(root, "a/n7", "edited while busy")
        edited = time.monotonic()
        while time.monotonic() - edited < 2.0:
            ask(engine, "look", id="a/n1")
        assert ids(ask(engine, "sniff", terms="edited while busy")) == ["a/n7"]


def test_what_is_no_node_is_no_row(root):
    for path in (".hidden/x.md", "_derived/x.md", "a/_assets/x.md", "a/.git/x.md", "a/x.MD", "a/x.markdown"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / "a/n1.md", root / path)
    (root / "linked").symlink_to(root / "a")
    (root / "link.md").symlink_to(root / "a/n1.md")
    (root / "folder.md").mkdir()
    os.mkfifo(root / "pipe.md")
    with closing(Vine(root)) as engine:
        works(engine)
        for id in ("link", "linked/n1", "folder", "pipe", ".hidden/x", "a/_assets/x", "_derived/x"):
            assert refusal(engine, "look", {"id": id})["code"] == "E_NOT_FOUND"


def test_one_broken_file_hides_nothing_else(root):
    harms = {
        "utf": b"---\ntitle: \xff\n---\n",
        "open": b"no line",
        "close": b"---\ntitle: x\n",
        "yaml": b"---\n: [\n---\n",
        "list": b"---\n- a\n---\n",
        "tag": b"---\ntitle: !!python/object:os.system x\n---\n",
        "nul": b"\0" * 99,
        "big": b"---\nx: '" + b"y" * 300_000 + b"'\n---\n",
        "empty": b"",
        "loop": b"---\na: &a [*a]\n---\n",
    }
    for name, data in harms.items():
        (root / f"bad-{name}.md").write_bytes(data)
    with closing(Vine(root)) as engine:
        works(engine)
        for name in harms:
            assert refusal(engine, "look", {"id": f"bad-{name}"})["code"] == "E_FRONTMATTER", name
            assert (
                refusal(engine, "sniff", {"terms": "zebra", "scope": f"bad-{name}"})["code"]
                == "E_FRONTMATTER"
            )
        write(root, "bad-utf", "mended zebra")
        engine.catalog.stale()
        assert ids(ask(engine, "sniff", terms="mended")) == ["bad-utf"]


def test_odd_paths_are_catalogued_as_they_are(root):
    names = [
        "with blank",
        "Ünïcode",
        "cafe\u0301",
        "emoji 👩‍🚀",
        "quote'\"",
        "per%20cent",
        "semi;colon",
        "-dash",
        "x" * 200,
    ]
    for name in names:
        (root / f"{name}.md").write_text(f"---\ntype: note\n---\nodd body of {name}\n")
    with closing(Vine(root)) as engine:
        for name in names:
            assert ask(engine, "pick", id=name)["body"] == f"odd body of {name}"
        assert len(ids(ask(engine, "sniff", terms="odd body", k=20))) >= 3


# ------------------------------------------------------------------------------------------------- rebuilding


def test_a_rebuild_tells_counts_and_changes_no_answer(root):
    (root / "bad.md").write_text("broken")
    with closing(Vine(root)) as engine:
        works(engine)
        told = engine.reindex()
        assert (told["nodes"], told["broken"]) == (33, 1) and told["ms"] > 0
        works(engine)


def test_reading_goes_on_during_rebuilds(root):
    with closing(Vine(root)) as engine, closing(Vine(root)) as other:
        works(engine)
        faults, stop = [], threading.Event()

        def read(reader):
            while not stop.is_set():
                try:
                    works(reader)
                except BaseException as error:
                    faults.append(error)
                    return

        threads = [threading.Thread(target=read, args=(reader,)) for reader in (engine, engine, other)]
        for thread in threads:
            thread.start()
        for _ in range(6):
            engine.reindex()
        stop.set()
        for thread in threads:
            thread.join()
        assert not faults, faults[0]


def test_reading_goes_on_while_the_file_is_replaced(root):
    """A thread starts the catalog anew again and again; whatever a reader meets, its answers are whole."""
    with closing(Vine(root)) as engine:
        works(engine)
        for _ in range(5):
            worker = threading.Thread(target=engine.catalog.reopen)
            worker.start()
            works(engine)
            worker.join()
        works(engine)


# -------------------------------------------------------------------------------------------------- processes

OPENER = """
import sys
from vine import Vine
engine = Vine(sys.argv[1])
answer = engine.call("sniff", {"terms": "zebra", "k": 20})
print(answer["scanned_nodes"], answer["truncated"], answer["results"][0]["id"])
"""


def test_processes_that_open_a_new_forest_at_once(root):
    here = Path(forest.__file__).parent
    crowd = [
        subprocess.Popen([sys.executable, "-c", OPENER, root], cwd=here, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    told = [process.communicate()[0] for process in crowd]
    assert told == ["33 True a/n0\n"] * 4
    with closing(Vine(root)) as engine:
        works(engine)


def test_one_engine_sees_what_another_wrote_at_its_next_call(tmp_path):
    vine.init(tmp_path / "f")
    with closing(Vine(tmp_path / "f")) as one, closing(Vine(tmp_path / "f")) as two:
        for n in range(10):
            planted(one, f"n{n}", f"needle {n}")
            assert ask(two, "pick", id=f"n{n}")["body"].endswith(f"needle {n}")
            assert ids(ask(two, "sniff", terms=f"needle {n}")) == [f"n{n}"]
            ask(two, "graft", id=f"n{n}", patch={"replace_body": f"other {n}"})
            assert ids(ask(one, "sniff", terms=f"other {n}")) == [f"n{n}"]


def test_opening_and_closing_leaves_no_thread_and_no_folder(root):
    before = threading.active_count()
    for _ in range(5):
        with closing(Vine(root)) as engine:
            works(engine)
    deadline = time.monotonic() + 20
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() <= before
    assert Catalog.CHECK_EVERY < 2


def test_an_edit_that_was_taken_back_between_two_checks_leaves_nothing_behind(root):
    with closing(Vine(root)) as engine:
        works(engine)
        before = (root / "a/n7.md").read_bytes()
        write(root, "a/n7", "zebra lions")
        time.sleep(0.1)
        ask(engine, "sniff", terms="a lions")  # reads texts that the catalog does not know yet
        (root / "a/n7.md").write_bytes(before)
        engine.catalog.stale()
        assert ids(ask(engine, "sniff", terms="zebra lions")) == []
        assert ids(ask(engine, "sniff", terms="zebra number7")) == ["a/n7"]
