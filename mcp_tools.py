"""The MCP shell: the verb table as tools, and the local server behind `vine serve`.

Owns how a verb looks to an MCP client (listing, hints, instructions), how an answer or a `VineError` becomes
a tool result, and the two local transports, stdio and streamable HTTP.

Must never hold logic that another shell would need too: arguments reach `Pool.call` exactly as they were
sent, the engine checks them. No text of a library reaches a client, and nothing but JSON-RPC reaches stdout.

Reading order
  1. Tools: listing and results, for any MCP server over the verb table
  2. The local server: instructions, the optional `forest`, calls on worker threads
  3. JSON-RPC on the wire: bytes to a message or to the error that answers them
  4. Leaving: signals and the deadline
  5. stdio
  6. HTTP
  7. serve: what the command line calls

Invariants
  - The event loop never waits for the engine; every call runs on a worker thread, and one that has begun is
    never abandoned, so a write is finished even when its client is gone.
  - Leaving takes less than 5 s and ends in exit code 0, whatever still runs.
"""

import asyncio
import base64
import contextvars
import ipaddress
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
import tomllib
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

import anyio
import uvicorn
from anyio import to_thread
from mcp.server.caching import CacheHint
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import RequestBodyLimitMiddleware, StreamableHTTPSessionManager
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    CallToolResult,
    ErrorData,
    ImageContent,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ServerCapabilities,
    TextContent,
    Tool,
    ToolAnnotations,
    jsonrpc_message_adapter,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import forest
from forest import VineError
from vine import VERBS, Param, Pool, Verb

log = logging.getLogger("vine.mcp")

PACKAGE = "monkeyllm-vine"
PATHS = ("/mcp", "/mcp/")
IDLE_SECONDS = 30 * 60
BODY_LIMIT = 32 * 1024 * 1024  # a body of 1,000,000 characters, all of them escaped, still fits
LIST_HINT = CacheHint(ttl_ms=5 * 60 * 1000, scope="public")  # the list is the same for everybody
LEAVE_SECONDS = 4.0

INSTRUCTIONS = """\
Vine serves forests: folders of short notes that link to each other. Every note has an id and a summary, and \
every answer keeps to a token budget.

Start with harvest (a question in, the passages that answer it out), look("_index") for the map, or locate \
to find notes by title, tags and summary. Then look shows the digest of a note, move follows its links, pick \
reads its text or one section, scan lists a branch with filters, sniff finds literal text in bodies, view \
shows an image.
Datasets: look first, its manual and notes explain tables and columns; then query with one SELECT.
`truncated: true` means that something was left out: ask narrower, do not repeat the call.
forests() lists what is served; when there are several, pass forest=<id> to every other tool.
Writing: plant creates a note, graft edits one, tend changes rows of a dataset. They commit to git. Read \
before you write, and pass the version you read as `expect`.
When the task is done call close_session with the notes that answered it: they rank higher next time.
Cite note ids. An error names its code and often a hint: follow the hint instead of guessing.
"""


# ------------------------------------------------------------------------------------------- 1. tools


def tool(verb: Verb, schema: dict[str, Any]) -> Tool:
    """`verb` as an MCP client sees it; `schema` is that of its arguments, `forest` included."""
    return Tool(
        name=verb.name,
        title=verb.title,
        description=verb.description,
        input_schema=schema,
        annotations=ToolAnnotations(
            read_only_hint=not verb.write,
            destructive_hint=verb.destructive,
            idempotent_hint=not verb.write,
            open_world_hint=False,
        ),
    )


def tool_result(call: Callable[[], dict[str, Any]], name: str) -> CallToolResult:
    """What `call` answers as a tool result; whatever it raises becomes an envelope with `isError`.

    `name` is the tool, for the log. An answer that carries `data` (view) gets an image block beside its JSON.
    """
    try:
        answer = dict(call())
        data = answer.pop("data", None)
        blocks = [_text_block(answer)]
        if data is not None:
            encoded = base64.b64encode(data).decode("ascii")
            blocks.append(ImageContent(type="image", data=encoded, mime_type=answer["media_type"]))
        return CallToolResult(content=blocks)
    except VineError as error:
        envelope = error.envelope()
    except Exception:
        log.exception("%s failed", name)
        envelope = VineError("E_INTERNAL", f"{name} failed; the log of the server has the cause").envelope()
    return CallToolResult(content=[_text_block(envelope)], is_error=True)


