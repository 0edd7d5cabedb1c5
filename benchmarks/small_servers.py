"""Servers to measure against, `constant`, `delayed SECONDS`, `passing URL`. Prints its address."""

from __future__ import annotations

import asyncio
import sys

import aiohttp
from aiohttp import web

ANSWER = b'{"object": "chat.completion", "choices": [' + b'{"token": "w", "logprob": -0.5}, ' * 160 + b"{}]}"
"""About as much as a recorded answer has."""


async def constant(request: web.BaseRequest) -> web.Response:
    await request.read()
    return web.Response(body=ANSWER, content_type="application/json")


async def delayed(request: web.BaseRequest) -> web.Response:
    await request.read()
    await asyncio.sleep(float(sys.argv[2]))
    return web.Response(body=ANSWER, content_type="application/json")


async def passing(request: web.BaseRequest) -> web.StreamResponse:
    """Pass a request on and its answer back, and keep nothing."""
    body = await request.read()
    url, kind = sys.argv[2] + request.path, {"Content-Type": request.content_type}
    async with CLIENT[0].request(request.method, url, data=body, headers=kind) as answer:
        response = web.StreamResponse(status=answer.status)
        response.content_type = answer.content_type
        response.content_length = answer.content_length
        await response.prepare(request)
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
        return response


CLIENT: list[aiohttp.ClientSession] = []


async def main() -> None:
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(None)
    CLIENT.append(aiohttp.ClientSession(connector=connector, timeout=timeout))
    handler = {"constant": constant, "delayed": delayed, "passing": passing}[sys.argv[1]]
    runner = web.ServerRunner(web.Server(handler, access_log=None))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
