"""The `vine` command line: a thin shell over the engine.

Owns: argument parsing, text for people, progress on stderr, exit codes, `connect`; and it starts `demo.py`.
Must never: hold a rule that another shell would need too, or import the MCP SDK, the Gardener or the
tokenizer before the command at hand needs them (`vine locate` answers in well under half a second).

Sections: words out · text of each verb · text of a report · progress · forest and input · commands ·
connect · demo · parser · main.

Invariants
- stdout carries the result, stderr everything else; with `--json` stdout is one compact JSON object.
- No control character of a forest reaches a terminal: `say` and `warn` are the only ways out.
- Exit codes: 0 done, 1 failed, 2 wrong usage or no forest there, 130 interrupted. Never a traceback.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Callable, Iterator, NoReturn

# Ctrl-C while the engine is being imported: there is no `main` yet that could end this without a traceback.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

from forest import VineError, dumps, one_line  # noqa: E402
from vine import VERBS, Param, Pool, Verb, Vine, harvest_limit, init  # noqa: E402

# ------------------------------------------------------------------------------------------- words out

# Control characters but tab and LF, line separators, and marks that reverse the reading direction.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


class Usage(Exception):
    """A command line that cannot run; the text is shown as it stands and the exit code is 2."""


def printable(text: str) -> str:
    """`text` with whatever could steer a terminal shown as an escape sequence in letters."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def say(text: str) -> None:
    """Print text for people on stdout."""
    print(printable(text))


def warn(text: str) -> None:
    """Print a diagnostic on stderr."""
    print(printable(text), file=sys.stderr)


def emit(args: argparse.Namespace, result: dict, text: Callable[[dict], str]) -> None:
    """Print a command's result: the object itself with `--json`, else what `text` makes of it."""
    if args.json:
        print(dumps(result))
    else:
        say(text(result))


def width() -> int:
    """Columns to fill: the terminal's, at most 100, and 88 where there is no terminal."""
    return min(shutil.get_terminal_size((88, 24)).columns, 100)


def wrapped(text: str, indent: str = "") -> str:
    """One paragraph, folded to the terminal; left on one line for a pipe, where tools read lines."""
    text = one_line(text)
    if not sys.stdout.isatty():
        return indent + text
    return textwrap.fill(text, width(), initial_indent=indent, subsequent_indent=indent)


# ----------------------------------------------------------------------------------- text of each verb

CUT = "… there is more; ask narrower."


def table(columns: list[str], rows: list[list[Any]]) -> str:
    """Rows under their column names, aligned; the last column is as long as it is."""
    cells = [[one_line("" if cell is None else str(cell)) for cell in row] for row in [columns, *rows]]
    wide = [min(40, max(map(len, column))) for column in zip(*cells)]
    wide[-1:] = [0]
    return "\n".join("  ".join(cell.ljust(room) for cell, room in zip(row, wide)).rstrip() for row in cells)


