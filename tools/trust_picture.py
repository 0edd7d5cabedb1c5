"""Draws what ``rolltape trust --json`` says of a run: drift and floor over steps, and the strip of verdicts.

rolltape trust runs/lr2 --json | python tools/trust_picture.py > docs/images/trust.svg
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

WIDTH, HEIGHT, LEFT, TOP, STRIP = 720, 300, 70, 30, 22
COLOURS = {
    "exact": "#1a7f37", "within noise": "#6fb583", "correctable": "#d4a72c", "plumbing only": "#cf222e",
    "cannot tell": "#8250df",
}  # fmt: skip


def picture(document: dict[str, Any]) -> str:
    """The SVG."""
    steps = document["steps"]
    bottom, wide = HEIGHT - 70, WIDTH - LEFT - 150
    values = [v for one in steps for v in (one["drift_k2"], one["floor_k2"]) if v]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def x(at: int) -> float:
        return LEFT + (at + 0.5) * wide / len(steps)

    def y(value: float) -> float:
        return bottom - (math.log10(value) - low) / (high - low) * (bottom - TOP)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for power in range(low, high + 1, max((high - low) // 5, 1)):
        at = y(10.0**power)
        out.append(f'<line x1="{LEFT}" x2="{LEFT + wide}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e4e4e4"/>')
        out.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end" fill="#57606a">1e{power}</text>')
    for name, colour, label in (("floor_k2", "#57606a", "floor (noise)"), ("drift_k2", "#0969da", "drift")):
        known = [(x(at), y(one[name])) for at, one in enumerate(steps) if one[name]]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in known)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{colour}"/>' for a, b in known]
        last = known[-1]
        out.append(f'<text x="{LEFT + wide + 10}" y="{last[1] + 4:.1f}" fill="{colour}">{label}, k2</text>')
    for at, one in enumerate(steps):
        box = wide / len(steps)
        out.append(
            f'<rect x="{LEFT + at * box:.1f}" y="{bottom + 12}" width="{box - 2:.1f}" height="{STRIP}" '
            f'fill="{COLOURS[one["verdict"]]}"><title>step {one["step"]}: {one["verdict"]}</title></rect>'
        )
        middle = f'x="{x(at):.1f}" y="{bottom + 50}" text-anchor="middle"'
        out.append(f'<text {middle} fill="#57606a">{one["step"]}</text>')
    for at, verdict in enumerate(dict.fromkeys(one["verdict"] for one in steps)):
        top = bottom + 12 + 18 * at
        out.append(
            f'<rect x="{LEFT + wide + 10}" y="{top}" width="12" height="12" fill="{COLOURS[verdict]}"/>'
        )
        out.append(f'<text x="{LEFT + wide + 28}" y="{top + 11}" fill="#24292f">{verdict}</text>')
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    sys.stdout.write(picture(json.load(sys.stdin)))
