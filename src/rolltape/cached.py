"""A property that is computed once, without a lock.

Before Python 3.12 that of ``functools`` holds a lock while it computes, one for all objects of a class. A
process that is forked while another thread holds it waits for it for ever: a data loader's worker, say, that
reads a tape which its parent was just reading ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):
    """Computed when it is first asked for, and kept on the object."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> cached_property[T] | T:
        if instance is None:
            return self
        found = instance.__dict__[self.name] = self.function(instance)
        return found
