"""A torch whose import ends the process, as a missing instruction does, and a Python that finds it."""

from __future__ import annotations

import sys
from pathlib import Path


def make_torch(folder: Path, survives: tuple[str | None, ...], *, then: str = "raise SystemExit") -> Path:
    """A folder with a torch in it that dies unless the limit for oneDNN is one of these; None is no limit."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(
        "import os, signal\n"
        f"if os.environ.get('ONEDNN_MAX_CPU_ISA') not in {survives!r}:\n"
        "    os.kill(os.getpid(), signal.SIGILL)\n"
        f"{then}\n"
    )
    return folder


def make_env(folder: Path, survives: tuple[str | None, ...], **options: str) -> Path:
    """A virtual environment, as far as anybody looks at it, which has such a torch."""
    packages = make_torch(folder / "packages", survives, **options)
    python = folder / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    log = folder / "asked"
    python.write_text(
        f'#!/bin/sh\necho asked >> "{log}"\nPYTHONPATH="{packages}" exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    return folder / "env"
