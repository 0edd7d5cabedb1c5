"""A few threads for work that is memory traffic: one core alone does not use all of the bandwidth.

Arrow has threads too, but a process that ends soon after those were started may abort.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import numpy as np

SHARE_FROM = 4 * 1024 * 1024
"""Bytes from which work is worth another thread."""

_T = TypeVar("_T")
COUNT = os.cpu_count() or 1


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(COUNT, "rolltape")


_threads = _pool()


def _renew() -> None:
    """After a fork the threads are the parent's, and a pool without threads would wait for ever."""
    global _threads
    _threads = _pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def submit(work: Callable[..., _T], *args: object) -> Future[_T]:
    """Run ``work`` on another thread; on this one where the interpreter is about to end."""
    try:
        return _threads.submit(work, *args)
    except RuntimeError:
        done: Future[_T] = Future()
        done.set_result(work(*args))
        return done


def shared(work: Callable[[int, int], _T], rows: int, nbytes: int) -> list[_T]:
    """What ``work(start, stop)`` returns for parts of the rows that together are all of them.

    Small work is one part, done here. ``work`` must not share work itself.
    """
    if nbytes < SHARE_FROM or COUNT == 1 or rows < 2:
        return [work(0, rows)]
    bounds = np.linspace(0, rows, min(COUNT, 4, rows) + 1).astype(int).tolist()
    parts = list(pairwise(bounds))
    others = [submit(work, start, stop) for start, stop in parts[1:]]
    return [work(*parts[0]), *(other.result() for other in others)]
