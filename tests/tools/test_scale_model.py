"""The model of docs/scale.md is what a simulated store sees, and the page has its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.scale_model import Run, Store, call_seconds, looking, recording, tables
from benchmarks.scale_simulation import simulate

ROOT = Path(__file__).resolve().parents[2]
NO_LIMITS = {"writes_per_second": 1e9, "reads_per_second": 1e9}


@pytest.mark.parametrize("ranks", [64, 256, 1024])
@pytest.mark.parametrize(("spread", "latency"), [(1.0, 0.02), (0.2, 0.02), (10.0, 0.02), (1.0, 0.001)])
def test_without_throttling_the_model_is_within_five_percent(
    ranks: int, spread: float, latency: float
) -> None:
    store = Store(latency=latency, **NO_LIMITS)
    seen = simulate(ranks, spread, store, calls=10)
    assert seen.heads == 2 * ranks
    found = looking(ranks, spread, latency)
    assert seen.puts == pytest.approx(ranks + found.puts, rel=0.05)
    assert seen.gets == pytest.approx(found.gets, rel=0.05)
    assert seen.lists == pytest.approx(found.lists, rel=0.05)
    assert seen.seconds == pytest.approx(call_seconds(ranks, spread, store), rel=0.05)
    assert seen.refused == 0


@pytest.mark.parametrize(("writes", "reads"), [(30, 150), (20, 1e9), (1e9, 100), (50, 200)])
def test_under_throttling_the_time_is_within_a_factor_of_two(writes: float, reads: float) -> None:
    store = Store(writes_per_second=writes, reads_per_second=reads)
    seen = simulate(64, 1.0, store, calls=10)
    assert seen.refused > 0
    assert 0.5 < seen.seconds / call_seconds(64, 1.0, store) < 2


def test_the_same_seed_simulates_the_same() -> None:
    assert simulate(32, 1.0, Store(), seed=1) == simulate(32, 1.0, Store(), seed=1)
    assert simulate(32, 1.0, Store(), seed=1) != simulate(32, 1.0, Store(), seed=2)


def test_one_rank_looks_for_nobody() -> None:
    cost = recording(Run(ranks=1, steps=10, stages=5), Store())
    assert (cost.gets, cost.puts, cost.heads) == (0, 60, 50)


def test_the_page_has_the_figures_of_the_model() -> None:
    page = (ROOT / "docs/scale.md").read_text()
    for table in tables().split("\n\n"):
        assert table in page, "put in what this prints: python -m benchmarks.scale_model"
