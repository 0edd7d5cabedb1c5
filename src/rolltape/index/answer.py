"""The answer to one call that is asked by the content of its prompts: of recordings, and of what ran live."""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rolltape.batch import dismantle
from rolltape.codec.file import RecordingFile, encode
from rolltape.codec.pack import pack
from rolltape.errors import BatchError, StepMissingError
from rolltape.index.answer_plan import LiveCall
from rolltape.index.assembling import Piece
from rolltape.index.prompt_key import prompt_digest
from rolltape.index.sample_index import Sample
from rolltape.key import MORE, Key
from rolltape.tape.open_step import living
from rolltape.tape.recording import Recording
from rolltape.tape.scope import counting_calls

if TYPE_CHECKING:
    from rolltape.index.by_prompt import Answering, Turn

log = logging.getLogger("rolltape")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call asks for."""

    named: Mapping[str, Any]
    """The arguments by name."""
    contents: tuple[bytes, ...]
    """All that each prompt is."""
    n: int
    """How many samples each gets."""
    sampling: bytes
    policy: int
    """The version of the policy that asks."""

    def slots(self) -> dict[bytes, list[int]]:
        """The samples that are asked for, by the content of their prompt and the place in the result."""
        found: dict[bytes, list[int]] = {}
        for position, content in enumerate(self.contents):
            found.setdefault(content, []).extend(range(position * self.n, (position + 1) * self.n))
        return found


class Answer:
    """The answer to one call: what is taken from recordings, and what has to be generated."""

    def __init__(
        self,
        answering: Answering,
        turn: Turn,
        asked: Asked,
        chosen: Mapping[bytes, Sequence[Sample]],
        live: LiveCall | None,
        saves: bool,
        own: tuple[Any, ...] = (),
    ) -> None:
        """``own`` is the object itself, where the function is a method."""
        self._answering, self._turn, self._asked = answering, turn, asked
        self._scope, self._dispatcher = turn.scope, turn.dispatcher
        self._chosen, self.live, self._saves, self._own = chosen, live, saves, own
        self._seconds = 0.0
        self._inside: Counter[str] = Counter()
        self._call: Any = None
        self.compared: Mapping[str, str] = {}
        """The files whose prompts were compared, as they were then."""
        self._opened: dict[str, Piece] = {}
        self._key: Key | None = None
        if live is not None and saves:
            key = self._dispatcher.key(answering.stage.name, self._scope.step, self._scope.split)
            self._key = replace(key, call=_name())

    def samples(self) -> frozenset[tuple[str, int]]:
        """All samples of which it is made: where they are, or will be."""
        rows = {(sample.path, sample.row) for found in self._chosen.values() for sample in found}
        if self.live is not None and self._key is not None:
            slots = self._asked.slots()
            left = {content: len(slots[content]) - len(self._chosen[content]) for content in slots}
            for at, position in enumerate(self.live.positions):
                content = self._asked.contents[position]
                count = min(left[content], self.live.n)
                rows |= {(self._key.path, at * self.live.n + row) for row in range(count)}
                left[content] -= count
        return frozenset(rows)

    def open(self) -> bool:
        """Open the recordings that answer; False where one is not the one whose prompts were compared.

        That is done before anything is generated: what cannot be read must not cost what was generated.
        """
        by_path: dict[str, list[Sample]] = {}
        for samples in self._chosen.values():
            for sample in samples:
                by_path.setdefault(sample.path, []).append(sample)
        for path, samples in by_path.items():
            recording = Recording(self._dispatcher.storage, samples[0].key)
            try:
                file = recording.open_whole()
            except StepMissingError:
                return False
            if recording.revision != self.compared.get(path):
                return False
            self._opened[path] = Piece(file, [one.row for one in samples], recording.where)
        return True

    def arguments(self) -> dict[str, Any]:
        """The arguments of the live call, by name."""
        assert self.live is not None
        return self._answering.live_arguments(self._asked, self.live)

    def call(self, function: Callable[..., Any]) -> Any:
        """Make the live call."""
        args, kwargs = self._positional()
        return function(*args, **kwargs)

    def _positional(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        signature = self._answering._naming.signature
        named = self.arguments()
        if signature is None:
            return self._own, named
        bound = signature.bind_partial(*self._own)
        bound.arguments.update({name: named[name] for name in signature.parameters if name in named})
        return bound.args, bound.kwargs

    def running(self) -> _Running:
        """Around the live call: what it takes, which stages it calls, and that nobody else makes it."""
        return _Running(self)

    def finish(self, value: Any) -> Any:
        """Record what was generated, and put the answer together."""
        pieces, order, preferred = self._pieces(value)
        found = self._answering.put_together(pieces, order, preferred, self._asked)
        answered = sum(map(len, self._chosen.values()))
        self._dispatcher.tell_by_content(answered, len(order) - answered)
        self._tell(answered, len(order))
        if self._call is None:
            self._scope.end_call()
        return found

    def _pieces(self, value: Any) -> tuple[list[Piece], list[int], int]:
        """The recordings with their rows, where each sample of the result is in these, and which is ours."""
        pieces = list(self._opened.values())
        places: dict[tuple[str, int], int] = {}
        for path, opened in self._opened.items():
            for row in opened.rows:
                places[path, row] = len(places)
        generated: dict[int, list[int]] = {}
        if self.live is not None:
            piece = self._generated(value)
            start = len(places)
            for at, position in enumerate(self.live.positions):
                rows = generated.setdefault(position, [])
                rows += range(start + at * self.live.n, start + (at + 1) * self.live.n)
            pieces.append(piece)
        order = [0] * (len(self._asked.contents) * self._asked.n)
        for content, slots in self._asked.slots().items():
            rows = [places[sample.path, sample.row] for sample in self._chosen[content]]
            rows += generated.get(slots[0] // self._asked.n, [])
            for slot, row in zip(slots, rows, strict=False):
                order[slot] = row
        return pieces, order, len(pieces) - 1 if self.live is not None else 0

    def _generated(self, value: Any) -> Piece:
        """What the live call returned, recorded where that is asked for, as a piece of the answer."""
        assert self.live is not None
        wanted = len(self.live.positions) * self.live.n
        stage = self._answering.stage
        parts = dismantle(value)
        if parts.samples != wanted:
            raise BatchError(
                f"stage {stage.name!r} returned {parts.samples} samples for "
                f"{len(self.live.positions)} prompts with n={self.live.n}",
                hint="declare how many samples a prompt gets: tape.stage(…, n=…)",
            )
        if self._saves:
            self._dispatcher.submit(self._dispatcher.copy(self._call, value, self._seconds, self._inside))
        data = b"".join(bytes(memoryview(chunk)) for chunk in encode(pack(parts)))
        file = RecordingFile(lambda spans: [], len(data), memoryview(data))
        return Piece(file, range(wanted), f"what stage {stage.name!r} returned")

    def _tell(self, answered: int, total: int) -> None:
        samples = [sample for found in self._chosen.values() for sample in found]
        steps = sorted({sample.step for sample in samples})
        policies = sorted({sample.policy for sample in samples} - {self._asked.policy})
        shown = ", ".join(map(str, steps[:8])) + (", …" if len(steps) > 8 else "")
        log.info(
            "%s/%s step %d: %d of %d samples answered by content (recorded at steps %s), %d generated",
            self._scope.split, self._answering.stage.name, self._scope.step, answered, total,
            shown or "none", total - answered,
        )  # fmt: skip
        if policies:
            rule = self._answering._how.rule.text
            self._answering.warn_once(
                "(policies)",
                f"samples of other versions of the policy answer, as version={rule!r} allows: "
                f"at step {self._scope.step} of {policies[0]} for {self._asked.policy}",
            )


class _Running:
    """The time of a live call for what is missing."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._counting = counting_calls(answer._scope)
        self._living: Any = None

    def __enter__(self) -> None:
        answer = self._answer
        args, kwargs = answer._positional()
        if answer._key is not None:
            call = answer._dispatcher.begin_rest(
                answer._answering.stage, answer._scope, answer._key, args, kwargs
            )
            answer._call = replace(call, position=answer._turn.position)
        self._living = living(answer._dispatcher, answer._call, args, kwargs, self._named_by())
        self._living.__enter__()
        answer._inside = self._counting.__enter__()
        self._started = time.perf_counter()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        answer = self._answer
        answer._seconds = time.perf_counter() - self._started
        self._counting.__exit__(kind, error, trace)
        self._living.__exit__(kind, error, trace)
        if answer._call is not None:
            answer._dispatcher.end(answer._call)

    def _named_by(self) -> Key | None:
        """What samples are kept under as they finish: the same name in a run that makes the call again."""
        answer = self._answer
        if answer._key is None:
            return None
        asked = answer._asked
        live = answer.live
        assert live is not None
        state = hashlib.blake2b(asked.sampling, digest_size=8)
        state.update(repr((asked.policy, live.n, list(live.firsts), answer._turn.number)).encode())
        for position in live.positions:
            state.update(prompt_digest(asked.contents[position]))
        return replace(answer._key, call=f"{MORE}{state.hexdigest()}")


def _name() -> str:
    """What a call for missing samples is called: two that make the same at the same time are both kept."""
    return f"{MORE}{uuid.uuid4().hex[:16]}"
