"""Which step it is, and which weights the engines have, as far as the server is told.

A step is said by somebody (``POST /rolltape/step``, a header, the path). Until somebody does, every update of
the weights begins the next one: requests that update them without a call of the model in between, one for
each parameter say, are one update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_VERSIONS = (
    "weight_version",
    "new_version",
    "version",
    "weights_version",
    "policy_version",
    "step",
    "lora_name",
    "adapter_name",
)


class Clock:
    """Counts steps and versions."""

    def __init__(self, step: int | None) -> None:
        self.step = step or 0
        self.said = step is not None
        """Whether somebody says which step it is."""
        self._updates = 0
        self._declared: str | None = None
        self._called = False
        """Whether the model was called since the last update: one before the first call begins nothing."""

    @property
    def weights(self) -> str:
        """Which weights the engines have: as they were called, or how often they changed in this step."""
        return self._declared if self._declared is not None else str(self._updates)

    @property
    def declares(self) -> bool:
        """Whether somebody says what the weights are called."""
        return self._declared is not None

    @property
    def asked_step(self) -> int | None:
        """The step that a recording has to be of; None where nobody knows."""
        return self.step if self.said or self.step else None

    def say(self, step: int) -> bool:
        """Somebody says which step it is; whether that is another one."""
        changed = step != self.step
        self.said = True
        if changed:
            self.step, self._updates = step, 0
        return changed

    def called(self) -> None:
        """The model is called."""
        self._called = True

    def updated(self, body: Any) -> bool:
        """The weights are updated; whether that begins another step."""
        if isinstance(body, Mapping):
            named = (body.get(name) for name in _VERSIONS)
            found = next((str(value) for value in named if isinstance(value, (str, int))), None)
            self._declared = found if found is not None else self._declared
        if not self._called:
            return False
        self._called = False
        if self.said:
            self._updates += 1
            return False
        self.step += 1
        return True
