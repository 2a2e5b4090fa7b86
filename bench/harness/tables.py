"""Published results as Markdown: a row for each case and machine."""

from .published import NAMES

VERDICTS = {"WRONG": "wrong result", "refused": "-"}


def own_cell(row, name):
    """"467 (0.88)": the rate and the share of the machine's limit; a time has no share."""
    entry = row["entries"][name]
    if "rate" not in entry:
        return VERDICTS[entry["verdict"]]
    digits = 0 if entry["rate"] >= 100 else 1
    rate = f"{entry['rate']:.{digits}f}"
    return rate if row["unit"] == "us" else f"{rate} ({entry['share']:.2f})"


def peer_cell(row, name, peer):
    """"3.10": how many times faster regard's entry `name` is than `peer`."""
    if peer not in row["entries"]:
        return "-"
    ratio = row["over"].get(name, {}).get(peer)
    if ratio is None:
        return VERDICTS[row["entries"][peer].get("verdict", "refused")]
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2f}"


def line(cells):
    return "| " + " | ".join(cells) + " |"


def columns(rows):
    """(regard's entries, the other libraries) of the rows, in order."""
    names = list(dict.fromkeys(name for row in rows for name in row["entries"]))
    return [n for n in names if n not in NAMES], [n for n in names if n in NAMES]


def markdown(files, grid):
    """The table of a grid on all machines that it was measured on."""
    measured = [file for file in files if grid in file["grids"]]
    rows_of = {file["machine"]: file["grids"][grid]["rows"] for file in measured}
    every = [row for rows in rows_of.values() for row in rows]
    ours, peers = columns(every)
    main = "regard" if "regard" in ours else ours[-1]  # whose speed is compared
    units = list(dict.fromkeys(row["unit"] for row in every))
    head = ["case", "machine", *(f"{name}, {' or '.join(units)}" for name in ours),
            *(f"over {NAMES[peer]}" for peer in peers)]
    lines = [line(head), "|" + "---|" * len(head)]
    for case in dict.fromkeys(row["case"] for row in every):
        title = f"`{case}`"
        for machine, rows in rows_of.items():
            for row in rows:
                if row["case"] != case:
                    continue
                cells = [own_cell(row, name) if name in row["entries"] else "-" for name in ours]
                cells += [peer_cell(row, main, peer) for peer in peers]
                lines.append(line([title, machine, *cells]))
                title = ""
    return "\n".join(lines) + "\n"
