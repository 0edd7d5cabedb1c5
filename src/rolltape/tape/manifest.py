"""``tape.json``: what a tape says about itself."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
import os
import platform
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolltape import determinism
from rolltape._version import __version__
from rolltape.batch.json_values import Path, to_json, unsupported
from rolltape.codec.file import FORMAT
from rolltape.errors import CorruptFileError, FormatVersionError, StepExistsError, StepMissingError
from rolltape.storage import Storage, has_segments
from rolltape.storage.segment_index import FORMAT as SEGMENTED
from rolltape.tape.program import program

NAME = "tape.json"
NEWEST = SEGMENTED
"""The highest format that is read. A tape has 1, or 2 once it has segments."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of ``tape.json``."""

    id: str
    """Names this tape, wherever it is copied."""
    created: str
    """When it was begun, in UTC."""
    producer: str
    """The Rolltape that wrote it."""
    fingerprint: Mapping[str, Any]
    """What this run says about itself, in named parts, as JSON."""
    environment: Mapping[str, str]
    """Versions and flags that could change numbers."""
    format: int = FORMAT
    """The version of everything on the tape."""
    earlier: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fingerprints that mode rewrite replaced, by digest: recordings it did not reach have them."""
    baseline: Mapping[str, str] | None = None
    """The ``id`` and ``dir`` of the tape whose replay wrote this one."""
    cut: Mapping[str, Any] | None = None
    """Where it was cut out of another: ``of`` (the ids of that one), ``steps`` and ``samples``."""
    lost: str | None = None
    """The digest of the fingerprint, where a repair found that but not the fingerprint."""
    sources: Sequence[str] = ()
    """Ids of the tapes from which recordings were copied onto this one, by ``cut`` or ``accept``."""
    program: Mapping[str, str] = field(default_factory=dict)
    """The ``command`` that began it and the ``commit`` of its code, where these are known."""

    @property
    def digest(self) -> str:
        """Stands for the fingerprint in every recording made under it."""
        return self.lost or digest_of(self.fingerprint)


def new_manifest(fingerprint: Mapping[str, Any], baseline: Mapping[str, str] | None = None) -> Manifest:
    """A manifest for a tape that begins now."""
    return Manifest(
        id=uuid.UUID(bytes=os.urandom(16), version=4).hex,
        created=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        producer=f"rolltape {__version__}",
        fingerprint=plain_parts(fingerprint),
        environment=environment(),
        baseline=baseline,
        program=program(),
    )


def digest_of(parts: Mapping[str, Any]) -> str:
    """A short hash of fingerprint parts, whatever their order."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def plain_parts(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Fingerprint parts as the JSON that is compared and stored."""

    def refuse(value: Any, path: Path) -> Any:
        raise unsupported(value, path, "a part is text, a number, or a structure of those")

    return {name: to_json(part, refuse, ("fingerprint", name)) for name, part in fingerprint.items()}


def environment() -> dict[str, str]:
    """What of this process could change numbers: versions of what is loaded, platform, determinism flags."""
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    for module in ("numpy", "torch", "transformers", "vllm", "sglang", "verl", "trl"):
        version = getattr(sys.modules.get(module), "__version__", None)
        if version is not None:
            found[module] = str(version)
    found |= determinism.in_force()
    return found


def read_manifest(storage: Storage) -> Manifest | None:
    """The manifest of an existing tape; None where there is none."""
    where = f"{storage.location}/{NAME}"
    try:
        text = bytes(storage.read(NAME))
    except StepMissingError:
        return None
    try:
        node = json.loads(text)
        version = node["format"]
        if type(version) is not int or version < 1:
            raise ValueError(f"format is {version!r}")
        if version <= NEWEST:
            return _manifest(node)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptFileError(
            f"tape.json cannot be read: {error!r}",
            where=where,
            causes=["a copy of the tape did not finish", "another tool wrote or edited it"],
            hint="copy tape.json again from its source, or make it anew: rolltape repair TAPE; "
            "the recordings beside it are untouched",
        ) from None
    raise FormatVersionError(
        f"the tape has format {version}; this Rolltape reads up to {NEWEST}",
        where=where,
        causes=[f"it was written by a newer Rolltape ({node.get('producer', 'unknown')})"],
        hint="pip install --upgrade rolltape",
    )


def _manifest(node: Mapping[str, Any]) -> Manifest:
    kinds = {"id": str, "created": str, "producer": str, "fingerprint": dict, "environment": dict}
    for name, kind in kinds.items():
        if type(node[name]) is not kind:
            raise TypeError(f"{name} is not {kind.__name__}")
    earlier = node.get("earlier", {})
    if type(earlier) is not dict or not all(type(parts) is dict for parts in earlier.values()):
        raise TypeError("earlier is not fingerprints by digest")
    baseline = node.get("baseline")
    if baseline is not None and not all(type(baseline[name]) is str for name in ("id", "dir")):
        raise TypeError("baseline does not name a tape")
    cut = node.get("cut")
    if cut is not None and not (
        type(cut["of"]) is list and all(type(cut[name]) is str for name in ("steps", "samples"))
    ):
        raise TypeError("cut does not say what was taken")
    if type(lost := node.get("lost")) not in (str, type(None)):
        raise TypeError("lost is not a digest")
    sources = node.get("sources", [])
    if type(sources) is not list or not all(type(one) is str for one in sources):
        raise TypeError("sources are not ids of tapes")
    known = node.get("program", {})
    if type(known) is not dict or not all(type(one) is str for one in known.values()):
        raise TypeError("program is not texts by name")
    found = {name: node[name] for name in (*kinds, "format")}
    more: dict[str, Any] = {"earlier": earlier, "baseline": baseline, "cut": cut, "lost": lost}
    return Manifest(**found, **more, sources=sources, program=known)


def raise_format(storage: Storage) -> None:
    """Make older readers refuse a tape that has segments, which they would not see."""
    manifest = read_manifest(storage)
    if manifest is not None and manifest.format < SEGMENTED:
        write_manifest(storage, manifest, replace=True)


def write_manifest(storage: Storage, manifest: Manifest, *, replace: bool = False) -> Manifest:
    """Publish a manifest, in the format of the tape; if another was first, return the one that holds."""
    manifest = dataclasses.replace(manifest, format=SEGMENTED if has_segments(storage) else FORMAT)
    node = {name: getattr(manifest, name) for name in Manifest.__dataclass_fields__}
    for optional in ("earlier", "baseline", "cut", "lost", "sources", "program"):
        if not node[optional]:
            del node[optional]
    text = json.dumps(node, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        storage.publish(NAME, [text.encode() + b"\n"], replace=replace)
    except StepExistsError:
        return read_manifest(storage) or manifest
    return manifest
