"""ROLL's ``DataProto`` on a tape: ``batch``, ``non_tensor_batch`` and ``meta_info``, exactly.

Columns in ROLL's transfer backend are fetched: a reference would be useless in a later run.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from rolltape.batch import register_adapter
from rolltape.errors import MissingDependencyError

NAME = "roll.dataproto"
MODULE = "roll.distributed.scheduler.protocol"


def to_parts(data: Any) -> dict[str, Any]:
    """What a ``DataProto`` holds. Reads the attributes: the properties return proxies or copies."""
    fields = vars(data)
    batch = fields["_batch"] if "_batch" in fields else fields["batch"]
    plain = fields["_non_tensor_batch"] if "_non_tensor_batch" in fields else fields["non_tensor_batch"]
    remote = fields.get("_remote_batch")
    if remote is not None:
        batch, plain = batch.copy(), dict(plain)
        for name in remote.keys():  # noqa: SIM118, it is not a mapping
            column = remote[name]
            (plain if hasattr(column, "dtype") and column.dtype == object else batch)[name] = column
    return {"batch": batch, "non_tensor_batch": plain, "meta_info": data.meta_info}


def from_parts(parts: dict[str, Any]) -> Any:
    """The ``DataProto`` again, as a class of the installed ROLL."""
    module = sys.modules.get(MODULE)
    try:
        found = module or importlib.import_module(MODULE)
    except ImportError:
        raise MissingDependencyError(
            "the tape holds a DataProto of ROLL, but ROLL cannot be imported",
            hint="set PYTHONPATH to a checkout of ROLL, or read its columns: recording.batch()",
        ) from None
    return found.DataProto(**parts)


register_adapter(f"{MODULE}.DataProto", name=NAME, to_parts=to_parts, from_parts=from_parts)
