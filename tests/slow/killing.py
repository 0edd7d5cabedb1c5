"""Recorders that are killed, and a witness who knows what must be on their tapes, wherever those are kept.

Tapes live for several kills, so that these also hit steps being replaced, tapes being opened, and tapes that
earlier kills have left behind.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import rolltape
from rolltape.reader.integrity import inspect
from rolltape.storage import Spool, Storage
from rolltape.storage.locating import is_url, storage_at
from tests.fixtures.exact import digest
from tests.slow import killed_recorder as recorder

PER_TAPE = 5
MARKS = 7
ROOT = Path(__file__).resolve().parents[2]


class Recorders:
    """The process that forks recorders and kills them."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(Path(rolltape.__file__).parents[1]), str(ROOT)])
        self._server = subprocess.Popen(
            [sys.executable, recorder.__file__],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def kill_one(self, tape: str, seed: int, number: int, marks: int, delay: float) -> list[list[int]]:
        """Let one record for a while and kill it; what it had flushed by then."""
        print(tape, seed, number, marks, delay, file=self._server.stdin, flush=True)
        answer = json.loads(self._server.stdout.readline())
        assert answer["killed"], "the recorder ended by itself"
        return answer["kept"]

    def close(self) -> None:
        self._server.communicate()


class Witness:
    """Knows what was on a tape before, and holds what is on it now against that."""

    def __init__(self, tape: str, seed: int, phases: Counter[str]) -> None:
        self._place = tape
        self._storage = storage_at(tape)
        self._seed = seed
        self._phases = phases
        self._seen: dict[tuple[str, int], int] = {}
        """By stage and step, the pass that was found there."""

    @property
    def newest(self) -> int:
        return max(self._seen.values(), default=-1)

    def look(self, kept: list[list[int]]) -> None:
        """Check everything after a kill."""
        left = left_behind(self._storage)
        self._phases["left something behind"] += bool(left)
        if not self._storage.exists("tape.json"):
            self._phases["killed before the tape was one"] += 1
            assert not self._seen
            assert not kept
        elif left:
            self._look_from_afar()
        with rolltape.Tape(self._place, mode="auto") as tape:
            unfinished = self._storage.unfinished(0)
            assert [*unfinished.stale, unfinished.live] == [0], "what dead writers left is cleaned on opening"
        assert not left_behind(self._storage), "what it had not brought to the store is there now"
        with rolltape.Tape(self._place, mode="replay") as tape:
            found = {(item.key.stage, item.key.step): self._check(tape, item) for item in tape.recordings()}
            self._check_metrics(tape.metrics(), found)
        self._check_history(found, kept)
        self._check_files(set(found))
        self._seen = found

    def check(self) -> None:
        """What ``rolltape check`` says: at most that inputs are alone, since they go first."""
        report = inspect(self._storage)
        assert [finding for finding in report.findings if finding.kind != "leftover"] == []
        assert (report.leftovers, report.in_progress) == ([], 0)

    def _look_from_afar(self) -> None:
        """Who does not have what was left behind, on another machine: what they see is whole all the same."""
        run = rolltape.open(self._place)
        for recording in run.recordings():
            self._check_content(recording)

    def _check(self, tape: rolltape.Tape, recording: rolltape.Recording) -> int:
        """One recording, and what it was made of; which pass it is."""
        number = self._check_content(recording)
        if recording.key.stage == "rollout":
            self._check_inputs(tape.recording(recording.key.step, inputs=True), recording, number)
        return number

    def _check_content(self, recording: rolltape.Recording) -> int:
        """One recording is what some pass recorded, as a whole; which pass."""
        recording.verify()
        value = recording.value()
        number = value["pass"]
        batch = recorder.rollout(self._seed, recording.key.step, number)
        rollout = recording.key.stage == "rollout"
        assert digest(value) == digest(batch if rollout else recorder.reward(batch))
        return number

    def _check_inputs(self, inputs: rolltape.Recording, result: rolltape.Recording, number: int) -> None:
        given = inputs.value()
        step, found = result.key.step, given["given"]["pass"]
        expected = {"given": recorder.prompts(self._seed, step, found), "step": step}
        assert digest(given) == digest(expected)
        # Two files cannot be replaced at once. Inputs go first, so those of the next pass may be there;
        # the digest in the result tells.
        belong = inputs.about["inputs"] == result.about["inputs"]
        assert belong == (found == number)
        assert found >= number
        self._phases["killed between inputs and result"] += not belong

    def _check_metrics(self, logged: dict[int, dict[str, Any]], found: dict[tuple[str, int], int]) -> None:
        for step, values in logged.items():
            assert digest(values) == digest(recorder.metrics(self._seed, step, values["pass"]))
            assert values["pass"] <= found["rollout", step], "metrics are written after the result"

    def _check_history(self, found: dict[tuple[str, int], int], kept: list[list[int]]) -> None:
        for key, number in self._seen.items():
            assert found[key] >= number, "what was there stays, or is replaced by something newer"
        for step, rollout, reward in kept:
            assert found["rollout", step] >= rollout, "what was flushed is there"
            assert found["reward", step] >= reward, "what was flushed is there"
        new = {key for key in found if found[key] != self._seen.get(key)}
        self._phases["recorded nothing"] += not new
        self._phases["recorded a step"] += bool(new)
        self._phases["replaced a step"] += bool(new & set(self._seen))
        self._phases["killed between two stages"] += any(("reward", step) not in found for _, step in found)

    def _check_files(self, found: set[tuple[str, int]]) -> None:
        """Nothing is visible that is not a recording, its inputs, the metrics or the tape itself."""
        expected = {"tape.json"} | {f"train/{stage}/step_{step:06d}.parquet" for stage, step in found}
        expected |= {
            f"train/rollout/step_{step:06d}.in.parquet" for stage, step in found if stage == "rollout"
        }
        files = {stat.name for stat in self._storage.everything()}
        early = {f"train/rollout/step_{step:06d}.in.parquet" for step in range(recorder.STEPS)}
        assert files - expected <= {"train/metrics.jsonl", *early}  # inputs go first: one may be alone
        assert expected <= files


def left_behind(storage: Storage) -> list[str]:
    """What a dead writer has left: files half-written, and what waits for an object store on this machine."""
    waiting = Spool(os.environ["ROLLTAPE_SPOOL"], 0).waiting() if is_url(storage.location) else {}
    return [*storage.unfinished(0).stale, *(url for url in waiting if url == storage.location)]


def kill_many(seed: int, folder: str, kills: int, longest: float, recorders: Recorders) -> Counter[str]:
    """Kill so many recorders, each ``longest`` seconds or less after a mark, from one seed."""
    rng = random.Random(seed)
    phases: Counter[str] = Counter()
    for round_ in range(kills // PER_TAPE):
        tape = f"{folder}/tape{round_}"
        content = rng.randrange(2**31)
        witness = Witness(tape, content, phases)
        for _ in range(PER_TAPE):
            number, marks, delay = (
                witness.newest + rng.randint(1, 4),
                rng.randint(0, MARKS),
                rng.uniform(0, longest),
            )
            print(f"seed {seed}: {tape} {content} {number} {marks} {delay:.6f}")
            witness.look(recorders.kill_one(tape, content, number, marks, delay))
            phases["kills"] += 1
        witness.check()
    print(dict(phases))
    return phases
