"""Puts every trainer that this process creates on a tape; takes effect when TRL is imported.

Under ``rolltape run`` nobody asked for it in the script: a trainer is put on the tape when it starts, unless
the script has put it on one, and a trainer that generates in a way that is not known is refused.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rolltape.errors import ConfigError, UnsupportedReleaseError
from rolltape.integrations.import_hook import ImportHook
from rolltape.integrations.trl.instrument import check, instrument, is_a
from rolltape.integrations.trl.vllm_on_demand import on_demand
from rolltape.policy import Mode
from rolltape.releases import check_needs, has_module, unsupported
from rolltape.settings import Settings, resolve
from rolltape.tape import Tape
from rolltape.tape.opening import was_opened

TRAINERS = {"trl.trainer.grpo_trainer": "GRPOTrainer", "trl.trainer.rloo_trainer": "RLOOTrainer"}
STARTS = ("train", "evaluate", "predict")
"""What a script calls of a trainer that may generate."""
GENERATES = ("_generate", "generate_on_policy")
"""How TRL's methods that generate are called in its other trainers."""


class _Installed:
    """What is installed in this process."""

    def __init__(self, tape: Tape | None, unasked: bool = False) -> None:
        self.tape = tape
        self.unasked = unasked
        others = {"transformers.trainer": self.hook_others} if unasked else {}
        self.watch = ImportHook({"trl": self.look, **dict.fromkeys(TRAINERS, self.hook), **others})
        self._replaced: list[tuple[Any, str, Any]] = []

    def look(self, package: ModuleType) -> None:
        """Refuse a release that has its trainers in other modules, where they would not be found."""
        names = dir(sys.modules[package.__name__])  # TRL puts a lazy module in place of itself
        gone = [module for module, cls in TRAINERS.items() if cls in names and not has_module(module)]
        if gone and self._settings().mode is not Mode.OFF:
            raise unsupported("trl", f"has no {', '.join(gone)}", package.__file__)

    def hook(self, module: ModuleType) -> None:
        """Wrap the constructor of the module's trainer."""
        try:
            name = TRAINERS[module.__name__]
            check_needs("trl", module, (name, f"{name}.train(...)", "VLLMGeneration"))
        except UnsupportedReleaseError:
            if self._settings().mode is Mode.OFF:
                return
            raise
        cls = getattr(module, TRAINERS[module.__name__])
        build = cls.__init__

        @functools.wraps(build)
        def build_on_tape(trainer: Any, *args: Any, **named: Any) -> None:
            # TRL starts vLLM, or waits for its server, while it creates the trainer.
            with on_demand(module) if self._may_replay() else contextlib.nullcontext():
                build(trainer, *args, **named)
            if not self.unasked:
                instrument(trainer, self.tape)
            elif self._settings().mode is not Mode.OFF:
                check(trainer)

        self._replace(cls, "__init__", build_on_tape)
        if self.unasked:
            for name in filter(functools.partial(hasattr, cls), STARTS):
                self._replace(cls, name, _on_tape(getattr(cls, name)))

    def hook_others(self, module: ModuleType) -> None:
        """Refuse TRL's other trainers that generate, where nothing of the command is on a tape."""
        check_needs("transformers", module, ("Trainer.train(...)",))
        train = module.Trainer.train

        @functools.wraps(train)
        def train_if_known(trainer: Any, *args: Any, **named: Any) -> Any:
            if self._settings().mode is not Mode.OFF and _generates_unknown(trainer) and not was_opened():
                raise ConfigError(
                    f"{type(trainer).__name__} is not supported: what it generates would not be on the tape",
                    where=self._settings().dir,
                    causes=["it is neither a GRPOTrainer nor an RLOOTrainer"],
                    hint="open the tape in the script and declare a stage (docs/tape.md), "
                    "or train without rolltape run",
                )
            return train(trainer, *args, **named)

        self._replace(module.Trainer, "train", train_if_known)

    def unhook(self) -> None:
        """Restore everything."""
        while self._replaced:
            cls, name, before = self._replaced.pop()
            if before is None:
                delattr(cls, name)
            else:
                setattr(cls, name, before)
        self.watch.stop()

    def _replace(self, cls: Any, name: str, value: Any) -> None:
        self._replaced.append((cls, name, vars(cls).get(name)))
        setattr(cls, name, value)

    def _may_replay(self) -> bool:
        return self._settings().mode in (Mode.REPLAY, Mode.AUTO)

    def _settings(self) -> Settings:
        return self.tape.settings if self.tape is not None else resolve({}, os.environ)


def _on_tape(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that starts its trainer on the tape of the environment, if it is on none."""

    @functools.wraps(method)
    def start(trainer: Any, *args: Any, **named: Any) -> Any:
        instrument(trainer)
        return method(trainer, *args, **named)

    return start


def _generates_unknown(trainer: Any) -> bool:
    """Whether it is a trainer of TRL's that generates and is not known."""
    if is_a(trainer, *TRAINERS.values()):
        return False
    theirs = [cls for cls in type(trainer).__mro__ if cls.__module__.startswith("trl.")]
    names = [name for cls in theirs for name in vars(cls)]
    return any(cls.__name__.startswith("Async") for cls in theirs) or any(
        name.startswith(GENERATES) for name in names
    )


_installed: _Installed | None = None


def install(tape: Tape | None = None) -> None:
    """Instrument every trainer that is created from now on; one that replays does not start vLLM.

    Without ``tape`` it uses the one that ``ROLLTAPE_*`` variables name.
    """
    if _installed is not None and not _installed.unasked:
        raise ConfigError(
            "install was already called in this process",
            causes=["the script calls it, and also runs with python -m rolltape.integrations.trl"],
            hint="use only one of them, or call uninstall() first",
        )
    uninstall()
    _start(_Installed(tape))


def install_unasked() -> None:
    """The same for ``rolltape run``, with its tape; what a script installs or instruments goes first."""
    if _installed is None:
        _start(_Installed(None, unasked=True))


def _start(installed: _Installed) -> None:
    global _installed
    _installed = installed
    installed.watch.start()


def uninstall() -> None:
    """Create trainers as TRL does again; those that are on a tape stay there."""
    global _installed
    if _installed is not None:
        _installed.unhook()
        _installed = None
