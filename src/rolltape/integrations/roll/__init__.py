"""ROLL's Rollout Dump Mock on tapes: the same ``rollout_mock`` section, the same schedulers, no pickle.

``install()`` turns it on for ROLL's own schedulers, in this process and in its Ray workers. For your own
scheduler use ``RolloutMockMixin``, ``with_rollout_mock``, or both. This imports no ROLL, torch or Ray.
"""

from rolltape.integrations.roll import dataproto as _dataproto  # registers ROLL's DataProto
from rolltape.integrations.roll.installing import install, uninstall
from rolltape.integrations.roll.mixin import RolloutMockMixin, with_rollout_mock

del _dataproto

__all__ = ["RolloutMockMixin", "install", "uninstall", "with_rollout_mock"]
