"""Numbers, durations and moments as people write them. Pure."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable

from rolltape.reader.visible import visible

MOST = 200
"""Characters of a text that are shown in a table."""


def brief(text: str, most: int = MOST) -> str:
    """The beginning of a text on one line."""
    line = " ".join(text[: 4 * most].split())
    return visible(line if len(line) <= most else line[: most - 1] + "…")


MOST_BITS = 2000
"""Of a whole number in decimal digits: Python takes long to write larger ones, and then refuses to."""


def whole(value: int) -> int | str:
    """A whole number; its bits, as text, where it has so many that its decimal digits cannot be had.

    >>> whole(7), whole(2**4000)[:6]
    (7, '0x1000')
    """
    return int(value) if value.bit_length() <= MOST_BITS else hex(value)


def written(value: object, write: Callable[[object], str] = str) -> str:
    """What Python writes for a value; its type where Python cannot."""
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return hex(value)
    try:
        return write(value)
    except Exception:  # a number with too many digits inside, or whatever the class of a value says of it
        inside = [written(item, repr) for item in value] if isinstance(value, (tuple, frozenset)) else []
        return f"<{' '.join([type(value).__name__, *inside])}>"


def number(value: object, none: str = "–") -> str:
    """A number for people; text as it is."""
    if value is None:
        return none
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    if isinstance(value, int) and value.bit_length() <= MOST_BITS:
        return f"{value:,}"
    return written(value)


def count(number: int | None) -> str:
    """A number for people; an en dash where there is none.

    >>> count(1234567), count(None)
    ('1,234,567', '–')
    """
    return "–" if number is None else f"{number:,}"


def counted(number: int, one: str, more: str | None = None) -> str:
    """A number of things.

    >>> counted(1, "sample"), counted(1024, "sample"), counted(2, "recorded step")
    ('1 sample', '1,024 samples', '2 recorded steps')
    """
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def seconds(number: float | None) -> str:
    """A duration for people.

    >>> seconds(0.0123), seconds(2.5), seconds(754.2), seconds(None)
    ('12 ms', '2.5 s', '12 min 34 s', '–')
    """
    if number is None:
        return "–"
    if number < 1:
        return f"{number * 1000:.0f} ms" if number >= 0.01 else f"{number * 1000:.1f} ms"
    return f"{number:.1f} s" if number < 100 else f"{int(number) // 60} min {int(number) % 60} s"


def moment(text: str | None, form: str = "%Y-%m-%d %H:%M") -> str:
    """A recorded point in time, in the time zone of whoever looks."""
    if not text:
        return "–"
    try:
        return dt.datetime.fromisoformat(text).astimezone().strftime(form)
    except (ValueError, TypeError):  # whatever the file says instead
        return visible(str(text))
