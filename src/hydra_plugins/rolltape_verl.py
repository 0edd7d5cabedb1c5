"""Hydra imports this before it starts a program; one of a verl without entry points gets its plugin here.

A program may import verl later, inside its main function: then the plugin comes with it.
"""

import importlib
import sys

from rolltape.integrations.import_hook import ImportHook

PLUGIN = "rolltape.integrations.verl.plugin"

if "verl" in sys.modules:
    importlib.import_module(PLUGIN)
else:
    ImportHook({"verl": lambda module: importlib.import_module(PLUGIN) and None}).start()
