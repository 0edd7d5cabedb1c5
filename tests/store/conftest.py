"""The object stores of these tests."""

import os

import pytest

from tests.object_servers.fixtures import *  # noqa: F403
from tests.slow.rounds import *  # noqa: F403

# A Ray cluster listens on loopback alone, as it does by default on macOS; read when ray is imported.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"


@pytest.fixture(autouse=True)
def _own_spool(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a store waits in a place of the test, and not in the user's."""
    monkeypatch.setenv("ROLLTAPE_SPOOL", str(tmp_path_factory.mktemp("spool")))