def _text_block(value: dict[str, Any]) -> TextContent:
    # Half a surrogate pair, echoed from a bad argument, has no place in UTF-8.
    return TextContent(type="text", text=forest.dumps(value).encode("utf-8", "replace").decode("utf-8"))


# -------------------------------------------------------------------------------- 2. the local server

_FOREST = Param("forest", "string", "Which forest; needed only when there are several.")

# The arguments of the call in hand, untouched: the SDK would refuse some before the engine sees them.
_ARGUMENTS: contextvars.ContextVar[Any] = contextvars.ContextVar("arguments")
_SENT = "vine.arguments"  # key in an HTTP scope, for what the SDK's own parser of bodies would refuse


# Some clients ask for these whatever is advertised; an empty list serves them better than an error.
_EMPTY = {
    "prompts/list": ListPromptsResult(prompts=[]),
    "resources/list": ListResourcesResult(resources=[]),
    "resources/templates/list": ListResourceTemplatesResult(resource_templates=[]),
}


class _ToolServer(Server):
    """Advertises tools and nothing else, whatever it answers."""

    def get_capabilities(self, *args, **kwargs) -> ServerCapabilities:
        return ServerCapabilities(tools=super().get_capabilities(*args, **kwargs).tools)


def build_server(pool: Pool) -> Server:
    """The local MCP server over `pool`, ready for any transport: 14 tools and nothing else."""
    schemas = {verb.name: _with_forest(verb) for verb in VERBS.values()}
    listing = ListToolsResult(tools=[tool(verb, schemas[verb.name]) for verb in VERBS.values()])

    async def list_tools(ctx, params) -> ListToolsResult:
        return listing

    async def call_tool(ctx, params) -> CallToolResult:
        call = partial(pool.call, params.name, _ARGUMENTS.get(), client=_client(ctx))
        return await to_thread.run_sync(tool_result, call, params.name)

    server = _ToolServer(
        "vine",
        version=package_version(),
        instructions=INSTRUCTIONS,
        cache_hints=dict.fromkeys(("server/discover", "tools/list", *_EMPTY), LIST_HINT),
        get_tool_input_schema=schemas.get,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    for method, nothing in _EMPTY.items():
        server.add_request_handler(method, PaginatedRequestParams, partial(_answer, nothing))
    server.middleware = [_keep_arguments]
    return server


async def _answer(result: Any, ctx, params) -> Any:
    return result


def package_version() -> str:
    """Version of the installed package, or of the checkout this file lies in."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        project = Path(__file__).with_name("pyproject.toml").read_text(encoding="utf-8")
        return tomllib.loads(project)["project"]["version"]


def _with_forest(verb: Verb) -> dict[str, Any]:
    schema = verb.schema()
    if verb.name == "forests":
        return schema
    return {**schema, "properties": {**schema["properties"], _FOREST.name: _FOREST.schema()}}


async def _keep_arguments(ctx, call_next):
    """Middleware: put the arguments of a tool call aside and show the SDK an empty object instead."""
    if ctx.method == "tools/call" and isinstance(ctx.params, Mapping):
        scope = ctx.request.scope if ctx.request is not None else {}
        sent = scope.get(_SENT, ctx.params.get("arguments"))
        _ARGUMENTS.set({} if sent is None else sent)
        ctx = replace(ctx, params={**ctx.params, "arguments": {}})
    return await call_next(ctx)


def _client(ctx) -> str:
    """Who calls: the MCP session over HTTP; stdio and requests without a session are one client."""
    if ctx.request is None or ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return ""
    return ctx.request.headers.get("mcp-session-id", "")


# ---------------------------------------------------------------------------- 3. JSON-RPC on the wire


class Malformed(Exception):
    """Bytes that are no JSON-RPC message; `answer` is the error that goes back for them."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.answer = _rpc_error(code, message)


def parse_message(data: bytes) -> tuple[dict[str, Any], JSONRPCMessage]:
    """One JSON-RPC message in UTF-8, as plain JSON and as the SDK's model; `Malformed` for anything else."""
    try:
        raw = json.loads(data.decode("utf-8-sig"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Malformed(PARSE_ERROR, "Parse error: not JSON in UTF-8") from None
    try:
        message = jsonrpc_message_adapter.validate_python(raw, by_name=False)
    except ValidationError:
        raise Malformed(INVALID_REQUEST, "Invalid request: not one JSON-RPC 2.0 message") from None
    if isinstance(message, JSONRPCNotification) and "id" in raw:  # a request, but for its id
        raise Malformed(INVALID_REQUEST, "Invalid request: id must be a string or an integer")
    return raw, message


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _rpc_error(code: int, message: str) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=None, error=ErrorData(code=code, message=message))


def _encode(message: JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode("utf-8")


# ----------------------------------------------------------------------------------------- 4. leaving


def _on_signals(ask: Callable[[], None]) -> None:
    """From now on SIGTERM and SIGINT call `ask`, which must be safe at any moment, and start the deadline."""

    def handle(*_) -> None:
        _leave_by_deadline()
        ask()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def _leave_by_deadline() -> None:
    """End the process with exit code 0 in `LEAVE_SECONDS`, should it still be there. The first call counts.

    A timer of the kernel and no thread: it fires even while a call that nobody can interrupt holds the exit
    back. What such a call leaves behind is settled by the recovery of the next open.
    """
    if signal.getitimer(signal.ITIMER_REAL)[0] == 0:
        signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
        signal.setitimer(signal.ITIMER_REAL, LEAVE_SECONDS)


# ------------------------------------------------------------------------------------------- 5. stdio


class _Lines:
    """One client on a pair of pipes: a message a line, in both directions.

    `unanswered` holds the ids of requests without an answer yet. When the input ends they are answered first,
    so a client that writes its requests and closes the pipe gets everything it asked for.
    """

    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self.leaving = anyio.Event()
        self.unanswered: set[Any] = set()
        self.to_server, self.inbound = anyio.create_memory_object_stream(0)
        self.outbound, self.from_server = anyio.create_memory_object_stream(0)

    def read(self, source: BinaryIO) -> None:
        """Feed the lines of `source` to the server, on a thread of its own, for it may block for ever."""
        with suppress(RuntimeError):  # the loop is gone: nobody listens any more
            for line in source:
                if line.strip():
                    self._hand_over(line)
            self.leave()

    def leave(self) -> None:
        """Ask `serve` to finish, from any thread or signal handler."""
        self.loop.call_soon_threadsafe(self.leaving.set)

    def _hand_over(self, line: bytes) -> None:
        try:
            _, message = parse_message(line)
            delivery = self._accept(message)
        except Malformed as fault:
            delivery = self.outbound.send(SessionMessage(fault.answer))
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            asyncio.run_coroutine_threadsafe(delivery, self.loop).result()

    async def _accept(self, message: JSONRPCMessage) -> None:
        if isinstance(message, JSONRPCRequest):
            self.unanswered.add(message.id)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self.unanswered.discard((message.params or {}).get("requestId"))
        await self.to_server.send(SessionMessage(message))

    async def write(self, sink: int) -> None:
        """Write what the server says to descriptor `sink`, in order, never on the event loop."""
        alone = anyio.CapacityLimiter(1)  # answers must not queue behind the calls that fill the common pool
        async for item in self.from_server:
            try:
                await to_thread.run_sync(_write_all, sink, _encode(item.message) + b"\n", limiter=alone)
            except OSError:  # the client is gone
                self.leaving.set()
            if isinstance(item.message, JSONRPCResponse | JSONRPCError):
                self.unanswered.discard(item.message.id)

    async def serve(self, server: Server, source: BinaryIO, sink: int) -> None:
        """Serve until the input ends or `leave` is called, and all that was asked before has its answer."""
        threading.Thread(target=self.read, args=(source,), daemon=True, name="stdin").start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.write, sink)
            tasks.start_soon(server.run, self.inbound, self.outbound, server.create_initialization_options())
            await self.leaving.wait()
            _leave_by_deadline()
            while self.unanswered:
                await anyio.sleep(0.01)
            await self.to_server.aclose()


def serve_stdio(pool: Pool) -> None:
    """Serve `pool` to the one client on stdin and stdout, until it is gone or a signal comes."""
    source, sink = _take_stdio()

    async def main() -> None:
        lines = _Lines()
        _on_signals(lines.leave)
        await lines.serve(build_server(pool), source, sink)
        _on_signals(_nothing)

    anyio.run(main)


def _take_stdio() -> tuple[BinaryIO, int]:
    """Keep stdin and stdout for the protocol; everybody else, children too, gets the null device and stderr.

    Done on descriptors, so a library that prints, from Python or from C, cannot reach the client.
    """
    source, sink = os.dup(0), os.dup(1)
    for descriptor in (source, sink):
        os.set_blocking(descriptor, True)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2 if _is_open(2) else null, 1)
    os.close(null)
    return os.fdopen(source, "rb"), sink


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _nothing() -> None:
    """What a signal asks of a process that is ending already."""


# -------------------------------------------------------------------------------------------- 6. HTTP

_LOCAL = r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"
_LOCAL_HOST = re.compile(_LOCAL, re.IGNORECASE)
_LOCAL_ORIGIN = re.compile("https?://" + _LOCAL, re.IGNORECASE)
_ACCEPT = b"application/json, text/event-stream"


class _Refused(Exception):
    """An HTTP request that the transport never sees."""

    def __init__(self, status: int, answer: JSONRPCError, headers: dict[str, str] | None = None):
        super().__init__(answer.error.message)
        self.response = Response(_encode(answer), status, headers, media_type="application/json")


class _Endpoint:
    """ASGI application at `/mcp`: turns away what the SDK should not see, and hands it the rest.

    On a loopback address only programs and pages of this machine get in, so that a foreign page in a browser
    cannot reach the forest by way of a DNS name of its own.
    """

    def __init__(self, pool: Pool, transport: Callable, loopback: bool):
        self.pool = pool
        self.transport = transport
        self.loopback = loopback

    async def __call__(self, scope, receive, send) -> None:
        request = Request(scope, receive)
        try:
            self._check_head(request)
            if request.method == "POST":
                scope, receive = await self._check_body(request)
        except _Refused as refused:
            await refused.response(scope, receive, send)
            return
        if request.method == "DELETE":
            send = self._watch_end(request, send)
        await self.transport(scope, receive, send)

    def _check_head(self, request: Request) -> None:
        headers = request.headers
        if self.loopback:
            if not _LOCAL_HOST.fullmatch(headers.get("host", "")):
                raise _invalid(421, "Host must be localhost, 127.0.0.1 or [::1]")
            if "origin" in headers and not _LOCAL_ORIGIN.fullmatch(headers["origin"]):
                raise _invalid(403, "this Origin may not use a server on a loopback address")
        if request.method not in ("POST", "DELETE"):
            raise _invalid(405, "use POST, or DELETE to end a session", {"Allow": "POST, DELETE"})
        if request.method == "POST" and not _accepts_events(headers.get("accept", "")):
            raise _invalid(406, "Accept must name text/event-stream")
        if request.method == "DELETE" and "mcp-session-id" not in headers:
            raise _invalid(400, "DELETE needs the mcp-session-id of the session to end")

    async def _check_body(self, request: Request) -> tuple[dict, Callable]:
        """Scope and `receive` for the SDK: a body it can parse, and beside it the arguments as sent."""
        try:
            raw, message = parse_message(await request.body())
        except Malformed as fault:
            raise _Refused(400, fault.answer) from None
        starts = isinstance(message, JSONRPCRequest) and message.method == "initialize"
        if not starts and _by_handshake(request) and "mcp-session-id" not in request.headers:
            raise _invalid(400, "no session: send initialize, then its mcp-session-id with every request")

        kept = [pair for pair in request.scope["headers"] if pair[0] != b"accept"]
        scope = {**request.scope, "headers": [*kept, (b"accept", _ACCEPT)]}
        params = raw.get("params")
        if isinstance(params, dict) and "arguments" in params:
            scope[_SENT] = params["arguments"]
            raw = {**raw, "params": {**params, "arguments": {}}}
        return scope, _replay(forest.dumps(raw).encode("utf-8", "replace"), request.receive)

    def _watch_end(self, request: Request, send: Callable) -> Callable:
        async def watch(message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                await to_thread.run_sync(self.pool.end_client, request.headers["mcp-session-id"])
            await send(message)

        return watch


def _invalid(status: int, message: str, headers: dict[str, str] | None = None) -> _Refused:
    return _Refused(status, _rpc_error(INVALID_REQUEST, message), headers)


def _by_handshake(request: Request) -> bool:
    version = request.headers.get("mcp-protocol-version", LATEST_HANDSHAKE_VERSION)
    return version in HANDSHAKE_PROTOCOL_VERSIONS


def _accepts_events(accept: str) -> bool:
    kinds = {kind.partition(";")[0].strip().lower() for kind in accept.split(",")}
    return not kinds.isdisjoint(("text/event-stream", "text/*", "*/*"))


def _replay(body: bytes, receive: Callable) -> Callable:
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay():
        return waiting.pop() if waiting else await receive()

    return replay


def http_app(pool: Pool, loopback: bool = True, idle_seconds: float = IDLE_SECONDS) -> Starlette:
    """The local server as an ASGI application; a session without requests ends after `idle_seconds`."""
    manager = StreamableHTTPSessionManager(
        build_server(pool), session_idle_timeout=idle_seconds, max_request_body_size=BODY_LIMIT
    )
    endpoint = RequestBodyLimitMiddleware(_Endpoint(pool, manager.asgi_app, loopback), BODY_LIMIT)
    app = Starlette(routes=[Route(path, endpoint) for path in PATHS], lifespan=lambda _: manager.run())
    app.router.redirect_slashes = False
    return app


class _HttpServer(uvicorn.Server):
    """Leaves the signals to this module: exit code 0, and answers in progress are sent to their end."""

    def capture_signals(self):
        return nullcontext()


def serve_http(pool: Pool, host: str, port: int) -> int:
    """Serve `pool` over streamable HTTP until the process is asked to end; returns the exit code.

    1 when the address cannot be had, with one line on stderr. Port 0 takes a free one; stderr names it.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = str(error).partition(" (while")[0]
        print(f"vine: cannot listen on {host} port {port}: {reason}", file=sys.stderr)
        return 1
    address, port = listener.getsockname()[:2]
    loopback = ipaddress.ip_address(address).is_loopback
    shown = f"[{address}]" if ":" in address else address
    print(f"vine: MCP at http://{shown}:{port}{PATHS[0]}", file=sys.stderr)
    if not loopback:
        print(f"vine: warning: {shown} is open to the network and there are no accounts", file=sys.stderr)
    app = http_app(pool, loopback)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, http="h11", ws="none"
    )
    server = _HttpServer(config)
    _on_signals(partial(setattr, server, "should_exit", True))
    server.run(sockets=[listener])
    return 0


# ------------------------------------------------------------------------------------------- 7. serve


def serve(pool: Pool, transport: str = "stdio", host: str = "127.0.0.1", port: int = 8000) -> int:
    """Serve `pool` by `transport`, `stdio` or `http`, close it, and return the exit code of `vine serve`."""
    _on_signals(partial(os._exit, 0))  # nothing has begun yet
    try:
        if transport == "http":
            return serve_http(pool, host, port)
        serve_stdio(pool)
        return 0
    finally:
        pool.close()
