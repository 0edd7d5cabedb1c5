"""Rounds of the slow tests run one after the other, and `make soak` ends when its time is over.

The conftest.py of a folder that has such tests imports all of this.
"""

from __future__ import annotations

import time

import pytest

from tests.slow import soak

__all__ = ["pytest_collection_modifyitems", "pytest_report_header", "pytest_runtest_setup"]

STARTED = time.monotonic()


def round_of(item: pytest.Item) -> int:
    return item.callspec.params.get("soak_round", soak.FIRST) if hasattr(item, "callspec") else soak.FIRST


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of a round before any of the next; this also gets the tests of other folders, in place."""
    items.sort(key=round_of)


def pytest_report_header() -> str | None:
    if not soak.SOAKING:
        return None
    rounds, limit = f"rounds {soak.ROUNDS[0]} to {soak.ROUNDS[-1]}", f"{soak.MINUTES:g} minutes"
    return f"soak: {rounds}, none begins after {limit}; to repeat round 7: make soak SEED=7 ROUNDS=1"


def pytest_runtest_setup(item: pytest.Item) -> None:
    late = time.monotonic() - STARTED > 60 * soak.MINUTES
    if late and round_of(item) != soak.FIRST:
        pytest.skip(f"{soak.MINUTES:g} minutes are over")
