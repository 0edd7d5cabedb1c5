"""``by="prompt"``: a stage whose samples are answered by the content of their prompts.

A call whose very step is on the tape, with the same prompts and the same sampling, is replayed as any other.
Every other call is answered sample by sample: from wherever the same prompt was recorded with the same
sampling, by a policy of a version that may answer. What is missing is generated in one call, and recorded
beside the steps. Such an answer is counted and logged; it is no replay of the step.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from rolltape.batch import Dismantled
from rolltape.batch.one_sample import SampleChoice
from rolltape.codec.identity import identify
from rolltape.errors import (
    ConfigError,
    FileReplacedError,
    RolltapeError,
    StageError,
    StepMissingError,
    UnsupportedValueError,
)
from rolltape.index.answer import Answer, Asked
from rolltape.index.answer_plan import (
    LiveCall,
    Rest,
    allowed_samples,
    in_recorded_order,
    plan_call,
)
from rolltape.index.assembling import Piece, fixed_tuples, put_together
from rolltape.index.handed_out import HandedOut, Taken
from rolltape.index.index_rows import Declared, Known, RecordedSamples, zipped
from rolltape.index.prompt_key import canonical, prompt_digest
from rolltape.index.ranks_asking import Ranks
from rolltape.index.sample_index import Sample, SampleIndex
from rolltape.key import Key
from rolltape.policy import Mode, OnMiss, VersionRule
from rolltape.reader.run import open as open_run
from rolltape.tape.call_arguments import Arguments, Naming
from rolltape.tape.inputs import Chooser, copy_inputs
from rolltape.tape.recording import Recording
from rolltape.tape.scope import Scope
from rolltape.tape.stage import ByContent, Call, Stage, await_call, is_async, make_call, wrap

if TYPE_CHECKING:
    from rolltape.tape.dispatcher import Dispatcher
    from rolltape.tape.tape import Tape

log = logging.getLogger("rolltape")

BY = ("step", "prompt")
_TRIES = 5


def choose(
    by: str,
    *,
    prompts: str | Sequence[str] | None,
    n: str | int | None,
    sampling: str | Sequence[str] | None,
    weights: str | None,
    first: str | None,
    version: str,
    draw: int | None,
    pad: int | None = None,
    along: str | Sequence[str] | None = None,
    gather: Callable[[Any], Sequence[Any]] | None = None,
) -> ByPrompt | None:
    """How a stage is asked; None for the usual way, by its step."""
    if by not in BY:
        raise ConfigError(f"by must be step or prompt, not {by!r}", where="tape.stage(by=…)")
    given = {"prompts": prompts, "n": n, "sampling": sampling, "weights": weights, "first": first}
    if by == "step":
        others = {"draw": draw, "pad": pad, "along": along, "gather": gather}
        meant = [name for name, value in {**given, **others}.items() if value is not None]
        if meant or version != "same":
            raise ConfigError(
                f"{(meant or ['version'])[0]}= says nothing of a stage that is asked by its step",
                hint='add by="prompt"',
            )
        return None
    if not prompts:
        raise StageError(
            'a stage with by="prompt" must say which argument holds the prompts',
            hint='tape.stage("rollout", by="prompt", prompts="prompts")',
        )
    if isinstance(n, int) and n < 1:
        raise ConfigError(f"n must be at least 1, not {n}", where="tape.stage(n=…)")
    names = (prompts,) if isinstance(prompts, str) else tuple(prompts)
    drawn = (sampling,) if isinstance(sampling, str) else None if sampling is None else tuple(sampling)
    beside = (along,) if isinstance(along, str) else tuple(along or ())
    declared = Declared(names, n, drawn, weights, first)
    return ByPrompt(declared, VersionRule.parse(version), draw, pad, beside, gather)


@dataclass(frozen=True, slots=True)
class ByPrompt:
    """How a stage is asked by the content of its prompts."""

    declared: Declared
    rule: VersionRule
    draw: int | None = None
    pad: int | None = None
    """The padding of token ids, where no mask shows it."""
    along: tuple[str, ...] = ()
    """The arguments that have an entry for each prompt, and are no part of it."""
    gather: Callable[[Any], Sequence[Any]] | None = None
    """Gives what each rank says, in their order, given what this one says."""

    def wrap(
        self,
        tape: Tape,
        name: str,
        function: Callable[..., Any],
        inputs: bool | Sequence[str] | None,
        expect: Mapping[str, str],
        samples: SampleChoice,
        answering: Callable[[Tape, ByPrompt, Naming], Answering] | None = None,
    ) -> tuple[Stage, Callable[..., Any]]:
        """The stage, and the function that people call instead; engines have their own way of answering."""
        naming = Naming.of(function)
        for argument in self._arguments():
            if naming.signature is not None and argument not in naming.signature.parameters:
                raise StageError(
                    f"{getattr(function, '__qualname__', function)!s} has no argument {argument!r}",
                    hint=f"its arguments: {', '.join(naming.signature.parameters)}",
                )
        kept = list(self.declared.prompts)
        if inputs is not True:
            kept += [one for one in inputs or () if one not in kept]
        chooser = Chooser.of(function, True if inputs is True else kept)
        if (
            samples is SampleChoice.AUTO
        ):  # a call for what is missing is named, and returns a batch all the same
            samples = SampleChoice.ROWS
        mine = (answering or Answering)(tape, self, naming)
        stage = Stage(
            name, function, chooser, None, expect, samples=samples, by_content=mine.note, lacks=mine.lacks
        )  # fmt: skip
        mine.stage = stage
        return stage, mine.wrap()

    def _arguments(self) -> list[str]:
        declared = self.declared
        named = [*declared.prompts, declared.weights, declared.first, *(declared.sampling or ()), *self.along]
        if isinstance(declared.n, str):
            named.append(declared.n.partition(".")[0])
        return [name for name in named if name is not None]


@dataclass(slots=True)
class Turn:
    """One call, with the number that it has in its step."""

    dispatcher: Dispatcher
    scope: Scope
    number: int | str
    position: int
    """How many calls of stages had been begun in the step before it."""
    taken: Taken | None = None
    """What it was given, once that is known."""

    def begin(self, stage: Stage, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The call as that of any other stage."""
        call = self.dispatcher.begin_as(stage, self.scope, self.number, args, kwargs)
        return dataclasses.replace(call, position=self.position)


