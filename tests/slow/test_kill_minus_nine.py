"""kill -9 at any moment: each visible step is whole and right, none is lost, and recording can go on.

In a round 500 recorders are killed, each after a random time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slow.killing import Recorders, kill_many
from tests.slow.soak import each_round

KILLS = 500
CHUNKS = 5
LONGEST = 0.02


@pytest.fixture(scope="module")
def recorders() -> Iterator[Recorders]:
    found = Recorders()
    yield found
    found.close()


@each_round
@pytest.mark.parametrize("part", range(CHUNKS))
def test_a_killed_recorder_leaves_whole_steps_only(
    soak_round: int, part: int, tmp_path: Path, recorders: Recorders
) -> None:
    phases = kill_many(CHUNKS * soak_round + part, str(tmp_path), KILLS // CHUNKS, LONGEST, recorders)
    wanted = ("left something behind", "recorded nothing", "recorded a step", "replaced a step")
    assert all(phases[phase] for phase in wanted), phases
