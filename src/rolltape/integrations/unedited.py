"""Puts frameworks that offer no plugin point on the tape of ``rolltape run``, without an edit to a script.

``reach`` has every Python of a command import ``at_start/sitecustomize.py``, which calls ``start`` here. It
waits until a framework is imported and costs nothing until then. verl and ROLL have points of their own.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import MutableMapping
from pathlib import Path
from types import ModuleType

from rolltape.integrations import log_lines
from rolltape.integrations.import_hook import ImportHook

FOLDER = str(Path(__file__).with_name("at_start"))


def reach(environ: MutableMapping[str, str]) -> None:
    """Have every Python that starts in an environment call ``start``; what is on its path stays.

    >>> found = {"PYTHONPATH": "mine"}
    >>> reach(found)
    >>> found["PYTHONPATH"] == f"{FOLDER}{os.pathsep}mine"
    True
    """
    before = environ.get("PYTHONPATH")
    kept = [one for one in before.split(os.pathsep) if one != FOLDER] if before else []  # "" is a place too
    environ["PYTHONPATH"] = os.pathsep.join([FOLDER, *kept])


def start() -> None:
    """Hook each framework as soon as it is imported."""
    ImportHook({"trl": _trl, "slime": _slime, "miles": _slime}).start()


def _trl(package: ModuleType) -> None:
    log_lines.show()
    importlib.import_module("rolltape.integrations.trl.install").install_unasked()


def _slime(package: ModuleType) -> None:
    log_lines.show()
    importlib.import_module("rolltape.integrations.slime.parsed_arguments").hook(package)
