"""Words and numbers of a page or a screen, for people. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rolltape.cli.visible import ESCAPED, shown, visible

MOST = 200
"""Characters of a text that are shown in a table."""


def pieces(text: str, *, lines: bool = True) -> Iterator[tuple[str, bool]]:
    r"""Runs of the text, each with whether it is written out, as ``\x1b`` is.

    >>> list(pieces("a\u202eb"))
    [('a', False), ('\\u202e', True), ('b', False)]
    """
    whole = shown(text, lines=lines)
    at = 0
    for span in sorted(span for span in whole.spans if span.style == ESCAPED):
        if span.start > at:
            yield whole.plain[at : span.start], False
        yield whole.plain[span.start : span.end], True
        at = span.end
    if at < len(whole.plain):
        yield whole.plain[at:], False


def brief(text: str, most: int = MOST) -> str:
    """The beginning of a text on one line."""
    line = " ".join(text[: 4 * most].split())
    return visible(line if len(line) <= most else line[: most - 1] + "…")


def number(value: object, none: str = "–") -> str:
    """A number for people; text as it is."""
    if value is None:
        return none
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
