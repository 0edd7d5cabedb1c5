"""The releases of other libraries that Rolltape is tested with, and what is said of any other.

`make compat` runs the contract of docs/compatibility.md with each of them. A release that is not listed is
not refused for its number: what a hook needs of it is checked when it starts (``check_needs``).
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from rolltape.errors import UnsupportedReleaseError


@dataclass(frozen=True, slots=True)
class Library:
    """A library and its tested releases."""

    name: str
    """As the package index has it."""
    tested: tuple[str, ...]
    """Oldest first. Empty for one that is not on the package index: what a hook needs of it is tested."""
    engine: str = ""
    """The engine of Rolltape that runs on it, if that alone needs it: a framework may bring an older one."""


LIBRARIES = (
    Library("verl", ("0.6.0", "0.6.1", "0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1")),
    Library("trl", ("1.0.0", "1.4.0", "1.8.0", "1.12.0", "1.16.0")),
    Library("transformers", ("5.0.0", "5.19.0"), "TransformersEngine"),
    Library("vllm", ("0.27.0", "0.32.0"), "VLLMEngine"),
    Library("ray", ("2.10.0", "2.60.0"), "RayEngine"),
    Library("roll", ()),
    Library("slime", ()),
    Library("miles", ()),
    Library("numpy", ("1.24.0", "2.5.4")),
    Library("pyarrow", ("17.0.0", "26.0.1")),
)


def standing(name: str, version: str) -> tuple[str, str] | None:
    """What is to be said of an installed release, and why; None of a library that is not listed.

    >>> standing("verl", "0.9.1")
    ('tested', '')
    >>> standing("verl", "0.5.0")
    ('refused', 'the oldest release that works is 0.6.0')
    >>> standing("transformers", "4.57.1")
    ('refused', 'by TransformersEngine: the oldest release that works is 5.0.0')
    """
    library = _library(name)
    if library is None:
        return None
    if version in library.tested:
        return "tested", ""
    if not library.tested:
        return "expected to work", "it has no releases; what is needed of it is checked when it starts"
    if _order(version) < _order(library.tested[0]):
        by = f"by {library.engine}: " if library.engine else ""
        return "refused", f"{by}the oldest release that works is {library.tested[0]}"
    newest = library.tested[-1]
    when = f"newer than {newest}, the newest that is tested" if _order(version) > _order(newest) else ""
    return "expected to work", when or "between releases that are tested"


def is_too_old(name: str) -> bool:
    """Whether the installed release is refused; one that is not in the metadata is given the chance."""
    known = standing(name, installed(name)) if _order(installed(name)) else None
    return known is not None and known[0] == "refused"


def refuse_too_old(name: str) -> None:
    """Refuse a release that is older than the oldest that works."""
    if is_too_old(name):
        raise unsupported(name, "is older than the oldest release that works")


def check_needs(name: str, module: ModuleType, needs: Sequence[str], hint: str | None = None) -> None:
    """Refuse a release that lacks what a hook needs, before anything is changed.

    A need is a name in the module, with the parameters that it must take:
    ``RayPPOTrainer._get_gen_batch(batch)``; with ``...`` it may need others too.
    """
    missing = [need for need in needs if not has(module, need)]
    if missing:
        where = getattr(module, "__file__", None)
        raise unsupported(name, f"has no {module.__name__}.{', '.join(missing)}", where, hint)


def unsupported(
    name: str, why: str, where: object = None, hint: str | None = None
) -> UnsupportedReleaseError:
    """The error for a release whose internals are not known; ``hint`` is for one that has no releases."""
    library = _library(name)
    tested = ", ".join(library.tested) if library else ""
    return UnsupportedReleaseError(
        f"{name} {installed(name)} {why}: nothing was changed, nothing is on tape",
        where=where,
        causes=[f"this release of {name} is older or newer than those that this Rolltape knows"],
        hint=f"install a release that is tested: {tested}" if tested else hint or "upgrade Rolltape",
    )


def installed(name: str) -> str:
    """The installed release of a library."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # vLLM for the CPU has another name
        return str(getattr(sys.modules.get(name), "__version__", "(of an unknown release)"))


def has(owner: Any, need: str) -> bool:
    """Whether a module, a class or an object has what a need says.

    >>> import shutil
    >>> has(shutil, "move(src, dst)"), has(shutil, "move(src)"), has(shutil, "move(src, ...)")
    (True, False, True)
    """
    path, _, parameters = need.rstrip(")").partition("(")
    found = owner
    for name in path.split("."):
        found = getattr(found, name, None)
        if found is None:
            return False
    return "(" not in need or _takes(found, [name for name in parameters.split(", ") if name])


def has_module(name: str) -> bool:
    """Whether a module of that full name can be imported; neither it nor a package that holds it is.

    >>> has_module("email.mime.text"), has_module("email.mime.gone"), has_module("gone.mime")
    (True, False, False)
    """
    parts = name.split(".")
    package = sys.modules.get(parts[0]) or find_spec(parts[0])
    places: Any = getattr(package, "__path__", None) or getattr(package, "submodule_search_locations", None)
    for depth in range(2, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:depth]), places) if places else None
        if spec is None:
            return False
        places = spec.submodule_search_locations
    return package is not None


def _takes(function: Any, wanted: list[str]) -> bool:
    """Whether a function takes these parameters and needs no other."""
    kinds = inspect.Parameter
    try:
        parameters = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    except (TypeError, ValueError):  # not something that can be called
        return False
    loose = any(one.kind is kinds.VAR_KEYWORD for one in parameters)
    named = [one for one in parameters if one.kind not in (kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL)]
    known = {one.name for one in named}
    needed = {one.name for one in named if one.default is kinds.empty}
    given = set(wanted) - {"..."}
    return ("..." in wanted or needed <= given) and (loose or given <= known)


def _library(name: str) -> Library | None:
    return next((one for one in LIBRARIES if one.name == name), None)


def _order(version: str) -> tuple[int, ...]:
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in release.group().split(".")) if release else ()
