"""Changes modules of other libraries once they have been imported: now, or as soon as that happens."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Patch = Callable[[ModuleType], None]


class ImportHook(importlib.abc.MetaPathFinder):
    """Lets the other finders find the modules, and patches each once it has been executed."""

    def __init__(self, patches: Mapping[str, Patch]) -> None:
        self._patches = patches

    def start(self) -> None:
        """Patch what is imported already, and the rest when it is."""
        for name, patch in self._patches.items():
            if name in sys.modules:
                patch(sys.modules[name])
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Leave modules that are imported from now on alone."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        patch = self._patches.get(fullname)
        if patch is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find and not isinstance(finder, ImportHook) else None
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, patch)
                return spec  # type: ignore[no-any-return]
        return None


class _Loader(importlib.abc.Loader):
    """Loads like the loader it wraps, then patches the module."""

    def __init__(self, loader: Any, patch: Patch) -> None:
        self._loader = loader
        self._patch = patch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._patch(module)

    def __getattr__(self, name: str) -> Any:  # get_source and the like, for tracebacks
        return getattr(self._loader, name)
