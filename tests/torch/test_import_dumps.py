"""Dumps of verl, ROLL and slime come onto a tape bit for bit, with their steps, splits, calls and inputs."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict

import rolltape
from rolltape.batch import registry
from rolltape.errors import ConfigError, RolltapeError
from rolltape.importing import dump_layouts as layouts
from rolltape.importing import import_dumps, standins
from rolltape.importing.dump_reader import read_bytes
from rolltape.steps import StepSelector
from tests.exact import assert_same, roundtrip
from tests.torch import dumps


@pytest.fixture(autouse=True)
def read_as_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another test registered for verl or ROLL must not decide what comes back here."""
    for name in ("verl.dataproto", "roll.dataproto", "verl.kvbatchmeta"):
        monkeypatch.delitem(registry._by_name, name, raising=False)
    lazy = {first: module for first, module in registry._modules().items() if first not in ("verl", "roll")}
    monkeypatch.setattr(registry, "_modules", lambda: lazy)  # read back by the stand-ins, as verl is not here


def replay(tape: Path, step: int, **where: Any) -> Any:
    return rolltape.Tape(tape, mode="replay").recording(step, **where).value()


def assert_batch(value: Any, seed: int) -> None:
    tensors, columns, meta = dumps.batch(seed)
    assert_same(dict(tensors.items()), dict(value.batch.items()))
    assert type(value.batch) is TensorDict
    assert value.batch.batch_size == tensors.batch_size
    assert_same(columns, value.non_tensor_batch)
    assert_same(meta, value.meta_info)


def keys(tape: Path) -> list[tuple[str, str, int, Any]]:
    found = rolltape.Tape(tape, mode="replay").recordings()
    return [(r.key.split, r.key.stage, r.key.step, r.key.call) for r in found]


def test_verl_v1_file(tmp_path: Path) -> None:
    file = dumps.write(tmp_path / "d" / "exp_proj_GBS3__N2", dumps.dumped(dumps.VerlProto(*dumps.batch(5))))
    for source in (file, file.parent):
        tape = tmp_path / f"tape-{source.name}"
        report = import_dumps(source, tape)
        assert report is not None
        assert (report.system, report.problems) == (layouts.V1, [])
        value = replay(tape, 1)
        assert isinstance(value, standins.VerlProto)
        assert_batch(value, 5)


def test_verl_v2_keeps_inputs_and_several_generations_of_a_step(tmp_path: Path) -> None:
    dumps.verl_v2(tmp_path / "d", {1: 1, 2: 1, 3: 2, 10: 3})
    report = import_dumps(tmp_path / "d", tmp_path / "tape")
    assert report is not None
    assert (report.system, report.problems) == (layouts.V2, [])
    expected = [(1, 0), (1, 1), (2, 0), (3, 0)]
    stages = ("new_batch", "rollout")
    assert keys(tmp_path / "tape") == [("train", stage, *at) for stage in stages for at in expected]
    for generation, (step, call) in zip((1, 2, 3, 10), expected, strict=True):
        assert_batch(replay(tmp_path / "tape", step, call=call), generation)
        assert_batch(replay(tmp_path / "tape", step, stage="new_batch", call=call), 100 + generation)


@pytest.mark.parametrize("below", [".", "exp_project", "exp_project/GBS3_N2_in5_out7"])
def test_skip_manager_from_any_folder_above(tmp_path: Path, below: str) -> None:
    dumps.skip_manager(tmp_path / "d", [1, 2, 11])
    report = import_dumps(tmp_path / "d" / below, tmp_path / "tape")
    assert report is not None
    assert report.system == layouts.SKIP_MANAGER
    assert [step for *_, step, _ in keys(tmp_path / "tape")] == [1, 2, 11]
    assert_batch(replay(tmp_path / "tape", 11), 11)


def test_the_tape_may_lie_where_the_dumps_are(tmp_path: Path) -> None:
    root = dumps.skip_manager(tmp_path, [1, 2])
    for _ in range(2):
        report = import_dumps(root, root)
    assert report is not None
    assert (report.imported, report.kept, report.problems) == ([], 2, [])
    assert_batch(replay(root, 2), 2)


