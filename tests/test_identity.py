"""Every sample is known by a uid and its index within that uid, whatever the order and the padding."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rolltape
from tests.exact import open_bytes, to_bytes
from tests.stacks import examples


def identity(value: Any) -> tuple[list[str], list[int]]:
    return open_bytes(to_bytes(value)).identity()


def objects(items: list[Any]) -> np.ndarray:
    array = np.empty(len(items), object)
    for i, item in enumerate(items):
        array[i] = item
    return array


A, B = uuid.UUID(int=1), uuid.UUID(int=2)


@pytest.mark.parametrize(
    ("column", "uids"),
    [
        (["x", "y", "x"], ["x", "y", "x"]),
        (objects(["x", "y", "x"]), ["x", "y", "x"]),
        (np.array([7, 8, 7]), ["7", "8", "7"]),
        (np.array(["x", "y", "x"]), ["x", "y", "x"]),
        ([7, 8, 7], ["7", "8", "7"]),
        ([np.int64(7), np.int64(8), np.int64(7)], ["7", "8", "7"]),
        ([A, B, A], [str(A), str(B), str(A)]),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["uid", "prompt_uid", "group_index"])
def test_the_uid_of_the_framework(name: str, column: Any, uids: list[str]) -> None:
    assert identity({name: column, "prompts": np.zeros((3, 2), int)}) == (uids, [0, 0, 1])


def test_uids_inside_samples() -> None:
    samples = [{"uid": f"u{i // 2}", "tokens": np.arange(i)} for i in range(4)]
    assert identity(samples) == (["u0", "u0", "u1", "u1"], [0, 1, 0, 1])
    assert identity([samples[:2], samples[2:]]) == (["u0", "u0", "u1", "u1"], [0, 1, 0, 1])


def test_an_index_of_the_framework_holds_in_any_order() -> None:
    assert identity({"uid": ["a", "b", "a"], "index": np.array([1, 0, 0])}) == (["a", "b", "a"], [1, 0, 0])
    assert identity({"uid": ["a", "a"], "sample_index": [5, 2]}) == (["a", "a"], [5, 2])


@pytest.mark.parametrize(
    "index", [np.array([3, 3]), [3, 3], [7, 8], [-1, 0], [2**31, 0], [1.0, 0.0], ["1", "0"]]
)
def test_an_index_that_tells_no_samples_apart_is_not_one(index: Any) -> None:
    """verl has an ``index`` too: the row of the dataset, the same for all samples of a prompt."""
    assert identity({"uid": ["a", "a"], "index": index}) == (["a", "a"], [0, 1])


def test_uids_that_are_not_set_are_no_uids() -> None:
    uids, index = identity({"uid": [None, None], "prompt": ["a", "b"]})
    assert uids[0] != uids[1]
    assert index == [0, 0]


def padded(prompts: list[list[int]], width: int, side: str, pad: int = 0) -> np.ndarray:
    out = np.full((len(prompts), width), pad)
    for row, prompt in zip(out, prompts, strict=True):
        row[slice(width - len(prompt), None) if side == "left" else slice(len(prompt))] = prompt
    return out


prompts = st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=6, unique=True), min_size=2, max_size=6)


@given(
    prompts,
    st.integers(0, 6),
    st.integers(2, 20),
    st.sampled_from(["left", "right"]),
    st.sampled_from([0, 99]),
)
@settings(max_examples=examples(60))
def test_a_prompt_is_the_same_however_far_it_is_padded(
    rows: list[list[int]], extra: int, more: int, side: str, pad: int
) -> None:
    width = max(map(len, rows))

    def batch(to: int) -> dict[str, Any]:
        ids = padded(rows, to, side, pad)
        mask = padded([[1] * len(row) for row in rows], to, side)
        tail = np.ones((len(rows), 3), int)
        return {
            "prompts": ids,
            "attention_mask": np.hstack([mask, tail]),
            "input_ids": np.hstack([ids, tail]),
        }

    expected = identity(batch(width))
    assert identity(batch(width + extra)) == expected
    assert identity({"prompt_ids": rows, "x": [0] * len(rows)}) == expected
    wide, wider = (identity({"prompts": padded(rows, to, side, pad)}) for to in (width + 2, width + 2 + more))
    assert wide == wider == expected  # without a mask the padding shows by itself
    as_int32 = {"prompts": padded(rows, width + 2, side, pad).astype("i4")}
    assert identity(as_int32) == expected


@given(prompts, st.randoms(use_true_random=False))
@settings(max_examples=examples(40))
def test_a_prompt_is_the_same_wherever_it_stands(rows: list[list[int]], random: Any) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)
    for make in (lambda r: {"prompts": padded(r, 9, "left")}, lambda r: {"prompt": [str(p) for p in r]}):
        uids, _ = identity(make(rows))
        shuffled, index = identity(make([rows[i] for i in order]))
        assert shuffled == [uids[i] for i in order]
        for uid in set(uids):
            assert [i for i, other in zip(index, shuffled, strict=True) if other == uid] == list(
                range(uids.count(uid))
            )
        assert all((rows[i] == rows[j]) == (uids[i] == uids[j]) for i in order for j in order)


def test_prompts_without_padding_keep_the_token_they_all_begin_with() -> None:
    same = identity({"prompts": np.array([[1, 5], [1, 6]])})[0]
    assert identity({"prompts": np.array([[0, 0, 1, 5], [0, 0, 1, 6]])})[0] == same


@pytest.mark.parametrize(
    "make",
    [
        lambda p: [[{"role": "user", "content": text}] for text in p],
        lambda p: objects([[{"role": "user", "content": text, "n": {1: (text,)}}] for text in p]),
        lambda p: [{"text": text, "image": np.full(2000, len(text))} for text in p],
        lambda p: [
            np.full(2000, ord(text[0])) if i % 2 else np.full(2000, ord(text[0]), "i4")
            for i, text in enumerate(p)
        ],
    ],
)
def test_prompts_that_are_messages_or_arrays(make: Any) -> None:
    first, again = (
        identity({"messages": make(["a", "bb", "a", "bb"])}),
        identity({"messages": make(["a", "bb", "a", "bb"])}),
    )
    assert first == again
    assert first[0][0] != first[0][1]


def test_a_prompt_that_is_part_of_another_column() -> None:
    ids = np.random.default_rng(0).integers(1, 9, (4, 6))
    ids[2:, :3] = ids[:2, :3]
    uids, index = identity({"input_ids": ids, "prompts": ids[:, :3]})
    assert uids[:2] == uids[2:]
    assert index == [0, 0, 1, 1]


def test_nothing_to_go_by() -> None:
    assert identity({"reward": np.ones(3)}) == (["", "", ""], [0, 1, 2])
    assert identity({}) == ([], [])


def test_the_columns_are_in_the_file(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:
        stage = tape.stage("rollout")(
            lambda: {"uid": ["a", "b", "a"], "_uid": [1, 2, 3], "_index": [4, 5, 6]}
        )
        with tape.step(0):
            stage()
        assert tape.recording(0).identity() == (["a", "b", "a"], [0, 0, 1])
        assert tape.recording(0).value() == {"uid": ["a", "b", "a"], "_uid": [1, 2, 3], "_index": [4, 5, 6]}
    table = pq.read_table(tmp_path / "tape" / "train" / "rollout" / "step_000000.parquet")
    assert table["_uid"].to_pylist() == ["a", "b", "a"]
    assert table["_index"].to_pylist() == [0, 0, 1]
