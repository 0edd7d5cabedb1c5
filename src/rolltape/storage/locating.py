"""Where a tape is: a directory, or a URL of an object store; and the storage that keeps it there."""

from __future__ import annotations

import os

from rolltape.errors import ConfigError
from rolltape.storage.contract import Storage
from rolltape.storage.local import LocalStorage
from rolltape.storage.segmented import SegmentedStorage


def is_url(place: str) -> bool:
    """Whether a place is in an object store: ``s3://bucket/runs/base``."""
    return "://" in place


def absolute(place: str | os.PathLike[str]) -> str:
    """The place as it is for every process, whatever its working directory is.

    >>> absolute("/runs/../runs/base")
    '/runs/base'
    """
    text = os.fspath(place)
    return text if is_url(text) else os.path.abspath(os.path.expanduser(text))


def joined(place: str, *parts: str) -> str:
    """A place inside another.

    >>> joined("s3://bucket/runs", "base")
    's3://bucket/runs/base'
    """
    return "/".join([place.rstrip("/"), *parts]) if is_url(place) else os.path.join(place, *parts)


def storage_at(place: str | os.PathLike[str]) -> SegmentedStorage:
    """The storage of the tape at a place, whether or not there is one."""
    return SegmentedStorage(_files_at(absolute(place)))


def _files_at(where: str) -> Storage:
    if is_url(where):
        raise ConfigError(
            "a tape is a local directory; object stores are not supported yet",
            where=where,
            hint="record to a directory, and copy it there afterwards",
        )
    return LocalStorage(where)
