"""Rows as text for a terminal, and against the targets."""

from . import targets, results
from .cases import parse_case


def unit_of(row):
    """The grid's unit, else GB/s of K and V for decode, GFLOP/s for all others."""
    return row.get("unit") or ("GB/s" if parse_case(row["case"]).decode else "GFLOP/s")


def rate(row, entry):
    """(value, unit) of a cell."""
    case, unit = results.case_of(parse_case(row["case"]), entry), unit_of(row)
    if unit == "us":
        return entry["milliseconds"] * 1e3, unit
    work = case.kv_bytes if unit == "GB/s" else case.flops
    return work / entry["milliseconds"] / 1e6, unit


def cell(row, entry):
    """"123.4 (0.82)": the rate and the share of the limit; "12.3 us" where times are compared."""
    if entry["verdict"] == "refused":
        return "-"
    if entry["verdict"] == "WRONG":
        return f"WRONG ({entry['error']:.1e})"
    value, unit = rate(row, entry)
    return f"{value:.1f} us" if unit == "us" else f"{value:.1f} ({entry['share']:.2f})"


def comparison(row):
    """What the row says about regard in one phrase."""
    if row["speedup"] is not None:
        return f"{row['speedup']:.2f}x, the peak {row['peak_speedup']:.2f}x"
    found = row["ratios"]
    several = len(found) > 1
    texts = [(f"{name.partition(':')[2] or name} " if several else "") + f"{ratio:.2f}x"
             for name, ratio in found.items()]
    phrases = [", ".join(texts) + f" ({row['best_peer']})"] if found else []
    if row.get("over_one_query"):
        phrases.append(f"{row['over_one_query']:.2f}x the time of sq1")
    return ", ".join(phrases)


def line(row):
    cells = "  ".join(f"{name} {cell(row, entry)}" for name, entry in row["entries"].items())
    return f"{row['case']:44s} {cells}  {comparison(row)}  [{row['cpu']}]"


def reasons(row):
    """A line for each who did not take part."""
    return [f"{'':4s}{name}: {entry['reason']}" for name, entry in row["entries"].items()
            if entry["verdict"] == "refused"]


def target_lines(rows):
    """Each target that the rows say something about, the count, and the cases they leave out."""
    found = targets.verdicts(rows)
    met = sum(verdict.met for verdict in found)
    left_out = [f"no result for {case}" for case in targets.missing(rows)]
    return [*map(str, found), *left_out, f"{met} of {len(found)} targets met"]
