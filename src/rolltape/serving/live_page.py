"""The page that shows what the server does, while it does it. It loads nothing, and asks nobody else."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path


def _read(name: str) -> str:
    return (Path(__file__).parent / "page" / name).read_text(encoding="utf-8")


def _allowed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_STYLE, _SCRIPT = _read("live.css"), _read("live.js")

POLICY = (
    f"default-src 'none'; connect-src 'self'; script-src {_allowed(_SCRIPT)}; style-src {_allowed(_STYLE)}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What the page may do: ask this server, and nothing else."""

PAGE = _read("live.html").replace("{{style}}", _STYLE).replace("{{script}}", _SCRIPT)
