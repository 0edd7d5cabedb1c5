"""``rolltape.ray.write``: the rows of a Ray Data ``Dataset`` as a new tape."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rolltape.errors import BatchError, RolltapeError, StepExistsError
from rolltape.ray.node_work import look
from rolltape.ray.ray_library import connected, ray_library
from rolltape.ray.step_writer import StepWriter
from rolltape.reader.run import Run, open
from rolltape.storage import absolute, storage_at
from rolltape.tape.manifest import new_manifest, write_manifest
from rolltape.tape.step_index import recordings


def write(
    dataset: Any,
    place: str | os.PathLike[str],
    *,
    stage: str | None = None,
    split: str | None = None,
    fingerprint: Mapping[str, Any] | None = None,
) -> Run:
    """Write the rows of a dataset as a new tape: a recording for each call of a stage at a step.

    Rows need the columns ``step`` and ``uid``, and ``index`` where samples share a uid. The tape is there
    when all of it is: ``tape.json`` comes last. Tasks that Ray runs again change nothing.

    Args:
        dataset: A Ray Data ``Dataset``, as :func:`read` gives it or with other columns.
        place: Where the tape is to be, a path or URL that every node sees; nothing may be there yet.
        stage: The stage; without, what the column ``stage`` says, else ``rollout``.
        split: The split; without, what the column ``split`` says, else ``train``.
        fingerprint: What a run that replays the tape must match.
    """
    ray = connected("rolltape.ray.write")
    ray_library("ray.data", "rolltape.ray.write")
    where = absolute(place)
    storage = storage_at(where)
    if look(where).digest is not None or next(recordings(storage), None) is not None:
        raise StepExistsError(
            "there is a tape already, or what an earlier write left behind",
            where=where,
            hint="name another place, or remove it first",
        )
    names = dataset.schema().names
    for needed in ("step", "uid"):
        if needed not in names:
            raise BatchError(f"the rows have no column {needed!r}", hint=f"columns: {', '.join(names)}")
    storage.check_writable()
    manifest = new_manifest(fingerprint or {})
    given = {"stage": stage, "split": split}
    by = [n for n in ("step", "split", "stage", "call") if n in names and given.get(n) is None]
    writer = StepWriter(storage, manifest, stage, split)
    cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
    try:
        dataset.groupby(by, num_partitions=2 * cpus).map_groups(
            writer.write_rows, batch_format="pyarrow"
        ).materialize()
    except ray.exceptions.RayError as error:
        raise _ours(error) from error
    write_manifest(storage, manifest)
    return open(where)


def _ours(error: BaseException) -> BaseException:
    """The error of ours that a task failed with; else the one that Ray raised."""
    seen = error
    for _ in range(10):
        inner = getattr(seen, "cause", None) or seen.__cause__
        if inner is None or isinstance(seen, RolltapeError):
            break
        seen = inner
    return seen if isinstance(seen, RolltapeError) else error
