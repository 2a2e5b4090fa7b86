"""From the seconds and limits of each round to the figures that are shown."""

from statistics import median

from . import limits, ratios, reference
from .grids import SETTING_FIELDS


OURS = ("regard", "benchmark")  # libraries that are no peers


def new_entry(entrant):
    return {"library": entrant.library, "backend": entrant.backend,
            **{field: getattr(entrant, field) for field in SETTING_FIELDS},
            "verdict": "ok", "reason": "", "error": None, "ran": "", "workspace_bytes": None,
            "seconds": [], "limits": []}


def case_of(case, entry):
    """What the entry computed in a row of `case`."""
    seqlen_q = entry.get("seqlen_q")
    return case if seqlen_q is None else case.with_seqlen_q(seqlen_q)


def judge(case, entry, error):
    """Notes the error of an output; a wrong one stays wrong. None: there is no output."""
    if error is None:
        return
    entry["error"] = max(error, entry["error"] or 0.0)
    tolerance = reference.TOLERANCE_OF.get(entry["library"], reference.TOLERANCE[case.dtype])
    if not entry["error"] <= tolerance:
        entry["verdict"] = "WRONG"


def min_seconds(case, entry):
    """Of each round: what the machine's limit allows."""
    return [limits.limit_of(case_of(case, entry), found, entry["isa"])[1]
            for found in entry["limits"]]


def summarise(case, entries, cpu, unit=None):
    """One row: raw rounds and the medians over them. `entries` is name -> entry."""
    for entry in entries.values():
        if not entry["seconds"]:
            continue
        own = case_of(case, entry)
        entry["milliseconds"] = median(entry["seconds"]) * 1e3
        entry["gflops"] = own.flops / median(entry["seconds"]) / 1e9
        entry["share"] = ratios.median_ratio(min_seconds(case, entry), entry["seconds"])
        entry["limit"] = limits.limit_of(own, entry["limits"][0], entry["isa"])[0]
    rounds = max((len(e["seconds"]) for e in entries.values()), default=0)
    row = {"case": case.text, "cpu": cpu, "rounds": rounds, "unit": unit, "entries": entries}
    row["best_peer"], row["ratios"] = against_peers(entries)
    row["over"] = against_each(entries)
    row["speedup"], row["peak_speedup"] = against_first(case, entries)
    row["over_one_query"] = against_one_query(entries)
    return row


def is_right(entry):
    return entry["verdict"] == "ok" and bool(entry["seconds"])


def peers_of(entries):
    """Names of other libraries with a right result."""
    return [n for n, e in entries.items() if e["library"] not in OURS and is_right(e)]


def ours_of(entries):
    """{regard's entries that compute the case itself}."""
    return {n: e for n, e in entries.items()
            if e["library"] in OURS and e.get("seqlen_q") is None and is_right(e)}


def against_peers(entries):
    """(name of the fastest other library, {regard's entry: how many times faster it is})."""
    peers = peers_of(entries)
    fused = [n for n in peers if entries[n]["library"] != "torch_math"] or peers
    if not fused:
        return None, {}
    best = min(fused, key=lambda n: median(entries[n]["seconds"]))
    return best, {n: ratios.median_ratio(entries[best]["seconds"], e["seconds"])
                  for n, e in ours_of(entries).items()}


def against_each(entries):
    """{regard's entry: {other library: how many times faster regard's is}}."""
    return {n: {peer: ratios.median_ratio(entries[peer]["seconds"], e["seconds"])
                for peer in peers_of(entries)} for n, e in ours_of(entries).items()}


def against_first(case, entries):
    """(speed of regard's last entry over its first, the same of the machine's limits), where they
    run with different numbers of threads."""
    ours = [e for e in entries.values() if e["library"] == "regard" and is_right(e)]
    if len(ours) < 2 or ours[0]["threads"] == ours[-1]["threads"]:
        return None, None
    first, last = ours[0], ours[-1]
    return (ratios.median_ratio(first["seconds"], last["seconds"]),
            ratios.median_ratio(min_seconds(case, first), min_seconds(case, last)))


def against_one_query(entries):
    """The time of regard's first entry that has a partner @sq=1, over that partner's."""
    others = [field for field in SETTING_FIELDS if field != "seqlen_q"]
    ours = {(e["backend"], *map(e.get, others), e.get("seqlen_q")): e["seconds"]
            for e in entries.values() if e["library"] == "regard" and is_right(e)}
    for (*settings, seqlen_q), seconds in ours.items():
        if seqlen_q is None and (*settings, 1) in ours:
            return ratios.median_ratio(seconds, ours[(*settings, 1)])
    return None
