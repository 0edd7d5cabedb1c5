"""The tape: one object that decides, records and replays."""

from rolltape.tape.recording import Recording
from rolltape.tape.summary import Summary
from rolltape.tape.tape import Tape

__all__ = ["Recording", "Summary", "Tape"]
