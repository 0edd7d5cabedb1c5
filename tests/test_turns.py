"""Threads take short turns at the interpreter while recordings are read ahead, and long ones afterwards."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rolltape
from rolltape.tape.turns import TURN, short_turns

LONG = 0.004


@pytest.fixture(autouse=True)
def long_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(LONG)
    yield
    sys.setswitchinterval(before)


def turn() -> float:
    return pytest.approx(sys.getswitchinterval(), rel=1e-3)


def test_short_while_anybody_reads() -> None:
    with short_turns():
        assert turn() == TURN
        with short_turns():
            assert turn() == TURN
        assert turn() == TURN
    assert turn() == LONG


def test_long_again_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), short_turns():
        1 / 0  # noqa: B018
    assert turn() == LONG


def test_what_the_program_asks_for_meanwhile_stays() -> None:
    with short_turns():
        sys.setswitchinterval(0.02)
    assert turn() == 0.02


def test_turns_that_are_shorter_stay() -> None:
    sys.setswitchinterval(TURN / 2)
    with short_turns():
        assert turn() == TURN / 2
    assert turn() == TURN / 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_has_long_ones() -> None:
    with short_turns():
        child = os.fork()
        if child == 0:
            long = abs(sys.getswitchinterval() - LONG) < 1e-5
            with short_turns():
                short = abs(sys.getswitchinterval() - TURN) < 1e-5
            os._exit(0 if long and short and abs(sys.getswitchinterval() - LONG) < 1e-5 else 1)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_has_what_the_program_asked_for_meanwhile() -> None:
    with short_turns():
        sys.setswitchinterval(0.02)
        child = os.fork()
        if child == 0:
            os._exit(0 if abs(sys.getswitchinterval() - 0.02) < 1e-5 else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_many_threads() -> None:
    def work() -> None:
        for _ in range(200):
            with short_turns():
                pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert turn() == LONG


def test_a_replay_that_reads_ahead_leaves_them_as_they_were(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        rollout = tape.stage("rollout", inputs=False)(lambda: {"x": np.ones((4, 1000))})
        for step in range(4):
            with tape.step(step):
                rollout()
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        rollout = tape.stage("rollout", inputs=False)(lambda: None)
        for step in range(4):
            with tape.step(step):
                rollout()
    assert turn() == LONG
