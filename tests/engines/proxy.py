"""A small HTTP proxy in front of a real server, which fails where a test says so."""

from __future__ import annotations

import http.client
import http.server
import json
import threading
from collections.abc import Callable
from urllib.parse import urlsplit


class Proxy:
    """Passes everything on, except what ``fault`` does something about.

    ``fault(number, path, body)`` is asked before each request, and returns None, or one of
    ``(status, headers, text)`` to answer with · ``"drop"`` to hang up halfway through the answer ·
    ``"hold"`` to not answer · a function that changes the answer's JSON.
    """

    def __init__(self, target: str) -> None:
        self.fault: Callable[[int, str, dict], object] = lambda number, path, body: None
        self.seen: list[tuple[str, dict]] = []
        self.keys: set[str | None] = set()
        self.running = self.most = 0
        self.release = threading.Event()
        self._lock = threading.Lock()
        proxy, place = self, urlsplit(target)

        class Passing(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args) -> None:
                pass

            def do_GET(self) -> None:
                self._pass_on(None, proxy.fault(len(proxy.seen), self.path, {}))

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length") or 0))
                body = json.loads(raw) if raw else {}
                with proxy._lock:
                    number = len(proxy.seen)
                    proxy.seen.append((self.path, body))
                    proxy.keys.add(self.headers.get("authorization"))
                    proxy.running += 1
                    proxy.most = max(proxy.most, proxy.running)
                try:
                    self._pass_on(raw, proxy.fault(number, self.path, body))
                finally:
                    with proxy._lock:
                        proxy.running -= 1

            def _pass_on(self, raw, fault) -> None:
                if fault == "hold":
                    proxy.release.wait(60)
                    self.close_connection = True
                    return
                if isinstance(fault, tuple):
                    self._answer(*fault)
                    return
                backend = http.client.HTTPConnection(place.hostname, place.port, timeout=120)
                try:
                    backend.request(self.command, self.path, raw, {"content-type": "application/json"})
                    found = backend.getresponse()
                    content = found.read()
                except OSError:  # the real server is gone: so is this connection
                    self.close_connection = True
                    return
                finally:
                    backend.close()
                if callable(fault):
                    content = json.dumps(fault(json.loads(content))).encode()
                self._answer(found.status, {}, content, half=fault == "drop")

            def _answer(self, status, headers, content, half=False) -> None:
                content = content.encode() if isinstance(content, str) else content
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content[: len(content) // 2] if half else content)
                self.close_connection = self.close_connection or half

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Passing)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def completions(self) -> list[dict]:
        """The requests for completions so far."""
        return [body for path, body in self.seen if path == "/v1/completions"]

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
