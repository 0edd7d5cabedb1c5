"""obstore, as this process can use it.

Its requests run on threads that are made once for a process. A process forked after that has none of them;
whoever asks waits for ever (obstore #441), whatever store is made anew. So a forked child loads the library a
second time, from a copy in memory, which has threads of its own.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from rolltape.errors import MissingDependencyError, StorageError

_INNER = "obstore._obstore"
_kept: list[Any] = []
"""The library of the parent: never let go, since that would wait for its threads."""
_used_by: int | None = None
"""The process that made requests with the library as it is loaded."""


def client_library(where: str) -> Any:
    """The module ``obstore``; raises MissingDependencyError where it is not installed."""
    global _used_by
    mine = os.getpid()
    if _used_by not in (None, mine):
        _load_again(where)
    try:
        found = importlib.import_module("obstore")
    except ImportError:
        raise MissingDependencyError(
            "tapes in object stores need the package obstore",
            where=where,
            hint='pip install "rolltape[store]"',
        ) from None
    _used_by = mine
    return found


def _load_again(where: str) -> None:
    path = getattr(sys.modules.get(_INNER), "__file__", None)
    if path is None:
        return
    if not hasattr(os, "memfd_create"):
        raise StorageError(
            "a process that was forked after it used an object store cannot use it",
            where=where,
            hint='start processes with multiprocessing.get_context("spawn")',
        )
    copy = os.memfd_create("obstore", os.MFD_CLOEXEC)
    with open(path, "rb") as file:
        os.sendfile(copy, file.fileno(), 0, os.fstat(file.fileno()).st_size)
    for name in [name for name in sys.modules if name == "obstore" or name.startswith("obstore.")]:
        _kept.append(sys.modules.pop(name))
    sys.meta_path[:] = [one for one in sys.meta_path if not isinstance(one, _Copy)]
    sys.meta_path.insert(0, _Copy(f"/proc/self/fd/{copy}"))


class _Copy:
    """Finds the compiled part of the library in its copy."""

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _INNER:
            return None
        loader = importlib.machinery.ExtensionFileLoader(name, self._path)
        return importlib.util.spec_from_file_location(name, self._path, loader=loader)
