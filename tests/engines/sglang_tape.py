"""Conversations with a real SGLang server, kept as JSON, and a server that repeats them word for word.

    python -m tests.engines.sglang_tape http://127.0.0.1:30000

records them again, from a server of the tiny model (`tests.engines.models.tiny_qwen2()`) in float32. What
was not recorded is answered 418: a test fails when the engine asks something else than it did then.
"""

from __future__ import annotations

import http.server
import json
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import torch

from rolltape.engines import SamplingParams, SGLangEngine, score
from tests.engines import models

HOME = Path(__file__).parent / "sglang_responses"
PROMPTS = ["The quick brown", [{"role": "user", "content": "Two and two?"}], [40, 41, 42, 43]]
KEPT = {
    "/server_info": ("version", "max_req_input_len", "dtype", "enable_deterministic_inference"),
}
"""What is kept of answers that say more about a machine than about SGLang."""


def greedy(engine, trainer):
    return engine.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=8, top_logprobs=2))


def sampled(engine, trainer):
    return engine.generate(PROMPTS, SamplingParams(n=4, max_tokens=12))


def scaled(engine, trainer):
    return engine.generate(PROMPTS, SamplingParams(n=2, max_tokens=8, temperature=0.7, logprobs="processed"))


def stopped(engine, trainer):
    return engine.generate(PROMPTS[:1], SamplingParams(n=6, max_tokens=40, stop=["a"]))


def updated(engine, trainer):
    """The rollout after each of five updates, and what the trainer says about it."""
    found = []
    for version in range(1, 6):
        generator = torch.Generator().manual_seed(version)
        with torch.no_grad():
            for parameter in trainer.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
        engine.update_weights(trainer.named_parameters(), version=version)
        rollout = engine.generate(PROMPTS[2:], SamplingParams(n=2, max_tokens=6))
        found.append((rollout, score(trainer, rollout)))
    engine.update_weights(models_weights(), version=0)  # as it was, for the next one
    return found


SCENES: dict[str, Callable] = {scene.__name__: scene for scene in (greedy, sampled, scaled, stopped, updated)}


def models_weights():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(models.tiny_qwen2()).state_dict()


class Conversation:
    """A server on loopback that answers from a recording, or passes on to a real server and records."""

    def __init__(self, answer: Callable[[str, str, dict | None], tuple[int, object]]) -> None:
        class Answering(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args) -> None:
                pass

            def do_GET(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length") or 0))
                status, found = answer(self.command, self.path, _plain(json.loads(raw) if raw else None))
                content = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_GET

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def repeated(scene: str) -> tuple[Conversation, list[dict]]:
    """A server that gives each recorded answer once, and the answers it has not given yet."""
    left = json.loads((HOME / f"{scene}.json").read_text())
    lock = threading.Lock()

    def answer(method, path, body):
        with lock:
            for at, entry in enumerate(left):
                if (entry["method"], entry["path"], entry["body"]) == (method, path, body):
                    del left[at]
                    return entry["status"], entry["answer"]
        return 418, {"error": f"not recorded: {method} {path} {body}"}

    return Conversation(answer), left


def _plain(body):
    """The folder of an update is another one each time."""
    return {**body, "model_path": "WEIGHTS"} if body and "model_path" in body else body


def record(url: str) -> None:
    from transformers import AutoModelForCausalLM

    for name, scene in SCENES.items():
        kept: list[dict] = []
        real: dict[str, str] = {}

        def passed_on(method, path, body, kept=kept, real=real):
            sent = {**body, "model_path": real["path"]} if path == "/update_weights_from_disk" else body
            data = None if sent is None else json.dumps(sent).encode()
            request = urllib.request.Request(
                url + path, data, {"content-type": "application/json"}, method=method
            )
            try:
                with urllib.request.urlopen(request, timeout=120) as response:
                    status, found = response.status, json.loads(response.read())
            except urllib.error.HTTPError as error:
                status, found = error.code, json.loads(error.read())
            found = {field: found[field] for field in KEPT[path]} if path in KEPT else found
            kept.append({"method": method, "path": path, "body": body, "status": status, "answer": found})
            return status, found

        conversation = Conversation(passed_on)
        with tempfile.TemporaryDirectory() as folder:
            engine = SGLangEngine(
                conversation.url, weights_dir=folder, checkpoint=models.tiny_qwen2(), retries=0
            )
            swap = engine.server.post

            def post(path, body=None, real=real, swap=swap, **options):
                real["path"] = (body or {}).get("model_path", "")
                return swap(path, body, **options)

            engine.server.post = post
            scene(engine, AutoModelForCausalLM.from_pretrained(models.tiny_qwen2()))
            engine.close()
        conversation.close()
        HOME.mkdir(exist_ok=True)
        (HOME / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
        print(f"{name}: {len(kept)} answers")


if __name__ == "__main__":
    record(sys.argv[1])
