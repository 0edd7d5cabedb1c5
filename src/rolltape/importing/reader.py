"""Reads one dump file: the complete list of names that a dump may use, and the way in.

Every name is listed with the function of ours that stands for it. What is not on the list is refused, by
its name, before anything is made of it; there is no option to change that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rolltape.errors import CorruptFileError, RolltapeError
from rolltape.importing.archives import ARCHIVES, is_torch, read_torch
from rolltape.importing.arrays import ARRAYS
from rolltape.importing.budget import Budget
from rolltape.importing.containers import CONTAINERS, MAPPINGS
from rolltape.importing.nodes import Node, node_class
from rolltape.importing.pictures import PICTURES
from rolltape.importing.protos import PROTOS
from rolltape.importing.resolve import Builder, Resolver
from rolltape.importing.tensordicts import TENSORDICTS
from rolltape.importing.tensors import TENSORS
from rolltape.importing.unpickle import run

ALLOWED: dict[tuple[str, str], Builder] = {
    **CONTAINERS, **ARRAYS, **TENSORS, **ARCHIVES, **TENSORDICTS, **PICTURES, **PROTOS,
}  # fmt: skip
"""Every name that a dump may use, and what it means here."""

_NAMES = {key: node_class(*key, MAPPINGS.get(key[1], Node)) for key in ALLOWED}
_BUILDERS = {cls: ALLOWED[key] for key, cls in _NAMES.items()}


def read_dump(path: str | Path) -> Any:
    """What a dump holds: plain values, arrays, tensors and the stand-ins of ``standins``.

    Raises ``UnsafeDumpError`` for a dump that asks for anything else, ``CorruptFileError`` for a damaged
    one, and ``UnsupportedValueError`` for a value no tape can hold.
    """
    return read_bytes(Path(path).read_bytes(), str(path))


def read_bytes(data: bytes, where: str) -> Any:
    """The same for a dump in memory."""
    resolve = Resolver(_NAMES, _BUILDERS, Budget(len(data), where), where)
    try:
        if is_torch(data):
            return read_torch(data, resolve, where)
        return resolve(run(data, _NAMES, where)[0])
    except RolltapeError as error:
        error.where = error.where or where
        raise
    except Exception as error:  # values that pass every check of their own and still do not fit together
        raise CorruptFileError(f"its contents do not fit together: {error!r:.200}", where=where) from error
