"""The URL of a tape in an object store: ``s3://bucket/runs/base``, ``gs://…``, ``az://container/…``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rolltape.errors import ConfigError, StorageError

SCHEMES = {"s3": "bucket", "gs": "bucket", "az": "container"}
"""What stands behind the scheme of each kind of store."""
_OTHER = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "azure": "az", "oss": "s3"}
_OTHER |= {"r2": "s3", "minio": "s3", "wasb": "az", "wasbs": "az", "adl": "az"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-$]*")
LONGEST_KEY = 1024
"""Bytes of the name of an object, in every store."""
_ROOM = 128
"""Bytes that a path leaves for the names of a tape: splits, stages and the objects of lines."""


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """Where a tape is in an object store. Never holds a secret."""

    scheme: str
    """``s3``, ``gs`` or ``az``."""
    bucket: str
    """The bucket or container."""
    prefix: str
    """The path in it, without a slash at either end; empty for all of the bucket."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")

    def key(self, name: str) -> str:
        """The full name of an object; raises StorageError where no store takes one that long."""
        key = f"{self.prefix}/{name}" if self.prefix else name
        if 4 * len(key) > LONGEST_KEY and (size := len(key.encode("utf-8", "replace"))) > LONGEST_KEY:
            raise StorageError(
                f"the name of a file is too long for a store: with the path of the URL {size} bytes, of at "
                f"most {LONGEST_KEY:,}",
                where=f"{self.scheme}://{self.bucket}/{key}",
                hint="keep the tape at a shorter path, or give the split and the stage shorter names",
            )
        return key


def without_secrets(text: str) -> str:
    """A URL as it may be shown: without user, password, query and fragment.

    >>> without_secrets("az://key:word@box/runs?sig=abc")
    'az://box/runs'
    """
    scheme, _, rest = text.partition("://")
    # A secret key may hold a slash: whatever is before an @ is not shown.
    return f"{scheme}://{re.split(r'[?#]', rest, maxsplit=1)[0].rpartition('@')[2]}"


def parse_url(text: str) -> StoreUrl:
    """The parts of a URL; raises ConfigError for one that cannot be used, and never shows a secret of it.

    >>> parse_url("s3://bucket/runs/base/")
    StoreUrl(scheme='s3', bucket='bucket', prefix='runs/base')
    """
    scheme, _, rest = text.partition("://")
    shown = without_secrets(text)
    lower = scheme.lower()
    if lower not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ConfigError(
            f"tapes are not kept at {lower}://; a tape is a directory, or in a store: {known}",
            where=shown,
            hint=_instead(lower),
        )
    bucket, _, path = rest.partition("/")
    if any(sign in rest for sign in "@?#"):
        raise ConfigError(
            "a URL of a tape holds no user, key or query: it would end up in logs",
            where=shown,
            hint=f"put credentials into the environment, and write {shown}; see docs/stores.md",
        )
    if not _NAME.fullmatch(bucket):
        raise ConfigError(
            f"the URL names no {SCHEMES[lower]}",
            where=shown,
            hint=f"write {lower}://{SCHEMES[lower].upper()}/path",
        )
    parts = [part for part in path.split("/") if part]
    for part in parts:
        if part in (".", "..") or not part.isprintable() or "\\" in part:
            raise ConfigError(
                f"the URL has a part that cannot be used: {part!r}", where=shown, hint="use plain names"
            )
    prefix = "/".join(parts)
    if (size := len(prefix.encode("utf-8", "replace"))) > LONGEST_KEY - _ROOM:
        raise ConfigError(
            f"the path of the URL is too long: {size:,} bytes, of at most {LONGEST_KEY - _ROOM}; in a store "
            f"the whole name of a file has up to {LONGEST_KEY:,}",
            where=shown,
            hint="keep the tape at a shorter path",
        )
    return StoreUrl(lower, bucket, prefix)


def _instead(scheme: str) -> str:
    if scheme in _OTHER:
        other = _OTHER[scheme]
        extra = " and AWS_ENDPOINT_URL" if other == "s3" and scheme not in ("s3a", "s3n") else ""
        return f"write {other}://{extra and ', and set'}{extra.replace(' and', '')}".rstrip(", ")
    return "use one of these, or a directory"
