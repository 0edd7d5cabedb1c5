"""Real servers on loopback for tests: started once per process and ended with it."""

from __future__ import annotations

import atexit
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.engines import models

_LLAMA_CPP = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.hostnames, params.port = sys.argv[1], ["127.0.0.1"], int(sys.argv[2])
params.n_parallel, params.n_ctx = int(sys.argv[3]), 1024 * int(sys.argv[3])
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # two would spin while other tests compute
if template := sys.argv[4]:
    params.chat_template = template
server = xllamacpp.Server(params)
sys.stdin.read()
"""


_ALL: list[Process] = []


class Process:
    """A server in a process of its own, on a port that stays the same when it is started again."""

    def __init__(self, command: list[str], port: int, env: dict[str, str] | None = None) -> None:
        self.command, self.port, self.env = command, port, {**os.environ, **(env or {})}
        self.url = f"http://127.0.0.1:{port}"
        self.log = tempfile.NamedTemporaryFile(prefix="rolltape-server-", suffix=".log")  # noqa: SIM115
        self.process: subprocess.Popen[bytes] | None = None
        _ALL.append(self)
        atexit.register(self.kill)

    def start(self) -> Process:
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=self.log, stderr=subprocess.STDOUT, env=self.env,
            start_new_session=True,
        )  # fmt: skip
        return self

    def last_words(self) -> str:
        """What it said before it ended by itself; empty if it runs."""
        if self.process is None or self.process.poll() in (None, -signal.SIGKILL):
            return ""
        return Path(self.log.name).read_text(errors="replace")[-20_000:]

    def wait(self, seconds: float = 240) -> Process:
        """Until it answers that it is well."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process is None or self.process.poll() is not None:
                break
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        raise AssertionError(f"the server did not start:\n{Path(self.log.name).read_text()[-4000:]}")

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # vLLM's engine is a process of its own
            self.process.communicate()


def last_words() -> dict[str, str]:
    """What servers said before they ended by themselves, by their address."""
    return {server.url: said for server in _ALL if (said := server.last_words())}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def vllm_command(model: str, port: int, *options: str) -> list[str]:
    return [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--host", "127.0.0.1",
        "--port", str(port), "--dtype", "float32", "--max-model-len", "512", "--enforce-eager",
        "--no-enable-chunked-prefill", *options,
    ]  # fmt: skip


@functools.cache
def vllm_server(model: str | None = None) -> Process:
    """vLLM's OpenAI server with the tiny model or another; it takes weights, and tokens as they are."""
    port = free_port()
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_SERVER_DEV_MODE": "1"}
    command = vllm_command(model or models.tiny_qwen2(), port, "--enable-scale-out")
    return Process(command, port, env).start().wait()


@functools.cache
def llama_cpp_server(parallel: int = 2, template: str = "") -> Process:
    """llama.cpp's server with SmolLM2, straight from its GGUF; a context of 1024 for each in parallel."""
    port = free_port()
    return Process(llama_cpp_command(port, parallel, template), port).start().wait()


def llama_cpp_command(port: int, parallel: int = 2, template: str = "") -> list[str]:
    return [sys.executable, "-c", _LLAMA_CPP, gguf(), str(port), str(parallel), template]


@functools.cache
def gguf() -> str:
    home = models.cache_dir() / "smollm2-gguf"
    found = sorted(home.rglob("*.gguf"))
    if not found:
        home.mkdir(parents=True, exist_ok=True)
        found = [models.smollm2_gguf(home)]
    return str(found[0])
