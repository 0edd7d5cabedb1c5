"""Whether a file lies where it belongs: it says what it is, its name says what it should be.

A recording says its split, stage, step, call and rank, and of which tape it is. A line of metrics says the
tape and the split, a note beside the recordings the tape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from rolltape.codec.header import About
from rolltape.errors import MisplacedFileError, RolltapeError
from rolltape.key import Key, metrics_path
from rolltape.storage import Storage
from rolltape.tape.checked_lines import parse_line
from rolltape.tape.manifest import read_manifest

_METRICS = metrics_path("train").removeprefix("train/")

FIELDS = ("split", "stage", "step", "call", "rank", "world_size")

_ids: WeakKeyDictionary[Storage, frozenset[str]] = WeakKeyDictionary()
"""The ids under which the recordings of a tape may have been made; asked again before one is refused."""


def check_place(storage: Storage, key: Key, about: About) -> None:
    """Raise ``MisplacedFileError`` unless the recording is the one that its name promises."""
    differs = [
        f"{name} {about.get(name)!r}" for name in FIELDS if not _same(about.get(name), getattr(key, name))
    ]
    if about.tape is not None and (about.get("holds") == "inputs") != key.inputs:
        differs.append("the inputs of a call" if not key.inputs else "the result of a call")
    if differs:
        raise MisplacedFileError(
            f"this is another recording: it was recorded as {', '.join(differs)}",
            causes=["the file was renamed, swapped or copied here"],
            hint="put it back under its own name, or record this step again",
        )
    if about.tape is not None and not _is_of(storage, about.tape):
        raise MisplacedFileError(
            f"this is a recording of another tape, {about.tape[:8]}",
            causes=["the file was copied here from another tape", "tape.json is that of another tape"],
            hint="copy the whole tape instead; rolltape cut and rolltape accept take recordings over",
        )


def check_note(storage: Storage, said: Mapping[str, Any], where: str, split: str | None = None) -> None:
    """Raise ``MisplacedFileError`` unless a line or a note is of this tape, and of ``split`` where given."""
    wrong = strange_note(storage, said, split)
    if wrong is not None:
        raise MisplacedFileError(
            f"this {wrong}",
            where=where,
            causes=["the file was swapped, or copied here from another tape or split"],
            hint="put the right file in its place, or take the lines out: rolltape repair TAPE --drop",
        )


def strange_note(storage: Storage, said: Mapping[str, Any], split: str | None = None) -> str | None:
    """Why a line or a note is not of this tape or split; None where it is, or is too old to say."""
    tape, of_split = said.get("tape"), said.get("split")
    if tape is None:
        return None
    if not isinstance(tape, str) or not _is_of(storage, tape):
        return f"is of another tape, {str(tape)[:8]}"
    if split is not None and of_split != split:
        return f"is of another split, {str(of_split)[:40]}"
    return None


def strange_line(storage: Storage, name: str, line: bytes) -> str | None:
    """The same of a line, or a note, of a file of the tape; None also where it cannot be read."""
    node = as_node(line)
    return None if node is None else strange_note(storage, node, split_of(name))


def split_of(name: str) -> str | None:
    """The split whose metrics a file holds; None for any other file.

    >>> split_of("train/metrics.jsonl"), split_of("noise.json")
    ('train', None)
    """
    split, _, file = name.partition("/")
    return split if file == _METRICS else None


def as_node(line: bytes | memoryview) -> dict[str, Any] | None:
    """What a line or a note says; None where it cannot be read."""
    try:
        node = parse_line(line)
    except (ValueError, RecursionError):
        return None
    return node if isinstance(node, dict) else None


def _same(said: object, wanted: object) -> bool:
    return type(said) is type(wanted) and said == wanted


def _is_of(storage: Storage, tape: str) -> bool:
    known = _ids.get(storage)
    if known is not None and tape in known:
        return True
    try:
        manifest = read_manifest(storage)
    except RolltapeError:  # whoever opens the tape is told; here there is nothing to compare with
        return True
    if manifest is None:
        return True
    _ids[storage] = frozenset({manifest.id, *manifest.sources})
    return tape in _ids[storage]
