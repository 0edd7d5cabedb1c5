"""The files that a page loads: our own scripts and style, and the library that draws its plots.

The library, uPlot, is not ours: building the package fetches it (`tools/plots.py`), and nothing but plots is
missing where that was not done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from importlib import resources

PLOT_SCRIPT, PLOT_STYLE = "uPlot.iife.min.js", "uPlot.min.css"
SCRIPTS = (
    "page.js", "plot.js", "heat.js", "save.js", "charts.js", "tables.js", "tokens.js", "samples.js",
    "viewer.js",
)  # fmt: skip
"""Ours, in the order in which they need each other."""
STYLES = ("viewer.css", "trust.css")
NO_PLOTS = (
    "Plots are left out: uPlot, which draws them, is not in this installation. "
    "Next: python tools/plots.py in a clone of Rolltape, or pip install --force-reinstall 'rolltape[view]'. "
    "The numbers are under “values”."
)


def load() -> dict[str, str]:
    """All files by name, in the order in which a page loads them."""
    folder = resources.files("rolltape.viewer").joinpath("static")
    library = {name: folder.joinpath("uplot").joinpath(name) for name in (PLOT_STYLE, PLOT_SCRIPT)}
    found = library if all(file.is_file() for file in library.values()) else {}
    found |= {name: folder.joinpath(name) for name in (*STYLES, *SCRIPTS)}
    return {name: file.read_text("utf-8") for name, file in found.items()}


def joined(files: dict[str, str]) -> tuple[str, str]:
    """All styles as one text, and all scripts: a page waits for two files, not for each of them."""
    style, script = (
        "\n".join(text for name, text in files.items() if name.endswith(end)) for end in (".css", ".js")
    )
    return style, script


def version(texts: Iterable[str]) -> str:
    """Stands for what these files are, in an address."""
    state = hashlib.blake2b(digest_size=8)
    for text in texts:
        state.update(text.encode())
    return state.hexdigest()


def notice(files: dict[str, str]) -> str:
    """What to tell whoever looks, if there is nothing to draw plots with."""
    return "" if PLOT_SCRIPT in files else NO_PLOTS