def plainly(value: Any, indent: str = "") -> Iterator[str]:
    """Any JSON value as indented lines: keys with their values, list items one a line."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(inner, (dict, list)):
                yield f"{indent}{one_line(key)}: {_scalar(inner)}"
            elif all(isinstance(part, str) and " " not in part for part in inner) and isinstance(inner, list):
                yield f"{indent}{one_line(key)}: {', '.join(inner) or 'none'}"
            else:
                yield f"{indent}{one_line(key)}:"
                yield from plainly(inner, indent + "  ")
    elif isinstance(value, list):
        for item in value:
            parts = item.values() if isinstance(item, dict) else item if isinstance(item, list) else [item]
            yield indent + "  ".join(_scalar(part) for part in parts)


def _scalar(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return dumps(value)
    return "" if value is None else one_line(value) if isinstance(value, str) else json.dumps(value)


def _head(rank: int, item: dict, *facts: str) -> list[str]:
    """The two lines that open a search result."""
    return [f"{rank}. {item['id']}  ({', '.join([item['type'], *facts])})", f"   {one_line(item['title'])}"]


def _listing(blocks: list[str], truncated: bool, nothing: str, gap: str = "\n\n") -> str:
    return gap.join((blocks or [nothing]) + [CUT] * truncated)


def locate_text(result: dict) -> str:
    """Ranked entry points, each with its summary."""
    blocks = []
    for rank, item in enumerate(result["results"], 1):
        facts = [f"score {item['score']}", f"heat {item['heat']}", *filter(None, [item.get("coverage")])]
        blocks.append("\n".join([*_head(rank, item, *facts), wrapped(item["summary"], "   ")]))
    return _listing(blocks, result["truncated"], "nothing found")


def sniff_text(result: dict) -> str:
    """Literal hits with their line numbers."""
    blocks = []
    for rank, item in enumerate(result["results"], 1):
        hits = [f"   {hit['line']}: {hit['snippet']}" for hit in item["matches"]]
        blocks.append("\n".join([*_head(rank, item, f"{item['match_count']} line(s)"), *hits]))
    return _listing(blocks, result["truncated"], f"nothing found in {result['scanned_nodes']} nodes")


def move_text(result: dict) -> str:
    """One neighbour a line, with the direction of the edge."""
    lines = []
    for item in result["neighbors"]:
        arrow = "<-" if item["direction"] == "in" else "->"
        lines.append(f"{item['rel']} {arrow} {item['id']}  {one_line(item['summary'])}")
    return _listing(lines, result["truncated"], "no neighbours", "\n")


def scan_text(result: dict) -> str:
    """The nodes as a table of the fields asked for."""
    nodes = result["nodes"]
    rows = [[_scalar(value) for value in node.values()] for node in nodes]
    return _listing([table(list(nodes[0]), rows)] if nodes else [], result["truncated"], "no nodes")


def harvest_text(result: dict) -> str:
    """Each result with the text an agent would get."""
    blocks = []
    for rank, item in enumerate(result["results"], 1):
        lines = _head(rank, item, f"score {item['score']}", "+".join(item["found_by"]))
        for part in item["content"]:
            texts = [part["body"]] if "body" in part else [window["text"] for window in part["windows"]]
            for text in texts:
                lines += ["", textwrap.indent(text, "   ")]
        blocks.append("\n".join(lines))
    return _listing(blocks, result["truncated"], "nothing found")


def pick_text(result: dict) -> str:
    """The body itself; the outline where the body is too long."""
    if "body" in result:
        return result["body"]
    return "\n".join([f"outline of {result['id']}, {result['body_tokens']} tokens:", *result["outline"]])


def look_text(result: dict) -> str:
    """The digest, key by key."""
    return "\n".join(plainly(result))


def write_text(result: dict) -> str:
    """Id and commit of a write."""
    outcome = f"commit {result['commit'][:8]}" if result["commit"] else "nothing changed"
    return f"{result['id']} ({outcome})"


VERB_TEXT: dict[str, Callable[[dict], str]] = {
    "harvest": harvest_text, "locate": locate_text, "sniff": sniff_text, "look": look_text, "move": move_text,
    "pick": pick_text, "view": look_text, "scan": scan_text, "plant": write_text, "graft": write_text,
}  # fmt: skip

# ------------------------------------------------------------------------------------ text of a report

_LISTS = (
    "planted", "updated", "moved", "pruned", "stale", "conflicts", "duplicates", "unchanged", "branches",
    "branches_new", "skipped", "unsupported", "warnings", "errors",
)  # fmt: skip


def _report_lists(report: dict) -> dict[str, list[str]]:
    """Every list of an ingest report as lines, reasons included."""
    reasons = {item["path"]: item["message"] for item in report["details"]}
    told = {*report["errors"], *(f"{path}: {reasons.get(path, '')}" for path in report["unsupported"])}
    noted = [(f"{item['path']}: {item['message']}", item["code"]) for item in report["details"]]
    lists = {name: list(report.get(name, ())) for name in _LISTS}
    lists["moved"] = [f"{item['from']} -> {item['to']}" for item in report["moved"]]
    lists["conflicts"] = [
        f"{item['id']}: {item['kind']}" + (f", proposal {item['proposal']}" if item["proposal"] else "")
        for item in report["conflicts"]
    ]
    lists["duplicates"] = [f"{item['path']} is {item['id']}" for item in report["duplicates"]]
    lists["unsupported"] = [f"{path}: {reasons.get(path, '')}" for path in report["unsupported"]]
    lists["skipped"] = [f"{count} {name}" for name, count in sorted(report["skipped"]["reasons"].items())]
    lists["warnings"] = [f"{note} ({code})" for note, code in noted if note not in told]
    return lists


def report_text(report: dict, verbose: bool = False) -> str:
    """An ingest report: each non-empty list with 20 entries (all when verbose), then the commits."""
    lists = {name: entries for name, entries in _report_lists(report).items() if entries}
    if set(lists) <= {"unchanged"}:
        return "nothing to do"
    lines = []
    for name, entries in lists.items():
        count = report["skipped"]["count"] if name == "skipped" else report["counts"].get(name, len(entries))
        shown = entries if verbose else entries[:20]
        lines += [f"{name.replace('_', ' ')} ({count}):", *(f"  {entry}" for entry in shown)]
        if count > len(shown) and name != "skipped":
            lines.append(f"  … and {count - len(shown)} more")
    commits = report["commits"]
    lines.append(f"commits ({len(commits)}): {' '.join(one[:8] for one in commits) or 'none'}")
    return "\n".join(lines)


# -------------------------------------------------------------------------------------------- progress


class Progress:
    """Progress of a batch on stderr: one redrawn line on a terminal, else a plain line every two seconds."""

    def __init__(self, verb: str, quiet: bool):
        self.verb, self.quiet = verb, quiet
        self.live = sys.stderr.isatty()
        self.started, self.shown = time.monotonic(), 0.0
        self.last: tuple[int, int, str] | None = None

    def __call__(self, done: int, total: int, current: str | None) -> None:
        """Note that `done` of `total` documents are finished and `current` is in hand."""
        self.last = (done, total, current or "")
        now = time.monotonic()
        if not self.quiet and now - max(self.shown, self.started) >= (0.1 if self.live else 2.0):
            self.shown = now
            self._draw()

    def close(self) -> None:
        """Clear the line, or print the last one where lines stay."""
        if self.quiet or self.last is None:
            return
        if self.live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        else:
            self._draw()

    def _draw(self) -> None:
        done, total, current = self.last
        rate = done / max(time.monotonic() - self.started, 0.001)
        if not self.live:
            warn(f"{self.verb} {done}/{total} {rate:.0f}/s {current}".rstrip())
            return
        share = done / total if total else 1.0
        bar = "#" * round(share * 10)
        eta = f"{(total - done) / rate:.0f}s" if rate else "?"
        line = f"[{bar:-<10}] {done}/{total} {share:.0%} {rate:.0f}/s eta {eta} {current}"
        room = (os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1
        sys.stderr.write(f"\r{printable(one_line(line))[:room]}\x1b[K")
        sys.stderr.flush()


# ------------------------------------------------------------------------------------ forest and input


def forest_path(args: argparse.Namespace) -> Path:
    """The forest folder that the command line, MONKEYLLM_FOREST or the working directory names."""
    return Path(os.path.abspath(args.forest or os.environ.get("MONKEYLLM_FOREST") or "."))


def existing_forest(args: argparse.Namespace) -> Path:
    """`forest_path`, refused (exit 2) when no forest is there."""
    path = forest_path(args)
    if not (path / "_meta" / "schema.md").is_file():
        raise Usage(f"{path} is not a forest (no _meta/schema.md)")
    return path


def existing_root(args: argparse.Namespace) -> Path:
    """The folder of `--root`, refused (exit 2) when it is none or when `--forest` is there too."""
    if args.forest:
        raise Usage("vine: --forest and --root exclude each other")
    path = Path(os.path.abspath(args.root))
    if not path.is_dir():
        raise Usage(f"{path} is not a folder")
    return path


def check_settings() -> None:
    """Refuse to start (exit 2) on a setting of the environment that the engine cannot use."""
    try:
        harvest_limit()
    except ValueError as fault:
        raise Usage(f"vine: {fault}") from None


def read_text(name: str) -> str:
    """The text of a file, or of stdin for `-`; must be UTF-8."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise VineError("E_SCHEMA", f"{'stdin' if name == '-' else name} is not UTF-8 text") from None
    except OSError as fault:
        raise VineError("E_NOT_FOUND", f"cannot read {name}: {fault.strerror}") from None


