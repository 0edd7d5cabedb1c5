"""Text from a tape for a rich console: markup in it means nothing, and what is not seen is written out."""

from __future__ import annotations

from rich.text import Text

from rolltape.reader.visible import pieces

ESCAPED = "magenta"
"""The style of what is written out, which tells it from text that reads the same."""


def shown(text: str, style: str = "", *, lines: bool = False) -> Text:
    """The text for a console; ``lines`` keeps line ends and tabs."""
    whole = Text(style=style)
    for piece, escaped in pieces(text, "\n\t" if lines else ""):
        whole.append(piece, ESCAPED if escaped else None)
    return whole
