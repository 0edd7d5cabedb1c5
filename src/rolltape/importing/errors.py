"""What can be wrong with a dump besides damage, which is a ``CorruptFileError``.

RolltapeError
└── UnsafeDumpError   (ValueError)   a dump asks for code that its format does not need
"""

from __future__ import annotations

from rolltape.errors import RolltapeError


class UnsafeDumpError(RolltapeError, ValueError):
    """A dump names code, or a trick, that its format does not need. Nothing of it has been run."""


def refused(what: str, where: object) -> UnsafeDumpError:
    """The error for a dump that asks for ``what``."""
    return UnsafeDumpError(
        f"refused: it asks for {what}; nothing of it was run",
        where=where,
        causes=[
            "the dump holds objects besides tensors, arrays and plain values",
            "somebody put code into it",
        ],
        hint="look at it with: python -m pickletools FILE; leave such objects out and dump again",
    )
