"""What stands before every page: who may ask, and what the browser may do with the answer."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from typing import Any
from urllib.parse import parse_qs

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Scripts and styles are files of this server; nothing in a page runs, nothing leaves."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
COOKIE = "rolltape-token"


def is_loopback(host: str) -> bool:
    """Whether an address is this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """An ASGI application around another: refuses who may not ask, and adds the headers to every answer."""

    def __init__(self, app: Any, *, token: str | None = None) -> None:
        self._app = app
        self._token = token
        # A cookie cannot hold every text, and a browser that keeps it need not keep the secret itself.
        self._proof = hashlib.sha256((token or "").encode("utf-8", "surrogateescape")).hexdigest()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # nothing else is spoken here, and nothing would ask for the token
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        query = scope.get("query_string", b"")
        given = parse_qs(query.decode("latin-1")).get("token", [""])[0]
        refusal = self._refusal(headers, given) or _unsaid(scope.get("method", "GET"), headers)
        extra = dict(HEADERS)
        if self._token and given and not refusal:
            extra["set-cookie"] = f"{COOKIE}={self._proof}; Path=/; HttpOnly; SameSite=Strict"

        async def answer(message: Any) -> None:
            if message["type"] == "http.response.start":
                said = {name.lower() for name, _ in message.get("headers", [])}
                message["headers"] = [
                    *message.get("headers", []),
                    *((name.encode(), value.encode()) for name, value in extra.items()
                      if name.encode() not in said),
                ]  # fmt: skip
            await send(message)

        if refusal:
            text = [(b"content-type", b"text/plain; charset=utf-8")]
            await answer({"type": "http.response.start", "status": 403, "headers": text})
            await answer({"type": "http.response.body", "body": refusal.encode()})
        else:
            await self._app(scope | {"query_string": _as_ascii(query)}, receive, answer)

    def _refusal(self, headers: dict[str, str], given: str) -> str:
        """Why not; empty if nothing speaks against it."""
        if _is_from_elsewhere(headers):
            return "This viewer answers no other site: copy the address into the browser instead.\n"
        if self._token:
            pairs = (given, self._token) if given else (_cookie(headers.get("cookie", "")), self._proof)
            same = hmac.compare_digest(*(text.encode("utf-8", "surrogateescape") for text in pairs))
            return "" if same else "This viewer wants its token: add ?token=… to the address.\n"
        # A page elsewhere can make its own name point here; its requests then carry that name.
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rsplit(":", 1)[0]
        return "" if is_loopback(name) else "This viewer answers to this machine's own address only.\n"


def _is_from_elsewhere(headers: dict[str, str]) -> bool:
    """Whether a page of another site made the browser ask."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host", ""):
        return True
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def _unsaid(method: str, headers: dict[str, str]) -> str:
    """Why something may not be written: a browser says which page makes it ask, and what it sends is JSON."""
    if method in ("GET", "HEAD"):
        return ""
    told = "origin" in headers or headers.get("sec-fetch-site") == "same-origin"
    plain = headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
    return "" if told and plain else "Notes are written by the viewer's own pages only.\n"


def _as_ascii(query: bytes) -> bytes:
    """A query in which other bytes are written out, as browsers do: pages may take it for text."""
    return re.sub(rb"[^!-~]", lambda found: b"%%%02X" % ord(found[0]), query)


def _cookie(text: str) -> str:
    """What a browser says that it was given; the parser of Python takes half a minute for some cookies."""
    pairs = (pair.strip().partition("=") for pair in text.split(";"))
    return next((value for name, _, value in pairs if name == COOKIE), "")
