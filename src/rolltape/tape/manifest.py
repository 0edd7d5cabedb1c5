"""``tape.json``: what a tape says about itself."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rolltape._version import __version__
from rolltape.batch.plain import Path, to_json, unsupported
from rolltape.codec.file import FORMAT
from rolltape.errors import CorruptFileError, FormatVersionError, StepExistsError, StepMissingError
from rolltape.storage import Storage

NAME = "tape.json"

DETERMINISM = (
    "CUBLAS_WORKSPACE_CONFIG", "NCCL_ALGO", "NCCL_PROTO", "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
    "DETERMINISTIC_MODE", "PYTHONHASHSEED", "VLLM_BATCH_INVARIANT", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
)  # fmt: skip
"""Environment variables that decide whether two runs can agree bit for bit."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of ``tape.json``."""

    id: str
    created: str
    producer: str
    fingerprint: Mapping[str, Any]
    """Named parts, as JSON."""
    environment: Mapping[str, str]
    format: int = FORMAT


def new_manifest(fingerprint: Mapping[str, Any]) -> Manifest:
    """A manifest for a tape that begins now."""
    return Manifest(
        id=uuid.UUID(bytes=os.urandom(16), version=4).hex,
        created=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        producer=f"rolltape {__version__}",
        fingerprint=plain_parts(fingerprint),
        environment=environment(),
    )


def plain_parts(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Fingerprint parts as the JSON that is compared and stored."""

    def refuse(value: Any, path: Path) -> Any:
        raise unsupported(value, ("fingerprint", *path), "a part is text, a number, or a structure of those")

    return {str(name): to_json(part, refuse, (str(name),)) for name, part in fingerprint.items()}


def environment() -> dict[str, str]:
    """What of this process could change numbers: versions of what is loaded, platform, determinism flags."""
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    for module in ("numpy", "torch", "transformers", "vllm", "sglang", "verl", "trl"):
        version = getattr(sys.modules.get(module), "__version__", None)
        if version is not None:
            found[module] = str(version)
    found |= {name: os.environ.get(name, "") for name in DETERMINISM}
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
        version = int(node["format"])
        if version <= FORMAT:
            names = ("id", "created", "producer", "fingerprint", "environment")
            return Manifest(**{name: node[name] for name in names}, format=version)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(f"tape.json cannot be read: {error!r}", where=where) from None
    raise FormatVersionError(
        f"the tape has format {version}; this Rolltape reads up to {FORMAT}",
        where=where,
        hint="pip install --upgrade rolltape",
    )


def write_manifest(storage: Storage, manifest: Manifest, *, replace: bool = False) -> Manifest:
    """Publish a manifest; if another process was first, return the one that holds."""
    node = {name: getattr(manifest, name) for name in Manifest.__dataclass_fields__}
    text = json.dumps(node, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        storage.publish(NAME, [text.encode() + b"\n"], replace=replace)
    except StepExistsError:
        return read_manifest(storage) or manifest
    return manifest
