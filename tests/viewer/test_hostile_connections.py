"""Connections and requests that were made to hold the viewer up, or to get around its token."""

from __future__ import annotations

import asyncio
import socket
import time

import httpx
import pytest

import rolltape
from rolltape.viewer.library import Library
from rolltape.viewer.web import patience
from rolltape.viewer.web.guard import Guard
from tests.viewer.serving import serve

TOKEN = "s3cret"


@pytest.fixture(scope="module")
def tape(tmp_path_factory):
    folder = tmp_path_factory.mktemp("connections") / "base"
    with rolltape.Tape(folder, mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: {"uid": ["a"], "prompt": ["a secret prompt"], "reward": [1.0]})()
    return folder


@pytest.fixture(scope="module")
def server(tape):
    with serve(Library([str(tape)]), token=TOKEN) as address:
        yield address


def raw(server: str, data: bytes, timeout: float = 30) -> bytes:
    """The whole answer to bytes that no client would send."""
    host, port = server.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=timeout) as connection:
        connection.sendall(data)
        answer = b""
        try:
            while piece := connection.recv(65536):
                answer += piece
        except ConnectionResetError:
            pass
    return answer


@pytest.mark.parametrize(
    "cookie", ['rolltape-token="' + "\\" * 50_000 + '"', ";" * 50_000, "=" * 50_000, 'a="' + "\\0" * 25_000]
)
def test_a_cookie_does_not_hold_the_viewer_up(server, cookie):
    """The parser of Python takes half a minute for the first of them; the processor's time is what counts."""
    started = time.process_time()
    assert httpx.get(f"{server}/t/0", headers={"cookie": cookie}, timeout=60).status_code == 403
    assert time.process_time() - started < 5


def test_a_cookie_among_others_is_found(server):
    with httpx.Client(base_url=server) as client:
        proof = client.get(f"/t/0?token={TOKEN}").cookies["rolltape-token"]
    for cookie in (
        f"a=b; rolltape-token={proof}; c",
        f"rolltape-token={proof}",
        f'x="y;rolltape-token={proof}',
    ):
        assert httpx.get(f"{server}/t/0", headers={"cookie": cookie}).status_code == 200
    for cookie in (f"xrolltape-token={proof}", f"rolltape-token={proof}0", f"rolltape-token={proof[:-1]}"):
        assert httpx.get(f"{server}/t/0", headers={"cookie": cookie}).status_code == 403


@pytest.mark.parametrize(
    "query",
    [
        f"token=wrong&token={TOKEN}", f"TOKEN={TOKEN}", f"token={TOKEN}%00", f"token=%20{TOKEN}",
        f"token[]={TOKEN}", f"token={TOKEN.upper()}", "token=" + "a" * 60_000, "token", f"x=;token={TOKEN}x",
    ],
)  # fmt: skip
def test_only_the_token_is_the_token(server, query):
    answer = raw(server, f"GET /t/0?{query} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
    assert answer.split(b" ")[1] in (b"400", b"403", b"414", b"431")
    assert b"secret prompt" not in answer


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /t/0 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /t/0 HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET /t/0 HTTP/1.1\r\n" + b"X: y\r\n" * 30_000 + b"\r\n",
        b"GET /t/0 HTTP/1.1\r\nHost: a\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"GET /t/0 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /t/0 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        b"GET http://evil.example/t/0 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"\r\n" * 10_000,
    ],
    ids=["websocket", "http/2", "a long header", "many headers", "two hosts", "two lengths", "a long chunk",
         "another's address", "TLS", "empty lines"],
)  # fmt: skip
def test_what_is_no_request_gets_nothing(server, monkeypatch, request_):
    monkeypatch.setattr(patience, "PATIENCE", 0.5)
    answer = raw(server, request_)
    assert b"secret prompt" not in answer
    assert answer == b"" or answer.split(b" ")[1] in (b"400", b"403", b"404", b"431", b"426")
    assert httpx.get(f"{server}/t/0?token={TOKEN}").status_code == 200


def test_half_open_connections_hold_up_nobody_and_end(server, monkeypatch):
    monkeypatch.setattr(patience, "PATIENCE", 1.0)
    host, port = server.removeprefix("http://").split(":")
    begun = [b"", b"G", b"GET /t/0 HTTP/1.1\r\nHost: a\r\n", b"POST /t/0 HTTP/1.1\r\nContent-Length: 9"]
    held = [socket.create_connection((host, int(port)), timeout=30) for _ in range(120)]
    try:
        for at, connection in enumerate(held):
            connection.sendall(begun[at % len(begun)])
        assert httpx.get(f"{server}/t/0?token={TOKEN}", timeout=30).status_code == 200
        for connection in held:
            assert connection.recv(4096) == b""
    finally:
        for connection in held:
            connection.close()


def test_a_body_that_never_ends_holds_no_connection(server, monkeypatch):
    """It is answered without its body, and then the connection ends although the body goes on."""
    monkeypatch.setattr(patience, "PATIENCE", 0.5)
    host, port = server.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"POST /t/0 HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n")
        assert connection.recv(65536).split(b" ")[1] in (b"403", b"405")
        for _ in range(600):
            try:
                connection.sendall(b"x")
            except (BrokenPipeError, ConnectionResetError):
                return
            time.sleep(0.05)
    raise AssertionError("the connection is still open")


def test_nothing_but_requests_reaches_the_pages():
    reached = []

    async def app(scope, receive, send):
        reached.append(scope["type"])

    async def nothing(*_):
        return {"type": "websocket.connect"}

    for kind in ("websocket", "lifespan", "other"):
        asyncio.run(Guard(app, token=TOKEN)({"type": kind, "headers": []}, nothing, nothing))
    assert reached == ["lifespan"]
