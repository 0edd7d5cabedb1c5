"""A dict whose columns are decoded when somebody first looks at them.

For whoever holds it, it is a dict: the same keys, the same values, whatever is done to it. A copy of it, also
by pickle, is a plain dict with everything in it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import Any


class _Pending:
    """Stands in the dict for a value that has not been made yet.

    Whoever reads the dict past its methods, as an object does whose ``__dict__`` it is, finds this instead.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "<a column that has not been decoded: read it as batch[name], or take dict(batch)>"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self!r} has no {name!r}")

    def _refuse(self, *_: object) -> Any:
        raise TypeError(f"{self!r} has no value yet")

    __bool__ = __len__ = __iter__ = __array__ = __getitem__ = _refuse


_PENDING: Any = _Pending()


class ProcessLock:
    """A lock that is free after a fork: the thread that held it is not in the new process."""

    __slots__ = ("_lock", "_process")

    def __init__(self) -> None:
        self._lock, self._process = threading.RLock(), os.getpid()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            self._lock, self._process = threading.RLock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class LazyDict(dict[str, Any]):
    """Values that are missing are made on first sight, each once, whichever thread comes first.

    >>> made = LazyDict.of({"a": 1}, ["b"], lambda keys: {key: key.upper() for key in keys})
    >>> made.pending, made["b"], made.pending, made
    (('b',), 'B', (), {'a': 1, 'b': 'B'})
    """

    __slots__ = ("_lock", "_make")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._make: Callable[[list[str]], Mapping[str, Any]] | None = None
        self._lock: ProcessLock | None = None

    @classmethod
    def of(
        cls,
        there: Mapping[str, Any],
        pending: list[str],
        make: Callable[[list[str]], Mapping[str, Any]],
        order: list[str] | None = None,
        lock: ProcessLock | None = None,
    ) -> LazyDict:
        """A dict with what is ``there``; ``make(keys)`` returns the values of keys that are ``pending``.

        ``lock`` is held meanwhile, which several dicts may share.
        """
        found = dict(there) | dict.fromkeys(pending, _PENDING)
        self = cls({key: found[key] for key in (order or found)})
        self._make, self._lock = make, lock or ProcessLock()
        return self

    @property
    def pending(self) -> tuple[str, ...]:
        """The keys whose values nobody has looked at yet."""
        there = super().get
        return tuple(key for key in tuple(self) if there(key) is _PENDING)  # others may add to it meanwhile

    def made(self) -> dict[str, Any]:
        """Everything, as a plain dict."""
        self._settle(self.pending)
        return dict(super().items())

    def _settle(self, keys: tuple[str, ...]) -> None:
        """Make the values of these keys, together: that is quicker than one after the other."""
        if not keys or self._lock is None:
            return
        with self._lock:
            wanted = [key for key in keys if super(LazyDict, self).get(key) is _PENDING]
            made = self._make(wanted) if wanted and self._make else {}
            for key in wanted:
                if super().get(key) is _PENDING:
                    super().__setitem__(key, made[key])
            if not self.pending:
                self._make = None  # and with it the file

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if value is _PENDING:
            self._settle((key,))
            value = super().__getitem__(key)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - this is get

    def __iter__(self) -> Iterator[str]:
        # Not without effect: with a way of its own to iterate, dict(self) and {**self} ask for each value.
        return super().__iter__()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        self._settle(self.pending)
        return super().items()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        self._settle(self.pending)
        return super().values()

    def pop(self, key: str, *default: Any) -> Any:
        if key in self:
            self[key]
        return super().pop(key, *default)

    def popitem(self) -> tuple[str, Any]:
        for key in reversed(self):
            return key, self.pop(key)
        return super().popitem()

    def setdefault(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else super().setdefault(key, default)

    def copy(self) -> dict[str, Any]:
        return self.made()

    def __or__(self, other: Any) -> Any:
        return self.made() | other if isinstance(other, dict) else NotImplemented

    def __ror__(self, other: Any) -> Any:
        return other | self.made() if isinstance(other, dict) else NotImplemented

    def __eq__(self, other: object) -> bool:
        return self.made() == (other.made() if isinstance(other, LazyDict) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __repr__(self) -> str:
        return repr(self.made())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.made(),)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()
