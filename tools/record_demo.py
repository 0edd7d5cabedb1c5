"""Makes the pictures of the demo that the README shows, from one real run of it.

    python tools/record_demo.py docs/images

Runs in the environment of `make demo`, and needs chromium on the PATH: the terminal is drawn by rich, the
page by the browser.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from rolltape.cli import main as rolltape
from rolltape.cli.commands import demo
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
        rolltape(["demo", "--dir", str(folder)])
    except SystemExit as done:
        if done.code:
            raise
    drawn = Recorded.made[0].export_svg(title="rolltape demo")
    drawn = re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)  # fonts from a network
    (images / "demo.svg").write_text(drawn, encoding="utf-8")
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
