"""Makes the pictures of the demo that the README shows, from one real run of it.

    python tools/record_demo.py docs/images

Runs in the environment of `make demo`, and needs chromium on the PATH: the terminal is drawn by rich, the
page by the browser.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from rolltape.cli import app, demo
from rolltape.cli.output import Screen

WIDTH = 104


class Recorded(Screen):
    """A terminal of a fixed width that remembers what it showed."""

    made: ClassVar[list[Recorded]] = []

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.record = True
        self._force_terminal = True
        self._width = WIDTH
        Recorded.made.append(self)


def main(images: Path) -> None:
    images.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.gettempdir()) / "rolltape-demo"
    shutil.rmtree(folder, ignore_errors=True)
    demo.Screen = Recorded  # type: ignore[misc]
    demo._alias = lambda: None  # type: ignore[assignment]
    try:
        app.main(["demo", "--dir", str(folder)])
    except SystemExit as done:
        if done.code:
            raise
    Recorded.made[0].save_svg(str(images / "demo.svg"), title="rolltape demo")
    picture = images / "demo-page.png"
    flags = "--headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=960,1080".split()
    subprocess.run(
        ["chromium", *flags, f"--screenshot={picture}", (folder / "demo.html").as_uri()],
        check=True,
        capture_output=True,
    )
    print(f"wrote {images / 'demo.svg'} and {picture}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
