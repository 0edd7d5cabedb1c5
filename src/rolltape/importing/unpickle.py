"""Runs a pickle with every name replaced by an inert node. No other unpickling happens in Rolltape."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from typing import IO, Any

from rolltape.errors import CorruptFileError, RolltapeError
from rolltape.importing.errors import refused
from rolltape.importing.nodes import Node
from rolltape.importing.opcodes import Buffer, scan

Storages = Callable[[Any], Any]
"""Finds the bytes that a persistent id names."""


class InertUnpickler(pickle.Unpickler):
    """Knows the names it is given, as nodes, and refuses every other."""

    def __init__(
        self,
        file: IO[bytes],
        names: Mapping[tuple[str, str], type[Node]],
        storages: Storages | None,
        where: str,
    ) -> None:
        super().__init__(file)
        self._names = names
        self._storages = storages
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        """The node class of an allowed name. The inherited method, which imports, is never called."""
        try:
            return self._names[module, name]
        except (KeyError, TypeError):
            raise refused(f"{module}.{name}", self._where) from None

    def persistent_load(self, pid: Any) -> Any:
        """A storage of the torch file that the pickle belongs to."""
        if self._storages is None:
            raise refused(f"an object kept elsewhere (persistent id {str(pid)[:80]!r})", self._where)
        return self._storages(pid)


def run(
    data: Buffer,
    names: Mapping[tuple[str, str], type[Node]],
    where: str,
    storages: Storages | None = None,
    start: int = 0,
) -> tuple[Any, int]:
    """What the pickle at ``start`` makes, with nodes for everything but plain values; and where it ends."""
    end = scan(data, where, start)
    file = io.BufferedReader(io.BytesIO(data[start:end]))
    try:
        return InertUnpickler(file, names, storages, where).load(), end
    except RolltapeError as error:
        error.where = error.where or where
        raise
    except Exception as error:  # whatever a damaged pickle trips over
        raise CorruptFileError(
            f"the pickle cannot be read: {type(error).__name__}: {error}",
            where=where,
            causes=["the dump was damaged, or cut short while it was written"],
        ) from None
