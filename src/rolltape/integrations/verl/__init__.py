"""verl on tapes: RolloutSkip and SkipManager keep their names and settings, but use a tape.

    from rolltape.integrations.verl import RolloutSkip, SkipAction, read_dumped_data

Importing this package is cheap, since verl loads its plugin in every process. See docs/verl.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolltape.integrations.verl.rollout_skip import RolloutSkip, SkipAction, read_dumped_data

__all__ = ["RolloutSkip", "SkipAction", "read_dumped_data"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from rolltape.integrations.verl import rollout_skip

        return getattr(rollout_skip, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
