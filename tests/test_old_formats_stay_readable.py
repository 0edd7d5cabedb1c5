"""Every tape that was ever written can be read. The fixtures were written once by tools/make_fixtures.py."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape
from rolltape.key import Key
from rolltape.reader.integrity import inspect
from tests.fixtures import content, content_segments
from tests.fixtures.exact import digest

TAPE = Path(__file__).parent / "fixtures" / "format1.tape"
SEGMENTED = Path(__file__).parent / "fixtures" / "format2.tape"

LAYOUTS = {"plain", "bytes", "span", "const", "ramp", "join", "part"}
CELLS = {"text", "bytes", "bool", "int", "float", "numpy:float32", "json", "tagged"}


@pytest.fixture
def tape() -> rolltape.Tape:
    return rolltape.Tape(
        TAPE, mode="replay", fingerprint=content.FINGERPRINT, match={"environment": "ignore"}
    )


@pytest.mark.parametrize("stage", content.RECORDINGS)
def test_format_1_is_read_bit_for_bit(tape: rolltape.Tape, stage: str) -> None:
    assert digest(tape.recording(0, stage).value()) == digest(content.RECORDINGS[stage]())


@pytest.mark.parametrize("stage", ["rollout", "dense", "ragged", "plain"])
def test_format_1_is_read_in_parts(tape: rolltape.Tape, stage: str) -> None:
    whole, recording = content.RECORDINGS[stage](), tape.recording(0, stage)
    for name in recording.columns:
        part = recording.batch([name], samples=slice(1, 4))
        expected = whole[name][1:4]
        if getattr(expected, "dtype", None) is np.dtype(object):
            expected = list(expected)
        assert digest(part[name]) == digest(expected), name


def test_format_1_is_replayed(tape: rolltape.Tape) -> None:
    @tape.stage("rollout", inputs=True)
    def generate(prompts: list[str], n: int) -> None:
        raise AssertionError("replay never calls the live function")

    with tape.step(0):
        assert digest(generate(**content.INPUTS)) == digest(content.padded())
    with tape.step(0), pytest.raises(rolltape.MismatchError):
        generate(["a", "other"], n=2)


def test_format_1_names_inputs_metrics_and_calls(tape: rolltape.Tape) -> None:
    assert digest(tape.recording(0, inputs=True).value()) == digest(content.INPUTS)
    assert digest(tape.metrics()) == digest({0: content.METRICS})
    for split, step, key in content.CALLS:
        first, second = (0, 1) if key is None else (key, f"{key}#1")
        assert tape.recording(step, "call", split, first).value() == [step]
        assert tape.recording(step, "call", split, second).value() == [step, "again"]
    assert tape.recording(0).identity() == ([f"prompt-{i // 2}" for i in range(6)], [0, 1] * 3)


def test_the_fixture_has_every_layout_and_is_small(tape: rolltape.Tape) -> None:
    entries = [
        entry
        for stage in content.RECORDINGS
        for entry in tape.recording(0, stage).open_whole().stored_columns.values()
    ]
    assert {entry.layout for entry in entries if entry.kind == "array"} == LAYOUTS
    assert {entry.tail for entry in entries if entry.layout == "ramp"} == {"hold", "run"}
    assert {entry.cells for entry in entries if entry.kind == "objects"} == CELLS
    assert any(entry.kind == "ragged" for entry in entries)
    assert sum(path.stat().st_size for path in TAPE.rglob("*") if path.is_file()) < 60_000


@pytest.fixture
def segmented(tmp_path: Path) -> Path:
    """A copy: a tape that is read is never changed, and one that is recorded onto is."""
    return Path(shutil.copytree(SEGMENTED, tmp_path / "tape"))


def test_format_2_has_segments_and_is_small() -> None:
    names = [path.name for path in SEGMENTED.rglob("*") if path.is_file()]
    assert sum(name.startswith("segment_") for name in names) >= 3, "of both stages, and of inputs"
    assert '"format": 2' in (SEGMENTED / "tape.json").read_text()
    assert {name for name in names if name.startswith("step_")} >= {"step_000003.parquet"}
    assert sum(path.stat().st_size for path in SEGMENTED.rglob("*") if path.is_file()) < 60_000


def test_format_2_is_read_bit_for_bit() -> None:
    run = rolltape.open(SEGMENTED)
    left = [step for step in content_segments.STEPS if step != content_segments.PRUNED]
    for stage in content_segments.STAGES:
        assert run.steps(stage) == left
        for step in left:
            value = run.recording(Key(stage=stage, step=step)).value()
            assert digest(value) == digest(content_segments.expected(stage, step)), (stage, step)
    assert run.metrics() == {step: {"loss": step / 8} for step in content_segments.STEPS}
    assert inspect(run.storage).findings == []


def test_format_2_is_replayed_and_recorded_onto(segmented: Path) -> None:
    with rolltape.Tape(segmented, mode="auto", match={"environment": "ignore"}) as tape:
        live: list[int] = []

        @tape.stage("rollout", inputs=True)
        def generate(step: int) -> dict[str, Any]:
            live.append(step)
            return content_segments.rollout(step)

        for step in [*content_segments.STEPS, 6]:
            with tape.step(step):
                assert digest(generate(step)) == digest(content_segments.expected("rollout", step))
    assert live == [content_segments.PRUNED, 6]


def test_a_tape_of_a_newer_format_says_so(tmp_path: Path) -> None:
    copy = shutil.copytree(TAPE, tmp_path / "tape")
    manifest = copy / "tape.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 3'))
    with pytest.raises(rolltape.FormatVersionError, match="format 3; this Rolltape reads up to 2"):
        rolltape.Tape(copy, mode="replay")
