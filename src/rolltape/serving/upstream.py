"""The servers behind ours: which one a call goes to, whether it is well, and how a request is passed on."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
from yarl import URL

from rolltape.serving.secrets import safe_url
from rolltape.serving.serve_options import ServeOptions, Spread

log = logging.getLogger("rolltape")

IDLE_SECONDS = 2.0
"""For how long a connection is kept that nobody uses. Servers close theirs after 5 seconds (uvicorn, and
llama.cpp's): a call that is sent at that moment would be lost."""
CONNECT_SECONDS = 10.0
LOOK_EVERY = 5.0
"""Seconds after which a server that failed is looked at again."""

HOP_BY_HOP = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization te trailer trailers transfer-encoding "
    "upgrade "
    "proxy-connection host content-length content-encoding accept-encoding expect".split()
)
"""Headers that are between two neighbours, or that follow from the body."""


class NoUpstream(Exception):
    """No server could be reached."""


class NotReached(NoUpstream):
    """One server could not be reached; nothing was sent to it."""


@dataclass(slots=True, eq=False)
class Host:
    """One server."""

    url: str
    healthy: bool = True
    calls: int = 0
    failed: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "url": safe_url(self.url),
            "healthy": self.healthy,
            "calls": self.calls,
            "failed": self.failed,
        }


class Upstreams:
    """All of them. Made and closed on the event loop."""

    def __init__(self, options: ServeOptions) -> None:
        self.hosts = [Host(url) for url in options.upstream]
        self._spread = options.spread
        self._next = 0
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
            timeout=aiohttp.ClientTimeout(None, sock_connect=CONNECT_SECONDS, sock_read=options.timeout),
            auto_decompress=True,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        self._looking: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking
        await self._client.close()

    def to_json(self) -> dict[str, Any]:
        """How they are, for people."""
        return {
            "calls": sum(host.calls for host in self.hosts),
            "hosts": [host.to_json() for host in self.hosts],
        }

    async def ask_all(
        self, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes, session: str | None
    ) -> aiohttp.ClientResponse:
        """Pass a request on to every server; the answer of the first one, or of one that refuses it."""
        if len(self.hosts) < 2:
            return await self.ask(method, target, headers, body, session)
        headers = list(headers)
        asked = (self._ask(host, method, target, headers, body) for host in self.hosts)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        failed = [one for one in answers if isinstance(one, BaseException)]
        good = [one for one in answers if not isinstance(one, BaseException)]
        chosen = next((one for one in good if one.status >= 400), good[0] if good else None)
        for answer in good:
            if answer is not chosen or failed:
                answer.close()
        if failed or chosen is None:
            raise failed[0]
        return chosen

    async def ask(
        self, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes, session: str | None
    ) -> aiohttp.ClientResponse:
        """Pass a request on; its answer has begun. ``NoUpstream`` if no server could be reached."""
        headers, failures = list(headers), []
        for host in self._candidates(session):
            try:
                return await self._ask(host, method, target, headers, body)
            except NotReached as error:  # nothing was sent: another may have it
                failures.append(str(error))
        raise NoUpstream("; ".join(failures) or "no server is named to pass calls on to")

    async def _ask(
        self, host: Host, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes
    ) -> aiohttp.ClientResponse:
        passed = [(name, value) for name, value in headers if name.lower() not in HOP_BY_HOP]
        passed.append(("Accept-Encoding", "identity"))
        host.calls += 1
        try:
            return await self._client.request(
                method, URL(host.url + target, encoded=True), headers=passed, data=body or None,
                allow_redirects=False,
            )  # fmt: skip
        except aiohttp.ClientConnectorError as error:
            self._failed(host)
            reason = error.os_error.strerror or error.os_error
            raise NotReached(f"{safe_url(host.url)}: {reason}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            self._failed(host)
            raise NoUpstream(f"{safe_url(host.url)}: {type(error).__name__}: {error}") from error

    def _candidates(self, session: str | None) -> list[Host]:
        """The servers to try, the one whose turn it is first, those that are not well last."""
        if not self.hosts:
            return []
        if self._spread is Spread.SESSION and session is not None:
            at = zlib.crc32(session.encode("utf-8", "replace")) % len(self.hosts)
        else:
            at, self._next = self._next, (self._next + 1) % len(self.hosts)
        turned = self.hosts[at:] + self.hosts[:at]
        return sorted(turned, key=lambda host: not host.healthy)

    def _failed(self, host: Host) -> None:
        host.failed += 1
        if host.healthy:
            log.warning("the server %s cannot be reached", safe_url(host.url))
        host.healthy = False
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        """Ask those that failed how they are, until all are well."""
        while not all(host.healthy for host in self.hosts):
            await asyncio.sleep(LOOK_EVERY)
            for host in (host for host in self.hosts if not host.healthy):
                with suppress(aiohttp.ClientError, TimeoutError, OSError):
                    limit = aiohttp.ClientTimeout(CONNECT_SECONDS)
                    async with self._client.get(f"{host.url}/health", timeout=limit) as answer:
                        host.healthy = answer.status < 500
                    if host.healthy:
                        log.warning("the server %s is back", safe_url(host.url))
