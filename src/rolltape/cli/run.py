"""``rolltape run``: any command with a tape under it, in its subprocesses and Ray workers too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

import click

from rolltape.cli.arguments import Steps, TapePath
from rolltape.cli.output import HELP, complain, count, seconds
from rolltape.errors import TapeNotFoundError
from rolltape.integrations import ray_env
from rolltape.policy import Mode, OnMiss
from rolltape.steps import ALL_STEPS, StepSelector

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""What a shell reports for a command that cannot be started."""


@click.command(
    "run",
    short_help="Run a command with a tape under it.",
    context_settings={**HELP, "ignore_unknown_options": True},
)
@click.option("--mode", type=click.Choice([str(mode) for mode in Mode]), default="auto", show_default=True,
              help="What the tape does.")  # fmt: skip
@click.option("--dir", "folder", type=TapePath(), required=True, help="The tape.")
@click.option(
    "--steps", type=Steps(), default=ALL_STEPS, show_default=False, help="Where it acts, as in 0-9,20,50-."
)
@click.option(
    "--on-miss", type=click.Choice([str(word) for word in OnMiss]), help="At a step that is not on the tape."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    mode: str, folder: str, steps: StepSelector, on_miss: str | None, command: tuple[str, ...]
) -> int:
    """Run COMMAND with ROLLTAPE_MODE, ROLLTAPE_DIR and ROLLTAPE_STEPS set, and pass its exit code on.

    verl and ROLL need nothing else. TRL: python -m rolltape.integrations.trl train.py; slime and miles:
    --rollout-function-path, see their pages. A program that opens its tape with Tape.from_env() finds it too.
    """
    tape = os.path.abspath(os.path.expanduser(folder))
    if mode == Mode.REPLAY and on_miss is None and not os.path.isfile(os.path.join(tape, "tape.json")):
        raise TapeNotFoundError(
            "there is no tape to replay",
            where=tape,
            hint=f"record it first: rolltape run --mode record --dir {folder} -- …",
        )
    if (theirs := os.environ.get(ray_env.VARIABLE)) and not ray_env.is_ours(theirs):
        complain(f"rolltape: {ray_env.VARIABLE}={theirs} is kept: Ray runs it first, and Rolltape's after it")
    before, started = recordings_in(tape), time.monotonic()
    code = call(command, environment(os.environ, mode, tape, steps, on_miss))
    after, took = recordings_in(tape), time.monotonic() - started
    new = count(len(after - before))
    complain(
        f"rolltape: exit code {code} after {seconds(took)}; "
        f"{tape} has {count(len(after))} recordings, {new} of them new"
    )
    return code


def environment(
    environ: Mapping[str, str], mode: str, tape: str, steps: StepSelector, on_miss: str | None = None
) -> dict[str, str]:
    """The environment of the command; pure."""
    found = {**environ, "ROLLTAPE_MODE": mode, "ROLLTAPE_DIR": tape, "ROLLTAPE_CWD": os.getcwd()}
    for name, value in {"STEPS": None if steps == ALL_STEPS else str(steps), "ON_MISS": on_miss}.items():
        found.pop(f"ROLLTAPE_{name}", None)
        if value is not None:
            found[f"ROLLTAPE_{name}"] = value
    ray_env.hook_into(found, ray_env.ROLL_HOOK)
    return found


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


def recordings_in(tape: str) -> set[str]:
    """The files of recordings on a tape; empty where there is no tape yet."""
    from rolltape.storage import LocalStorage
    from rolltape.tape.shelf import recordings

    if not os.path.isdir(tape):
        return set()
    return {key.path for key in recordings(LocalStorage(tape))}
