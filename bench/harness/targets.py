"""What regard is held to, and how far rows are from it."""

import dataclasses
from statistics import median

from . import grids
from .cases import parse_case
from .ratios import median_ratio
from .results import is_right

# case: (target and goal for the share of the limit, target for the speed against the best peer)
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
SHORT = {"b64 hq12 sq64 d64 f32": (0.75, None, 1.0), "b64 hq12 sq32 d64 f32": (0.75, None, 1.0),
         "b128 hq8 sq16 d64 bf16": (0.45, None, 1.0)}
F16_OF_F32 = (0.80, 0.85)
F16_OVER_TORCH = 1.5
AVX2_F32 = (0.80, 0.85)
TWO_THREADS = (1.85, 1.95)  # where the peak itself doubles; scaled where it does not
EFFICIENT_OF_FLASH = 0.5
MATH_OVER_TORCH_MATH = 1.0
SCORES_OF_WORKSPACE = 20  # the score matrix is at least so many workspaces

# case: target and goal for the share of the limit
DECODE = {text: share for lines, share in ((grids.DECODE_BHSD, (0.76, 0.88)),
                                           (grids.DECODE_BSHD, (0.70, 0.84)),
                                           (grids.DECODE_SHAPES, (0.68, 0.82)))
          for text in grids.texts(lines)}
# dtype: who is measured against in the cases of DECODE_BHSD, and how many times faster
DECODE_OVER = {"f32": ("onnxruntime", 2.4), "bf16": ("torch", 25.0), "f16": ("ggml", 2.5)}
# case: (target and goal for the share of the limit, target for the speed against PyTorch)
BACKWARD = {
    "b1 hq8 sq2048 d64 f32 grad": (0.86, 0.92, 1.25),
    "b1 hq8 sq2048 d128 f32 grad": (0.86, 0.92, 1.25),
    "b1 hq4 sq2048 d256 f32 grad": (0.86, 0.92, 1.25),
    "b1 hq8 sq2048 d64 f32 causal grad": (0.78, 0.85, 1.35),
    "b1 hq8 sq2048 d128 f32 causal grad": (0.78, 0.85, 1.35),
    "b1 hq8 sq2048 d64 bf16 grad": (0.72, 0.82, 1.5),
    "b1 hq8 sq2048 d128 bf16 grad": (0.72, 0.82, 1.5),
    "b1 hq8 sq2048 d64 bf16 causal grad": (0.62, 0.74, 1.45),
    "b1 hq8 sq2048 d128 bf16 causal grad": (0.62, 0.74, 1.45),
    "b1 hq4 sq2048 d256 bf16 causal grad": (0.62, 0.74, 1.45),
}
TWO_THREADS_BACKWARD = (1.85, 1.95)  # one and two heads of 8192
SPECULATIVE = {4: 1.3, 16: 2.2}  # seqlen_q: most times the time of one query
SMALL = dict(zip(grids.texts(grids.SMALL), ((15.0, 8.0), (90.0, 65.0))))  # case: microseconds
OVERHEAD = {"benchmark:BM_CachedCall": (1.0, 0.5), "benchmark:BM_CachedCallC": (1.2, 0.6),
            "regard": (4.0, 2.5)}  # entrant: microseconds of a cached call


@dataclasses.dataclass(frozen=True)
class Verdict:
    case: str
    what: str
    measured: float
    target: float
    goal: float | None = None
    at_most: bool = False  # of times: less is better

    def reaches(self, target):
        return self.measured <= target if self.at_most else self.measured >= target

    @property
    def met(self):
        return self.reaches(self.target)

    def __str__(self):
        word = "met" if self.met else "NOT MET"
        if self.goal is not None and self.reaches(self.goal):
            word = "goal met"
        goal = "" if self.goal is None else f", goal {self.goal:.2f}"
        by = (self.measured / self.target - 1) * 100
        return (f"{word:8s} {self.case:36s} {self.what}: {self.measured:.3f}, "
                f"target {'<= ' if self.at_most else ''}{self.target:.2f}{goal} ({by:+.1f} %)")


def ours(row, backend=None):
    """regard's entry in its plain setting that ran, or was asked to run, `backend` (None: what the
    built-in order chooses)."""
    for name, entry in row["entries"].items():
        plain = entry["library"] == "regard" and all(
            entry.get(field) is None for field in grids.SETTING_FIELDS)
        of_backend = entry["backend"] == backend or (
            entry["backend"] is None and entry["ran"].split("_")[0] == backend)
        if plain and of_backend and is_right(entry):
            return name, entry
    return None, None


def speed_over(row, peer, entry):
    """A list of how many times faster `entry` is than `peer`; empty where the peer has no right
    result."""
    other = row["entries"].get(peer)
    if not other or not is_right(other):
        return []
    return [median_ratio(other["seconds"], entry["seconds"])]


def verdicts(rows):
    """Every target that the rows say something about."""
    by_case = {row["case"]: row for row in rows}
    found = []
    for row in rows:
        found += forward_verdicts(row) + f16_verdicts(row, by_case) + workspace_verdicts(row)
        found += backward_verdicts(row) + isa_verdicts(row) + thread_verdicts(row) + backend_verdicts(row)
        found += decode_verdicts(row) + speculative_verdicts(row) + time_verdicts(row)
    return found


