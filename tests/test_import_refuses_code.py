"""A dump that tries to run code is refused by name, and nothing of it runs. No torch is needed for that."""

from __future__ import annotations

import copyreg
import os
import pickle
import resource
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from rolltape.errors import CorruptFileError, RolltapeError
from rolltape.importing import UnsafeDumpError, read_dump
from rolltape.importing.dump_reader import ALLOWED, read_bytes
from tests.gadgets import GADGETS, REAL, finished, gadget, name, text

SRC = Path(__file__).parents[1] / "src" / "rolltape" / "importing"


@pytest.mark.parametrize("which", GADGETS)
def test_a_gadget_is_refused_and_never_runs(which: str, tmp_path: Path) -> None:
    marker = tmp_path / "pwned"
    dump = tmp_path / "step_000000.pkl"
    dump.write_bytes(gadget(which, marker))
    with pytest.raises(UnsafeDumpError, match="refused: the dump asks for") as caught:
        read_dump(dump)
    assert not marker.exists()
    assert str(dump) in str(caught.value)


@pytest.mark.parametrize("which", REAL)
def test_the_gadgets_are_real(which: str, tmp_path: Path) -> None:
    marker = tmp_path / "pwned"
    (tmp_path / "x.pkl").write_bytes(gadget(which, marker))
    code = f"import pickle; pickle.load(open({str(tmp_path / 'x.pkl')!r}, 'rb'))"
    subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert marker.exists()


@pytest.mark.parametrize(
    ("module", "attribute"),
    [
        ("numpy.f2py.crackfortran", "myeval"),
        ("torch.hub", "load"),
        ("torch", "load"),
        ("torch.serialization", "load"),
        ("torch._utils", "_rebuild_device_tensor_from_numpy.__globals__"),
        ("torch.utils.data", "DataLoader"),
        ("numpy", "load"),
        ("builtins", "open"),
        ("builtins", "type"),
        ("types", "CodeType"),
        ("os", "remove"),
        ("sys", "modules"),
        ("__main__", "anything"),
        ("verl.protocol", "DataProto.load_from_disk"),
        ("tensordict._td", "TensorDict.load_memmap"),
        ("cloudpickle.cloudpickle", "_make_function"),
    ],
)
def test_every_other_name_is_refused_by_its_name(module: str, attribute: str) -> None:
    before = set(sys.modules)
    for body in (name(module, attribute), text(module) + text(attribute) + b"\x93"):
        with pytest.raises(UnsafeDumpError, match=attribute):
            read_bytes(finished(body), "dump")
    assert set(sys.modules) == before, "looking at a name must not import its module"


def test_extension_codes_are_refused(tmp_path: Path) -> None:
    copyreg.add_extension("posix", "system", 240)
    try:
        with pytest.raises(UnsafeDumpError, match="EXT1"):
            read_bytes(finished(b"\x82\xf0(" + text("true") + b"tR"), "dump")
    finally:
        copyreg.remove_extension("posix", "system", 240)


def test_objects_kept_elsewhere_are_refused() -> None:
    for body in (text("anything") + b"Q", b"Panything\n"):
        with pytest.raises(UnsafeDumpError):
            read_bytes(finished(body), "dump")


@pytest.mark.parametrize("key", ALLOWED)
def test_an_allowed_name_cannot_be_poisoned(key: tuple[str, str]) -> None:
    """State set on a name itself, or on what it makes, changes nothing for the next file."""
    before = {name: vars(cls).copy() for name, cls in _node_classes().items()}
    evil = b"}(" + text("__init__") + name("collections", "OrderedDict") + b"u"
    slots = b"N}(" + text("__class__") + name("collections", "OrderedDict") + text("args") + b"K\x01u\x86"
    made = name(*key) + b")R"
    for target in (name(*key), made, name(*key) + b")\x81"):
        for state in (evil, slots):
            with pytest.raises(RolltapeError):
                read_bytes(finished(target + state + b"b"), "dump")
    assert {name: vars(cls).copy() for name, cls in _node_classes().items()} == before


@pytest.mark.parametrize("key", ALLOWED)
def test_an_allowed_name_with_nonsense_is_an_error_of_ours(key: tuple[str, str]) -> None:
    arguments = [
        b"",
        b"N",
        b"K\x01",
        text("x"),
        b"]",
        b"}",
        b"NN",
        b"K\x01K\x02",
        text("i8") + b"\x89\x88",
        b"}N}",
    ]
    for some in [*arguments, b"N" * 4, b"(K\x01t" * 6, b"}" * 8]:
        for body in (name(*key) + b"(" + some + b"tR", name(*key) + b")\x81(" + some + b"tb"):
            try:
                read_bytes(finished(body), "dump")
            except RolltapeError:
                continue


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"Nr\xff\xff\xff\x7f", id="far memo slot"),
        pytest.param(b"\x8e" + struct.pack("<Q", 2**60) + b"x", id="endless bytes"),
        pytest.param(b"\x95" + struct.pack("<Q", 2**60) + b"N", id="endless frame"),
        pytest.param(b"](" + b"h\x00" * 9 + b"e", id="memo that is empty"),
    ],
)
def test_claims_beyond_the_file_are_refused(body: bytes) -> None:
    with pytest.raises((UnsafeDumpError, CorruptFileError)):
        read_bytes(finished(body), "dump")


