"""One live call whose samples are kept as they finish: what a killed run has left of it, and what is new.

``tape.sample`` and the engines ask here. A sample goes by its name within the call. What was left counts only
if the call is the same: the tape, the fingerprint, the version of the weights and the arguments; anything
else is refused by name, and never mixed with what is generated now.
"""

from __future__ import annotations

import inspect
import json
import logging
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rolltape import random_state
from rolltape.batch.json_values import Json
from rolltape.codec.header import About
from rolltape.errors import MismatchError, RolltapeError, StageError
from rolltape.key import Key
from rolltape.settings import MatchLevel
from rolltape.tape.call_arguments import Arguments, Naming, compare_arguments, read_arguments
from rolltape.tape.open_samples import Finished, Kept, copied
from rolltape.tape.recording import Recording
from rolltape.tape.scope import counting_calls

if TYPE_CHECKING:
    from rolltape.tape.dispatcher import Dispatcher
    from rolltape.tape.recorder import Recorder
    from rolltape.tape.stage import Call

log = logging.getLogger("rolltape")

SampleName: TypeAlias = "str | int | tuple[str | int, ...]"
"""What a sample is called within its call: the number of its prompt, its uid and index, …"""
MATCH = "open_samples"
"""What ``match`` calls the comparison with what a killed run has left."""


