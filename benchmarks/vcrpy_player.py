"""vcrpy on a cassette with as many calls as a file has lines: BODIES FOLDER. Prints calls per second.

It needs no server: vcrpy takes the place of the connection inside of the client. The cassette is written by
it, from a server beside it; loading it is not counted.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import vcr

bodies, folder = Path(sys.argv[1]).read_bytes().splitlines(), Path(sys.argv[2])
PLAYED = 200
"""Calls that are timed, evenly spread over the cassette."""


def ask(url: str, body: bytes) -> None:
    asked = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked) as answer:
        assert len(answer.read()) > 4000


def main() -> None:
    small = [sys.executable, str(Path(__file__).with_name("small_servers.py")), "constant"]
    process = subprocess.Popen(small, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = process.stdout.readline().strip() + "/v1/chat/completions"
    tape = vcr.VCR(match_on=["method", "uri", "body"])
    cassette = str(folder / "cassette.yaml")
    # Equal bodies are further recordings, not one that is repeated.
    with tape.use_cassette(cassette, record_mode="all"):
        for body in bodies:
            ask(url, body)
    process.terminate()
    process.communicate()
    with tape.use_cassette(cassette, record_mode="none"):
        started = time.perf_counter()
        for body in bodies[:: max(len(bodies) // PLAYED, 1)]:
            ask(url, body)
        print(PLAYED / (time.perf_counter() - started))


main()
