"""What a replay was given: ``replayed.jsonl`` on the tape ``out``, a line with the digest of every recording.

A baseline can be rewritten after it was replayed. The digests say what it held when it was. Beside each
stands how long the trainer waited for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from rolltape.batch.json_values import Json
from rolltape.errors import CorruptFileError, StepMissingError
from rolltape.key import Key
from rolltape.storage import Storage
from rolltape.tape.checked_lines import parse_line
from rolltape.tape.place import check_note

NAME = "replayed.jsonl"


def replayed_line(path: str, digest: str, tape: str, waited: float | None = None) -> bytes:
    """The line about one recording, on the tape of this id."""
    line: dict[str, Json] = {"path": path, "digest": digest, "tape": tape}
    return json.dumps(line if waited is None else line | {"waited": round(waited, 6)}).encode()


def read_replayed(storage: Storage) -> dict[Key, str]:
    """The recordings that a replay was given, with their digests; empty where it kept none."""
    return {key: digest for key, digest, _ in _read(storage)}


def read_waits(storage: Storage) -> dict[Key, float]:
    """How many seconds the trainer waited for each recording; empty where nobody noted it."""
    return {key: waited for key, _, waited in _read(storage) if waited is not None}


def _read(storage: Storage) -> list[tuple[Key, str, float | None]]:
    try:
        lines = bytes(storage.read(NAME)).splitlines()
    except StepMissingError:
        return []
    found: list[tuple[Key, str, float | None]] = []
    for number, line in enumerate(lines, 1):
        try:
            node = parse_line(line)
            key, digest = Key.parse(node["path"]), str(node["digest"])
            waited = _seconds(node.get("waited"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            if number == len(lines):  # its process died while writing it
                continue
            raise CorruptFileError(
                f"line {number} cannot be read",
                where=f"{storage.location}/{NAME}",
                causes=["the file was edited, or altered by a disk, copy or transfer error"],
                hint="copy the file again from its source, or replay once more",
            ) from None
        check_note(storage, node, f"{storage.location}/{NAME}, line {number}")
        if key is not None:
            found.append((key, digest, waited))
    return found


def _seconds(value: Json) -> float | None:
    """A duration; None for what is none: older replays noted none, and it proves nothing."""
    known = isinstance(value, (int, float)) and 0 <= value < 1e9
    return float(value) if known else None


def write_replayed(storage: Storage, notes: Mapping[Key, str], tape: str) -> None:
    """Keep the notes of another tape on the one of this id; nothing where there are none."""
    if notes:
        lines = [replayed_line(key.path, digest, tape) + b"\n" for key, digest in notes.items()]
        storage.publish(NAME, lines, replace=True)
