"""Who may ask, what the browser is told, and that an address never becomes a path unchecked."""

import signal
import socket
import subprocess
import sys

import httpx
import pytest

from rolltape.cli.app import app as cli
from rolltape.cli.commands import view
from rolltape.viewer import launch
from rolltape.viewer.library import Library
from rolltape.viewer.web import patience
from rolltape.viewer.web.guard import is_loopback
from tests.viewer.serving import serve


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_this_machine_needs_no_token(host):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.4", "10.0.0.1", "example.com", "127.0.0.1.evil.example"]
)
def test_another_address_gets_a_new_token(host, runs, monkeypatch):
    told = []
    listening = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(launch, "_listen", lambda host, port: listening)
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    for _ in range(2):
        launch.serve([str(runs / "base")], host=host, ready=lambda address, notice: told.append(address))
    listening.close()
    tokens = [address.partition("?token=")[2] for address in told]
    assert len(tokens[0]) > 20
    assert tokens[0] != tokens[1]


def test_a_token_comes_from_a_file_or_the_environment_and_is_no_argument(runs, monkeypatch, tmp_path, capsys):
    given = []
    monkeypatch.setattr(view, "serve", lambda tapes, **options: given.append(options["token"]))

    def ask(*options):
        with pytest.raises(SystemExit) as left:
            cli.main(["view", str(runs / "base"), "--no-open", *options])
        return left.value.code

    assert ask("--token", "s3cret") == 2
    capsys.readouterr()
    (tmp_path / "token").write_text("from a file; odd\n")
    assert ask("--token-file", str(tmp_path / "token")) == 0
    monkeypatch.setenv("ROLLTAPE_VIEW_TOKEN", "from the environment")
    assert ask() == 0
    assert given == ["from a file; odd", "from the environment"]
    (tmp_path / "token").write_text("\n")
    assert ask("--token-file", str(tmp_path / "token")) == 2


@pytest.mark.parametrize("token", ["a b", "a;b", 'a"b,c=d', "ümlaut", "100%&x=1", "+", "a\tb"])
def test_odd_tokens_let_their_owner_in(runs, token):
    with (
        serve(Library([str(runs / "base")]), token=token) as address,
        httpx.Client(base_url=address) as client,
    ):
        assert client.get("/t/0").status_code == 403
        assert client.get("/t/0", params={"token": token}).status_code == 200
        assert client.get("/t/0").status_code == 200
        assert client.get("/t/0", params={"token": token + "x"}).status_code == 403


def test_other_sites_are_refused(server):
    for headers in (
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
    ):
        answer = httpx.get(f"{server}/t/0", headers=headers)
        assert answer.status_code == 403
        assert "base" not in answer.text
    assert httpx.get(f"{server}/t/0", headers={"sec-fetch-site": "same-origin"}).status_code == 200
    assert httpx.get(f"{server}/t/0", headers={"origin": server}).status_code == 200


@pytest.mark.parametrize("path", ["/t/{}", "/t/0/train/rollout/{}", "/t/0/train/rollout/1/{}", "/c/0/{}"])
@pytest.mark.parametrize("digits", [20, 5000])
def test_a_long_number_is_an_address_that_is_not_there(server, path, digits):
    assert httpx.get(server + path.format("9" * digits)).status_code == 404


def test_half_a_request_does_not_hold_a_connection(server, monkeypatch):
    monkeypatch.setattr(patience, "PATIENCE", 0.3)
    host, port = server.removeprefix("http://").split(":")
    for half in (b"", b"GET /t/0 HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "):
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(half)
            assert connection.recv(1000) == b""
    with httpx.Client(base_url=server) as client:  # one that asks again and again is none of these
        assert [client.get("/state").status_code for _ in range(3)] == [200, 200, 200]


def test_every_answer_has_a_strict_policy(server):
    for path in ("/", "/t/0", "/static/viewer.js", "/nothing", "/t/0/train/rollout/99", "/state"):
        answer = httpx.get(server + path)
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in answer.headers


def test_a_foreign_name_that_points_here_is_refused(server):
    for name in ("evil.example", "127.0.0.1.evil.example", "", "evil.example:80"):
        answer = httpx.get(f"{server}/t/0", headers={"host": name})
        assert answer.status_code in (400, 403)
        assert "base" not in answer.text
    for name in ("localhost:1", "[::1]:8000", "127.0.0.1"):
        assert httpx.get(f"{server}/t/0", headers={"host": name}).status_code == 200


def test_a_token_is_asked_for_once(runs):
    with (
        serve(Library([str(runs / "base")]), token="s3cret") as address,
        httpx.Client(base_url=address) as client,
    ):
        assert client.get("/t/0").status_code == 403
        assert client.get("/t/0?token=wrong").status_code == 403
        assert client.get("/static/viewer.js").status_code == 403
        assert client.get("/t/0", headers={"cookie": "rolltape-token=wrong"}).status_code == 403
        first = client.get("/t/0?token=s3cret")
        assert first.status_code == 200
        assert "HttpOnly" in first.headers["set-cookie"]
        assert "SameSite=Strict" in first.headers["set-cookie"]
        assert client.get("/t/0/train/rollout/0").status_code == 200  # the cookie says it


PATHS = [
    "/static/../guard.py", "/static/..%2fguard.py", "/static/%2e%2e/guard.py", "/static//etc/passwd",
    "/static/uplot/LICENSE", "/static/lock.sha256",
    "/t/0/../../../../etc/passwd/0", "/t/0/..%2f..%2f/rollout/0", "/t/0/train/..%2f..%2f..%2fetc/0",
    "/t/0/%2e%2e/%2e%2e/0", "/t/0/train/%00/0", "/t/0//etc/passwd/0", "/t/0/train/rollout/-1",
    "/t/-1", "/t/99999999999999999999", "/t/0/train/rollout/99999999999999999999999", "/series/0/../..",
    "/series/0/..%2f/rollout", "/c/0/9", "/c/0/1/..%2f/x/0", "/t/0/train/.tmp/0",
    "/t/0/train/metrics.jsonl/0",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_no_address_leaves_the_tape(server, path):
    host, port = server.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as raw:  # as it stands: clients tidy up paths
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while piece := raw.recv(65536):
            answer += piece
    status = int(answer.split(b" ")[1])
    assert status == 404, answer[:200]
    assert b"root:" not in answer
    assert b"def is_loopback" not in answer


def test_the_command_says_where_it_listens_and_ends_cleanly(runs):
    command = [sys.executable, "-m", "rolltape", "view", str(runs / "base"), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        assert "rollout" in httpx.get(address, follow_redirects=True).text
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
        assert "Traceback" not in process.stderr.read()


def test_only_reading_is_possible(server):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert httpx.request(method, f"{server}/t/0").status_code == 403
        said = {"origin": server, "sec-fetch-site": "same-origin", "content-type": "application/json"}
        assert httpx.request(method, f"{server}/t/0", headers=said).status_code == 405
