"""One answer to "what is on this tape": every surface asks here, and nothing here writes."""

from rolltape.reader.run import Run, open
from rolltape.reader.samples import Row, Samples
from rolltape.reader.token_places import Places, TokenPlaces

__all__ = ["Places", "Row", "Run", "Samples", "TokenPlaces", "open"]
