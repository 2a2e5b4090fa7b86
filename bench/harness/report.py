"""Rows as text: for a terminal, for a document, and against the bars."""

from . import bars
from .cases import parse_case


def cell(case, entry):
    """"123.4 (0.82)": GFLOP/s (GB/s of K and V for decode) and the share of the limit."""
    if entry["verdict"] == "refused":
        return "-"
    if entry["verdict"] == "WRONG":
        return f"WRONG ({entry['error']:.1e})"
    rate = entry["gflops"]
    if case.decode:
        rate = case.kv_bytes / entry["milliseconds"] / 1e6
    return f"{rate:.1f} ({entry['share']:.2f})"


def comparison(row):
    """What the row says about regard in one phrase."""
    if row["speedup"] is not None:
        return f"{row['speedup']:.2f}x, the peak {row['peak_speedup']:.2f}x"
    found = row["ratios"]
    if not found:
        return ""
    several = len(found) > 1
    texts = [(f"{name.partition(':')[2] or name} " if several else "") + f"{ratio:.2f}x"
             for name, ratio in found.items()]
    return ", ".join(texts) + f" ({row['best_peer']})"


def line(row):
    case = parse_case(row["case"])
    cells = "  ".join(f"{name} {cell(case, entry)}" for name, entry in row["entries"].items())
    return f"{row['case']:44s} {cells}  {comparison(row)}  [{row['cpu']}]"


def reasons(row):
    """A line for each who did not take part."""
    return [f"{'':4s}{name}: {entry['reason']}" for name, entry in row["entries"].items()
            if entry["verdict"] == "refused"]


def markdown(rows, settings):
    """Tables for a document, one for each set of columns, after a line that says what is in it."""
    lines = [f"GFLOP/s (share of the machine's limit); medians of {settings}. The limit is the "
             "multiply-add rate of the same round, for decode read bandwidth in GB/s."]
    columns = None
    for row in rows:
        if list(row["entries"]) != columns:
            columns = list(row["entries"])
            head = ["case", *columns, "2 threads over 1" if row["speedup"] else "regard over best"]
            head.append("CPU")
            lines += ["", _table_line(head), "|" + "---|" * len(head)]
        case = parse_case(row["case"])
        cells = [cell(case, entry) for entry in row["entries"].values()]
        lines.append(_table_line([row["case"], *cells, comparison(row), row["cpu"]]))
    return "\n".join(lines) + "\n"


def _table_line(cells):
    return "| " + " | ".join(cells) + " |"


def bar_lines(rows):
    """Each bar that the rows say something about, the count, and the cases they leave out."""
    found = bars.verdicts(rows)
    met = sum(verdict.met for verdict in found)
    left_out = [f"no flash result for {case}" for case in bars.missing(rows)]
    return [*map(str, found), *left_out, f"{met} of {len(found)} bars met"]
