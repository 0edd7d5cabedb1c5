r"""Text from a tape, safe to print: what a terminal would obey is shown, never obeyed.

Model output may hold anything: escape sequences that move the cursor, set the title or clear the screen,
controls that reverse the reading direction, invisible characters. Each is written out, as in ``\x1b``.
Pure, and knows no terminal.
"""

from __future__ import annotations

import unicodedata

from rich.text import Text

_JOINERS = "\u200c\u200d"  # part of ordinary Persian, Hindi and emoji
ESCAPED = "magenta"
"""The style of what is written out, which tells it from text that reads the same."""


def visible(text: str, *, lines: bool = False) -> str:
    r"""The text with every unprintable character written out; ``lines`` keeps line ends and tabs.

    >>> visible("\x1b[2J\u202eabc\n")
    '\\x1b[2J\\u202eabc\\n'
    """
    return "".join(piece for piece, _ in _pieces(text, lines))


def shown(text: str, style: str = "", *, lines: bool = False) -> Text:
    """The same for a rich console; markup in the text means nothing."""
    whole = Text(style=style)
    for piece, escaped in _pieces(text, lines):
        whole.append(piece, ESCAPED if escaped else None)
    return whole


def _pieces(text: str, lines: bool) -> list[tuple[str, bool]]:
    """Runs of text, each with whether it is written out."""
    keep = "\n\t" if lines else ""
    if text.isprintable():
        return [(text, False)]
    pieces: list[tuple[str, bool]] = []
    start = 0
    for at, char in enumerate(text):
        if char.isprintable() or char in keep or char in _JOINERS or unicodedata.category(char) == "Zs":
            continue
        pieces += [(text[start:at], False), (_written_out(char), True)]
        start = at + 1
    pieces.append((text[start:], False))
    return [piece for piece in pieces if piece[0]]


def _written_out(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
