"""Where the files of a tape live: one contract, and the local file system that fulfils it.

Knows names and bytes. Knows nothing of steps, batches or Parquet.
"""

from rolltape.storage.contract import BytesLike, Stat, Storage, check_name, check_prefix
from rolltape.storage.local import LocalStorage

__all__ = ["BytesLike", "LocalStorage", "Stat", "Storage", "check_name", "check_prefix"]
