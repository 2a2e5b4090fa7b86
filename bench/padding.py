#!/usr/bin/env python3
"""Padded with lengths, padded with a mask, or packed: which is faster where, and whether padding='auto'
takes it.

    ./dev bench-padding                     # the whole grid, some 20 minutes
    padding.py --grid small --rounds 5      # a part of it
    padding.py --json padding.json

Each cell is a batch of sequences of several lengths: a share of padding, a length, a batch, and the
side of the padding. Rows that come first (right) are computed with lengths or packed; others (left)
with a mask or packed. Packed includes the copies to packed tensors and back. Every round gives each
way a turn, and auto one of its own; a figure is the median over the rounds. The whole cell is then
measured again: a winner counts where both runs agree and differ by more than the spread (the
quartiles of the ratio in a round); everything else is a tie. auto passes a cell where it takes the
winner, where there is a tie, or where it is within 5 % of the better. Exit code 1: it passes less
than 95 % of the cells.
"""

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from statistics import median

from harness.ratios import quartiles, ratios
from harness.timing import timed_turn

GRIDS = {
    "full": {"share": (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9), "seqlen": (16, 64, 128, 512, 1024),
             "batch": (1, 4, 32)},
    "medium": {"share": (0.0, 0.1, 0.25, 0.5, 0.75), "seqlen": (16, 64, 128, 512),
               "batch": (1, 4, 32)},
    "small": {"share": (0.0, 0.25, 0.75), "seqlen": (32, 256), "batch": (4,)},
}
TOLERANCE = 1.05
REQUIRED = 0.95


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--grid", choices=GRIDS, default="full", help="of shares of padding, lengths and batches")
    add("--side", choices=("right", "left", "both"), default="both", help="of the padding (both)")
    add("--heads", type=int, default=8, help="query and key heads (8)")
    add("--dim", type=int, default=64, help="head_dim (64)")
    add("--rounds", type=int, default=9, help="alternations a run (9)")
    add("--turn", type=float, default=0.02, help="least seconds of a turn (0.02)")
    add("--pause", type=float, default=0.002, help="seconds before each turn (0.002)")
    add("--json", type=Path, help="write every cell there")
    return parser.parse_args()


def mask_of(share, seqlen, batch, side):
    """[batch, seqlen]: lengths that spread evenly round their mean, of which one is seqlen."""
    import numpy as np

    mean = (1.0 - share) * seqlen
    spread = min(mean - 1.0, seqlen - mean)
    at = (np.arange(batch) + 0.5) / batch * 2.0 - 1.0
    lengths = np.clip(np.rint(mean + spread * at), 1, seqlen).astype(int)
    positions = np.arange(seqlen)[None, :]
    return positions < lengths[:, None] if side == "right" else (
        positions >= seqlen - lengths[:, None])


class Cell:
    """The calls of one cell, by name: each way, and auto."""

    def __init__(self, options, side, share, seqlen, batch):
        import numpy as np
        import regard

        self.words = {"side": side, "share": share, "seqlen": seqlen, "batch": batch}
        mask = mask_of(share, seqlen, batch, side)
        rng = np.random.default_rng(0)
        shape = (batch, seqlen, options.heads, options.dim)
        q, k, v, out = (rng.standard_normal(shape).astype(np.float32) for _ in range(4))
        lengths = regard.Lengths(mask=mask)

        def call(padding):
            return lambda _: regard.attention(q, k, v, layout="BSHD", lengths=lengths,
                                              padding=padding, out=out)

        self.calls = {"padded": call("padded"), "packed": call("packed"), "auto": call("auto")}
        found = regard.explain(q, k, v, layout="BSHD", lengths=lengths, padding="auto").to_dict()
        self.words["auto"] = "packed" if " packed" in found["case"] else "padded"
        self.words["predicted"] = {path["path"]: path["seconds"] for path in found["paths"]}

    def measure(self, options):
        """{name: a time for each round}"""
        times = {name: [] for name in self.calls}
        for _ in range(options.rounds):
            for name, call in self.calls.items():
                times[name].append(timed_turn(call, 1, options.pause, options.turn))
        return times


def winner(times):
    """"padded" or "packed" where the quartiles of their ratio lie on one side of 1; else "tie"."""
    low, high = quartiles(ratios(times["padded"], times["packed"]))
    return "packed" if low > 1.0 else "padded" if high < 1.0 else "tie"


def judge(runs):
    """(winner of both runs or "tie", auto's time over the better one's, whether auto passes)."""
    first, second = (winner(times) for times in runs)
    agreed = first if first == second else "tie"
    both = {name: runs[0][name] + runs[1][name] for name in runs[0]}
    better = min(("padded", "packed"), key=lambda name: median(both[name]))
    ratio = median(ratios(both["auto"], both[better]))
    return agreed, ratio, agreed == "tie" or ratio <= TOLERANCE


def main():
    options = arguments()
    grid = GRIDS[options.grid]
    sides = ("right", "left") if options.side == "both" else (options.side,)
    cells, passed, started = [], 0, time.perf_counter()
    print(f"{'side':6}{'share':>6}{'seqlen':>8}{'batch':>7}{'padded ms':>11}{'packed ms':>11}"
          f"{'auto ms':>9}  {'winner':8}{'auto':8}{'ratio':>6}")
    for side, share, seqlen, batch in itertools.product(sides, *grid.values()):
        cell = Cell(options, side, share, seqlen, batch)
        runs = [cell.measure(options), cell.measure(options)]
        agreed, ratio, passes = judge(runs)
        passed += passes
        milliseconds = {name: 1e3 * median(runs[0][name] + runs[1][name]) for name in cell.calls}
        cells.append({**cell.words, "milliseconds": milliseconds, "winner": agreed,
                      "auto_ratio": ratio, "passes": passes, "runs": runs})
        print(f"{side:6}{share:6.2f}{seqlen:8}{batch:7}{milliseconds['padded']:11.4f}"
              f"{milliseconds['packed']:11.4f}{milliseconds['auto']:9.4f}  {agreed:8}"
              f"{cell.words['auto']:8}{ratio:6.2f}{'' if passes else '  FAILS'}", flush=True)
    ties = sum(cell["winner"] == "tie" for cell in cells)
    print(f"auto passes {passed} of {len(cells)} cells ({100 * passed / len(cells):.1f} %, "
          f"{100 * REQUIRED:.0f} % required; {ties} ties), {time.perf_counter() - started:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(cells, indent=1) + "\n")
    return 0 if passed >= REQUIRED * len(cells) else 1


if __name__ == "__main__":
    sys.exit(main())
