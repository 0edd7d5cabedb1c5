"""Two texts as pieces that both have and pieces that one has: words where they are few, else lines. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

MOST_WORDS = 3000
"""Pieces of a text up to which they are compared one by one; the time grows with their square."""
_WORDS = re.compile(r"\w+|\s+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text."""

    text: str
    same: bool
    """Whether the other text has it at this place too."""


def diff_texts(left: str, right: str) -> tuple[list[Piece], list[Piece]]:
    """Both texts, whole, in pieces.

    >>> [(piece.text, piece.same) for piece in diff_texts("2 + 2 is 4", "2 + 2 is 5")[1]]
    [('2 + 2 is ', True), ('5', False)]
    """
    sides = _pieces(left, right)
    if sides is None:
        return ([Piece(left, left == right)], [Piece(right, left == right)])
    ours: list[Piece] = []
    theirs: list[Piece] = []
    for kind, a, b, c, d in SequenceMatcher(None, *sides, autojunk=False).get_opcodes():
        same = kind == "equal"
        _add(ours, "".join(sides[0][a:b]), same)
        _add(theirs, "".join(sides[1][c:d]), same)
    return ours, theirs


def _pieces(left: str, right: str) -> tuple[list[str], list[str]] | None:
    if max(len(left), len(right)) <= MOST_WORDS * 12:
        words = _WORDS.findall(left), _WORDS.findall(right)
        if max(map(len, words)) <= MOST_WORDS:
            return words
    lines = left.splitlines(keepends=True), right.splitlines(keepends=True)
    return lines if max(map(len, lines)) <= MOST_WORDS else None


def _add(pieces: list[Piece], text: str, same: bool) -> None:
    if text:
        pieces.append(Piece(text, same))
