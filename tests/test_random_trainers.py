"""Trainers of many kinds: the same run replays without a word, another one is refused by name."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rolltape import MismatchError, StepMissingError
from tests.taping import same
from tests.trainers import KINDS, Trainer

WORDS = "why is the sky blue and how far away are all of those small stars at night".split()


def prompts(step: int, rank: int) -> list[str]:
    return [f"{word} {step}.{rank}" for word in WORDS[step : step + 4]]


@pytest.mark.parametrize("number", range(24))
def test_the_same_run_replays_without_an_alarm(
    tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer.numbered(number)
    recorded = trainer.run(tmp_path / "t", "record", prompts)
    replayed = trainer.run(tmp_path / "t", "replay", prompts)
    assert same(recorded, replayed)
    alarms = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert all("uid" in alarm for alarm in alarms), "only what is random in every run"


OTHER_RUNS = {
    "prompts": lambda step, rank: [one.upper() for one in prompts(step, rank)],
    "one prompt": lambda step, rank: [*prompts(step, rank)[:-1], "another"],
    "batch size": lambda step, rank: prompts(step, rank) * 2 + ["one more"],
    "order": lambda step, rank: prompts(step, rank)[::-1],
    "smaller batch": lambda step, rank: prompts(step, rank)[:-1],
    "a single prompt": lambda step, rank: prompts(step, rank)[2:3],
}


@pytest.mark.parametrize("what", [*OTHER_RUNS, "model"])
@pytest.mark.parametrize("number", range(24))
def test_another_run_is_refused_by_name(tmp_path: Path, number: int, what: str) -> None:
    trainer = Trainer.numbered(number)
    trainer.run(tmp_path / "t", "record", prompts)
    other, model = OTHER_RUNS.get(what, prompts), "large" if what == "model" else "small"
    if trainer.is_keyed and what == "smaller batch":  # every call is the same, and one is not made
        with pytest.raises(MismatchError, match=r"calls: recorded 4 of stage .* never 'request-3'"):
            trainer.run(tmp_path / "t", "replay", other)
        return
    if trainer.is_keyed and what == "batch size":  # the first calls are the same, the next is not recorded
        with pytest.raises(StepMissingError, match="request-4"):
            trainer.run(tmp_path / "t", "replay", other)
        return
    with pytest.raises(MismatchError) as caught:
        trainer.run(tmp_path / "t", "replay", other, model=model)
    message, name = str(caught.value), "model" if what == "model" else "batch"
    assert f"`{name}" in message or f"`options.{name}" in message, message


def test_they_are_of_all_kinds() -> None:
    trainers = [Trainer.numbered(number) for number in range(24)]
    assert {one.kind for one in trainers} == set(KINDS)
    for of in ("is_async", "is_keyed", "is_method", "scores"):
        assert {getattr(one, of) for one in trainers} == {True, False}, of
    assert {one.ranks for one in trainers} == {1, 2, 3}
    assert any(one.is_async and one.is_keyed and one.ranks > 1 for one in trainers)
    assert any(not one.is_async and one.is_keyed and one.ranks > 1 for one in trainers)
