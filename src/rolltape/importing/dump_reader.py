"""Reads one dump file; holds the complete list of names that a dump may use.

Every name is listed with our function that replaces it. A name that is not on the list is refused before
anything is built; there is no option to change that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rolltape.errors import CorruptFileError, RolltapeError
from rolltape.importing.archives import ARCHIVES, is_torch, read_torch
from rolltape.importing.container_builders import CONTAINERS, MAPPINGS
from rolltape.importing.image_builders import PICTURES
from rolltape.importing.nodes import Node, node_class
from rolltape.importing.numpy_builders import ARRAYS
from rolltape.importing.proto_builders import PROTOS
from rolltape.importing.regular_file import read_regular
from rolltape.importing.resolve import Builder, Resolver
from rolltape.importing.tensor_builders import TENSORS
from rolltape.importing.tensordict_builders import TENSORDICTS
from rolltape.importing.unpickle import Budget, run

ALLOWED: dict[tuple[str, str], Builder] = {
    **CONTAINERS, **ARRAYS, **TENSORS, **ARCHIVES, **TENSORDICTS, **PICTURES, **PROTOS,
}  # fmt: skip
"""Every name that a dump may use, and what it means here."""

_NAMES = {key: node_class(*key, MAPPINGS.get(key[1], Node)) for key in ALLOWED}
_BUILDERS = {cls: ALLOWED[key] for key, cls in _NAMES.items()}


def read_dump(path: str | Path) -> Any:
    """What a dump holds: plain values, arrays, tensors and the stand-ins of ``standins``.

    Raises ``UnsafeDumpError`` for a dump that asks for anything else, ``CorruptFileError`` for a damaged
    one, and ``UnsupportedValueError`` for a value that a tape cannot hold.
    """
    return read_bytes(read_regular(Path(path)), str(path))


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
        raise CorruptFileError(f"its contents are inconsistent: {error!r:.200}", where=where) from error
