"""Passes requests on to the servers behind, their answers back while they come, and writes both down."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from urllib.parse import unquote_plus

import aiohttp
from aiohttp import web

from rolltape.serving.asked import Asked
from rolltape.serving.call import Call
from rolltape.serving.call_writer import CallWriter
from rolltape.serving.http_answers import BROKEN_OFF, break_off, failure, kept_answer_headers
from rolltape.serving.lookup import Slot
from rolltape.serving.tally import Tally
from rolltape.serving.upstream import NoUpstream, Upstreams

log = logging.getLogger("rolltape")

KEEP_RECENT = 64 * 1024 * 1024
"""Bytes of answers that are kept for requests that are sent again."""

_Name = tuple[str, bytes, int, str]
"""A request that may be sent again: its id, its body, and the step and the weights it is asked for."""


class Passing:
    """Everything that goes to an engine."""

    def __init__(
        self,
        upstreams: Upstreams,
        writer: CallWriter | None,
        tally: Tally,
        recorded: Iterable[Slot],
        token: str | None,
    ) -> None:
        self._upstreams = upstreams
        self._writer = writer
        self._tally = tally
        self._token = token
        self._ticks = 0
        self._turns: Counter[str | bytes] = Counter()
        for slot in recorded:
            who = slot.session or slot.body
            self._turns[who] = max(self._turns[who], slot.turn + 1)
            self._ticks = max(self._ticks, slot.arrival + 1, slot.completion + 1)
        self._running: dict[_Name, asyncio.Future[Call | None]] = {}
        """Requests with an id that are on their way."""
        self._recent: OrderedDict[_Name, Call] = OrderedDict()
        self._recent_bytes = 0
        self.ended: Callable[[Call], None] = lambda call: None
        """Told of each call that goes on the tape, before it does."""

    async def again(self, asked: Asked, step: int, weights: str) -> Call | None:
        """The answer that the same request had, or is about to have, where its id says that it is one."""
        if asked.request_id is None:
            return None
        name = asked.request_id, asked.keys.body, step, weights
        while (running := self._running.get(name)) is not None:
            if (call := await asyncio.shield(running)) is not None:
                return call
        return self._recent.get(name)

    async def pass_on(
        self,
        request: web.BaseRequest,
        asked: Asked,
        *,
        stage: str,
        step: int,
        weights: str,
        keep: Callable[[Call], bool] = lambda call: True,
        everywhere: bool = False,
    ) -> web.StreamResponse:
        """Pass a request on: ``everywhere`` to every server there is; written down if ``keep`` says so."""
        await self._room()
        call = self._begin(asked, stage, step, weights)
        started = time.perf_counter()
        waiting = self._announce(call)
        try:
            return await self._pass_on(request, call, started, everywhere)
        except NoUpstream as error:
            if not call.aborted:
                call.aborted = "unreachable"
                self._tally.calls["failed"] += 1
            return failure(BROKEN_OFF, asked.dialect, f"the inference server cannot be reached: {error}")
        except (asyncio.CancelledError, ConnectionResetError):
            call.aborted = call.aborted or "client"
            raise
        finally:
            call.latency = time.perf_counter() - started
            self._end(call, waiting, keep=keep(call))

    async def generate(self, request: web.BaseRequest, asked: Asked, *, step: int, weights: str) -> Call:
        """Ask for a part of what a request asks for, and write it down; ``NoUpstream`` if nobody answers."""
        await self._room()
        call, started = self._begin(asked, "calls", step, weights), time.perf_counter()
        try:
            answer = await self._ask(request, call)
            try:
                await self._read(call, answer, started)
            finally:
                answer.close()
        except NoUpstream:
            call.aborted = call.aborted or "unreachable"
            self._tally.calls["failed"] += 1
            raise
        except asyncio.CancelledError:
            call.aborted = "client"
            raise
        finally:
            call.latency = time.perf_counter() - started
            self._end(call, None, keep=True)
        return call

    async def _pass_on(
        self, request: web.BaseRequest, call: Call, started: float, everywhere: bool
    ) -> web.StreamResponse:
        answer = await self._ask(request, call, everywhere)
        try:
            if "event-stream" in answer.content_type or answer.content_length is None:
                return await self._stream(request, call, answer, started)
            await self._read(call, answer, started)
        finally:
            answer.close()  # one that was not read to its end is broken off
        return web.Response(status=call.status, body=call.body, headers=call.headers)

    async def _ask(
        self, request: web.BaseRequest, call: Call, everywhere: bool = False
    ) -> aiohttp.ClientResponse:
        """Send a request on; its answer has begun."""
        asked = call.asked
        query = self._passed_query(request.rel_url.raw_query_string)
        target = asked.path + (f"?{query}" if query else "")
        ask = self._upstreams.ask_all if everywhere else self._upstreams.ask
        answer = await ask(request.method, target, self._passed(request), asked.body, asked.session)
        call.status = answer.status
        call.headers = kept_answer_headers(answer.headers.items())
        return answer

    async def _read(self, call: Call, answer: aiohttp.ClientResponse, started: float) -> None:
        """Take an answer as a whole."""
        try:
            call.chunks.append(await answer.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            call.aborted, call.status = "upstream", BROKEN_OFF
            raise NoUpstream(f"the answer broke off: {error}") from error
        call.seconds.append(time.perf_counter() - started)
        await self._room()  # no answer is given while earlier ones wait too long to be written down

    async def _stream(
        self, request: web.BaseRequest, call: Call, answer: aiohttp.ClientResponse, started: float
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=call.status, headers=call.headers)
        await response.prepare(request)
        try:
            async for chunk in answer.content.iter_any():
                call.chunks.append(chunk)
                call.seconds.append(time.perf_counter() - started)
                await response.write(chunk)
        except (aiohttp.ClientError, TimeoutError) as error:
            call.aborted = "upstream"
            log.warning("an answer of the server broke off: %s", error)
            break_off(request)
            return response
        await response.write_eof()
        return response

    def _begin(self, asked: Asked, stage: str, step: int, weights: str) -> Call:
        who = asked.session or asked.keys.body
        turn, self._turns[who] = self._turns[who], self._turns[who] + 1
        self._tally.calls["live"] += stage == "calls"
        return Call(asked, stage, step, weights, turn, self._tick(), time.time())

    def _announce(self, call: Call) -> asyncio.Future[Call | None] | None:
        if call.asked.request_id is None:
            return None
        waiting: asyncio.Future[Call | None] = asyncio.get_running_loop().create_future()
        self._running[call.asked.request_id, call.asked.keys.body, call.step, call.weights] = waiting
        return waiting

    def _end(self, call: Call, waiting: asyncio.Future[Call | None] | None, *, keep: bool) -> None:
        call.completion = self._tick()
        if keep and call.aborted != "unreachable" and self._writer is not None:
            self.ended(call)
            self._writer.add(call)
            self._tally.calls["recorded"] += call.stage == "calls"
        if call.aborted:
            self._tally.calls["aborted"] += call.aborted != "unreachable"
        if call.asked.request_id is None or waiting is None:
            return
        name = call.asked.request_id, call.asked.keys.body, call.step, call.weights
        if self._running.get(name) is waiting:
            del self._running[name]
        if not call.is_finished:
            waiting.set_result(None)  # whoever waits for it asks for itself
            return
        waiting.set_result(call)
        self._recent[name] = call
        self._recent_bytes += call.nbytes
        while self._recent_bytes > KEEP_RECENT:
            self._recent_bytes -= self._recent.popitem(last=False)[1].nbytes

    async def _room(self) -> None:
        while self._writer is not None and not self._writer.has_room and self._writer.failure is None:
            await asyncio.sleep(0.01)

    def _tick(self) -> int:
        """One clock for arrivals and completions: what is between them was on its way."""
        self._ticks += 1
        return self._ticks - 1

    def _passed_query(self, query: str) -> str:
        if self._token is None:
            return query
        said = query.split("&")
        return "&".join(one for one in said if unquote_plus(one) != f"token={self._token}")

    def _passed(self, request: web.BaseRequest) -> list[tuple[str, str]]:
        """The headers that go on to the server behind; what is meant for this one does not."""
        token = self._token
        return [
            (name, value)
            for name, value in request.headers.items()
            if not name.lower().startswith("x-rolltape-") and not (token is not None and token in value)
        ]
