"""What the documentation site has beside docs/: pages made of README.md and the like; docstrings as Markdown.

mkdocs.yml names this file twice: as a hook of MkDocs, and as the extension of griffe that reads docstrings.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""File at the root of the clone -> page of the site."""

log = logging.getLogger("mkdocs.hooks.site")

_LOST_LIST = re.compile(r"<p>(?:(?!</p>).)*\n- ", re.DOTALL)
_ROLE = re.compile(r":(?:func|meth|class|mod|attr|data):(?=`)")
_PROMPT = re.compile(r"(?m)^>>> ")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=relinked(text)))
    return files


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Warn, and so fail a strict build, where a list has become part of the paragraph above it."""
    if _LOST_LIST.search(html):
        log.warning("%s has a list that needs an empty line before it", page.file.src_uri)


def relinked(text: str) -> str:
    """The text of a file at the root, with links as they are in docs/.

    >>> relinked("[a](docs/tape.md#modes) [b](CHANGELOG.md) [c](https://example.com)")
    '[a](tape.md#modes) [b](changelog.md) [c](https://example.com)'
    """
    text = text.replace("](docs/", "](")
    for source, page in PAGES.items():
        text = text.replace(f"]({source}", f"]({page}")
    return text


class Docstrings(griffe.Extension):
    """Docstrings as Markdown: examples become code blocks, roles plain code; options list their words."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        if cls.docstring is not None and "NamedOption" in map(str, cls.bases):
            words = [f"`{one.value}`" for one in cls.members.values() if one.is_attribute]
            cls.docstring.value += f"\n\nOne of {', '.join(words)}."


def as_markdown(docstring: str) -> str:
    """Fence every doctest and take away the names of roles.

    >>> print(as_markdown("See :func:`f`.\\n\\n>>> 1 + 1\\n2"))
    See `f`.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    paragraphs = _ROLE.sub("", docstring).split("\n\n")
    return "\n\n".join(f"```pycon\n{p}\n```" if _PROMPT.search(p) else p for p in paragraphs)
