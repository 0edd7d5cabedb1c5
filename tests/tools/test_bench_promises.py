"""`make bench` fails if a promise is not kept, and says which, by how much, and where it is made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as bench
from benchmarks.promises import PROMISES, Figure, Promise, Verdict, judge
from benchmarks.report import Part

ROOT = Path(__file__).resolve().parents[2]
AT_LEAST = Promise("small", "times faster", ">=", 3, "README.md")
AT_MOST = Promise("small", "seconds", "<=", 3, "README.md")


@pytest.mark.parametrize(
    ("promise", "value", "kept"),
    [(AT_LEAST, 3, True), (AT_LEAST, 2.99, False), (AT_MOST, 3, True), (AT_MOST, 3.01, False)],
)
def test_a_bound_is_kept_when_it_is_reached(promise: Promise, value: float, kept: bool) -> None:
    assert Verdict(promise, Figure(value)).kept is kept


@pytest.mark.parametrize(
    ("fastest", "median", "said"),
    [(3, 3.5, "reached"), (3, 2.9, "in the fastest rounds"), (2.9, 3.5, "not reached"), (3, None, "reached")],
)
def test_an_aim_is_reached_where_the_medians_reach_it_too(
    fastest: float, median: float | None, said: str
) -> None:
    promise = Promise("small", "times faster", ">=", 2, "README.md", aim=3)
    assert Verdict(promise, Figure(fastest, median)).aim == f">= 3 {said}"
    assert Verdict(AT_LEAST, Figure(fastest, median)).aim == ""


def test_an_aim_is_not_below_the_promise() -> None:
    for promise in PROMISES:
        assert promise.aim is None or Verdict(promise, Figure(promise.aim)).kept


def test_not_a_number_keeps_no_promise() -> None:
    assert not Verdict(AT_LEAST, Figure(float("nan"))).kept
    assert not Verdict(AT_MOST, Figure(float("nan"))).kept


def test_a_promise_that_was_not_measured_is_an_error() -> None:
    with pytest.raises(KeyError, match="smaller than pickle"):
        judge("large", {})


def figures(part: str, factor: float) -> dict[str, Figure]:
    """What just keeps all promises about a part; a factor above 1 misses them all."""
    return {
        promise.figure: Figure(
            promise.bound / factor if promise.sign == ">=" else promise.bound * factor, 7.0
        )
        for promise in PROMISES
        if promise.part == part
    }


@pytest.mark.parametrize("part", bench.PARTS)
def test_a_missed_promise_fails_the_run_and_is_named(
    part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setitem(bench.PARTS, part, lambda folder, rounds: Part(figures(part, 1.0)))
    assert bench.main(["--only", part]) == 0
    wanted = [promise for promise in PROMISES if promise.part == part]
    assert f"all {len(wanted)} promises kept" in capsys.readouterr().out
    monkeypatch.setitem(bench.PARTS, part, lambda folder, rounds: Part(figures(part, 1.5)))
    assert bench.main(["--only", part, "--json", str(tmp_path / "found.json")]) == 1
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("missed: ")]
    assert len(said) == len(wanted) > 0
    for line, promise in zip(said, wanted, strict=True):
        assert line.startswith(f"missed: {part}: {promise.figure}: ")
        assert line.endswith(f"(median 7), promised {promise.sign} {promise.bound:.3g} in {promise.made_in}")
    found = json.loads((tmp_path / "found.json").read_text())[part]["promises"]
    assert [row["kept"] for row in found] == [False] * len(wanted)


def test_every_promise_is_of_a_part_and_made_on_a_page() -> None:
    assert {promise.part for promise in PROMISES} == set(bench.PARTS)
    assert all((ROOT / promise.made_in).is_file() for promise in PROMISES)
    assert len({(promise.part, promise.figure) for promise in PROMISES}) == len(PROMISES)
