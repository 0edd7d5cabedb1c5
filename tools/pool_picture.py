"""Trains offline on the samples of a tape, with and without importance weights, and draws the rewards.

    python -m rolltape.examples.grpo --dir runs/base --mode record --steps 30
    python tools/pool_picture.py runs/base > docs/images/pool.svg

What is drawn is the mean reward of what the model generates after every few updates; numbers go to stderr.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

import rolltape
from rolltape.examples.grpo.model import make_model
from rolltape.examples.grpo.offline import Options, Update, evaluate, train

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 720, 320, 60, 20, 270, 540
EVERY, EPOCHS = 5, 4


def curve(pool: rolltape.Pool, weights: bool) -> list[tuple[int, float]]:
    """The mean reward of what is generated, before the first update and after every few."""
    options = Options(epochs=EPOCHS, weights=weights)
    found = [(0, evaluate(make_model(options.seed), prompts=64))]

    def look(update: Update, model: Any) -> None:
        if update.update % EVERY == 0:
            found.append((update.update, evaluate(model, prompts=64)))
            print(f"weights {weights} update {update.update} reward {found[-1][1]:.4f}", file=sys.stderr)

    train(options, pool, look)
    return found


def picture(curves: dict[str, tuple[str, list[tuple[int, float]]]], level: float) -> str:
    """The SVG: curves by name and colour, and the mean reward of the samples as a level."""
    last = max(at for _, points in curves.values() for at, _ in points)
    top = max(0.6, *(value for _, points in curves.values() for _, value in points))

    def x(at: float) -> float:
        return LEFT + at / last * (RIGHT - LEFT)

    def y(value: float) -> float:
        return BOTTOM - value / top * (BOTTOM - TOP)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for tenth in range(0, int(top * 10) + 1):
        at = y(tenth / 10)
        out.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e4e4e4"/>')
        out.append(
            f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end" fill="#57606a">{tenth / 10}</text>'
        )
    for at in range(0, last + 1, 20):
        out.append(f'<text x="{x(at):.1f}" y="{BOTTOM + 18}" text-anchor="middle" fill="#57606a">{at}</text>')
    out.append(f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 38}" text-anchor="middle">updates</text>')
    out.append(
        f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y(level):.1f}" y2="{y(level):.1f}" stroke="#57606a" '
        'stroke-dasharray="5 4"/>'
    )
    labels = [(y(level), "#57606a", "samples of the pool")]
    for name, (colour, points) in curves.items():
        line = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in points)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [
            f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}">'
            f"<title>update {at}: {value:.3f}</title></circle>"
            for at, value in points
        ]
        labels.append((y(points[-1][1]), colour, name))
    before = -100.0
    for at, colour, name in sorted(labels):  # none on top of another
        before = max(at, before + 16)
        out.append(f'<text x="{RIGHT + 10}" y="{before + 4:.1f}" fill="{colour}">{name}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> None:
    torch.set_num_threads(1)
    pool = rolltape.pool(sys.argv[1])
    curves = {
        "importance weights": ("#0969da", curve(pool, True)),
        "no weights": ("#cf222e", curve(pool, False)),
    }
    level = float(pool.facts["reward"].to_numpy(zero_copy_only=False).mean())
    print(f"{len(pool)} samples, mean reward {level:.4f}", file=sys.stderr)
    print(picture(curves, level), end="")


if __name__ == "__main__":
    main()
