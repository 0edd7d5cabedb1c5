"""Hydra imports this before it starts a program; one of a verl without entry points gets its plugin here."""

import sys

if "verl" in sys.modules:
    import rolltape.integrations.verl.plugin  # noqa: F401
