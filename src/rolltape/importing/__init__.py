"""Old recordings of verl (RolloutSkip, SkipManager), ROLL (rollout mock) and slime, brought onto a tape.

Their dumps are pickles. Nothing in them is ever run: see ``nodes`` and ``reader``.
"""

from rolltape.importing.errors import UnsafeDumpError
from rolltape.importing.reader import read_dump

__all__ = ["UnsafeDumpError", "read_dump"]
