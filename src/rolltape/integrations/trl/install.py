"""Puts every trainer that this process creates on a tape; takes effect when TRL is imported."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from types import ModuleType
from typing import Any

from rolltape.errors import ConfigError, UnsupportedReleaseError
from rolltape.integrations.import_hook import ImportHook
from rolltape.integrations.releases import check_needs, has_module, unsupported
from rolltape.integrations.trl.instrument import instrument
from rolltape.integrations.trl.vllm_on_demand import on_demand
from rolltape.policy import Mode
from rolltape.settings import Settings, resolve
from rolltape.tape import Tape

TRAINERS = {"trl.trainer.grpo_trainer": "GRPOTrainer", "trl.trainer.rloo_trainer": "RLOOTrainer"}


class _Installed:
    """What is installed in this process."""

    def __init__(self, tape: Tape | None) -> None:
        self.tape = tape
        self.watch = ImportHook({"trl": self.look, **dict.fromkeys(TRAINERS, self.hook)})
        self._replaced: list[tuple[Any, Any]] = []

    def look(self, package: ModuleType) -> None:
        """Refuse a release that has its trainers in other modules, where they would not be found."""
        names = dir(sys.modules[package.__name__])  # TRL puts a lazy module in place of itself
        gone = [module for module, cls in TRAINERS.items() if cls in names and not has_module(module)]
        if gone and self._settings().mode is not Mode.OFF:
            raise unsupported("trl", f"has no {', '.join(gone)}", package.__file__)

    def hook(self, module: ModuleType) -> None:
        """Wrap the constructor of the module's trainer."""
        try:
            check_needs("trl", module, (TRAINERS[module.__name__], "VLLMGeneration"))
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
            instrument(trainer, self.tape)

        cls.__init__ = build_on_tape
        self._replaced.append((cls, build))

    def unhook(self) -> None:
        """Restore everything."""
        for cls, build in self._replaced:
            cls.__init__ = build
        self.watch.stop()

    def _may_replay(self) -> bool:
        return self._settings().mode in (Mode.REPLAY, Mode.AUTO)

    def _settings(self) -> Settings:
        return self.tape.settings if self.tape is not None else resolve({}, os.environ)


_installed: _Installed | None = None


def install(tape: Tape | None = None) -> None:
    """Instrument every trainer that is created from now on; one that replays does not start vLLM.

    Without ``tape`` it uses the one that ``ROLLTAPE_*`` variables name.
    """
    global _installed
    if _installed is not None:
        raise ConfigError(
            "install was already called in this process",
            causes=["the script calls it, and also runs with python -m rolltape.integrations.trl"],
            hint="use only one of them, or call uninstall() first",
        )
    _installed = _Installed(tape)
    _installed.watch.start()


def uninstall() -> None:
    """Create trainers as TRL does again; those that are on a tape stay there."""
    global _installed
    if _installed is not None:
        _installed.unhook()
        _installed = None
