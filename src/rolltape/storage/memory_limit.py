"""How much memory one file may ask for: a few bytes of a header, or a file of holes, can ask for any amount.

By default half of what the machine, or the container, has. ``ROLLTAPE_MAX_MEMORY=200GB`` sets another limit.
"""

from __future__ import annotations

import os
from contextlib import suppress

from rolltape.choices import parse_size
from rolltape.errors import ConfigError, MemoryLimitError

VARIABLE = "ROLLTAPE_MAX_MEMORY"
_UNKNOWN = 8 * 2**30
"""Where the system does not say how much memory it has."""


def memory_limit() -> int:
    """The bytes that one recording may take once it is expanded."""
    given = os.environ.get(VARIABLE, "").strip()
    if not given:
        return _DEFAULT
    try:
        return parse_size(given)
    except ConfigError as error:
        raise ConfigError(error.what, where=f"environment variable {VARIABLE}", hint=error.hint) from None


def check_memory(needed: int, what: str, where: object = None) -> None:
    """Raise if ``what`` takes more than the limit; to be asked before anything is allocated."""
    if needed > _DEFAULT or VARIABLE in os.environ:  # the common case costs one comparison
        limit = memory_limit()
        if needed > limit:
            raise MemoryLimitError(
                f"{what} needs {_amount(needed)} of memory, above the limit of {_amount(limit)}",
                where=where,
                causes=["it was recorded on a larger machine", "the file was made to exhaust this one"],
                hint=f"if you trust the tape, raise the limit: {VARIABLE}={-(-needed // 10**9)}GB",
            )


def _half_of_the_machine() -> int:
    found = [_UNKNOWN]
    with suppress(OSError, ValueError, AttributeError):
        found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError), open(path, "rb") as file:
            found.append(int(file.read(32)))
    return min(size for size in found if size > 0) // 2


def _amount(count: int) -> str:
    return f"{count / 10**9:.1f} GB" if count < 10**15 else f"{count:.1e} bytes"


_DEFAULT = _half_of_the_machine()
