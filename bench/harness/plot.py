"""Rows as a drawing: a group of horizontal bars a case, each as long as its share of the limit."""

from xml.sax.saxutils import escape

from . import report

# Okabe and Ito's colours, told apart by most people; regard's entries come last and are blue first.
PEER_COLOURS = {"torch": "#e69f00", "torch_math": "#f0e442", "onnxruntime": "#999999",
                "openvino": "#cc79a7", "ggml": "#d55e00"}
OUR_COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#000000")
BAR, GAP, GROUP_GAP, LEFT, WIDTH, RIGHT, TOP = 11, 2, 10, 270, 520, 110, 74
STYLE = "font-family='DejaVu Sans, Verdana, sans-serif'"


def colours(rows):
    """{name: colour} in the order of the columns."""
    names = dict.fromkeys(name for row in rows for name in row["entries"])
    found, ours = {}, 0
    for name in names:
        if name in PEER_COLOURS:
            found[name] = PEER_COLOURS[name]
        else:
            found[name] = OUR_COLOURS[ours % len(OUR_COLOURS)]
            ours += 1
    return found


def text(x, y, words, size=11, anchor="start", colour="#222"):
    return (f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' text-anchor='{anchor}' "
            f"fill='{colour}' {STYLE}>{escape(words)}</text>")


def bar(y, name, row, entry, colour):
    """One bar with its rate, or the reason's place where there is none."""
    if entry["verdict"] != "ok":
        word = "WRONG" if entry["verdict"] == "WRONG" else "not run"
        return [text(LEFT + 4, y + BAR - 2, f"{name}: {word}", 9, colour="#888")]
    length = min(entry["share"], 1.05) * WIDTH
    value, unit = report.rate(row, entry)
    shown = f"{value:.0f} {unit} ({entry['share']:.2f})"
    return [f"<rect x='{LEFT}' y='{y}' width='{length:.1f}' height='{BAR}' fill='{colour}'/>",
            text(LEFT + length + 4, y + BAR - 2, shown, 9)]


def draw(rows, title):
    """The SVG document."""
    palette = colours(rows)
    body, y = [], TOP
    for row in rows:
        height = len(row["entries"]) * (BAR + GAP)
        body.append(text(LEFT - 8, y + height / 2 + 4, row["case"], 11, "end"))
        for name, entry in row["entries"].items():
            body += bar(y, name, row, entry, palette[name])
            y += BAR + GAP
        y += GROUP_GAP
    height, width = y + 30, LEFT + WIDTH + RIGHT
    cpus = ", ".join(dict.fromkeys(row["cpu"] for row in rows))
    head = [f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
            f"viewBox='0 0 {width} {height}'>",
            f"<rect width='{width}' height='{height}' fill='white'/>",
            text(12, 22, title, 15), text(12, 40, f"share of the limit of the same round; {cpus}")]
    x = 12
    for name, colour in palette.items():
        head += [f"<rect x='{x}' y='50' width='11' height='11' fill='{colour}'/>",
                 text(x + 15, 60, name)]
        x += 30 + 7 * len(name)
    for tenth in range(0, 11, 2):
        at = LEFT + WIDTH * tenth / 10
        head += [f"<line x1='{at}' y1='{TOP - 6}' x2='{at}' y2='{y}' stroke='#ddd'/>",
                 text(at, y + 14, f"{tenth / 10:.1f}", 10, "middle")]
    return "\n".join([*head, *body, "</svg>"]) + "\n"
