"""What each system dumps, checked, and in the shape that a stage of it records."""

from __future__ import annotations

from typing import Any

from rolltape.errors import CorruptFileError
from rolltape.importing.layouts import ROLL, SLIME, TRANSFER_QUEUE
from rolltape.importing.standins import QueueBatch, RollProto, Tensors, VerlProto


def as_recorded(value: Any, system: str, step: int | None) -> Any:
    """The value of a dump as its stage records it; an error if this is nothing the system dumps.

    verl's and ROLL's batches and slime's dict stay what they are. A TransferQueue dump becomes what the
    integration records of a sampled batch.
    """
    if system == SLIME:
        return _slime(value, step)
    if system == TRANSFER_QUEUE:
        return _queue(value, step)
    if not isinstance(value, RollProto if system == ROLL else VerlProto):
        raise _other(value, system)
    return value


def _slime(value: Any, step: int | None) -> dict[str, Any]:
    held = value.get("samples") if type(value) is dict else None
    if type(held) is not list or type(value.get("rollout_id")) is not int:
        raise _other(value, SLIME)
    _same_step(step, value["rollout_id"])
    return dict(value)


def _queue(value: Any, step: int | None) -> dict[str, Any]:
    if type(value) is not dict or not isinstance(value.get("tensordict"), Tensors):
        raise _other(value, TRANSFER_QUEUE)
    keys: Any = value.get("keys")
    tags: Any = value.get("tags")
    fields = value["tensordict"]
    if not (_are(keys, str) and _are(tags, dict) and len(keys) == len(tags) == fields.batch_size[0]):
        raise CorruptFileError("its keys, tags and rows do not belong together")
    _same_step(step, value.get("global_steps"))
    # A key is uid_session_index; the buffer was asked for that many uids.
    asked = len({key.split("_")[0] for key in keys})
    return {"batch": QueueBatch(keys, tags), "fields": fields, "metrics": {}, "asked": asked}


def _are(values: Any, kind: type) -> bool:
    return type(values) is list and all(type(value) is kind for value in values)


def _same_step(named: int | None, held: Any) -> None:
    if named is not None and named != held:
        raise CorruptFileError(f"it is named after step {named} and holds step {held!r}")


def _other(value: Any, system: str) -> CorruptFileError:
    return CorruptFileError(f"it holds a {type(value).__name__}, which {system} does not dump")
