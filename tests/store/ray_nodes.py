"""A Ray cluster of several nodes on loopback, and work that a test can stop in the middle."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from rolltape.ray.cluster_spread import RaySpread, variables

KEPT = {"RAY_idle_worker_killing_time_threshold_ms": "600000", "RAY_num_workers_soft_limit": "4"}
"""So that a worker is started once, and not for every test: that takes seconds of two CPUs."""
QUIET = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}


@pytest.fixture(scope="module", autouse=True)
def _own_spool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One for all tests of a file: what has other variables needs workers of its own.

    Import it where a cluster is shared; it takes the place of the one of each test.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLTAPE_SPOOL", str(tmp_path_factory.mktemp("spool")))
        yield


@contextmanager
def nodes(count: int, folder: Path) -> Iterator[Cluster]:
    """A head that does no work and so many nodes of one CPU each, which this process is connected to."""
    before = dict(os.environ)
    os.environ.update(QUIET | KEPT, RAY_TMPDIR=str(folder))
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(count):
            made.add_node(num_cpus=1)
        ray.init(
            address=made.address,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": variables()},
        )
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        os.environ.clear()
        os.environ.update(before)


def stall(note: str) -> None:
    """Write where this runs, and never end there; another time there is nothing to do."""
    try:
        file = os.open(note, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return
    os.write(file, f"{ray.get_runtime_context().get_node_id()}\n".encode())
    threading.Event().wait()  # until the node is killed


def kill_where(cluster: Cluster, note: Path) -> str:
    """Wait until something stalls, and kill the node that it stalls on; its id."""
    pause = threading.Event()
    while not (note.exists() and note.read_text().endswith("\n")):
        pause.wait(0.05)
    lost = note.read_text().strip()
    node = next(node for node in cluster.worker_nodes if node.node_id == lost)
    cluster.remove_node(node, allow_graceful=False)
    return lost


@dataclass(frozen=True)
class Stalls:
    """Work whose first piece stalls."""

    work: Callable[[Sequence[Any]], Iterator[Any]]
    note: str

    def __call__(self, items: Sequence[Any]) -> Iterator[Any]:
        stall(self.note)
        return self.work(items)


class LosesANode:
    """A spread over a cluster that loses the node on which the first piece of work has begun."""

    def __init__(self, cluster: Cluster, note: Path) -> None:
        self.cluster, self.note, self.lost = cluster, note, ""

    def over(self, work: Any, items: Sequence[Any], tapes: Sequence[str]) -> Iterator[Any]:
        if self.lost:
            return RaySpread(ray).over(work, items, tapes)
        killer = threading.Thread(target=self._kill)
        killer.start()
        found = list(RaySpread(ray).over(Stalls(work, str(self.note)), items, tapes))
        killer.join()
        return iter(found)

    def _kill(self) -> None:
        self.lost = kill_where(self.cluster, self.note)
