"""Code hidden in tensor files, and in the bytes inside other dumps, is refused too; so are sizes that lie."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from rolltape.errors import CorruptFileError, RolltapeError
from rolltape.importing import UnsafeDumpError, import_dumps
from rolltape.importing.dump_reader import read_bytes
from rolltape.importing.resolve import Resolver
from rolltape.importing.tensor_builders import jagged
from rolltape.importing.tensordict_builders import _leaf
from rolltape.importing.unpickle import Budget
from tests.gadgets import GADGETS, call, finished, gadget, name, text
from tests.torch import dumps


def zip_of(
    data_pkl: bytes, storages: dict[str, bytes] | None = None, method: int = zipfile.ZIP_STORED
) -> bytes:
    """A torch file around a pickle of our own."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("archive/data.pkl", data_pkl)
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/version", "3")
        for key, data in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", data)
    return file.getvalue()


def legacy_of(object_pickle: bytes) -> bytes:
    """An old torch file around a pickle of our own."""
    whole = dumps.torch_saved([1], _use_new_zipfile_serialization=False)
    at = whole.index(b"\x80\x02]")
    return whole[:at] + object_pickle + pickle.dumps([], 2)


def batch_of(data: bytes, kind: type[dumps.Proto] = dumps.VerlProto) -> bytes:
    """A DataProto whose tensors are these bytes."""
    proto = kind(None, {}, {})
    proto.saved = lambda: data  # type: ignore[method-assign]
    return dumps.dumped(proto)


def storage_from(data: bytes) -> bytes:
    """A tensor, pickled on its own, whose storage is these bytes."""
    raw = b"B" + struct.pack("<I", len(data)) + data
    storage = call(name("torch.storage", "_load_from_bytes"), raw)
    empty = call(name("collections", "OrderedDict"))
    return finished(
        call(name("torch._utils", "_rebuild_tensor_v2"), storage, b"K\x00", b")", b")", b"\x89", empty)
    )


HIDING = {
    "a torch file": lambda evil: zip_of(evil),
    "an old torch file": lambda evil: legacy_of(evil),
    "a verl batch": lambda evil: batch_of(zip_of(evil)),
    "a verl batch, old torch": lambda evil: batch_of(legacy_of(evil)),
    "a ROLL batch": lambda evil: batch_of(zip_of(evil), dumps.RollProto),
    "a storage": lambda evil: storage_from(legacy_of(evil)),
    "a storage in a torch file": lambda evil: zip_of(storage_from(legacy_of(evil))),
}


@pytest.mark.parametrize("place", HIDING)
@pytest.mark.parametrize(
    "which", ["os.system", "eval", "getattr", "partial", "dotted name", "in an object array"]
)
def test_a_gadget_inside_tensors_is_refused_and_never_runs(place: str, which: str, tmp_path: Path) -> None:
    marker = tmp_path / "pwned"
    with pytest.raises(UnsafeDumpError, match="refused: the dump asks for"):
        read_bytes(HIDING[place](gadget(which, marker)), "dump")
    assert not marker.exists()


@pytest.mark.parametrize("which", ["os.system", "eval"])
@pytest.mark.parametrize("place", ["a torch file", "an old torch file", "a storage"])
def test_these_places_are_real(place: str, which: str, tmp_path: Path) -> None:
    marker = tmp_path / "pwned"
    data = HIDING[place](gadget(which, marker))
    with suppress(Exception):  # torch stumbles over what the gadget leaves behind
        pickle.loads(data) if place == "a storage" else torch.load(io.BytesIO(data), weights_only=False)
    assert marker.exists()


@pytest.mark.parametrize(
    "pid",
    [
        text("anything"),
        b"(" + text("storage") + text("torch.FloatStorage") + text("0") + text("cpu") + b"K\x01t",
        b"(" + text("storage") + name("collections", "OrderedDict") + text("0") + text("cpu") + b"K\x01t",
        b"(" + text("module") + name("torch", "Tensor") + text("x.py") + text("import os") + b"t",
        b"("
        + text("storage")
        + name("torch", "FloatStorage")
        + text("../../etc/passwd")
        + text("cpu")
        + b"K\x01t",
        b"(" + text("storage") + name("torch", "FloatStorage") + text("0") + text("cpu") + b"M\xff\xfft",
    ],
)
def test_a_persistent_id_names_tensor_data_of_this_file_or_nothing(pid: bytes) -> None:
    with pytest.raises((UnsafeDumpError, CorruptFileError)):
        read_bytes(zip_of(finished(pid + b"Q"), {"0": b"\0" * 4}), "dump")


