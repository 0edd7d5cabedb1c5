"""Lazy batches of torch: a TensorDict whose entries are decoded when somebody first looks at them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import rolltape
from rolltape.codec.file import RecordingFile
from tests.exact import assert_same


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inside = torch.arange(30) < torch.randint(1, 30, (6, 1), generator=generator)
    return {
        "responses": torch.randint(5, 99, (6, 30), generator=generator) * inside,
        "mask": inside.long(),
        "log_probs": torch.randn(6, 30, generator=generator, dtype=torch.bfloat16) * inside,
        "rewards": torch.randn(6, generator=generator),
    }


def batch(**options: Any) -> TensorDict:
    return TensorDict(tensors(), batch_size=[6], **options)


def replay(path: Path, value: Any) -> Any:
    with rolltape.Tape(path, mode="record") as tape:
        rollout = tape.stage("rollout")(lambda: value)
        with tape.step(0):
            rollout()
    with rolltape.Tape(path, mode="replay", lazy=True) as tape:
        rollout = tape.stage("rollout")(lambda: None)
        with tape.step(0):
            return rollout()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The columns that were decoded, in order."""
    found: list[str] = []
    real = RecordingFile._expanded

    def noted(self: RecordingFile, names: Any, *rest: Any) -> Any:
        found.extend(names)
        return real(self, names, *rest)

    monkeypatch.setattr(RecordingFile, "_expanded", noted)
    return found


@pytest.mark.parametrize("options", [{}, {"device": "cpu"}, {"names": ["samples"]}, {"lock": True}], ids=str)
def test_a_tensordict_is_as_recorded(tmp_path: Path, options: dict[str, Any]) -> None:
    found = replay(tmp_path / "t", batch(**options))
    assert type(found) is TensorDict
    assert_same(found, batch(**options))


def test_only_what_is_looked_at_is_decoded(tmp_path: Path, decoded: list[str]) -> None:
    found = replay(tmp_path / "t", batch())
    assert list(found.keys()) == list(tensors())
    assert found.batch_size == torch.Size([6])
    assert decoded == []
    assert torch.equal(found["mask"], tensors()["mask"])
    assert decoded == ["mask"]
    del found["rewards"]
    found["advantages"] = torch.ones(6)
    found.set_("mask", torch.zeros(6, 30, dtype=torch.int64))
    assert set(decoded) <= {"mask", "rewards"}
    assert list(found.keys()) == ["responses", "mask", "log_probs", "advantages"]
    assert not found["mask"].any()


WAYS: dict[str, Callable[[TensorDict], TensorDict]] = {
    "clone": lambda found: found.clone(),
    "a shallow clone": lambda found: found.clone(recurse=False),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda found: pickle.loads(pickle.dumps(found)),
    "a slice of all": lambda found: found[:],
    "rows by index": lambda found: found[torch.arange(6)],
    "a split": lambda found: torch.cat(found.split(2)),
    "chunks": lambda found: torch.cat(found.chunk(3)),
    "select": lambda found: found.select(*tensors()),
    "to": lambda found: found.to("cpu").clear_device_(),
    "contiguous": lambda found: found.contiguous(),
    "a function": lambda found: found.apply(torch.clone),
    "a dict": lambda found: TensorDict(found.to_dict(), batch_size=[6]),
    "update": lambda found: TensorDict({}, batch_size=[6]).update(found),
    "lock": lambda found: found.lock_().unlock_(),
}


@pytest.mark.parametrize("way", WAYS)
def test_whatever_is_done_to_it_it_is_a_tensordict(tmp_path: Path, way: str) -> None:
    assert_same(WAYS[way](replay(tmp_path / "t", batch())), batch())


OTHER = torch.full((6, 30), 7)
SOME = torch.tensor([True, False] * 3)
LIKE_PLAIN: dict[str, Callable[[TensorDict], Any]] = {
    "pop": lambda found: (found.pop("mask"), found.pop("no such", None)),
    "rename": lambda found: found.rename_key_("mask", "other"),
    "exclude": lambda found: found.exclude("mask", inplace=True),
    "select": lambda found: found.select("mask", "no such", strict=False, inplace=True),
    "set": lambda found: (found.set("mask", OTHER), found.set_at_("responses", 7, 0)),
    "update": lambda found: found.update({"mask": OTHER}).update_({"responses": OTHER}),
    "setdefault": lambda found: (found.setdefault("mask", OTHER), found.setdefault("more", OTHER)),
    "fill": lambda found: found.fill_("mask", 3).zero_(),
    "in place": lambda found: found["mask"].add_(1),
    "rows": lambda found: found.__setitem__(0, batch()[1]),
    "clear": lambda found: found.clear(),
    "in": lambda found: ("mask" in found, "no such" in found, len(found), found.is_empty()),
    "keys": lambda found: sorted(found.keys(True, True)),
    "iteration": lambda found: list(found),
    "index": lambda found: (found[2], found[-2:], found[SOME], found[[0, 2]], found[None], found[...]),
    "shapes": lambda found: (found.view(2, 3), found.unsqueeze(0), found.expand(2, 6), found.repeat(2)),
    "equality": lambda found: ((found == batch()).all(), (found != batch()).any()),
    "cat": lambda found: (torch.cat([found, batch()]), torch.cat([batch(), found])),
    "stack": lambda found: torch.stack([found, batch()]),
    "where": lambda found: found.where(SOME, batch()),
    "masked": lambda found: (found.masked_select(SOME), found.masked_fill(SOME, 0)),
    "batch size": lambda found: setattr(found, "batch_size", []),
    "dtype": lambda found: (found.to(torch.float64), found.float(), found.bytes(), found.numel()),
    "shared": lambda found: found.share_memory_(),
    "consolidated": lambda found: found.consolidate(),
    "replaced": lambda found: found.replace(mask=OTHER),
    "inside of another": lambda found: TensorDict({"x": found}, [6])["x", "mask"],
    "a tree": lambda found: torch.utils._pytree.tree_map(torch.clone, found),
}


@pytest.mark.parametrize("way", LIKE_PLAIN)
def test_what_comes_of_it_is_what_comes_of_a_plain_one(tmp_path: Path, way: str) -> None:
    lazy, plain = replay(tmp_path / "t", batch()), batch()
    assert_alike(LIKE_PLAIN[way](lazy), LIKE_PLAIN[way](plain))
    assert_alike(lazy, plain)


def assert_alike(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, TensorDict):
        assert list(found.keys()) == list(expected.keys())
        assert (found.batch_size, found.is_locked) == (expected.batch_size, expected.is_locked)
        for key in expected.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
            assert_alike(found.get(key), expected.get(key))
    elif isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other)
    else:
        assert found == expected


def test_tensors_inside_of_others(tmp_path: Path, decoded: list[str]) -> None:
    value = {"data": batch(), "extra": tensors()["rewards"], "inner": {"more": tensors()["mask"]}}
    found = replay(tmp_path / "t", value)
    assert decoded == []
    assert torch.equal(found["data"]["log_probs"], tensors()["log_probs"])
    assert len(decoded) == 1
    assert_same(found["data"], batch())
    assert_same(found["inner"]["more"], tensors()["mask"])


def test_a_tensordict_within_a_tensordict(tmp_path: Path) -> None:
    value = TensorDict({"inner": batch(), "rewards": tensors()["rewards"]}, batch_size=[6])
    found = replay(tmp_path / "t", value)
    assert_same(found["inner", "mask"], tensors()["mask"])
    assert_same(found, value)
