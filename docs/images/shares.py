"""Draws docs/images/shares.svg: shares of two updates over three devices. `python docs/images/shares.py` writes it."""

from __future__ import annotations

from pathlib import Path

WIDTH, LEFT, TOP, ROW, HEIGHT = 900, 150, 64, 52, 34
COLOURS = {"share": "#4c78a8", "sum": "#f2f2f2", "update": "#e45756", "parameters": "#72b7b2"}
# Row, first and last position, kind, text. Rows: three devices, then where shares are combined.
BARS = (
    (0, 0, 90, "share", "share 0"),
    (0, 90, 180, "share", "share 3"),
    (0, 180, 270, "share", "share 5"),
    (0, 300, 345, "update", "update"),
    (0, 375, 465, "share", "share 0"),
    (0, 465, 555, "share", "share 3"),
    (0, 555, 645, "share", "share 5"),
    (0, 675, 720, "update", "update"),
    (1, 0, 100, "share", "share 1"),
    (1, 100, 200, "share", "share 4"),
    (1, 345, 375, "parameters", ""),
    (1, 375, 475, "share", "share 1"),
    (1, 475, 575, "share", "share 4"),
    (2, 0, 250, "share", "share 2, on a slower device"),
    (2, 345, 375, "parameters", ""),
    (2, 375, 625, "share", "share 2"),
    (3, 90, 300, "sum", "0 + 1 + 2 + 3 + 4 + 5, in this order"),
    (3, 465, 675, "sum", "0 + 1 + 2 + 3 + 4 + 5"),
)
ROWS = ("host", "host", "qemu:riscv32", "combined here")


def picture() -> str:
    height = TOP + ROW * len(ROWS) + 58
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="13" role="img" aria-label="Two updates of six shares over three devices">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="28">update 1 of 6 shares</text>',
        f'<text x="{LEFT + 375}" y="28">update 2: only what changed was sent before it</text>',
    ]
    for row, name in enumerate(ROWS):
        y = TOP + ROW * row
        parts.append(f'<text x="12" y="{y + 22}">{name}</text>')
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 12}" y1="{y + 42}" y2="{y + 42}" stroke="#dddddd"/>')
    for row, start, stop, kind, text in BARS:
        x, y, width = LEFT + start, TOP + ROW * row, stop - start - 2
        dark = kind in ("share", "update")
        parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{HEIGHT}" rx="3" fill="{COLOURS[kind]}" stroke="#555555"/>'
        )
        if text:
            parts.append(
                f'<text x="{x + width / 2:g}" y="{y + 22}" text-anchor="middle" fill="{"white" if dark else "black"}" '
                f'font-size="12">{text}</text>'
            )
    y = TOP + ROW * len(ROWS) + 28
    legend = (
        ("share", "samples there; gradients and loss back"),
        ("update", "sum of gradients there"),
        ("parameters", "changed parameters there"),
    )
    x = LEFT - 138
    for kind, text in legend:
        parts.append(f'<rect x="{x}" y="{y - 12}" width="16" height="16" fill="{COLOURS[kind]}" stroke="#555555"/>')
        parts.append(f'<text x="{x + 24}" y="{y + 1}">{text}</text>')
        x += 60 + 7 * len(text)
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_name("shares.svg").write_text(picture(), encoding="utf-8")
