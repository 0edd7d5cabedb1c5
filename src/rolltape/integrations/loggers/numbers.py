"""What of a logged mapping is a metric: numbers and text, also nested; pictures and tables are not."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from rolltape.tape import Tape

log = logging.getLogger("rolltape")


class Keeper:
    """Puts metrics on a tape, and says once for each name what it leaves out."""

    def __init__(self, tape: Tape, split: str | None = None) -> None:
        self._tape = tape
        self._split = split
        self._left_out: set[str] = set()

    def keep(self, metrics: Mapping[str, Any], step: int | None) -> None:
        """Metrics of a step; without one, of the step of the tape that is entered."""
        found = self._chosen(metrics, "")
        if found:
            self._tape.log(found, step=step, split=self._split)

    def _chosen(self, metrics: Mapping[str, Any], inside: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in metrics.items():
            if isinstance(value, Mapping):
                found[str(name)] = self._chosen(value, f"{inside}{name}/")
            elif is_number(value) or value is None or isinstance(value, str):
                found[str(name)] = value
            elif f"{inside}{name}" not in self._left_out:
                self._left_out.add(f"{inside}{name}")
                log.info("%s%s is a %s, no number: not on the tape", inside, name, type(value).__name__)
        return found


def is_number(value: Any) -> bool:
    """Whether a value is one number: Python's, numpy's, or a tensor with one element."""
    if isinstance(value, (bool, int, float)):
        return True
    if isinstance(value, (np.ndarray, np.generic)):
        return value.size == 1 and value.dtype.kind in "biuf"
    return hasattr(value, "detach") and hasattr(value, "numel") and value.numel() == 1
