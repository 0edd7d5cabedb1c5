"""Check that a tag is what it says it is, and print what changed: the notes of the release.

    python3 tools/release.py v0.2.0        exit code 1 if the tag, the version and the changelog do not agree

Standard library only.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version(root: Path = ROOT) -> str:
    """What the package calls itself."""
    text = (root / "src" / "rolltape" / "_version.py").read_text(encoding="utf-8")
    found = re.search(r'__version__ = "([^"]+)"', text)
    if found is None:
        raise SystemExit("src/rolltape/_version.py names no version")
    return found[1]


def notes(changelog: str, version: str) -> str:
    """The section of that version; empty if there is none.

    >>> notes("## [Unreleased]\\n\\n## [0.2.0] - 2027-01-31\\n\\n- New.\\n\\n## [0.1.0]\\n", "0.2.0")
    '- New.'
    """
    heading = rf"^## \[{re.escape(version)}\][^\n]*\n"
    found = re.search(rf"{heading}(.*?)(?=^## |^\[|\Z)", changelog, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def main(tag: str) -> int:
    if tag != f"v{version()}":
        print(f"the tag is {tag}, and src/rolltape/_version.py says {version()}", file=sys.stderr)
        return 1
    text = notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version())
    if not text:
        print(f"CHANGELOG.md has no section [{version()}], or nothing in it", file=sys.stderr)
        return 1
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
