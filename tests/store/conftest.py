"""The object stores of these tests."""

import pytest

from tests.object_servers.fixtures import *  # noqa: F403
from tests.slow.rounds import *  # noqa: F403


@pytest.fixture(autouse=True)
def _own_spool(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a store waits in a place of the test, and not in the user's."""
    monkeypatch.setenv("ROLLTAPE_SPOOL", str(tmp_path_factory.mktemp("spool")))
