"""Where the files of a tape live: one contract, and what fulfils it.

Knows names and bytes. Knows nothing of steps, batches or Parquet.
"""

from rolltape.storage.contract import (
    BytesLike,
    Mark,
    Pending,
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
from rolltape.storage.spool import Spool
from rolltape.storage.spooled import SpooledStorage

__all__ = [
    "BytesLike",
    "LocalStorage",
    "Mark",
    "ObjectStorage",
    "Pending",
    "Span",
    "Spool",
    "SpooledStorage",
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
