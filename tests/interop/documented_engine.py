"""The engine and the agent of docs/serve.md: a server that never says the same twice, asked two questions."""

from __future__ import annotations

import itertools
import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_count = itertools.count()


class _Engine(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        said = {"role": "assistant", "content": f"answer {next(_count)}"}
        choice = {"index": 0, "message": said, "finish_reason": "stop", "token_ids": [1, 2, 3]}
        body = json.dumps({"object": "chat.completion", "model": "m", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return None


_server = ThreadingHTTPServer(("127.0.0.1", 0), _Engine)
threading.Thread(target=_server.serve_forever, daemon=True).start()
engine = f"http://127.0.0.1:{_server.server_port}"


def run_agent(base_url: str) -> list[str]:
    """What the model says to two messages of one conversation."""
    messages: list[dict[str, str]] = []
    for question in ("hello", "and then?"):
        messages.append({"role": "user", "content": question})
        body = json.dumps({"model": "m", "messages": messages}).encode()
        asked = urllib.request.Request(
            f"{base_url}/chat/completions", body, {"Content-Type": "application/json", "X-Session-ID": "a"}
        )
        with urllib.request.urlopen(asked) as answer:
            messages.append(json.load(answer)["choices"][0]["message"])
    return [message["content"] for message in messages[1::2]]
