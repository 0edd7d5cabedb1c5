"""Which recording answers a request: an index of the recorded calls, and the ladder by which one is chosen.

A request is answered by a recording of the very same body, less what does not change what is generated. Of
several such, the ladder decides:

- ``identity``: the same session or request id asked for it. This is the recorded slot.
- ``conversation``: the model's own earlier answers are part of what is asked, or the session was found to be
  a recorded one by an earlier call. Another recording fits only where two conversations were word for word
  the same so far.
- ``content``: the same body, in the order in which they were recorded. Of a group of equal prompts, who gets
  which answer depends on who asks first: the group is exact as a whole.

Digests are read at the start, bodies when they are asked for.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from rolltape.reader.run import Run
from rolltape.serving.asked import PLAIN, Asked, BadBody, Keys, Naming, keys_of, parse_body, rules_of
from rolltape.serving.call import Call, is_finished, kept_request
from rolltape.serving.dialects import find
from rolltape.tape.recording import Recording

IDENTITY, CONVERSATION, CONTENT = LEVELS = ("identity", "conversation", "content")

_RANDOM = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}", re.IGNORECASE)
"""Names that a run makes up anew, as uuids are: nobody will ever ask by the recorded ones."""
FILES_OF_BODIES = 16
"""Files whose requests stay in memory: what comes nearest to one request is compared with many of them."""

_KEYS = (
    "session request_id attempt weights method path query status aborted arrival completion raw_digest "
    "body_digest answered turn checked rules"
).split()
_ANSWER = "status response_headers response_body chunk_sizes chunk_seconds latency_seconds aborted".split()


@dataclass(slots=True, eq=False)
class Slot:
    """One recorded call: where it is, and what decides whether it answers."""

    file: int
    row: int
    step: int
    session: str | None
    request_id: str | None
    attempt: int
    weights: str
    target: str
    """Method, path and query."""
    status: int
    aborted: str
    arrival: int
    completion: int
    turn: int
    body: bytes
    checked: str = ""
    given: bool = False
    sending: int = 0
    """How many requests are being answered by it right now."""
    lost: bool = False
    """Whether it was given to a client that was gone before it had all of it."""

    @property
    def is_finished(self) -> bool:
        return is_finished(self.status, self.aborted)


class Answer(NamedTuple):
    """What a recorded call answered."""

    status: int
    headers: Mapping[str, str]
    chunks: list[bytes]
    seconds: list[float]
    latency: float
    aborted: str

    @classmethod
    def of(cls, call: Call) -> Answer:
        """That of a call of this run."""
        return cls(call.status, call.headers, call.chunks, call.seconds, call.latency, call.aborted)

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def is_stream(self) -> bool:
        return len(self.chunks) != 1 or "event-stream" in self.headers.get("content-type", "")

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.chunks)) + 400


class Found(NamedTuple):
    """The recording that answers a request."""

    slot: Slot
    level: str
    again: bool = False
    """Whether it is the answer to a request that was sent before."""


@dataclass(slots=True)
class _Group:
    """Recorded calls that would answer the same request, in the order in which they arrived."""

    slots: list[Slot] = field(default_factory=list)
    first: int = 0
    """Before it, all are given."""
    last: Slot | None = None
    """The one that was given last."""

    def free(self) -> Iterator[Slot]:
        """Those that are not given yet."""
        while self.first < len(self.slots) and self.slots[self.first].given:
            self.first += 1
        return (slot for slot in islice(self.slots, self.first, None) if not slot.given)


class Lookup:
    """The calls of one stage of a tape, by who asked and by what was asked."""

    def __init__(
        self,
        run: Run,
        stage: str,
        split: str = "train",
        *,
        naming: Naming = PLAIN,
        memory: int = 256 * 2**20,
        only_finished: bool = False,
    ) -> None:
        """``only_finished`` leaves out what failed or was broken off: it is asked for again, and so is what a
        session asks that is not on the tape, unless sessions are named at random."""
        self.stage = stage
        self._naming = naming
        self._only_finished = only_finished
        self._recordings: list[Recording] = []
        self.slots: list[Slot] = []
        self.known: dict[tuple[str, bytes], Keys] = {}
        """Path, and digest of a body as it came -> its other digests, so that it need not be parsed again."""
        self._by_session: dict[tuple[str, str, bytes], _Group] = {}
        self._by_content: dict[tuple[str, bytes], _Group] = {}
        self._by_request: dict[tuple[str, str, bytes], _Group] = {}
        self.sessions: dict[str, list[Slot]] = {}
        self._renamed: dict[str, str] = {}
        """Session of this run -> the recorded one that it was found to be."""
        self._claimed: set[str] = set()
        """Recorded sessions that somebody of this run is."""
        self._answered: OrderedDict[tuple[str, bytes, int | None, str], Slot] = OrderedDict()
        """Requests of this run that were answered: by id, body, step and weights."""
        self._cache: OrderedDict[int, list[Answer]] = OrderedDict()
        self._cached = 0
        self._memory = memory
        self._beginnings: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        """Of files that were looked at because nothing answered a request."""
        self._bodies: OrderedDict[int, list[bytes]] = OrderedDict()
        """Of files whose requests were compared with one that nothing answered."""
        self._reading = threading.Lock()
        self._pending: dict[Slot, Call] = {}
        """Calls of this run that are not on the tape yet."""
        self._written: dict[str, int] = {}
        """Files that this run writes, by name."""
        self._rules_of: dict[str, str] = {}
        self._shared: dict[str | None, Any] = {}
        """Texts that many calls have in common, each once."""
        for recording in run.recordings(stage, split):
            self._add(recording)
        self.slots.sort(key=attrgetter("step", "arrival"))
        for slot in self.slots:
            if slot.is_finished or not only_finished:
                self._index(slot)

    def _add(self, recording: Recording) -> None:
        at, step = len(self._recordings), recording.key.step
        self._recordings.append(recording)
        share = self._shared.setdefault
        bodies: list[bytes] = []
        rows = zip(*_values(recording, _KEYS), strict=True)
        for row, (session, request_id, attempt, weights, method, path, query, status, aborted, arrival,
                  completion, raw, body, answered, turn, checked, rules) in enumerate(rows):  # fmt: skip
            path = share(path, path)
            keys = self.known.get((path, raw))
            if keys is None:
                keys = Keys(body, (), answered, share(checked, checked), share(rules, rules))
                if rules != self._rules(method, path):
                    bodies = bodies or _values(recording, ["request_body"])[0]
                    keys = self._digested_anew(bodies[row], method, path, raw)
                self.known[path, raw] = keys
            target = target_of(method, path, query)
            self.slots.append(
                Slot(
                    at, row, step, share(session, session), request_id, attempt, share(weights, weights),
                    share(target, target), status, share(aborted, aborted), arrival, completion, turn,
                    keys.body, keys.checked,
                )
            )  # fmt: skip

    def _rules(self, method: str, path: str) -> str:
        known = self._rules_of.get(path)
        if known is None:
            known = self._rules_of[path] = rules_of(find(method, path), self._naming)
        return known

    def _digested_anew(self, body: bytes, method: str, path: str, raw: bytes) -> Keys:
        """The digests of a body that was recorded under other rules of what counts."""
        try:
            return keys_of(method, path, parse_body(body), self._naming)
        except BadBody:
            return Keys(raw, rules=self._rules(method, path))

    def _index(self, slot: Slot) -> None:
        self._by_content.setdefault((slot.target, slot.body), _Group()).slots.append(slot)
        if slot.session is not None:
            self._by_session.setdefault((slot.session, slot.target, slot.body), _Group()).slots.append(slot)
            self.sessions.setdefault(slot.session, []).append(slot)
        if slot.request_id is not None:
            name = slot.request_id, slot.target, slot.body
            self._by_request.setdefault(name, _Group()).slots.append(slot)

    # -- finding -----------------------------------------------------------------------------------

    def find(
        self, asked: Asked, step: int | None, weights: str, may: Callable[[Slot], bool] = lambda slot: True
    ) -> Found | None:
        """The recording that answers, of those that ``may``; it is given out from now on. None: there is
        none, or none is left."""
        if (again := self._again(asked, step, weights)) is not None:
            return again
        found = self._choose(asked, step, weights, may)
        if found is None:
            return None
        slot = found.slot
        slot.given = True
        self._claim(asked, slot)
        for group in self._groups(asked, slot):
            group.last = slot
        if asked.request_id is not None:
            self._answered[asked.request_id, asked.keys.body, step, weights] = slot
            if len(self._answered) > 100_000:
                self._answered.popitem(last=False)
        return found

    def _again(self, asked: Asked, step: int | None, weights: str) -> Found | None:
        """The answer that a request had before, where it says that it was sent before."""
        if asked.request_id is not None:
            slot = self._answered.get((asked.request_id, asked.keys.body, step, weights))
            if slot is not None and not (asked.retry and self._attempt(asked)):
                return Found(slot, IDENTITY, again=True)
        if not asked.retry:
            return None
        group = self._group(asked)
        if group is None or self._attempt(asked) is not None:
            return None
        lost = (
            next((slot for slot in group.slots if slot.lost), None)
            or next((slot for slot in group.slots if slot.sending), None)
            or group.last
        )
        return (
            None if lost is None else Found(lost, CONTENT if asked.session is None else IDENTITY, again=True)
        )

    def _attempt(self, asked: Asked) -> Slot | None:
        """What was recorded of this very attempt, after one that had failed."""
        group = self._group(asked)
        return None if group is None else next((s for s in group.free() if s.attempt == asked.retry), None)

    def _group(self, asked: Asked) -> _Group | None:
        target = target_of(asked.method, asked.path, asked.query)
        if asked.session is not None:
            name = self._renamed.get(asked.session, asked.session)
            group = self._by_session.get((name, target, asked.keys.body))
            if group is not None:
                return group
        return self._by_content.get((target, asked.keys.body))

    def _groups(self, asked: Asked, slot: Slot) -> Iterator[_Group]:
        found = [self._by_content.get((slot.target, slot.body))]
        if slot.session is not None:
            found.append(self._by_session.get((slot.session, slot.target, slot.body)))
        return (group for group in found if group is not None)

    def _choose(
        self, asked: Asked, step: int | None, weights: str, may: Callable[[Slot], bool]
    ) -> Found | None:
        body, target = asked.keys.body, target_of(asked.method, asked.path, asked.query)

        def fits(slot: Slot) -> bool:
            return step in (None, slot.step) and slot.weights == weights and may(slot)

        if asked.request_id is not None:
            named = self._by_request.get((asked.request_id, target, body))
            if named is not None and (slot := next(filter(fits, named.free()), None)):
                return Found(slot, IDENTITY)
        if asked.session is not None:
            own = self._by_session.get((asked.session, target, body))
            if own is not None and (slot := next(filter(fits, own.free()), None)):
                return Found(slot, IDENTITY)
            if asked.session in self.sessions:
                return None  # it asks for something else than it did, or more often
            if (name := self._renamed.get(asked.session)) is not None:
                own = self._by_session.get((name, target, body))
                if own is not None and (slot := next(filter(fits, own.free()), None)):
                    return Found(slot, CONVERSATION)
            elif self._only_finished and not _RANDOM.search(asked.session):
                return None  # its own answer was never recorded, and those of others are for them
        group = self._by_content.get((target, body))
        if group is None:
            return None
        slot = self._unclaimed(group, fits) or next(filter(fits, group.free()), None)
        if slot is None:
            return None
        return Found(slot, CONVERSATION if asked.keys.answered else CONTENT)

    def _unclaimed(self, group: _Group, fits: Any) -> Slot | None:
        """The first recording whose session nobody is yet: others may still ask for theirs."""
        if not self._claimed:
            return None
        free = (slot for slot in group.free() if slot.session is None or slot.session not in self._claimed)
        return next(filter(fits, free), None)

    def _claim(self, asked: Asked, slot: Slot) -> None:
        if slot.session is None:
            return
        self._claimed.add(slot.session)
        if asked.session is not None and asked.session != slot.session:
            self._renamed.setdefault(asked.session, slot.session)

    def same_body(self, asked: Asked) -> list[Slot]:
        """Every recording of what is asked, given or not."""
        group = self._by_content.get((target_of(asked.method, asked.path, asked.query), asked.keys.body))
        return [] if group is None else group.slots

    def like(self, method: str, path: str) -> list[Slot]:
        """Every recording of requests to this path, whatever they asked."""
        wanted = target_of(method, path, "")
        return [slot for slot in self.slots if slot.target.partition("?")[0] == wanted]

    # -- reading -----------------------------------------------------------------------------------

    def cached_answer(self, slot: Slot) -> Answer | None:
        """What a recording answered, if it is in memory."""
        call = self._pending.get(slot)
        if call is not None:
            return Answer.of(call)
        answers = self._cache.get(slot.file)
        if answers is None or slot.row >= len(answers):
            return None
        self._cache.move_to_end(slot.file)
        return answers[slot.row]

    def load(self, file: int) -> list[Answer]:
        """The answers of one file; reads it. May be called on another thread."""
        rows = zip(*_values(self._recordings[file], _ANSWER), strict=True)
        return [
            Answer(status, headers or {}, _pieces(body, sizes.tolist()), seconds.tolist(), latency, aborted)
            for status, headers, body, sizes, seconds, latency, aborted in rows
        ]

    def keep(self, file: int, answers: list[Answer]) -> None:
        """Keep answers in memory; those that were not asked for longest make room."""
        known = self._cache.get(file, [])
        if len(known) >= len(answers):
            return
        self._cached -= sum(answer.nbytes for answer in known)  # the file has grown
        self._cache[file] = answers
        self._cached += sum(answer.nbytes for answer in answers)
        while self._cached > self._memory and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._cached -= sum(answer.nbytes for answer in dropped)

    def request_body(self, slot: Slot) -> bytes:
        """What a recorded call asked. From any thread."""
        call = self._pending.get(slot)
        if call is not None:
            return kept_request(call.asked).body
        with self._reading:
            bodies = self._bodies.pop(slot.file, None)
            if bodies is None or slot.row >= len(bodies):
                [bodies] = _values(self._recordings[slot.file], ["request_body"])
            self._bodies[slot.file] = bodies
            if len(self._bodies) > FILES_OF_BODIES:
                self._bodies.popitem(last=False)
        return bytes(bodies[slot.row])

    def add(self, call: Call) -> Slot:
        """A call of this run, which others may be answered by."""
        asked = call.asked
        slot = Slot(
            -1, -1, call.step, asked.session, asked.request_id, asked.retry, call.weights,
            target_of(asked.method, asked.path, asked.query), call.status, call.aborted, call.arrival,
            call.completion, call.turn, asked.keys.body, asked.keys.checked, given=True,
        )  # fmt: skip
        self._pending[slot] = call
        return slot

    def put_down(self, slot: Slot, recording: Recording, row: int) -> None:
        """Such a call is on the tape by now. From any thread."""
        places = self._written
        if recording.key.path not in places:
            places[recording.key.path] = len(self._recordings)
            self._recordings.append(recording)
        slot.file, slot.row = places[recording.key.path], row
        self._pending.pop(slot, None)

    def shared(self, prefixes: Sequence[int]) -> Iterator[tuple[Slot, int]]:
        """Every recorded call, and how many of these beginnings it has in common with what is asked."""
        order = np.argsort(np.array(prefixes, np.int64))
        wanted, depth = np.array(prefixes, np.int64)[order], order + 1
        by_file = [
            _deepest(*self._recorded_beginnings(file), wanted, depth).tolist()
            for file in range(len(self._recordings))
        ]
        return ((slot, by_file[slot.file][slot.row]) for slot in self.slots)

    def _recorded_beginnings(self, file: int) -> tuple[np.ndarray, np.ndarray]:
        """The digests of what the calls of a file were given, one after the other; where each call ends."""
        found = self._beginnings.get(file)
        if found is None:
            [rows] = _values(self._recordings[file], ["prefix_digests"])
            found = np.concatenate([*rows, np.empty(0, np.int64)]), np.cumsum([len(row) for row in rows])
            if sum(flat.nbytes for flat, _ in list(self._beginnings.values())) < self._memory // 4:
                self._beginnings[file] = found
        return found


def _deepest(flat: np.ndarray, ends: np.ndarray, wanted: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """For each call the largest depth of a digest that it shares; 0 where it shares none."""
    found = np.zeros(len(ends), np.int64)
    lengths = np.diff(ends, prepend=0)
    some = lengths > 0
    if len(wanted) and some.any():
        at = np.minimum(np.searchsorted(wanted, flat), len(wanted) - 1)
        hits = np.where(wanted[at] == flat, depth[at], 0)
        found[some] = np.maximum.reduceat(hits, (ends - lengths)[some])
    return found


def target_of(method: str, path: str, query: str) -> str:
    """What a request is addressed to; a slash at the end makes no difference."""
    return f"{method} {path.rstrip('/')}" + (f"?{query}" if query else "")


def _pieces(body: bytes, sizes: list[int]) -> list[bytes]:
    if len(sizes) == 1:
        return [body]
    ends = list(accumulate(sizes))
    return [body[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _values(recording: Recording, names: list[str]) -> list[Any]:
    """Columns, read anew: a recording that is kept keeps what was read of it."""
    found = recording.again().batch(names)
    return [found.columns[name] for name in names]
