"""Returns recordings in place of live calls: checked, counted, read ahead."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rolltape.batch.digest import Digest
from rolltape.codec.header import About
from rolltape.codec.pinned import PinnedMemory
from rolltape.codec.recycled import RecycledMemory
from rolltape.errors import (
    CorruptFileError,
    MismatchError,
    MisplacedFileError,
    RolltapeError,
    StepMissingError,
    StorageError,
)
from rolltape.fingerprint import Part, compare
from rolltape.key import Key
from rolltape.policy import Action
from rolltape.settings import MatchLevel, Settings
from rolltape.storage import Stat, Storage
from rolltape.tape.call_arguments import Arguments, Difference, Naming, compare_arguments, read_arguments
from rolltape.tape.expected_dtypes import check_expected
from rolltape.tape.inputs import Inputs, describe_difference
from rolltape.tape.manifest import Manifest, plain_parts
from rolltape.tape.missing import explain_missing
from rolltape.tape.opening import report
from rolltape.tape.perturb import perturbation
from rolltape.tape.prefetch import Fits, Prefetch
from rolltape.tape.recording import Recording
from rolltape.tape.resharding import reshard
from rolltape.tape.shards import stale_shards
from rolltape.tape.stage import Call
from rolltape.tape.summary import Tally

log = logging.getLogger("rolltape")


@dataclass(frozen=True, slots=True)
class Played:
    """A recording, read."""

    key: Key
    value: Any
    about: About
    dtypes: Mapping[str, str]
    size: int
    """Of the file."""
    revision: str
    """Of the file."""
    nbytes: int
    """In memory, about."""
    digests: tuple[tuple[str, str], ...] = ()
    """The recordings it is made of, and what stands for each; empty where nobody keeps what was replayed."""
    waited: float = 0.0
    """Seconds that the trainer waited for it."""
    recorded_by: int | None = None
    """How many ranks recorded it, where that is another number than this run has."""


class Player:
    """The reading half of a tape."""

    def __init__(
        self,
        storage: Storage,
        settings: Settings,
        tally: Tally,
        manifest: Manifest,
        world_of: Callable[[Key], int | None] = lambda key: None,
    ) -> None:
        """``world_of`` says how many ranks recorded what is to be divided among those of this run."""
        self._world_of = world_of
        self._storage = storage
        self._settings = settings
        self._tally = tally
        self._manifest = manifest
        limit = settings.max_pending_bytes
        self._ahead = Prefetch(storage, self._read_into, limit) if settings.prefetch else None
        self._memory = _memory(settings)
        self._perturb = perturbation()
        self._foreign: set[str] = set()
        self._warned: set[tuple[str, str]] = set()
        self.played: set[Key] = set()
        """What this run was given."""
        self._substitutes: set[Key] = set()

    def play(self, call: Call, seen: Stat | None = None) -> Played:
        """The recording for this call; ``seen``: its file as it was a moment ago, where that is known."""
        started = time.perf_counter()
        decision = call.decision
        source = replace(call.key, step=decision.step if decision.source is None else decision.source)
        now = seen if seen is not None and seen.name == source.path else None
        played = (self._ahead.take(source, now) if self._ahead else None) or self._read(source)
        waited = time.perf_counter() - started
        where = f"{self._storage.location}/{source.path}"
        if decision.action is Action.SUBSTITUTE:
            log.warning(
                "step %d plays the recording of step %d: %s", decision.step, source.step, decision.reason
            )
        elif played.recorded_by is not None:
            self._check_part(call, source, played.recorded_by, where)
        else:
            self._check_given(call, source, played, where)
        self._check_fingerprint(played, where)
        check_expected(played.dtypes, call.stage.expect, where)
        self._note(source, decision.action is Action.SUBSTITUTE)
        live = played.about.live_seconds or 0.0
        self._tally.add(
            replayed=1,
            substituted=decision.action is Action.SUBSTITUTE,
            bytes_read=played.size,
            seconds_saved=max(live - (time.perf_counter() - started), 0.0),
            seconds_waited=waited,
        )
        return replace(played, waited=waited)

    def asked(self) -> set[Key]:
        """What this run was given at its own step, not only in place of another."""
        return self.played - self._substitutes

    def _note(self, source: Key, is_substitute: bool) -> None:
        if not is_substitute:
            self._substitutes.discard(source)
        elif source not in self.played:
            self._substitutes.add(source)
        self.played.add(source)

    def read_ahead(self, after: Key, following: Iterator[Key]) -> None:
        """Begin to read what will probably be asked for next, as much of it as is worth while."""
        if self._ahead:
            self._ahead.start(after, following)

    def is_read_ahead(self, key: Key) -> bool:
        """Whether this is read, or being read: then it is on the tape."""
        return self._ahead is not None and self._ahead.holds(key)

    @property
    def reads_ahead(self) -> bool:
        """Whether it is of any use to say what comes next."""
        return self._ahead is not None

    def close(self) -> None:
        """Stop reading ahead, and keep no memory."""
        if self._ahead:
            self._ahead.close()
        if self._memory:
            self._memory.close()

    def _read(self, key: Key) -> Played:
        try:
            played = self._read_into(key)
        except StepMissingError as error:
            if error.causes:  # it is there, and does not belong to the others
                raise
            played = None  # deleted since it was decided to play it
        if played is None:
            raise explain_missing(self._storage, key)
        return played

    def _read_into(self, key: Key, fits: Fits = lambda nbytes: True) -> Played | None:
        """A recording, decoded; None if it takes more memory than there is room for."""
        world = self._world_of(key)
        if world is not None:
            return self._read_part(key, world)
        recording = Recording(self._storage, key)
        change = partial(self._perturb, key) if self._perturb else None
        lazy = self._settings.lazy and change is None
        file = recording.open_in_memory() if lazy else recording.open_whole()
        if key.is_shard:
            self._check_committed(recording)
        nbytes = recording.size + file.dense_bytes
        if not fits(nbytes):
            return None
        if lazy:
            value = recording.lazy_value_of(file, self._memory)
        else:
            value = recording.value_of(file, change, self._memory)
        digests = ((key.path, file.digest),) if self._settings.out else ()
        return Played(
            key, value, file.about, file.dtypes, recording.size, recording.revision, nbytes, digests
        )

    def _read_part(self, key: Key, world: int) -> Played:
        """This rank's part of what another number of ranks recorded."""
        change = partial(self._perturb, key) if self._perturb else None
        part = reshard(self._storage, key, world, random=self._settings.random_state, change=change)
        told = f"stage {key.stage!r}, recorded by {world} ranks and replayed by {key.world_size}: "
        if part.cut is not None:
            self._warn_once(key.stage, "group", f"{told}the group {part.cut!r} is divided between two ranks")
        if part.counts:
            listed = ", ".join(part.counts)
            self._warn_once(
                key.stage, "counts", f"{told}{listed} may count samples, and stays as it was recorded"
            )
        digests = part.digests if self._settings.out else ()
        return Played(
            key, part.value, part.about, part.dtypes, part.size, "", part.size, digests, recorded_by=world
        )

    def _warn_once(self, stage: str, about: str, text: str) -> None:
        if (stage, f"({about})") not in self._warned:
            self._warned.add((stage, f"({about})"))
            log.warning("%s", text)

    def _check_part(self, call: Call, source: Key, world: int, where: str) -> None:
        """Compare what the stage is given with this rank's part of the recorded inputs, if there are any."""
        if call.inputs is None and call.arguments is None:
            return
        inputs = replace(source, inputs=True)
        try:
            value = reshard(self._storage, inputs, world).value
        except (StepMissingError, MismatchError) as error:
            why = "only digests of whole shards were recorded"
            why = error.what if isinstance(error, MismatchError) else why
            self._warn_once(
                source.stage, "inputs", f"the arguments of stage {source.stage!r} are not compared: {why}"
            )
            return
        if call.inputs is not None:
            texts = describe_difference(value, call.inputs.parts)
            level = self._settings.match.get("inputs", MatchLevel.ERROR)
            report([Part("inputs", False, level, *texts)] if texts else [], where)
        elif call.arguments is not None and isinstance(value, dict):
            recorded = Arguments.of(value, Naming(None)).digests
            found = compare_arguments(recorded, call.arguments, ())
            self._report(call.stage.name, recorded, call.arguments, found, where)

    def _check_committed(self, recording: Recording) -> None:
        """Refuse a shard that is not of one writing with the others."""
        short = stale_shards(self._storage, [recording])
        if short is not None:
            raise explain_missing(self._storage, recording.key, short=short)

    def _check_given(self, call: Call, source: Key, played: Played, where: str) -> None:
        """Compare what the stage is given with what it was given when it was recorded."""
        about = played.about
        if call.inputs is not None and (about.inputs is not None or about.arguments is None):
            self._check_inputs(source, played, call.inputs, where)
        elif call.arguments is not None and (recorded := self._recorded_arguments(source, about, where)):
            found = compare_arguments(recorded, call.arguments, about.collecting)
            self._report(call.stage.name, recorded, call.arguments, found, where)

    def _recorded_arguments(self, source: Key, about: About, where: str) -> Mapping[str, Digest | None]:
        """The digests that were recorded, or those of the arguments that were."""
        if about.arguments is not None:
            return read_arguments(about.arguments, where)
        if about.inputs is None:
            return {}
        kept = Recording(self._storage, replace(source, inputs=True))
        try:
            value = kept.value() if kept.about.inputs == about.inputs else None
        except (MisplacedFileError, StorageError):
            raise  # it is not damaged: something else was put in its place
        except RolltapeError as error:
            log.warning("the recorded inputs cannot be read, so they are not compared: %s", error)
            return {}
        return Arguments.of(value, Naming(None)).digests if isinstance(value, dict) else {}

    def _report(
        self,
        stage: str,
        recorded: Mapping[str, Digest | None],
        given: Arguments,
        found: Sequence[Difference],
        where: str,
    ) -> None:
        asked = self._settings.match.get("inputs")
        parts = [Part(name, True, MatchLevel.ERROR, "", "") for name in _same(recorded, given, found)]
        for one in found:
            level = asked or (MatchLevel.WARN if one.may_differ else MatchLevel.ERROR)
            if level is MatchLevel.WARN:
                if (stage, one.argument) in self._warned:
                    continue  # it will differ at every step from here on: said once
                self._warned.add((stage, one.argument))
            parts.append(Part("inputs", False, level, one.recorded, one.given))
        signature = given.naming.signature
        same = [part.name for part in parts if part.same and signature and part.name in signature.parameters]
        way_out = f"compare less: tape.stage({stage!r}, inputs={same!r}) or" if same else "relax a part:"
        report(parts, where, _causes(found), way_out)

    def _check_inputs(self, source: Key, played: Played, inputs: Inputs, where: str) -> None:
        recorded = played.about.inputs
        if recorded == inputs.digest:
            return
        level = self._settings.match.get("inputs", MatchLevel.ERROR)
        if recorded is None:
            texts = "(not recorded: inputs=True was not set)", "given"
        else:
            kept = Recording(self._storage, replace(source, inputs=True))
            try:
                if kept.about.inputs != recorded:
                    raise CorruptFileError("these are the inputs of another recording", where=kept.where)
                difference = describe_difference(kept.value(), inputs.parts)
            except (MisplacedFileError, StorageError):
                raise
            except RolltapeError as error:
                difference = f"others, which cannot be read ({error.what})", f"digest {inputs.digest}"
            if difference is None:  # the same, packed by another version
                return
            texts = difference
        causes = ["the prompts come in another order, or from another dataset, template or seed"]
        if all(text.endswith((" sample", " samples")) for text in texts):
            causes = ["another batch size, or another number of prompts in a step"]
        report([Part("inputs", False, level, *texts)], where, causes)

    def _check_fingerprint(self, played: Played, where: str) -> None:
        """A tape that was partly rewritten holds recordings of an earlier fingerprint."""
        recorded = played.about.fingerprint
        if recorded in (None, self._manifest.digest):
            return
        if recorded not in self._foreign:
            self._foreign.add(recorded)
            log.warning("%s was recorded under another fingerprint than tape.json has now", where)
        parts = plain_parts(self._settings.fingerprint)
        earlier = self._manifest.earlier.get(recorded, {})
        causes = ["the tape was rewritten with another configuration, but not this step"]
        report(compare(earlier, parts, self._settings.match), where, causes)


def _memory(settings: Settings) -> RecycledMemory | PinnedMemory | None:
    """Where the large arrays of a replay come from; None for fresh memory."""
    if settings.pin:
        return PinnedMemory()
    return RecycledMemory(settings.recycle) if settings.recycle else None


def _same(recorded: Mapping[str, Digest | None], given: Arguments, found: Sequence[Difference]) -> list[str]:
    """The arguments that are the same."""
    other = {one.argument for one in found}
    return [
        name
        for name, now in given.digests.items()
        if now is not None and recorded.get(name) is not None and name not in other
    ]


def _causes(found: Sequence[Difference]) -> list[str]:
    """What probably happened, of what was seen."""
    hard = [one for one in found if not one.may_differ]
    if any(one.is_order for one in hard):
        return ["the prompts come in another order: another seed or sampler, or another number of workers"]
    if any(one.is_size for one in hard):
        return ["the batch has another size than when it was recorded", "the padding or the template changed"]
    return ["the configuration, the dataset, the template or the seed changed since the recording"]
