"""`vine serve` as its clients meet it: real processes, real pipes and sockets, real forests.

Sections: helpers · tools and instructions · results and errors · protocol versions · stdio · forests ·
several servers · HTTP · leaving.

Where a test needs an engine that is slow, noisy or broken at a known moment, `ODD` puts a wrapper around the
real pool; files of the test's folder release it, so no test depends on how fast anything is.
"""

import base64
import http.client
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from forest import count_tokens, dumps
from vine import Pool, init

REPO = Path(__file__).resolve().parent.parent
VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

# Arguments: the forest, a folder for signs, then those of mcp_tools.serve.
ODD = """
import os, sys, time
from functools import partial
from pathlib import Path
import mcp_tools
from vine import Pool

class Odd:
    def __init__(self, pool, signs):
        self.pool, self.signs = pool, signs
    def call(self, verb, args, client=""):
        print("printed by a library")
        os.write(1, b"written by a C library\\n")
        os.system("cat; echo said by a child")
        word = args.get("query") or args.get("id") or args.get("node", {}).get("title")
        if word == "stuck":
            (self.signs / "begun").touch()
            while not (self.signs / "go").exists():
                time.sleep(0.01)
        if word == "broken":
            raise RuntimeError("text of a library, with /a/path")
        if word == "half":
            return {"word": "\\ud800"}
        return self.pool.call(verb, args, client=client)
    def end_client(self, client):
        self.pool.end_client(client)
        (self.signs / f"ended {client}").touch()
    def close(self):
        self.pool.close()
        (self.signs / "closed").touch()
    def __getattr__(self, name):
        return getattr(self.pool, name)

mcp_tools.http_app = partial(mcp_tools.http_app, idle_seconds=float(os.environ.get("IDLE", "1800")))
pool = Odd(Pool.single(Path(sys.argv[1])), Path(sys.argv[2]))
sys.exit(mcp_tools.serve(pool, sys.argv[3], port=0))
"""


# --------------------------------------------------------------------------------------------- helpers


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(REPO), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **more}


def vine_serve(*args) -> list[str]:
    return [sys.executable, "-m", "cli", "serve", *map(str, args)]


def odd_serve(root, signs, transport="stdio") -> list[str]:
    return [sys.executable, "-c", ODD, str(root), str(signs), transport]


def note(id: str, title: str, body: str = "", **more) -> dict:
    parent = id.rpartition("/")[0]
    fields = {"id": id, "type": "note", "title": title, "summary": f"About {title}."}
    return {**fields, "parent": f"{parent}/_index" if parent else "_index", "body": body, **more}


def make_forest(root: Path) -> Path:
    init(root, title="Bees", summary="Notes on keeping bees.")
    pool = Pool.single(root)
    for id, title, body in [
        ("hive", "Hive care", "## Winter\n\nWrap the hive in straw before the frost.\n"),
        ("honey", "Honey harvest", "Take honey in July, leave twelve kilos for the bees.\n"),
    ]:
        pool.call("plant", {"node": note(id, title, body)})
    pool.close()
    return root


@pytest.fixture(scope="module")
def brain(tmp_path_factory) -> Path:
    """A forest for tests that only read."""
    return make_forest(tmp_path_factory.mktemp("shared") / "brain")


@pytest.fixture
def own(tmp_path) -> Path:
    """A forest for a test that writes."""
    return make_forest(tmp_path / "brain")


