"""The second tape of a replay: takes what the replay computes anew, and never the tape that is replayed."""

from __future__ import annotations

from rolltape.errors import ConfigError, MismatchError
from rolltape.policy import Mode
from rolltape.settings import Settings
from rolltape.storage import LocalStorage
from rolltape.tape.manifest import Manifest, new_manifest, read_manifest, write_manifest
from rolltape.tape.opening import resolved_dir


def begin_second(first: Settings, manifest: Manifest, directory: str) -> Settings:
    """Begin the tape ``out`` for a replay of the tape in ``directory``, or find it begun; its options."""
    out = resolved_dir(first.out or ".")
    if out == directory:
        raise ConfigError(
            "out is the very tape that is replayed",
            where=out,
            hint="give another directory: a replay never changes its tape",
        )
    storage = LocalStorage(out)
    baseline = {"id": manifest.id, "dir": directory}
    found = read_manifest(storage) or write_manifest(storage, new_manifest(first.fingerprint, baseline))
    if (found.baseline or {}).get("id") != manifest.id:
        raise MismatchError(
            "out is a tape already, and not one that a replay of this tape wrote",
            where=out,
            causes=[f"its baseline is {found.baseline['dir']}" if found.baseline else "it has no baseline"],
            hint="give a directory that does not exist yet",
        )
    return Settings(
        dir=out,
        mode=Mode.RECORD,
        overwrite=first.overwrite,
        split=first.split,
        rank=first.rank,
        world_size=first.world_size,
        fingerprint=first.fingerprint,
        match=first.match,
        on_error=first.on_error,
        background=first.background,
        random_state=False,
        max_pending_bytes=first.max_pending_bytes,
    )
