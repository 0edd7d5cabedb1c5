"""Whether a recording lies where it belongs: the file says what it is, its name says what it should be."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from rolltape.codec.header import About
from rolltape.errors import MisplacedFileError, RolltapeError
from rolltape.key import Key
from rolltape.storage import Storage
from rolltape.tape.manifest import read_manifest

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
