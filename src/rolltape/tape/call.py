"""One call of a stage, for which it is decided what happens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rolltape.key import Key
from rolltape.policy import Decision
from rolltape.tape.inputs import Inputs
from rolltape.tape.scope import Scope

if TYPE_CHECKING:
    from rolltape.tape.stage import Stage


@dataclass(frozen=True, slots=True)
class Call:
    """What was called, what will be done, and what it was given."""

    stage: Stage
    key: Key
    scope: Scope
    decision: Decision
    inputs: Inputs | None = None
    """A copy, where they are recorded or checked."""