def test_transfer_queue(tmp_path: Path) -> None:
    rows = [torch.arange(n) for n in (2, 3, 1)]
    for inner in (0, 1):
        fields = TensorDict(
            {
                "prompts": torch.nested.as_nested_tensor(rows, layout=torch.jagged),
                "scores": torch.randn(3),
                "note": NonTensorStack("a", {"b": 1}, None),
                "one": NonTensorData("same", batch_size=[3]),
            },
            batch_size=[3],
        )
        names = [f"u{inner}_0_0", f"u{inner}_1_0", "w_0_0"]
        payload = {
            "tensordict": fields,
            "tags": [{"n": i} for i in range(3)],
            "keys": names,
            "global_steps": 4,
        }
        folder = tmp_path / "d" / "GBS" / "4" / str(inner)
        dumps.write(folder / "tq_batch.pt", dumps.torch_saved(payload))
        dumps.write(folder / "meta.json", b'{"global_steps": 4, "num_trajectories": 3}')
        report = import_dumps(tmp_path / "d", tmp_path / "tape")
        assert report is not None
        assert (report.system, report.problems) == (layouts.TRANSFER_QUEUE, [])
        value = replay(tmp_path / "tape", 4, call=inner)
        assert value["batch"] == standins.QueueBatch(names, payload["tags"])
        assert value["asked"] == 2
        assert_same(fields, value["fields"])


def test_roll(tmp_path: Path) -> None:
    dumps.roll(tmp_path / "d", [0, 1])
    report = import_dumps(tmp_path / "d", tmp_path / "tape")
    assert report is not None
    assert (report.system, report.problems) == (layouts.ROLL, [])
    assert keys(tmp_path / "tape") == [(s, "rollout", n, 0) for s in ("train", "val") for n in (0, 1)]
    value = replay(tmp_path / "tape", 1, split="val")
    assert isinstance(value, standins.RollProto)
    assert_batch(value, 51)


def test_slime(tmp_path: Path) -> None:
    dumps.slime(tmp_path / "d", [0, 3], evals=(3,))
    report = import_dumps(tmp_path / "d", tmp_path / "tape")
    assert report is not None
    assert (report.system, report.problems) == (layouts.SLIME, [])
    assert keys(tmp_path / "tape") == [("train", "rollout", n, 0) for n in (0, 3)] + [
        ("val", "rollout", 3, 0)
    ]
    assert_same(replay(tmp_path / "tape", 3), {"rollout_id": 3, "samples": dumps.slime_samples(3)})
    assert_same(replay(tmp_path / "tape", 3, split="val")["samples"], dumps.slime_samples(93))


def test_slime_without_a_number_in_its_name(tmp_path: Path) -> None:
    file = dumps.write(
        tmp_path / "dump.pt", dumps.torch_saved({"rollout_id": 9, "samples": dumps.slime_samples(1)})
    )
    import_dumps(file, tmp_path / "tape")
    assert keys(tmp_path / "tape") == [("train", "rollout", 9, 0)]


def test_split_stage_and_steps_can_be_chosen(tmp_path: Path) -> None:
    dumps.roll(tmp_path / "d", [0, 1, 2, 3], splits=("train",))
    import_dumps(tmp_path / "d", tmp_path / "t", split="math", stage="gen", steps=StepSelector.parse("1-2"))
    assert keys(tmp_path / "t") == [("math", "gen", 1, 0), ("math", "gen", 2, 0)]


def test_what_is_on_the_tape_is_kept_and_the_rest_is_added(tmp_path: Path) -> None:
    dumps.verl_v2(tmp_path / "d", {1: 1, 2: 1})
    import_dumps(tmp_path / "d", tmp_path / "t")
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "t").rglob("*.parquet")}
    (tmp_path / "t" / "train" / "rollout" / "step_000001.c1.parquet").unlink()
    report = import_dumps(tmp_path / "d", tmp_path / "t")
    assert report is not None
    assert ([(i.stage, i.call) for i in report.imported], report.kept) == ([("rollout", 1)], 3)
    after = {file: file.stat().st_mtime_ns for file in (tmp_path / "t").rglob("*.parquet")}
    assert [file.name for file in before if before[file] != after[file]] == ["step_000001.c1.parquet"]
    assert_batch(replay(tmp_path / "t", 1, call=1), 2)


