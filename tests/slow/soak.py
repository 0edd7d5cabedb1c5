"""How far the slow tests go: one round in `make test`, as many as asked for in `make soak`.

    ROLLTAPE_SOAK_ROUNDS     so many rounds (1)
    ROLLTAPE_SOAK_SEED       the number of the first one (0)
    ROLLTAPE_SOAK_MINUTES    no other round than the first begins later than that (no limit)

All that is random in a round is drawn from its number, so a round that failed can be had again by itself.
"""

from __future__ import annotations

import os
import random

import pytest

FIRST = int(os.environ.get("ROLLTAPE_SOAK_SEED") or 0)
ROUNDS = range(FIRST, FIRST + int(os.environ.get("ROLLTAPE_SOAK_ROUNDS") or 1))
MINUTES = float(os.environ.get("ROLLTAPE_SOAK_MINUTES") or "inf")
SOAKING = "ROLLTAPE_SOAK_ROUNDS" in os.environ
"""Whether this is `make soak`: what is left out of a sample is done then."""

each_round = pytest.mark.parametrize("soak_round", ROUNDS, ids=[f"round{number}" for number in ROUNDS])
"""For tests that take a ``soak_round``."""


def draw(*about: object) -> random.Random:
    """Random numbers that depend on nothing but this."""
    return random.Random(" ".join(map(str, about)))
