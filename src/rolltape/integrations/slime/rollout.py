"""The rollout function: runs the configured one through a tape. The step is slime's ``rollout_id``."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from rolltape.batch import register_adapter
from rolltape.errors import ConfigError
from rolltape.integrations.position import Positions
from rolltape.integrations.slime.samples import put_together, take_apart
from rolltape.settings import resolve
from rolltape.tape import Tape

log = logging.getLogger("rolltape")

FUNCTION, EVAL_FUNCTION = "ROLLTAPE_SLIME_FUNCTION", "ROLLTAPE_SLIME_EVAL_FUNCTION"
SAMPLING = (
    "n_samples_per_prompt", "rollout_batch_size", "rollout_temperature", "rollout_top_p", "rollout_top_k",
    "rollout_max_response_len",
)  # fmt: skip


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """What the configured rollout function returns, or returned when it was recorded."""
    package = "slime" if "slime.utils.types" in sys.modules else "miles"

    def live() -> Any:
        function = load(path_of(args, evaluation, f"{package}.rollout.sglang_rollout.generate_rollout"))
        return function(args, rollout_id, data_source, evaluation=evaluation)

    return Rollouts.of(args, package).run(args, rollout_id, evaluation, live)


class Rollouts:
    """The tape of this process, and the step each split is at."""

    _open: Rollouts | None = None

    def __init__(self, tape: Tape, package: str) -> None:
        self.tape = tape
        self.sample = _known_classes(package)
        self._positions = Positions(tape)
        self._stage = tape.stage("rollout")(self._taken_apart)

    @classmethod
    def of(cls, args: Any, package: str) -> Rollouts:
        """Those of the tape that ``ROLLTAPE_*`` variables name; opened once, by the first who asks."""
        settings = resolve({}, os.environ, {"fingerprint": fingerprint(args)})
        if cls._open is None or cls._open.tape.settings != settings:
            if cls._open is not None:
                cls._open.tape.close()
            cls._open = cls(Tape(settings=settings), package)
            if cls._open.tape.is_off:
                log.warning(
                    "rolltape: no tape is named, rollouts are live; set ROLLTAPE_DIR and ROLLTAPE_MODE"
                )
            else:
                log.info("rolltape: %s uses tape %s, mode %s", package, cls._open.tape.dir, settings.mode)
        return cls._open

    def run(self, args: Any, rollout_id: int, evaluation: bool, live: Callable[[], Any]) -> Any:
        """One rollout or evaluation: live and recorded, or replayed."""
        if self.tape.is_off:
            return live()
        split = "val" if evaluation else "train"
        plan = self.tape.plan(rollout_id, split=split)
        if plan.calls_live and getattr(args, "debug_train_only", False):
            raise ConfigError(
                f"rollout {rollout_id} would be generated, and no engine runs: {plan.reason}",
                where=self.tape.dir,
                causes=["the run has --debug-train-only, and the tape does not replay this step"],
                hint="replay recorded steps only (ROLLTAPE_MODE=replay), or leave --debug-train-only away",
            )
        ran: list[Any] = []
        parts = self._positions.at(rollout_id, split).run(self._stage, live, ran)
        if ran:
            # The process that this runs in is killed when the training ends.
            self.tape.flush()
            return ran[0]
        return put_together(parts, self.sample)

    def _taken_apart(self, live: Callable[[], Any], ran: list[Any]) -> dict[str, Any]:
        ran.append(live())
        return take_apart(ran[0], self.sample)


def path_of(args: Any, evaluation: bool, default: str) -> str:
    """The function that is recorded: as the arguments say, or the environment, or the framework's own."""
    found = [
        getattr(args, "rolltape_rollout_function", None),
        os.environ.get(FUNCTION),
        default,
    ]
    if evaluation:
        found = [getattr(args, "rolltape_eval_function", None), os.environ.get(EVAL_FUNCTION), *found]
    return next(path for path in found if path)


def load(path: str) -> Any:
    """A function or class by its dotted path; never one of Rolltape's."""
    module, _, name = path.rpartition(".")
    if not module or module.startswith("rolltape."):
        raise ConfigError(
            f"{path!r} is not a rollout function that could be recorded",
            where=FUNCTION,
            hint="name the function you had in --rollout-function-path before",
        )
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        raise ConfigError(f"there is no {name!r} in {module}", where=FUNCTION) from None


def fingerprint(args: Any) -> dict[str, Any]:
    """What must be the same when a tape is replayed, as far as the arguments say it."""
    said = {
        "model": getattr(args, "hf_checkpoint", None),
        "data": getattr(args, "prompt_data", None),
        "seed": getattr(args, "rollout_seed", None),
        "sampling": {name: getattr(args, name) for name in SAMPLING if hasattr(args, name)},
    }
    return {name: value for name, value in said.items() if value not in (None, {})}


def _known_classes(package: str) -> type:
    """Make the framework's own classes known to replay; returns that of its samples."""
    try:
        types = importlib.import_module(f"{package}.utils.types")
        outputs = importlib.import_module(f"{package}.rollout.base_types")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"this is called by neither slime nor miles: {error}",
            hint="it is for --rollout-function-path; for a trainer of your own see docs/tape.md",
        ) from None
    for cls in (types.Sample, outputs.RolloutFnTrainOutput, outputs.RolloutFnEvalOutput):
        register_adapter(cls)
    found: type = types.Sample
    return found