def missing(rows):
    """Cases without a result in the tables that the rows touch."""
    found = []
    for table, backend in ((FORWARD, "flash"), (SHORT, "flash"), (BACKWARD, "flash"), (DECODE, None), (SMALL, None)):
        touched = [row for row in rows if row["case"] in table]
        seen = {row["case"] for row in touched if ours(row, backend)[1]}
        found += [case for case in table if touched and case not in seen]
    return found


def forward_verdicts(row):
    share, goal, speed = {**FORWARD, **SHORT}.get(row["case"], (None, None, None))
    name, entry = ours(row, "flash")
    found = []
    if entry and share is not None:
        what = f"share of {entry['limit']}"
        found.append(Verdict(row["case"], what, entry["share"], share, goal))
    if entry and speed is not None and name in row["ratios"]:
        found.append(Verdict(row["case"], f"speed over {row['best_peer']}", row["ratios"][name],
                             speed))
    return found


def backward_verdicts(row):
    """Speed against PyTorch, and no 16-bit gradient further from the truth than its MATH's."""
    case = parse_case(row["case"])
    _, entry = ours(row, "flash")
    if not case.backward or not entry:
        return []
    found = []
    share, goal, speed = BACKWARD.get(row["case"], (None, None, None))
    if share is not None:
        found.append(Verdict(row["case"], f"share of {entry['limit']}", entry["share"], share,
                             goal))
        found += [Verdict(row["case"], "speed over torch", ratio, speed)
                  for ratio in speed_over(row, "torch", entry)]
    math = row["entries"].get("torch_math")
    if case.dtype not in ("bf16", "f16") or not math or not is_right(math):
        return found
    found.append(Verdict(row["case"], "error over torch_math's", entry["error"] / math["error"],
                         1.0, at_most=True))
    exact = row["entries"].get(grids.EXACT)
    if exact and is_right(exact):
        limit = f"with max_error={exact['max_error']:g}, "
        found.append(Verdict(row["case"], limit + "error over torch_math's",
                             exact["error"] / math["error"], 1.0, at_most=True))
        found += [Verdict(row["case"], limit + "speed over torch", ratio, speed)
                  for ratio in speed_over(row, "torch", exact) if speed is not None]
    return found


def f16_verdicts(row, by_case):
    _, entry = ours(row, "flash")
    case = parse_case(row["case"])
    if case.backward or case.dtype != "f16" or case.decode or not entry:
        return []
    found = [Verdict(row["case"], "speed over torch", speed, F16_OVER_TORCH)
             for speed in speed_over(row, "torch", entry)]
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
            if entry["isa"] == "avx2" and not case.backward and case.dtype == "f32" and entry["seconds"]
            and entry["backend"] in (None, "flash") and entry["ran"].startswith("flash_")]


def thread_verdicts(row):
    flash = all(e["ran"].startswith("flash_") for e in row["entries"].values())
    threads = [e["threads"] for e in row["entries"].values()]
    case = parse_case(row["case"])
    if row["speedup"] is None or not flash or threads != [1, 2]:
        return []
    if case.seqlen_q != (8192 if case.backward else 2048):
        return []
    scale = row["peak_speedup"] / 2
    targets = TWO_THREADS_BACKWARD if case.backward else TWO_THREADS
    return [Verdict(row["case"], f"2 threads over 1 (the peak: {row['peak_speedup']:.2f})",
                    row["speedup"], *(target * scale for target in targets))]


def backend_verdicts(row):
    found = []
    flash, efficient, math = (ours(row, name)[1] for name in ("flash", "efficient", "math"))
    if flash and efficient:
        found.append(Verdict(row["case"], "efficient's rate of flash's",
                             median_ratio(flash["seconds"], efficient["seconds"]),
                             EFFICIENT_OF_FLASH))
    if math:
        found += [Verdict(row["case"], "math's speed over torch_math", speed, MATH_OVER_TORCH_MATH)
                  for speed in speed_over(row, "torch_math", math)]
    return found


def decode_verdicts(row):
    _, entry = ours(row)
    if not entry or row["case"] not in DECODE:
        return []
    share, goal = DECODE[row["case"]]
    found = [Verdict(row["case"], f"share of {entry['limit']}", entry["share"], share, goal)]
    if row["case"] in grids.texts(grids.DECODE_BHSD):
        peer, target = DECODE_OVER[parse_case(row["case"]).dtype]
        found += [Verdict(row["case"], f"speed over {peer}", speed, target)
                  for speed in speed_over(row, peer, entry)]
    return found


def speculative_verdicts(row):
    target = SPECULATIVE.get(parse_case(row["case"]).seqlen_q)
    if row.get("over_one_query") is None or target is None:
        return []
    entry = ours(row)[1] or ours(row, "flash")[1]
    if entry is None:
        return []
    what = f"time over one query's, at {entry['share']:.2f} of {entry['limit']}"
    return [Verdict(row["case"], what, row["over_one_query"], target, at_most=True)]


def time_verdicts(row):
    """Microseconds: of small problems, and of a call that computes next to nothing."""
    held = {"regard": SMALL[row["case"]]} if row["case"] in SMALL else {}
    if row["case"] == grids.OVERHEAD:
        held = OVERHEAD
    return [Verdict(row["case"], f"microseconds of {name}", median(entry["seconds"]) * 1e6,
                    *held[name], at_most=True)
            for name, entry in row["entries"].items() if name in held and is_right(entry)]
