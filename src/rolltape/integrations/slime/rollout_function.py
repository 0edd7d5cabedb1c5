"""The rollout function: runs the configured one through a tape. The step is slime's ``rollout_id``."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rolltape.batch import register_adapter
from rolltape.errors import ConfigError
from rolltape.integrations.position import Positions
from rolltape.integrations.slime.prompt_rollouts import PromptRollouts, relaxed
from rolltape.policy import Mode
from rolltape.releases import check_needs, unsupported
from rolltape.settings import By, resolve
from rolltape.tape import Tape


@dataclass(frozen=True, slots=True)
class Place:
    """Marks where samples were: a list of ``count`` samples, or a single one."""

    count: int | None = None


register_adapter(Place, name="slime.place")


def take_apart(output: Any, sample: type) -> dict[str, Any]:
    """What is recorded: ``fields``, with a column per attribute of the samples, and the rest."""
    found: list[Any] = []
    rest = _without(output, sample, found)
    attributes = [vars(one) for one in found]
    names = [name for name in attributes[0] if all(name in other for other in attributes)] if found else []
    parts = {"fields": {name: [own[name] for own in attributes] for name in names}, "output": rest}
    if any(len(own) > len(names) for own in attributes):  # only some of the samples have extra attributes
        parts["more"] = [{name: own[name] for name in own if name not in names} for own in attributes]
    return parts


def put_together(parts: dict[str, Any], sample: type) -> Any:
    """The original output, with samples of the given class."""
    fields = parts["fields"]
    count = len(next(iter(fields.values()))) if fields else 0
    more: Sequence[dict[str, Any]] = parts.get("more") or [{}] * count
    return _with(parts["output"], (_sample(sample, fields, row, more[row]) for row in range(count)))


def _without(node: Any, sample: type, found: list[Any]) -> Any:
    """The same tree with places instead of samples, which are appended to ``found`` in the same order."""
    if type(node) is sample:
        found.append(node)
        return Place()
    if type(node) is list and node and all(type(one) is sample for one in node):
        found += node
        return Place(len(node))
    return _mapped(node, lambda one: _without(one, sample, found))


def _with(node: Any, samples: Iterator[Any]) -> Any:
    if type(node) is Place:
        if node.count is None:
            return next(samples)
        return [next(samples) for _ in range(node.count)]
    return _mapped(node, lambda one: _with(one, samples))


def _mapped(node: Any, change: Callable[[Any], Any]) -> Any:
    """A list, a dict, or a wrapper of outputs (``RolloutFnTrainOutput``, …), with its parts changed."""
    if type(node) is list:
        return [change(one) for one in node]
    if type(node) is dict:
        return {name: change(one) for name, one in node.items()}
    if dataclasses.is_dataclass(type(node)) and type(node).__name__.startswith("RolloutFn"):
        names = [field.name for field in dataclasses.fields(node)]
        return type(node)(**{name: change(getattr(node, name)) for name in names})
    return node


def _sample(sample: type, fields: dict[str, Sequence[Any]], row: int, more: dict[str, Any]) -> Any:
    made: Any = object.__new__(sample)
    vars(made).update({name: column[row] for name, column in fields.items()} | more)
    return made


log = logging.getLogger("rolltape")

FUNCTION, EVAL_FUNCTION = "ROLLTAPE_SLIME_FUNCTION", "ROLLTAPE_SLIME_EVAL_FUNCTION"
SAMPLING = (
    "n_samples_per_prompt", "rollout_batch_size", "rollout_temperature", "rollout_top_p", "rollout_top_k",
    "rollout_max_response_len",
)  # fmt: skip


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """Run the configured rollout function and record it, or replay what it returned."""
    package = "miles" if "miles" in sys.modules and "slime.utils.types" not in sys.modules else "slime"

    def generate(args: Any, source: Any) -> Any:
        function = load(path_of(args, evaluation, f"{package}.rollout.sglang_rollout.generate_rollout"))
        return function(args, rollout_id, source, evaluation=evaluation)

    rollouts = Rollouts.of(args, package)
    if rollouts.by_prompt is not None and not evaluation:
        return rollouts.by_prompt.run(rollouts.entering(rollout_id), args, data_source, generate)
    return rollouts.run(args, rollout_id, evaluation, lambda: generate(args, data_source))


class Rollouts:
    """The tape of this process, and the current step of each split."""

    _open: Rollouts | None = None

    def __init__(self, tape: Tape, sample: type, package: str) -> None:
        self.tape = tape
        self.sample = sample
        self._positions = Positions(tape)
        self.by_prompt: PromptRollouts | None = None
        """What answers rollouts by their prompts; evaluations then run as without a tape."""
        if tape.settings.by is By.PROMPT and not tape.is_off:
            outputs = importlib.import_module(f"{package}.rollout.base_types")
            self.by_prompt = PromptRollouts(tape, sample, outputs.RolloutFnTrainOutput)
        else:
            self._stage = tape.stage("rollout", inputs=False)(self._taken_apart)

    @classmethod
    def of(cls, args: Any, package: str) -> Rollouts:
        """Those of the tape that ``ROLLTAPE_*`` variables name; opened once, at the first call."""
        settings = resolve({}, os.environ, {"fingerprint": fingerprint(args)})
        if settings.by is By.PROMPT:
            settings = relaxed(settings)
        if cls._open is None or cls._open.tape.settings != settings:
            if cls._open is not None:
                cls._open.tape.close()
            sample = object if settings.mode is Mode.OFF else _known_classes(package)
            cls._open = cls(Tape(settings=settings), sample, package)
            if cls._open.tape.is_off:
                log.warning(
                    "rolltape: no tape is set, so rollouts run live; set ROLLTAPE_DIR and ROLLTAPE_MODE"
                )
            else:
                log.info("rolltape: %s uses tape %s, mode %s", package, cls._open.tape.dir, settings.mode)
        return cls._open

    def run(self, args: Any, rollout_id: int, evaluation: bool, live: Callable[[], Any]) -> Any:
        """One rollout or evaluation: live and recorded, or replayed."""
        if self.by_prompt is not None and not evaluation:
            raise ConfigError(
                'by="prompt" needs a rollout function that is given its data source, as slime\'s is',
                where=self.tape.dir,
                hint="with miles set MILES_USE_LEGACY_ROLLOUT_V1=1 and use slime's function, or leave by out",
            )
        if self.tape.is_off or self.by_prompt is not None:
            return live()
        split = "val" if evaluation else "train"
        plan = self.tape.plan(rollout_id, split=split)
        if plan.calls_live and getattr(args, "debug_train_only", False):
            raise ConfigError(
                f"rollout {rollout_id} must be generated, but no engine runs: {plan.reason}",
                where=self.tape.dir,
                causes=["the run has --debug-train-only, but the tape does not replay this step"],
                hint="replay only recorded steps (ROLLTAPE_MODE=replay), or remove --debug-train-only",
            )
        ran: list[Any] = []
        parts = self._positions.at(rollout_id, split).run(self._stage, live, ran)
        if ran:
            # This process is killed when training ends.
            self.tape.flush()
            return ran[0]
        return put_together(parts, self.sample)

    def entering(self, rollout_id: int) -> Callable[..., Any]:
        """Calls a function inside the step of a rollout."""
        return self._positions.at(rollout_id, "train").run

    def _taken_apart(self, live: Callable[[], Any], ran: list[Any]) -> dict[str, Any]:
        ran.append(live())
        return take_apart(ran[0], self.sample)


def path_of(args: Any, evaluation: bool, default: str) -> str:
    """The function to record: from the arguments, the environment, or the framework's default."""
    found = [getattr(args, "rolltape_rollout_function", None), os.environ.get(FUNCTION), default]
    if evaluation:
        found = [getattr(args, "rolltape_eval_function", None), os.environ.get(EVAL_FUNCTION), *found]
    return next(path for path in found if path)


