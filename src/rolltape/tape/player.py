"""Returns recordings in place of live calls: checked, counted, read ahead."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rolltape.batch.dtypes import storage_dtype
from rolltape.errors import CorruptFileError, RolltapeError, StepMissingError
from rolltape.fingerprint import Part, compare
from rolltape.key import Key
from rolltape.policy import Action
from rolltape.settings import MatchLevel, Settings
from rolltape.storage import Storage
from rolltape.tape.call import Call
from rolltape.tape.dtypes import check_expected, dtypes_in
from rolltape.tape.inputs import Inputs, describe_difference
from rolltape.tape.manifest import Manifest, plain_parts
from rolltape.tape.missing import explain_missing
from rolltape.tape.opening import report
from rolltape.tape.prefetch import Prefetch
from rolltape.tape.recording import Recording
from rolltape.tape.summary import Tally

log = logging.getLogger("rolltape")


@dataclass(frozen=True, slots=True)
class Played:
    """A recording, read."""

    key: Key
    value: Any
    about: Mapping[str, Any]
    dtypes: Mapping[str, str]
    size: int
    """Of the file."""
    nbytes: int
    """In memory, about."""


class Player:
    """The reading half of a tape."""

    def __init__(self, storage: Storage, settings: Settings, tally: Tally, manifest: Manifest) -> None:
        self._storage = storage
        self._settings = settings
        self._tally = tally
        self._manifest = manifest
        limit = settings.max_pending_bytes
        self._ahead = Prefetch(storage, self._read_into, limit) if settings.prefetch else None
        self._foreign: set[str] = set()
        self.played: set[Key] = set()
        """What this run was given."""

    def play(self, call: Call) -> Played:
        """The recording for this call."""
        started = time.perf_counter()
        decision = call.decision
        source = replace(call.key, step=decision.step if decision.source is None else decision.source)
        played = (self._ahead.take(source) if self._ahead else None) or self._read(source)
        where = f"{self._storage.location}/{source.path}"
        if decision.action is Action.SUBSTITUTE:
            log.warning(
                "step %d plays the recording of step %d: %s", decision.step, source.step, decision.reason
            )
        elif call.inputs is not None:
            self._check_inputs(source, played, call.inputs, where)
        self._check_fingerprint(played, where)
        check_expected(played.dtypes, call.stage.expect, where)
        self.played.add(source)
        live = float(played.about.get("live_seconds", 0.0))
        self._tally.add(
            replayed=1,
            substituted=decision.action is Action.SUBSTITUTE,
            bytes_read=played.size,
            seconds_saved=max(live - (time.perf_counter() - started), 0.0),
        )
        return played

    def read_ahead(self, key: Key) -> None:
        """Begin to read what will probably be asked for next."""
        if self._ahead:
            self._ahead.start(key)

    @property
    def reads_ahead(self) -> bool:
        """Whether it is of any use to say what comes next."""
        return self._ahead is not None

    def close(self) -> None:
        """Stop reading ahead."""
        if self._ahead:
            self._ahead.close()

    def _read(self, key: Key) -> Played:
        try:
            played = self._read_into(key)
        except StepMissingError:  # deleted since it was decided to play it
            played = None
        if played is None:
            raise explain_missing(self._storage, key)
        return played

    def _read_into(self, key: Key, room: int | None = None) -> Played | None:
        """A recording, decoded; None if it takes more memory than there is room for."""
        recording = Recording(self._storage, key)
        file = recording.open_whole()
        nbytes = recording.size + _dense_bytes(file.header)
        if room is not None and nbytes > room:
            return None
        value = recording.value_of(file)
        return Played(key, value, file.about, dtypes_in(file.header), recording.size, nbytes)

    def _check_inputs(self, source: Key, played: Played, inputs: Inputs, where: str) -> None:
        recorded = played.about.get("inputs")
        if recorded == inputs.digest:
            return
        level = self._settings.match.get("inputs", MatchLevel.ERROR)
        if recorded is None:
            texts = "(not recorded: inputs=True was not set)", "given"
        else:
            kept = Recording(self._storage, replace(source, inputs=True))
            try:
                if kept.about.get("inputs") != recorded:
                    raise CorruptFileError("these are the inputs of another recording", where=kept.where)
                difference = describe_difference(kept.value(), inputs.parts)
            except RolltapeError as error:
                difference = f"others, which cannot be read ({error.what})", f"digest {inputs.digest}"
            if difference is None:  # the same, packed by another version
                return
            texts = difference
        causes = ["the prompts come in another order, or from another dataset, template or seed"]
        report([Part("inputs", False, level, *texts)], where, causes)

    def _check_fingerprint(self, played: Played, where: str) -> None:
        """A tape that was partly rewritten holds recordings of an earlier fingerprint."""
        recorded = played.about.get("fingerprint")
        if recorded in (None, self._manifest.digest):
            return
        if recorded not in self._foreign:
            self._foreign.add(recorded)
            log.warning("%s was recorded under another fingerprint than tape.json has now", where)
        parts = plain_parts(self._settings.fingerprint)
        earlier = self._manifest.earlier.get(recorded, {})
        causes = ["the tape was rewritten with another configuration, but not this step"]
        report(compare(earlier, parts, self._settings.match), where, causes)


def _dense_bytes(header: Mapping[str, Any]) -> int:
    """What the arrays of a recording take in memory."""
    total = 0
    for entry in header["columns"].values():
        if entry["kind"] == "array":
            size = storage_dtype(entry["dtype"]).itemsize * int(header["samples"])
            for length in entry["shape"]:
                size *= length
            total += size
    return total
