"""Makes the pictures of docs/viewer.md and docs/verify.md, of the runs that tools/viewer_runs.py makes.

    python tools/viewer_pictures.py FOLDER docs/images       in the environment of the stack `viewer`

Needs Chromium. Each page is taken in light and in dark, two of them on a phone as well; and the terminal
and the page of `rolltape diff`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.many_runs import browser  # noqa: E402
from rolltape.reader.tokenizer import load_tokenizer  # noqa: E402
from rolltape.viewer.library import Library  # noqa: E402
from tests.viewer.serving import serve, settled  # noqa: E402

PAGES = {
    "run": "/t/0",
    "step": "/t/0/train/rollout/6",
    "sample": "/t/0/train/rollout/6/5",
    "prompt": "/asked/0/train/rollout/6/5",
    "compare": "/c/0/1",
    "compare-step": "/c/0/1/train/rollout/0",
    "compare-sample": "/c/0/1/train/rollout/0/0",
}
NARROW = {"narrow": "step", "narrow-compare": "compare"}


def main(folder: Path, images: Path) -> None:
    images = images.absolute()
    os.chdir(folder.parent)  # a page says where its tape is
    folder = Path(folder.name)
    decode = load_tokenizer(str(folder / "tokenizer"))
    library = Library([str(folder / "base"), str(folder / "bug")], decode)
    with serve(library) as address, browser() as chromium:
        for name, place in PAGES.items():
            for scheme in ("light", "dark"):
                page = opened(chromium, address + place, (1280, 800), scheme)
                if "sample" in name:
                    page.locator('.tokens[data-side="response"] .tok').nth(4).hover()
                page.screenshot(path=images / f"viewer-{name}-{scheme}.png")
                page.context.close()
        for name, of in NARROW.items():
            page = opened(chromium, address + PAGES[of], (400, 800), "light")
            page.screenshot(path=images / f"viewer-{name}.png")
            page.context.close()
    drawn = asyncio.run(terminal(str(folder / "base"), decode))
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 1100, "height": 700})
        page.set_content(drawn)
        page.locator("svg").first.screenshot(path=images / "browse.png")
        report_page(chromium, folder, images / "diff-page.png")
    # Few colours take few bytes.
    for file in (images / "browse.png", images / "diff-page.png", *images.glob("viewer-*.png")):
        Image.open(file).convert("RGB").quantize(96).save(file, optimize=True)


def opened(chromium: Chromium, address: str, size: tuple[int, int], scheme: Any) -> Page:
    """A page that has all it asks for."""
    shape: Any = {"width": size[0], "height": size[1]}
    page = chromium.new_context(viewport=shape, color_scheme=scheme).new_page()
    page.goto(address)
    settled(page)
    return page


def report_page(chromium: Chromium, folder: Path, image: Path) -> None:
    """The page of `rolltape diff --html`, all of it."""
    with tempfile.TemporaryDirectory() as scratch:
        html = Path(scratch) / "report.html"
        words = ["diff", str(folder / "base"), str(folder / "bug"), "--tokenizer", str(folder / "tokenizer")]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, "-m", "rolltape", *words, "--html", str(html)]
        subprocess.run(command, env=env, capture_output=True)
        html.write_text(html.read_text("utf-8").replace(f"{Path.cwd()}/", ""), "utf-8")
        page = chromium.new_page(viewport={"width": 1000, "height": 800})
        page.goto(html.as_uri())
        page.screenshot(path=image, full_page=True)


async def terminal(tape: str, decode: Any) -> str:
    """A sample in `rolltape browse`, as SVG."""
    from rolltape.viewer.terminal import Browser

    app = Browser(Library([tape], decode), "train", None)
    async with app.run_test(size=(110, 32)) as pilot:
        await pilot.press("j", "enter")
        await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        return str(app.export_screenshot())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
