"""Metrics are exact, survive a crash, and belong to the run that was recorded."""

from __future__ import annotations

import json
import math
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rolltape
from rolltape.errors import CorruptFileError, UnsupportedValueError
from rolltape.storage import LocalStorage
from rolltape.tape.metrics import metrics_line, plain_metrics, read_metrics
from tests.taping import Rollout, files, same

EXACT = {
    "third": 1 / 3,
    "nan": float("nan"),
    "payload": struct.unpack("d", struct.pack("Q", 0x7FF8_0000_DEAD_BEEF))[0],
    "inf": math.inf,
    "minus inf": -math.inf,
    "minus zero": -0.0,
    "denormal": 5e-324,
    "huge": 1.7976931348623157e308,
    "int": 7,
    "bigger than 64 bits": 2**80,
    "bool": True,
    "none": None,
    "text": "é\n",
    "list": [1, 2.5, {"a": (1, 2)}],
}
ODD_NAMES = {"": 1, "$tag": 2, "with\nnewline": 3, "\ud800": 4, "crc": "00000000", "bytes": 1, "a.b/c d": 5}


def logged(directory: Path, *metrics: dict[str, Any]) -> list[Any]:
    """Record each as a step, and what is read back by a tape opened anew."""
    with rolltape.Tape(directory, mode="record") as tape:
        for step, values in enumerate(metrics):
            with tape.step(step):
                tape.log(values)
    return list(rolltape.Tape(directory, mode="replay").metrics().values())


def lines(directory: Path) -> list[bytes]:
    return (directory / "train/metrics.jsonl").read_bytes().splitlines()


def test_floats_come_back_bit_for_bit(tmp_path: Path) -> None:
    assert same(logged(tmp_path / "t", EXACT, ODD_NAMES), [EXACT, ODD_NAMES])


def test_every_line_is_plain_json(tmp_path: Path) -> None:
    logged(tmp_path / "t", {"pg_loss": 0.25, "tokens": 12})
    [line] = map(json.loads, lines(tmp_path / "t"))
    place = b'"tape":"%s","split":"train"' % rolltape.open(tmp_path / "t").id.encode()
    body = b'"step":0,' + place + b',"metrics":{"pg_loss":0.25,"tokens":12}}'
    assert lines(tmp_path / "t") == [b'{"crc":"%08x","bytes":%d,' % (zlib.crc32(body), len(body)) + body]
    assert (line["step"], line["metrics"]) == (0, {"pg_loss": 0.25, "tokens": 12})


class OneFile(LocalStorage):
    """A storage in memory that holds one file of metrics."""

    def __init__(self, data: bytes) -> None:
        super().__init__("/nowhere")
        self.data = data

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        return self.data


@given(
    st.dictionaries(st.text(), st.floats(allow_subnormal=True) | st.integers() | st.text() | st.booleans())
)
def test_any_metrics_come_back(metrics: dict[str, Any]) -> None:
    line = metrics_line(3, plain_metrics(metrics))
    assert b"\n" not in line
    assert same(read_metrics(OneFile(line + b"\n"), "train"), {3: metrics})


def test_numpy_scalars_are_the_numbers_they_hold(tmp_path: Path) -> None:
    values = {
        "f4": np.float32(0.1),
        "f2": np.float16(0.1),
        "i": np.int64(3),
        "b": np.bool_(True),
        "a": np.array([2.5]),
    }
    [found] = logged(tmp_path / "t", values)
    assert same(
        found, {"f4": float(np.float32(0.1)), "f2": float(np.float16(0.1)), "i": 3, "b": True, "a": 2.5}
    )


@pytest.mark.parametrize(
    ("metrics", "problem"),
    [
        ({"loss": np.zeros(2)}, "loss.*one number, and this has 2"),
        ({"loss": object()}, "loss.*object"),
        ({"deep": {"er": [object()]}}, r"deep\.er\.0"),
        ({3: 1.0}, "name of a metric is text"),
        ([("loss", 1.0)], "metrics are a mapping"),
    ],
)
def test_what_is_no_metric_is_refused_where_it_is_logged(tmp_path: Path, metrics: Any, problem: str) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        with tape.step(0), pytest.raises(UnsupportedValueError, match=problem):
            tape.log(metrics)
        assert tape.metrics() == {}


