"""The HTTP server: reads requests, decides whether the tape or an engine answers, and says how it goes."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from contextlib import suppress
from typing import Any

from aiohttp import web

from rolltape.policy import Mode
from rolltape.serving import asked as asking
from rolltape.serving.asked import Asked, BadBody, Keys
from rolltape.serving.call import Call
from rolltape.serving.call_writer import CallWriter
from rolltape.serving.content_answers import ContentAnswers
from rolltape.serving.content_index import Policy
from rolltape.serving.control import QUESTIONS, Changes, is_health, is_measure, updates_weights
from rolltape.serving.dialects import Dialect, find
from rolltape.serving.http_answers import BROKEN_OFF, failure, json_answer
from rolltape.serving.live_page import PAGE, POLICY
from rolltape.serving.lookup import Answer, Found, Lookup, Slot, target_of
from rolltape.serving.miss import Miss, explain
from rolltape.serving.order_gate import Gate, Order
from rolltape.serving.passing import Passing
from rolltape.serving.playback import Playback
from rolltape.serving.request_path import Place, locate
from rolltape.serving.secrets import kept_headers, safe_query
from rolltape.serving.serve_options import Engines, ServeOptions, is_loopback
from rolltape.serving.step_clock import Clock
from rolltape.serving.tally import Tally
from rolltape.serving.upstream import NoUpstream, Upstreams
from rolltape.settings import By
from rolltape.storage import Pending

log = logging.getLogger("rolltape")

TOKEN = "x-rolltape-token"


class TooLarge(Exception):
    """A body above the limit."""


class Proxy:
    """Answers requests from a tape, from servers behind it, or from both."""

    def __init__(
        self,
        options: ServeOptions,
        calls: Lookup,
        control: Lookup,
        writer: CallWriter | None,
        models: list[str],
        upstreams: Upstreams,
    ) -> None:
        self.options = options
        self.tally = Tally()
        self.clock = Clock(options.step)
        self.calls = calls
        self._control = control
        self._writer = writer
        self._models = models
        by_step = options.by is By.STEP  # else there is no order in which they were asked for
        order = options.order if options.mode is Mode.REPLAY and by_step else Order.NONE
        self.gate = Gate(calls.slots, order, options.wait)
        self.gate.begin_step(options.step or 0)
        self.upstreams = upstreams
        self._playback = Playback(options)
        self._passing = Passing(upstreams, writer, self.tally, calls.slots, options.token)
        self._content: ContentAnswers | None = None
        if options.plays and not by_step:
            self._content = ContentAnswers(options, calls, self._playback, self._passing, self.tally)
            if writer is not None:
                writer.placed = self._content.placed
        self.url = ""
        self._acts = 0
        """Requests to the control plane so far that may have changed something."""
        self._told_last: dict[str, tuple[int, int, bytes]] = {}
        """What the control plane was last asked, and told: health is asked for all the time."""
        self._changes = Changes(control.slots)

    # -- requests ----------------------------------------------------------------------------------

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer any request."""
        refused = self._refusal(request)
        if refused is not None:
            return refused
        path = request.rel_url.raw_path
        if not path.startswith("/"):  # it would become part of the address of the server behind
            return failure(404, None, f"{path!r} is not a path")
        if path == "/rolltape" or path.startswith("/rolltape/"):
            return await self._own(request, path)
        place = locate(path)
        dialect = find(request.method, place.path)
        if place.lost:
            return failure(404, None, f"nothing that an inference server has stands behind {path}")
        try:
            asked = await self._read(request, place, dialect)
        except TooLarge:
            limit = f"the body has more than {self.options.max_body} bytes, which --max-body can raise"
            return failure(413, dialect, limit)
        except BadBody as error:
            return failure(400, dialect, str(error))
        if self._writer is not None and self._writer.failure is not None:
            return failure(500, dialect, f"calls can no longer be recorded: {self._writer.failure}")
        if dialect is None:
            return await self._answer_control(request, asked)
        step = self.clock.step if asked.step is None else asked.step
        with self.tally.asked(asked.path, asked.session, step):
            return await self._answer_call(request, asked)

    def _refusal(self, request: web.BaseRequest) -> web.Response | None:
        """What a request is told that has no business here."""
        token, host = self.options.token, _host_name(request.host)
        if token is not None:
            said = request.headers.get("authorization", "").removeprefix("Bearer ")
            given = (request.headers.get(TOKEN, ""), said, request.query.get("token", ""))
            if not any(hmac.compare_digest(one.encode("utf-8", "replace"), token.encode()) for one in given):
                return failure(401, None, f"send the token of this server as {TOKEN}, or as the API key")
        elif not is_loopback(host) and host != self.options.host:
            return failure(403, None, "this server answers to its own address only")
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != request.host:
            return failure(403, None, "pages of other sites have no business here")
        if request.headers.get("upgrade", "").lower() == "websocket":
            return failure(501, None, "websockets are not passed on")
        return None

    async def _read(self, request: web.BaseRequest, place: Place, dialect: Dialect | None) -> Asked:
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise BadBody("a compressed body is not read: send it as it is")
        body = await self._body(request)
        headers = request.headers
        raw = asking.raw_digest(body)
        parsed: Any = None
        keys = self.calls.known.get((place.path, raw)) if dialect is not None else None
        if keys is None or self.options.naming.fields or b'rid"' in body or b'request_id"' in body:
            try:
                parsed = asking.parse_body(body) if body else None
            except BadBody:
                if dialect is not None:
                    raise
        if keys is None:
            keys = Keys(raw) if body and parsed is None else self._keys(request.method, place.path, parsed)
        session, source = asking.session_of(place, headers, parsed, self.options.naming)
        step = asking.parse_step(headers.get(asking.STEP))
        return Asked(
            method=request.method,
            path=place.path,
            query=safe_query(request.rel_url.raw_query_string),
            body=body,
            raw=raw,
            keys=keys,
            dialect=dialect.for_body(parsed) if dialect is not None and parsed is not None else dialect,
            session=session,
            session_from=source,
            request_id=asking.request_id_of(headers, parsed),
            retry=asking.retries(headers),
            step=place.step if step is None else step,
            weights=headers.get(asking.WEIGHTS),
            headers=kept_headers(request.headers.items(), self.options.naming.headers),
        )

    def _keys(self, method: str, path: str, parsed: Any) -> Keys:
        try:
            return asking.keys_of(method, path, parsed, self.options.naming)
        except (RecursionError, ValueError) as error:
            raise BadBody(f"the body cannot be read: {type(error).__name__}") from None

    async def _body(self, request: web.BaseRequest) -> bytes:
        limit = self.options.max_body
        if (request.content_length or 0) > limit:
            raise TooLarge
        if request.headers.get("expect", "").lower() == "100-continue":  # it holds the body back until then
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        pieces, size = [], 0
        async for piece in request.content.iter_any():
            size += len(piece)
            if size > limit:
                raise TooLarge
            pieces.append(piece)
        return b"".join(pieces)

    # -- calls of a model --------------------------------------------------------------------------

    async def _answer_call(self, request: web.BaseRequest, asked: Asked) -> web.StreamResponse:
        step = self.clock.asked_step if asked.step is None else asked.step
        weights = self.clock.weights if asked.weights is None else asked.weights
        self.clock.called()
        if self._content is not None:
            answered = await self._answer_by_content(request, asked, step, weights, self._content)
            if answered is not None:
                return answered
        elif self.options.plays:
            found = self.calls.find(asked, step, weights)
            if found is not None:
                return await self._play(request, asked, found)
        if not self.options.asks_upstream or not self.options.upstream:
            return await self._missed(asked, step, weights)
        step = self.clock.step if asked.step is None else asked.step
        again = await self._passing.again(asked, step, weights)
        if again is not None:
            self.tally.calls["retried"] += 1
            return await self._playback.send(request, Answer.of(again), time.perf_counter())
        return await self._passing.pass_on(request, asked, stage="calls", step=step, weights=weights)

    async def _answer_by_content(
        self,
        request: web.BaseRequest,
        asked: Asked,
        step: int | None,
        weights: str,
        content: ContentAnswers,
    ) -> web.StreamResponse | None:
        """The recorded slot where it is this very one, else samples of the same prompt, from anywhere."""
        now, started = self.clock.step if step is None else step, time.perf_counter()
        declared = asked.weights is not None or self.clock.declares
        policy = Policy(now, step is not None, weights, declared)
        found = self.calls.find(asked, step, weights, lambda slot: content.index.is_free(now, slot))
        if found is not None:
            content.index.take(now, found.slot)
            return await self._play(request, asked, found)
        try:
            answer = await content.answer(request, asked, policy)
        except NoUpstream as error:
            return failure(BROKEN_OFF, asked.dialect, f"the inference server cannot be reached: {error}")
        if answer is not None:
            return await self._playback.send(request, answer, started)
        if not self.options.asks_upstream or not self.options.upstream:
            miss = content.missed(asked, policy)
            return None if miss is None else self._told(asked, miss)
        return None

    async def _missed(self, asked: Asked, step: int | None, weights: str) -> web.Response:
        miss = await asyncio.to_thread(explain, self.calls, asked, self.options.naming, step, weights)
        log.warning("no recording answers %s %s: %s", asked.method, asked.path, miss.reason)
        return self._told(asked, miss)

    def _told(self, asked: Asked, miss: Miss) -> web.Response:
        self.tally.missed(asked.path, asked.session, miss)
        return failure(422, asked.dialect, f"no recording answers this: {miss.reason}", miss)

    async def _play(self, request: web.BaseRequest, asked: Asked, found: Found) -> web.StreamResponse:
        slot, started = found.slot, time.perf_counter()
        self.tally.found(found)
        self._note_differences(asked, slot)
        ticket = self.gate.arrive(slot)
        slot.sending, slot.lost = slot.sending + 1, False
        try:
            answer = await self._playback.recorded(self.calls, slot)
            return await self._playback.send(request, answer, started, ticket)
        except (asyncio.CancelledError, ConnectionResetError):
            slot.lost = True
            self.tally.calls["aborted"] += 1
            raise
        finally:
            slot.sending -= 1
            ticket.done()

    def _note_differences(self, asked: Asked, slot: Slot) -> None:
        if asked.keys.checked == slot.checked:
            return
        mine, theirs = (json.loads(checked or "{}") for checked in (asked.keys.checked, slot.checked))
        self.tally.differs.update(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))

    # -- the control plane -------------------------------------------------------------------------

    async def _answer_control(self, request: web.BaseRequest, asked: Asked) -> web.StreamResponse:
        self.tally.calls["passed"] += 1
        live = self.options.mode is not Mode.REPLAY or self.options.engines is Engines.ALIVE
        if live and self.options.upstream:
            response = await self._live_control(request, asked)
        else:
            response = await self._played_control(request, asked)
        if updates_weights(asked.path) and request.method != "GET" and response.status < 400:
            with suppress(BadBody):
                if self.clock.updated(asking.parse_body(asked.body or b"null")):
                    self.gate.begin_step(self.clock.step)
        return response

    async def _live_control(self, request: web.BaseRequest, asked: Asked) -> web.StreamResponse:
        asks = asked.method in QUESTIONS
        self._acts += not asks
        target = target_of(asked.method, asked.path, asked.query)
        return await self._passing.pass_on(
            request, asked, stage="control", step=self.clock.step, weights=self.clock.weights,
            keep=lambda call: not asks or self._is_news(target, call), everywhere=not asks,
        )  # fmt: skip

    def _is_news(self, target: str, call: Call) -> bool:
        """Whether a question is told something else than before, as long as nothing was done in between."""
        now = (
            self._acts,
            call.step,
            b"" if is_measure(call.asked.path) else bytes([call.status & 255]) + call.body,
        )
        before, self._told_last[target] = self._told_last.get(target), now
        return now != before

    async def _played_control(self, request: web.BaseRequest, asked: Asked) -> web.StreamResponse:
        recorded = self._control.same_body(asked) or self._control.like(asked.method, asked.path)
        asks = asked.method in QUESTIONS
        slot = self._changes.last(recorded, self.clock.step) if asks else _next(recorded)
        if slot is not None:
            slot.given = True
            if not asks:
                self._changes.reach(slot)
            self.tally.levels["control"] += 1
            answer = await self._playback.recorded(self._control, slot)
            return await self._playback.send(request, answer, time.perf_counter())
        if is_health(asked.path):
            return json_answer(200, {"status": "ok"})
        if asked.path.rstrip("/") == "/v1/models":
            models = [{"id": name, "object": "model", "owned_by": "rolltape"} for name in self._models]
            return json_answer(200, {"object": "list", "data": models})
        return self._told(asked, Miss(f"{asked.method} {asked.path} was not recorded", "unknown"))

    # -- our own -----------------------------------------------------------------------------------

    async def _own(self, request: web.BaseRequest, path: str) -> web.Response:
        name = path.removeprefix("/rolltape").strip("/")
        if name == "" and request.method == "GET":
            headers = {"content-security-policy": POLICY, "x-content-type-options": "nosniff"}
            return web.Response(text=PAGE, content_type="text/html", headers=headers)
        if name == "status" and request.method == "GET":
            return json_answer(200, self.status())
        if name == "step" and request.method == "POST":
            return await self._set_step(request)
        return failure(404, None, f"there is no {request.method} {path} here")

    async def _set_step(self, request: web.BaseRequest) -> web.Response:
        try:
            body = asking.parse_body(await self._body(request))
            step = body.get("step") if isinstance(body, dict) else None
            if type(step) is not int or not 0 <= step < 10**18:
                raise BadBody('say which step: {"step": 3}')
        except (BadBody, TooLarge) as error:
            return failure(400, None, str(error))
        self.say_step(step)
        return json_answer(200, {"step": step})

    def say_step(self, step: int) -> None:
        """Calls belong to this step from now on."""
        if self.clock.say(step):
            self.gate.begin_step(step)

    def status(self) -> dict[str, Any]:
        """What has been done so far; the summary at the end."""
        failed = self._writer.failure if self._writer else None
        waiting = self._writer.waiting() if self._writer else Pending()
        return {
            "mode": str(self.options.mode),
            "url": self.url,
            "step": self.clock.step,
            **self.tally.to_json(),
            "upstream": self.upstreams.to_json(),
            "gate": self.gate.to_json(),
            "unplayed": sum(not slot.given for slot in self.calls.slots) if self.options.plays else 0,
            "on_tape": len(self.calls.slots) + (self._writer.written if self._writer else 0),
            "waiting": {"files": len(waiting.names), "bytes": waiting.nbytes, "where": waiting.where},
            "failure": None if failed is None else str(failed),
        }


def _host_name(host: str) -> str:
    return host.rpartition(":")[0].strip("[]") if not host.endswith("]") and ":" in host else host.strip("[]")


def _next(slots: list[Slot]) -> Slot | None:
    """The first that was not given yet, else the last one."""
    return next((slot for slot in slots if not slot.given), slots[-1] if slots else None)
