"""Starts the viewer: a server for the browser, one file to send, or a terminal full of rollouts.

What a way of looking needs is imported by the function that starts it: whoever opens a run waits for that.
"""

from __future__ import annotations

import gc
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import urlencode

from rolltape.errors import ConfigError
from rolltape.reader.listing import find_tapes, is_tape
from rolltape.reader.tokenizer import load_tokenizer
from rolltape.steps import StepSelector
from rolltape.storage import is_url


def serve(
    tapes: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    follow: bool = False,
    tokenizer: str | None = None,
    read_only: bool = False,
    ready: Callable[[str, str], None] = lambda address, notice: None,
) -> None:
    """Serve the runs on these tapes until Ctrl-C; ``ready`` is told the address, and what is left out.

    With ``read_only``, nobody can write notes. An address that other machines reach gets a token of its own
    where none is given.
    """
    with _uncollected():
        from rolltape.viewer.library import Library, missing
        from rolltape.viewer.web.guard import is_loopback

        library = Library(runs_in(tapes), None if tokenizer is None else load_tokenizer(tokenizer))
        token = token or (None if is_loopback(host) else secrets.token_urlsafe(24))
        import pyarrow as pa

        from rolltape.viewer.web.server import Viewer

        try:
            import uvicorn
        except ImportError as error:
            raise missing(error, "view") from error
        viewer = Viewer(library, follow=follow, token=token, read_only=read_only)
    # A search decodes tables of a hundred megabytes: Arrow's own allocator touches half as much again.
    pa.set_memory_pool(pa.system_memory_pool())
    listening = _listen(host, port)
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{listening.getsockname()[1]}/"
    viewer.warm()
    ready(f"{address}?{urlencode({'token': token})}" if token else address, viewer.notice)
    from rolltape.viewer.web.patience import Impatient

    config = uvicorn.Config(
        viewer.app, http=Impatient, log_level="warning", lifespan="off", ws="none", server_header=False
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])


def export_html(
    tapes: Sequence[str],
    path: str,
    steps: StepSelector,
    *,
    tokenizer: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Write some steps of the runs as one HTML file; its size in bytes."""
    with _uncollected():
        from rolltape.viewer.library import Library
        from rolltape.viewer.web.single_file import export_pages

        library = Library(runs_in(tapes), None if tokenizer is None else load_tokenizer(tokenizer))
    if is_url(path):
        raise ConfigError("the page is a file of this machine", where=path, hint="copy it there afterwards")
    text = export_pages(library, steps, progress)
    half = f"{path}.{os.urandom(6).hex()}.part"
    try:
        with open(half, "x", encoding="utf-8", errors="backslashreplace") as file:  # never through a link
            file.write(text)
        os.replace(half, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(half)
    return os.path.getsize(path)


def browse(
    tape: str, *, split: str = "train", stage: str | None = None, tokenizer: str | None = None
) -> bool:
    """Show a run full screen in this terminal; False where nothing of the split is recorded."""
    from rolltape.viewer.library import Library
    from rolltape.viewer.terminal import Browser

    library = Library([tape], None if tokenizer is None else load_tokenizer(tokenizer))
    if not library.runs[0].stages(split):
        return False
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError(
            "browse needs a terminal", hint="rolltape show prints samples, rolltape view serves them as pages"
        )
    Browser(library, split, stage).run()
    return True


def runs_in(paths: Sequence[str]) -> list[str]:
    """The tapes that are meant: a folder stands for those in it, as it does for ``rolltape ls``."""
    found = [
        tape for path in paths for tape in ([path] if is_tape(path) else find_tapes(path).tapes or [path])
    ]
    return list(dict.fromkeys(found))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Spares the garbage collector for a while: what imports make stays, and looking through it is a quarter
    of their time, for which whoever opens a run waits."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens already, so that the address is right when it is told."""
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
