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
from difflib import get_close_matches
from typing import Any

import click

from rolltape._version import __version__
from rolltape.cli.output import Exit, complain, print_json
from rolltape.errors import RolltapeError, StepMissingError

COMMANDS = {
    name: name
    for name in (
        "ls show view browse notes check repair diff trust score noise accept bisect rerun cut redact doctor "
        "prune compact index filter push pull sync drain run serve"
    ).split()
}
COMMANDS |= {"import": "import_", "export": "export", "demo": "demo", "completion": "shell_completion"}
"""Command -> its module in ``commands``, in the order of the help text."""

OTHER_WORDS = {
    "list": "ls", "dir": "ls", "inspect": "show", "cat": "show", "open": "view",
    "proxy": "serve", "mock": "serve", "blame": "bisect", "culprit": "bisect",
    "viewer": "view", "tui": "browse", "verify": "check", "fsck": "check", "validate": "check",
    "fix": "repair", "restore": "repair", "compare": "diff", "record": "run --mode record",
    "replay": "run --mode replay", "delete": "prune", "rm": "prune", "clean": "prune", "slice": "cut",
    "anonymize": "redact", "upload": "push", "copy": "push", "cp": "push", "download": "pull",
    "select": "filter", "grep": "filter", "query": "filter",
    "clone": "pull", "fetch": "pull", "mirror": "sync", "rsync": "sync",
    "help": "--help", "version": "--version",
}  # fmt: skip
"""Words that people try, and the command for each."""

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
        command: click.Command = importlib.import_module(
            f"rolltape.cli.commands.{COMMANDS[cmd_name]}"
        ).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"there is no command {args[0]!r}{_suggestion(args[0])}", ctx)
        return super().resolve_command(ctx, args)

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
        words = list(args[0] if args and args[0] is not None else kwargs.get("args") or sys.argv[1:])
        as_json = "--json" in words[: words.index("--") if "--" in words else None]
        sys.exit(exit_code(lambda: run(*args, **kwargs), as_json=as_json))


def _suggestion(word: str) -> str:
    """What was probably meant by a command that there is not."""
    known = {**{name: name for name in COMMANDS}, **OTHER_WORDS}
    nearest = get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    return f"; did you mean `rolltape {known[nearest[0]]}`?" if nearest else ""


class PipeClosed(Exception):
    """Whoever read our output has stopped reading."""


def exit_code(run: Callable[[], int | None], *, as_json: bool = False) -> int:
    """The exit code of a command; says what went wrong, if something did: ``as_json`` on stdout, too."""
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
    except Exception as error:
        code = _failed(error)
        if as_json:
            print_json({"error": _as_json(error), "exit_code": int(code)})
        return code


def _failed(error: Exception) -> Exit:
    """Say what went wrong."""
    if isinstance(error, click.ClickException):
        error.show()
        return Exit.ERROR
    asked = os.environ.get("ROLLTAPE_TRACEBACK", "0") not in ("", "0")
    if asked:
        complain("".join(traceback.format_exception(error)))
    if isinstance(error, (RolltapeError, OSError)):
        complain(f"error: {error}")
        return Exit.NOTHING if isinstance(error, StepMissingError) else Exit.ERROR
    complain(f"internal error: {type(error).__name__}: {error}")
    if not asked:
        complain("  next: run it again with ROLLTAPE_TRACEBACK=1 to see where it happened, and report it")
    return Exit.ERROR


def _as_json(error: Exception) -> dict[str, Any]:
    """An error as the parts that its message is made of."""
    if isinstance(error, RolltapeError):
        parts = {"what": error.what, "where": error.where, "causes": list(error.causes), "next": error.hint}
    else:
        what = error.format_message() if isinstance(error, click.ClickException) else str(error)
        parts = {"what": what, "where": None, "causes": [], "next": None}
    return {"type": type(error).__name__, **parts}


@click.command(
    cls=App,
    name="rolltape",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 clean, 1 findings, 2 usage or internal error, 3 nothing there, 4 no tape opened.",
)
@click.version_option(__version__, prog_name="rolltape", message="%(prog)s %(version)s")
def app() -> None:
    """Look at, check and prune recorded rollouts of RL training runs."""
