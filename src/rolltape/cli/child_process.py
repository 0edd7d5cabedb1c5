"""A command that runs under ours, in the foreground."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Collection, Mapping

import click

from rolltape.cli.output import complain

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""What a shell reports for a command that cannot be started."""


def refuse_option(word: str, variables: Collection[str] = ()) -> None:
    """Raise if the first word of a command is an option, which ours does not have, or has as a variable."""
    if not word.startswith("-"):
        return
    name = word.partition("=")[0]
    option = name.lstrip("-").replace("-", "_")
    more = f"; set it in the environment: ROLLTAPE_{option.upper()}=…" if option in variables else ""
    raise click.UsageError(f"there is no option {name!r}{more}", click.get_current_context())


def call(command: tuple[str, ...], environ: Mapping[str, str]) -> int:
    """Run a command in the foreground; its exit code as a shell would report it."""
    try:
        process = subprocess.Popen(command, env=dict(environ))
    except FileNotFoundError:
        complain(f"error: there is no command {command[0]!r}")
        return NOT_FOUND
    except OSError as error:
        complain(f"error: {command[0]!r} cannot be started: {error.strerror}")
        return NOT_EXECUTABLE
    ours = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which gets it too
    forward = signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
    try:
        sys.stdout.flush()
        code = process.wait()
    finally:
        signal.signal(signal.SIGINT, ours)
        signal.signal(signal.SIGTERM, forward)
    return code if code >= 0 else 128 - code
