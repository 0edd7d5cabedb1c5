"""Pickles that run code when Python unpickles them. Each would create the marker file; none may here."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path


def text(value: str) -> bytes:
    """The instruction that pushes a text."""
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def name(module: str, attribute: str) -> bytes:
    """The instruction that pushes a global."""
    return f"c{module}\n{attribute}\n".encode()


def dotted(module: str, path: str) -> bytes:
    """The same in protocol 4, where a path of attributes is followed."""
    return text(module) + text(path) + b"\x93"


def call(function: bytes, *arguments: bytes) -> bytes:
    """Call what ``function`` pushes."""
    return function + b"(" + b"".join(arguments) + b"tR"


def finished(body: bytes) -> bytes:
    """A whole pickle."""
    return b"\x80\x04" + body + b"."


def touch(marker: Path) -> bytes:
    return text(f"touch '{marker}'")


def opened(marker: Path) -> bytes:
    return text(f"open({str(marker)!r}, 'w').close()")


OS = call(name("builtins", "__import__"), text("os"))


def python_list(*items: bytes) -> bytes:
    return b"](" + b"".join(items) + b"e"


GADGETS: dict[str, Callable[[Path], bytes]] = {
    "os.system": lambda m: call(name("posix", "system"), touch(m)),
    "subprocess": lambda m: call(name("subprocess", "check_call"), python_list(text("touch"), text(str(m)))),
    "popen": lambda m: call(
        dotted("subprocess", "Popen.wait"),
        call(name("subprocess", "Popen"), python_list(text("touch"), text(str(m)))),
    ),
    "eval": lambda m: call(name("builtins", "eval"), opened(m)),
    "exec": lambda m: call(name("builtins", "exec"), opened(m)),
    "eval of Python 2": lambda m: call(name("__builtin__", "eval"), opened(m)),
    "getattr": lambda m: call(call(name("builtins", "getattr"), OS, text("system")), touch(m)),
    "importlib": lambda m: call(
        call(
            name("builtins", "getattr"),
            call(name("importlib", "import_module"), text("os")),
            text("system"),
        ),
        touch(m),
    ),
    "partial": lambda m: call(
        call(name("functools", "partial"), name("posix", "system"), touch(m)),
    ),
    "attrgetter": lambda m: call(call(call(name("operator", "attrgetter"), text("system")), OS), touch(m)),
    "methodcaller": lambda m: call(call(name("operator", "methodcaller"), text("system"), touch(m)), OS),
    "map": lambda m: call(
        name("builtins", "list"),
        call(name("builtins", "map"), name("posix", "system"), python_list(touch(m))),
    ),
    "method of a path": lambda m: call(
        name("pathlib", "Path.touch"), call(name("pathlib", "Path"), text(str(m)))
    ),
    "dotted name": lambda m: call(dotted("shutil", "os.system"), touch(m)),
    "dotted name of an allowed one": lambda m: (
        call(dotted("collections", "OrderedDict.__init__.__class__.__base__"), touch(m))
        + call(name("builtins", "eval"), opened(m))
    ),
    "timeit": lambda m: call(
        name("timeit", "timeit"), opened(m), text("pass"), name("time", "time"), b"K\x01"
    ),
    "pickle in pickle": lambda m: call(
        name("pickle", "loads"), _bytes(finished(call(name("posix", "system"), touch(m))))
    ),
    "copyreg": lambda m: (
        call(name("copyreg", "__newobj__"), name("builtins", "dict"))
        + call(name("builtins", "eval"), opened(m))
    ),
    "reconstructor": lambda m: (
        call(name("copyreg", "_reconstructor"), name("builtins", "object"), name("builtins", "object"), b"N")
        + call(name("builtins", "exec"), opened(m))
    ),
    "INST": lambda m: b"(" + touch(m) + b"iposix\nsystem\n",
    "OBJ": lambda m: b"(" + name("posix", "system") + touch(m) + b"o",
    "numpy runstring": lambda m: call(name("numpy.testing._private.utils", "runstring"), opened(m), b"}"),
    "in an object array": lambda m: _object_array(call(name("posix", "system"), touch(m))),
    "class of an array": lambda m: (
        call(name("numpy.core.multiarray", "_reconstruct"), name("numpy", "ndarray"), b"K\x00\x85", b"C\x01b")
        + call(name("posix", "system"), touch(m))
    ),
    "key of a dict": lambda m: b"}" + call(name("posix", "system"), touch(m)) + b"K\x01s",
    "state of an allowed class": lambda m: (
        call(name("collections", "OrderedDict"))
        + b"}("
        + text("items")
        + call(name("posix", "system"), touch(m))
        + b"ub"
    ),
    "in a verl batch": lambda m: (
        name("verl.protocol", "DataProto")
        + b")\x81("
        + b"N}"
        + b"}("
        + text("metrics")
        + call(name("posix", "system"), touch(m))
        + b"utb"
    ),
}
"""Pickle bodies by what they use; each creates the file it is given when run by Python."""

REAL = [
    gadget
    for gadget in GADGETS
    if gadget
    not in ("eval of Python 2", "dotted name of an allowed one", "class of an array", "in a verl batch")
    and not gadget.startswith("numpy")
]
"""Those that run on every version of what they name."""


def gadget(which: str, marker: Path) -> bytes:
    """A pickle that runs code."""
    return finished(GADGETS[which](marker))


def _bytes(data: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(data)) + data


def _object_array(item: bytes) -> bytes:
    """What numpy pickles ``np.array([item], dtype=object)`` as."""
    import numpy as np

    whole = pickle.dumps(np.array(["here"], dtype=object), 2)
    at = whole.index(text("here"))
    memo = whole[at + len(text("here")) :][:2]
    return whole[2:].replace(text("here") + memo, item).removesuffix(b".")
