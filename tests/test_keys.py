"""One recording, one file name: exact both ways, safe on every file system."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.errors import KeyNameError
from rolltape.key import Key, check_name, metrics_path
from rolltape.steps import MAX_STEP

LAYOUT = {
    "train/rollout/step_000000.parquet": Key(step=0),
    "train/rollout/step_000000.c1.parquet": Key(step=0, call=1),
    "train/rollout/step_000000.k0.parquet": Key(step=0, call="0"),
    "train/rollout/step_000000.r2of8.parquet": Key(step=0, rank=2, world_size=8),
    "train/rollout/step_000000.c1.r2of8.parquet": Key(step=0, call=1, rank=2, world_size=8),
    "train/rollout/step_000000.in.parquet": Key(step=0, inputs=True),
    "train/rollout/step_000000.c1.in.parquet": Key(step=0, call=1, inputs=True),
    "train/rollout/step_000000.kin.parquet": Key(step=0, call="in"),
    "val/reward/step_1234567.parquet": Key(split="val", stage="reward", step=1234567),
    "val.math/ref-logprob_2/step_000001.parquet": Key(split="val.math", stage="ref-logprob_2", step=1),
    "train/rollout/step_000003.k%2E%2E%2Fx%00.parquet": Key(step=3, call="../x\0"),
    "train/rollout/step_000003.k%C3%A9-a_b~.parquet": Key(step=3, call="é-a_b~"),
    f"train/rollout/step_{MAX_STEP}.parquet": Key(step=MAX_STEP),
}


@pytest.mark.parametrize("path", LAYOUT)
def test_the_layout(path: str) -> None:
    assert LAYOUT[path].path == path
    assert Key.parse(path) == LAYOUT[path]


@pytest.mark.parametrize(
    "path",
    [
        "",
        "tape.json",
        "train/metrics.jsonl",
        "train/rollout/step_000000.parquet.tmp",
        "train/rollout/.step_000000.parquet",
        "train/rollout/step_000000.parquet\n",
        "train/rollout/step_00000.parquet",
        "train/rollout/step_0000001.parquet",
        "train/rollout/step_-00001.parquet",
        "train/rollout/step_00000\u0660.parquet",
        f"train/rollout/step_{MAX_STEP + 1}.parquet",
        f"train/rollout/step_{'1' * 9999}.parquet",
        "train/rollout/step_000000.c0.parquet",
        "train/rollout/step_000000.c01.parquet",
        "train/rollout/step_000000.k.parquet",
        "train/rollout/step_000000.k%2e.parquet",
        "train/rollout/step_000000.k%61.parquet",
        "train/rollout/step_000000.k%FF.parquet",
        "train/rollout/step_000000.k%.parquet",
        "train/rollout/step_000000.ké.parquet",
        "train/rollout/step_000000.r0of1.parquet",
        "train/rollout/step_000000.r8of8.parquet",
        "train/rollout/step_000000.r1of2.c1.parquet",
        "train/rollout/step_000000.in.c1.parquet",
        "train/rollout/step_000000.parquet.parquet",
        "train/rollout/sub/step_000000.parquet",
        "rollout/step_000000.parquet",
        "/train/rollout/step_000000.parquet",
        "./train/rollout/step_000000.parquet",
        "train/../step_000000.parquet",
        "train/.rollout/step_000000.parquet",
        "train\\rollout\\step_000000.parquet",
        "train/nul/step_000000.parquet",
    ],
)
def test_other_names_are_not_recordings(path: str) -> None:
    assert Key.parse(path) is None


@pytest.mark.parametrize(
    ("name", "problem", "suggestion"),
    [
        ("", "is empty", "as in"),
        ("a/b", "'/' at position 2", "'a_b'"),
        ("my stage", "' ' at position 3", "'my_stage'"),
        ("größe", "'ö' at position 3", "'gr_e'"),
        ("a\n", r"'\\n' at position 2", "'a_'"),
        (".hidden", r"'\.' at position 1", "'hidden'"),
        ("-rf", "'-' at position 1", "'rf'"),
        ("a..b", r"'\.\.' at position 2", "'a.b'"),
        ("..", r"'\.' at position 1", "as in"),
        ("a.", "at its end", "'a'"),
        ("NUL", "reserved by Windows", "'_NUL'"),
        ("com1.x", "reserved by Windows", "'_com1.x'"),
        ("metrics.jsonl", "one of the tape's own files", "'_metrics.jsonl'"),
        ("Tape.JSON", "one of the tape's own files", "'_Tape.JSON'"),
        ("x.parquet", "one of the tape's own files", "'x'"),
        ("a" * 101, "101 characters", "a" * 100),
        ("日本", "at position 1", "as in"),
        (3, "must be text, not int", "as in"),
        (None, "must be text, not NoneType", "as in"),
    ],
)
def test_a_bad_name_is_explained_and_a_good_one_suggested(
    name: object, problem: str, suggestion: str
) -> None:
    with pytest.raises(KeyNameError, match=problem) as caught:
        check_name("stage", name)
    assert str(caught.value).startswith("stage name ")
    assert suggestion in str(caught.value.hint)


@pytest.mark.parametrize("name", ["rollout", "_x", "0", "a.b-c_D", "console", "com", "a" * 100])
def test_good_names_pass(name: str) -> None:
    assert check_name("split", name) == name


@given(st.text(max_size=150))
def test_a_suggested_name_is_a_good_one(name: str) -> None:
    try:
        check_name("stage", name)
    except KeyNameError as error:
        hint = str(error.hint)
        if hint.startswith("name it "):
            suggested = hint.removeprefix("name it ").strip("'")
            assert check_name("stage", suggested) == suggested


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"step": -1}, "step must"),
        ({"step": 1.0}, "step must"),
        ({"call": -1}, "call must"),
        ({"call": True}, "call must"),
        ({"call": ""}, "empty"),
        ({"call": "a\ud800"}, "at position 2"),
        ({"call": "x" * 201}, "201 UTF-8 bytes"),
        ({"call": "é" * 101}, "202 UTF-8 bytes"),
        ({"call": "é" * 50}, "file name of"),
        ({"rank": 1}, "rank must be less than world_size 1, not 1"),
        ({"rank": -1, "world_size": 2}, "rank must"),
        ({"world_size": 0}, "less than world_size 0"),
        ({"split": "a/b"}, "split name"),
        ({"stage": "x.parquet"}, "stage name"),
    ],
)
def test_a_key_that_exists_is_valid(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(KeyNameError, match=problem):
        replace(Key(step=0), **fields)  # type: ignore[arg-type]


def test_the_longest_call_and_the_longest_file_name_fit() -> None:
    assert Key(step=0, call="x" * 200).path
    with pytest.raises(KeyNameError, match="bytes, above 255"):
        Key(step=0, call="." * 80)


def test_numpy_integers_become_plain_ones() -> None:
    key = Key(step=np.int64(3), call=np.int32(1), rank=np.int8(1), world_size=np.int8(2))
    assert key == Key(step=3, call=1, rank=1, world_size=2)
    assert json.dumps([key.step, key.call, key.rank, key.world_size]) == "[3, 1, 1, 2]"


def test_keys_are_values() -> None:
    key = Key(step=3, call="req/7", inputs=True)
    assert pickle.loads(pickle.dumps(key)) == key
    assert len({key, replace(key), replace(key, call=7)}) == 2


names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,20}", fullmatch=True).map(lambda name: f"s{name}")
numbers = st.integers(0, 10**7) | st.integers(0, MAX_STEP)
calls = numbers | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=16)


@given(names, names, numbers, calls, st.integers(0, 99), st.integers(1, 99), st.booleans())
def test_parsing_a_path_gives_its_key(
    split: str, stage: str, step: int, call: int | str, rank: int, more: int, inputs: bool
) -> None:
    key = Key(
        split=split, stage=stage, step=step, call=call, rank=rank, world_size=rank + more, inputs=inputs
    )
    assert Key.parse(key.path) == key
    assert key.path.isascii()
    assert key.path.count("/") == 2
    assert len(key.path.rsplit("/")[-1]) <= 255


@given(st.text() | st.from_regex(r"a/b/step_[0-9]{5,8}(\.[ckri][0-9a-f%]*)*(\.in)?\.parquet"))
def test_parsing_is_strict(path: str) -> None:
    key = Key.parse(path)
    assert key is None or key.path == path


def test_metrics_have_one_file_per_split() -> None:
    assert metrics_path("val") == "val/metrics.jsonl"
    assert Key.parse(metrics_path("val")) is None
    with pytest.raises(KeyNameError):
        metrics_path("../val")
