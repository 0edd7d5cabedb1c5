"""`rolltape run --serve`: a program that knows nothing of it, and a server for as long as it runs."""

import subprocess
import sys

from tests.clients.serving import standing_still

PROGRAM = """
import sys
from openai import OpenAI
sdk = OpenAI(max_retries=0)  # both the address and the key come from the environment
assert str(sdk.base_url) == sys.argv[1] + "/v1/", sdk.base_url
said = [{"role": "user", "content": "Why is the sky blue?"}]
for _ in range(int(sys.argv[2])):
    done = sdk.chat.completions.create(model="smollm2", messages=said, max_tokens=8, temperature=1.0)
    print(done.choices[0].message.content)
"""


def run(tape, mode: str, *options: str, calls: int = 2) -> subprocess.CompletedProcess:
    own = [sys.executable, "-m", "rolltape", "run", "--serve", "--dir", str(tape), "--mode", mode, *options]
    command = [*own, "--", sys.executable, "-c", PROGRAM, "{url}", str(calls)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_address_and_the_key_are_in_the_environment(tape, engine):
    live = run(tape, "record", "--upstream", engine.url)
    assert live.returncode == 0, live.stderr
    with standing_still(engine):
        again = run(tape, "replay")
    assert again.returncode == 0, again.stderr
    assert again.stdout == live.stdout != ""


def test_a_program_that_asks_for_more_than_was_recorded_is_told(tape, engine):
    assert run(tape, "record", "--upstream", engine.url).returncode == 0
    with standing_still(engine):
        done = run(tape, "replay", calls=3)
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) >= 2
    assert "UnprocessableEntityError" in done.stderr
