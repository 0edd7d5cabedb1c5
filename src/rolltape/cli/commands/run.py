"""``rolltape run``: any command with a tape under it, in its subprocesses and Ray workers too."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path

import click

from rolltape.cli.arguments import Steps, TapePath
from rolltape.cli.child_process import call, refuse_option
from rolltape.cli.output import HELP, Exit, complain
from rolltape.cli.serve_text import summary_text
from rolltape.errors import TapeNotFoundError
from rolltape.integrations import ray_env, unedited
from rolltape.policy import Mode, OnMiss
from rolltape.reader.listing import is_tape
from rolltape.reader.run import open
from rolltape.reader.wording import count, counted, seconds
from rolltape.serving import serve
from rolltape.settings import Settings, resolve
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.storage import absolute, is_url, storage_at
from rolltape.tape.opening import OPENED, not_found


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
@click.option("--serve", "serves", is_flag=True,
              help="Start an inference server on the tape; {url} in COMMAND is its address.")  # fmt: skip
@click.option(
    "--upstream", multiple=True, metavar="URL", help="With --serve: the server to pass calls on to."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    mode: str,
    folder: str,
    steps: StepSelector,
    on_miss: str | None,
    serves: bool,
    upstream: tuple[str, ...],
    command: tuple[str, ...],
) -> int:
    """Run COMMAND with ROLLTAPE_MODE, ROLLTAPE_DIR and ROLLTAPE_STEPS set, and pass its exit code on.

    A command that ends well and never opened the tape gives exit code 4; one of which only its end showed
    that it made fewer calls than were recorded, exit code 1.

    verl, ROLL, TRL, slime and miles need nothing else, and are refused at their start where they cannot be
    hooked. A program that opens its tape with Tape.from_env() finds it too.
    """
    refuse_option(command[0], [option.name for option in fields(Settings)])
    if upstream and not serves:
        raise click.UsageError("--upstream goes with --serve")
    if serves:
        return _serving(mode, folder, upstream, command)
    tape = absolute(folder)
    if mode == Mode.REPLAY and on_miss is None and not is_tape(tape):
        if not is_url(tape) and os.path.exists(tape):
            raise not_found(storage_at(tape))
        raise TapeNotFoundError(
            "there is no tape to replay",
            where=tape,
            hint=f"record it first: rolltape run --mode record --dir {folder} -- …",
        )
    if (theirs := os.environ.get(ray_env.VARIABLE)) and not ray_env.is_ours(theirs):
        complain(f"rolltape: {ray_env.VARIABLE}={theirs} is kept: Ray runs it first, and Rolltape's after it")
    before, started = recordings_in(tape), time.monotonic()
    with _told(tape) as told:
        code = call(command, environment(os.environ, mode, tape, steps, on_miss) | {OPENED: told})
        lines = [json.loads(line) for line in Path(told).read_text(encoding="utf-8").splitlines()]
    opened = [(where, its) for where, its, *_ in lines]
    said = [word for where, _, *words in lines if where == tape for word in words]
    replayed = [word for word in said if isinstance(word, int)]
    mismatches = [word for word in said if isinstance(word, str)]
    after, took = recordings_in(tape), time.monotonic() - started
    new = count(len(after - before))
    says_replayed = any(replayed) or (mode == Mode.REPLAY and replayed)
    complain(
        f"rolltape: exit code {code} after {seconds(took)}; "
        f"{tape} has {counted(len(after), 'recording')}, {new} of them new"
        + (f"; {count(sum(replayed))} replayed" if says_replayed else "")
    )
    if code == 0 and mismatches:  # seen when the program had ended, so it could not fail by itself
        complain(f"rolltape: {mismatches[0]}")
        return Exit.FINDINGS
    if mode == Mode.OFF or after - before:
        return code
    if code and not opened:
        complain("rolltape: the command failed before it opened a tape")
        return code
    wrong = complaint(tape, mode, opened)
    if wrong:
        complain(wrong)
    return Exit.NO_TAPE if wrong and code == 0 and tape not in (where for where, _ in opened) else code


def _serving(mode: str, folder: str, upstream: tuple[str, ...], command: tuple[str, ...]) -> int:
    """Run a command beside a server that stands on the tape."""
    its = resolve({"dir": folder}, os.environ)
    how = {"by": its.by, "version": its.version, "draw": its.draw}
    with serve(folder, upstream, mode=mode, **how) as server:
        words = tuple(word.replace("{url}", server.url) for word in command)
        code = call(words, served_environment(os.environ, server.url))
    summary = server.summary()
    complain("rolltape: " + summary_text(summary).replace("\n", "\nrolltape: "))
    if code == 0 and summary["failure"]:
        return Exit.ERROR
    if code == 0 and summary["waiting"]["files"]:
        return Exit.FINDINGS
    if code == 0 and not summary["calls"]["asked"]:
        complain(
            "rolltape: the command made no call through the server. Check that it takes the address:\n"
            "  - as an argument, where {url} stands in the command\n"
            "  - from OPENAI_BASE_URL, ANTHROPIC_BASE_URL or ROLLTAPE_SERVE_URL"
        )
        return Exit.NO_TAPE
    return code


def served_environment(environ: Mapping[str, str], url: str) -> dict[str, str]:
    """The environment of a command that is to call the server; pure.

    >>> served_environment({}, "http://127.0.0.1:1")["OPENAI_BASE_URL"]
    'http://127.0.0.1:1/v1'
    """
    keys = {name: "rolltape" for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY") if not environ.get(name)}
    addresses = {"OPENAI_BASE_URL": f"{url}/v1", "ANTHROPIC_BASE_URL": url, "ROLLTAPE_SERVE_URL": url}
    return {**environ, **keys, **addresses}


def complaint(tape: str, mode: str, opened: Sequence[tuple[str, str]]) -> str:
    """What is wrong with the tapes that a command opened, and what to check; empty if nothing is. Pure."""
    mine = [its for where, its in opened if where == tape]
    if not opened:
        return (
            "rolltape: the command opened no tape, so nothing was recorded or replayed. Check that\n"
            "  - it opens one as the environment says: rolltape.Tape.from_env(), without dir and mode\n"
            "  - its framework is set up for it: see the page of verl, ROLL, TRL or slime; rolltape doctor\n"
            "    says which of the frameworks here are tested, and which are refused\n"
            "  - it passes its environment on to the processes that train"
        )
    if not mine:
        others = ", ".join(dict.fromkeys(where for where, _ in opened))
        return (
            f"rolltape: the command did not open this tape but {others}: its own dir= beats the environment"
        )
    if mode not in mine:
        return f"rolltape: the command opened the tape in mode {mine[0]}: its own mode= beats the environment"
    return ""


@contextmanager
def _told(tape: str) -> Iterator[str]:
    """A file in which a tape that is opened is told; beside the tape if it can be, for other machines."""
    folder = os.path.join(tape, ".tmp")
    place = folder if not is_url(tape) and os.access(folder, os.W_OK) else None
    descriptor, path = tempfile.mkstemp(prefix="opened-", dir=place)
    os.close(descriptor)
    try:
        yield path
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)


def environment(
    environ: Mapping[str, str], mode: str, tape: str, steps: StepSelector, on_miss: str | None = None
) -> dict[str, str]:
    """The environment of the command; pure."""
    found = {**environ, "ROLLTAPE_MODE": mode, "ROLLTAPE_DIR": tape, "ROLLTAPE_CWD": os.getcwd()}
    for name, value in {"STEPS": None if steps == ALL_STEPS else str(steps), "ON_MISS": on_miss}.items():
        found.pop(f"ROLLTAPE_{name}", None)
        if value is not None:
            found[f"ROLLTAPE_{name}"] = value
    ray_env.name_plugin(found)
    ray_env.hook_into(found, ray_env.ROLL_HOOK)
    if mode != Mode.OFF:
        unedited.reach(found)
    return found


def recordings_in(tape: str) -> set[str]:
    """The files of recordings on a tape; empty where there is no tape yet."""
    return {one.key.path for one in open(tape).recordings()} if is_tape(tape) else set()