class Process:
    """A server process that is gone when the test is; `errors` is what it wrote to stderr so far."""

    def __init__(self, command: list[str], log: Path, **environ: str):
        self.log = log
        with open(log, "wb") as stderr:
            self.child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
                env=environment(**environ), cwd=log.parent, bufsize=0,
            )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()
        self.child.stdin.close()
        self.child.stdout.close()

    @property
    def errors(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def leave(self) -> int:
        """Exit code once the process has ended by itself; a minute is for a slow machine, not a promise."""
        return self.child.wait(60)

    def rest(self) -> bytes:
        """What was left in its stdout when it ended by itself, without fault."""
        assert self.leave() == 0
        return self.child.stdout.read()


class Stdio(Process):
    """A client on the pipes of a server, message by message."""

    last = 0

    def send(self, message) -> None:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.child.stdin.write(data + b"\n")

    def read(self) -> dict:
        if not select.select([self.child.stdout], [], [], 60)[0]:
            self.child.kill()  # a server that says nothing fails the test instead of hanging it
        line = self.child.stdout.readline()
        assert line, f"the server said nothing more; stderr: {self.errors}"
        return json.loads(line.decode("utf-8"))

    def request(self, method: str, params: dict | None = None) -> int:
        self.last += 1
        self.send({"jsonrpc": "2.0", "id": self.last, "method": method, "params": params or {}})
        return self.last

    def ask(self, method: str, params: dict | None = None) -> dict:
        number = self.request(method, params)
        reply = self.read()
        assert reply["id"] == number
        return reply

    def start(self, version: str = "2025-11-25") -> dict:
        reply = self.ask("initialize", opening(version))
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return reply["result"]

    def call(self, tool: str, **arguments) -> dict:
        """The JSON of an answer, or of the envelope of an error."""
        return answer(self.ask("tools/call", {"name": tool, "arguments": arguments})["result"])


class Http(Process):
    """A server on a port of its own, and the raw requests that reach it."""

    def __init__(self, command: list[str], log: Path, **environ: str):
        super().__init__(command, log, **environ)
        self.child.stdin.close()
        while not (found := re.search(r"http://\S+:(\d+)/mcp", self.errors)):
            assert self.child.poll() is None, self.errors
            time.sleep(0.02)
        self.port = int(found[1])

    def send(self, method="POST", body=None, path="/mcp", session=None, **headers) -> tuple[int, dict, str]:
        """Status, headers and text; a header given as None is left out."""
        sent = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-session-id": session,
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if isinstance(body, str | None) else json.dumps(body)
        connection.request(method, path, data, {k: v for k, v in sent.items() if v is not None})
        response = connection.getresponse()
        text = response.read().decode("utf-8")
        connection.close()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, text

    def ask(self, method: str, params=None, **rest) -> dict:
        status, headers, text = self.send(body=message(method, params), **rest)
        assert status == 200, text
        return json.loads(text) if headers["content-type"] == "application/json" else event(text)

    def start(self) -> str:
        return self.send(body=message("initialize", opening()))[1]["mcp-session-id"]

    def call(self, tool: str, session: str, **arguments) -> dict:
        return answer(
            self.ask("tools/call", {"name": tool, "arguments": arguments}, session=session)["result"]
        )


def message(method: str, params=None) -> dict:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}


def opening(version: str = "2025-11-25") -> dict:
    return {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}


