"""Lines over two logarithmic axes as a drawing, for a light and for a dark page."""

import math

from .plot import THEMES, text

LEFT, RIGHT, TOP, WIDTH, HEIGHT, BOTTOM = 74, 118, 64, 480, 250, 62
DASHES = ("", "7 4", "2 3", "9 3 2 3")


def _ticks(low, high):
    """Powers of ten, or of two where the axis has few of them."""
    tens = [10.0 ** e for e in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)]
    if len(tens) >= 3:
        return tens
    return [2.0 ** e for e in range(math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9) + 1)]


def draw(lines, title, axes, theme_name):
    """The SVG document. lines: {name: [(x, y)]}, all positive; axes: ((title, words of a number), the same of y)."""
    theme = THEMES[theme_name]
    colours = (theme["ours"][0], *theme["peers"].values())
    points = [point for line in lines.values() for point in line]
    low, high = ([pick(p[n] for p in points) for n in (0, 1)] for pick in (min, max))

    def place(x, y):
        across = math.log(x / low[0]) / math.log(high[0] / low[0])
        up = math.log(y / low[1]) / math.log(high[1] / low[1])
        return LEFT + across * WIDTH, TOP + (1 - up) * HEIGHT

    parts = [text(12, 22, title, theme["ink"], 16, weight="bold"), text(12, 46, axes[1][0], theme["faint"])]
    for x in _ticks(low[0], high[0]):
        at = place(x, low[1])[0]
        parts += [f"<line x1='{at:.1f}' y1='{TOP}' x2='{at:.1f}' y2='{TOP + HEIGHT}' stroke='{theme['grid']}'/>",
                  text(at, TOP + HEIGHT + 16, axes[0][1](x), theme["faint"], 10, "middle")]
    for y in _ticks(low[1], high[1]):
        at = place(low[0], y)[1]
        parts += [f"<line x1='{LEFT}' y1='{at:.1f}' x2='{LEFT + WIDTH}' y2='{at:.1f}' stroke='{theme['grid']}'/>",
                  text(LEFT - 6, at + 4, axes[1][1](y), theme["faint"], 10, "end")]
    parts.append(text(LEFT + WIDTH / 2, TOP + HEIGHT + 38, axes[0][0], theme["faint"], 12, "middle"))
    taken = []
    for n, (name, line) in enumerate(lines.items()):
        placed = [place(*point) for point in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colours[n]}' stroke-width='2' "
                     f"stroke-dasharray='{DASHES[n % len(DASHES)]}'/>")
        x, y = placed[-1]
        while any(abs(y - other) < 14 and abs(x - where) < 100 for where, other in taken):
            y += 14
        taken.append((x, y))
        parts.append(text(x + 6, y + 4, name, colours[n], 12))
    width, height = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM
    return "\n".join([f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
                      f"viewBox='0 0 {width} {height}'>", *parts, "</svg>"]) + "\n"
