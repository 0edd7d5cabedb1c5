"""verl 0.6 to 0.8, which have no SkipManager: the tape under ``RayPPOTrainer`` and its own ``RolloutSkip``.

RayPPOTrainer.init_workers     opens the tapes a configuration asks for, and wraps what generates
RayPPOTrainer.__init__         refuses a kind of trainer that sets up its workers in another way; so does
                               that of a subclass
RolloutSkip(config, workers)   is Rolltape's for a run that asked for a tape, else verl's own

The trainer of the DAPO recipe is one of these: it generates several times per step, and each is a call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from rolltape.integrations.verl.internals import asks
from rolltape.integrations.verl.wrappers import is_marked, marked
from rolltape.releases import unsupported

AskedFor = Callable[[Any], bool]

SOURCES = ("async_rollout_manager", "actor_rollout_wg")
"""What a trainer generates with; releases before 0.7 have a synchronous mode that uses the workers."""


def hook_trainer(trainer_class: Any, asked_for: AskedFor) -> None:
    """Wrap the trainer. Most of Rolltape is imported only when a run asks for a tape."""
    if is_marked(trainer_class.init_workers):
        return
    init_workers = trainer_class.init_workers

    @functools.wraps(init_workers)
    def init_workers_on_tape(self: Any) -> None:
        if not asked_for(self.config):
            init_workers(self)
            return
        from rolltape.integrations.verl import install

        install.start(self.config, lambda: int(self.global_steps))
        init_workers(self)
        for name in SOURCES:
            if hasattr(workers := getattr(self, name, None), "generate_sequences"):
                install.wrap_source(workers)

    def derive(kind: type, /, **kwargs: Any) -> None:
        super(trainer_class, kind).__init_subclass__(**kwargs)
        _guard(kind, trainer_class, asked_for)

    for kind in _with_derived(trainer_class):
        _guard(kind, trainer_class, asked_for)
    trainer_class.__init_subclass__ = classmethod(derive)
    trainer_class.init_workers = marked(init_workers_on_tape)


def _guard(cls: Any, base: type, asked_for: AskedFor) -> None:
    """Have the constructor of a class refuse a tape that its trainer would not open.

    Some do not call that of their base, so that each has to ask for itself.
    """
    construct = vars(cls).get("__init__")
    if construct is None:
        return

    @functools.wraps(construct)
    def construct_if_known(self: Any, *args: Any, **kwargs: Any) -> None:
        if not _comes_to(base, type(self)) and asks(asked_for, args, kwargs):
            raise unsupported(
                "verl", f"starts {type(self).__name__} in a way of its own, not as RayPPOTrainer"
            )
        construct(self, *args, **kwargs)

    cls.__init__ = construct_if_known


def _with_derived(cls: Any) -> Iterator[Any]:
    yield cls
    for kind in cls.__subclasses__():
        yield from _with_derived(kind)


def _comes_to(base: type, kind: type) -> bool:
    """Whether setting up the workers of a kind of trainer comes to that of its base."""
    own = [
        vars(cls)["init_workers"]
        for cls in kind.__mro__[: kind.__mro__.index(base)]
        if "init_workers" in vars(cls)
    ]
    names = [inspect.unwrap(method).__code__.co_names for method in own]
    return all("init_workers" in said and {"super", base.__name__} & set(said) for said in names)


def hook_skip(skip_class: Any, asked_for: AskedFor) -> None:
    """Make verl's class give out Rolltape's; the class itself stays, wherever it was imported to."""
    if "__new__" in vars(skip_class):
        return

    def make(cls: Any, config: Any, rollout_wg: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is not skip_class or not asked_for(config):
            return object.__new__(cls)
        from rolltape.integrations.verl.rollout_skip import RolloutSkip

        return RolloutSkip(config, rollout_wg)

    skip_class.__new__ = staticmethod(make)
