"""Work spread over the nodes of a Ray cluster.

The items are cut into pieces, each a task that may run anywhere and more than once: Ray runs it again where
a worker or a node is lost. What comes out is put together in the order of the items, so that the result does
not tell where it was made.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rolltape.errors import ConfigError, RolltapeError
from rolltape.ray.node_work import NodeWork, Raised, look
from rolltape.ray.ray_library import ray_library
from rolltape.spread import Item, Result, Spread

RETRIES = 5
"""How often a piece is run again after its worker or node was lost."""
PIECES_PER_CPU = 4
"""So that no CPU waits long for the slowest piece."""


class ClusterError(RolltapeError, RuntimeError):
    """A Ray cluster cannot be reached, or could not do its work."""


@contextmanager
def cluster(address: str | None = None) -> Iterator[Spread]:
    """The Ray cluster, as something that work can be spread over.

    The cluster that this process uses already; else the one at ``address``; without one, that of
    ``RAY_ADDRESS``, one that runs on this machine, or one that is started here and stopped afterwards.
    """
    ray = ray_library("ray", "work on a cluster")
    started = not ray.is_initialized()
    if started:
        _connect(ray, address)
    else:
        _check_same(ray, address)
    try:
        yield RaySpread(ray)
    finally:
        if started:
            ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    try:
        _knock(address or os.environ.get("RAY_ADDRESS") or "")
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": variables()},
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ClusterError(
            f"no Ray cluster answers: {str(error).strip().splitlines()[0]}",
            where=address or os.environ.get("RAY_ADDRESS"),
            hint="ray status --address ADDRESS tells whether it runs; --ray local starts one here",
        ) from None


def _knock(address: str) -> None:
    """Raise an ``OSError`` where nobody listens: Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _check_same(ray: Any, address: str | None) -> None:
    mine = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", "local", mine):
        raise ConfigError(f"this process uses the Ray cluster at {mine} already", where=address)


def variables() -> dict[str, str]:
    """Our own variables, which every worker is to have as this process has them."""
    return {name: value for name, value in os.environ.items() if name.startswith("ROLLTAPE_")}


class RaySpread:
    """A ``Spread`` over the nodes of the cluster that this process is connected to."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def over(
        self, work: Callable[[Sequence[Item]], Iterator[Result]], items: Sequence[Item], tapes: Sequence[str]
    ) -> Iterator[Result]:
        """What ``work`` makes of each item, in their order."""
        dumps = self._ray.cloudpickle.dumps
        sent = dumps(NodeWork(work, tuple(look(place) for place in dict.fromkeys(tapes))))
        cpus = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        task = self._task()
        waiting = [dumps(piece) for piece in pieces(items, cpus * PIECES_PER_CPU)]
        asked: list[Any] = []
        for at in range(len(waiting)):
            while len(asked) < len(waiting) and len(asked) < at + 2 * cpus:
                asked.append(task.remote(sent, waiting[len(asked)], os.getcwd()))
            yield from self._get(asked[at])
            asked[at] = None  # what came out is let go
        # After an error the few that were asked for run to their end: Ray 2.60 can end this process where a
        # task is cancelled at the moment it is done.

    def _task(self) -> Any:
        # A function inside a function is sent as it is, so that a node without Rolltape can still say so.
        def piece(sent: bytes, items: bytes, folder: str) -> tuple[str, bytes]:
            import socket

            try:
                from rolltape.ray.node_work import do
            except ImportError as error:
                return f"node {socket.gethostname()} cannot import Rolltape: {error}", b""
            return "", do(sent, items, folder)

        # Where all CPUs are taken for good, by a trainer's actors say, what asks for one would never run.
        free = self._ray.available_resources().get("CPU", 0) >= 1
        options = {"num_cpus": int(free), "max_retries": RETRIES, "scheduling_strategy": "SPREAD"}
        known = self._ray.get_runtime_context().runtime_env.get("env_vars") or {}
        if any(known.get(name) != value for name, value in variables().items()):
            options["runtime_env"] = {"env_vars": variables()}
        return self._ray.remote(piece).options(**options)

    def _get(self, reference: Any) -> list[Any]:
        try:
            lacks, found = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise ClusterError(
                f"a piece of the work was lost {RETRIES + 1} times: {str(error).strip().splitlines()[0]}",
                causes=["nodes are lost faster than the work is done", "a worker runs out of memory"],
                hint="see: ray status; ray list tasks. Without --ray it is done on this machine",
            ) from error
        if lacks:
            raise ClusterError(
                lacks,
                hint="install Rolltape on every node, or: "
                'ray job submit --runtime-env-json \'{"pip": ["rolltape"]}\' -- rolltape …',
            )
        done = self._ray.cloudpickle.loads(found)
        if isinstance(done, Raised):
            raise done.error
        return done  # type: ignore[no-any-return]


def pieces(items: Sequence[Item], count: int) -> list[Sequence[Item]]:
    """The items in order, in at most so many pieces of about the same size.

    >>> pieces([1, 2, 3, 4, 5], 2)
    [[1, 2, 3], [4, 5]]
    """
    size = max(1, -(-len(items) // count))
    return [items[at : at + size] for at in range(0, len(items), size)]
