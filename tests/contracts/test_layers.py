"""Imports go downwards only. import-linter sees those that are statements; here are those that are texts."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "rolltape"
NAME = re.compile(r"rolltape(\.[a-z_][a-z_0-9]*)+(:[A-Za-z_]\w*)?")


def layers() -> list[set[str]]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return [{part.strip() for part in layer.split("|")} for layer in contracts[0]["layers"]]


def texts(path: Path) -> list[str]:
    """The texts in a file that name a module of ours, docstrings left out."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and node.body
            and isinstance(node.body[0], ast.Expr)}  # fmt: skip
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
        and NAME.fullmatch(node.value)
    ]  # fmt: skip


def level(module: str) -> int:
    top = module.split(".")[1]
    return next(at for at, layer in enumerate(layers()) if top in layer)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_text_names_a_module_above(path: Path) -> None:
    if path.parent == SOURCE and path.name in ("__init__.py", "__main__.py"):
        return  # the front door, which knows where everything is
    own = "rolltape." + ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for text in texts(path):
        top = text.split(".")[1]
        if any(top in layer for layer in layers()):  # else a group of entry points, or a setting
            assert level(text) >= level(own), f"{own} names {text}, which lies above it"


def test_every_file_has_a_layer() -> None:
    known = set().union(*layers()) | {"__init__", "__main__"}
    assert {path.stem for path in SOURCE.glob("*.py")} | {
        path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()
    } <= known


def test_no_file_name_means_two_things() -> None:
    """Names that several folders use, each for its own kind of the same thing."""
    allowed = {"__init__.py", "__main__.py", "install.py", "run.py"}
    names = [path.name for path in SOURCE.rglob("*.py") if path.name not in allowed]
    assert sorted({name for name in names if names.count(name) > 1}) == []
