"""kill -9 while recording to S3: what was flushed is in the store after the next run, and nothing is half.

The kills of `make soak` are 500 in a round; `make test` has a sample of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slow.killing import Recorders, kill_many
from tests.slow.soak import SOAKING, each_round

PARTS, KILLS = (5, 500) if SOAKING else (1, 50)
LONGEST = 0.15
WANTED = {"left something behind", "recorded a step", "replaced a step"}
TRIES = 3
"""On a busy machine few kills hit what is under way: then as many again."""


@pytest.fixture
def recorders(s3_url: str) -> Iterator[Recorders]:
    """Started when the environment leads to the server."""
    found = Recorders()
    yield found
    found.close()


@each_round
@pytest.mark.parametrize("part", range(PARTS))
def test_a_killed_recorder_leaves_whole_steps_only_and_loses_none(
    soak_round: int, part: int, s3_url: str, recorders: Recorders
) -> None:
    phases: Counter[str] = Counter()
    for again in range(TRIES):
        seed = PARTS * soak_round + part + 10_000 * again
        phases += kill_many(seed, f"{s3_url}/{again}", KILLS // PARTS, LONGEST, recorders)
        if phases.keys() >= WANTED:
            break
    assert phases.keys() >= WANTED, phases
    tapes = [path for path in Path(os.environ["ROLLTAPE_SPOOL"]).iterdir() if path.is_dir()]
    assert not [entry for tape in tapes for entry in tape.rglob("*.entry")]
