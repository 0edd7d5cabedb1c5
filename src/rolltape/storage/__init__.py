"""Where the files of a tape live: one contract, and what fulfils it.

Knows names and bytes, and that some files are ranges of others (segments). Knows nothing of steps, batches or
Parquet.
"""

from rolltape.storage.contract import BytesLike, Mark, Stat, Storage, Unfinished, check_name, check_prefix
from rolltape.storage.local import LocalStorage
from rolltape.storage.locating import absolute, is_url, joined, storage_at
from rolltape.storage.segmented import SegmentedStorage, has_segments

__all__ = [
    "BytesLike",
    "LocalStorage",
    "Mark",
    "SegmentedStorage",
    "Stat",
    "Storage",
    "Unfinished",
    "absolute",
    "check_name",
    "check_prefix",
    "has_segments",
    "is_url",
    "joined",
    "storage_at",
]
