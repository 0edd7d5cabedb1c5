"""Requests in rare forms: a body that is held back until it is asked for, a target that is no path."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import rolltape
from tests.interop.documented_engine import engine


def asks_first(url: str, body: bytes) -> tuple[bytes, bytes]:
    """What it is told before it sends its body, and what then."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=20) as connection:
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: {len(body)}\r\n"
        )
        connection.sendall(f"{head}Expect: 100-continue\r\nConnection: close\r\n\r\n".encode())
        first = connection.recv(65536)
        if first.startswith(b"HTTP/1.1 100"):
            connection.sendall(body)
        rest = b"".join(iter(lambda: connection.recv(65536), b""))
    return first, rest


@pytest.mark.parametrize("target", ["*", "@127.0.0.1:9/v1/models", "v1/models", "127.0.0.1:9"])
def test_what_is_no_path_never_becomes_part_of_an_address(tmp_path: Path, target: str) -> None:
    with rolltape.serve(tmp_path / "tape", engine, mode="record") as server:
        place = urlsplit(server.url)
        with socket.create_connection((place.hostname, place.port), timeout=20) as connection:
            head = f"OPTIONS {target} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n\r\n"
            connection.sendall(head.encode())
            status = connection.recv(65536).split()[1]
        assert status in (b"400", b"404")
        assert server.summary()["upstream"]["calls"] == 0


def test_a_body_that_is_held_back_is_asked_for(tmp_path: Path) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 5000}]}).encode()
    with rolltape.serve(tmp_path / "tape", engine, mode="record", max_body=10_000) as server:
        first, rest = asks_first(server.url, body)
        assert first == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert rest.startswith(b"HTTP/1.1 200")
        assert asks_first(server.url, b"x" * 20_000)[0].startswith(b"HTTP/1.1 413"), "nothing is sent in vain"
