"""Answers put together of recorded samples, and of what is generated where there are too few of them.

Such an answer is no replay: it is counted apart. Each sample in it is the recorded one, and its prompt is
compared with what is asked before it answers. Of one recorded call as a whole, the answer has the very bytes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from aiohttp import web

from rolltape.key import Key
from rolltape.serving.asked import Asked, BadBody, keys_of, parse_body, raw_digest
from rolltape.serving.call import Call
from rolltape.serving.content_index import (
    ContentIndex,
    MissingCall,
    Policy,
    Sample,
    Wish,
    missing_calls,
)
from rolltape.serving.dialects import asking_for, choices_of, put_together, stands_alone
from rolltape.serving.lookup import Answer, Lookup, Slot
from rolltape.serving.miss import Miss
from rolltape.serving.passing import Passing
from rolltape.serving.playback import Playback
from rolltape.serving.serve_options import ServeOptions
from rolltape.serving.tally import Tally
from rolltape.storage import Storage
from rolltape.tape.recording import Recording

log = logging.getLogger("rolltape")

KEEP_RECENT = 64 * 1024 * 1024
"""Bytes of answers that are kept for requests that are sent again."""

_Name = tuple[str | None, bytes, int, str]


class ContentAnswers:
    """Answers by content, on the event loop."""

    def __init__(
        self, options: ServeOptions, lookup: Lookup, playback: Playback, passing: Passing, tally: Tally
    ) -> None:
        self._options, self._lookup, self._playback = options, lookup, playback
        self._passing, self._tally = passing, tally
        self.index = ContentIndex(lookup, options.version, options.draw, options.naming)
        self._unwritten: dict[int, Slot] = {}
        """Calls of this run that are not on the tape yet, by their identity."""
        self._recent: OrderedDict[_Name, Answer] = OrderedDict()
        self._recent_bytes = 0
        passing.ended = self._ended

    async def answer(self, request: web.BaseRequest, asked: Asked, policy: Policy) -> Answer | None:
        """What is answered; None where nothing on the tape is of use, or nobody can generate the rest."""
        name = asked.request_id or asked.session, asked.keys.body, policy.step, policy.weights
        if (asked.retry or asked.request_id is not None) and name in self._recent:
            self._tally.calls["retried"] += 1
            return self._recent[name]
        wish = self.index.wish(asked)
        while True:
            found = self.index.choose(wish, policy)
            if not any(found) or not (all(found) or self._can_generate):
                self.index.give_back(policy.step, found)
                return None
            try:
                answer = await self._made_of(request, asked, wish, found, policy)
                break
            except _Useless as error:
                self.index.give_back(policy.step, found)
                for slot in error.slots:
                    self.index.drop(slot)
            except _Refused as error:
                self.index.give_back(policy.step, found)
                return error.answer
            except BaseException:
                self.index.give_back(policy.step, found)
                raise
        self._note(asked, found, name, answer)
        return answer

    @property
    def _can_generate(self) -> bool:
        return self._options.asks_upstream and bool(self._options.upstream)

    def missed(self, asked: Asked, policy: Policy) -> Miss | None:
        """Why a request is not answered, where what it asks for was recorded; None where it was not."""
        wish = self.index.wish(asked)
        found = self.index.choose(wish, policy)
        self.index.give_back(policy.step, found)
        lacking, others = sum(one is None for one in found), self.index.others(wish, policy)
        told = f"{lacking} of {len(found)} samples asked for are not on the tape, or were given in this step"
        if others:
            versions = sorted({str(policy.version(slot)) for slot in others})
            return Miss(
                f"{told}; those of other versions of the policy ({', '.join(versions[:8])}) may not answer, "
                f"as version is {self._options.version.text!r}",
                "weights", None, {"weights": {"recorded": versions, "asked": str(policy.own)}},
            )  # fmt: skip
        return Miss(told, "exhausted") if any(found) else None

    # -- parts -----------------------------------------------------------------------------------------

    async def _made_of(
        self,
        request: web.BaseRequest,
        asked: Asked,
        wish: Wish,
        found: Sequence[Sample | None],
        policy: Policy,
    ) -> Answer:
        """The answer of these samples; ``_Useless`` names calls that do not have what they should."""
        samples = [sample for sample in found if sample is not None]
        others = await asyncio.to_thread(self._of_others, wish, found)
        if others:
            raise _Useless(others)
        slots = dict.fromkeys(sample.slot for sample in samples)
        recorded = {slot: await self._playback.recorded(self._lookup, slot) for slot in slots}
        if len(slots) == 1 and [one.choice for one in samples] == list(range(len(found))) == _all(samples[0]):
            return recorded[samples[0].slot]
        read = {slot: _read(recorded[slot].body, self.index.count(slot)) for slot in slots}
        if useless := {slot for slot, one in read.items() if one is None}:
            raise _Useless(useless)
        parts = {slot: one for slot, one in read.items() if one is not None}
        choices = [None if one is None else parts[one.slot][1][one.choice] for one in found]
        answers, first = [whole for whole, _ in parts.values()], next(iter(recorded.values()))
        for missing in missing_calls(wish, found):
            call = await self._passing.generate(
                request, self._asked_for(asked, wish, missing), step=policy.step, weights=policy.weights
            )
            generated = _read(call.body, len(missing.places)) if call.status == 200 else None
            if generated is None:  # an error, or another answer than this API has: whoever asks is told
                raise _Refused(Answer.of(call))
            answers.insert(0, generated[0])
            for place, choice in zip(missing.places, generated[1], strict=True):
                choices[place] = choice
        made = put_together(answers, [choice for choice in choices if choice is not None])
        return Answer(200, first.headers, [json.dumps(made).encode()], [0.0], 0.0, "")

    def _of_others(self, wish: Wish, found: Sequence[Sample | None]) -> set[Slot]:
        """The calls that were asked something else, and have its digest; reads them."""
        known: dict[tuple[Slot, int, int], bool] = {}
        for place, one in enumerate(found):
            if one is not None:
                prompt, theirs = place // wish.each, one.choice * len(wish.contents) // one.of
                if (one.slot, prompt, theirs) not in known:
                    known[one.slot, prompt, theirs] = self.index.is_of(one, wish.contents[prompt])
        wrong = {slot for (slot, _, _), same in known.items() if not same}
        if wrong:
            log.warning(
                "%d recorded calls have the digest of what is asked, and are of something else", len(wrong)
            )
        return wrong

    def _asked_for(self, asked: Asked, wish: Wish, missing: MissingCall) -> Asked:
        """The request for what is missing."""
        assert wish.parts is not None
        assert asked.dialect is not None
        prompts = [wish.parts.prompts[at] for at in missing.prompts]
        body = asking_for(asked.dialect, parse_body(asked.body), prompts, missing.n, missing.seed)
        data = json.dumps(body).encode()
        keys = keys_of(asked.method, asked.path, body, self._options.naming)
        return replace(asked, body=data, raw=raw_digest(data), keys=keys, request_id=None, retry=0)

    def _note(self, asked: Asked, found: Sequence[Sample | None], name: _Name, answer: Answer) -> None:
        samples = [sample for sample in found if sample is not None]
        for sample in samples:
            sample.slot.given = True
        self._tally.by_content.update(calls=1, samples=len(samples), generated=len(found) - len(samples))
        steps = sorted({sample.slot.step for sample in samples})
        log.info(
            "%s: %d of %d samples answered by content (recorded at steps %s), %d generated", asked.path,
            len(samples), len(found), ", ".join(map(str, steps[:8])), len(found) - len(samples),
        )  # fmt: skip
        before = self._recent.pop(name, None)
        self._recent[name] = answer
        self._recent_bytes += answer.nbytes - (0 if before is None else before.nbytes)
        while self._recent_bytes > KEEP_RECENT:
            self._recent_bytes -= self._recent.popitem(last=False)[1].nbytes

    def _ended(self, call: Call) -> None:
        """A call of this run goes on the tape: from now on it answers others, at other steps."""
        if call.stage == "calls" and call.is_finished:
            slot = self._lookup.add(call)
            self._unwritten[id(call)] = slot
            self.index.add(slot)
            self.index.take(call.step, slot)

    def placed(self, call: Call, storage: Storage, key: Key, row: int) -> None:
        """A call is on the tape; from the thread that writes."""
        slot = self._unwritten.pop(id(call), None)
        if slot is not None:
            self._lookup.put_down(slot, Recording(storage, key), row)


class _Useless(Exception):
    """Calls that were found by what was asked, and cannot answer it."""

    def __init__(self, slots: set[Slot]) -> None:
        super().__init__()
        self.slots = slots


class _Refused(Exception):
    """What the engine said in place of the samples that are missing."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


def _all(sample: Sample) -> list[int]:
    return list(range(sample.of))


def _read(body: bytes, count: int) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]] | None:
    """An answer and its choices; None where they are not as many as they should be, or belong together."""
    try:
        answer = parse_body(body)
    except BadBody:
        return None
    choices = choices_of(answer, count)
    return None if choices is None or stands_alone(answer) else (answer, choices)