def parse_json(text: str, what: str) -> Any:
    """JSON from a person's hand."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as fault:
        line = f" (line {fault.lineno})" if isinstance(fault, json.JSONDecodeError) else ""
        raise VineError("E_SCHEMA", f"{what} is not JSON{line}") from None


def argument(param: Param, raw: Any) -> Any:
    """What was typed, in the type that the engine expects. What does not fit goes on as text, so that the
    engine refuses it in the same words as over MCP."""
    if param.kind == "integer" and re.fullmatch(r"-?[0-9]{1,18}", raw):
        return int(raw)
    if param.kind == "strings" and isinstance(raw, str):
        return [part.strip() for part in raw.split(",")]
    if param.kind == "object":
        return parse_json(read_text(raw), param.name) if param.required else parse_json(raw, param.name)
    return raw


# -------------------------------------------------------------------------------------------- commands


def run_verb(args: argparse.Namespace) -> int:
    """One primitive of the engine, arguments and answer as over MCP."""
    verb = VERBS[args.command]
    path = existing_forest(args)
    check_settings()
    typed = [(param, getattr(args, param.name)) for param in verb.params]
    given = {param.name: argument(param, raw) for param, raw in typed if raw is not None}
    with closing(Pool.single(path)) as pool:
        result = pool.call(verb.name, given)
    data = result.pop("data", None)
    if data is not None and args.out:
        write_bytes(args.out, data)
    emit(args, result, VERB_TEXT[verb.name])
    if result.get("truncated") and result.get("hint") and not args.json:
        warn(f"({result['hint']})")
    return 0


def write_bytes(name: str, data: bytes) -> None:
    """Write a payload where the user asked for it."""
    try:
        Path(name).write_bytes(data)
    except OSError as fault:
        raise VineError("E_SCHEMA", f"cannot write {name}: {fault.strerror}") from None


def run_init(args: argparse.Namespace) -> int:
    """Make a forest of a folder."""
    result = init(forest_path(args), title=args.title, summary=args.summary)
    emit(args, result, lambda made: f"forest created at {made['root']} (commit {made['commit'][:8]})")
    return 0


def run_serve(args: argparse.Namespace) -> int:
    """Serve one forest, or every forest below a root, over MCP."""
    check_settings()
    if args.root:
        pool = Pool.registry(existing_root(args), readonly=args.readonly)
    else:
        pool = Pool.single(existing_forest(args), readonly=args.readonly)
    for number in (signal.SIGTERM, signal.SIGINT):  # nothing runs yet; the server sets its own handlers
        signal.signal(number, lambda *_: os._exit(0))
    from mcp_tools import serve

    return serve(pool, transport=args.transport, host=args.host, port=args.port)


def run_ingest(args: argparse.Namespace) -> int:
    """`adopt` and `sync`: bring a folder in, or bring it up to date."""
    import gardener

    progress = Progress(args.command, quiet=args.quiet or args.json)
    options = {"prune": args.prune, "dry_run": args.dry_run, "progress": progress}
    with closing(Vine(existing_forest(args))) as engine, closing(progress):
        if args.command == "adopt":
            report = gardener.adopt(engine, args.source, dest=args.dest, **options)
        else:
            report = gardener.sync(engine, args.source, path=args.path, **options)
    emit(args, report, lambda result: report_text(result, args.verbose))
    if report.get("interrupted"):
        return 130
    return 1 if report["errors"] else 0


def run_reindex(args: argparse.Namespace) -> int:
    """Build the catalog anew from the files."""
    path = existing_forest(args)
    with closing(Vine(path)) as engine:
        result = engine.reindex(ahead=True)
    where = path / "_derived" / "catalog.db"
    emit(args, result, lambda done: f"reindexed {done['nodes']} nodes -> {where}")
    return 0


def run_validate(args: argparse.Namespace) -> int:
    """Check every file of the forest."""
    with closing(Vine(existing_forest(args), readonly=not args.fix)) as engine:
        result = engine.validate(fix=args.fix)
    emit(args, result, lint_text)
    return 1 if result["errors"] or (args.strict and result["warnings"]) else 0


def lint_text(result: dict) -> str:
    """One line an issue, then the counts."""
    issues = sorted(result["issues"], key=lambda issue: (issue["id"], issue["code"]))
    lines = [f"[{issue['level']}] {issue['id']}: {issue['message']} ({issue['code']})" for issue in issues]
    count = f"{result['errors']} error(s), {result['warnings']} warning(s)"
    return "\n".join([*lines, "", count] if lines else [count])


# --------------------------------------------------------------------------------------------- connect


def vine_command() -> list[str]:
    """How another program starts this very `vine`: an absolute path, since agents rarely share our PATH."""
    called = Path(os.path.abspath(sys.argv[0]))
    beside = Path(sys.executable).parent / "vine"
    if called.name == "vine" and called.is_file():
        return [str(called)]
    if beside.is_file():
        return [str(beside)]
    return [sys.executable, os.path.abspath(__file__)]


def serve_command(flags: list[str]) -> list[str]:
    """The whole command that an agent runs to get a server."""
    return [*vine_command(), "serve", *flags]


def claude_line(name: str, command: list[str]) -> str:
    """The line that registers a stdio server with Claude Code."""
    return shlex.join(["claude", "mcp", "add", name, "--", *command])


def run_connect(args: argparse.Namespace) -> int:
    """Print what an agent's configuration needs to reach this forest."""
    if args.http:
        if args.root or args.readonly:
            raise Usage("vine: --http names a running server; give --root and --readonly to that server")
        line = shlex.join(["claude", "mcp", "add", "--transport", "http", args.name, args.http])
        server: dict[str, Any] = {"type": "http", "url": args.http}
    else:
        flag, place = ("--root", existing_root(args)) if args.root else ("--forest", existing_forest(args))
        command = serve_command([flag, str(place), *["--readonly"] * args.readonly])
        line = claude_line(args.name, command)
        server = {"command": command[0], "args": command[1:]}
    block = {"mcpServers": {args.name: server}}
    emit(args, block, lambda made: f"{line}\n\n{json.dumps(made, indent=2, ensure_ascii=False)}")
    return 0


