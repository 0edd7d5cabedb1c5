"""What a worker of a cluster does: make sure that it sees what the one who asks sees, then the work."""

from __future__ import annotations

import hashlib
import os
import pickle
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rolltape._version import __version__
from rolltape.errors import ConfigError, RolltapeError
from rolltape.storage import storage_at
from rolltape.tape.manifest import NAME


@dataclass(frozen=True, slots=True)
class Sight:
    """A tape as the one who asks sees it."""

    place: str
    digest: str | None
    """Of its ``tape.json``; None where that cannot be read."""


@dataclass(frozen=True, slots=True)
class NodeWork:
    """Work that a worker is given, with what it takes for granted."""

    work: Callable[[Sequence[Any]], Iterator[Any]]
    tapes: tuple[Sight, ...]
    version: str = __version__


@dataclass(frozen=True, slots=True)
class Raised:
    """The error that the work ended with."""

    error: Exception


def look(place: str) -> Sight:
    """A tape, as this machine sees it."""
    try:
        return Sight(place, hashlib.blake2b(storage_at(place).read(NAME), digest_size=16).hexdigest())
    except RolltapeError:
        return Sight(place, None)


def do(sent: bytes, items: bytes, folder: str) -> bytes:
    """Do a piece of work; what comes out, or the error that was raised, as bytes.

    ``folder`` is where the one who asks works: functions that people write lie there.
    """
    found: list[Any] | Raised
    try:
        if os.path.isdir(folder) and folder not in sys.path:
            sys.path.insert(0, folder)
        given: NodeWork = pickle.loads(sent)
        check_node(given)
        found = list(given.work(pickle.loads(items)))
    except Exception as error:  # told to the one who asks, as if it had been raised there
        error.__cause__ = error.__context__ = None
        found = Raised(error.with_traceback(None))
    return pickle.dumps(found)


def check_node(given: NodeWork) -> None:
    """Refuse to work where the result could be another one: another version, another tape, or none."""
    node = socket.gethostname()
    if given.version != __version__:
        raise ConfigError(
            f"node {node} has Rolltape {__version__}, and the one that asks has {given.version}",
            hint=f"install the same version on every node: pip install rolltape=={given.version}",
        )
    for tape in given.tapes:
        mine = look(tape.place)
        if tape.digest is None or mine.digest == tape.digest:
            continue
        what = "cannot read this tape" if mine.digest is None else "has another tape at this place"
        raise ConfigError(
            f"node {node} {what}",
            where=tape.place,
            causes=["the place is on a disk of another machine", "the node lacks the keys to the store"],
            hint="every node needs it at the same place: on a disk that all share, or in an object store",
        )
