"""Puts every trainer that this process builds on a tape, as soon as TRL is imported and not before."""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from rolltape.errors import ConfigError
from rolltape.integrations.trl.instrument import instrument
from rolltape.integrations.trl.vllm import on_demand
from rolltape.policy import Mode
from rolltape.settings import resolve
from rolltape.tape import Tape

TRAINERS = {"trl.trainer.grpo_trainer": "GRPOTrainer", "trl.trainer.rloo_trainer": "RLOOTrainer"}


class _Installed:
    """What is installed in this process."""

    def __init__(self, tape: Tape | None) -> None:
        self.tape = tape
        self.watch = _Watch(self)
        self._replaced: list[tuple[Any, Any]] = []

    def hook(self, module: ModuleType) -> None:
        """Wrap the constructor of the module's trainer."""
        cls = getattr(module, TRAINERS[module.__name__])
        build = cls.__init__

        @functools.wraps(build)
        def build_on_tape(trainer: Any, *args: Any, **named: Any) -> None:
            # TRL starts vLLM, or waits for its server, while it builds the trainer.
            with on_demand(module) if self._may_replay() else contextlib.nullcontext():
                build(trainer, *args, **named)
            instrument(trainer, self.tape)

        cls.__init__ = build_on_tape
        self._replaced.append((cls, build))

    def unhook(self) -> None:
        """Leave everything as it was."""
        for cls, build in self._replaced:
            cls.__init__ = build
        if self.watch in sys.meta_path:
            sys.meta_path.remove(self.watch)

    def _may_replay(self) -> bool:
        settings = self.tape.settings if self.tape is not None else resolve({}, os.environ)
        return settings.mode in (Mode.REPLAY, Mode.AUTO)


_installed: _Installed | None = None


def install(tape: Tape | None = None) -> None:
    """Have every trainer that is built from now on instrumented; one that replays starts no vLLM.

    Without ``tape`` it is the one that ``ROLLTAPE_*`` variables name.
    """
    global _installed
    if _installed is not None:
        raise ConfigError(
            "install was called before in this process",
            causes=["the script calls it and is run with python -m rolltape.integrations.trl"],
            hint="keep one of them, or call uninstall() first",
        )
    _installed = _Installed(tape)
    sys.meta_path.insert(0, _installed.watch)
    for name in TRAINERS:
        if name in sys.modules:
            _installed.hook(sys.modules[name])


def uninstall() -> None:
    """Have trainers built as TRL builds them again; those that are on a tape stay there."""
    global _installed
    if _installed is not None:
        _installed.unhook()
        _installed = None


class _Watch(importlib.abc.MetaPathFinder):
    """Hooks a trainer as soon as its module has been executed."""

    def __init__(self, installed: _Installed) -> None:
        self._installed = installed
        self._looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in TRAINERS or self._looking:
            return None
        self._looking = True
        try:
            spec = find_spec(fullname)
        finally:
            self._looking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_hook(module: ModuleType) -> None:
            execute(module)
            self._installed.hook(module)

        spec.loader.exec_module = execute_and_hook  # type: ignore[method-assign]
        return spec
