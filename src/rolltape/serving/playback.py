"""Gives recorded answers: in their pieces, at their pace, in their turn."""

from __future__ import annotations

import asyncio
import time

from aiohttp import web

from rolltape.serving.http_answers import BROKEN_OFF, break_off, failure
from rolltape.serving.lookup import Answer, Lookup, Slot
from rolltape.serving.order_gate import Ticket
from rolltape.serving.serve_options import ServeOptions


class Playback:
    """Reads answers from the tape and sends them."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._loading: dict[tuple[str, int], asyncio.Task[list[Answer]]] = {}

    async def recorded(self, lookup: Lookup, slot: Slot) -> Answer:
        """What a recording answered; its file is read once, whoever asks for what is in it."""
        answer = lookup.cached_answer(slot)
        if answer is not None:
            return answer
        name = lookup.stage, slot.file
        task = self._loading.get(name)
        if task is None:
            task = self._loading[name] = asyncio.create_task(asyncio.to_thread(lookup.load, slot.file))
            task.add_done_callback(lambda _: self._loading.pop(name, None))
        answers = await asyncio.shield(task)
        lookup.keep(slot.file, answers)
        if slot.row >= len(answers):  # the file has grown since somebody began to read it
            return await self.recorded(lookup, slot)
        return answers[slot.row]

    async def send(
        self, request: web.BaseRequest, answer: Answer, started: float, ticket: Ticket | None = None
    ) -> web.StreamResponse:
        """Give an answer as it came then. With its ticket, it waits for its turn."""
        if answer.aborted == "client" and not answer.chunks:
            return await self._hold()
        if answer.aborted == "upstream" and answer.status == BROKEN_OFF:
            return failure(
                BROKEN_OFF, None, "the inference server broke this answer off when it was recorded"
            )
        if answer.aborted or answer.is_stream:
            return await self._send_pieces(request, answer, started, ticket)
        await self._until(started, answer.latency)
        if ticket is not None:
            await ticket.turn()
        response = web.Response(status=answer.status, body=answer.body, headers=answer.headers)
        await response.prepare(request)
        await response.write_eof()
        return response

    async def _send_pieces(
        self, request: web.BaseRequest, answer: Answer, started: float, ticket: Ticket | None
    ) -> web.StreamResponse:
        """The last piece completes the answer, so only that one waits for its turn."""
        response = web.StreamResponse(status=answer.status or 200, headers=answer.headers)
        await response.prepare(request)
        last = len(answer.chunks) - 1
        for at, (chunk, seconds) in enumerate(zip(answer.chunks, answer.seconds, strict=True)):
            await self._until(started, seconds)
            if at == last and ticket is not None and not answer.aborted:
                await ticket.turn()
            await response.write(chunk)
        if answer.aborted:
            if answer.aborted == "client":
                await self._hold()
            break_off(request)
            return response
        await response.write_eof()
        return response

    async def _hold(self) -> web.Response:
        """The client broke this call off when it was recorded: wait until it does so again."""
        await asyncio.sleep(self._options.wait)
        told = "the client broke this call off when it was recorded, and did not this time"
        return failure(422, None, f"no recording answers this: {told}")

    async def _until(self, started: float, seconds: float) -> None:
        rest = seconds * self._options.pace - (time.perf_counter() - started)
        if self._options.pace and rest > 0:
            await asyncio.sleep(rest)
