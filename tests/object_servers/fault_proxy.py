"""What a network and a busy store do, on purpose: a proxy that delays, refuses, resets, cuts and loses.

    proxy = FaultProxy(server.port)                      listens on proxy.port
    proxy.faults = Faults(latency=0.02, slow_down=0.1)   from now on, of every request
    proxy.once("lost", "PUT")                            the next PUT is done, and its answer is lost
    proxy.away = True                                    nobody is there

Requests reach the server as they were sent, Host header included: S3's signatures cover it. What happens to
the n-th request that is at risk follows from the seed alone.

    python -m tests.object_servers.fault_proxy PORT --latency 0.02   a process of its own; prints its port
"""

from __future__ import annotations

import argparse
import asyncio
import random
import threading
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, fields
from urllib.parse import parse_qs, unquote, urlsplit

_PIECE = 1 << 18
_LIMIT = 1 << 20
"""The longest head of a message."""


@dataclass(frozen=True)
class Faults:
    """What happens to requests: shares between 0 and 1 of those at risk, which exclude each other."""

    latency: float = 0.0
    """Seconds that every request waits before the server sees it."""
    error: float = 0.0
    """Answered with 500 InternalError; the server never sees the request."""
    slow_down: float = 0.0
    """Answered with 503 SlowDown; the server never sees the request."""
    conflict: float = 0.0
    """Answered with 409 ConditionalRequestConflict: another request for it is under way, try again."""
    reset: float = 0.0
    """The connection is reset; the server never sees the request."""
    lost: float = 0.0
    """The server does it, and the connection is reset in place of the answer."""
    truncated: float = 0.0
    """The server does it, and the connection ends in the middle of the answer's body."""
    hang: float = 0.0
    """Nobody answers, until other faults are set; the server never sees the request."""
    kinds: tuple[str, ...] = ()
    """The kinds of request at risk; empty: all of them."""

    def at_risk(self, kind: str) -> bool:
        return not self.kinds or kind in self.kinds

    def drawn(self, dice: random.Random) -> str | None:
        """What happens to one request at risk; None: nothing."""
        value = dice.random()
        for name in SHARES:
            value -= getattr(self, name)
            if value < 0:
                return name
        return None


NO_FAULTS = Faults()
_REFUSALS = {
    "error": ("InternalError", "500 Oops"),
    "slow_down": ("SlowDown", "503 Slow Down"),
    "conflict": ("ConditionalRequestConflict", "409 Conflict"),
}
SHARES = tuple(one.name for one in fields(Faults) if one.name not in ("latency", "kinds"))


@dataclass(frozen=True)
class Request:
    """What of a request decides about it."""

    method: str
    target: str
    head: bytes
    length: int | None
    """Of its body; None: chunked."""

    @property
    def kind(self) -> str:
        """`LIST`, or the method."""
        query = parse_qs(urlsplit(self.target).query, keep_blank_values=True)
        listing = "list-type" in query or query.get("comp") == ["list"]
        return "LIST" if self.method == "GET" and listing else self.method