def tensor_pickle(offset: int, size: list[int], stride: list[int]) -> bytes:
    """A tensor over a storage of 4 floats."""

    def number(n: int) -> bytes:
        return b"\x8a\x09" + n.to_bytes(9, "little", signed=True)

    pid = b"(" + text("storage") + name("torch", "FloatStorage") + text("0") + text("cpu") + b"K\x04tQ"
    shape, steps = (b"(" + b"".join(map(number, ns)) + b"t" for ns in (size, stride))
    hooks = call(name("collections", "OrderedDict"))
    body = call(name("torch._utils", "_rebuild_tensor_v2"), pid, number(offset), shape, steps, b"\x89", hooks)
    return zip_of(finished(body), {"0": b"\0" * 16})


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [
        (0, [5], [1]), (4, [1], [1]), (5, [0], [1]), (-1, [1], [1]), (0, [2], [-1]), (0, [-1], [1]),
        (0, [2, 2], [1]), (0, [2**40, 2**40], [0, 0]), (0, [2**62], [0]), (0, [2], [2**61]),
    ],
)  # fmt: skip
def test_a_tensor_stays_inside_its_storage_and_in_proportion(
    offset: int, size: list[int], stride: list[int]
) -> None:
    with pytest.raises((UnsafeDumpError, CorruptFileError)):
        read_bytes(tensor_pickle(offset, size, stride), "dump")
    assert read_bytes(tensor_pickle(1, [3], [1]), "dump").tolist() == [0.0] * 3


def test_compressed_tensor_data_is_refused() -> None:
    with pytest.raises(UnsafeDumpError, match="compressed"):
        read_bytes(zip_of(finished(b"N"), {"0": b"\0" * 10**6}, zipfile.ZIP_DEFLATED), "dump")


def test_rows_of_a_jagged_tensor_stay_inside_its_values() -> None:
    good = torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    whole = bytearray(dumps.torch_saved(good))
    offsets = struct.pack("<3q", 0, 2, 5)
    for evil in ((0, 2, 6), (0, 7, 5), (-1, 2, 5), (0, 2, 2**60)):
        at = whole.index(offsets)
        altered = whole[:at] + struct.pack("<3q", *evil) + whole[at + 24 :]
        with pytest.raises(RolltapeError):
            read_bytes(_with_checksums(bytes(altered)), "dump")


def test_one_refused_file_does_not_keep_the_others_from_being_imported(tmp_path: Path) -> None:
    marker = tmp_path / "pwned"
    root = dumps.skip_manager(tmp_path / "d", [1, 2, 3])
    for at, which in enumerate(GADGETS):
        (root / "2" / "gen_batch.dp").write_bytes(batch_of(zip_of(gadget(which, marker))))
        report = import_dumps(root, tmp_path / "t")
        assert report is not None
        assert [(Path(p.file).parent.name, p.kind) for p in report.problems] == [("2", "refused")], which
        assert (len(report.imported), report.kept) == ((2, 0) if at == 0 else (0, 2))
    assert not marker.exists()
    assert sorted(f.name for f in (tmp_path / "t").rglob("*.parquet")) == [
        "step_000001.parquet",
        "step_000003.parquet",
    ]


def _with_checksums(data: bytes) -> bytes:
    """The same archive with the checksums it should have, so that only our own checks are left."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {}
        for entry in archive.infolist():
            start = entry.header_offset + 30 + len(entry.filename)
            start += int.from_bytes(data[entry.header_offset + 28 : entry.header_offset + 30], "little")
            entries[entry.filename] = data[start : start + entry.file_size]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for filename, content in entries.items():
            archive.writestr(filename, content)
    return file.getvalue()


def test_rows_and_leaves_that_overlap_are_counted() -> None:
    """Each is a view that takes nothing, and all of them are written to the tape."""
    budget = Budget(0, "dump")
    budget.limit = 10_000
    resolve = Resolver({}, {}, budget, "dump")
    values, offsets = torch.zeros(100), torch.zeros(101, dtype=torch.int64)
    with pytest.raises(UnsafeDumpError, match="too much memory for its size"):
        jagged(values, offsets, torch.full((100,), 100), 1, None, resolve)
    budget.used = 0
    entry = ("float32", (100,), 0, 400, 0)
    for _ in range(25):
        _leaf(entry, torch.zeros(400, dtype=torch.uint8), None, resolve)
    with pytest.raises(UnsafeDumpError, match="too much memory for its size"):
        _leaf(entry, torch.zeros(400, dtype=torch.uint8), None, resolve)
