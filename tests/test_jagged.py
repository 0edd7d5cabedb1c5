"""Padded columns without their padding: the same values, whatever way each is stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rolltape
from rolltape.batch.jagged import Jagged
from rolltape.codec import trimmed
from rolltape.codec.threads import SHARE_FROM
from rolltape.errors import BatchError
from tests.stacks import examples

PAD = 9


def batch(seed: int, rows: int, width: int) -> dict[str, Any]:
    """Every layout: padded on both sides, masks, counts, joined, cut out, plain, more axes, other dtypes."""
    rng = np.random.default_rng(seed)
    before, length = rng.integers(0, width, rows), rng.integers(0, width + 1, rows)
    inside = np.arange(width) < length[:, None]
    left = np.arange(width) >= before[:, None]
    prompts = np.where(left, rng.integers(10, 99, (rows, width)), PAD)
    responses = np.where(inside, rng.integers(10, 99, (rows, width)), PAD)
    mask = np.concatenate([left, inside], 1).astype(np.int32)
    return {
        "uid": [str(row) for row in range(rows)],
        "prompts": prompts,
        "responses": responses,
        "input_ids": np.concatenate([prompts, responses], 1),
        "turned": np.concatenate([responses, prompts], 1),
        "attention_mask": mask,
        "response_mask": inside,
        "position_ids": np.clip(np.cumsum(mask, 1) - 1, 0, None).astype(np.uint8),
        "scores": np.where(np.arange(width) == length[:, None] - 1, np.float32(-0.5), np.float32(0)),
        "top": rng.normal(size=(rows, width, 3)).astype(np.float16) * inside[:, :, None],
        "routes": (rng.integers(0, 8, (rows, width, 2, 2)) * inside[:, :, None, None]).astype(np.int16),
        "waves": (rng.normal(size=(rows, width)) * inside).astype(np.complex64),
        "copy": responses[:, : width // 2 + 1].copy(),
        "plain": rng.normal(size=(rows, width)),
        "reward": rng.normal(size=rows),
    }


def recorded(path: Path, value: Any) -> Any:
    with rolltape.Tape(path, mode="record") as tape:
        rollout = tape.stage("rollout")(lambda: value)
        with tape.step(0):
            rollout()
    return next(rolltape.open(path).recordings())


def check(found: Jagged, dense: np.ndarray) -> None:
    assert len(found) == len(dense)
    assert found.values.dtype == dense.dtype
    assert found.offsets[-1] == len(found.values)
    for at, row in enumerate(dense):
        start, size = int(found.starts[at]), len(found.row(at))
        assert found.row(at).tobytes() == row[start : start + size].tobytes()


@pytest.fixture(scope="module", params=[0, SHARE_FROM], ids=["large", "small"])
def joined_from(request: pytest.FixtureRequest) -> Iterator[None]:
    """Columns are small here; large ones that are joined are taken apart instead of expanded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trimmed, "SHARE_FROM", request.param)
        yield


@pytest.mark.usefixtures("joined_from")
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 12))
@settings(max_examples=examples(30), deadline=None)
def test_rows_are_what_the_padded_ones_hold(
    tmp_path_factory: pytest.TempPathFactory, seed: int, rows: int, width: int
) -> None:
    value = batch(seed, rows, width)
    recording = recorded(tmp_path_factory.mktemp("jagged") / "t", value)
    found = recording.jagged()
    assert list(found) == [name for name in value if name not in ("uid", "reward")]
    for name, jagged in found.items():
        check(jagged, value[name])
    mask = recording.jagged(like="response_mask")["response_mask"]
    for name, jagged in recording.jagged(like="response_mask").items():
        check(jagged, value[name])
        assert np.array_equal(jagged.offsets, mask.offsets)
        assert np.array_equal(jagged.starts, mask.starts)


def test_padding_is_not_there(tmp_path: Path) -> None:
    value = batch(1, 8, 40)
    recording = recorded(tmp_path / "t", value)
    found = recording.jagged(["input_ids", "attention_mask", "position_ids"], like="attention_mask")
    assert len(found["input_ids"].values) == value["attention_mask"].sum()
    assert found["attention_mask"].values.all()
    assert not (found["input_ids"].values == PAD).any()


def test_a_column_that_cannot_be_cut_is_named(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "t", batch(1, 8, 40))
    for columns, like, said in (
        (["uid"], None, "'uid'"),
        (["reward"], None, "'reward'"),
        (["nowhere"], None, "'nowhere'"),
        (["responses"], "nowhere", "'responses'"),
        (["input_ids"], "response_mask", "'input_ids'"),
        (["responses"], "uid", "'responses'"),
    ):
        with pytest.raises(BatchError, match=said):
            recording.jagged(columns, like=like)
