"""What stands before every page: who may ask, and what the browser may do with the answer."""

from __future__ import annotations

import hmac
import ipaddress
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from rolltape.errors import ConfigError

POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
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


def check_address(host: str, token: str | None) -> None:
    """Rollouts are shown to this machine alone, unless whoever asks knows a token."""
    if not is_loopback(host) and not token:
        raise ConfigError(
            f"{host} can be reached from other machines, and no token was set",
            causes=["anybody who can reach it could read the tapes"],
            hint="rolltape view TAPE --host … --token SECRET, or an ssh tunnel to the loopback address",
        )


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

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        refusal = self._refusal(headers, given)
        cookie = (
            f"{COOKIE}={self._token}; Path=/; HttpOnly; SameSite=Strict" if self._token and given else None
        )

        async def answer(message: Any) -> None:
            if message["type"] == "http.response.start":
                extra = HEADERS | ({"set-cookie": cookie} if cookie and not refusal else {})
                message["headers"] = [
                    *message.get("headers", []),
                    *((name.encode(), value.encode()) for name, value in extra.items()),
                ]
            await send(message)

        if refusal:
            text = [(b"content-type", b"text/plain; charset=utf-8")]
            await answer({"type": "http.response.start", "status": 403, "headers": text})
            await answer({"type": "http.response.body", "body": refusal.encode()})
        else:
            await self._app(scope, receive, answer)

    def _refusal(self, headers: dict[str, str], given: str) -> str:
        """Why not; empty if nothing speaks against it."""
        if self._token:
            known = given or _cookie(headers.get("cookie", ""))
            same = hmac.compare_digest(known.encode(), self._token.encode())
            return "" if same else "This viewer wants its token: add ?token=… to the address.\n"
        # A page elsewhere can make its own name point here; its requests then carry that name.
        name = (
            headers.get("host", "").rsplit(":", 1)[0]
            if headers.get("host", "")[-1:] != "]"
            else headers["host"]
        )
        return "" if is_loopback(name) else "This viewer answers to this machine's own address only.\n"


def _cookie(text: str) -> str:
    try:
        found = SimpleCookie(text).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""
