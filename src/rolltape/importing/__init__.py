"""Imports old recordings of verl (RolloutSkip, SkipManager), ROLL (rollout mock) and slime onto a tape.

Their dumps are pickles. No code in them is ever run: see ``nodes`` and ``dump_reader``.
"""

from rolltape.importing.dump_reader import read_dump
from rolltape.importing.nodes import UnsafeDumpError
from rolltape.importing.tape_import import Report, import_dumps

__all__ = ["Report", "UnsafeDumpError", "import_dumps", "read_dump"]