class OpenStep:
    """The samples of one live call. Any number of threads may ask at once."""

    def __init__(self, call: Call, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """``key`` is what its files are named after."""
        self.key = key
        self._call = call
        self._settings = call.dispatcher.settings
        self._arguments = _given_to(call, args, kwargs)
        self._expected: dict[str, Json] = {}
        self._kept: dict[str, Kept] | None = None
        self._asked: set[str] = set()
        self._writers: set[str] = {self._recorder.writer_name}
        self._told: set[str] = set()
        self._lock = threading.Lock()
        self.resumed = 0
        """How many samples were not generated again."""

    @property
    def _recorder(self) -> Recorder:
        """That of this very process: a forked child has its own."""
        return self._call.dispatcher.recorder

    @property
    def asked(self) -> int:
        """How many samples were asked for."""
        return len(self._asked)

    def expect(self, parts: Mapping[str, Json]) -> None:
        """Say, before the first sample is asked for, who draws them: the version of the weights, say."""
        self._expected = dict(parts)

    def find(self, name: SampleName, given: Arguments | None = None) -> Kept | None:
        """What a killed run has left of a sample; None if it is to be generated. Asked for once each."""
        text = _as_text(name)
        with self._lock:
            kept = self._loaded()
            if text in self._asked:
                raise StageError(
                    f"sample {name!r} of stage {self._call.stage.name!r} was asked for twice in one call",
                    hint="give each sample a name of its own: the uid of its prompt and its number, say",
                )
            self._asked.add(text)
            found = kept.get(text)
            if found is not None and not self._is_made_of(found, name, given):
                found = None
            self.resumed += found is not None
            return found

    def keep(self, name: SampleName, value: Any, given: Arguments | None = None, random: Json = None) -> None:
        """Put a sample that has finished on the tape. What cannot be stored is told, and generated again."""
        try:
            packed = copied(value)
        except Exception as error:
            self._tell_once("copy", f"cannot be stored, and are not kept as they finish: {error}")
            return
        made_of = None if given is None else given.to_json()
        self._recorder.open_steps.add(
            self.key, self._about(), Finished(_as_text(name), made_of, packed, random)
        )

    def noted(self) -> dict[str, Json]:
        """What the recording of the call says of it."""
        resumed: dict[str, Json] = {"samples": self.resumed, "of": self.asked} if self.resumed else {}
        return {"kept_by": sorted(self._writers)} | ({"resumed": resumed} if resumed else {})

    def tell_called(self) -> None:
        """A sample called other stages: a resumed run would not make these calls."""
        self._tell_once("inside", "call other stages while they are made, and are not kept as they finish")

    # -- what was left ---------------------------------------------------------------------------------

    def _loaded(self) -> dict[str, Kept]:
        if self._kept is None:
            self._drop_recorded()
            steps = self._recorder.open_steps
            found: dict[str, Kept] = {}
            other: list[str] = []
            for about, samples in steps.find(self.key, self._recorder.is_over_before):
                wrong = self._differs(about)
                if wrong is not None:
                    other += {one.file for one in samples}
                    self._refuse(wrong)
                    continue
                self._writers.add(about.writer or "")
                for one in samples:
                    found.setdefault(one.name, one)
            if other:
                log.info("finished samples of another %s are dropped, and generated again", self.key.path)
                steps.drop(self.key, lambda file: file.name in other)
            self._kept = found
        return self._kept

    def _drop_recorded(self) -> None:
        """A call that is written anew is not made of what the old one was made of."""
        recorder, key = self._recorder, self._call.key
        if recorder.renews and recorder.is_over(key):
            try:
                by = Recording(self._call.dispatcher.storage, key).about.get("kept_by")
            except RolltapeError:  # it will be replaced
                return
            if isinstance(by, list):
                recorder.open_steps.drop(self.key, lambda file: file.writer in by)

    def _differs(self, about: About) -> str | None:
        """In what a file of samples is of another call."""
        mine = self._about()
        if about.fingerprint != mine["fingerprint"]:
            return "the fingerprint of the run is another one"
        if about.run != mine["run"]:
            return "another run has left them"
        said = about.get("drawn_by")
        was = said if isinstance(said, dict) else {}
        for part in {**was, **self._expected}:
            if was.get(part) != self._expected.get(part):
                return f"{part} {was.get(part)!r}, now {self._expected.get(part)!r}"
        if about.arguments is None or self._arguments is None:
            return None
        recorded = read_arguments(about.arguments, self.key.path)
        found = [one for one in compare_arguments(recorded, self._arguments) if not one.may_differ]
        return "; ".join(f"{one.recorded}, now {one.given}" for one in found[:3]) or None

    def _is_made_of(self, kept: Kept, name: SampleName, given: Arguments | None) -> bool:
        if kept.given is None or given is None:
            return True
        recorded = read_arguments(kept.given, kept.file)
        found = [one for one in compare_arguments(recorded, given) if not one.may_differ]
        if found:
            self._refuse(f"sample {name!r}: {found[0].recorded}, now {found[0].given}")
        return not found

    def _refuse(self, wrong: str) -> None:
        """Raise, unless samples that do not fit may be dropped."""
        level = self._settings.match.get(MATCH, MatchLevel.ERROR)
        storage, key = self._call.dispatcher.storage, self.key
        if level is MatchLevel.ERROR:
            raise MismatchError(
                f"a run that was killed has left finished samples of step {key.step}, but this is another "
                f"call: {wrong}",
                where=f"{storage.location}/samples.open/{key.path.removesuffix('.parquet')}",
                causes=["the run was resumed with other settings, other data or another checkpoint"],
                hint="resume it as it was; or drop these samples: "
                f'`rolltape prune {shlex.quote(storage.location)} --open`, or match={{"{MATCH}": "warn"}}',
            )
        if level is MatchLevel.WARN:
            self._tell_once("other", f"that a killed run has left are dropped: {wrong}")

    def _about(self) -> dict[str, Json]:
        about = self._recorder.about_open()
        if self._expected:
            about["drawn_by"] = self._expected
        if self._arguments is not None:
            about["arguments"] = self._arguments.to_json()
        return about

    def _tell_once(self, about: str, what: str) -> None:
        if about not in self._told:
            self._told.add(about)
            log.warning("samples of stage %r at step %d %s", self._call.stage.name, self.key.step, what)


def _given_to(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
    """The digests of what a call was given, where that is compared."""
    if call.arguments is not None:
        return call.arguments
    if call.stage.inputs is None:
        return None
    return Arguments.of(call.stage.inputs.choose(args, kwargs), Naming(None))


def _as_text(name: SampleName) -> str:
    """What a sample is called on the tape."""
    parts = name if isinstance(name, tuple) else (name,)
    plain = [int(part) if isinstance(part, np.integer) else part for part in parts]
    if not plain or any(type(part) not in (str, int) for part in plain):
        raise StageError(
            f"a sample is named by text, a whole number, or a tuple of these, not {name!r}",
            hint="tape.sample((position, index), …)",
        )
    return json.dumps(plain if isinstance(name, tuple) else plain[0], ensure_ascii=False)


# -- which call the running code is in -----------------------------------------------------------------

_running: ContextVar[tuple[LiveCall, ...]] = ContextVar("rolltape_live_calls")


class LiveCall:
    """A call of a stage while its function runs."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        call: Call | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: Key | None = None,
    ) -> None:
        """``call`` is None where its result is not recorded."""
        self.dispatcher = dispatcher
        self.call = call
        self.thread = threading.get_ident()
        self._given = args, kwargs
        self._key = key
        self._open: OpenStep | None = None
        self._lock = threading.Lock()

    def open(self) -> OpenStep | None:
        """Its samples; None where its result is not recorded."""
        if self.call is None or not self.call.decision.saves:
            return None
        with self._lock:
            if self._open is None:
                self._open = OpenStep(self.call, self._key or self.call.key, *self._given)
                self.dispatcher.recorder.open_calls[self.call.key] = self._open
            return self._open


@contextmanager
def living(
    dispatcher: Dispatcher,
    call: Call | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    key: Key | None = None,
) -> Iterator[None]:
    """Around the function of a stage while it runs."""
    one = LiveCall(dispatcher, call, args, kwargs, key)
    dispatcher.running.append(one)
    token = _running.set((*_running.get(()), one))
    try:
        yield
    finally:
        _running.reset(token)
        dispatcher.running.remove(one)


def live_call(dispatchers: tuple[Dispatcher, ...], what: str) -> LiveCall:
    """The call that the running code is in: in a thread that it has started, the only one there is."""
    inside = [one for one in _running.get(()) if one.dispatcher in dispatchers]
    if inside:
        return inside[-1]
    others = [one for dispatcher in dispatchers for one in dispatcher.running.copy()]
    if len(others) == 1:
        return others[0]
    if others:
        raise StageError(
            f"{what} was called in a thread while {len(others)} calls of stages run: whose it is, is unknown",
            hint="start the thread's work with contextvars.copy_context().run(function, …)",
        )
    raise StageError(f"{what} was called outside of a stage", hint="call it in the function of a stage")


# -- one sample ----------------------------------------------------------------------------------------


def make_sample(
    live: LiveCall | None,
    name: SampleName,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """The sample that a killed run has left, or what the function returns, kept as soon as it does."""
    step = None if live is None else live.open()
    if live is None or step is None:
        return _not_awaitable(function, function(*args, **kwargs))
    given = _digests(function, args, kwargs)
    found = step.find(name, given)
    own = live.thread == threading.get_ident() and live.dispatcher.settings.random_state
    if found is not None:
        if own and found.random is not None:
            random_state.restore(found.random)
        return found.value()
    before = random_state.capture() if own else None
    with counting_calls(live.call.scope) as inside:  # type: ignore[union-attr]
        value = _not_awaitable(function, function(*args, **kwargs))
    after = random_state.capture() if own else None
    if inside:
        step.tell_called()
    else:
        step.keep(name, value, given, after if after != before else None)
    return value


async def await_sample(
    live: LiveCall | None,
    name: SampleName,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """The same of a function that is to be awaited."""
    step = None if live is None else live.open()
    if live is None or step is None:
        return await function(*args, **kwargs)
    given = _digests(function, args, kwargs)
    found = step.find(name, given)
    if found is not None:
        return found.value()
    with counting_calls(live.call.scope) as inside:  # type: ignore[union-attr]
        value = await function(*args, **kwargs)
    if inside:
        step.tell_called()
    else:
        step.keep(name, value, given)
    return value


def _digests(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
    if not args and not kwargs:
        return None
    naming = Naming.of(function)
    return Arguments.of(naming.named(args, kwargs), naming)


def _not_awaitable(function: Callable[..., Any], value: Any) -> Any:
    if not inspect.isawaitable(value):
        return value
    if inspect.iscoroutine(value):
        value.close()  # else Python warns that it was never awaited
    raise StageError(
        f"{getattr(function, '__qualname__', function)} returned something to be awaited, but it is not an "
        "async function",
        hint="await tape.sample(name, function, argument, …) with the async function itself",
    )
