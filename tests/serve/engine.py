"""An inference server that is not one: real HTTP, answers that no two calls share, and faults when asked for.

with Engine() as engine, rolltape.serve(tape, engine.url, mode="record") as server:
    ask(server.url, "/v1/chat/completions", chat("hello"))
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

LIMIT = 60.0
"""Seconds after which what is waited for is taken never to come, on however slow a machine."""


@dataclass
class Seen:
    """A request as it came in."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Plan:
    """What is answered to one request; by default what a model would."""

    status: int = 200
    body: bytes | None = None
    chunks: list[bytes] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    """Waited before the answer, and before each chunk after the first."""
    cut: bool = False
    """Whether the connection ends where the answer should."""
    hang: bool = False
    """Whether nothing more comes, and the connection stays."""


class Engine:
    """The server; ``plan`` decides on each call, ``seen`` has all requests."""

    def __init__(self, plan: Callable[[Seen], Plan] | None = None, *, deterministic: bool = False) -> None:
        self.plan = plan or (lambda seen: Plan())
        self.deterministic = deterministic
        self.seen: list[Seen] = []
        self.broken_off = 0
        """Answers whose client went away."""
        self.url = ""
        self._salt = uuid.uuid4().hex

    def calls(self, path: str = "/v1/chat/completions") -> list[Seen]:
        return [seen for seen in self.seen if seen.path == path]

    def __enter__(self) -> Engine:
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=[started], daemon=True)
        self._thread.start()
        started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _run(self, started: threading.Event) -> None:
        self._loop.run_until_complete(self._serve(started))
        self._loop.close()

    async def _serve(self, started: threading.Event) -> None:
        self._end = asyncio.Event()
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        started.set()
        await self._end.wait()
        await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen = Seen(request.method, request.rel_url.raw_path, request.query_string, headers, body)
        self.seen.append(seen)
        number = len(self.seen)
        try:
            return await self._answer(request, seen, number)
        except (asyncio.CancelledError, ConnectionResetError):
            self.broken_off += 1
            raise

    async def _answer(self, request: web.Request, seen: Seen, number: int) -> web.StreamResponse:
        plan = self.plan(seen)
        await asyncio.sleep(plan.seconds)
        if plan.body is None and plan.chunks is None:
            plan = self._spoken(seen, number, plan)
        if plan.chunks is None:
            if plan.hang:
                await asyncio.sleep(3600)
            headers = {"content-type": "application/json", **plan.headers}
            return web.Response(status=plan.status, body=plan.body, headers=headers)
        headers = {"content-type": "text/event-stream", **plan.headers}
        response = web.StreamResponse(status=plan.status, headers=headers)
        await response.prepare(request)
        for at, chunk in enumerate(plan.chunks):
            await asyncio.sleep(plan.seconds if at else 0)
            await response.write(chunk)
        if plan.hang:
            await asyncio.sleep(3600)
        if plan.cut:
            await asyncio.sleep(0.05)
            request.transport.abort()
            return response
        await response.write_eof()
        return response

    def _spoken(self, seen: Seen, number: int, plan: Plan) -> Plan:
        """What a model says: something else to each call, unless it is deterministic."""
        if plan.status != 200:
            plan.body = json.dumps({"error": {"message": f"failure {number}"}}).encode()
            return plan
        if not seen.path.startswith(("/v1/c", "/generate", "/inference")) or seen.method != "POST":
            plan.body = json.dumps({"path": seen.path, "number": number}).encode()
            return plan
        about = seen.body if self.deterministic else f"{self._salt} {number}".encode()
        said = f"answer {hashlib.sha256(about).hexdigest()[:12]}"
        asked = seen.json
        if asked.get("stream"):
            deltas = [{"choices": [{"index": 0, "delta": {"content": word + " "}}]} for word in said.split()]
            plan.chunks = [b"data: " + json.dumps(delta).encode() + b"\n\n" for delta in deltas]
            plan.chunks.append(b"data: [DONE]\n\n")
            return plan
        message = {"role": "assistant", "content": said}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "text": said}
        answer = {"id": f"c-{number}", "object": "chat.completion", "created": 1, "choices": [choice],
                  "model": asked.get("model")}  # fmt: skip
        plan.body = json.dumps({**answer, "id": "c"} if self.deterministic else answer).encode()
        return plan


def chat(text: str, **fields: Any) -> dict[str, Any]:
    """The body of a call: one question, or a conversation that ends with it."""
    before = fields.pop("before", [])
    messages = [*before, {"role": "user", "content": text}]
    return {"model": "m", "messages": messages, "temperature": 1.0, **fields}


@dataclass
class Answered:
    """What a client got."""

    status: int
    headers: dict[str, str]
    body: bytes
    chunks: list[bytes] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.json["choices"][0]["message"]["content"]


CHAT = "/v1/chat/completions"


@contextlib.asynccontextmanager
async def client() -> Any:
    """Many connections at once, and no patience of its own."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(LIMIT)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield session


async def post(
    session: aiohttp.ClientSession, url: str, body: Any, *, path: str = CHAT, **headers: str
) -> Answered:
    """Ask once. Headers are written with underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with session.post(url + path, data=data, headers=named) as answer:
        chunks = [chunk async for chunk in answer.content.iter_any()]
        found = {name.lower(): value for name, value in answer.headers.items()}
        return Answered(answer.status, found, b"".join(chunks), chunks)


def ask(url: str, body: Any = None, *, path: str = CHAT, method: str = "POST", **headers: str) -> Answered:
    """Ask once, from a test that is not asynchronous."""

    async def once() -> Answered:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        async with client() as session, session.request(method, url + path, data=data, headers=named) as got:
            found = {name.lower(): value for name, value in got.headers.items()}
            return Answered(got.status, found, await got.read())

    return asyncio.run(once())


def rows(tape: Any, stage: str = "calls") -> list[dict[str, Any]]:
    """Everything that a tape has of a stage, call by call, in the order of arrival."""
    import rolltape

    found = []
    for recording in rolltape.open(tape).recordings(stage):
        columns = recording.batch().columns
        for at in range(len(columns["uid"])):
            one = {name: values[at] for name, values in columns.items()}
            found.append({**one, "step": recording.key.step})
    return sorted(found, key=lambda one: (one["step"], one["arrival"]))


def until(happened: Callable[[], Any]) -> Any:
    """Wait for something, with more patience than any machine needs."""
    for _ in _moments():
        if found := happened():
            return found
    raise AssertionError("it never happened")


async def until_async(happened: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LIMIT
    while not (found := happened()):
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.01)
    return found


def _moments() -> Iterator[None]:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        yield
        time.sleep(0.01)
