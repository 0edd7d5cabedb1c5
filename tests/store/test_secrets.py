"""Credentials reach the store and nothing else: no message, no log, no tape, no pickle."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import obstore
import pytest
from obstore.store import from_url

import rolltape
from rolltape.errors import RolltapeError
from rolltape.storage import ObjectStorage, Spool, SpooledStorage
from tests.cli_tapes import in_process, run
from tests.object_servers.s3 import BUCKET, SECRET
from tests.store.runs import train

SECRETS = ("HUSHHUSHKEYID", "hush/secret+key", "hush-session-token", "hushsig%2Fnature", "hushsig/nature")


def assert_no_secret(text: str | bytes, where: str) -> None:
    data = text.encode() if isinstance(text, str) else text
    for secret in SECRETS:
        assert secret.encode() not in data, f"{secret} is in {where}"


def everything_about(error: BaseException | None) -> str:
    if error is None:
        return ""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    chained = []
    found: BaseException | None = error
    while found is not None:
        chained += [repr(found), str(found), repr(found.args)]
        found = found.__cause__ or found.__context__
    return "\n".join([*lines, *chained])


def storage_calls(storage: ObjectStorage) -> list[Callable[[], object]]:
    return [
        lambda: storage.read("tape.json"),
        lambda: storage.read_end("train/rollout/step_000000.parquet", 10),
        lambda: storage.stat("tape.json"),
        lambda: storage.publish("train/x/step_000000.parquet", [b"x"], replace=False),
        lambda: storage.append("train/metrics.jsonl", b"x"),
        lambda: list(storage.names("")),
        lambda: list(storage.everything()),
        lambda: storage.delete("train/x/y"),
        storage.check_writable,
    ]


@pytest.fixture
def wrong_keys(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", SECRETS[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRETS[1])
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRETS[2])
    monkeypatch.setenv("ROLLTAPE_STORE_DEADLINE", "1")
    return s3_url


def test_credentials_that_are_refused_are_not_shown(
    wrong_keys: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    for call in storage_calls(ObjectStorage(wrong_keys)):
        with pytest.raises(RolltapeError, match="does not allow it") as caught:
            call()
        assert_no_secret(everything_about(caught.value), "the error")
        assert_no_secret(pickle.dumps(caught.value), "the pickled error")
        assert "credentials" in str(caught.value)
    with pytest.raises(RolltapeError):
        rolltape.Tape(wrong_keys, mode="record")
    assert_no_secret(caplog.text, "the log")
    assert_no_secret("".join(capfd.readouterr()), "the output")


def test_a_signature_in_a_url_is_not_shown(
    az_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A SAS token is part of the URL of every request; errors of some releases of obstore show that URL."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("ROLLTAPE_STORE_DEADLINE", "1")
    for name in ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY"):
        monkeypatch.delenv(name, raising=False)
    sas = f"?sv=2023-01-03&ss=b&srt=sco&sp=rwdlac&se=2099-01-01T00:00:00Z&sig={SECRETS[3]}"
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", sas)
    store = from_url(az_url, client_options={"allow_http": True}, retry_config={"max_retries": 0})
    with pytest.raises(Exception, match="403"):  # the token is sent
        obstore.head(store, "x")
    for call in storage_calls(ObjectStorage(az_url)):
        with pytest.raises(RolltapeError) as caught:
            call()
        assert_no_secret(everything_about(caught.value), "the error")
    assert_no_secret(caplog.text, "the log")


def test_no_command_shows_them(wrong_keys: str) -> None:
    for arguments in (
        ["ls", wrong_keys], ["show", wrong_keys, "0"], ["check", wrong_keys], ["doctor", wrong_keys],
        ["diff", wrong_keys, wrong_keys], ["prune", wrong_keys, "--steps", "0", "--yes"],
        ["ls", f"s3://{SECRETS[0]}:{SECRETS[1]}@{BUCKET}/x"], ["ls", f"az://box/x?sig={SECRETS[4]}"],
    ):  # fmt: skip
        done = run(*arguments)
        assert done.exit_code != 0, arguments
        assert "s3://" in done.stderr + done.stdout or "az://" in done.stderr
        assert_no_secret(done.stdout + done.stderr + everything_about(done.exception), arguments[0])
    # All that a process of its own says, on its way out too.
    for arguments in (
        ["check", wrong_keys],
        ["run", "--mode", "record", "--dir", f"s3://{SECRETS[0]}:{SECRETS[1]}@{BUCKET}/x", "--", "true"],
    ):
        told = in_process(*arguments)
        assert told.returncode != 0, arguments
        assert "s3://" in told.stderr + told.stdout
        assert "Traceback" not in told.stderr
        assert_no_secret(told.stdout + told.stderr, arguments[0])


def test_a_tape_its_spool_and_its_pickles_hold_none(s3_url: str, tmp_path: Path) -> None:
    storage = SpooledStorage(ObjectStorage(s3_url), Spool(str(tmp_path / "spool"), 2**30))
    with rolltape.Tape(s3_url, mode="record", fingerprint={"seed": 1}) as tape:
        pickles = pickle.dumps(tape) + pickle.dumps(storage) + pickle.dumps(ObjectStorage(s3_url))
        shown = repr(tape) + repr(storage) + repr(ObjectStorage(s3_url)) + repr(tape.settings)
    train(s3_url, "auto", range(2))
    found = ObjectStorage(s3_url)
    on_tape = b"".join(bytes(found.read(stat.name)) for stat in found.everything())
    assert SECRET.encode() not in pickles
    assert SECRET not in shown
    assert SECRET.encode() not in on_tape
