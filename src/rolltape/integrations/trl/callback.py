"""What a Hugging Face trainer logs, on the tape: the floats it has, before anyone prints or rounds them."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from rolltape.tape import Tape


class TapeCallback(TrainerCallback):  # type: ignore[misc]
    """Keeps metrics, and sees to it that a checkpoint never lies ahead of the tape."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **others: Any
    ) -> None:
        """Metrics of training go to the step they are about: the one that has just been counted."""
        if not logs:
            return
        if any(name.startswith("eval_") for name in logs):
            self.tape.log(logs, step=state.global_step, split="val")
        else:
            self.tape.log(logs, step=max(state.global_step - 1, 0))

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """A run that goes on from this checkpoint finds on the tape all that came before it."""
        self.tape.flush()

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """What could not be written is an error now, and not when the process ends."""
        self.tape.flush()
