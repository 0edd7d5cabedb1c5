"""Imported by every Python that starts under ``rolltape run``, whose PYTHONPATH begins with this folder.

Has the frameworks that offer no plugin point put on the tape, then gives way to the ``sitecustomize`` that
would have been imported without it. A Python that has no Rolltape refuses to train untaped.
"""

import importlib.abc
import os
import sys

_FRAMEWORKS = ("trl", "slime", "miles")


class _Refuse(importlib.abc.MetaPathFinder):
    """Where Rolltape is missing: a framework that is to be taped cannot be imported."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname in _FRAMEWORKS:
            raise ImportError(
                f"rolltape run: {sys.executable} has no Rolltape: nothing that {fullname} generates would be "
                "on the tape; install it there: pip install rolltape"
            )


def _give_way() -> None:
    """Import the next ``sitecustomize`` on the path, if there is one."""
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.realpath(folder) != here]
    ours = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, ours)


try:
    from rolltape.integrations.unedited import start
except ImportError:
    sys.meta_path.insert(0, _Refuse())
else:
    start()
_give_way()
