"""verl's own types on a tape: ``DataProto`` and TransferQueue's ``KVBatchMeta``.

Importing this module imports neither library; reading a value of such a type does.
"""

from __future__ import annotations

from typing import Any

from rolltape.batch import register_adapter
from rolltape.errors import MissingDependencyError
from rolltape.integrations.verl.prompts import contents, trajectory_prompts

_KV_FIELDS = ("keys", "tags", "partition_id", "fields", "extra_info")


def _data_proto_parts(value: Any) -> dict[str, Any]:
    return {"batch": value.batch, "non_tensor_batch": value.non_tensor_batch, "meta_info": value.meta_info}


def _data_proto(parts: dict[str, Any]) -> Any:
    try:
        from verl.protocol import DataProto
    except ImportError:
        raise MissingDependencyError(
            "the tape holds a DataProto of verl, but verl is not installed",
            hint='pip install "rolltape[verl]", or read columns: tape.recording(STEP).batch([...])',
        ) from None
    return DataProto(**parts)


def _kv_batch_meta(parts: dict[str, Any]) -> Any:
    try:
        from transfer_queue import KVBatchMeta
    except ImportError:
        raise MissingDependencyError(
            "the tape holds a KVBatchMeta, but TransferQueue is not installed",
            hint="pip install TransferQueue",
        ) from None
    return KVBatchMeta(**parts)


register_adapter(
    "verl.protocol.DataProto",
    name="verl.dataproto",
    to_parts=_data_proto_parts,
    from_parts=_data_proto,
    prompts=lambda value: contents(len(value), value.batch, value.non_tensor_batch),
)
register_adapter(
    "transfer_queue.metadata.KVBatchMeta",
    name="verl.kvbatchmeta",
    to_parts=lambda meta: {name: getattr(meta, name) for name in _KV_FIELDS},
    from_parts=_kv_batch_meta,
    sample_prompts=trajectory_prompts,
)