def test_several_logs_of_a_step_are_one_line(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        with tape.step(4):
            tape.log({"a": 1, "b": 1})
            tape.log({"b": 2, "c": 2})
        assert tape.metrics() == {4: {"a": 1, "b": 2, "c": 2}}
        assert len(lines(tmp_path / "t")) == 1
        tape.log({"c": 3, "d": 4}, step=4)
        tape.log({"x": 1}, step=9, split="val")
        assert tape.metrics() == {4: {"a": 1, "b": 2, "c": 3, "d": 4}}
        assert tape.metrics("val") == {9: {"x": 1}}


def test_what_is_logged_is_a_copy(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        history = [1]
        array = np.array([1.0])
        with tape.step(0):
            tape.log({"history": history, "array": array})
            history.append(2)
            array[0] = 9
        assert tape.metrics() == {0: {"history": [1], "array": 1.0}}


def test_a_block_that_raises_logs_nothing(tmp_path: Path) -> None:
    """As after a crash: a resumed run logs the step whole."""

    def fail(tape: rolltape.Tape) -> None:
        with tape.step(0):
            tape.log({"loss": float("nan")})
            raise RuntimeError("loss is not finite")

    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        with pytest.raises(RuntimeError):
            fail(tape)
        assert tape.metrics() == {}


def test_nothing_logged_makes_no_file(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        with tape.step(0):
            tape.log({})
        assert tape.metrics() == {}
    assert files(tmp_path / "t") == {"tape.json"}


@pytest.mark.parametrize("metrics", [{"loss": 0.5}, {"loss": float("nan")}, {"a": {"b": {"c": 1}}}])
def test_a_line_cut_by_a_crash_anywhere_hides_nothing_else(
    tmp_path: Path, metrics: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t/train/metrics.jsonl"
    logged(tmp_path / "t", metrics)
    whole = path.read_bytes()
    for cut in range(1, len(whole) - 1):
        path.write_bytes(whole + whole[:cut])
        caplog.clear()
        with rolltape.Tape(tmp_path / "t", mode="record") as tape:
            assert same(tape.metrics(), {0: metrics})
            assert "line 2 has no end" in caplog.text
            tape.log({"resumed": 1}, step=1)
            assert same(tape.metrics(), {0: metrics, 1: {"resumed": 1}})


def test_every_flipped_bit_is_an_error_or_harmless() -> None:
    written = {0: {"loss": 0.5, "n": 12}, 1: {"loss": 0.25, "n": 13}}
    whole = b"".join(metrics_line(step, metrics) + b"\n" for step, metrics in written.items())
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        with suppress(CorruptFileError):
            assert read_metrics(OneFile(bytes(flipped)), "train") == written, bit


def test_an_altered_line_is_an_error_that_names_it(tmp_path: Path) -> None:
    logged(tmp_path / "t", {"loss": 0.5}, {"loss": 0.25})
    path = tmp_path / "t/train/metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b"0.25", b"0.26"))
    with pytest.raises(CorruptFileError, match="checksum") as caught:
        rolltape.Tape(tmp_path / "t", mode="replay").metrics()
    assert str(caught.value.where).endswith("/t/train/metrics.jsonl, line 2")


def test_replay_writes_nothing(tmp_path: Path) -> None:
    recorded = logged(tmp_path / "t", {"loss": 1.0}, {"loss": 2.0})
    before = lines(tmp_path / "t")
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        for step in range(4):
            with tape.step(step):
                tape.log({"loss": 99.0, "unused": object()})
        tape.log({"loss": 99.0}, step=0)
        assert list(tape.metrics().values()) == recorded
    assert lines(tmp_path / "t") == before


@pytest.mark.parametrize("options", [{"mode": "auto"}, {"mode": "record", "overwrite": "keep"}])
def test_the_recorded_runs_metrics_are_not_overwritten(tmp_path: Path, options: dict[str, Any]) -> None:
    logged(tmp_path / "t", {"loss": 1.0}, {"loss": 2.0})
    with rolltape.Tape(tmp_path / "t", **options) as tape:
        for step in range(4):
            with tape.step(step):
                tape.log({"loss": 99.0})
            tape.log({"more": 5}, step=step)
        assert tape.metrics() == {
            0: {"loss": 1.0},
            1: {"loss": 2.0},
            2: {"loss": 99.0, "more": 5},
            3: {"loss": 99.0, "more": 5},
        }


def test_rewrite_leaves_no_stale_value(tmp_path: Path) -> None:
    logged(tmp_path / "t", {"loss": 1.0, "only before": 1}, {"loss": 2.0})
    with rolltape.Tape(tmp_path / "t", mode="rewrite") as tape:
        with tape.step(0):
            tape.log({"loss": 10.0})
        tape.log({"late": 1}, step=0)
        assert tape.metrics() == {0: {"loss": 10.0, "late": 1}, 1: {"loss": 2.0}}


def test_every_rank_has_metrics_of_its_own(tmp_path: Path) -> None:
    for rank in (0, 1):
        with rolltape.Tape(tmp_path / "t", mode="record", rank=rank, world_size=2) as tape:
            tape.log({"loss": float(rank)}, step=0)
            assert tape.metrics() == {0: {"loss": float(rank)}}
    assert rolltape.Tape(tmp_path / "t", mode="replay").metrics() == {0: {"loss": 0.0}}


def test_metrics_and_recordings_of_one_run(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="auto") as tape:
        rollout = Rollout(tape)
        for step in range(3):
            with tape.step(step):
                rollout.generate(step)
                tape.log({"reward": step})
    assert tape.summary().recorded == 3
    assert [json.loads(line)["step"] for line in lines(tmp_path / "t")] == [0, 1, 2]
