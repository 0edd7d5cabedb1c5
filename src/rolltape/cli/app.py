"""The ``rolltape`` command: finds the subcommand, and turns what goes wrong into a message and an exit code.

A subcommand lives in a module of its own, is loaded only when it is asked for, and returns its exit code.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click

from rolltape._version import __version__
from rolltape.cli.output import Exit, complain
from rolltape.errors import RolltapeError, StepMissingError

COMMANDS = {
    name: name for name in "ls show view browse check diff noise accept rerun cut doctor prune run".split()
}
COMMANDS |= {"import": "import_", "export": "export", "demo": "demo", "completion": "completion"}
"""Command -> its module in this package, in the order of the help text."""

INTERRUPTED = 130
"""What a shell reports for a command ended by Ctrl-C."""

PIPE_CLOSED = 141
"""What a shell reports for a command whose reader (``| head``) went away."""


class App(click.Group):
    """The group of all commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"rolltape.cli.{COMMANDS[cmd_name]}").command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Releases of click disagree on the exit code of a group that is given nothing.
        return super().parse_args(ctx, args or ["--help"])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:  # before click turns it into exit code 1, which here means findings
            raise PipeClosed from error
        return code

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run and exit. Every way out goes through here, so that no user ever sees a traceback unasked."""
        kwargs = {"prog_name": "rolltape", **kwargs, "standalone_mode": False}
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError):  # replaced by a test or a notebook
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        run = super().main
        sys.exit(exit_code(lambda: run(*args, **kwargs)))


class PipeClosed(Exception):
    """Whoever read our output has stopped reading."""


def exit_code(run: Callable[[], int | None]) -> int:
    """The exit code of a command; says what went wrong, if something did."""
    try:
        return int(run() or Exit.CLEAN)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        complain("interrupted")
        return INTERRUPTED
    except PipeClosed:
        # What is still buffered has nowhere to go; without this the interpreter complains at exit.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except click.ClickException as error:
        error.show()
        return Exit.ERROR
    except StepMissingError as error:
        complain(f"error: {error}")
        return Exit.NOTHING
    except Exception as error:
        return _failed(error)


def _failed(error: Exception) -> int:
    asked = os.environ.get("ROLLTAPE_TRACEBACK", "0") not in ("", "0")
    if asked:
        complain("".join(traceback.format_exception(error)))
    if isinstance(error, (RolltapeError, OSError)):
        complain(f"error: {error}")
        return Exit.ERROR
    complain(f"internal error: {type(error).__name__}: {error}")
    if not asked:
        complain("  next: run it again with ROLLTAPE_TRACEBACK=1 to see where it happened, and report it")
    return Exit.ERROR


@click.command(
    cls=App,
    name="rolltape",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 clean, 1 findings, 2 usage or internal error, 3 nothing there.",
)
@click.version_option(__version__, prog_name="rolltape", message="%(prog)s %(version)s")
def app() -> None:
    """Look at, check and prune recorded rollouts of RL training runs."""
