"""Medians of runs as they are kept in bench/results, one file for each machine. The tables of
docs/performance.md and the plots are made from these files, and tests hold them to it.

    {"schema_version": 1, "machine": "Zen 5", "cpu": ..., "setup": ...,
     "grids": {"forward": {"date": ..., "versions": {library: version}, "rows": [row, ...]}}}

A row is {"case", "unit", "entries": {name: {"rate", "share", "limit"} or {"verdict"}},
"over": {entry of regard: {other library: how many times faster regard is}}}.
"""

import json

from . import report, results

# The names that people use, by what the CPU says of itself.
MICROARCHITECTURES = {"family 25 model 1": "Zen 3", "family 25 model 17": "Zen 4",
                      "family 26 model 2": "Zen 5", "family 6 model 207": "Emerald Rapids"}
NAMES = {"torch": "PyTorch", "torch_math": "PyTorch, unfused", "onnxruntime": "ONNX Runtime",
         "openvino": "OpenVINO", "ggml": "ggml"}


def machine_name(cpu):
    for words, name in MICROARCHITECTURES.items():
        if cpu.endswith(f"({words})"):
            return name
    return cpu


def published_row(row):
    """The row without its rounds. Rates have four digits, ratios and shares three."""
    entries = {}
    for name, entry in row["entries"].items():
        if not results.is_right(entry):
            entries[name] = {"verdict": entry["verdict"]}
            continue
        value, _ = report.rate(row, entry)
        entries[name] = {"rate": float(f"{value:.4g}"), "share": round(entry["share"], 3),
                         "limit": entry["limit"]}
    over = {name: {peer: float(f"{ratio:.3g}") for peer, ratio in found.items()}
            for name, found in row["over"].items()}
    found = {"case": row["case"], "unit": report.unit_of(row), "entries": entries, "over": over}
    for key in ("speedup", "peak_speedup", "over_one_query"):
        if row.get(key) is not None:
            found[key] = round(row[key], 2)
    return found


def read(path):
    """A machine's file, or an empty one."""
    if path and path.exists():
        return json.loads(path.read_text())
    return {"schema_version": 1, "grids": {}}


def merge(file, run, setup=None):
    """The file with the medians of a run (compare.py's --json) in place of the grid's former ones."""
    if file.get("cpu", run["cpu"]) != run["cpu"]:
        raise ValueError(f"these results are of {file['cpu']}, this run is of {run['cpu']}: "
                         "expected the same machine")
    rows = [published_row(row) for row in run["rows"]]
    grid = {"date": run["date"], "versions": run["versions"], "rows": rows}
    return {"schema_version": 1, "machine": machine_name(run["cpu"]), "cpu": run["cpu"],
            "setup": setup or file.get("setup") or f"{run['threads']} threads",
            "grids": {**file["grids"], run["grid"]: grid}}


def text_of(file):
    """JSON with a row on each line: another measurement of one case is a change of one line."""
    lines = ["{", *(f" {json.dumps(key)}: {json.dumps(value)},"
                    for key, value in file.items() if key != "grids"), ' "grids": {']
    for i, (name, grid) in enumerate(file["grids"].items()):
        head = json.dumps({key: value for key, value in grid.items() if key != "rows"})[:-1]
        rows = ",\n    ".join(map(json.dumps, grid["rows"]))
        end = "," if i + 1 < len(file["grids"]) else ""
        lines.append(f'  {json.dumps(name)}: {head}, "rows": [\n    {rows}\n  ]}}{end}')
    return "\n".join([*lines, " }", "}"]) + "\n"


def find(file, cases):
    """(row, the run it is of) for each of the cases, the newest one if several grids have it."""
    found = {}
    for grid in sorted(file["grids"].values(), key=lambda grid: grid["date"]):
        found |= {row["case"]: (row, grid) for row in grid["rows"] if row["case"] in cases}
    return [found[case] for case in cases if case in found]


def footer(file, found):
    """What stands under a plot: the machine, the versions of the libraries shown, the date."""
    shown = {name for row, _ in found for name in row["entries"]}
    versions = {name: version for _, run in found for name, version in run["versions"].items()
                if name in shown}
    others = ", ".join(f"{NAMES.get(name, name)} {version}" for name, version in versions.items())
    dates = " and ".join(sorted({run["date"] for _, run in found}))
    return [f"{file['cpu']}, {file['machine']}: {file['setup']}.",
            f"{others}. Measured on {dates} by ./dev bench-peers."]