# ------------------------------------------------------------------------------------------------ demo


def run_demo(args: argparse.Namespace) -> int:
    """Grow a forest from the examples, ask it three questions and show what an agent would read."""
    import tempfile

    import demo

    target = Path(os.path.abspath(args.folder or Path(tempfile.mkdtemp(prefix="vine-demo-"), "brain")))
    facts = demo.grow(target) | {"questions": demo.ask(target)}
    facts["connect"] = claude_line("monkeyllm", serve_command(["--forest", str(target)]))
    ways_on = [
        "Ask on:            " + shlex.join([*vine_command(), "--forest", str(target), "harvest", "holiday"]),
        "See its history:   " + shlex.join(["git", "-C", str(target), "log", "--oneline"]),
        "Give it to Claude: " + facts["connect"],
    ]
    if not args.folder:
        ways_on.append("Throw it away:     " + shlex.join(["rm", "-r", str(target.parent)]))
    after = ["", demo.rule("Yours now", width()), "", *ways_on]
    emit(args, facts, lambda told: "\n".join([demo.story(told, width()), *after]))
    return 0


# ---------------------------------------------------------------------------------------------- parser

# Parameters that the command line spells in another way than `--name` (or by position, when required).
_FLAGS = {"k": "-k", "type_filter": "--type"}
_FROM_VERBS = "locate look move pick scan sniff harvest view plant graft".split()


