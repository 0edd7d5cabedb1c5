"""Tapes in an object store: against the bare client of the same store, and a replay over a slow line.

    python -m benchmarks --only store        in the environment of the stack `store`

The store is a real S3 server (SeaweedFS) on loopback. Ours and bare obstore put and get the same bytes in
turns. The replay goes through a proxy, in a process of its own, that delays every request by 20 ms.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import rolltape
from benchmarks.promises import Figure
from benchmarks.ratios import times_faster
from benchmarks.report import Part, console
from rolltape.storage import storage_at
from tests.object_servers.s3 import BUCKET, S3Server

ROOT = Path(__file__).resolve().parents[1]
LARGE = 32 * 2**20
SMALL, COUNT, AT_ONCE = 128 * 2**10, 64, 8
"""Bytes of a small file, how many there are, and how many are under way at a time."""
LATENCY, STEP, STEPS = 0.02, 1.0, 8
"""Seconds of a request, seconds of a training step, steps."""

Act = Callable[[str, Sequence[bytes]], None]


def section(folder: Path, rounds: int) -> Part:
    """Measure and print."""
    figures: dict[str, Figure] = {}
    details: dict[str, Any] = {}
    server = S3Server()
    os.environ |= server.env() | {"ROLLTAPE_SPOOL": str(folder / "spool")}
    try:
        transfers(rounds, figures, details)
        replay(server, min(rounds, 3), figures, details)
    finally:
        server.stop()
    return Part(figures, details)


# -- the same bytes --------------------------------------------------------------------------------------


def transfers(rounds: int, figures: dict[str, Figure], details: dict[str, Any]) -> None:
    """Upload and download beside the bare client."""
    dice = np.random.default_rng(0)
    kinds = {
        "32 MB": [dice.bytes(LARGE)],
        "small files": [dice.bytes(SMALL) for _ in range(COUNT)],
    }
    table = Table("", "rolltape, best", "obstore, best", "of obstore's speed")
    for kind, files in kinds.items():
        # Small files take milliseconds: in many rounds each meets a quiet moment.
        taken = _in_turns(files, 8 * rounds if len(files) > 1 else 3 * rounds)
        for way in ("upload", "download"):
            ours, bare = taken[way, "rolltape"], taken[way, "obstore"]
            figure = times_faster(ours, bare)
            figures[f"{way} of {kind}, times raw obstore"] = figure
            speeds = [f"{sum(map(len, files)) / min(found) / 1e6:.0f} MB/s" for found in (ours, bare)]
            table.add_row(f"{way}, {kind}", *speeds, f"{figure.value:.2f} (median {figure.median:.2f})")
            details[f"{way} of {kind}"] = {"rolltape": ours, "obstore": bare}
    console.print(
        f"[bold]store[/]: the same bytes; {COUNT} small files of {SMALL // 1024} KB, {AT_ONCE} at once"
    )
    console.print(table)


def _in_turns(files: Sequence[bytes], rounds: int) -> dict[tuple[str, str], list[float]]:
    ways = {"rolltape": _ours, "obstore": _bare}
    taken: dict[tuple[str, str], list[float]] = {
        (way, who): [] for way in ("upload", "download") for who in ways
    }
    for number in range(rounds + 1):
        for who in list(ways) if number % 2 else reversed(ways):
            put, get = ways[who](f"s3://{BUCKET}/bench/{os.urandom(4).hex()}")
            with ThreadPoolExecutor(AT_ONCE) as pool:
                names = [f"train/rollout/step_{at:06d}.parquet" for at in range(len(files))]
                for way, act in (("upload", put), ("download", get)):
                    started = time.perf_counter()
                    list(pool.map(act, names, files))
                    if number:  # the first round warms up
                        taken[way, who].append(time.perf_counter() - started)
    return taken


def _ours(url: str) -> tuple[Callable[[str, bytes], None], Callable[[str, bytes], None]]:
    storage = storage_at(url)

    def put(name: str, data: bytes) -> None:
        storage.publish(name, [data], replace=False)

    def get(name: str, data: bytes) -> None:
        if len(storage.read(name)) != len(data):
            raise AssertionError(f"{name} did not come back")

    return put, get


def _bare(url: str) -> tuple[Callable[[str, bytes], None], Callable[[str, bytes], None]]:
    import obstore
    from obstore.store import from_url

    store = from_url(url)

    def put(name: str, data: bytes) -> None:
        obstore.put(store, name, data, mode="create", use_multipart=False)

    def get(name: str, data: bytes) -> None:
        if len(bytes(obstore.get(store, name).bytes())) != len(data):
            raise AssertionError(f"{name} did not come back")

    return put, get


# -- a slow line -------------------------------------------------------------------------------------------


def replay(server: S3Server, rounds: int, figures: dict[str, Figure], details: dict[str, Any]) -> None:
    """How long a trainer waits for its rollout, where every request takes 20 ms longer."""
    url = f"s3://{BUCKET}/bench/replay"
    size = record(url)
    first: list[float] = []
    waits: list[list[float]] = []
    with slow(server.port, LATENCY) as port:
        os.environ |= server.env(port)
        for _ in range(rounds):
            found = _waits(url)
            first.append(found[0])
            waits.append(found[1:])
    os.environ |= server.env()
    shares = [100 * statistics.mean(found) / STEP for found in waits]
    figures["replay at 20 ms latency, % of a 1 s step"] = Figure(min(shares), statistics.median(shares))
    console.print(
        f"[bold]store[/]: replay of {STEPS} steps of {size / 1e6:.1f} MB at {LATENCY * 1000:.0f} ms "
        f"a request, training steps of {STEP:.0f} s: the trainer waits {min(shares):.2f} % of a step "
        f"(median of rounds {statistics.median(shares):.2f}, worst step {100 * max(map(max, waits)):.1f}); "
        f"{min(first) * 1000:.0f} ms for the first, which nothing reads ahead"
    )
    details["replay"] = {"waits": waits, "first": first, "bytes_of_a_step": size}


def record(url: str) -> int:
    """A tape of rollouts with 512 samples of 1,024 tokens; the bytes of one step."""
    dice = np.random.default_rng(1)
    with rolltape.Tape(url, mode="record") as tape:

        @tape.stage("rollout")
        def rollout(step: int) -> dict[str, Any]:
            tokens = dice.integers(0, 50_000, (512, 1024))
            return {"responses": tokens, "logprobs": dice.random((512, 1024), np.float32)}

        for step in range(STEPS):
            with tape.step(step):
                rollout(step)
    found = storage_at(url).stat("train/rollout/step_000000.parquet")
    assert found is not None
    return found.size


def _waits(url: str) -> list[float]:
    """Seconds that each step waited for its rollout."""
    found = []
    with rolltape.Tape(url, mode="replay") as tape:

        @tape.stage("rollout")
        def rollout(step: int) -> dict[str, Any]:
            raise AssertionError("it is on the tape")

        for step in range(STEPS):
            started = time.perf_counter()
            with tape.step(step):
                rollout(step)
                found.append(time.perf_counter() - started)
                time.sleep(max(STEP - found[-1], 0))
    return found


@contextmanager
def slow(port: int, latency: float) -> Iterator[int]:
    """A proxy that delays every request, in a process of its own; the port it listens on."""
    command = [sys.executable, "-m", "tests.object_servers.fault_proxy", str(port), "--latency", str(latency)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()