def load(path: str) -> Any:
    """A function or class by its dotted path; never one of Rolltape's."""
    module, _, name = path.rpartition(".")
    if not module or module.startswith("rolltape."):
        raise ConfigError(
            f"{path!r} is not a rollout function that can be recorded",
            where=FUNCTION,
            hint="name the function you had in --rollout-function-path before",
        )
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        raise ConfigError(f"{module} has no {name!r}", where=FUNCTION) from None


def fingerprint(args: Any) -> dict[str, Any]:
    """What must match when a tape is replayed, as far as the arguments tell."""
    said = {
        "model": getattr(args, "hf_checkpoint", None),
        "data": getattr(args, "prompt_data", None),
        "seed": getattr(args, "rollout_seed", None),
        "sampling": {name: getattr(args, name) for name in SAMPLING if hasattr(args, name)},
    }
    return {name: value for name, value in said.items() if value not in (None, {})}


def _known_classes(package: str) -> type:
    """Register the framework's own classes for replay; return the class of its samples."""
    try:
        types = importlib.import_module(f"{package}.utils.types")
        outputs = importlib.import_module(f"{package}.rollout.base_types")
    except ModuleNotFoundError as error:
        if package in sys.modules and str(error.name).startswith(f"{package}."):
            raise unsupported(package, f"has no {error.name}") from None
        raise ConfigError(
            f"this must be called by slime or miles: {error}",
            hint="use this with --rollout-function-path; for your own trainer see docs/tape.md",
        ) from None
    check_needs(package, types, ("Sample",))
    check_needs(package, outputs, ("RolloutFnTrainOutput", "RolloutFnEvalOutput"))
    for cls in (types.Sample, outputs.RolloutFnTrainOutput, outputs.RolloutFnEvalOutput):
        register_adapter(cls)
    found: type = types.Sample
    return found
