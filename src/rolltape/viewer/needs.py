"""Says what to install where a library of the viewer is absent."""

from __future__ import annotations

from rolltape.errors import MissingDependencyError


def missing(error: ImportError, command: str) -> MissingDependencyError:
    """The error for a library that ``rolltape view`` or ``rolltape browse`` needs and that is not there."""
    return MissingDependencyError(
        f"rolltape {command} needs {error.name}", hint=f"pip install 'rolltape[{command}]'"
    )