def modern(**params) -> dict:
    """Params of a request in the revision that has no handshake."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    return {**params, "_meta": meta}


def event(text: str) -> dict:
    """The message of an SSE answer with one event."""
    (data,) = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return json.loads(data)


def answer(result: dict) -> dict:
    """The JSON that a tool result carries, after the checks that hold for each of them."""
    assert "structuredContent" not in result
    block = result["content"][0]
    assert block["type"] == "text"
    value = json.loads(block["text"])
    assert block["text"] == dumps(value)
    assert result.get("isError", False) is ("error" in value)
    return value


def code(value: dict) -> str:
    return value["error"]["code"]


def wait_for(path: Path) -> None:
    for _ in range(3000):
        if path.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path.name} never came")


def git_log(root: Path) -> str:
    return subprocess.run(
        ["git", "-C", str(root), "log", "--format=%B"], capture_output=True, text=True, check=True
    ).stdout  # fmt: skip


@pytest.fixture(scope="module")
def server(brain, tmp_path_factory):
    """One stdio server for all tests that only read and ask one thing after the other."""
    with Stdio(vine_serve("--forest", brain), tmp_path_factory.mktemp("stdio") / "stderr") as server:
        server.start()
        yield server


@pytest.fixture(scope="module")
def web(brain, tmp_path_factory):
    """One HTTP server for all tests that only read; each opens its own sessions."""
    command = vine_serve("--forest", brain, "--transport", "http", "--port", "0")
    with Http(command, tmp_path_factory.mktemp("http") / "stderr") as web:
        yield web


# ------------------------------------------------------------------------------ tools and instructions

# name: (parameters with their defaults, `*` for a required one; writes; destroys)
TABLE = {
    "forests": ({}, False, False),
    "harvest": ({"query": "*", "terms": None, "k": 3}, False, False),
    "locate": ({"query": "*", "k": 5, "scope": "all", "type_filter": None}, False, False),
    "sniff": ({"terms": "*", "scope": None, "k": 5, "type_filter": None}, False, False),
    "look": ({"id": "*", "fields": None}, False, False),
    "move": ({"id": "*", "rel": None, "direction": "out"}, False, False),
    "pick": ({"id": "*", "section": None}, False, False),
    "view": ({"id": "*"}, False, False),
    "scan": (
        {"parent_id": "*", "filter": None, "fields": None, "recursive": False, "limit": 50}, False, False
    ),
    "query": ({"id": "*", "sql": "*"}, False, False),
    "plant": ({"node": "*"}, True, False),
    "graft": ({"id": "*", "patch": "*", "expect": None}, True, True),
    "tend": ({"id": "*", "sql": "*", "expect": None}, True, True),
    "close_session": ({"success": "*", "answer_nodes": []}, True, False),
}  # fmt: skip
TOOLS = list(TABLE)


def test_every_tool_is_listed_as_promised(server):
    listed = server.ask("tools/list")["result"]["tools"]
    assert [tool["name"] for tool in listed] == TOOLS
    for tool in listed:
        params, writes, destroys = TABLE[tool["name"]]
        if tool["name"] != "forests":
            params = {**params, "forest": None}
        schema = tool["inputSchema"]
        assert schema["additionalProperties"] is False
        assert list(schema["properties"]) == list(params), "forest comes last"
        required = [name for name, default in params.items() if default == "*"]
        assert sorted(schema.get("required", [])) == sorted(required)
        for name in params.keys() - set(required):
            assert schema["properties"][name]["default"] == params[name], (tool["name"], name)
        assert tool["annotations"] == {
            "readOnlyHint": not writes, "destructiveHint": destroys,
            "idempotentHint": not writes, "openWorldHint": False,
        }  # fmt: skip
        assert tool["title"] and tool["description"]
        assert "outputSchema" not in tool


def test_closed_lists_are_in_the_schemas(server):
    schemas = {
        tool["name"]: tool["inputSchema"]["properties"]
        for tool in server.ask("tools/list")["result"]["tools"]
    }
    assert schemas["locate"]["scope"]["enum"] == ["all", "branches", "bananas"]
    assert schemas["move"]["direction"]["enum"] == ["out", "in", "both"]


def test_the_list_of_tools_is_small(server):
    assert count_tokens(dumps(server.ask("tools/list")["result"])) <= 4000


def test_initialize_introduces_the_server(brain, tmp_path):
    with Stdio(vine_serve("--forest", brain), tmp_path / "stderr") as server:
        result = server.start()
    assert result["serverInfo"]["name"] == "vine"
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", result["serverInfo"]["version"])
    assert list(result["capabilities"]) == ["tools"]
    text = result["instructions"]
    assert len(text) <= 1500
    for word in [*TOOLS, 'look("_index")', "truncated", "forest="]:
        assert re.search(rf"(?<!\w){re.escape(word)}", text), word


def test_readonly_hides_nothing_and_writes_nothing(brain, tmp_path):
    before = git_log(brain)
    with Stdio(vine_serve("--forest", brain, "--readonly"), tmp_path / "stderr") as server:
        server.start()
        assert [tool["name"] for tool in server.ask("tools/list")["result"]["tools"]] == TOOLS
        assert code(server.call("plant", node=note("new", "New"))) == "E_READONLY"
        assert server.call("look", id="hive")["title"] == "Hive care"
    assert git_log(brain) == before


# ---------------------------------------------------------------------------------- results and errors


def test_view_adds_the_image(own, tmp_path):
    (own / "bee.png").write_bytes(PNG)
    with Stdio(vine_serve("--forest", own), tmp_path / "stderr") as server:
        server.start()
        server.call("plant", node=note("bee", "A bee", payload="bee.png", payload_type="image"))
        result = server.ask("tools/call", {"name": "view", "arguments": {"id": "bee"}})["result"]
    header, image = result["content"]
    assert (
        json.loads(header["text"]).items()
        >= {"id": "bee", "media_type": "image/png", "size": len(PNG)}.items()
    )
    assert image == {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}


@pytest.mark.parametrize(
    "tool, arguments, expected",
    [
        ("look", {"id": "nowhere"}, "E_NOT_FOUND"),
        ("look", {"id": "hive", "colour": "red"}, "E_SCHEMA"),
        ("look", {}, "E_SCHEMA"),
        ("look", {"id": None}, "E_SCHEMA"),
        ("look", {"id": 5}, "E_SCHEMA"),
        ("locate", {"query": "bees", "k": "3"}, "E_SCHEMA"),
        ("locate", {"query": "bees", "k": True}, "E_SCHEMA"),
        ("locate", {"query": "bees", "scope": "banana"}, "E_SCHEMA"),
        ("locate", {"query": "half a \ud800 pair"}, "E_SCHEMA"),
        ("look", ["hive"], "E_SCHEMA"),
        ("look", "hive", "E_SCHEMA"),
        ("swing", {}, "E_NOT_FOUND"),
    ],
)
def test_a_refused_call_is_a_tool_result(server, web, tool, arguments, expected):
    over_stdio = server.ask("tools/call", {"name": tool, "arguments": arguments})["result"]
    over_http = web.ask("tools/call", {"name": tool, "arguments": arguments}, session=web.start())["result"]
    assert over_stdio["isError"] is True
    assert code(answer(over_stdio)) == expected
    assert over_http == over_stdio


def test_arguments_are_not_converted(server):
    assert "results" in server.call("locate", query="bees", k=3.0)
    assert "results" in server.call("locate", query="bees", k=0, type_filter=None)
    assert server.ask("tools/call", {"name": "forests"})["result"]["isError"] is False
    assert server.ask("tools/call", {"name": "forests", "arguments": None})["result"]["isError"] is False


def test_an_unknown_tool_gets_the_list_of_tools(server):
    error = server.call("swing")["error"]
    assert "swing" in error["message"]
    assert all(name in error["hint"] for name in TOOLS)
    long = server.ask("tools/call", {"name": "x" * 100_000, "arguments": {}})["result"]
    assert count_tokens(long["content"][0]["text"]) < 600


def test_an_internal_fault_shows_nothing_of_its_cause(brain, tmp_path):
    with Stdio(odd_serve(brain, tmp_path), tmp_path / "stderr") as server:
        server.start()
        error = server.call("look", id="broken")["error"]
        assert error["code"] == "E_INTERNAL"
        assert "library" not in dumps(error) and "/a/path" not in dumps(error)
        assert server.call("look", id="hive")["id"] == "hive"


def test_an_answer_that_is_no_unicode_is_sent_all_the_same(brain, tmp_path):
    with Stdio(odd_serve(brain, tmp_path), tmp_path / "stderr") as server:
        server.start()
        assert server.call("locate", query="half") == {"word": "?"}


# ----------------------------------------------------------------------------------- protocol versions


@pytest.mark.parametrize(
    "asked, given", [*zip(VERSIONS, VERSIONS, strict=True), ("2019-01-01", "2025-11-25"), ("x", "2025-11-25")]
)
def test_the_version_asked_for_comes_back(brain, web, tmp_path, asked, given):
    with Stdio(vine_serve("--forest", brain), tmp_path / "stdio-errors") as server:
        assert server.start(asked)["protocolVersion"] == given
        assert len(server.ask("tools/list")["result"]["tools"]) == 14
    assert web.ask("initialize", opening(asked))["result"]["protocolVersion"] == given


def test_requests_of_the_2026_revision_need_no_handshake(brain, web, tmp_path):
    with Stdio(vine_serve("--forest", brain), tmp_path / "stdio-errors") as server:
        found = server.ask("server/discover", modern())["result"]
        assert found["supportedVersions"] == ["2026-07-28"] and list(found["capabilities"]) == ["tools"]
        assert len(server.ask("tools/list", modern())["result"]["tools"]) == 14
        result = server.ask("tools/call", modern(name="look", arguments={"id": "hive"}))["result"]
        assert answer(result)["title"] == "Hive care"

    headers = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/list"}
    assert len(web.ask("tools/list", modern(), **headers)["result"]["tools"]) == 14
    headers = {**headers, "mcp_method": "tools/call", "mcp_name": "look"}
    result = web.ask("tools/call", modern(name="look", arguments={"id": "hive"}), **headers)["result"]
    assert answer(result)["title"] == "Hive care"
    status, _, text = web.send(body=message("tools/list", modern()), **headers)
    assert status == 400 and json.loads(text)["error"]["code"] == -32020, "header and body disagree"


def test_the_clients_of_the_sdk_get_along(brain, web):
    async def use(target) -> None:
        for mode in ("legacy", "auto"):
            async with Client(target(), mode=mode) as client:
                assert [tool.name for tool in (await client.list_tools()).tools] == TOOLS
                result = await client.call_tool("pick", {"id": "honey"})
                assert "twelve kilos" in json.loads(result.content[0].text)["body"]

    command, *args = vine_serve("--forest", brain)
    parameters = StdioServerParameters(command=command, args=args, env=environment())
    anyio.run(use, lambda: stdio_client(parameters))
    anyio.run(use, lambda: f"http://127.0.0.1:{web.port}/mcp")


# ----------------------------------------------------------------------------------------------- stdio


def test_stdout_stays_pure_while_libraries_and_children_print(brain, tmp_path):
    with Stdio(odd_serve(brain, tmp_path), tmp_path / "stderr") as server:
        server.start()
        assert server.call("look", id="hive")["id"] == "hive"
        server.child.stdin.close()
        assert server.rest() == b""
        for noise in ("printed by a library", "written by a C library", "said by a child"):
            assert noise in server.errors


@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "latin-1"}, {"PYTHONUTF8": "0", "LC_ALL": "POSIX"}]
)
def test_the_wire_is_utf8_in_every_locale(own, tmp_path, locale):
    title = "Ünïcode 東京 🐝 \u2028"
    with Stdio(vine_serve("--forest", own), tmp_path / "stderr", **locale) as server:
        server.start()
        plant = {"name": "plant", "arguments": {"node": note("u", "Bienen – 東京 🐝", title)}}
        server.send(
            dumps({"jsonrpc": "2.0", "id": 90, "method": "tools/call", "params": plant}).encode("utf-8")
        )
        assert "commit" in answer(server.read()["result"])
        assert server.call("look", id="u")["title"] == "Bienen – 東京 🐝"
        assert title.strip() in server.call("pick", id="u")["body"]


MALFORMED = [
    (b"{bad", -32700),
    (b"\xff\xfe", -32700),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":NaN}}', -32700),
    (b"[" * 100_000, -32700),
    (b"[]", -32600),
    (b'"ping"', -32600),
    (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
    (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600),
]


def test_a_malformed_line_is_answered_and_the_server_goes_on(brain, tmp_path):
    with Stdio(vine_serve("--forest", brain), tmp_path / "stderr") as server:
        for start in (server.start, lambda: server.ask("ping")):
            for line, expected in MALFORMED:
                server.send(line)
                reply = server.read()
                assert reply["id"] is None and reply["error"]["code"] == expected, line[:60]
            start()


def test_blank_lines_and_windows_line_ends_are_no_fault(brain, tmp_path):
    with Stdio(vine_serve("--forest", brain), tmp_path / "stderr") as server:
        server.send(b"\r")
        server.send(b"")
        server.send(json.dumps(message("initialize", opening())).encode() + b"\r")
        assert server.read()["result"]["serverInfo"]["name"] == "vine"


def test_nothing_waits_for_a_call_that_waits(brain, tmp_path):
    with Stdio(odd_serve(brain, tmp_path), tmp_path / "stderr") as server:
        server.start()
        stuck = server.request("tools/call", {"name": "locate", "arguments": {"query": "stuck"}})
        wait_for(tmp_path / "begun")
        assert server.ask("ping")["result"] == {}
        assert len(server.ask("tools/list")["result"]["tools"]) == 14
        assert server.call("forests")["mode"] == "single"
        assert server.call("look", id="hive")["id"] == "hive"
        (tmp_path / "go").touch()
        assert server.read()["id"] == stuck


def test_a_cancelled_request_is_not_answered(brain, tmp_path):
    with Stdio(odd_serve(brain, tmp_path), tmp_path / "stderr") as server:
        server.start()
        stuck = server.request("tools/call", {"name": "locate", "arguments": {"query": "stuck"}})
        wait_for(tmp_path / "begun")
        server.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": stuck}})
        assert server.ask("ping")["result"] == {}
        (tmp_path / "go").touch()
        assert server.call("look", id="hive")["id"] == "hive"
        server.child.stdin.close()
        assert server.rest() == b""
    assert (tmp_path / "closed").exists(), "it did not leave by the deadline"


def test_a_forest_without_or_with_a_damaged_catalog_is_served(own, tmp_path):
    for damage in (lambda path: path.unlink(), lambda path: path.write_bytes(b"no database" * 1000)):
        damage(own / "_derived" / "catalog.db")
        with Stdio(vine_serve("--forest", own), tmp_path / "stderr") as server:
            server.start()
            assert server.call("locate", query="honey harvest")["results"][0]["id"] == "honey"


# --------------------------------------------------------------------------------------------- forests


def test_a_single_forest_needs_no_name(server):
    assert server.call("forests") == {"forests": [{"id": "brain", "active": True}], "mode": "single"}
    assert server.call("look", id="hive") == server.call("look", id="hive", forest="brain")
    for name in ("other", "../brain", "Brain"):
        error = server.call("look", id="hive", forest=name)["error"]
        assert error["code"] == "E_NOT_FOUND"
        assert error["message"] == f"unknown forest: {name}"
        assert "forests()" in error["hint"]


def test_a_registry_asks_for_the_name(tmp_path):
    root = tmp_path / "forests"
    for name in ("bees", "wasps"):
        make_forest(root / name)
    make_forest(root / ".hidden")
    (root / "plain").mkdir()
    (root / "link").symlink_to(root / "bees")
    with Stdio(vine_serve("--root", root), tmp_path / "stderr") as server:
        server.start()
        idle = [{"id": "bees", "active": False}, {"id": "wasps", "active": False}]
        assert server.call("forests") == {"forests": idle, "mode": "registry"}
        error = server.call("look", id="hive")["error"]
        assert error["code"] == "E_SCHEMA" and "bees" in error["hint"] and "wasps" in error["hint"]
        assert server.call("look", id="hive", forest="wasps")["id"] == "hive"
        assert [found["active"] for found in server.call("forests")["forests"]] == [False, True]
        for name in ("nowhere", "..", ".", "bees/..", str(root / "bees"), ".hidden", "plain", "link"):
            assert (
                server.call("look", id="hive", forest=name)["error"]["message"] == f"unknown forest: {name}"
            )


# -------------------------------------------------------------------------------------- several servers


def test_servers_share_a_forest_and_survive_each_other(own, tmp_path):
    command = vine_serve("--forest", own)
    with Stdio(command, tmp_path / "one") as one, Stdio(command, tmp_path / "two") as two:
        one.start(), two.start()
        assert "commit" in one.call("plant", node=note("wax", "Wax"))
        assert two.call("look", id="wax")["title"] == "Wax"
        one.child.kill()
        one.child.wait()
        assert "commit" in two.call("plant", node=note("mead", "Mead"))


# ------------------------------------------------------------------------------------------------ HTTP


@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
def test_the_session_that_the_manual_shows_for_curl(web, path):
    headers = {"user_agent": "curl/8", "path": path}
    body = """{"jsonrpc":"2.0","id":1,"method":"initialize","params":{
        "protocolVersion":"2025-06-18","capabilities":{},
        "clientInfo":{"name":"curl","version":"0"}}}"""
    status, sent, _ = web.send(body=body, **headers)
    assert status == 200 and "mcp-session-id" in sent
    body = '{"jsonrpc":"2.0","id":2,"method":"tools/list"}'
    status, sent, text = web.send(body=body, session=sent["mcp-session-id"], **headers)
    assert status == 200 and sent["content-type"].startswith("text/event-stream")
    reply = event(text)
    assert reply["id"] == 2 and [tool["name"] for tool in reply["result"]["tools"]] == TOOLS


LIST = message("tools/list")


@pytest.mark.parametrize(
    "request_, status, error",
    [
        ({"body": LIST}, 400, -32600),
        ({"body": LIST, "session": "0" * 32}, 404, -32600),
        ({"body": LIST, "session": "own", "accept": "application/json"}, 406, -32600),
        ({"body": LIST, "session": "own", "accept": None}, 406, -32600),
        ({"body": LIST, "session": "own", "accept": "*/*"}, 200, None),
        ({"body": LIST, "session": "own", "accept": "text/event-stream"}, 200, None),
        ({"body": "{bad", "session": "own"}, 400, -32700),
        ({"body": "", "session": "own"}, 400, -32700),
        ({"body": "[]", "session": "own"}, 400, -32600),
        ({"body": LIST, "session": "own", "path": "/other"}, 404, None),
        ({"body": LIST, "session": "own", "path": "/mcp/x"}, 404, None),
        ({"body": LIST, "session": "own", "path": "/mcp//"}, 404, None),
        ({"method": "PUT", "session": "own"}, 405, -32600),
        ({"method": "GET", "session": "own"}, 405, -32600),
        ({"method": "DELETE"}, 400, -32600),
        ({"body": LIST, "session": "own", "host": "evil.example"}, 421, -32600),
        ({"body": LIST, "session": "own", "host": "localhost.evil.example:8000"}, 421, -32600),
        ({"body": LIST, "session": "own", "host": "localhost"}, 200, None),
        ({"body": LIST, "session": "own", "host": "[::1]:8000"}, 200, None),
        ({"body": LIST, "session": "own", "origin": "https://evil.example"}, 403, -32600),
        ({"body": LIST, "session": "own", "origin": "http://localhost:80.evil.example"}, 403, -32600),
        ({"body": LIST, "session": "own", "origin": "null"}, 403, -32600),
        ({"body": LIST, "session": "own", "origin": "http://localhost:3000"}, 200, None),
    ],
)
def test_every_request_gets_its_status(web, request_, status, error):
    request_ = {**request_, **({"session": web.start()} if request_.get("session") == "own" else {})}
    given, headers, text = web.send(**request_)
    assert given == status
    if error is not None:
        assert json.loads(text)["error"]["code"] == error
    if status == 405:
        assert headers["allow"] == "POST, DELETE"


def test_delete_ends_a_session_and_no_other(web):
    first, second = web.start(), web.start()
    assert web.send("DELETE", session=first)[0] == 200
    for method, body in (("POST", LIST), ("DELETE", None)):
        status, _, text = web.send(method, body, session=first)
        assert status == 404 and json.loads(text)["error"]["code"] == -32600
    assert web.call("look", second, id="hive")["id"] == "hive"


def test_the_engine_hears_of_the_end_of_a_session(brain, tmp_path):
    with Http(odd_serve(brain, tmp_path, "http"), tmp_path / "stderr") as web:
        first, second = web.start(), web.start()
        web.send("DELETE", session=first)
        web.send("DELETE", session="unknown")
    assert (tmp_path / f"ended {first}").exists()
    assert not (tmp_path / f"ended {second}").exists() and not (tmp_path / "ended unknown").exists()


def test_an_idle_session_ends(brain, tmp_path):
    with Http(odd_serve(brain, tmp_path, "http"), tmp_path / "stderr", IDLE="0.2") as web:
        session = web.start()
        for _ in range(20):  # on a busy machine the first pause may end before the session does
            time.sleep(0.4)
            status, _, text = web.send(body=LIST, session=session)
            if status != 200:
                break
        assert status == 404 and json.loads(text)["error"]["code"] == -32600


def test_each_mcp_session_is_a_session_of_its_own(own, tmp_path):
    command = vine_serve("--forest", own, "--transport", "http", "--port", "0")
    with Http(command, tmp_path / "stderr") as web:
        first, second = web.start(), web.start()
        for _ in range(3):
            web.call("look", first, id="hive")
        web.call("look", second, id="honey")
        one = web.call("close_session", first, success=True, answer_nodes=["hive"])
        assert one["metrics"]["calls"] == 3
        web.call("look", second, id="hive")
        two = web.call("close_session", second, success=False)
        assert two["metrics"]["calls"] == 2
        assert one["session"] != two["session"]
        assert web.call("close_session", first, success=False)["metrics"]["calls"] == 0


def test_requests_without_an_mcp_session_share_one(own, tmp_path):
    command = vine_serve("--forest", own, "--transport", "http", "--port", "0")
    calls = [("look", {"id": "hive"}), ("look", {"id": "honey"}), ("close_session", {"success": False})]
    with Http(command, tmp_path / "stderr") as web:
        web.call("look", web.start(), id="hive")
        for tool, arguments in calls:
            headers = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/call", "mcp_name": tool}
            params = modern(name=tool, arguments=arguments)
            reply = web.ask("tools/call", params, session=f"a header of no meaning: {tool}", **headers)
        assert answer(reply["result"])["metrics"]["calls"] == 2


def test_a_large_write_fits(own, tmp_path):
    body = "\U0001f41d" * 1_000_000
    with Http(vine_serve("--forest", own, "--transport", "http", "--port", "0"), tmp_path / "stderr") as web:
        assert "commit" in web.call("plant", web.start(), node=note("swarm", "Swarm", body))
    assert body in (own / "swarm.md").read_text(encoding="utf-8")


def test_a_taken_port_is_one_line_and_exit_1(brain, web, tmp_path):
    command = vine_serve("--forest", brain, "--transport", "http", "--port", web.port)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert str(web.port) in line


def test_a_host_for_everybody_is_warned_about_and_takes_any_name(brain, tmp_path):
    command = vine_serve("--forest", brain, "--transport", "http", "--host", "0.0.0.0", "--port", "0")
    with Http(command, tmp_path / "stderr") as web:
        assert "no accounts" in web.errors
        status, headers, _ = web.send(body=message("initialize", opening()), host="hive.example")
        assert status == 200 and "mcp-session-id" in headers


# --------------------------------------------------------------------------------------------- leaving


def test_what_was_asked_before_the_pipe_closed_is_answered(brain):
    lines = [message("initialize", opening())]
    lines += [
        {**message("tools/call", {"name": "look", "arguments": {"id": "hive"}}), "id": n}
        for n in range(2, 12)
    ]
    done = subprocess.run(
        vine_serve("--forest", brain), env=environment(), capture_output=True, timeout=60, check=False,
        input="\n".join(map(json.dumps, lines)).encode(),
    )  # fmt: skip
    assert done.returncode == 0
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(reply["id"] for reply in replies) == list(range(1, 12))
    assert all("result" in reply for reply in replies)


ENDS = {"stdin": lambda child: child.stdin.close(), "TERM": lambda child: child.send_signal(signal.SIGTERM),
        "INT": lambda child: child.send_signal(signal.SIGINT)}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_leaving_finishes_the_write_in_progress(own, tmp_path, end):
    with Stdio(odd_serve(own, tmp_path), tmp_path / "stderr") as server:
        server.start()
        number = server.request("tools/call", {"name": "plant", "arguments": {"node": note("late", "stuck")}})
        wait_for(tmp_path / "begun")
        ENDS[end](server.child)
        (tmp_path / "go").touch()
        reply = json.loads(server.rest())
        assert reply["id"] == number and "commit" in answer(reply["result"])
        assert "Traceback" not in server.errors
    assert (tmp_path / "closed").exists(), "it did not leave by the deadline"
    assert "late" in git_log(own)
    assert not list((own / "_derived").glob("journal/*"))
    with Stdio(vine_serve("--forest", own), tmp_path / "next") as server:
        server.start()
        assert "commit" in server.call("plant", node=note("next", "Next"))


def test_leaving_over_http_finishes_the_write_and_its_answer(own, tmp_path):
    with Http(odd_serve(own, tmp_path, "http"), tmp_path / "stderr") as web:
        session = web.start()
        connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=60)
        body = json.dumps(
            message("tools/call", {"name": "plant", "arguments": {"node": note("late", "stuck")}})
        )
        headers = {"content-type": "application/json", "accept": "*/*", "mcp-session-id": session}
        connection.request("POST", "/mcp", body, headers)
        wait_for(tmp_path / "begun")
        web.child.send_signal(signal.SIGTERM)
        time.sleep(1.5)  # long enough for anything that would cut the answer off
        (tmp_path / "go").touch()
        assert "commit" in answer(event(connection.getresponse().read().decode())["result"])
        connection.close()
        assert b"jsonrpc" not in web.rest()
        assert "Traceback" not in web.errors
    assert "late" in git_log(own)


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_call_that_never_ends_does_not_hold_the_exit_back(brain, tmp_path, transport):
    kind = Stdio if transport == "stdio" else Http
    with kind(odd_serve(brain, tmp_path, transport), tmp_path / "stderr") as server:
        call = {"name": "locate", "arguments": {"query": "stuck"}}
        if transport == "stdio":
            server.start()
            server.request("tools/call", call)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            headers = {"content-type": "application/json", "accept": "*/*", "mcp-session-id": server.start()}
            connection.request("POST", "/mcp", json.dumps(message("tools/call", call)), headers)
        wait_for(tmp_path / "begun")
        server.child.send_signal(signal.SIGTERM)
        assert server.leave() == 0
        assert "Traceback" not in server.errors


def test_a_client_that_stops_listening_ends_the_server(brain, tmp_path):
    with Stdio(vine_serve("--forest", brain), tmp_path / "stderr") as server:
        server.start()
        server.child.stdout.close()
        server.request("ping")
        assert server.leave() == 0
        assert "Traceback" not in server.errors


def test_an_interrupt_while_idle_is_a_clean_exit(brain, tmp_path):
    for number in (signal.SIGINT, signal.SIGTERM):
        with Stdio(vine_serve("--forest", brain), tmp_path / "stderr") as server:
            server.start()
            server.child.send_signal(number)
            assert server.leave() == 0
            assert server.errors == ""
