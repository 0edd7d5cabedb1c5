"""Where the files of a tape live: one contract, and what fulfils it.

Knows names and bytes. Knows nothing of steps, batches or Parquet.
"""

from rolltape.storage.contract import (
    BytesLike,
    Mark,
    Span,
    Stat,
    Storage,
    Unfinished,
    check_name,
    check_prefix,
)
from rolltape.storage.local import LocalStorage
from rolltape.storage.locating import absolute, is_relative, is_url, joined, placed, storage_at
from rolltape.storage.objects import ObjectStorage

__all__ = [
    "BytesLike",
    "LocalStorage",
    "Mark",
    "ObjectStorage",
    "Span",
    "Stat",
    "Storage",
    "Unfinished",
    "absolute",
    "check_name",
    "check_prefix",
    "is_relative",
    "is_url",
    "joined",
    "placed",
    "storage_at",
]