def test_a_small_file_cannot_unfold_into_a_huge_value() -> None:
    body = b"]q\x00(" + b"K\x01" * 10 + b"e0"
    for level in range(1, 30):
        body += b"]q" + bytes([level]) + b"(" + (b"h" + bytes([level - 1])) * 10 + b"e0"
    with pytest.raises(UnsafeDumpError, match="too much memory for its size"):
        read_bytes(finished(body + b"h\x1d"), "dump")


def test_a_value_that_contains_itself_is_an_error() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(CorruptFileError, match="contains itself"):
        read_bytes(pickle.dumps(loop), "dump")


def test_a_dump_cut_anywhere_is_reported(tmp_path: Path) -> None:
    whole = pickle.dumps({"a": [1, 2.5, "three", b"four", (5, None)] * 3, "b": {"c": {6, 7}}})
    for cut in range(len(whole)):
        with pytest.raises(CorruptFileError) as caught:
            read_bytes(whole[:cut], "step 7")
        assert "step 7" in str(caught.value)


def test_python_s_own_unpickling_is_used_nowhere_else() -> None:
    for file in SRC.rglob("*.py"):
        code = file.read_text()
        for banned in ("pickle.load(", "pickle.loads(", "torch.load(", "np.load(", "super().find_class"):
            assert banned not in code.replace("``torch.load``", ""), (file.name, banned)


def _node_classes() -> dict[str, type]:
    from rolltape.importing import dump_reader as reader

    return {cls.name: cls for cls in reader._NAMES.values()}


def _twice(levels: int) -> bytes:
    """A tuple of two equal tuples of two equal tuples: a few bytes, and more items than there are atoms."""
    return b"K\x01q\x000" + b"".join(
        b"h%ch%c\x86q%c0" % (level, level, level + 1) for level in range(levels)
    ) + b"h%c" % levels  # fmt: skip


def _complex(number: int) -> bytes:
    real, imag = struct.pack(">d", -1000003.0 * number), struct.pack(">d", float(number))
    return name("builtins", "complex") + b"G" + real + b"G" + imag + b"\x86R"


def _long(number: int) -> bytes:
    return b"\x8a\x0b" + number.to_bytes(11, "little")


KEYS = {
    "nested 400,000 deep": b")" + b"\x85" * 400_000 + b"K\x01",
    "a tuple of 2**60 items": _twice(60) + b"K\x01",
    "60,000 numbers of one hash": b"".join(_long(n * (2**61 - 1)) + b"K\x01" for n in range(1, 60_000)),
    "60,000 complex numbers of one hash": b"".join(_complex(n) + b"K\x01" for n in range(60_000)),
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("kind", ["dict", "set", "frozenset", "OrderedDict"])
def test_keys_that_cannot_be_hashed_in_time_are_refused(key: str, kind: str, tmp_path: Path) -> None:
    """In this process too: nothing here may crash it, or hold it up."""
    body = {
        "dict": b"}(" + KEYS[key] + b"u",
        "set": b"\x8f(" + KEYS[key] + b"\x90",
        "frozenset": b"(" + KEYS[key] + b"\x91",
        "OrderedDict": name("collections", "OrderedDict") + b")R(" + KEYS[key] + b"u",
    }[kind]
    (tmp_path / "dump.pkl").write_bytes(finished(body))
    code = "import sys; from rolltape.importing import read_dump; read_dump(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "dump.pkl")],
        check=False,
        capture_output=True,
        timeout=120,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC.parents[1])},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (10, 10)),
    )
    assert done.returncode == 1, (done.returncode, done.stderr[-500:])
    assert "UnsafeDumpError" in done.stderr or "CorruptFileError" in done.stderr


@pytest.mark.parametrize("empty", [b"]", b")", b"}", b"\x8f", b"(\x91"], ids=repr)
def test_empty_containers_that_are_shared_are_counted(empty: bytes) -> None:
    body = empty + b"q\x000"
    for level in range(30):
        body += b"](" + (b"h%c" % level) * 10 + b"eq%c0" % (level + 1)
    with pytest.raises(UnsafeDumpError, match="too much memory for its size"):
        read_bytes(finished(body + b"h\x1e"), "dump")


def test_a_name_of_an_object_kept_elsewhere_is_not_written_out() -> None:
    with pytest.raises(RolltapeError):
        read_bytes(finished(_twice(60) + b"Q"), "dump")


def test_dicts_and_sets_are_as_they_were() -> None:
    shared = {"a": 1}
    value = {
        1: "one", (1, ("x", b"y")): {2.5, "t"}, frozenset({1, 2}): [shared, shared], None: {}, False: set(),
    }  # fmt: skip
    for protocol in (2, 3, 4, 5):
        found = read_bytes(pickle.dumps(value, protocol), "dump")
        assert found == value
        assert list(found) == list(value)
        assert found[frozenset({1, 2})][0] is found[frozenset({1, 2})][1]
