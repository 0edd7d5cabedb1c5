"""Shows what Rolltape logs in programs that set up no logging."""

from __future__ import annotations

import logging

log = logging.getLogger("rolltape")


def show() -> None:
    """Show lines from the level INFO on, unless the program has said otherwise."""
    log.setLevel(logging.INFO if log.level == logging.NOTSET else log.level)
    if not log.hasHandlers():
        log.addHandler(logging.StreamHandler())
