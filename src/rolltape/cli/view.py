"""``rolltape view``: rollouts in a browser, or as one file for somebody else's."""

from __future__ import annotations

import gc
import os
import socket
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import click

from rolltape.cli.arguments import Steps, TapePath
from rolltape.cli.output import Exit, Screen, complain
from rolltape.cli.progress import progress_bar
from rolltape.cli.visible import shown
from rolltape.errors import ConfigError
from rolltape.steps import StepSelector

if TYPE_CHECKING:
    from rolltape.viewer.library import Library


@click.command("view", short_help="Show rollouts in the browser, or write them to one HTML file.")
@click.argument("tapes", metavar="TAPE...", nargs=-1, required=True, type=TapePath())
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port (default: a free one).")
@click.option("--token", help="A secret that whoever opens the pages must know.")
@click.option("--follow", is_flag=True, help="Pick up new steps as they land.")
@click.option("--open/--no-open", "show", default=True, help="Open the browser (default: yes).")
@click.option(
    "--tokenizer", metavar="PATH", help="Show tokens as text: a model's folder, or a tokenizer.json."
)
@click.option("--export", type=TapePath(), metavar="FILE", help="Write one HTML file instead.")
@click.option("--steps", type=Steps(), metavar="0-9,20", help="With --export: these steps.")
def command(
    tapes: tuple[str, ...], host: str, port: int, token: str | None, follow: bool, show: bool,
    tokenizer: str | None, export: str | None, steps: StepSelector | None,
) -> Exit:  # fmt: skip
    """Show the runs on TAPEs: rewards over steps, groups, samples token by token, two runs compared.

    Pages are served to this machine alone; another --host needs a --token.
    """
    if (export is None) != (steps is None):
        raise click.UsageError("--export and --steps go together, as in --export out.html --steps 0-9")
    with uncollected():
        from rolltape.viewer.guard import check_address
        from rolltape.viewer.library import Library
        from rolltape.viewer.tokenizer import load_tokenizer

        library = Library(tapes, None if tokenizer is None else load_tokenizer(tokenizer))
    if export is not None and steps is not None:
        return _export(library, export, steps)
    check_address(host, token)
    return _serve(library, host, port, token, follow, show)


def _export(library: Library, path: str, steps: StepSelector) -> Exit:
    from rolltape.tape.summary import amount
    from rolltape.viewer.export import export_pages

    with progress_bar() as told:
        text = export_pages(library, steps, lambda done, total: told(done, total, "steps"))
    half = f"{path}.part"
    with open(half, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(half, path)
    Screen().print(shown(f"{path}: {amount(os.path.getsize(path))}"), soft_wrap=True)
    return Exit.CLEAN


def _serve(library: Library, host: str, port: int, token: str | None, follow: bool, show: bool) -> Exit:
    from rolltape.viewer.needs import missing

    with uncollected():
        from rolltape.viewer.server import Viewer

        try:
            import uvicorn
        except ImportError as error:
            raise missing(error, "view") from error
        viewer = Viewer(library, follow=follow, token=token)
    listening = _listen(host, port)
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{listening.getsockname()[1]}/"
    whole = f"{address}?{urlencode({'token': token})}" if token else address
    Screen().print(shown(whole), soft_wrap=True)
    if viewer.notice:
        complain(viewer.notice)
    complain("Ctrl-C ends it")
    if show:  # on another thread: a browser of the terminal would wait for us, and we for it
        threading.Thread(target=webbrowser.open, args=(whole,), daemon=True).start()
    config = uvicorn.Config(viewer.app, log_level="warning", lifespan="off", ws="none", server_header=False)
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])
    return Exit.CLEAN


@contextmanager
def uncollected() -> Iterator[None]:
    """Spares the garbage collector for a while: what imports make stays, and looking through it is a quarter
    of their time, for which whoever opens a run waits."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens already, so that the address is right when it is printed."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(where)
        found.listen()
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror or error}",
            hint="leave out --port for a free one",
        ) from error
    return found
