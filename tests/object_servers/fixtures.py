"""The servers as fixtures of pytest: import them in the conftest.py of a folder that needs them.

Every `…_url` is a place of its own under one bucket, and the environment of the test is set so that obstore
finds the server by it, as a user would set it. Processes that the test starts inherit it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.object_servers.azure import CONTAINER, AzureServer
from tests.object_servers.fault_proxy import FaultProxy
from tests.object_servers.s3 import BUCKET, S3Server

__all__ = ["az_proxy", "az_server", "az_url", "fresh_machine", "s3_proxy", "s3_server", "s3_url"]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A real S3 server, for the session (with pytest-xdist: one for each of its processes)."""
    server = S3Server()
    yield server
    alive, said = server.process.runs(), server.process.said()
    server.stop()
    assert alive, f"the S3 server died during the tests:\n{said}"


@pytest.fixture
def s3_url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh place `s3://bucket/prefix`, which the test's environment has the keys for."""
    forget_credentials(monkeypatch, "AWS_")
    for name, value in s3_server.env().items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{fresh()}"


@pytest.fixture
def s3_proxy(s3_server: S3Server, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy between the test and the S3 server: from here on `s3_url` is reached through it."""
    with FaultProxy(s3_server.port) as proxy:
        for name, value in s3_server.env(proxy.port).items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture(scope="session")
def az_server() -> Iterator[AzureServer]:
    """Azurite, for the session (with pytest-xdist: one for each of its processes)."""
    server = AzureServer()
    yield server
    alive, said = server.process.runs(), server.process.said()
    server.stop()
    assert alive, f"Azurite died during the tests:\n{said}"


@pytest.fixture
def az_url(az_server: AzureServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh place `az://container/prefix`, which the test's environment has the key for."""
    forget_credentials(monkeypatch, "AZUR")
    for name, value in az_server.env().items():
        monkeypatch.setenv(name, value)
    return f"az://{CONTAINER}/{fresh()}"


@pytest.fixture
def az_proxy(az_server: AzureServer, az_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy between the test and Azurite: from here on `az_url` is reached through it."""
    with FaultProxy(az_server.port) as proxy:
        for name, value in az_server.env(proxy.port).items():
            monkeypatch.setenv(name, value)
        yield proxy


def fresh() -> str:
    """A name that no other test has."""
    return f"test-{os.urandom(6).hex()}"


def forget_credentials(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """What a developer exports for stores of their own must not reach a test."""
    for name in [name for name in os.environ if name.startswith(family)]:
        monkeypatch.delenv(name)


@pytest.fixture
def fresh_machine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], dict[str, str]]:
    """Makes what a machine has that knows nothing of a tape: a home of its own, and nothing that waits.

    What it returns is for the environment of processes, beside the address of the store and its keys.
    """

    def make() -> dict[str, str]:
        home = tmp_path_factory.mktemp("machine")
        return {
            "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "ROLLTAPE_SPOOL": str(home / "spool"),
        }  # fmt: skip

    return make


def objects(url: str) -> dict[str, str]:
    """What is in the store at a place: names and ETags."""
    import obstore
    from obstore.store import from_url

    store = from_url(url, client_options={"allow_http": True})
    return {one["path"]: str(one["e_tag"]) for page in obstore.list(store) for one in page}
