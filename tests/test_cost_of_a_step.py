"""A step costs the same on a long tape as on a short one: counted in what is asked of the storage."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape.policy import Mode, OnMiss, Policy, decide
from rolltape.tape.prefetch import DEEPEST
from tests.taping import Rollout, counted, record

SHORT, LONG = 20, 1000


@pytest.fixture
def tapes(tmp_path: Path) -> dict[int, Path]:
    """Two tapes, most steps of which are links to one recording: those that nobody reads."""
    for length in (SHORT, LONG):
        middle = length // 2
        read = {*range(12), *range(middle - 2, middle + 10), *range(length - 3, length)}
        record(tmp_path / str(length), sorted(read & {*range(length)}))
        first = tmp_path / str(length) / "train/rollout/step_000000.parquet"
        for step in {*range(length)} - read:
            os.link(first, first.with_name(f"step_{step:06d}.parquet"))
    return {length: tmp_path / str(length) for length in (SHORT, LONG)}


def cost(
    monkeypatch: Any, directory: Path, chosen: Callable[[int], list[int]], **options: Any
) -> Counter[str]:
    """What three steps ask of the storage, after two that may prepare something."""
    length = int(directory.name)
    with rolltape.Tape(directory, **options) as tape:
        rollout = Rollout(tape, inputs=False)  # the links were recorded for step 0
        first, *rest = chosen(length)
        rollout.run([first, rest[0]])
        tape.flush()
        settle(tape)
        with counted(monkeypatch) as counts:
            for step in rest[1:]:
                with tape.step(step):
                    rollout.generate(step)
                    tape.log({"loss": 1.0})
            tape.flush()
            settle(tape)
    return counts


def settle(tape: rolltape.Tape) -> None:
    prefetch = tape._dispatcher.player._ahead  # type: ignore[union-attr]
    for plan in list(prefetch._plans.values()) if prefetch else ():
        plan.exception()
    for ahead in list(prefetch._ahead.values()) if prefetch else ():
        ahead.exception()


def new(length: int) -> list[int]:
    return [length + 10 + step for step in range(5)]


def old(length: int) -> list[int]:
    return [length // 2 + step for step in range(5)]


def beyond(length: int) -> list[int]:
    return [10**6 + step for step in range(5)]


CASES: dict[str, tuple[Callable[[int], list[int]], dict[str, Any]]] = {
    "record": (new, {"mode": "record"}),
    "record, keeping": (old, {"mode": "record", "overwrite": "keep"}),
    "record, dropping": (new, {"mode": "record", "max_keep": 10**6, "pin_steps": "3"}),
    "rewrite": (old, {"mode": "rewrite"}),
    "replay": (old, {"mode": "replay"}),
    "replay, not ahead": (old, {"mode": "replay", "prefetch": False}),
    "auto, recorded": (old, {"mode": "auto"}),
    "auto, new": (new, {"mode": "auto"}),
    "cycle": (beyond, {"mode": "replay", "on_miss": "cycle"}),
    "last": (beyond, {"mode": "auto", "on_miss": "last"}),
    "nearest, in steps": (beyond, {"mode": "auto", "steps": "0-99999", "beyond": "nearest"}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_asks_the_same_of_a_long_tape(
    tapes: dict[int, Path], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr("rolltape.tape.prefetch.DEEPEST", 1)  # how far ahead depends on the moment
    chosen, options = CASES[case]
    short, long = (cost(monkeypatch, tapes[length], chosen, **options) for length in (SHORT, LONG))
    assert short == long
    assert not {"names", "entries", "folders", "listed"} & set(long), "no folder is listed"
    assert sum(long.values()) <= 3 * 16, long


def test_reading_as_far_ahead_as_it_goes_asks_no_more_of_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above, how far ahead is read is fixed; here it grows to its most, and nothing is asked for twice."""
    record(tmp_path / "t", range(40))
    monkeypatch.setattr("rolltape.tape.prefetch.WORTH_WAITING", -1.0)

    def replayed(deepest: int) -> Counter[str]:
        monkeypatch.setattr("rolltape.tape.prefetch.DEEPEST", deepest)
        with rolltape.Tape(tmp_path / "t", mode="replay") as tape, counted(monkeypatch) as counts:
            Rollout(tape).run(range(20))
            settle(tape)
        return counts

    near, far = replayed(1), replayed(DEEPEST)
    assert not {"names", "entries", "folders", "listed"} & set(far), "no folder is listed"
    for kind, count in far.items():
        assert count <= near[kind] * (20 + DEEPEST) / 20 + 1, kind
    assert sum(far.values()) > sum(near.values()), "it did read further ahead"


def test_dropping_old_steps_deletes_and_lists_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "5", range(5))
    counts = cost(monkeypatch, tmp_path / "5", new, mode="record", max_keep=4)
    assert counts["delete"] == 2 * 3, "a recording and its inputs for each step"
    assert not counts["listed"]


@pytest.mark.parametrize("mode", ["record", "auto", "replay"])
def test_opening_and_closing_a_recording_tape_lists_nothing(
    tapes: dict[int, Path], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    with counted(monkeypatch) as counts, rolltape.Tape(tapes[LONG], mode=mode):
        pass
    assert not counts["listed"]


def test_a_missing_step_is_explained_with_one_listing(
    tapes: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tapes[LONG]
    for split in ("val", "test"):
        (directory / split / "rollout").mkdir(parents=True, exist_ok=True)
    with rolltape.Tape(directory, mode="replay") as tape, counted(monkeypatch) as counts:
        with pytest.raises(rolltape.StepMissingError):
            Rollout(tape).run([10**9])
        assert counts["names"] == 1


class Recorded(list[int]):
    """A long list that counts how many of its elements are looked at."""

    looks = 0

    def __getitem__(self, at: Any) -> Any:
        self.looks += 1
        return super().__getitem__(at)

    def __iter__(self) -> Any:
        raise AssertionError("every element was looked at")

    def __contains__(self, step: object) -> bool:
        return False


@pytest.mark.parametrize("word", ["cycle", "last", "nearest"])
@pytest.mark.parametrize("steps", ["all", "0-49999", "500000-"])
def test_a_substitute_is_found_by_bisection(word: str, steps: str) -> None:
    recorded = Recorded(range(100_000))
    policy = Policy(Mode.REPLAY, OnMiss(word), rolltape.StepSelector.parse(steps), OnMiss(word))
    assert decide(700_000, recorded, policy).source is not None
    assert recorded.looks < 100


def test_the_summary_of_a_long_replay_lists_each_stage_once(
    tapes: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with rolltape.Tape(tapes[LONG], mode="replay") as tape:
        Rollout(tape, inputs=False).run(range(3))
        with counted(monkeypatch) as counts:
            assert len(tape.close().never_played) >= LONG - 3
            tape.summary()
    assert counts["names"] == 1
