"""The command line. Nothing else in Rolltape imports this package, and with it click and rich."""

from rolltape.cli.app import app as main

__all__ = ["main"]
