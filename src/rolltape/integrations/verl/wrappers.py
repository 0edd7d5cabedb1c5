"""The wrappers around verl's own functions: thin, standard library only; each call checks for a tape.

SkipManager.init         opens the tapes a configuration asks for
SkipManager.set_step     a step has ended: its recordings are on disk, or an error says why not
SkipManager.annotate     a generating function
SkipManager.annotate_tq  the two halves of generation through TransferQueue
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]

_MARK = "__rolltape__"
_INSTALL = "rolltape.integrations.verl.install"


def hook(manager: Any, asked_for: Callable[[Any], bool]) -> None:
    """Wrap verl's SkipManager. Most of Rolltape is imported only when a run asks for a tape."""
    if _MARK in vars(manager):
        return
    init, set_step, annotate, annotate_tq = (
        manager.init, manager.set_step, manager.annotate, manager.annotate_tq,
    )  # fmt: skip

    def init_with_tape(config: Any) -> None:
        if not asked_for(config):
            init(config)
            return
        from rolltape.integrations.verl import install, internals

        internals.check_trainers()
        init(config)
        install.start(config)

    def set_step_and_flush(step: int) -> None:
        if (install := _installed()) is not None:
            install.flush()
        set_step(step)

    def annotate_with_tape(role: str, **outer: Any) -> Function:
        return lambda function: around_generation(role, function, annotate(role, **outer)(function))

    def annotate_tq_with_tape(role: str, phase: str) -> Function:
        return lambda function: around_queue(role, phase, function, annotate_tq(role, phase)(function))

    manager.init = staticmethod(init_with_tape)
    manager.set_step = staticmethod(set_step_and_flush)
    manager.annotate = staticmethod(annotate_with_tape)
    manager.annotate_tq = staticmethod(annotate_tq_with_tape)
    setattr(manager, _MARK, True)


def around_generation(role: str, function: Function, theirs: Function) -> Function:
    """Wraps a generating function of a role; ``theirs``, verl's own version, runs if the role has no tape."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def generate_async(*args: Any, **kwargs: Any) -> Any:
            generation = lookup("generation", role)
            if generation is None:
                return await theirs(*args, **kwargs)
            return await generation.run_async(function, args, kwargs)

        return marked(generate_async)

    @functools.wraps(function)
    def generate(*args: Any, **kwargs: Any) -> Any:
        generation = lookup("generation", role)
        if generation is None:
            return theirs(*args, **kwargs)
        return generation.run(function, args, kwargs)

    return marked(generate)


def around_queue(role: str, phase: str, function: Function, theirs: Function) -> Function:
    """Wraps a method of the trainer (phase ``submit``) or of its replay buffer (``sample``)."""

    @functools.wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        queue = lookup("queue", role)
        if queue is None:
            return theirs(self, *args, **kwargs)
        if phase == "submit":
            return queue.submit(self)
        return queue.sample(self, function, *args, **kwargs)

    return marked(call)


def replace_generation(workers: Any, run: Function, run_async: Function) -> None:
    """Replace ``generate_sequences`` of a worker group or a manager, by a function of the same kind.

    ``run`` and ``run_async`` get the live function, its arguments and its named arguments. Once only.
    """
    live = workers.generate_sequences
    if is_marked(live):
        return
    if not inspect.iscoroutinefunction(inspect.unwrap(live)):

        @functools.wraps(live)
        def generate_sequences(*args: Any, **kwargs: Any) -> Any:
            return run(live, args, kwargs)

        workers.generate_sequences = marked(generate_sequences)
        return

    @functools.wraps(live)
    async def generate_sequences_async(*args: Any, **kwargs: Any) -> Any:
        return await run_async(live, args, kwargs)

    if inspect.iscoroutinefunction(live):
        workers.generate_sequences = marked(generate_sequences_async)
    else:  # verl allows calls with and without await
        from verl.utils.ray_utils import auto_await

        workers.generate_sequences = marked(auto_await(generate_sequences_async))


def marked(function: Function) -> Function:
    """Mark a function as one of these wrappers."""
    setattr(function, _MARK, True)
    return function


def is_marked(function: Any) -> bool:
    """Whether a function, or one it wraps, is one of these wrappers."""
    while function is not None:
        if _MARK in getattr(function, "__dict__", ()):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def _installed() -> Any:
    return sys.modules.get(_INSTALL)


def lookup(kind: str, role: str) -> Any:
    """What runs the ``generation`` or ``queue`` of a role in this process; None if the role has no tape."""
    install = _installed()
    return None if install is None else getattr(install, kind)(role)
