"""Returns recordings in place of live calls: checked, counted, read ahead."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rolltape.batch.tree import Dismantled
from rolltape.codec.pack import Packed
from rolltape.fingerprint import Part
from rolltape.key import Key
from rolltape.policy import Action, Decision
from rolltape.settings import MatchLevel, Settings
from rolltape.storage import Storage
from rolltape.tape.inputs import describe_difference
from rolltape.tape.opening import report
from rolltape.tape.prefetch import Prefetch
from rolltape.tape.recorder import check_expected
from rolltape.tape.recording import Recording
from rolltape.tape.summary import Summary

log = logging.getLogger("rolltape")


@dataclass(frozen=True, slots=True)
class Played:
    """A recording, read."""

    value: Any
    about: Mapping[str, Any]
    columns: Mapping[str, Any]
    size: int


class Player:
    """The reading half of a tape."""

    def __init__(self, storage: Storage, settings: Settings, summary: Summary) -> None:
        self._storage = storage
        self._settings = settings
        self._summary = summary
        self._lock = threading.Lock()
        self._prefetch = Prefetch(storage, self._read) if settings.prefetch else None
        self.played: set[Key] = set()

    def play(
        self,
        key: Key,
        decision: Decision,
        *,
        expect: Mapping[str, str],
        inputs: tuple[Dismantled, Packed] | None,
        following: Callable[[], Key | None],
    ) -> Any:
        """The recorded value for this call. ``following`` names what will probably be asked for next."""
        started = time.perf_counter()
        source = replace(key, step=decision.source if decision.source is not None else key.step)
        played = self._prefetch.take(source) if self._prefetch else self._read(source)
        if decision.action is Action.SUBSTITUTE:
            log.warning("step %d plays the recording of step %d: %s", key.step, source.step, decision.reason)
        elif inputs is not None:
            self._check_inputs(source, played, inputs)
        found = {name: _dtype(played.columns.get(name)) for name in expect}
        check_expected(found, expect, f"{self._storage.location}/{source.path}")
        if self._prefetch and (ahead := following()) is not None:
            self._prefetch.start(ahead)
        self._count(source, played, decision, time.perf_counter() - started)
        return played.value

    def close(self) -> None:
        """Stop reading ahead."""
        if self._prefetch:
            self._prefetch.close()

    def _read(self, key: Key) -> Played:
        recording = Recording(self._storage, key)
        file = recording.open_whole()
        return Played(recording.value_of(file), file.about, file.header["columns"], recording.size)

    def _check_inputs(self, source: Key, played: Played, inputs: tuple[Dismantled, Packed]) -> None:
        level = self._settings.match.get("inputs", MatchLevel.ERROR)
        recorded = played.about.get("inputs")
        if level is MatchLevel.IGNORE or recorded == inputs[1].digest():
            return
        if recorded is None:
            part = Part("inputs", False, level, "(not recorded: inputs=True was not set)", "given")
        else:
            kept = Recording(self._storage, replace(source, inputs=True))
            part = Part("inputs", False, level, *describe_difference(kept, inputs[0]))
        report([part], f"{self._storage.location}/{source.path}")

    def _count(self, source: Key, played: Played, decision: Decision, took: float) -> None:
        with self._lock:
            self.played.add(source)
            self._summary.replayed += 1
            self._summary.substituted += decision.action is Action.SUBSTITUTE
            self._summary.bytes_read += played.size
            self._summary.seconds_saved += max(float(played.about.get("live_seconds", 0.0)) - took, 0.0)


def _dtype(entry: Any) -> str | None:
    if entry is None:
        return None
    return "objects" if entry["kind"] == "objects" else str(entry["dtype"])
