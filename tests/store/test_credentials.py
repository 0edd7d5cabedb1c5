"""Credentials the way users have them: environment, profile, instance role. They stay where they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import rolltape
from rolltape.errors import ConfigError, MissingDependencyError, RolltapeError
from rolltape.storage import ObjectStorage
from rolltape.storage.aws_profile import ProfileKeys, profile_options
from tests.object_servers.fault_proxy import FaultProxy
from tests.object_servers.s3 import KEY, REGION, SECRET, S3Server
from tests.store.runs import assert_whole, train

KEYS = f"aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"


@pytest.fixture
def home(s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without credentials, and none in the environment; the address of the store is known."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ROLLTAPE_STORE_DEADLINE", "60")
    (tmp_path / ".aws").mkdir()
    return tmp_path


class Metadata:
    """What a cloud machine asks for the keys of its role: tokens first, then the role, then its keys."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                self._answer("a-token" if self.path == "/latest/api/token" else None)

            def do_GET(self) -> None:
                token = self.headers.get("X-aws-ec2-metadata-token") == "a-token"
                keys = {"Code": "Success", "AccessKeyId": KEY, "SecretAccessKey": SECRET, "Token": "",
                        "Expiration": "2099-01-01T00:00:00Z"}  # fmt: skip
                folder = "/latest/meta-data/iam/security-credentials/"
                answers = {folder: "trainer", f"{folder}trainer": json.dumps(keys)} if token else {}
                answers["/container"] = json.dumps(keys)
                self._answer(answers.get(self.path))

            def _answer(self, text: str | None) -> None:
                outer.asked.append(self.path)
                self.send_response(404 if text is None else 200)
                self.send_header("content-length", str(len(text or "")))
                self.end_headers()
                self.wfile.write((text or "").encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    server = Metadata()
    yield server
    server.stop()


def test_a_named_profile(s3_url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".aws/credentials").write_text(f"[default]\naws_access_key_id = wrong\n[training]\n{KEYS}")
    (home / ".aws/config").write_text(f"[profile training]\nregion = {REGION}\n")
    monkeypatch.setenv("AWS_PROFILE", "training")
    train(s3_url, "record", range(2))
    assert_whole(s3_url, range(2))


def test_the_default_profile_in_the_config_file_with_its_endpoint(
    s3_url: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    (home / ".aws/config").write_text(f"[default]\n{KEYS}region = {REGION}\nendpoint_url = {endpoint}\n")
    train(s3_url, "record", range(2))
    assert_whole(s3_url, range(2))


def test_files_in_other_places(
    s3_url: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys.ini").write_text(f"[p q]\n{KEYS}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys.ini"))
    monkeypatch.setenv("AWS_PROFILE", "p q")
    assert not ObjectStorage(s3_url).exists("tape.json")


def test_the_environment_comes_first(s3_url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".aws/credentials").write_text("[default]\naws_access_key_id = no\naws_secret_access_key = no\n")
    with pytest.raises(RolltapeError, match="does not allow it"):
        ObjectStorage(s3_url).exists("tape.json")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_PROFILE", "there-is-none")
    assert not ObjectStorage(s3_url).exists("tape.json")


def test_keys_that_are_renewed_are_read_again(home: Path) -> None:
    file = home / ".aws/credentials"
    file.write_text("[default]\naws_access_key_id = one\naws_secret_access_key = s\n")
    provider = profile_options({"HOME": str(home)})["credential_provider"]
    assert isinstance(provider, ProfileKeys)
    first = provider()
    file.write_text("[default]\naws_access_key_id=two\naws_secret_access_key=t\naws_session_token=u\n")
    again = provider()
    assert (first["access_key_id"], first["token"]) == ("one", None)
    assert (again["access_key_id"], again["secret_access_key"], again["token"]) == ("two", "t", "u")
    assert again["expires_at"] > first["expires_at"]
    assert "s" not in repr(provider).replace("ProfileKeys('default')", "")


def test_a_profile_that_is_not_there_or_not_readable_is_told_without_what_is_in_it(
    s3_url: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "trainnig")
    with pytest.raises(ConfigError, match=r"(?s)no such profile.*trainnig.*credentials"):
        ObjectStorage(s3_url).exists("tape.json")
    (home / ".aws/credentials").write_text(f"[training\n{KEYS}{SECRET}")
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        ObjectStorage(s3_url).exists("tape.json")
    assert SECRET not in str(caught.value) + repr(caught.value.__context__)


def test_a_profile_whose_keys_must_be_asked_for_needs_boto3(
    s3_url: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".aws/config").write_text("[profile r]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = y\n")
    monkeypatch.setenv("AWS_PROFILE", "r")
    with pytest.raises(MissingDependencyError, match=r"(?s)boto3.*pip install boto3"):
        ObjectStorage(s3_url).exists("tape.json")


@pytest.mark.parametrize("variable", ["AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_METADATA_ENDPOINT"])
def test_an_instance_role(
    s3_url: str, home: Path, metadata: Metadata, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, metadata.url)
    train(s3_url, "record", range(2))
    assert_whole(s3_url, range(2))
    assert metadata.asked[:2] == ["/latest/api/token", "/latest/meta-data/iam/security-credentials/"]


def test_the_role_of_a_container(
    s3_url: str, home: Path, metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "token").write_text("t")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{metadata.url}/container")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(home / "token"))
    train(s3_url, "record", range(2))
    assert_whole(s3_url, range(2))
    assert "/container" in metadata.asked


RECORDS = """
import sys, rolltape
tape = rolltape.Tape(sys.argv[1], mode="record")
stage = tape.stage("rollout")(lambda: {"uid": ["a"]})
print("open", flush=True)
sys.stdin.readline()
for step in range(3):
    with tape.step(step):
        stage()
tape.flush()
print("done", flush=True)
sys.stdin.readline()
"""


def test_keys_are_in_no_command_line_no_spool_and_on_no_tape(
    s3_url: str, s3_server: S3Server, s3_proxy: FaultProxy, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".aws/credentials").write_text(f"[training]\n{KEYS}")
    monkeypatch.setenv("AWS_PROFILE", "training")
    process = subprocess.Popen(
        [sys.executable, "-c", RECORDS, s3_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    assert process.stdin
    assert process.stdout.readline() == "open\n"
    s3_proxy.away = True  # so that something waits
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"
    shown = (
        Path(f"/proc/{process.pid}/cmdline").read_bytes() + Path(f"/proc/{process.pid}/environ").read_bytes()
    )
    waiting = [file for file in Path(os.environ["ROLLTAPE_SPOOL"]).rglob("*") if file.is_file()]
    kept = b"".join(file.read_bytes() for file in waiting)
    s3_proxy.away = False
    _, said = process.communicate("\n", timeout=60)
    assert process.returncode == 0, said
    assert any(file.suffix == ".entry" for file in waiting)
    assert rolltape.open(s3_url).steps() == [0, 1, 2]
    storage = ObjectStorage(s3_url)
    on_tape = b"".join(bytes(storage.read(stat.name)) for stat in storage.everything())
    for place in (shown, kept, said.encode(), on_tape):
        assert SECRET.encode() not in place
