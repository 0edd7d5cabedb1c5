"""One call of a stage, for which it is decided what happens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rolltape.key import Key
from rolltape.policy import Decision
from rolltape.tape.inputs import Inputs
from rolltape.tape.scope import Scope

if TYPE_CHECKING:
    from rolltape.tape.deck import Deck
    from rolltape.tape.stage import Stage


@dataclass(frozen=True, slots=True)
class Call:
    """What was called, what will be done, and what it was given."""

    deck: Deck
    """That of the tape it is played from or saved to."""
    stage: Stage
    key: Key
    scope: Scope
    decision: Decision
    position: int = 0
    """How many calls of stages had been begun in this step before it."""
    inputs: Inputs | None = None
    """A copy, where they are recorded or checked."""
