"""The table: one row for each fault, and for each change that is none. Add yours at the end of its part.

A row says what is changed, how both tapes are written, and what must be said: the place by hand, the sample
and the token by hand where one is planted, else by the limits of ``oracle``. ``also`` are causes that are
true beside the documented one.
"""

from __future__ import annotations

from tests.faults.case import Case
from tests.faults.table.biases import biases
from tests.faults.table.confined import confined
from tests.faults.table.explained import explained
from tests.faults.table.harmless import harmless
from tests.faults.table.others import missing, numbers_of_no_sample, whole_numbers
from tests.faults.table.planted import planted

__all__ = ["faults", "harmless"]


def faults() -> list[Case]:
    """Every fault of the table."""
    parts = planted, explained, confined, whole_numbers, numbers_of_no_sample, missing, biases
    return [case for part in parts for case in part()]
