"""Text from a tape as HTML in which nothing of it means anything: escaped, and the invisible written out."""

from __future__ import annotations

from rolltape.viewer.needs import missing
from rolltape.viewer.words import pieces

try:
    from markupsafe import Markup, escape
except ImportError as error:
    raise missing(error, "view") from error


def markup(text: object, lines: bool = True) -> Markup:
    """A text for a page, whole."""
    parts = [
        Markup('<span class="esc">{}</span>').format(piece) if escaped else escape(piece)
        for piece, escaped in pieces(str(text), lines=lines)
    ]
    return Markup("").join(parts)
