"""Azurite, Microsoft's own emulator of Azure Blob Storage, keeps what every storage promises."""

from __future__ import annotations

from itertools import count

import pytest

from rolltape.storage import ObjectStorage
from tests.storage_contract import *  # noqa: F403
from tests.storage_contract import Make


@pytest.fixture
def make_storage(az_url: str) -> Make:
    numbers = count()
    return lambda: ObjectStorage(f"{az_url}/runs/tape{next(numbers)}")