class Parser(argparse.ArgumentParser):
    """argparse that raises instead of leaving the process, so that `--json` covers wrong usage, too."""

    def error(self, message: str) -> NoReturn:
        raise Usage(f"{self.prog}: {message}\nTry `{self.prog} --help`.")


def add_common(parser: argparse.ArgumentParser, default: Any) -> None:
    """The two options that may stand before or after the command."""
    parser.add_argument(
        "--forest", metavar="DIR", default=default, help="the forest (default: $MONKEYLLM_FOREST or .)"
    )
    parser.add_argument(
        "--json", action="store_true", default=default or False, help="print one compact JSON object"
    )


def add_param(parser: argparse.ArgumentParser, verb: Verb, param: Param) -> None:
    """One parameter of the verb table as an argument."""
    text = param.description.replace("%", "%%")
    upper = param.name.upper()
    if (verb.name, param.name) == ("sniff", "terms"):
        parser.add_argument("terms", metavar="TERM", nargs="+", help=text)
    elif (verb.name, param.name) == ("harvest", "terms"):
        parser.add_argument(
            "--term", metavar="TERM", dest="terms", action="append", help=f"{text} (repeatable)"
        )
    elif (verb.name, param.name) == ("scan", "parent_id"):
        parser.add_argument(
            "parent_id", metavar="ID", nargs="?", default="_index", help=f"{text} (default: _index)"
        )
    elif param.kind == "object" and param.required:
        parser.add_argument(
            param.name, metavar="FILE", nargs="?", default="-", help=f"{text}; JSON, `-`: stdin"
        )
    elif param.required:
        parser.add_argument(param.name, metavar=upper, help=text)
    elif param.kind == "boolean":
        parser.add_argument(f"--{param.name}", action="store_true", default=None, help=text)
    else:
        metavar = {"integer": "N", "object": "JSON", "strings": "A,B"}.get(param.kind, upper.split("_")[0])
        if param.kind == "string" and isinstance(param.choices, tuple) and param.choices:
            metavar = "|".join(param.choices)
        shown = "" if param.default in (None, {}, []) else f" (default: {param.default})"
        parser.add_argument(
            _FLAGS.get(param.name, f"--{param.name}"), dest=param.name, metavar=metavar, help=text + shown
        )


