"""What FLASH, EFFICIENT and MATH are held to, and how far rows are from it."""

import dataclasses

from .cases import parse_case
from .ratios import median_ratio

# case: (bar and goal for the share of the limit, bar for the speed against the best peer)
FORWARD = {
    "b1 hq12 sq512 d64 f32": (None, None, 1.0),
    "b1 hq8 sq2048 d64 f32": (0.86, 0.90, 1.0),
    "b1 hq8 sq2048 d128 f32": (0.89, 0.92, 1.0),
    "b1 hq4 sq2048 d256 f32": (0.90, 0.93, 1.0),
    "b1 hq8 sq2048 d64 f32 causal": (0.80, 0.84, 1.35),
    "b1 hq8 sq2048 d128 f32 causal": (0.84, 0.87, 1.35),
    "b8 hq12 sq128 d32 f32": (0.70, 0.75, 1.05),
    "b1 hq12 sq512 d64 bf16": (None, None, 1.08),
    "b1 hq8 sq2048 d64 bf16": (0.82, 0.86, 1.08),
    "b1 hq8 sq2048 d128 bf16": (0.86, 0.89, 1.08),
    "b1 hq4 sq2048 d256 bf16": (0.87, 0.90, 1.08),
    "b1 hq8 sq2048 d64 bf16 causal": (0.74, 0.78, 2.1),
    "b1 hq8 sq2048 d128 bf16 causal": (0.79, 0.82, 2.1),
    "b8 hq12 sq128 d32 bf16": (0.55, 0.60, 1.35),
}
F16_OF_F32 = (0.80, 0.85)
F16_OVER_TORCH = 1.5
AVX2_F32 = (0.80, 0.85)
TWO_THREADS = (1.85, 1.95)  # where the peak itself doubles; scaled where it does not
EFFICIENT_OF_FLASH = 0.5
MATH_OVER_TORCH_MATH = 1.0
SCORES_OF_WORKSPACE = 20  # the score matrix is at least so many workspaces


@dataclasses.dataclass(frozen=True)
class Verdict:
    case: str
    what: str
    measured: float
    bar: float
    goal: float | None = None

    @property
    def met(self):
        return self.measured >= self.bar

    def __str__(self):
        word = "met" if self.met else "NOT MET"
        if self.goal is not None and self.measured >= self.goal:
            word = "goal met"
        goal = "" if self.goal is None else f", goal {self.goal:.2f}"
        by = (self.measured / self.bar - 1) * 100
        return (f"{word:8s} {self.case:36s} {self.what}: {self.measured:.3f}, "
                f"bar {self.bar:.2f}{goal} ({by:+.1f} %)")


def ours(row, backend):
    """regard's entry in its plain setting that ran, or was asked to run, `backend`."""
    for name, entry in row["entries"].items():
        plain = entry["library"] == "regard" and entry["isa"] is None and entry["threads"] is None
        of_backend = entry["backend"] == backend or (
            entry["backend"] is None and entry["ran"].startswith(backend + "_"))
        if plain and of_backend and entry["seconds"] and entry["verdict"] == "ok":
            return name, entry
    return None, None


def verdicts(rows):
    """Every bar that the rows say something about."""
    by_case = {row["case"]: row for row in rows}
    found = []
    for row in rows:
        found += forward_verdicts(row) + f16_verdicts(row, by_case) + workspace_verdicts(row)
        found += isa_verdicts(row) + thread_verdicts(row) + backend_verdicts(row)
    return found


def missing(rows):
    """Cases with bars of their own that the rows say nothing about."""
    seen = {row["case"] for row in rows if ours(row, "flash")[1]}
    return [case for case in FORWARD if case not in seen]


def forward_verdicts(row):
    share, goal, speed = FORWARD.get(row["case"], (None, None, None))
    name, entry = ours(row, "flash")
    found = []
    if entry and share is not None:
        what = f"share of {entry['limit']}"
        found.append(Verdict(row["case"], what, entry["share"], share, goal))
    if entry and speed is not None and name in row["ratios"]:
        found.append(Verdict(row["case"], f"speed over {row['best_peer']}", row["ratios"][name],
                             speed))
    return found


def f16_verdicts(row, by_case):
    _, entry = ours(row, "flash")
    case = parse_case(row["case"])
    if case.dtype != "f16" or not entry:
        return []
    found = []
    torch = row["entries"].get("torch")
    if torch and torch["seconds"] and torch["verdict"] == "ok":
        found.append(Verdict(row["case"], "speed over torch",
                             median_ratio(torch["seconds"], entry["seconds"]), F16_OVER_TORCH))
    f32 = by_case.get(" ".join("f32" if w == "f16" else w for w in row["case"].split()))
    other = ours(f32, "flash")[1] if f32 else None
    if other:  # shares of the same limit: comparable though not of the same rounds
        found.append(Verdict(row["case"], "f16's rate of f32's", entry["share"] / other["share"],
                             *F16_OF_F32))
    return found


def workspace_verdicts(row):
    _, entry = ours(row, "flash")
    case = parse_case(row["case"])
    if not entry or not entry["workspace_bytes"] or case.seqlen_q < 2048:
        return []
    scores = case.score_bytes / entry["workspace_bytes"]
    return [Verdict(row["case"], "score matrix over workspace", scores, SCORES_OF_WORKSPACE)]


def isa_verdicts(row):
    case = parse_case(row["case"])
    return [Verdict(row["case"], f"{name}: share of the AVX2 peak", entry["share"], *AVX2_F32)
            for name, entry in row["entries"].items()
            if entry["isa"] == "avx2" and case.dtype == "f32" and entry["seconds"]
            and entry["backend"] in (None, "flash") and entry["ran"].startswith("flash_")]


def thread_verdicts(row):
    flash = all(e["ran"].startswith("flash_") for e in row["entries"].values())
    threads = [e["threads"] for e in row["entries"].values()]
    case = parse_case(row["case"])
    if row["speedup"] is None or not flash or threads != [1, 2] or case.seqlen_q != 2048:
        return []
    scale = row["peak_speedup"] / 2
    return [Verdict(row["case"], f"2 threads over 1 (the peak: {row['peak_speedup']:.2f})",
                    row["speedup"], *(bar * scale for bar in TWO_THREADS))]


def backend_verdicts(row):
    found = []
    flash, efficient, math = (ours(row, name)[1] for name in ("flash", "efficient", "math"))
    unfused = row["entries"].get("torch_math")
    if flash and efficient:
        found.append(Verdict(row["case"], "efficient's rate of flash's",
                             median_ratio(flash["seconds"], efficient["seconds"]),
                             EFFICIENT_OF_FLASH))
    if math and unfused and unfused["seconds"]:
        found.append(Verdict(row["case"], "math's speed over torch_math",
                             median_ratio(unfused["seconds"], math["seconds"]),
                             MATH_OVER_TORCH_MATH))
    return found