class FaultProxy:
    """Stands before a server on loopback, in a thread of its own."""

    def __init__(self, server_port: int, faults: Faults = NO_FAULTS, seed: int = 0) -> None:
        self.server_port = server_port
        self.faults = faults
        self.away = False
        """While true, every connection is reset, those that are open too."""
        self.requests: Counter[str] = Counter()
        """How many came, by kind, whatever became of them."""
        self.lists: list[str] = []
        """What was asked for in each request that lists."""
        self.sent: Counter[str] = Counter()
        """Bytes of bodies to the server, by kind."""
        self.received: Counter[str] = Counter()
        """Bytes of bodies from the server, by kind."""
        self.injected: Counter[str] = Counter()
        """How many faults, by name."""
        self._dice = random.Random(seed)
        self._once: deque[tuple[str, str | None]] = deque()
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        up = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(up,), daemon=True, name="fault-proxy")
        self._thread.start()
        up.wait()

    def once(self, fault: str, kind: str | None = None) -> None:
        """Do this to the next request (of a kind), before any dice are thrown; may be said several times."""
        assert fault in SHARES, fault
        self._once.append((fault, kind))

    def forget(self) -> None:
        """Start all counts at zero."""
        self.lists.clear()
        for counter in (self.requests, self.sent, self.received, self.injected):
            counter.clear()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- in the thread ---------------------------------------------------------------------------

    def _run(self, up: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_LIMIT)
        )
        self.port = int(server.sockets[0].getsockname()[1])
        up.set()
        with suppress(KeyboardInterrupt):
            self._loop.run_forever()
        server.close()
        for writer in list(self._open):
            writer.transport.abort()
        pending = asyncio.all_tasks(self._loop)
        for task in pending:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        upstream: asyncio.StreamWriter | None = None
        try:
            if self.away:
                return
            behind, upstream = await asyncio.open_connection("127.0.0.1", self.server_port, limit=_LIMIT)
            while await self._exchange(reader, writer, behind, upstream):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the client or the server went away, or the proxy stops
        finally:
            self._open.discard(writer)
            writer.transport.abort()  # what was written has been drained; nobody waits for a goodbye
            if upstream is not None:
                upstream.transport.abort()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        behind: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> bool:
        """One request and its answer; whether the connection goes on."""
        head = await reader.readuntil(b"\r\n\r\n")
        request = _parsed(head)
        self.requests[request.kind] += 1
        self.lists += [unquote(request.target)] if request.kind == "LIST" else []
        faults, fault = self.faults, self._fault(request.kind)
        if faults.latency:
            await asyncio.sleep(faults.latency)
        if self.away or fault == "reset":
            return False
        if fault == "hang":
            while self.faults == faults and not reader.at_eof():  # or until the client gives up
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(reader.read(_PIECE), 0.05)
            return False
        if fault in _REFUSALS:
            await _body(reader, request.length, None)
            writer.write(_refusal(fault))
            await _delivered(writer)
            return True
        upstream.write(request.head)
        sent = await _body(reader, request.length, upstream)
        self.sent[request.kind] += sent
        return await self._answer(request, fault, behind, writer)

    def _fault(self, kind: str) -> str | None:
        for planned in self._once:
            if planned[1] in (None, kind):
                self._once.remove(planned)
                fault: str | None = planned[0]
                break
        else:
            fault = self.faults.drawn(self._dice) if self.faults.at_risk(kind) else None
        if fault:
            self.injected[fault] += 1
        return fault

    async def _answer(
        self, request: Request, fault: str | None, behind: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        head = await behind.readuntil(b"\r\n\r\n")
        while head.split(b" ", 2)[1] == b"100":
            head = await behind.readuntil(b"\r\n\r\n")
        length = _answer_length(request.method, head)
        if fault == "lost" or (fault == "truncated" and length == 0):
            await _body(behind, length, None)
            return False
        if self.away:
            return False
        writer.write(head)
        if fault == "truncated":
            cut = _LIMIT if length is None else length // 2
            await _delivered(writer)
            if length is not None:
                await _body(behind, cut, writer)
                await _delivered(writer)
            return False
        self.received[request.kind] += length or 0  # before the client has all, and asks how much it was
        passed = await _body(behind, length, writer)
        self.received[request.kind] += passed - (length or 0)
        await _delivered(writer)
        return b"connection: close" not in head.lower()


def _parsed(head: bytes) -> Request:
    line, *rest = head.decode("latin-1").split("\r\n")
    method, target, _ = line.split(" ", 2)
    return Request(method, target, head, _length(rest, 0))


def _answer_length(method: str, head: bytes) -> int | None:
    status, *rest = head.decode("latin-1").split("\r\n")
    if method == "HEAD" or status.split(" ")[1] in ("204", "304"):
        return 0
    return _length(rest, 0)


def _length(lines: list[str], default: int) -> int | None:
    split = (line.partition(":") for line in lines)
    named = {name.strip().lower(): value.strip() for name, _, value in split}
    if "chunked" in named.get("transfer-encoding", "").lower():
        return None
    return int(named.get("content-length", default))


async def _body(reader: asyncio.StreamReader, length: int | None, writer: asyncio.StreamWriter | None) -> int:
    """Pass a body on, or swallow it; its length."""
    if length is None:
        return await _chunks(reader, writer)
    left = length
    while left:
        piece = await reader.read(min(left, _PIECE))
        if not piece:
            raise asyncio.IncompleteReadError(b"", left)
        left -= len(piece)
        if writer is not None:
            writer.write(piece)
            await writer.drain()
    return length


async def _chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None) -> int:
    total = 0
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        data = await reader.readexactly(size + 2)
        if writer is not None:
            writer.write(line + data)
            await writer.drain()
        total += size
        if size == 0:
            return total


async def _delivered(writer: asyncio.StreamWriter) -> None:
    """Wait until the kernel has all of it: an abort would drop the rest."""
    await writer.drain()
    while writer.transport.get_write_buffer_size():
        await asyncio.sleep(0.001)


def _refusal(fault: str) -> bytes:
    code, status = _REFUSALS[fault]
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--seed", type=int, default=0)
    for name in ("latency", *SHARES):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=0.0)
    asked = parser.parse_args()
    faults = Faults(**{name: getattr(asked, name) for name in ("latency", *SHARES)})
    with FaultProxy(asked.port, faults, asked.seed) as proxy:
        print(proxy.port, flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