class Answering:
    """One stage of a tape that is asked by the content of its prompts."""

    stage: Stage

    def __init__(self, tape: Tape, how: ByPrompt, naming: Naming) -> None:
        self._tape = tape
        self._how = how
        self._naming = naming
        self._indexes: dict[str, SampleIndex] = {}
        self._handed: WeakKeyDictionary[Scope, HandedOut] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self._warned: set[str] = set()

    def wrap(self) -> Callable[..., Any]:
        """The function that people call."""
        function = self.stage.function
        wrap(self._tape, self.stage)  # refuses what cannot be a stage
        if is_async(function):

            @functools.wraps(function)
            async def later(*args: Any, **kwargs: Any) -> Any:
                if self._tape._dispatcher is None:
                    return await function(*args, **kwargs)
                with self._turn() as turn:
                    answer = await asyncio.to_thread(self.begin, turn, args, kwargs)
                    if answer is None:
                        return await await_call(turn.begin(self.stage, args, kwargs), args, kwargs)
                    value: Any = None
                    if answer.live is not None:
                        with answer.running():
                            value = await answer.call(function)
                    return await asyncio.to_thread(answer.finish, value)

            return later

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._tape._dispatcher is None:
                return function(*args, **kwargs)
            with self._turn() as turn:
                answer = self.begin(turn, args, kwargs)
                if answer is None:
                    return make_call(turn.begin(self.stage, args, kwargs), args, kwargs)
                value: Any = None
                if answer.live is not None:
                    with answer.running():
                        value = answer.call(function)
                return answer.finish(value)

        return run

    @contextmanager
    def _turn(self) -> Iterator[Turn]:
        """Around a call, which gets its number here: tasks that run at once have those they began in."""
        dispatcher = self._tape._dispatcher
        assert dispatcher is not None
        dispatcher.usable()
        scope = self._tape._scope(self.stage)
        number = scope.next_call(self.stage.name)
        turn = Turn(dispatcher, scope, number, scope.called - 1)
        try:
            yield turn
        except BaseException:
            self._give_back(turn)
            raise

    # -- what is asked ---------------------------------------------------------------------------------

    def asked(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], step: int) -> Asked:
        """What a call asks for; raises what is wrong with it."""
        return self._asked_of(self._naming.named(args, kwargs), step)

    def _asked_of(self, named: dict[str, Any], step: int) -> Asked:
        declared = self._how.declared
        prompts = zipped([named[name] for name in declared.prompts])
        known: dict[int, bytes] = {}
        for prompt in prompts:
            if id(prompt) not in known:
                known[id(prompt)] = canonical(prompt)
        drawn = Arguments.of(self._said(named), Naming(None))
        self._check_drawn(drawn)
        digests = drawn.digests
        policy = self.policy(named, step)
        return Asked(
            named, tuple(known[id(prompt)] for prompt in prompts), self._count(named),
            declared.sampling_of(digests), policy,
        )  # fmt: skip

    def _check_drawn(self, drawn: Arguments) -> None:
        """Refuse what may say how samples are drawn, and cannot be compared."""
        for one in drawn.left_out:
            if one.is_data:
                raise UnsupportedValueError(
                    f"{one.path!r} is a {one.kind}, of which nobody can tell whether it draws samples as "
                    "another does",
                    where=f"stage {self.stage.name!r}",
                    hint="pass numbers, texts, dicts or dataclasses; or name the arguments that say how "
                    'samples are drawn: tape.stage(…, by="prompt", sampling=[…])',
                )
            self.warn_once(one.path, f"{one.path!r} is a {one.kind}, and no part of the sampling")

    def _said(self, named: Mapping[str, Any]) -> dict[str, Any]:
        how = self._how
        return {
            name: value for name, value in named.items()
            if how.declared.is_of_sampling(name) and name not in how.along
        }  # fmt: skip

    def policy(self, named: Mapping[str, Any], step: int) -> int:
        """The version of the policy that asks."""
        name = self._how.declared.weights
        if name is None:
            return step
        value = named.get(name)
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
            raise ConfigError(f"{name!r} must be the version of the weights, a whole number, not {value!r}")
        return int(value)

    def _count(self, named: Mapping[str, Any]) -> int:
        n = self._how.declared.n
        if isinstance(n, str):
            name, _, inner = n.partition(".")
            value = named.get(name)
            for part in inner.split(".") if inner else ():
                value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
            n = value
        n = 1 if n is None else n
        if not isinstance(n, (int, np.integer)) or isinstance(n, bool) or n < 1:
            raise ConfigError(
                f"n must be a whole number of at least 1, not {n!r}", where=f"stage {self.stage.name!r}"
            )
        return int(n)

    def note(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ByContent:
        """What is noted of a live call: how it was sampled, and who its samples are."""
        named = self._naming.named(args, kwargs)
        asked = self.asked(args, kwargs, 0)
        declared = self._how.declared
        noted = {**declared.to_json(), "sampled": asked.sampling.hex()}
        if declared.weights is not None:
            noted["version"] = asked.policy
        firsts = self.firsts(named, asked)

        def who(parts: Dismantled) -> tuple[list[str], np.ndarray]:
            if parts.samples != len(asked.contents) * asked.n:
                self.warn_once(
                    "(count)",
                    f"it returned {parts.samples} samples for {len(asked.contents)} prompts with "
                    f"n={asked.n}: declare how many a prompt gets, or other steps get as many as n says",
                )
            return _who(asked.contents, firsts, parts)

        return ByContent(noted, who, functools.partial(Known.of, asked.contents))

    def firsts(self, named: Mapping[str, Any], asked: Asked) -> list[int]:
        """The number of the first sample of each prompt, as a call is told."""
        name = self._how.declared.first
        given = named.get(name) if name else None
        return [0] * len(asked.contents) if given is None else [int(first) for first in given]

    # -- answering -------------------------------------------------------------------------------------

    def begin(self, turn: Turn, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer | None:
        """Decide how a call is answered; None where it is recorded or replayed as any other stage's."""
        dispatcher, scope = turn.dispatcher, turn.scope
        settings = dispatcher.settings
        answers = settings.mode in (Mode.REPLAY, Mode.AUTO) and scope.step in settings.steps
        if not answers or not dispatcher.replays(self.stage):
            return None
        asked = self.asked(args, kwargs, scope.step)
        if not asked.contents:
            return None
        dispatcher.recorder.writer.wait()
        key = dispatcher.key(self.stage.name, scope.step, scope.split, turn.number)
        recorded = dispatcher.recorder.step_index
        there = recorded.holds(key) and recorded.other_world(key) is None
        is_slot = there and self._is_slot(key, asked, args, kwargs)
        ranks = self._ranks(asked, key.path if is_slot else None)
        if is_slot:
            self._take(turn, Taken(call=key.path))
            return None
        own = args[:1] if self._naming.skipped and args else ()
        for _ in range(_TRIES):
            answer = self._answer(turn, key, asked, own, there, ranks)
            if answer is None or answer.open():
                return answer
            self._give_back(turn)  # a recording was replaced since it was compared
        raise FileReplacedError(
            "recordings that answer are replaced all the time", where=dispatcher.storage.location,
            hint="wait until nobody writes these steps anew",
        )  # fmt: skip

    def _ranks(self, asked: Asked, slot: str | None) -> Ranks:
        """What the ranks ask for in this very call, where they can tell each other."""
        own = self._tape.settings
        if self._how.gather is None or own.world_size == 1:
            return Ranks(own.rank, own.world_size)
        asks = {} if slot else {content: len(slots) for content, slots in asked.slots().items()}
        told = list(self._how.gather(({prompt_digest(one): count for one, count in asks.items()}, slot)))
        if len(told) != own.world_size:
            raise ConfigError(
                f"gather gave {len(told)} answers where there are {own.world_size} ranks",
                where=f"stage {self.stage.name!r}",
                hint="it must give what each rank was given, in their order, to all of them",
            )
        return Ranks(own.rank, own.world_size, tuple(told))

    def _answer(
        self, turn: Turn, key: Key, asked: Asked, own: tuple[Any, ...], there: bool, ranks: Ranks
    ) -> Answer | None:
        """What answers a call, taken so that no other call of the step gets it; None if nothing does."""
        scope, settings = turn.scope, turn.dispatcher.settings
        on_miss = settings.on_miss or (OnMiss.ERROR if settings.mode is Mode.REPLAY else OnMiss.RECORD)
        with self._lock:
            handed = self._handed.setdefault(scope, HandedOut())
            index = self.index(scope.split)
            for path in ranks.slots:
                handed.take(Taken(call=path))
            chosen, rests, of_others = self._choose(index, asked, handed, ranks)
            missing = [rest for rest in rests if rest.count]
            if missing and on_miss not in (OnMiss.LIVE, OnMiss.RECORD):
                raise self._missing(scope, asked, chosen, on_miss)
            numbers = {asked.contents[rest.position]: rest.first + rest.count for rest in missing}
            if missing and not there and not any(rest.first for rest in rests):
                # None of these prompts was ever recorded: this is their first step.
                turn.taken = Taken(call=key.path, numbers=numbers)
                handed.take(turn.taken)
                return None
            live = None
            if missing:
                live = plan_call(missing, asked.n, can_choose=isinstance(self._how.declared.n, str))
            answer = Answer(self, turn, asked, chosen, live, on_miss is OnMiss.RECORD, own)
            answer.compared = dict(index.compared)
            turn.taken = Taken(answer.samples() | of_others, numbers=numbers)
            handed.take(turn.taken)
        return answer

    def _take(self, turn: Turn, taken: Taken) -> None:
        with self._lock:
            turn.taken = taken
            self._handed.setdefault(turn.scope, HandedOut()).take(taken)

    def _give_back(self, turn: Turn) -> None:
        """A call has failed: another may be given what it was."""
        with self._lock:
            if turn.taken is not None:
                self._handed[turn.scope].give_back(turn.taken)
                turn.taken = None

    def index(self, split: str) -> SampleIndex:
        """The index of the stage, as it is now."""
        if split not in self._indexes:
            assert self._tape.dir is not None
            run = open_run(self._tape.dir)
            run.storage = self._tape._dispatcher.storage  # type: ignore[union-attr]
            own = self._tape.settings
            shard = (own.rank, own.world_size) if own.world_size > 1 else None
            self._indexes[split] = SampleIndex(run, self.stage.name, split, shard=shard)
        else:
            self._indexes[split].refresh()
        return self._indexes[split]

    def _is_slot(self, key: Key, asked: Asked, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the recording of this very call is of the same prompts, drawn in the same way."""
        assert self._tape._dispatcher is not None
        assert self.stage.inputs is not None
        recording = Recording(self._tape._dispatcher.storage, key)
        about = recording.about
        if self._how.declared.n is not None and recording.samples != len(asked.contents) * asked.n:
            return False  # else nobody says how many there are to be, and the call has what it has
        said = about.get("by")
        sampled = said.get("sampled") if isinstance(said, Mapping) else None
        if about.inputs is None or sampled not in (None, asked.sampling.hex()):
            return False
        if self._how.declared.weights is not None and not self._may_answer(recording, asked.policy):
            return False
        return copy_inputs(self.stage.inputs.choose(args, kwargs)).digest == about.inputs

    def _may_answer(self, recording: Recording, policy: int) -> bool:
        """Whether a call was made by a version of the policy that may answer."""
        assert self._tape._dispatcher is not None
        samples = RecordedSamples(self._tape._dispatcher.storage, recording)
        told = samples.told_version
        with samples.located():
            versions = set(samples.versions().to_pylist()) if told is None else {told}
        step = recording.key.step
        return all(self._how.rule.allows(step if one is None else one, policy) for one in versions)

    def lacks(self, step: int, split: str, arguments: Mapping[str, Any]) -> int:
        """How many samples a call with these arguments would have to generate."""
        given = dict(arguments)
        missing = [name for name in self._how.declared.prompts if name not in given]
        if missing:
            raise ConfigError(
                f"the arguments of a call lack {missing[0]!r}, which holds its prompts",
                where=f"stage {self.stage.name!r}",
            )
        naming = self._naming
        for name in naming.signature.parameters if naming.signature is not None else ():
            if name not in given and name != naming.skipped:
                default = naming.default(name)
                if default is not inspect.Parameter.empty:
                    given[name] = default
        asked = self._asked_of(given, step)
        own = self._tape.settings
        _, rests, _ = self._choose(
            self.index(split), asked, HandedOut(), Ranks(own.rank, own.world_size)
        )  # fmt: skip
        return sum(rest.count for rest in rests)

    def _choose(
        self, index: SampleIndex, asked: Asked, handed: HandedOut, ranks: Ranks
    ) -> tuple[dict[bytes, list[Sample]], list[Rest], frozenset[tuple[str, int]]]:
        """The samples that answer each prompt, what is missing, and the samples that other ranks get.

        Each is compared with its recording first; those that were ``handed`` out are not again. Numbers go
        on from the recorded ones.
        """
        rule = self._how.rule
        index.compared.clear()
        found: dict[bytes, list[Sample]] = {}
        rests: list[Rest] = []
        of_others: set[tuple[str, int]] = set()
        for content, slots in asked.slots().items():
            digest = prompt_digest(content)
            told = index.find(digest, asked.sampling)
            same = [sample for sample in told if index.is_of(sample, content)]
            if len(same) < len(told):
                log.warning(
                    "%d of %d samples that the index has for a prompt are of another one, "
                    "or drawn otherwise, and do not answer",
                    len(told) - len(same),
                    len(told),
                )
            allowed = allowed_samples(same, rule, asked.policy, self._how.draw, digest)
            free = [sample for sample in allowed if not handed.has(sample)]
            taken, theirs, before = ranks.share(digest, free, len(slots))
            if ranks.overlap(free, len(slots)):
                self.warn_once(
                    "(ranks)", "ranks that ask for the same prompt may get the same samples, as they cannot "
                    "see what others ask for; tape.stage(…, gather=…) lets them",
                )  # fmt: skip
            of_others |= {(sample.path, sample.row) for sample in theirs}
            found[content] = in_recorded_order(taken, rule, asked.policy)
            numbers = (sample.index + 1 for sample in allowed)
            upcoming = max([len(allowed), handed.upcoming(content), *numbers]) + before
            rests.append(Rest(slots[0] // asked.n, upcoming, len(slots) - len(taken)))
        return found, rests, frozenset(of_others)

    def _missing(
        self, scope: Scope, asked: Asked, chosen: Mapping[bytes, Sequence[Sample]], on_miss: OnMiss
    ) -> RolltapeError:
        """Why samples are missing, for a replay that may not generate them."""
        slots, where = asked.slots(), f"{self._tape.dir}/{scope.split}/{self.stage.name}"
        if on_miss is not OnMiss.ERROR:
            return ConfigError(
                f"on_miss={on_miss} plays other steps, and says nothing about single samples",
                where=where,
                hint='with by="prompt", on_miss is error, live or record',
            )
        lacking = [content for content in slots if len(chosen[content]) < len(slots[content])]
        count = sum(len(slots[content]) - len(chosen[content]) for content in lacking)
        index = self.index(scope.split)
        others = Counter(
            sample.policy
            for content in lacking
            for sample in index.find(prompt_digest(content), asked.sampling)
            if not self._how.rule.allows(sample.policy, asked.policy)
        )
        drawn = sum(
            sample.sampling != asked.sampling
            for content in lacking
            for sample in index.find(prompt_digest(content))
        )
        causes = []
        if others:
            listed = ", ".join(map(str, sorted(others)[:8])) + (", …" if len(others) > 8 else "")
            causes.append(
                f"{sum(others.values())} samples of these prompts are of other versions of the policy "
                f"({listed}; asked for: {asked.policy}, version={self._how.rule.text!r})"
            )
        if drawn:
            causes.append(f"{drawn} samples of these prompts were drawn with other sampling")
        if not others and not drawn:
            causes.append(
                f"{len(lacking)} of {len(slots)} prompts have too few samples on this tape, or none"
            )
        more = 'version="any" takes those of every policy; ' if others else ""
        return StepMissingError(
            f"{count} of {len(asked.contents) * asked.n} samples asked for at step {scope.step} are not on "
            f"the tape, and `on_miss` is error",
            where=where,
            causes=causes,
            hint=f"{more}mode=auto generates and records what is missing",
        )

    def warn_once(self, about: str, text: str) -> None:
        """Say something that holds for every call from here on."""
        if about not in self._warned:
            self._warned.add(about)
            log.warning("stage %r: %s", self.stage.name, text)

    # -- parts that engines do in their own way --------------------------------------------------------

    def live_arguments(self, asked: Asked, live: LiveCall) -> dict[str, Any]:
        """The arguments of the live call for what is missing."""
        declared = self._how.declared
        changed = dict(asked.named)
        for name in (*declared.prompts, *self._how.along):
            changed[name] = taken(asked.named[name], live.positions)
        if isinstance(declared.n, str):
            name, _, inner = declared.n.partition(".")
            changed[name] = _with(asked.named[name], inner.split("."), live.n) if inner else live.n
        if declared.first is not None:
            changed[declared.first] = list(live.firsts)
        return changed

    def put_together(
        self, pieces: Sequence[Piece], order: Sequence[int], preferred: int, asked: Asked
    ) -> Any:
        """What the call returns."""
        for name in sorted({name for piece in pieces for name in fixed_tuples(piece.file)}):
            self.warn_once(
                f"({name})",
                f"{name!r} is a tuple of as many entries as there are samples, which stay in the order that "
                "they have; return a list if they are of samples",
            )
        value, differs = put_together(pieces, order, preferred, self._how.pad)
        if differs:
            named = ", ".join(map(repr, differs[:4])) + (", …" if len(differs) > 4 else "")
            verb = "belongs" if len(differs) == 1 else "belong"
            self.warn_once(
                "(whole)", f"{named} {verb} to no sample, and not the same in all recordings; one is given"
            )
        return value


def _who(contents: Sequence[bytes], firsts: Sequence[int], parts: Dismantled) -> tuple[list[str], np.ndarray]:
    """Who the samples of a live call are: numbers of one prompt go on, wherever it stands in the batch."""
    uids, index = identify(parts)
    if not contents or parts.samples % len(contents):
        return uids, index
    each = parts.samples // len(contents)
    upcoming: dict[bytes, int] = {}
    numbers = np.empty(parts.samples, np.int32)
    for position, content in enumerate(contents):
        start = max(upcoming.get(content, 0), int(firsts[position]))
        numbers[position * each : (position + 1) * each] = np.arange(start, start + each)
        upcoming[content] = start + each
    if not any(uids):
        uids = [prompt_digest(content).hex() for content in contents for _ in range(each)]
    return uids, numbers


def taken(value: Any, rows: Sequence[int]) -> Any:
    """Some of the prompts that an argument holds, as the same kind of value."""
    if isinstance(value, (list, tuple)):
        return type(value)(value[row] for row in rows)
    if type(value).__name__ == "Batch" and hasattr(value, "columns"):
        return type(value)({name: taken(column, rows) for name, column in value.columns.items()}, value.meta)
    if isinstance(value, Mapping):
        return {name: taken(column, rows) for name, column in value.items()}
    return value[list(rows)]


def _with(value: Any, path: Sequence[str], number: int) -> Any:
    """A copy of a value with another number somewhere in it."""
    name, *rest = path
    if isinstance(value, Mapping):
        return {**value, name: _with(value[name], rest, number) if rest else number}
    changed = _with(getattr(value, name), rest, number) if rest else number
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{name: changed})
    raise StageError(
        f"n is in a {type(value).__name__}, of which no copy with another number can be made",
        hint="pass n as an argument of its own, or in a dict or a dataclass",
    )
