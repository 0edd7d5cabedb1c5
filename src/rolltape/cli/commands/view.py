"""``rolltape view``: rollouts in a browser, or as one file for somebody else's."""

from __future__ import annotations

import os
import threading
import webbrowser

import click

from rolltape.cli.arguments import LocalPath, Steps, TapePath
from rolltape.cli.output import Exit, Screen, complain
from rolltape.cli.progress import step_bar
from rolltape.errors import RolltapeError
from rolltape.key import check_name
from rolltape.rich_text import shown
from rolltape.steps import StepSelector, as_step
from rolltape.tape.summary import amount
from rolltape.viewer import export_html, serve


@click.command("view", short_help="Show rollouts in the browser, or write them to one HTML file.")
@click.argument("tapes", metavar="TAPE...", nargs=-1, required=True, type=TapePath())
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port (default: a free one).")
@click.option(
    "--token-file",
    type=LocalPath(allow_dash=True),
    metavar="FILE",
    help="A file with the secret that whoever opens the pages must know; - asks for it.",
)
@click.option("--follow", is_flag=True, help="Pick up new steps as they land.")
@click.option("--open/--no-open", "show", default=True, help="Open the browser (default: yes).")
@click.option(
    "--tokenizer",
    type=LocalPath(),
    metavar="PATH",
    help="Show tokens as text: a model's folder, or a tokenizer.json.",
)
@click.option("--export", type=TapePath(), metavar="FILE", help="Write one HTML file instead.")
@click.option("--steps", type=Steps(), metavar="0-9,20", help="With --export: these steps.")
@click.option("--read-only", is_flag=True, help="Nobody can write notes.")
@click.option("--at", metavar="PLACE", help="Open this page: SPLIT/STAGE/STEP, or SPLIT/STAGE/STEP/SAMPLE.")
def command(
    tapes: tuple[str, ...], host: str, port: int, token_file: str | None, follow: bool, show: bool,
    tokenizer: str | None, export: str | None, steps: StepSelector | None, read_only: bool,
    at: str | None,
) -> Exit:  # fmt: skip
    """Show the runs on TAPEs: rewards over steps, groups, samples token by token, two runs compared.

    Pages are served to this machine alone. For another --host a secret is part of the address: the one in
    --token-file or ROLLTAPE_VIEW_TOKEN, else a new one.
    """
    if (export is None) != (steps is None):
        raise click.UsageError("--export and --steps go together, as in --export out.html --steps 0-9")
    if export is not None and steps is not None:
        with step_bar("exporting") as told:
            size = export_html(tapes, export, steps, tokenizer=tokenizer, progress=told)
        Screen().print(shown(f"{export}: {amount(size)}"), soft_wrap=True)
        return Exit.CLEAN

    page = "" if at is None else _page(at, len(tapes))

    def ready(address: str, notice: str) -> None:
        address = address.replace("/?", f"/{page}?") if "/?" in address else address + page
        Screen().print(shown(address), soft_wrap=True)
        if notice:
            complain(notice)
        complain("Ctrl-C ends it")
        if show:  # on another thread: a browser of the terminal would wait for us, and we for it
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    token = _token(token_file)
    serve(
        tapes, host=host, port=port, token=token, follow=follow, tokenizer=tokenizer, read_only=read_only,
        ready=ready,
    )  # fmt: skip
    return Exit.CLEAN


def _page(place: str, tapes: int) -> str:
    """The address of a place: on one tape, or on the first two side by side."""
    parts = place.split("/")
    try:
        names = [check_name(kind, name) for kind, name in zip(("split", "stage"), parts, strict=False)]
        numbers = [str(as_step(int(number))) for number in parts[2:]]
    except (RolltapeError, ValueError) as error:
        raise click.UsageError(f"--at {place}: {error}") from None
    if not 3 <= len(parts) <= 4:
        raise click.UsageError(f"--at {place} is not SPLIT/STAGE/STEP or SPLIT/STAGE/STEP/SAMPLE")
    return "/".join(["t/0" if tapes == 1 else "c/0/1", *names, *numbers])


def _token(file: str | None) -> str | None:
    """The secret: never an argument, which every user of the machine can see."""
    if file == "-":
        return str(click.prompt("token", hide_input=True, err=True))
    if file is not None:
        with open(file, encoding="utf-8") as opened:
            found = opened.read(4096).strip("\r\n")
        if not found:
            raise click.UsageError(f"the file {file} has no token in it")
        return found
    return os.environ.get("ROLLTAPE_VIEW_TOKEN") or None
