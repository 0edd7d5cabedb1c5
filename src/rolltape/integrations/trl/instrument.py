"""Puts one trainer on a tape: generation becomes a stage, rewards too, and what it logs is kept."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Any

from rolltape.errors import ConfigError
from rolltape.integrations.trl.stages import Stages
from rolltape.settings import resolve
from rolltape.tape import Tape

log = logging.getLogger("rolltape")

_MARK = "_rolltape"


def instrument(trainer: Any, tape: Tape | None = None) -> Tape:
    """Record or replay what a ``GRPOTrainer`` or ``RLOOTrainer`` generates; returns the tape it is on.

    Without ``tape`` it is the one that ``ROLLTAPE_*`` variables name, or none. Where several processes train,
    each is on its own shard: a tape that states no ``world_size`` is opened again as the shard of this one.
    """
    known: Tape | None = getattr(trainer, _MARK, None)
    if known is not None:
        if tape is None:
            return known
        raise ConfigError(
            "the trainer is on a tape already",
            where=known.dir,
            causes=["instrument was called twice", "it was built after install(), or by a script run with "
                    "python -m rolltape.integrations.trl"],
            hint="keep one of them",
        )  # fmt: skip
    if not hasattr(trainer, "_generate_single_turn"):
        raise ConfigError(
            f"{type(trainer).__name__} has no generation that is known here",
            causes=["it is neither a GRPOTrainer nor an RLOOTrainer", "a version of TRL older than 1.0"],
            hint='pip install "rolltape[trl]", or declare a stage of your own: see docs/tape.md',
        )
    tape = _opened(trainer) if tape is None else _shard(tape, trainer)
    if tape.is_off:
        return tape
    Stages(trainer, tape).put_in()
    setattr(trainer, _MARK, tape)
    log.info("rolltape: TRL's %s uses tape %s, mode %s", type(trainer).__name__, tape.dir, tape.settings.mode)
    return tape


def _opened(trainer: Any) -> Tape:
    """The tape that the environment names, with what is known here of the run."""
    rank, world_size = _processes(trainer)
    config = getattr(trainer.model, "config", None)
    said = {"model": str(getattr(config, "_name_or_path", "")), "seed": trainer.args.seed}
    return Tape(settings=resolve({"rank": rank, "world_size": world_size}, os.environ, {"fingerprint": said}))


def _shard(tape: Tape, trainer: Any) -> Tape:
    rank, world_size = _processes(trainer)
    own = tape.settings
    if tape.is_off or (own.rank, own.world_size) == (rank, world_size):
        return tape
    if own.world_size != 1:
        raise ConfigError(
            f"the tape is shard {own.rank} of {own.world_size}, and this process is {rank} of {world_size}",
            where=tape.dir,
            hint="leave rank and world_size away: the trainer knows them",
        )
    return Tape(settings=replace(own, dir=tape.dir, rank=rank, world_size=world_size))


def _processes(trainer: Any) -> tuple[int, int]:
    return trainer.accelerator.process_index, trainer.accelerator.num_processes
