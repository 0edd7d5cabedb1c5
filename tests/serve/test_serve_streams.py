"""Streams are passed on and given again byte by byte, in their pieces, also those that broke off."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import pytest

import rolltape
from tests.serve.engine import CHAT, Engine, Plan, ask, chat, client, post, rows, until, until_async

CHUNKS = [
    b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "Gr\xc3',
    b'\xbc\xc3\x9fe"}}]}\n\n',  # cut in the middle of a letter
    b": keep-alive\r\n\r\n",
    b'data: {"choices": [{"index": 0, "delta": {"content": " \xf0\x9f\x98\x80"}}]}\r\n\r\ndata: ',
    b'{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n',
    b"data: [DONE]\n\n",
]


def test_a_stream_is_passed_on_and_given_again_as_it_was(tmp_path):
    with (
        Engine(lambda seen: Plan(chunks=CHUNKS, seconds=0.05)) as engine,
        rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server,
    ):
        live = ask(server.url, chat("hello", stream=True))
    with rolltape.serve(tmp_path / "tape", mode="replay") as server:
        replayed = ask(server.url, chat("hello", stream=True))
    assert live.body == replayed.body == b"".join(CHUNKS)
    assert live.headers["content-type"] == replayed.headers["content-type"] == "text/event-stream"
    (row,) = rows(tmp_path / "tape")
    assert row["response"] == "Grüße 😀"
    assert row["finish_reason"] == "stop"
    assert row["stream"]


def test_the_first_piece_is_passed_on_before_the_last_is_there(tmp_path):
    async def first(url: str) -> bytes:
        async with client() as session, session.post(url + CHAT, json=chat("hello", stream=True)) as answer:
            return await answer.content.readany()

    with (
        Engine(lambda seen: Plan(chunks=CHUNKS[:2], hang=True)) as engine,
        rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server,
    ):
        assert asyncio.run(first(server.url)).startswith(CHUNKS[0])


def test_pieces_keep_their_borders(tmp_path):
    """Each piece waits until the client has the one before, so that the borders are those of the server."""
    with (
        Engine(lambda seen: Plan(chunks=CHUNKS, seconds=0.1)) as engine,
        rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server,
    ):
        ask(server.url, chat("hello", stream=True))
    (row,) = rows(tmp_path / "tape")
    assert sum(row["chunk_sizes"]) == len(b"".join(CHUNKS))
    assert len(row["chunk_sizes"]) == len(row["chunk_seconds"]) > 1
    assert list(row["chunk_seconds"]) == sorted(row["chunk_seconds"])
    borders = {sum(len(chunk) for chunk in CHUNKS[:n]) for n in range(1, len(CHUNKS) + 1)}
    assert {sum(row["chunk_sizes"][:n]) for n in range(1, len(row["chunk_sizes"]) + 1)} <= borders


@pytest.mark.parametrize("stream", [True, False], ids=["a stream", "an answer"])
def test_a_client_that_goes_away_ends_the_call_upstream_too(tmp_path, stream):
    async def leave(url: str, engine: Engine) -> None:
        async with client() as session:
            asking = asyncio.create_task(post(session, url, chat("hello", stream=stream)))
            await until_async(lambda: engine.seen)
            if stream:
                await asyncio.sleep(0.2)
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking

    plan = Plan(chunks=CHUNKS[:2], hang=True) if stream else Plan(body=b"{}", hang=True)
    with (
        Engine(lambda seen: plan) as engine,
        rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server,
    ):
        asyncio.run(leave(server.url, engine))
        until(lambda: engine.broken_off == 1)
        until(lambda: server.summary()["calls"]["aborted"] == 1)
    (row,) = rows(tmp_path / "tape")
    assert row["aborted"] == "client"
    assert b"".join(CHUNKS[:2]).startswith(bytes(row["response_body"]))


@pytest.mark.parametrize("chunks", [CHUNKS[:2], []], ids=["in the middle", "before the first piece"])
def test_a_stream_that_the_server_broke_off_breaks_off_again(tmp_path, chunks):
    async def broken(url: str) -> bytes:
        found = b""
        async with client() as session, session.post(url + CHAT, json=chat("x", stream=True)) as answer:
            assert answer.status == 200
            try:
                while piece := await answer.content.readany():
                    found += piece
            except aiohttp.ClientPayloadError:
                return found
        raise AssertionError("it ended as if it were whole")

    with (
        Engine(lambda seen: Plan(chunks=chunks, cut=True)) as engine,
        rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server,
    ):
        live = asyncio.run(broken(server.url))
    assert [row["aborted"] for row in rows(tmp_path / "tape")] == ["upstream"]
    with rolltape.serve(tmp_path / "tape", mode="replay", wait=10_000) as server:
        assert asyncio.run(broken(server.url)) == live == b"".join(chunks)


def test_an_answer_that_the_server_broke_off_is_the_same_error_again(tmp_path):
    """A body shorter than it said: the client is told that the server failed, and told so again."""

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\ncontent-type: application/json\r\n\r\n{")
        await writer.drain()
        writer.close()

    async def record() -> int:
        upstream = await asyncio.start_server(cut, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}"
        with rolltape.serve(tmp_path / "tape", url, mode="record") as server:
            async with client() as session:
                status = (await post(session, server.url, chat("x"))).status
        upstream.close()
        return status

    assert asyncio.run(record()) == 502
    assert [row["aborted"] for row in rows(tmp_path / "tape")] == ["upstream"]
    with rolltape.serve(tmp_path / "tape", mode="replay", wait=10_000) as server:
        assert ask(server.url, chat("x")).status == 502


def test_what_a_client_broke_off_is_held_until_it_does_so_again(tmp_path):
    async def leave(server, happened) -> None:
        async with client() as session:
            asking = asyncio.create_task(post(session, server.url, chat("hello", stream=True)))
            await until_async(happened)
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
            await until_async(lambda: server.summary()["calls"]["aborted"] == 1)

    with (
        Engine(lambda seen: Plan(chunks=CHUNKS[:1], hang=True)) as engine,
        rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server,
    ):
        asyncio.run(leave(server, lambda: engine.seen))
    with rolltape.serve(tmp_path / "tape", mode="replay", wait=10_000) as server:
        asyncio.run(leave(server, lambda: server.summary()["calls"]["asked"]))
    with (
        rolltape.serve(tmp_path / "tape", mode="replay", wait=0.1) as server,
        contextlib.suppress(aiohttp.ClientError),
    ):
        assert ask(server.url, chat("hello", stream=True)).status == 422


def test_in_auto_what_broke_off_is_asked_again(tmp_path):
    plans = [Plan(chunks=CHUNKS[:2], cut=True), Plan(chunks=CHUNKS)]
    with Engine(lambda seen: plans.pop(0)) as engine:
        with (
            rolltape.serve(tmp_path / "tape", engine.url, mode="record") as server,
            pytest.raises(aiohttp.ClientPayloadError),
        ):
            ask(server.url, chat("x", stream=True))
        with rolltape.serve(tmp_path / "tape", engine.url, mode="auto") as server:
            assert ask(server.url, chat("x", stream=True)).body == b"".join(CHUNKS)
    with rolltape.serve(tmp_path / "tape", mode="auto") as server:
        assert ask(server.url, chat("x", stream=True)).body == b"".join(CHUNKS)
