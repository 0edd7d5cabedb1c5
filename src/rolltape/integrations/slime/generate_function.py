"""The generate function: one sample of slime's rollout, on the tape as soon as it is done.

slime calls it for each sample, many at a time, while the rollout function of this package runs.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

from rolltape.integrations.slime.rollout_function import Rollouts, load, put_together, take_apart
from rolltape.tape.call_arguments import Arguments, Naming
from rolltape.tape.open_step import OpenStep

FUNCTION = "ROLLTAPE_SLIME_GENERATE_FUNCTION"
_DEFAULT = "slime.rollout.sglang_rollout.generate"
_GOES_ON = ("pending", "aborted")
"""A sample with one of these is not done."""


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
    """Generate one sample with the configured function, or take what a killed run had finished of it.

    A sample that was begun in an earlier rollout, and samples of an evaluation, are left alone.
    """
    path = getattr(args, "rolltape_generate_function", None) or os.environ.get(FUNCTION) or _DEFAULT
    function = load(path)
    more = {"evaluation": evaluation} if "evaluation" in inspect.signature(function).parameters else {}
    rollouts = Rollouts._open
    step = None if rollouts is None or evaluation else _open_step(rollouts)
    if step is None or rollouts is None or sample.index is None or sample.response:
        return await function(args, sample, sampling_params, **more)
    name = (str(sample.group_index), int(sample.index))
    given = Arguments.of({"prompt": sample.prompt, "sampling": dict(sampling_params)}, Naming(None))
    kept = step.find(name, given)
    if kept is not None:
        made = put_together(kept.value(), rollouts.sample)
        if type(made) is not type(sample):
            return made  # several samples of one
        vars(sample).update(vars(made))
        return sample
    made = await function(args, sample, sampling_params, **more)
    if all(_is_done(one) for one in (made if isinstance(made, list) else [made])):
        step.keep(name, take_apart(made, rollouts.sample), given)
    return made


def _open_step(rollouts: Rollouts) -> OpenStep | None:
    return None if rollouts.tape.is_off else rollouts.tape._live_call("generate").open()


def _is_done(sample: Any) -> bool:
    status = getattr(sample, "status", None)
    return getattr(status, "value", status) not in _GOES_ON
