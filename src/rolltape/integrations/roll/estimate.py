"""How much disk space the dumps of a run need: estimated from the config, then from the first step. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rolltape.integrations.roll.mock_config import field

BYTES_PER_TOKEN = 8
"""A token id and one float; the tape stores no padding, and compresses the rest."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one scheduler will write."""

    steps: int | None
    """How many steps will be dumped; None if the config does not say."""
    step_bytes: int | None
    """The size of one step; None if not known yet."""
    measured: bool = False
    """Whether ``step_bytes`` was measured on a real step."""

    def after(self, size: int) -> Estimate:
        """The estimate, now that a step of ``size`` bytes has been written."""
        largest = max(size, self.step_bytes or 0) if self.measured else size
        return replace(self, step_bytes=largest, measured=True)

    def remaining(self, done: int) -> int | None:
        """The bytes still to be written after ``done`` steps; None if not known."""
        if self.steps is None or self.step_bytes is None:
            return None
        return max(self.steps - done, 0) * self.step_bytes


def expected(config: Any, split: str, share: float = 1.0) -> Estimate:
    """The estimate before the first step, from ``max_steps`` × samples × ``sequence_length``.

    ``share`` is the part of the batch that belongs to the scheduler's domain.
    """
    steps = field(config, "max_steps", 0)
    val = split == "val"
    every = field(config, "eval_steps", 0) if val else 1
    samples = field(config, "val_batch_size" if val else "rollout_batch_size", 0)
    length = field(config, "val_sequence_length") if val else None
    length = length or field(config, "sequence_length", 0)
    if not val:
        samples *= field(config, "actor_infer.generating_args.num_return_sequences", 1)
    size = int(samples * share * length * BYTES_PER_TOKEN)
    return Estimate(
        steps=-(-steps // every) if steps > 0 and every > 0 else None, step_bytes=size if size > 0 else None
    )


def shortage(estimate: Estimate, done: int, free: int) -> str | None:
    """A warning if the remaining steps do not fit. None if they do, or if it is unknown."""
    needed = estimate.remaining(done)
    if needed is None or estimate.steps is None or needed <= free:
        return None
    basis = "measured on this run" if estimate.measured else "estimated from the config, before compression"
    fits = free // estimate.step_bytes if estimate.step_bytes else 0
    each = megabytes(estimate.step_bytes or 0)
    return (
        f"the disk is too small for all dumps: {estimate.steps - done} more steps of {each} ({basis}) need "
        f"{megabytes(needed)}, but {megabytes(free)} are free, enough for {fits} steps; "
        "free space, lower max_steps, or set rollout_mock.dump_dir to a larger disk"
    )


def megabytes(size: int) -> str:
    """A size in the form of ROLL's log lines.

    >>> megabytes(4_820_000)
    '4.82MB'
    """
    return f"{size / 1e6:.2f}MB"
