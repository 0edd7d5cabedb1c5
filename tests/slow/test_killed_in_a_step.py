"""kill -9 in the middle of a step: what had finished a second before is not generated again, and the run
gives what one gives that was never killed.

A round has five kills, each at a random moment; `make soak` has twenty rounds.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import rolltape
from rolltape import random_state
from rolltape.reader.integrity import inspect
from rolltape.storage import storage_at
from tests.exact import assert_same
from tests.slow import killed_sampler as sampler
from tests.slow.soak import each_round
from tests.slow.starving import Starving
from tests.taping import ROOT

KILLS = 5
SAFE = 1.0
"""Seconds after which a sample that has finished is on the tape; those in which the process could not run, or
the disk had not answered, do not count."""


def never_killed(directory: Path, variant: str) -> list[list[dict[str, object]]]:
    """What a run gives that is left alone; it takes no time to sample."""
    state = random_state.capture()
    try:
        with rolltape.Tape(directory, mode="record") as tape:
            return sampler.Sampler(tape, variant, lambda line: None, 0.0).run()
    finally:
        random_state.restore(state)


class Run:
    """A run that is killed and begun again until it ends."""

    def __init__(self, tape: Path, variant: str, world: int = 1) -> None:
        self.tape, self._variant, self._world = tape, variant, world
        self.kills: list[float] = []
        self._starving: dict[float, list[Starving]] = {}

    def log(self, rank: int) -> Path:
        return self.tape.with_name(f"{self.tape.name}.{rank}.log")

    def begin(self, *where: str) -> list[subprocess.Popen[bytes]]:
        path = os.pathsep.join([str(Path(rolltape.__file__).parents[1]), str(ROOT)])
        return [
            subprocess.Popen(
                [sys.executable, sampler.__file__, self.tape, self.log(rank), self._variant, str(rank),
                 str(self._world), *where],
                env={**os.environ, "PYTHONPATH": path},
            )
            for rank in range(self._world)
        ]  # fmt: skip

    def kill(self, after: float) -> bool:
        """Run for so long after the first sample was there, and be killed; False if it had ended by then."""
        processes = self.begin()
        until = time.monotonic() + 60
        for rank in range(self._world):  # on a slow machine a time alone would hit nothing but the start
            before = self.lines(rank, "done")
            while processes[rank].poll() is None and self.lines(rank, "done") == before:
                assert time.monotonic() < until, "nothing is sampled"
                time.sleep(0.01)
        starving = [Starving(process.pid) for process in processes]
        until = time.monotonic() + after
        while time.monotonic() < until:
            for one in starving:
                one.sample()
            time.sleep(0.02)
        for one in starving:
            one.sample()
        alive = all(process.poll() is None for process in processes)
        self.kills.append(time.monotonic())
        self._starving[self.kills[-1]] = starving
        for process in processes:
            process.send_signal(signal.SIGKILL)
        for process in processes:
            process.wait()
        if not alive:
            self.kills.pop()
        return alive

    def finish(self) -> None:
        for process in self.begin():
            assert process.wait() == 0

    def lines(self, rank: int, kind: str) -> list[list[str]]:
        text = self.log(rank).read_text() if self.log(rank).exists() else ""
        return [line.split() for line in text.splitlines() if line.startswith(f"{kind} ")]

    def _taken_over(self, rank: int) -> int:
        """How many samples an attempt had without beginning them."""
        count, begun = 0, set()
        for line in self.log(rank).read_text().splitlines():
            kind, *what, _ = line.split()
            if kind == "begun":
                begun = set()
            elif kind == "begin":
                begun.add(tuple(what))
            elif kind == "done":
                count += tuple(what) not in begun
        return count

    def _syncing(self, rank: int, since: float, kill: float) -> float:
        """For how long of this time the disk was waited for, by one thread or several."""
        asked = [(float(line[1]), 1) for line in self.lines(rank, "sync")]
        answered = [(float(line[1]), -1) for line in self.lines(rank, "synced")]
        moments = sorted(one for one in asked + answered if since <= one[0] <= kill)
        waited, waiting, last = 0.0, 0, since
        for moment, change in [*moments, (kill, 0)]:
            waited += (moment - last) * (waiting > 0)
            waiting, last = max(waiting + change, 0), moment
        return waited

    def check(self) -> Counter[str]:
        """Nothing is begun again that had finished a second before a kill, or of which the step was over."""
        counted: Counter[str] = Counter()
        for rank in range(self._world):
            begun: dict[tuple[str, str], list[float]] = {}
            for _, step, at, when in self.lines(rank, "begin"):
                begun.setdefault((step, at), []).append(float(when))
            for _, step, at, when in self.lines(rank, "done"):
                kill = next((one for one in self.kills if one > float(when)), 0.0)  # what ended that attempt
                waited = self._starving[kill][rank].since(float(when)) if kill in self._starving else 0.0
                waited += self._syncing(rank, float(when), kill)
                if float(when) + SAFE + waited < kill:
                    again = [time for time in begun[step, at] if time > kill]
                    assert not again, f"rank {rank}: sample {at} of step {step} was made again"
                    counted["finished a second before a kill"] += 1
            counted["begun"] += sum(map(len, begun.values()))
            counted["begun again"] += sum(len(times) - 1 for times in begun.values())
            counted["not made again"] += self._taken_over(rank)
        return counted


def check_tape(run: Run, expected: list[list[dict[str, object]]], world: int = 1) -> None:
    """All that was made is on the tape, as if the run had never been killed, and nothing else is."""
    for rank in range(world):
        with rolltape.Tape(run.tape, mode="replay", rank=rank, world_size=world) as tape:
            for step, wanted in enumerate(expected):
                assert_same(tape.recording(step).value(), wanted)
    storage = storage_at(run.tape)
    assert [stat.name for stat in storage.everything() if stat.name.startswith("samples.open")] == []
    assert inspect(storage).findings == []


@each_round
def test_what_had_finished_is_not_made_again(soak_round: int, tmp_path: Path) -> None:
    rng = random.Random(soak_round)
    counted: Counter[str] = Counter()
    killed = tapes = 0
    while killed < KILLS:
        variant = sampler.VARIANTS[(soak_round + tapes) % len(sampler.VARIANTS)]
        expected = never_killed(tmp_path / f"left alone {tapes}", variant)
        run = Run(tmp_path / f"tape{tapes}", variant)
        tapes += 1
        for _ in range(rng.randint(1, KILLS - killed)):
            killed += run.kill(rng.uniform(0.0, 3.5))
        run.finish()
        counted += run.check()
        check_tape(run, expected)
    print(f"{killed} kills of {tapes} runs: {dict(counted)}")
    assert counted["not made again"]


@each_round
def test_ranks_that_are_killed_together(soak_round: int, tmp_path: Path) -> None:
    rng = random.Random(soak_round)
    expected = never_killed(tmp_path / "left alone", "threads")
    run = Run(tmp_path / "tape", "threads", world=2)
    run.kill(rng.uniform(1.2, 2.5))
    run.finish()
    print(dict(run.check()))
    check_tape(run, expected, world=2)


@pytest.mark.parametrize("where", ["publish step", "published step", "deleting", "half deleted", "deleted"])
def test_killed_while_the_step_itself_is_recorded(tmp_path: Path, where: str) -> None:
    expected = never_killed(tmp_path / "left alone", "loop")
    run = Run(tmp_path / "tape", "loop")
    for _ in range(2):  # twice in a row: at the same step, or at the next one
        (process,) = run.begin(where)
        assert process.wait() == -signal.SIGKILL
        run.kills.append(time.monotonic())
    run.finish()
    run.check()
    again = [line for line in run.lines(0, "begin") if line[1] == "0" and float(line[3]) > run.kills[0]]
    assert not again or where == "publish step", "step 0 is on the tape"
    check_tape(run, expected)
