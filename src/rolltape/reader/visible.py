r"""Text from a tape, safe to show: what a terminal or a page would obey is written out, never obeyed.

Model output may hold anything: escape sequences that move the cursor, set the title or clear the screen,
controls that reverse the reading direction, invisible characters. Each is written out, as in ``\x1b``.
Machine formats stay exact: there the same characters are written as JSON writes them.
"""

from __future__ import annotations

import re
import unicodedata

_JOINERS = "\u200c\u200d"  # part of ordinary Persian, Hindi and emoji
_STYLES = "\ufe0e\ufe0f"  # text or picture: part of ordinary emoji, where they follow a symbol

_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U000e0000-\U000e0fff]"
)
"""What Python calls printable and nobody sees: fillers, joiners, variation selectors, tags."""


def visible(text: str, keep: str = "") -> str:
    r"""The text with every character that is not seen written out, except those to ``keep``.

    >>> visible("\x1b[2J\u202eabc\n"), visible("a\n", keep="\n")
    ('\\x1b[2J\\u202eabc\\n', 'a\n')
    """
    return "".join(piece for piece, _ in pieces(text, keep))


def pieces(text: str, keep: str = "") -> list[tuple[str, bool]]:
    r"""Runs of text, each with whether it is written out.

    >>> pieces("a\u202eb")
    [('a', False), ('\\u202e', True), ('b', False)]
    """
    if text.isprintable() and not _BLANK.search(text):
        return [(text, False)] if text else []
    # A long text has few different characters: most of them need not be looked at one by one.
    suspects = {char for char in set(text) if char not in keep and (char in _STYLES or is_hidden(char))}
    if not suspects:
        return [(text, False)]
    found: list[tuple[str, bool]] = []
    start = 0
    for match in re.finditer("[" + "".join(map(re.escape, suspects)) + "]", text):
        at, char = match.start(), match[0]
        if not is_hidden(char, text[at - 1 : at]):
            continue
        found += [(text[start:at], False), (char.encode("unicode_escape").decode("ascii"), True)]
        start = at + 1
    found.append((text[start:], False))
    return [piece for piece in found if piece[0]]


def is_hidden(char: str, before: str = "") -> bool:
    """Whether a character is obeyed or not seen, where it follows ``before``."""
    if char in _STYLES:
        return not before or unicodedata.category(before) != "So"
    if _BLANK.match(char):
        return True
    return not (char.isprintable() or char in _JOINERS or unicodedata.category(char) == "Zs")


def as_utf8(text: str) -> str:
    r"""The text with lone surrogates, which neither UTF-8 nor Arrow has a place for, written out.

    >>> as_utf8("a\ud800"), as_utf8("ü")
    ('a\\ud800', 'ü')
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def visible_json(text: str) -> str:
    r"""JSON with what is not seen written as JSON writes it: the same value for a program, and safe to print.

    >>> visible_json('"a\u202eb"')
    '"a\\u202eb"'
    """
    if text.isprintable() and not _BLANK.search(text):
        return text
    return "".join(_escaped(char) if is_hidden(char) and ord(char) > 0x7E else char for char in text)


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