def test_damaged_and_incomplete_dumps_are_named_and_the_others_imported(tmp_path: Path) -> None:
    root = dumps.verl_v2(tmp_path / "d", {1: 1, 2: 1, 3: 2, 4: 3, 5: 4})
    whole = (root / "genstep_000001" / "gen_batch.dp").read_bytes()
    (root / "genstep_000001" / "gen_batch.dp").write_bytes(whole[: len(whole) // 2])
    (root / "genstep_000003" / "meta.json").unlink()
    (root / "genstep_000004" / "new_batch.dp").unlink()
    report = import_dumps(tmp_path / "d", tmp_path / "t")
    assert report is not None
    assert [(Path(p.file).parent.name, p.kind) for p in sorted(report.problems, key=lambda p: p.file)] == [
        ("genstep_000001", "damaged"), ("genstep_000003", "incomplete"), ("genstep_000004", "incomplete"),
    ]  # fmt: skip
    stages = ("new_batch", "rollout")
    assert keys(tmp_path / "t") == [("train", s, *at) for s in stages for at in ((1, 1), (4, 0))]
    assert_batch(replay(tmp_path / "t", 1, call=1), 2)


def test_flipped_bits_never_become_data(tmp_path: Path) -> None:
    whole = dumps.torch_saved({"rollout_id": 1, "samples": dumps.slime_samples(1)})
    wanted = read_bytes(whole, "dump")
    for at in range(0, len(whole), 37):
        altered = bytearray(whole)
        altered[at] ^= 0x10
        try:
            assert_same(wanted, read_bytes(bytes(altered), "dump"))  # padding between entries
        except RolltapeError:
            continue


def test_a_dry_run_reads_everything_and_writes_nothing(tmp_path: Path) -> None:
    dumps.roll(tmp_path / "d", [0, 1])
    (tmp_path / "d" / "val" / "step_000001.pkl").write_bytes(b"\x80\x04cos\nsystem\n.")
    report = import_dumps(tmp_path / "d", tmp_path / "t", dry_run=True)
    assert report is not None
    assert len(report.imported) == 3
    assert [(p.kind, "os.system" in p.message) for p in report.problems] == [("refused", True)]
    assert not (tmp_path / "t").exists()


def test_several_runs_are_not_mixed(tmp_path: Path) -> None:
    dumps.skip_manager(tmp_path / "d", [1])
    shutil.copytree(tmp_path / "d" / "exp_project", tmp_path / "d" / "other_project")
    with pytest.raises(ConfigError, match="2 runs"):
        import_dumps(tmp_path / "d", tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_nothing_to_import(tmp_path: Path) -> None:
    dumps.write(tmp_path / "d" / "notes.txt", b"hello")
    assert import_dumps(tmp_path / "d", tmp_path / "t") is None
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("protocol", range(2, 6))
def test_every_protocol(protocol: int) -> None:
    value = read_bytes(dumps.dumped(dumps.VerlProto(*dumps.batch(1)), protocol), "dump")
    tensors, columns, meta = dumps.batch(1)
    assert_same(columns, value.non_tensor_batch)
    assert_same(meta, value.meta_info)
    assert_same(dict(tensors.items()), value.batch.items)


VALUES = {
    "strided": torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
    "slice": torch.arange(24).reshape(4, 6)[1:3, ::2],
    "expanded": torch.arange(3).expand(4, 3),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(3.5),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "grad": torch.ones(2, requires_grad=True),
    "float8": torch.randn(5).to(torch.float8_e4m3fn),
    "uint16": torch.tensor([1, 2], dtype=torch.uint16),
    "complex": torch.tensor([1j, 2.0]),
    "jagged": torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "plain": [
        torch.Size([1, 2]),
        torch.float32,
        torch.device("cpu"),
        {1, 2},
        frozenset("ab"),
        bytearray(b"x"),
        2j,
    ],
    "lazy": LazyStackedTensorDict(TensorDict({"y": torch.ones(2)}, []), TensorDict({"y": torch.ones(3)}, [])),
    "arrays": [
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(6).reshape(2, 3).T.copy(order="K"),
        np.array(["ab", "c"]),
        np.array([b"ab"]),
        np.array(["2020-01-01"], "M8[us]"),
        np.array([1, 2], ">i4"),
        np.array([[{"a": 1}, None]], dtype=object),
        np.float16("nan"),
        np.str_("text"),
        np.bytes_(b"a\0"),
        np.bool_(True),
        np.empty((0, 3)),
    ],
}


@pytest.mark.parametrize("name", VALUES)
def test_values_as_pickles_and_torch_files(name: str) -> None:
    value = VALUES[name]
    standins.register()
    forms = [dumps.torch_saved(value), dumps.torch_saved(value, _use_new_zipfile_serialization=False)]
    for data in [*forms, *(pickle.dumps(value, protocol) for protocol in range(2, 6))]:
        read = read_bytes(data, "dump")
        assert_same(as_replayed(value), as_replayed(read))


def as_replayed(value: Any) -> Any:
    """Stand-ins as the classes they stand for, by way of a tape."""
    return roundtrip(value)
