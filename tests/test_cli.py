"""The `vine` command as a user meets it: real processes on real forests.

Sections: helpers · forest and exit codes · reads · writes · ingest · upkeep · connect · demo · signals.
"""

import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
HANDBOOK = REPO / "forests" / "examples" / "handbook"
EXPENSES = "handbook/money/expenses"

# --------------------------------------------------------------------------------------------- helpers


def command(*args: object) -> list[str]:
    return [sys.executable, str(REPO / "cli.py"), *map(str, args)]


def environment(**extra: str) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("MONKEYLLM_")}
    return env | {"PYTHONIOENCODING": "utf-8"} | extra


def vine(
    *args: object, stdin: str | bytes = "", cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess:
    """Run one command line to its end; the output comes as text."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        command(*args), input=data, capture_output=True, cwd=cwd, env=environment(**env), timeout=120
    )
    out, err = done.stdout.decode("utf-8"), done.stderr.decode("utf-8")
    assert "Traceback" not in err
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def good(*args: object, **more) -> str:
    done = vine(*args, **more)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def answer(*args: object, **more) -> dict:
    return json.loads(good(*args, "--json", **more))


def refusal(*args: object, **more) -> dict:
    done = vine(*args, "--json", **more)
    assert done.returncode == 1
    return json.loads(done.stdout)["error"]


def head(forest: Path) -> str:
    return subprocess.run(
        ["git", "-C", forest, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def grown(tmp_path_factory) -> Path:
    """A forest with the example handbook in it; tests only read it."""
    forest = tmp_path_factory.mktemp("grown") / "brain"
    good("--forest", forest, "init", "--title", "Brain")
    good("--forest", forest, "adopt", HANDBOOK, "--dest", "handbook", "--quiet")
    return forest


@pytest.fixture
def forest(grown, tmp_path) -> Path:
    """A copy of the grown forest to write to."""
    return Path(shutil.copytree(grown, tmp_path / "brain"))


NOTE = {
    "id": "handbook/money/lunch", "type": "note", "title": "Lunch", "parent": "handbook/money/_index",
    "summary": "Where to eat on Tuesdays.", "body": "Soup.",
}  # fmt: skip

# --------------------------------------------------------------------------------- forest and exit codes


def test_init_says_what_it_made_and_refuses_a_second_time(tmp_path):
    forest = tmp_path / "brain"
    assert re.fullmatch(
        rf"forest created at {forest} \(commit [0-9a-f]{{8}}\)\n", good("--forest", forest, "init")
    )
    again = vine("--forest", forest, "init")
    assert again.returncode == 1
    assert again.stdout == "" and again.stderr.startswith("vine: E_SCHEMA: ")


def test_init_keeps_lines_of_an_existing_gitignore(tmp_path):
    (tmp_path / ".gitignore").write_text("secret.md\n")
    made = answer("--forest", tmp_path, "init")
    assert set(made) == {"root", "title", "commit"}
    lines = (tmp_path / ".gitignore").read_text().splitlines()
    assert "secret.md" in lines and "_derived/" in lines


@pytest.mark.parametrize(
    "args", [["scan"], ["validate"], ["adopt", "."], ["serve"], ["connect"], ["look", "x"]]
)
def test_a_folder_that_is_no_forest_is_wrong_usage(tmp_path, args):
    done = vine(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"{tmp_path} is not a forest (no _meta/schema.md)\n" and done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_no_forest_with_json_is_an_envelope(tmp_path):
    done = vine("scan", "--json", "--forest", tmp_path / "gone")
    assert done.returncode == 2
    assert "is not a forest" in json.loads(done.stdout)["error"]["message"]


@pytest.mark.parametrize("args", [[], ["fly"], ["locate"], ["locate", "a", "b"], ["scan", "--depth", "3"]])
def test_wrong_usage_exits_2_and_names_the_help(args):
    done = vine(*args)
    assert done.returncode == 2
    assert done.stdout == "" and "--help" in done.stderr


def test_help_lists_the_commands_and_exits_0():
    text = good("--help")
    for name in (
        "init",
        "serve",
        "connect",
        "locate",
        "harvest",
        "plant",
        "adopt",
        "sync",
        "validate",
        "demo",
    ):
        assert re.search(rf"^    {name} ", text, re.M), name


def test_options_may_stand_before_and_after_and_the_environment_is_the_default(grown):
    expected = good("--forest", grown, "--json", "look", EXPENSES)
    assert good("look", EXPENSES, "--json", "--forest", grown) == expected
    assert good("--json", "look", EXPENSES, MONKEYLLM_FOREST=str(grown)) == expected
    assert good("--json", "look", EXPENSES, cwd=grown) == expected
    assert good("--forest", grown, "--json", "look", EXPENSES, MONKEYLLM_FOREST="/nowhere") == expected


# ----------------------------------------------------------------------------------------------- reads


def test_json_is_the_exact_answer_of_the_engine_in_compact_form(grown):
    from forest import dumps
    from vine import Pool

    calls = [
        (["locate", "receipts", "-k", "2"], "locate", {"query": "receipts", "k": 2}),
        (["look", EXPENSES, "--fields", "title,tags"], "look", {"id": EXPENSES, "fields": ["title", "tags"]}),
        (["pick", EXPENSES, "--section", "Receipts"], "pick", {"id": EXPENSES, "section": "Receipts"}),
        (["move", EXPENSES, "--direction", "both"], "move", {"id": EXPENSES, "direction": "both"}),
        (["sniff", "E-17", "membrane"], "sniff", {"terms": ["E-17", "membrane"]}),
        (["scan", "handbook/_index", "--filter", '{"tags_any":["receipts"]}', "--recursive"], "scan",
         {"parent_id": "handbook/_index", "filter": {"tags_any": ["receipts"]}, "recursive": True}),
        (["harvest", "on call pay", "--term", "280", "--term", "EUR", "-k", "1"], "harvest",
         {"query": "on call pay", "terms": ["280", "EUR"], "k": 1}),
    ]  # fmt: skip
    pool = Pool.single(grown)
    try:
        for args, verb, given in calls:
            assert good("--forest", grown, "--json", *args) == dumps(pool.call(verb, given)) + "\n"
    finally:
        pool.close()


def test_text_of_the_reads_shows_what_a_person_wants_to_see(grown):
    at = ("--forest", grown)
    assert good(*at, "locate", "expense policy").startswith(f"1. {EXPENSES}  (note, score ")
    assert "outline:" in good(*at, "look", EXPENSES)
    assert good(*at, "pick", EXPENSES, "--section", "Receipts").startswith(
        "## Receipts\n\nA single item over 25 EUR"
    )
    assert "related-to -> handbook/money/purchasing" in good(*at, "move", EXPENSES)
    assert re.search(r"^   \d+: .*E-17", good(*at, "sniff", "E-17"), re.M)
    assert re.match(r"id +type +summary\n", good(*at, "scan"))
    assert "membrane" in good(*at, "harvest", "error E-17")
    assert good(*at, "locate", "zeppelin") == "nothing found\n"


def test_scan_without_an_id_lists_the_master_branch(grown):
    assert [node["id"] for node in answer("--forest", grown, "scan")["nodes"]] == ["handbook/_index"]
    assert len(answer("--forest", grown, "scan", "--recursive", "--limit", "5")["nodes"]) == 5


def test_arguments_are_refused_and_clamped_as_over_mcp(grown):
    at = ("--forest", grown)
    assert refusal(*at, "locate", "x", "-k", "many")["code"] == "E_SCHEMA"
    assert refusal(*at, "locate", "x", "--scope", "banana")["code"] == "E_SCHEMA"
    assert refusal(*at, "look", EXPENSES, "--fields", "nonsense")["code"] == "E_SCHEMA"
    assert refusal(*at, "scan", "--filter", "{oops")["code"] == "E_SCHEMA"
    assert refusal(*at, "scan", EXPENSES)["code"] == "E_SCHEMA"
    assert len(answer(*at, "locate", "policy", "-k", "0")["results"]) == 1


@pytest.mark.parametrize("debug", ["", "1"])
def test_an_unforeseen_fault_is_one_message_and_a_traceback_only_on_request(grown, debug):
    program = "import sys, cli; cli.Pool.single = None; sys.exit(cli.main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, "--forest", grown, "scan"],
        capture_output=True, text=True, env=environment(PYTHONPATH=str(REPO), VINE_DEBUG=debug),
    )  # fmt: skip
    assert done.returncode == 1 and done.stdout == ""
    told = "vine: E_INTERNAL: unforeseen TypeError\nSet VINE_DEBUG=1 to see where.\n"
    assert done.stderr.endswith(told) and ("Traceback" in done.stderr) == bool(debug)
    assert debug or done.stderr == told


def test_a_setting_that_cannot_be_used_stops_the_start_and_is_named(grown):
    for args in (["harvest", "receipts"], ["serve"]):
        done = vine("--forest", grown, *args, MONKEYLLM_HARVEST_MAX_K="many")
        assert done.returncode == 2 and "MONKEYLLM_HARVEST_MAX_K" in done.stderr and done.stdout == ""


def test_an_absent_node_is_one_message_and_exit_1(grown):
    done = vine("--forest", grown, "look", "nope")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "vine: E_NOT_FOUND: node not found: nope\nUse locate() to find entry points.\n"
    error = refusal("--forest", grown, "look", "nope")
    assert error == {
        "code": "E_NOT_FOUND",
        "message": "node not found: nope",
        "hint": "Use locate() to find entry points.",
    }


def test_control_characters_of_a_node_never_reach_the_terminal(forest):
    passport = 'id: bad\ntype: note\ntitle: "T\\e[31m\\u202Ered"\nsummary: "S\\a\\x9b2J bell"\n'
    (forest / "bad.md").write_text(f"---\n{passport}---\n\n# T\x1b]0;x\x07\nbell\x9b\n", "utf-8")
    for args in (
        ["locate", "bell"],
        ["look", "bad"],
        ["pick", "bad"],
        ["scan"],
        ["sniff", "bell"],
        ["harvest", "bell"],
    ):
        text = good("--forest", forest, *args)
        assert "bell" in text, args
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text), args


def test_json_is_utf8_whatever_the_locale(forest):
    (forest / "words.md").write_text("---\nid: words\ntype: note\ntitle: Wörter\n---\n\n# Wörter\n", "utf-8")
    done = subprocess.run(
        command("--json", "--forest", forest, "look", "words"), capture_output=True,
        env=environment(PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0"),
    )  # fmt: skip
    assert done.returncode == 0
    assert json.loads(done.stdout.decode("utf-8"))["title"] == "Wörter"


def test_a_read_loads_neither_the_mcp_library_nor_the_gardener(grown):
    program = "import sys, cli; cli.main(sys.argv[1:]); print(*sys.modules, sep='\\n', file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program, "--forest", grown, "locate", "receipts"],
        capture_output=True, text=True, env=environment(PYTHONPATH=str(REPO)), check=True,
    )  # fmt: skip
    assert EXPENSES in done.stdout
    loaded = set(done.stderr.split())
    assert loaded.isdisjoint({"mcp", "mcp_tools", "pydantic", "anyio", "starlette", "gardener", "converters"})


# ---------------------------------------------------------------------------------------------- writes


def test_plant_reads_stdin_or_a_file_and_names_the_commit(forest, tmp_path):
    text = good("--forest", forest, "plant", stdin=json.dumps(NOTE))
    assert text == f"handbook/money/lunch (commit {head(forest)[:8]})\n"
    file = tmp_path / "node.json"
    file.write_text(json.dumps(NOTE | {"id": "handbook/money/dinner", "title": "Dinner"}))
    planted = answer("--forest", forest, "plant", file)
    assert planted["commit"] == head(forest)
    assert good("--forest", forest, "pick", "handbook/money/dinner") == "# Dinner\n\nSoup.\n"


def test_graft_obeys_expect_and_says_when_nothing_changed(forest):
    patch = json.dumps({"set_frontmatter": {"title": "Spending"}})
    version = answer("--forest", forest, "look", EXPENSES)["version"]
    good("--forest", forest, "graft", EXPENSES, "-", "--expect", version, stdin=patch)
    assert answer("--forest", forest, "look", EXPENSES)["title"] == "Spending"
    assert (
        refusal("--forest", forest, "graft", EXPENSES, "--expect", version, stdin=patch)["code"] == "E_LOCKED"
    )
    assert good("--forest", forest, "graft", EXPENSES, stdin=patch) == f"{EXPENSES} (nothing changed)\n"


@pytest.mark.parametrize("stdin", ["", "{", "[1]", '"text"', b"\xff\xfe", "[" * 100_000])
def test_input_that_is_no_json_object_is_one_message(forest, stdin):
    before = head(forest)
    done = vine("--forest", forest, "plant", stdin=stdin)
    assert done.returncode == 1
    assert done.stderr.startswith("vine: E_SCHEMA: ") and done.stdout == ""
    assert head(forest) == before


def test_an_unreadable_file_is_one_message(forest):
    assert refusal("--forest", forest, "plant", forest / "absent.json")["code"] == "E_NOT_FOUND"


# ---------------------------------------------------------------------------------------------- ingest


@pytest.fixture
def notes(tmp_path) -> Path:
    """A folder of 25 small notes."""
    folder = tmp_path / "notes"
    folder.mkdir()
    for number in range(25):
        (folder / f"note-{number:02}.md").write_text(
            f"# Note {number}\n\nThe number of this note is {number}.\n"
        )
    return folder


def test_adopt_reports_lists_with_20_entries_and_all_when_verbose(forest, notes, tmp_path):
    text = good("--forest", forest, "adopt", notes, "--quiet")
    assert text.startswith("planted (25):\n  note-00\n")
    assert "  … and 5 more\n" in text and "note-24" not in text
    assert f"commits (1): {head(forest)[:8]}\n" in text
    assert good("--forest", forest, "adopt", notes, "--quiet") == "nothing to do\n"
    other = Path(shutil.copytree(notes, tmp_path / "other"))
    assert "note-24" in good("--forest", forest, "adopt", other, "--dest", "other", "--quiet", "--verbose")


def test_sync_finds_changed_and_gone_files(forest, notes):
    good("--forest", forest, "adopt", notes, "--dest", "n", "--quiet")
    (notes / "note-03.md").write_text("# Note 3\n\nNow about herons.\n")
    (notes / "note-04.md").unlink()
    report = answer("--forest", forest, "sync")
    assert (report["updated"], report["stale"], report["errors"]) == (["n/note-03"], ["n/note-04"], [])
    pruned = answer("--forest", forest, "sync", "--prune")
    assert pruned["pruned"] == ["n/note-04"]
    assert refusal("--forest", forest, "look", "n/note-04")["code"] == "E_NOT_FOUND"


def test_a_dry_run_writes_nothing(forest, notes):
    before = head(forest)
    assert "planted (25):" in good("--forest", forest, "adopt", notes, "--dry-run", "--quiet")
    assert head(forest) == before and not (forest / "note-00.md").exists()
    assert (
        "source_root" not in (forest / "_meta" / "gardener.yaml").read_text()
        or "notes" not in (forest / "_meta" / "gardener.yaml").read_text()
    )


def test_a_file_that_fails_is_named_and_makes_exit_1(forest, notes):
    (notes / "broken.md").write_bytes(b"text\x00\x01\x02 more\n")
    (notes / "table.ods").write_bytes(b"PK")
    done = vine("--forest", forest, "adopt", notes, "--quiet")
    assert done.returncode == 1
    assert "planted (25):" in done.stdout
    assert re.search(r"^errors \(1\):\n  broken\.md: .+", done.stdout, re.M)
    assert re.search(r"^unsupported \(1\):\n  table\.ods: .+", done.stdout, re.M)


def test_a_refused_adopt_is_exit_1(forest, tmp_path):
    done = vine("--forest", forest, "adopt", tmp_path / "absent")
    assert done.returncode == 1 and done.stderr.startswith("vine: E_SCHEMA: ")


def test_progress_without_a_terminal_is_plain_lines_on_stderr(forest, notes):
    done = vine("--forest", forest, "adopt", notes)
    assert done.returncode == 0 and done.stdout.startswith("planted (25):")
    assert re.fullmatch(r"(adopt \d+/25 \d+/s.*\n)*adopt 25/25 \d+/s.*\n", done.stderr)
    quiet = vine("--forest", forest, "sync", "--json")
    assert quiet.stderr == ""


def test_progress_on_a_terminal_is_one_line_that_is_cleared(forest, notes):
    for number in range(400):
        (notes / f"extra-{number:03}.md").write_text(f"# Extra {number}\n\nText {number}.\n")
    master, slave = pty.openpty()
    running = subprocess.Popen(
        command("--forest", forest, "adopt", notes),
        stdout=subprocess.DEVNULL,
        stderr=slave,
        env=environment(),
    )
    os.close(slave)
    shown = b""
    while chunk := _read_terminal(master):
        shown += chunk
    os.close(master)
    assert running.wait(timeout=60) == 0
    assert b"\n" not in shown and shown.endswith(b"\r\x1b[K")
    assert re.search(rb"\[[#-]{10}\] \d+/425 \d+% \d+/s eta ", shown)


def _read_terminal(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # Linux says so when the last writer has gone
        return b""


# ---------------------------------------------------------------------------------------------- upkeep


def test_reindex_says_how_much_and_where(forest):
    catalog = forest / "_derived" / "catalog.db"
    assert re.fullmatch(rf"reindexed \d+ nodes -> {catalog}\n", good("--forest", forest, "reindex"))
    result = answer("--forest", forest, "reindex")
    assert set(result) == {"nodes", "broken", "ms"} and result["broken"] == 0


def test_validate_lists_issues_and_exits_by_their_level(forest):
    assert good("--forest", forest, "validate", "--strict") == "0 error(s), 0 warning(s)\n"
    (forest / "stray.md").write_text("No passport here.\n")
    (forest / "broken.md").write_text("---\n[\n---\n\nText.\n")
    done = vine("--forest", forest, "validate")
    assert done.returncode == 1
    assert re.search(r"^\[error\] broken: .+ \(bad-frontmatter\)$", done.stdout, re.M)
    assert re.search(r"^\[warning\] stray: .+ \(no-frontmatter\)$", done.stdout, re.M)
    assert re.search(r"\n\n\d+ error\(s\), \d+ warning\(s\)\n$", done.stdout)
    (forest / "broken.md").unlink()
    relaxed, strict = (
        vine("--forest", forest, "validate", "--json"),
        vine("--forest", forest, "validate", "--strict"),
    )
    assert (relaxed.returncode, strict.returncode) == (0, 1)
    assert set(json.loads(relaxed.stdout)) == {"errors", "warnings", "issues"}


def test_validate_fix_repairs_an_index_in_one_commit(forest):
    index = forest / "handbook" / "money" / "_index.md"
    index.write_text(re.sub(r"^- \[\[handbook/money/travel\]\].*\n", "", index.read_text(), flags=re.M))
    assert vine("--forest", forest, "validate", "--strict").returncode == 1
    before = head(forest)
    good("--forest", forest, "validate", "--fix")
    assert head(forest) != before and "[[handbook/money/travel]]" in index.read_text()
    assert good("--forest", forest, "validate", "--strict") == "0 error(s), 0 warning(s)\n"


# --------------------------------------------------------------------------------------------- connect


def test_connect_prints_a_line_that_survives_a_shell_and_starts_a_server(grown, tmp_path):
    forest = Path(shutil.copytree(grown, tmp_path / "my brain's $HOME"))
    text = good("--forest", forest, "connect", "--name", "my notes", "--readonly")
    line, block = text.split("\n\n", 1)
    words = shlex.split(line)
    assert words[:5] == ["claude", "mcp", "add", "my notes", "--"]
    server = json.loads(block)["mcpServers"]["my notes"]
    assert [server["command"], *server["args"]] == words[5:]
    assert Path(server["command"]).is_absolute() and server["args"][-3:] == [
        "--forest",
        str(forest),
        "--readonly",
    ]
    client = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "0"},
    }
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
    started = subprocess.run(
        words[5:],
        input=json.dumps(hello) + "\n",
        capture_output=True,
        text=True,
        cwd="/",
        env=environment(),
        timeout=60,
    )
    assert json.loads(started.stdout.splitlines()[0])["result"]["serverInfo"]["name"] == "vine"


def test_connect_json_is_the_block_alone(grown):
    block = answer("--forest", grown, "connect")
    assert list(block) == ["mcpServers"] and list(block["mcpServers"]) == ["monkeyllm"]


def test_connect_names_a_root_or_a_url(tmp_path):
    root = answer("connect", "--root", tmp_path)["mcpServers"]["monkeyllm"]
    assert root["args"][-2:] == ["--root", str(tmp_path)]
    plain = answer("connect", "--http", cwd=tmp_path)["mcpServers"]["monkeyllm"]
    assert plain == {"type": "http", "url": "http://127.0.0.1:8000/mcp"}
    text = good("connect", "--http", "http://box:9/mcp?a=1&b=2")
    assert text.startswith("claude mcp add --transport http monkeyllm 'http://box:9/mcp?a=1&b=2'\n")
    assert vine("connect", "--root", tmp_path / "absent").returncode == 2


def test_serve_takes_one_of_forest_and_root(grown):
    done = vine("serve", "--root", grown.parent, "--forest", grown)
    assert done.returncode == 2 and done.stdout == ""


# ------------------------------------------------------------------------------------------------ demo


def test_demo_grows_a_sound_forest_and_shows_honest_counts(tmp_path):
    from forest import count_tokens

    target = tmp_path / "demo"
    facts = answer("demo", target)
    assert facts["forest"] == str(target)
    assert good("--forest", target, "validate", "--strict") == "0 error(s), 0 warning(s)\n"
    assert len(facts["questions"]) == 3
    for call in facts["questions"][0]["calls"]:
        given = call["args"]
        words = {
            "locate": ["locate", given.get("query"), "-k", given.get("k")],
            "look": ["look", given.get("id")],
            "pick": ["pick", given.get("id"), "--section", given.get("section")],
        }
        sent = good("--json", "--forest", target, *words[call["verb"]]).rstrip("\n")
        assert abs(count_tokens(sent) - call["tokens"]) <= 10  # heat moves by a digit or two between calls
    assert vine("demo", target).returncode == 1


def test_demo_tells_the_whole_story_as_text(tmp_path):
    text = good("demo", tmp_path / "demo")
    for told in (
        "A single item over 25 EUR needs a receipt",
        "do not restart it",
        "Semear entre 10 e 20 de março",
    ):
        assert told in text
    assert f"serve --forest {tmp_path / 'demo'}" in text
    assert "Throw it away" not in text


# ----------------------------------------------------------------------------------- signals and pipes


@pytest.mark.parametrize("args", [["scan", "--recursive"], ["--help"], ["--json", "look", EXPENSES]])
def test_a_reader_that_leaves_early_causes_no_noise(grown, args):
    running = subprocess.Popen(
        command("--forest", grown, *args), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    running.stdout.close()
    noise = running.stderr.read()
    assert noise == b"" and running.wait(timeout=60) in (0, 1)


def test_ctrl_c_is_exit_130_without_a_traceback(forest, tmp_path):
    fifo = tmp_path / "node.json"
    os.mkfifo(fifo)
    running = subprocess.Popen(
        command("--forest", forest, "plant", fifo),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    with open(fifo, "w"):  # opens once the command has begun to read
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=30) == 130
    assert running.stderr.read() == b"vine: interrupted\n" and running.stdout.read() == b""


def test_ctrl_c_while_the_engine_is_imported_is_exit_130_without_a_traceback():
    program = """
import os, signal, sys
class Press:
    def find_spec(self, name, path=None, target=None):
        if name == "vine":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Press())
import cli
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=environment(PYTHONPATH=str(REPO))
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_ctrl_c_in_adopt_keeps_what_landed_and_prints_the_report(forest, tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(3000):
        (folder / f"{number:04}.md").write_text(f"# Page {number}\n\nText of page {number}.\n")
    running = subprocess.Popen(
        command("--forest", forest, "adopt", folder, "--dest", "many", "--json"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    )  # fmt: skip
    while not (forest / "many" / "0000.md").exists() and running.poll() is None:
        pass
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130 and b"Traceback" not in err
    planted = json.loads(out)["planted"]
    assert 0 < len(planted) < 3000
    assert len(list((forest / "many").glob("[0-9]*.md"))) == len(planted) or json.loads(out).get("truncated")
    assert subprocess.run(["git", "-C", forest, "status", "--porcelain"], capture_output=True).stdout == b""
