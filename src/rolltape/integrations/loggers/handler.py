"""Python's own logging: records that carry a mapping of metrics."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from rolltape.integrations.loggers.numbers import Keeper
from rolltape.tape import Tape


class TapeHandler(logging.Handler):
    """Puts on the tape what is logged as a mapping: ``log.info(metrics)``, ``log.info("%(loss)f", metrics)``.

    The step is what the mapping has under ``step``; without it, the step of the tape that is entered.
    """

    def __init__(self, tape: Tape, *, step: str = "step", split: str | None = None) -> None:
        super().__init__()
        self._keeper = Keeper(tape, split)
        self._step = step

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging. Unlike there, what goes wrong is not swallowed."""
        for metrics in (record.msg, record.args):
            if isinstance(metrics, Mapping):
                found: dict[str, Any] = dict(metrics)
                self._keeper.keep(found, found.pop(self._step, None))
                return
