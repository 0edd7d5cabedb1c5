"""Two tapes compared, for tests that look at the entries."""

from __future__ import annotations

from typing import Any

import rolltape
from rolltape.storage import LocalStorage
from rolltape.verify import Comparison


def compared(baseline: Any, candidate: Any, **options: Any) -> Comparison:
    """What ``rolltape.compare`` found, entry by entry; storages stand for the tapes on them."""
    paths = [side.location if isinstance(side, LocalStorage) else side for side in (baseline, candidate)]
    return rolltape.compare(*paths, **options).comparison