def add_verbs(commands: Any) -> None:
    """A command for each verb that makes sense at a shell prompt."""
    for name in _FROM_VERBS:
        verb = VERBS[name]
        parser = add_command(commands, name, run_verb, verb.title, verb.description)
        for param in verb.params:
            add_param(parser, verb, param)
        if name == "view":
            parser.add_argument("--out", metavar="FILE", help="write the image to FILE")


def add_command(
    commands: Any, name: str, run: Callable, short: str, text: str = ""
) -> argparse.ArgumentParser:
    """A sub-command with its help and the common options."""
    parser = commands.add_parser(name, help=short.rstrip("."), description=text or short, allow_abbrev=False)
    add_common(parser, argparse.SUPPRESS)
    parser.set_defaults(run=run)
    return parser


def add_init(commands: Any) -> None:
    parser = add_command(commands, "init", run_init, "Make a forest of a folder, new or not.")
    parser.add_argument("--title", metavar="T", help="title of the forest (default: the folder's name)")
    parser.add_argument("--summary", metavar="S", help="one line on what it holds, at most 60 tokens")


def add_serve(commands: Any) -> None:
    parser = add_command(commands, "serve", run_serve, "Serve a forest to agents over MCP.")
    parser.add_argument("--root", metavar="DIR", help="serve every forest that is a direct child of DIR")
    parser.add_argument("--transport", choices=("stdio", "http"), default="stdio", help="default: stdio")
    parser.add_argument("--host", default="127.0.0.1", help="for http (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="for http (default: 8000)")
    parser.add_argument("--readonly", action="store_true", help="refuse every write")


def add_connect(commands: Any) -> None:
    parser = add_command(commands, "connect", run_connect, "Print what an agent needs to reach this forest.")
    parser.add_argument("--name", default="monkeyllm", help="name of the server there (default: monkeyllm)")
    parser.add_argument("--readonly", action="store_true", help="let the agent read only")
    parser.add_argument("--root", metavar="DIR", help="every forest below DIR instead of one")
    parser.add_argument("--http", metavar="URL", nargs="?", const="http://127.0.0.1:8000/mcp",
                        help="a running http server (default: http://127.0.0.1:8000/mcp)")  # fmt: skip


def add_ingest(commands: Any) -> None:
    adopt = add_command(commands, "adopt", run_ingest, "Bring a folder of documents into the forest.")
    adopt.add_argument("source", metavar="SOURCE", help="the folder; it is only read, never changed")
    adopt.add_argument("--dest", metavar="BRANCH", help="branch to put it below (default: the top)")
    sync = add_command(commands, "sync", run_ingest, "Bring adopted folders up to date.")
    sync.add_argument("source", metavar="SOURCE", nargs="?", help="folder or source id (default: all)")
    sync.add_argument("--path", metavar="REL", help="one file only, relative to its source")
    for parser in (adopt, sync):
        parser.add_argument(
            "--prune", action="store_true", help="remove nodes whose file is gone, unless edited here"
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="report what would happen and write nothing"
        )
        parser.add_argument("--verbose", action="store_true", help="list every entry")
        parser.add_argument("--quiet", action="store_true", help="no progress")


def add_upkeep(commands: Any) -> None:
    add_command(commands, "reindex", run_reindex, "Build the catalog anew from the files.")
    parser = add_command(commands, "validate", run_validate, "Check every file of the forest.")
    parser.add_argument("--fix", action="store_true", help="rewrite index entries and counts that drifted")
    parser.add_argument("--strict", action="store_true", help="exit 1 on warnings, too")
    demo = add_command(commands, "demo", run_demo, "Grow an example forest and ask it three questions.")
    demo.add_argument(
        "folder", metavar="DIR", nargs="?", help="where to grow it (default: a new temporary folder)"
    )


def build_parser() -> Parser:
    """The whole command line."""
    parser = Parser(
        prog="vine", description="A forest of knowledge for AI agents: markdown in git.", allow_abbrev=False
    )
    add_common(parser, None)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for add in (add_init, add_serve, add_connect, add_verbs, add_ingest, add_upkeep):
        add(commands)
    return parser


# ------------------------------------------------------------------------------------------------ main


def run(argv: list[str]) -> int:
    """Parse and run; every failure is told once, in the form that was asked for."""
    as_json = "--json" in argv
    try:
        args = build_parser().parse_args(argv)
        if args.command != "serve" and not os.environ.get("VINE_DEBUG"):
            logging.disable()  # the message on stderr is for people; a log with a traceback is not
        return args.run(args)
    except SystemExit as stop:  # argparse has printed the help
        return int(stop.code or 0)
    except Usage as fault:
        if as_json:
            print(dumps(VineError("E_SCHEMA", str(fault)).envelope()))
        warn(str(fault))
        return 2
    except VineError as fault:
        failure = fault
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except Exception as fault:
        logging.getLogger("vine").exception("unforeseen")
        failure = VineError("E_INTERNAL", f"unforeseen {type(fault).__name__}")
    if failure.code == "E_INTERNAL":
        failure.hint = "Set VINE_DEBUG=1 to see where."
    if as_json:
        print(dumps(failure.envelope()))
    else:
        warn(f"vine: {failure.code}: {failure.message}" + (f"\n{failure.hint}" if failure.hint else ""))
    return 1


def main(argv: list[str] | None = None) -> int:
    """Entry point of the `vine` command; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    sys.stdout.reconfigure(encoding="utf-8" if "--json" in argv else None, errors="backslashreplace")
    try:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run(argv)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        warn("vine: interrupted")
        return 130
    except BrokenPipeError:
        # The reader is gone. stdout must lead elsewhere, or the interpreter fails again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
