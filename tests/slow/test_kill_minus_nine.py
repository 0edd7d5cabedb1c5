"""kill -9 at any moment: each visible step is whole and right, none is lost, and recording can go on.

In a round 500 recorders are killed, each after a random time. Tapes live for several of them, so that the
kills also hit steps being replaced, tapes being opened, and tapes that earlier kills have left behind.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rolltape
from tests.fixtures.exact import digest
from tests.slow import killed_recorder as recorder
from tests.slow.soak import each_round

KILLS = 500
PER_TAPE = 5
CHUNKS = 5
MARKS = 7
LONGEST = 0.02
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

    def kill_one(self, tape: Path, seed: int, number: int, marks: int, delay: float) -> list[list[int]]:
        """Let one record for a while and kill it; what it had flushed by then."""
        print(tape, seed, number, marks, delay, file=self._server.stdin, flush=True)
        answer = json.loads(self._server.stdout.readline())
        assert answer["killed"], "the recorder ended by itself"
        return answer["kept"]

    def close(self) -> None:
        self._server.communicate()


@pytest.fixture(scope="module")
def recorders() -> Iterator[Recorders]:
    found = Recorders()
    yield found
    found.close()


class Witness:
    """Knows what was on a tape before, and holds what is on it now against that."""

    def __init__(self, tape: Path, seed: int, phases: Counter[str]) -> None:
        self._dir = tape
        self._seed = seed
        self._phases = phases
        self._seen: dict[tuple[str, int], int] = {}
        """By stage and step, the pass that was found there."""

    @property
    def newest(self) -> int:
        return max(self._seen.values(), default=-1)

    def look(self, kept: list[list[int]]) -> None:
        """Check everything after a kill."""
        self._phases["left a temporary file"] += bool(self._temporary())
        if not (self._dir / "tape.json").exists():
            self._phases["killed before the tape was one"] += 1
            assert not self._seen
            assert not kept
        with rolltape.Tape(self._dir, mode="auto") as tape:
            assert not self._temporary(), "what a dead writer left is cleaned on opening"
            found = {(item.key.stage, item.key.step): self._check(tape, item) for item in tape.recordings()}
            self._check_metrics(tape.metrics(), found)
        self._check_history(found, kept)
        self._check_files(set(found))
        self._seen = found

    def _temporary(self) -> list[Path]:
        return list((self._dir / ".tmp").glob("*.tmp"))

    def _check(self, tape: rolltape.Tape, recording: rolltape.Recording) -> int:
        """One recording is what some pass recorded, as a whole; which pass."""
        recording.verify()
        value, step = recording.value(), recording.key.step
        number = value["pass"]
        batch = recorder.rollout(self._seed, step, number)
        rollout = recording.key.stage == "rollout"
        assert digest(value) == digest(batch if rollout else recorder.reward(batch))
        if rollout:
            self._check_inputs(tape.recording(step, inputs=True), recording, number)
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
        files = {str(path.relative_to(self._dir)) for path in self._dir.rglob("*") if path.is_file()}
        early = {f"train/rollout/step_{step:06d}.in.parquet" for step in range(recorder.STEPS)}
        assert files - expected <= {"train/metrics.jsonl", *early}  # inputs go first: one may be alone
        assert expected <= files


def chunk(seed: int, folder: Path, recorders: Recorders) -> Counter[str]:
    """A share of all kills, from one seed."""
    rng = random.Random(seed)
    phases: Counter[str] = Counter()
    for round_ in range(KILLS // CHUNKS // PER_TAPE):
        tape = folder / f"tape{round_}"
        content = rng.randrange(2**31)
        witness = Witness(tape, content, phases)
        for _ in range(PER_TAPE):
            number, marks, delay = (
                witness.newest + rng.randint(1, 4),
                rng.randint(0, MARKS),
                rng.uniform(0, LONGEST),
            )
            print(f"seed {seed}: {tape} {content} {number} {marks} {delay:.6f}")
            witness.look(recorders.kill_one(tape, content, number, marks, delay))
            phases["kills"] += 1
    return phases


@each_round
@pytest.mark.parametrize("part", range(CHUNKS))
def test_a_killed_recorder_leaves_whole_steps_only(
    soak_round: int, part: int, tmp_path: Path, recorders: Recorders
) -> None:
    phases = chunk(CHUNKS * soak_round + part, tmp_path, recorders)
    print(dict(phases))
    wanted = ("left a temporary file", "recorded nothing", "recorded a step", "replaced a step")
    assert all(phases[phase] for phase in wanted), phases
