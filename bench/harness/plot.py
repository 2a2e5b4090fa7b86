"""Rows as a drawing: a group of horizontal bars for each case, each as long as its share of the
machine's limit. Made for a light and for a dark page."""

from xml.sax.saxutils import escape

from . import grids, published
from .published import NAMES

THEMES = {
    "light": {"ink": "#1f2328", "faint": "#59636e", "grid": "#d1d9e0",
              "ours": ("#0969da", "#54aeff", "#0a3069", "#80ccff"),
              "peers": {"torch": "#e8590c", "torch_math": "#f2b705", "onnxruntime": "#8c959f",
                        "openvino": "#bf3989", "ggml": "#1a7f37"}},
    "dark": {"ink": "#f0f6fc", "faint": "#9198a1", "grid": "#3d444d",
             "ours": ("#58a6ff", "#a5d6ff", "#1f6feb", "#cae8ff"),
             "peers": {"torch": "#f0883e", "torch_math": "#e3b341", "onnxruntime": "#8b949e",
                       "openvino": "#db61a2", "ggml": "#3fb950"}},
}
BAR, GAP, GROUP_GAP, LEFT, WIDTH, RIGHT, TOP = 12, 2, 14, 262, 430, 128, 84
WITHOUT_RATE = {"WRONG": "wrong result", "refused": "does not run this case",
                "missing": "not measured"}
FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"


def colours(rows, theme):
    """{name: colour} in the order of the columns."""
    names = dict.fromkeys(name for row in rows for name in row["entries"])
    ours = [name for name in names if name not in theme["peers"]]
    return {name: theme["peers"].get(name) or
            theme["ours"][ours.index(name) % len(theme["ours"])] for name in names}


def text(x, y, words, colour, size=12, anchor="start", weight="normal"):
    return (f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' font-weight='{weight}' "
            f"text-anchor='{anchor}' fill='{colour}' {FONT}>{escape(words)}</text>")


def bar(y, entry, unit, colour, theme):
    """One bar with its rate, or the reason why there is none."""
    if "rate" not in entry:
        return [text(LEFT + 5, y + BAR - 2, WITHOUT_RATE[entry["verdict"]], theme["faint"], 10)]
    length = min(entry["share"], 1.1) * WIDTH
    words = f"{entry['rate']:.{0 if entry['rate'] >= 100 else 1}f} {unit}"
    return [f"<rect x='{LEFT}' y='{y}' width='{length:.1f}' height='{BAR}' fill='{colour}'/>",
            text(LEFT + length + 5, y + BAR - 2, words, theme["faint"], 10)]


def group(y, row, palette, theme):
    """A case: its title, and a bar for each library."""
    middle = y + len(row["entries"]) * (BAR + GAP) / 2
    title = grids.TITLES.get(row["case"])
    parts = [text(LEFT - 10, middle + (-2 if title else 4), title or row["case"], theme["ink"], 12,
                  "end")]
    if title:
        parts.append(text(LEFT - 10, middle + 12, row["case"], theme["faint"], 9, "end"))
    for name, entry in row["entries"].items():
        parts += bar(y, entry, row["unit"], palette[name], theme)
        y += BAR + GAP
    return parts


def legend(palette, theme):
    parts, x = [], 12
    for name, colour in palette.items():
        words = NAMES.get(name, name)
        parts += [f"<rect x='{x}' y='50' width='12' height='12' fill='{colour}'/>",
                  text(x + 17, 60, words, theme["ink"], 12,
                       weight="bold" if name not in NAMES else "normal")]
        x += 36 + 7 * len(words)
    return parts


def axis(bottom, theme):
    parts = []
    for tenth in range(0, 11, 2):
        x = LEFT + WIDTH * tenth / 10
        parts += [f"<line x1='{x:.1f}' y1='{TOP - 8}' x2='{x:.1f}' y2='{bottom}' "
                  f"stroke='{theme['grid']}'/>",
                  text(x, bottom + 15, f"{10 * tenth} %", theme["faint"], 10, "middle")]
    return parts


def draw(rows, title, footer, theme_name):
    """The SVG document. A row is as published.py has it; `footer` is a list of lines."""
    theme = THEMES[theme_name]
    palette, body, y = colours(rows, theme), [], TOP
    for row in rows:
        body += group(y, row, palette, theme)
        y += len(row["entries"]) * (BAR + GAP) + GROUP_GAP
    width, height = LEFT + WIDTH + RIGHT, y + 34 + 15 * len(footer)
    head = [f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
            f"viewBox='0 0 {width} {height}'>",
            text(12, 22, title, theme["ink"], 16, weight="bold"),
            text(12, 40, "Share of this machine's multiply-add peak (one token: of its memory "
                 "bandwidth) in the same round. Longer is faster.", theme["faint"])]
    below = [text(12, y + 36 + 15 * i, line, theme["faint"], 10) for i, line in enumerate(footer)]
    return "\n".join([*head, *legend(palette, theme), *axis(y, theme), *body, *below,
                      "</svg>"]) + "\n"


def headline(file):
    """{theme: SVG} of the README's cases on one machine."""
    found = published.find(file, list(grids.TITLES))
    missing = {"verdict": "missing"}
    return _in_themes(file, [
        (row | {"entries": {name: row["entries"].get(name, missing) for name in grids.PEERS}}, run)
        for row, run in found])


def whole_grid(file, grid):
    """{theme: SVG} of every case of a grid that was measured on the machine."""
    run = file["grids"][grid]
    return _in_themes(file, [(row, run) for row in run["rows"]])


def _in_themes(file, found):
    rows, title = [row for row, _ in found], f"Attention on one CPU ({file['machine']})"
    footer = published.footer(file, found)
    return {theme: draw(rows, title, footer, theme) for theme in THEMES}
