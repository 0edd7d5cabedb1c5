"""The trainer's log-probs before it updates: recorded where asked for, and measured as they come."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from rolltape.integrations.verl.session import Position, Session
from rolltape.trusting import Meter

log = logging.getLogger("rolltape")

FIELDS = ("responses", "response_mask", "old_log_probs")
SAMPLED = "rollout_log_probs"
"""The engine's, where verl is told to keep them: ``actor_rollout_ref.rollout.calculate_log_probs``."""


class TrainerLogprobs:
    """Keeps the log-probs of one session's steps, for ``rolltape trust`` and its live meter."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._meter: Meter | None = None
        self._bypassed = False

    @property
    def wanted(self) -> bool:
        """Whether they are asked for."""
        return self._session.wishes.logprobs

    def keep(self, columns: Mapping[str, Any], uids: Sequence[Any]) -> None:
        """Record and measure the log-probs of the step that was generated last; a row per sample."""
        position = self._session.entered()
        if not self.wanted or position is None:
            return

        def old_log_prob() -> dict[str, Any]:
            return {"uid": uids, **{name: columns[name] for name in FIELDS if name in columns}}

        position.run(self._session.tape.stage("old_log_prob", replay=False)(old_log_prob))
        self._measure(position, columns, uids)

    def _measure(self, position: Position, columns: Mapping[str, Any], uids: Sequence[Any]) -> None:
        self._meter = self._meter or Meter(self._session.tape)
        trainer, mask = columns["old_log_probs"], columns.get("response_mask")
        engine, mask = (None if one is None else _rows(one) for one in (columns.get(SAMPLED), mask))
        groups = [str(one) for one in uids]
        self._meter.measure(position.step, engine, _rows(trainer), mask=mask, groups=groups)

    def keep_queued(self, trainer: Any, batch: Any) -> None:
        """The same for a batch in TransferQueue; in bypass mode they are the engine's own."""
        if not self.wanted:
            return
        correction = trainer.config.algorithm.get("rollout_correction", None)
        if correction and correction.get("bypass_mode", False):
            if not self._bypassed:
                log.warning("rolltape: in bypass mode verl computes no log-probs: there are none to record")
            self._bypassed = True
            return
        import transfer_queue as tq

        wanted = ["uid", *FIELDS]
        wanted += [SAMPLED] if trainer.config.actor_rollout_ref.rollout.calculate_log_probs else []
        found = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=wanted)
        uids = found["uid"]
        uids = list(uids.tolist() if hasattr(uids, "tolist") else uids)
        self.keep({name: found[name] for name in wanted[1:] if name in found}, [str(one) for one in uids])


def _rows(column: Any) -> Any:
    """A column with a row per sample; a nested one is taken apart."""
    return column.unbind() if getattr(column, "is_nested", False) else column
