"""Numbers of bytes as people write them."""

from __future__ import annotations

import re
from decimal import Decimal

from rolltape.errors import ConfigError


def parse_size(value: object) -> int:
    """Read a number of bytes, at least 1: an int, or text with a unit (``MB`` is 10**6, ``MiB`` is 2**20).

    >>> parse_size("512MB"), parse_size("1.5 GiB")
    (512000000, 1610612736)
    """
    match = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*(?:([kmgt])(i)?)?b?", str(value).strip().lower())
    if match:
        power = " kmgt".index(match[2] or " ")
        size = int(Decimal(match[1]) * (1024 if match[3] else 1000) ** power)
        if size >= 1:
            return size
    raise ConfigError(
        f"{value!r} is not a number of bytes above 0", hint='write 1073741824, "512MB" or "1GiB"'
    )
