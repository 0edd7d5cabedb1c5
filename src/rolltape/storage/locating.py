"""Where a tape is: a directory, or a URL of an object store; and the storage that keeps it there."""

from __future__ import annotations

import os

from rolltape.storage.contract import Storage
from rolltape.storage.local import LocalStorage
from rolltape.storage.objects import ObjectStorage
from rolltape.storage.spool import Spool
from rolltape.storage.spooled import SpooledStorage
from rolltape.storage.store_url import parse_url


def is_url(place: str) -> bool:
    """Whether a place is in an object store: ``s3://bucket/runs/base``."""
    return "://" in place


def absolute(place: str | os.PathLike[str]) -> str:
    """The place as it is for every process, whatever its working directory is.

    >>> absolute("/runs/../runs/base")
    '/runs/base'
    """
    text = os.fspath(place)
    return str(parse_url(text)) if is_url(text) else os.path.abspath(os.path.expanduser(text))


def placed(place: str, base: str) -> str:
    """The place as it is for a process that was started in the directory ``base``.

    >>> placed("runs/base", "/home/me"), placed("s3://bucket/runs/", "/home/me")
    ('/home/me/runs/base', 's3://bucket/runs')
    """
    return absolute(place) if is_url(place) else os.path.join(base, os.path.expanduser(place))


def is_relative(place: str) -> bool:
    """Whether it depends on the working directory where a place is."""
    return not (is_url(place) or os.path.isabs(os.path.expanduser(place)))


def joined(place: str, *parts: str) -> str:
    """A place inside another.

    >>> joined("s3://bucket/runs", "base")
    's3://bucket/runs/base'
    """
    return "/".join([place.rstrip("/"), *parts]) if is_url(place) else os.path.join(place, *parts)


def storage_at(
    place: str | os.PathLike[str], spool: Spool | None = None, *, assume_new: bool = False
) -> Storage:
    """The storage of the tape at a place, whether or not there is one.

    With a ``spool`` what is written to an object store waits there, and the caller does not; ``assume_new``
    is for a run that need not hear from the store that a file is new.
    """
    where = absolute(place)
    if not is_url(where):
        return LocalStorage(where)
    store = ObjectStorage(where)
    return store if spool is None else SpooledStorage(store, spool, assume_new=assume_new)
