"""A viewer on a port of its own, and a browser page that is watched."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from rolltape.viewer.library import Library
from rolltape.viewer.web.patience import Impatient
from rolltape.viewer.web.server import Viewer

GONE: set[str] = set()
"""Addresses whose server has been ended: a page that still asks it for a part is told so."""


def settled(page) -> None:
    """Wait until a page has all that it asks its server for."""
    waiting = "[data-part]:not([data-done]), [data-series]:not([data-done]), [data-grow]:not([data-done]), "
    waiting += "figure.chart:not([data-drawn])"
    expect(page.locator(waiting)).to_have_count(0, timeout=30_000)


def serious(page) -> dict[str, list[str]]:
    """What axe-core finds serious or critical on a page, with the first places."""
    return {
        finding["id"]: [node["html"][:200] for node in finding["nodes"]][:3]
        for finding in Axe().run(page).response["violations"]
        if finding["impact"] in ("serious", "critical")
    }


@contextmanager
def serve(library: Library, **options) -> Iterator[str]:
    """The address of a server that runs as ``rolltape view`` runs it, on another thread."""
    viewer = Viewer(library, **options)
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(viewer.app, http=Impatient, log_level="warning", lifespan="off", ws="none")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        GONE.add(f"http://127.0.0.1:{listening.getsockname()[1]}")
        running.should_exit = True
        thread.join()
        listening.close()


class Watched:
    """A page, and everything it did that it should not have."""

    def __init__(self, chromium, base_url: str | None = None, width: int = 1280, **options) -> None:
        size = {"width": width, "height": 800}
        self.context = chromium.new_context(base_url=base_url, viewport=size, **options)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page = self.context.new_page()
        self.base = base_url
        self.problems: list[str] = []
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("popup", lambda popup: self.problems.append(f"opened {popup.url}"))
        self.page.on("request", self._asked)

    def close(self) -> None:
        if self.page.evaluate("'pwned' in window"):
            self.problems.append("a payload ran")
        self.context.close()

    def _said(self, message) -> None:
        if self.base in GONE and "ERR_CONNECTION_REFUSED" in message.text:
            return
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text}")

    def _dialog(self, dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _asked(self, request) -> None:
        own = request.url.startswith(("data:", "file:") if self.base is None else (self.base, "data:"))
        if not own:
            self.problems.append(f"asked {request.url}")
