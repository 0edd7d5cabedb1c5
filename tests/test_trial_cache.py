"""The results of trials that are kept: what is none of ours is as good as not there, and not waited for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolltape.bisecting.trial import Outcome, Trial
from rolltape.bisecting.trial_cache import TrialCache, key_of

KEY = key_of(["a"], ["b"])
TRIAL = Trial(Outcome.DIVERGES, "step 3", 1.5, 3, "loss/log_probs", ("x",), ("y",), "printed", 2)


def with_other(**said: Any) -> Callable[[Path], Any]:
    return lambda file: file.write_text(json.dumps(TRIAL.to_json() | said))


def holes(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(2**42)


def linked(file: Path) -> None:
    other = file.with_name("other")
    os.rename(file, other)
    file.symlink_to(other)


def in_its_place(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def act(file: Path) -> None:
        file.unlink()
        make(file)

    return act


PLANTED: dict[str, Callable[[Path], Any]] = {
    "a pipe": in_its_place(os.mkfifo),
    "a folder": in_its_place(Path.mkdir),
    "a link to a device": in_its_place(lambda file: file.symlink_to("/dev/zero")),
    "a link": linked,
    "holes": holes,
    "deep": lambda file: file.write_text("[" * 100_000),
    "a number of 6,000 digits": lambda file: file.write_text('{"step":' + "9" * 6000 + "}"),
    "no text": lambda file: file.write_bytes(b"\xff\xfe"),
    "a reason of no text": with_other(why=["x"]),
    "causes of no text": with_other(causes=[{"a": 1}]),
    "causes that are a text": with_other(causes=5),
    "a step of no number": with_other(step="3"),
    "a path of no text": with_other(path=7),
    "seconds of no number": with_other(seconds="1"),
    "a run of no number": with_other(run=None),
    "an unknown outcome": with_other(outcome="executed"),
    "a limit of no number": with_other(limit=[]),
    "something besides": with_other(extra=1),
    "output of no text": with_other(output=None),
}


def test_what_was_kept_is_found(tmp_path: Path) -> None:
    TrialCache(tmp_path).put(KEY, TRIAL)
    assert TrialCache(tmp_path).get(KEY, None) == TRIAL


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_what_is_no_result_is_not_there(tmp_path: Path, plant: Callable[[Path], Any]) -> None:
    cache = TrialCache(tmp_path)
    cache.put(KEY, TRIAL)
    plant(cache.folder / f"{KEY}.json")
    assert cache.get(KEY, None) is None
    if plant is not PLANTED["a folder"]:
        cache.put(KEY, TRIAL)
        assert cache.get(KEY, None) == TRIAL
