"""`rolltape serve`: what it costs to go through it, and how many calls a second it answers from a tape.

    python -m benchmarks --only serve        in the environment of the stack `engines`; needs `wrk`

Servers run beside each other on loopback and take turns: the engine (vLLM with SmolLM2, or a stub that
answers after a fixed delay), ours in front of it, and a plain pass-through of a few lines, also on aiohttp.
The replay is of 100,000 calls, in groups of 16 equal prompts, asked for in another order than they were
recorded in. vcrpy plays inside of its client's process and knows no server: its figure is from there.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.table import Table

from benchmarks import measure
from benchmarks.promises import Figure
from benchmarks.report import Part, console
from rolltape.policy import Mode
from rolltape.serving.asked import PLAIN, Asked, keys_of, raw_digest
from rolltape.serving.call import Call
from rolltape.serving.call_writer import CallWriter
from rolltape.serving.dialects import find
from rolltape.settings import Settings
from rolltape.storage import LocalStorage
from rolltape.tape.opening import open_tape

CALLS, GROUP, WINDOW = 100_000, 16, 4096
"""Calls on the tape; equal prompts among them; calls whose order is mixed up when they are asked for."""
TOKENS, TOGETHER = 64, 64
"""Tokens of an answer of the real engine, and how many are asked for at once."""
DELAY = 0.02
"""Seconds after which the stub answers."""
SECONDS = 2
"""How long each round of load takes."""
CASSETTE = 1000
"""Calls on the cassette of vcrpy, which looks through all of them for each."""
PATH = "/v1/chat/completions"

SMALL = Path(__file__).with_name("small_servers.py")
LOAD = Path(__file__).with_name("serve_load.lua")


def section(folder: Path, rounds: int) -> Part:
    """Measure and print."""
    if shutil.which("wrk") is None:
        raise SystemExit("the benchmark of serve needs wrk on PATH: apt-get install wrk")
    figures: dict[str, Figure] = {}
    details: dict[str, Any] = {}
    replay(folder, min(rounds, 5), figures, details)
    latency(folder, min(rounds, 7), figures, details)
    throughput(folder, min(rounds, 5), figures, details)
    return Part(figures, details)


# -- replay --------------------------------------------------------------------------------------------


def replay(folder: Path, rounds: int, figures: dict[str, Figure], details: dict[str, Any]) -> None:
    """Calls per second from a long tape, beside a server that says one and the same thing to everybody."""
    console.print(f"[bold]serve[/]: {CALLS:,} calls on a tape, wrk on the same cores, {rounds} rounds")
    started = time.perf_counter()
    tape, bodies = make_tape(folder / "calls", CALLS)
    made = time.perf_counter() - started
    asked = folder / "bodies.txt"
    bodies = list(mixed(bodies))
    asked.write_bytes(b"".join(body + b"\n" for body in bodies))
    ours: list[float] = []
    bare: list[float] = []
    with ExitStack() as stack:
        started = time.perf_counter()
        server = stack.enter_context(serving(tape, "--mode", "replay", "--order", "none"))
        opened = time.perf_counter() - started
        began = time.perf_counter()
        fetch(server.url, bodies[0])
        first = time.perf_counter() - began
        constant = stack.enter_context(small("constant"))
        for number in range(rounds):
            both = [(server.url, ours), (constant.url, bare)]
            for url, found in both if number % 2 else reversed(both):
                found.append(load(url, asked, status(server.url)["calls"]["asked"]))
        told = status(server.url)
        cpu, memory = server.cpu_seconds(), server.memory()
    if told["calls"]["missed"] or not told["levels"]["content"]:
        raise AssertionError(f"not a replay: {told['calls']}")
    per_call = cpu / told["calls"]["replayed"]
    figures["replay, calls per second"] = Figure(max(ours), statistics.median(ours))
    figures["first answer, seconds after the port is open"] = Figure(first)
    figures["memory of a replay, MB"] = Figure(memory / 1e6)
    pairs = [a / b for a, b in zip(ours, bare, strict=True)]
    cassette = vcrpy(folder, bodies)
    table = Table("", "calls/s, best", "median")
    table.add_row(f"rolltape, of {CALLS:,} calls", f"{max(ours):,.0f}", f"{statistics.median(ours):,.0f}")
    table.add_row("aiohttp, one constant answer", f"{max(bare):,.0f}", f"{statistics.median(bare):,.0f}")
    table.add_row(f"vcrpy in the client, of {CASSETTE:,} calls", f"{cassette:,.0f}", "")
    console.print(table)
    console.print(
        f"  the tape was written in {made:.0f} s; from the command to the open port {opened:.1f} s; "
        f"{per_call * 1e6:.0f} µs of a core per call, start included; "
        f"{statistics.median(pairs):.2f} × the constant answer"
    )
    details["replay"] = {
        "calls_per_second": ours, "constant_per_second": bare, "vcrpy_per_second": cassette,
        "cpu_seconds_per_call": per_call, "seconds_to_open": opened, "seconds_to_write": made,
    }  # fmt: skip


def make_tape(folder: Path, calls: int) -> tuple[Path, list[bytes]]:
    """A tape as a recording server writes it, without the server; and the bodies in recorded order."""
    storage = LocalStorage(str(folder))
    writer = CallWriter(storage, open_tape(storage, Settings(dir=str(folder), mode=Mode.RECORD)), "train")
    dialect, bodies = find("POST", PATH), []
    for at in range(calls):
        question = {"role": "user", "content": f"Problem {at // GROUP}: what is {at // GROUP} plus 17?"}
        body = {"model": "m", "messages": [question], "temperature": 1.0, "logprobs": True}
        raw = json.dumps(body).encode()
        asked = Asked("POST", PATH, "", raw, raw_digest(raw), keys_of("POST", PATH, body, PLAIN), dialect)
        call = Call(asked, "calls", 0, "0", at % GROUP, 2 * at, 0.0, 200)
        call.headers = {"content-type": "application/json"}
        call.chunks, call.seconds = [answer(at)], [0.1]
        call.completion, call.latency = 2 * at + 1, 0.1
        while not writer.has_room:
            time.sleep(0.01)
        writer.add(call)
        bodies.append(raw)
    writer.close()
    if writer.failure is not None:
        raise writer.failure
    return folder, bodies


def answer(at: int) -> bytes:
    """About 5 KB, most of it log-probs, as vLLM answers."""
    said = {"role": "assistant", "content": f"The answer is {at}. " + "word " * 40}
    scores = [{"token": "w", "logprob": -0.5 - (at + i) % 64 / 64, "bytes": None} for i in range(TOKENS)]
    ids = [(at + i) % 50_000 for i in range(TOKENS)]
    choice = {"index": 0, "message": said, "finish_reason": "stop", "token_ids": ids}
    choice["logprobs"] = {"content": scores}
    return json.dumps({"id": f"c{at}", "object": "chat.completion", "choices": [choice]}).encode()


def mixed(bodies: Sequence[bytes]) -> Iterator[bytes]:
    """The bodies in another order, as concurrent clients ask for them: mixed up within a window."""
    shuffler = random.Random(0)
    for start in range(0, len(bodies), WINDOW):
        part = list(bodies[start : start + WINDOW])
        shuffler.shuffle(part)
        yield from part


def load(url: str, bodies: Path, offset: int) -> float:
    """Calls per second that wrk gets; every answer has to be a 200."""
    options = ["-t1", "-c32", f"-d{SECONDS}s", "-s", str(LOAD)]
    command = ["wrk", *options, url + PATH, "--", str(bodies), str(offset)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in said or "Socket errors" in said:
        raise AssertionError(f"not every call was answered:\n{said}")
    found = re.search(r"Requests/sec:\s+([0-9.]+)", said)
    assert found, said
    return float(found[1])


def vcrpy(folder: Path, bodies: Sequence[bytes]) -> float:
    """Calls per second of vcrpy, in a process of its own, without any network."""
    several = folder / "cassette.txt"
    several.write_bytes(b"".join(body + b"\n" for body in bodies[:CASSETTE]))
    command = [sys.executable, str(Path(__file__).with_name("vcrpy_player.py")), str(several), str(folder)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


# -- in front of an engine -----------------------------------------------------------------------------


def latency(folder: Path, rounds: int, figures: dict[str, Figure], details: dict[str, Any]) -> None:
    """What a call takes longer, where the engine takes the same time for each."""
    console.print(f"[bold]serve[/]: a stub that answers after {DELAY * 1000:.0f} ms, one call at a time")
    with ExitStack() as stack:
        stub = stack.enter_context(small("delayed", str(DELAY)))
        plain = stack.enter_context(small("passing", stub.url))
        ours = stack.enter_context(serving(folder / "stub", "--mode", "record", "--upstream", stub.url))
        ways = {"direct": stub.url, "rolltape, recording": ours.url, "aiohttp pass-through": plain.url}
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name in list(ways) if number % 2 else reversed(ways):
                found = [fetch_kept(ways[name], 50)]
                if number:  # the first round warms up
                    taken[name] += found
    table = Table("", "ms a call, best round", "median round", "added")
    direct = taken["direct"]
    for name, found in taken.items():
        added = statistics.median(a - b for a, b in zip(found, direct, strict=True))
        table.add_row(
            name, f"{min(found) * 1e3:.2f}", f"{statistics.median(found) * 1e3:.2f}", f"{added * 1e3:.2f}"
        )
    console.print(table)
    mine = taken["rolltape, recording"]
    added = [(a - b) * 1e3 for a, b in zip(mine, direct, strict=True)]
    figures["added latency, ms"] = Figure((min(mine) - min(direct)) * 1e3, statistics.median(added))
    details["latency"] = taken


def throughput(folder: Path, rounds: int, figures: dict[str, Figure], details: dict[str, Any]) -> None:
    """Tokens per second of a real vLLM, asked directly and through us."""
    from tests.engines import models
    from tests.engines.servers import vllm_server

    console.print(
        f"[bold]serve[/]: vLLM, SmolLM2-135M, {TOGETHER} calls at once of {TOKENS} tokens, {rounds} rounds"
    )
    engine = vllm_server(models.smollm2())
    with ExitStack() as stack:
        stack.callback(engine.kill)
        plain = stack.enter_context(small("passing", engine.url))
        ours = stack.enter_context(serving(folder / "vllm", "--mode", "record", "--upstream", engine.url))
        ways = {"direct": engine.url, "rolltape, recording": ours.url, "aiohttp pass-through": plain.url}
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name in list(ways) if number % 2 else reversed(ways):
                started = time.perf_counter()
                asyncio.run(generate(ways[name], models.smollm2(), number))
                if number:
                    taken[name].append(time.perf_counter() - started)
        recorded = status(ours.url)["calls"]["recorded"]
    if recorded != TOGETHER * (rounds + 1):
        raise AssertionError(f"{recorded} calls were recorded")
    table = Table("", "tokens/s, best", "median", "times direct")
    for name, found in taken.items():
        ratio = measure.times_faster(found, taken["direct"])
        speeds = [TOGETHER * TOKENS / seconds for seconds in found]
        table.add_row(name, f"{max(speeds):,.0f}", f"{statistics.median(speeds):,.0f}", f"{ratio.median:.3f}")
    console.print(table)
    figures["throughput, times that of vLLM"] = measure.times_faster(
        taken["rolltape, recording"], taken["direct"]
    )
    details["throughput"] = taken


async def generate(url: str, model: str, seed: int) -> None:
    """As many completions at once; all have all their tokens."""
    import aiohttp

    async def one(at: int) -> int:
        body = {"model": model, "prompt": f"Once upon a time, number {at},", "max_tokens": TOKENS}
        body |= {"temperature": 1.0, "seed": 1000 * seed + at, "ignore_eos": True, "logprobs": 1}
        async with client.post(f"{url}/v1/completions", json=body) as answer:
            answer.raise_for_status()
            return int((await answer.json())["usage"]["completion_tokens"])

    limits = aiohttp.TCPConnector(limit=TOGETHER)
    async with aiohttp.ClientSession(connector=limits, timeout=aiohttp.ClientTimeout(None)) as client:
        found = await asyncio.gather(*(one(at) for at in range(TOGETHER)))
    assert set(found) == {TOKENS}, found


# -- servers and calls ---------------------------------------------------------------------------------


class Running:
    """A server in a process of its own, which has said its address."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.url = process.stdout.readline().strip()
        if not self.url.startswith("http"):
            raise AssertionError("the server did not start")

    def cpu_seconds(self) -> float:
        ticks = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(ticks[11]) + int(ticks[12])) / 100

    def memory(self) -> int:
        """The most it ever had, in bytes."""
        said = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", said)
        assert found
        return int(found[1]) * 1024


@contextmanager
def running(command: list[str]) -> Iterator[Running]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield Running(process)
    finally:
        process.terminate()
        process.communicate()


def serving(tape: Path, *options: str) -> Any:
    return running([sys.executable, "-m", "rolltape", "serve", str(tape), *options])


def small(kind: str, *options: str) -> Any:
    return running([sys.executable, str(SMALL), kind, *options])


def status(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/rolltape/status") as told:
        found: dict[str, Any] = json.load(told)
    return found


def fetch(url: str, body: bytes) -> bytes:
    asked = urllib.request.Request(url + PATH, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked) as told:
        found: bytes = told.read()
    return found


def fetch_kept(url: str, times: int) -> float:
    """The median of the seconds that calls take, one after the other on one connection."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    return statistics.median(_timed(lambda: _post(connection, body)) for _ in range(times))


def _post(connection: http.client.HTTPConnection, body: str) -> None:
    connection.request("POST", PATH, body, {"Content-Type": "application/json"})
    told = connection.getresponse()
    told.read()
    assert told.status == 200


def _timed(action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
