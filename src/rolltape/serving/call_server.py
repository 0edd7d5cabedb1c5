"""Opens the tape, the port and the servers behind, and closes them again: in this thread, or beside it."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from rolltape.errors import ConfigError, MissingDependencyError, StepExistsError
from rolltape.policy import Mode
from rolltape.reader.run import Run
from rolltape.serving.call_writer import CallWriter
from rolltape.serving.lookup import Lookup
from rolltape.serving.serve_options import ServeOptions, is_loopback, read_options
from rolltape.settings import Settings, resolve
from rolltape.storage import Spool, Storage, is_url, storage_at
from rolltape.tape import Tape
from rolltape.tape.opening import open_tape, resolved_dir, spool_of

log = logging.getLogger("rolltape")

STAGES = ("calls", "control")
GRACE = 10.0
"""Seconds that calls on their way get to end when the server is asked to."""


class Server:
    """A server, from its start to its end. ``serve`` and the command line make one."""

    def __init__(
        self, tape: str | os.PathLike[str], options: ServeOptions, spool: Spool | None = None
    ) -> None:
        self.options = options
        self._spool = spool
        """Where calls wait for an object store; None: where the environment says."""
        self.dir = resolved_dir(os.fspath(tape))
        self.url = ""
        self._proxy: Any = None
        self._writer: CallWriter | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self._summary: dict[str, Any] | None = None

    @property
    def token(self) -> str | None:
        """What clients have to know; None where anybody on this machine may ask."""
        return self.options.token

    def summary(self) -> dict[str, Any]:
        """What has been done so far."""
        return self._summary or (self._proxy.status() if self._proxy else {})

    def step(self, step: int) -> None:
        """Calls belong to this step from now on. From any thread."""
        assert self._loop is not None
        done = threading.Event()

        def say() -> None:
            self._proxy.say_step(step)
            done.set()

        self._loop.call_soon_threadsafe(say)
        done.wait()

    def flush(self) -> None:
        """Wait until every call that was answered is on the tape."""
        if self._writer is not None:
            self._writer.flush()

    def stop(self) -> None:
        """Ask the server to end. From any thread."""
        if self._loop is not None and self._ended is not None:
            with suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._ended.set)

    async def run(self, ready: Callable[[Server], None] = lambda server: None) -> dict[str, Any]:
        """Serve until ``stop``; the summary."""
        try:
            from aiohttp import web

            from rolltape.serving.proxy import Proxy
            from rolltape.serving.upstream import Upstreams
        except ImportError as error:
            raise MissingDependencyError(
                f"a server needs {error.name}", hint="pip install 'rolltape[serve]'"
            ) from error
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        listening = _listen(self.options.host, self.options.port)
        upstreams: Upstreams | None = None
        try:
            run, self._writer = self._open()
            upstreams = Upstreams(self.options)
            proxy = self._proxy = Proxy(
                self.options,
                Lookup(
                    run, "calls", self.options.split, naming=self.options.naming, memory=self.options.memory,
                    only_finished=self.options.mode is not Mode.REPLAY,
                ),
                Lookup(run, "control", self.options.split, naming=self.options.naming),
                self._writer,
                _models(run, self.options.split),
                upstreams,
            )  # fmt: skip
            # No application: it would look up a route for each request, and there is one.
            answering = web.Server(
                proxy.handle, handler_cancellation=True, access_log=None, keepalive_timeout=75
            )
            runner = web.ServerRunner(answering, shutdown_timeout=GRACE)
            await runner.setup()
            listening.listen(1024)  # not before there is somebody who answers
            await web.SockSite(runner, listening).start()
        except BaseException:
            listening.close()
            if upstreams is not None:
                await upstreams.close()
            if self._writer is not None:
                await asyncio.to_thread(self._writer.close)
            raise
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        self.url = proxy.url = f"http://{host}:{listening.getsockname()[1]}"
        try:
            ready(self)
            await self._ended.wait()
        finally:
            await runner.cleanup()
            await upstreams.close()
            if self._writer is not None:
                await asyncio.to_thread(self._writer.close)
            self._summary = proxy.status()
        return self._summary

    def _open(self) -> tuple[Run, CallWriter | None]:
        mode = self.options.mode
        storage = self._storage()
        manifest = open_tape(storage, Settings(dir=self.dir, mode=mode))
        run = Run(self.dir, storage, manifest)
        if mode is Mode.RECORD:
            _refuse_recorded(run, self.options.split)
        if mode is Mode.REWRITE:
            for stage in STAGES:
                found = run.recordings(stage, self.options.split)
                storage.delete_all([recording.key.path for recording in found])
        if mode is Mode.REPLAY:
            return run, None
        writer = CallWriter(storage, manifest, self.options.split, spooled=is_url(self.dir))
        return Run(self.dir, storage, manifest), writer

    def _storage(self) -> Storage:
        """The tape; in front of a store, where calls are written down, with the spool of this machine."""
        mode = self.options.mode
        if not is_url(self.dir) or mode is Mode.REPLAY:
            return storage_at(self.dir)
        spool = self._spool or spool_of(resolve({"dir": self.dir}, os.environ))
        return storage_at(self.dir, spool, assume_new=mode is Mode.RECORD)


@contextmanager
def serve(
    tape: str | os.PathLike[str] | Tape, upstream: str | tuple[str, ...] | list[str] = (), **options: Any
) -> Iterator[Server]:
    """A server beside this program, for as long as the block lasts: ``server.url`` is its address.

    ``tape`` is a directory, or a ``Tape``, whose directory, mode and ``by`` it takes. Options are those of
    ``rolltape serve``: ``mode``, ``order``, ``wait``, ``pace``, ``step``, ``identity``, ``by``, …
    """
    if isinstance(tape, Tape):
        its = tape.settings
        said = {"mode": its.mode, "split": its.split, "by": its.by, "version": its.version, "draw": its.draw}
        options = {**said, **options}
        if tape.dir is None:
            raise ConfigError("the tape is off, so there is nothing to serve", hint="give it a directory")
    where = tape.dir or "" if isinstance(tape, Tape) else tape
    spool = spool_of(tape.settings) if isinstance(tape, Tape) else None
    server = Server(where, secured(read_options(upstream=upstream, **options)), spool)
    ready, failures = threading.Event(), []

    def work() -> None:
        try:
            asyncio.run(server.run(lambda _: ready.set()))
        except BaseException as error:
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=work, name="rolltape-serve", daemon=True)
    thread.start()
    ready.wait()
    if failures:
        raise failures[0]
    try:
        yield server
    finally:
        server.stop()
        thread.join()
    if failures:
        raise failures[0]


def run_server(server: Server, ready: Callable[[Server], None]) -> dict[str, Any]:
    """Serve in this thread until Ctrl-C or SIGTERM; the summary."""

    def begun(started: Server) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, started.stop)
        ready(started)

    return asyncio.run(server.run(begun))


def secured(options: ServeOptions) -> ServeOptions:
    """The options with a token of their own, where other machines reach the server and none is given."""
    if options.token is not None or is_loopback(options.host):
        return options
    return replace(options, token=secrets.token_urlsafe(24))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise ConfigError(
            f"cannot listen on {host}, port {port}: {error}",
            causes=["another program listens there"],
            hint="choose another --port, or none: then a free one is taken",
        ) from error
    return listening


def _refuse_recorded(run: Run, split: str) -> None:
    found = next(iter(run.recordings("calls", split)), None)
    if found is not None:
        raise StepExistsError(
            "calls are on this tape already",
            where=run.location,
            hint="--mode auto goes on behind them, --mode rewrite replaces them, or give another directory",
        )


def _models(run: Run, split: str) -> list[str]:
    """The models that were called, as far as the first file says."""
    first = next(iter(run.recordings("calls", split)), None)
    return sorted({name for name in first.batch(["model"])["model"] if name}) if first is not None else []
