"""What a replay was given: ``replayed.jsonl`` on the tape ``out``, a line with the digest of every recording.

A baseline can be rewritten after it was replayed. The digests say what it held when it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from rolltape.errors import CorruptFileError, StepMissingError
from rolltape.key import Key
from rolltape.storage import Storage

NAME = "replayed.jsonl"


def replayed_line(path: str, digest: str) -> bytes:
    """The line about one recording."""
    return json.dumps({"path": path, "digest": digest}).encode()


def read_replayed(storage: Storage) -> dict[Key, str]:
    """The recordings that a replay was given, with their digests; empty where it kept none."""
    try:
        lines = bytes(storage.read(NAME)).splitlines()
    except StepMissingError:
        return {}
    found: dict[Key, str] = {}
    for number, line in enumerate(lines, 1):
        try:
            node = json.loads(line)
            key, digest = Key.parse(node["path"]), str(node["digest"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            if number == len(lines):  # its process died while writing it
                continue
            raise CorruptFileError(
                f"line {number} cannot be read",
                where=f"{storage.location}/{NAME}",
                causes=["the file was edited, or altered by a disk, copy or transfer error"],
                hint="copy the file again from its source, or replay once more",
            ) from None
        if key is not None:
            found[key] = digest
    return found


def write_replayed(storage: Storage, notes: Mapping[Key, str]) -> None:
    """Keep the notes of another tape; nothing where there are none."""
    if notes:
        lines = [replayed_line(key.path, digest) + b"\n" for key, digest in notes.items()]
        storage.publish(NAME, lines, replace=True)
