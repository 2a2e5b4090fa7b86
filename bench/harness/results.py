"""From the seconds and limits of each round to the figures that are shown."""

from statistics import median

from . import limits, ratios, reference


def new_entry(entrant):
    return {"library": entrant.library, "backend": entrant.backend, "threads": entrant.threads,
            "isa": entrant.isa, "verdict": "ok", "reason": "", "error": None, "ran": "",
            "workspace_bytes": None, "seconds": [], "limits": []}


def judge(case, entry, error):
    """Notes the error of an output; a wrong one stays wrong."""
    entry["error"] = max(error, entry["error"] or 0.0)
    if not entry["error"] <= reference.TOLERANCE[case.dtype]:
        entry["verdict"] = "WRONG"


def rates_of_limits(case, entry):
    return [limits.limit_of(case, found, entry["isa"])[1] for found in entry["limits"]]


def summarise(case, entries, cpu):
    """One row: raw rounds and the medians over them. `entries` is name -> entry."""
    work = case.kv_bytes if case.decode else case.flops
    for entry in entries.values():
        if not entry["seconds"]:
            continue
        rates = [work / seconds / 1e9 for seconds in entry["seconds"]]
        entry["milliseconds"] = median(entry["seconds"]) * 1e3
        entry["gflops"] = case.flops / median(entry["seconds"]) / 1e9
        entry["share"] = ratios.median_ratio(rates, rates_of_limits(case, entry))
        entry["limit"] = limits.limit_of(case, entry["limits"][0], entry["isa"])[0]
    rounds = max((len(e["seconds"]) for e in entries.values()), default=0)
    row = {"case": case.text, "cpu": cpu, "rounds": rounds, "entries": entries}
    row["best_peer"], row["ratios"] = against_peers(entries)
    row["speedup"], row["peak_speedup"] = against_first(case, entries)
    return row


def is_right(entry):
    return entry["verdict"] == "ok" and bool(entry["seconds"])


def against_peers(entries):
    """(name of the fastest other library, {regard's entry: how many times faster it is})."""
    peers = [n for n, e in entries.items() if e["library"] != "regard" and is_right(e)]
    fused = [n for n in peers if entries[n]["library"] != "torch_math"] or peers
    if not fused:
        return None, {}
    best = min(fused, key=lambda n: median(entries[n]["seconds"]))
    ours = {n: e for n, e in entries.items() if e["library"] == "regard" and is_right(e)}
    return best, {n: ratios.median_ratio(entries[best]["seconds"], e["seconds"])
                  for n, e in ours.items()}


def against_first(case, entries):
    """(speed of regard's last entry over its first, the same of the machine's limits), where they
    run with different numbers of threads."""
    ours = [e for e in entries.values() if e["library"] == "regard" and is_right(e)]
    if len(ours) < 2 or ours[0]["threads"] == ours[-1]["threads"]:
        return None, None
    first, last = ours[0], ours[-1]
    return (ratios.median_ratio(first["seconds"], last["seconds"]),
            ratios.median_ratio(rates_of_limits(case, last), rates_of_limits(case, first)))
