"""Tapes for the command line to look at, and ways to run it: in this process, in its own, in a terminal."""

import inspect
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from click.testing import CliRunner

import rolltape
from rolltape.cli import main


def run(*args, input=None, env=None):
    """The command in this process; the result has exit_code, stdout and stderr."""
    split = "mix_stderr" in inspect.signature(CliRunner.__init__).parameters  # until click 8.2
    runner = CliRunner(mix_stderr=False) if split else CliRunner()
    return runner.invoke(main, [str(arg) for arg in args], input=input, env=env, prog_name="rolltape")


def command(*args):
    return [sys.executable, "-m", "rolltape", *map(str, args)]


def in_terminal(*args, answer=b"", columns=80, **environ):
    """The command in a terminal of its own: its exit code and every byte it sent to the screen."""
    child, screen = pty.fork()
    if child == 0:
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), **environ}
        os.execve(sys.executable, command(*args), env)
    if answer:
        os.write(screen, answer)
    shown = b""
    while True:
        try:
            piece = os.read(screen, 65536)
        except OSError:  # the terminal closes with its last process
            break
        if not piece:
            break
        shown += piece
    os.close(screen)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), shown.decode()


def in_process(*args, **environ):
    return subprocess.run(
        command(*args), capture_output=True, text=True, errors="replace", env={**os.environ, **environ}
    )


def rollout(samples=4, step=0):
    """A small batch: left-padded prompts, right-padded responses, masks, text and a reward."""
    prompts = np.full((samples, 8), 99)
    responses = np.full((samples, 32), 99)
    mask = np.zeros((samples, 40), np.int64)
    rewards = np.arange(samples, dtype=np.float32) / 4
    for row in range(samples):
        prompts[row, 5 - row % 3 :] = np.arange(3 + row % 3) + 10
        responses[row, : 6 + row] = np.arange(6 + row) + 50 + step
        mask[row, 5 - row % 3 : 8 + 6 + row] = 1
    return {
        "prompts": prompts, "responses": responses, "attention_mask": mask, "rewards": rewards,
        "prompt_text": [f"What is {row} + {step}?" for row in range(samples)],
        "response_text": [f"It is {row + step}.\nDone." for row in range(samples)],
        "uid": [f"uid-{row // 2}" for row in range(samples)],
    }  # fmt: skip


PROMPT_TOKENS = 3 + 4 + 5 + 3
RESPONSE_TOKENS = 6 + 7 + 8 + 9
"""Of the four samples of a rollout."""


def record(path, results=None, *, stage="rollout", inputs=False, split="train", metrics=True, **options):
    """Put results, by step, onto the tape at this path; by default three rollouts."""
    if results is None:
        results = {step: rollout(step=step) for step in range(3)}
    with rolltape.Tape(path, mode="record", background=False, **options) as tape:

        @tape.stage(stage, inputs=inputs)
        def call(step):
            return results[step]

        for step in results:
            with tape.step(step, split=split):
                call(step)
                if metrics:
                    tape.log({"loss": 0.1 * step})
    return Path(path)


def file_of(tape, step, stage="rollout", split="train", suffix=""):
    return Path(tape) / split / stage / f"step_{step:06d}{suffix}.parquet"


def damage(file, column):
    """Flip one bit in the data of a column."""
    metadata = pq.read_metadata(file)
    group = metadata.row_group(0)
    chunks = [group.column(at) for at in range(metadata.num_columns)]
    chunk = next(chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] == column)
    data = bytearray(file.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start + chunk.total_compressed_size // 2] ^= 1
    file.write_bytes(data)
