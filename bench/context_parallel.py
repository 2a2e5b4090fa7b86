#!/usr/bin/env python3
"""Context parallelism simulated: what each algorithm takes on up to 1,024 ranks, and which is the fastest.

    PYTHONPATH=build/release/python bench/context_parallel.py                      # tables of docs/distributed.md
    ... bench/context_parallel.py --length 1048576 --ranks 64 --speed 50           # one problem, faster ranks
    ... bench/context_parallel.py --plot docs/plots/context_parallel               # its drawings
    ... bench/context_parallel.py --check                                          # against processes here

A rank computes as this machine does: kernel times are those that regard's cost model predicts here, divided
by --speed. --check measures kernels and messages between 2 to 4 processes, simulates with these numbers and
compares with what context_parallel takes; it needs PyTorch.
"""

import argparse
import functools
from dataclasses import replace
from pathlib import Path

from harness import curves, ranks

NAMES = {"p2p": "ring", "all_gather": "all-gather", "a2a": "all-to-all", "a2a+p2p": "hybrid"}
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def predicted(problem, speed=1.0):
    """kernel() of ranks.simulate by regard's cost model."""
    import regard

    direction = "backward_time" if problem.backward else "forward_time"

    @functools.cache
    def kernel(rows, keys, heads_q, heads_kv, causal):
        case = (f"b1 hq{heads_q} hkv{heads_kv} sq{rows} skv{keys} d{problem.dim} {problem.dtype}"
                f"{' causal' if causal else ''} {'grad' if problem.backward else 'lse'}")
        selection = regard.explain(case)
        (chosen,) = [c for c in selection.candidates if c["backend"] == selection.chosen]
        return chosen[direction]["seconds"] / speed

    return kernel


def table(problem, counts, network, speed):
    """Lines of Markdown: every algorithm for each number of ranks."""
    kernel = predicted(problem, speed)
    lines = ["| ranks | algorithm | seconds | computing | balance | messages | sent | memory |",
             "|---:|---|---:|---:|---:|---:|---:|---:|"]
    for count in counts:
        for algorithm in ranks.ALGORITHMS:
            made = ranks.simulate(algorithm, problem, count, network, kernel)
            if made.refused:
                lines.append(f"| {count} | {NAMES[algorithm]} | {made.refused} | | | | | |")
                continue
            lines.append(f"| {count} | {NAMES[algorithm]} | {made.seconds:.4g} | {made.compute / made.seconds:.0%} | "
                         f"{made.balance:.2f} | {made.messages} | {_bytes(made.sent)} | {_bytes(made.memory)} |")
    return lines


def fastest(lengths, counts, network, speed, problem):
    """Lines of Markdown: which algorithm is the fastest, by length and ranks."""
    lines = ["| positions | " + " | ".join(f"{count} ranks" for count in counts) + " |",
             "|---:|" + "---|" * len(counts)]
    for length in lengths:
        at = replace(problem, length=length)
        kernel = predicted(at, speed)
        row = []
        for count in counts:
            made = {name: ranks.simulate(name, at, count, network, kernel) for name in ranks.ALGORITHMS}
            times = {name: result.seconds for name, result in made.items() if not result.refused}
            best = min(times, key=times.get)
            row.append(f"{NAMES[best]} {_seconds(times[best])}")
        lines.append(f"| {length:,} | " + " | ".join(row) + " |")
    return lines


def _bytes(count):
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def _seconds(time):
    return f"{time:.3g} s" if time >= 1 else f"{time * 1e3:.3g} ms"


def drawings(problem, network, speed):
    """{name: {theme: SVG}}: time and memory over ranks."""
    kernel = predicted(problem, speed)
    made = {name: {count: ranks.simulate(name, problem, count, network, kernel) for count in COUNTS}
            for name in ranks.ALGORITHMS}

    def lines(value):
        found = {NAMES[name]: [(count, value(result)) for count, result in row.items() if not result.refused]
                 for name, row in made.items()}
        return {name: line for name, line in found.items() if len(line) > 1}

    across = ("ranks", lambda x: f"{x:.0f}")
    words = f"{problem.length:,} positions, {problem.heads_q}/{problem.heads_kv} heads of {problem.dim}, {problem.dtype}"
    pictures = {"time": (lines(lambda r: r.seconds), f"Time of one causal forward: {words}",
                         ("seconds, simulated", _seconds)),
                "memory": (lines(lambda r: r.memory), f"Memory of a rank: {words}",
                           ("bytes of tensors, results and buffers", _bytes))}
    return {name: {theme: curves.draw(given, title, (across, upward), theme) for theme in curves.THEMES}
            for name, (given, title, upward) in pictures.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--length", type=int, default=1_048_576, help="positions of the whole sequence [%(default)s]")
    add("--ranks", type=int, nargs="+", default=[8, 64, 1024], help="numbers of ranks [8 64 1024]")
    add("--heads", type=int, nargs=2, default=[32, 8], metavar=("Q", "KV"), help="query and kv heads [32 8]")
    add("--dim", type=int, default=128, help="head dim [%(default)s]")
    add("--dtype", choices=ranks.SIZES, default="bf16", help="[%(default)s]")
    add("--backward", action="store_true", help="the gradients instead of the forward")
    add("--node", type=int, default=8, help="ranks of a node [%(default)s]")
    add("--latency", type=float, nargs=2, default=[2e-6, 5e-6], help="seconds in a node, between nodes [2e-6 5e-6]")
    add("--bandwidth", type=float, nargs=2, default=[20e9, 12.5e9],
        help="bytes a second of a rank in a node, of a node to others [20e9 12.5e9]")
    add("--copies", type=float, default=20e9, help="bytes a second that a rank copies into new memory [20e9]")
    add("--speed", type=float, default=1.0, help="a rank is so many times as fast as this machine [1]")
    add("--plot", type=Path, help="draw PLOT-time-light.svg and the like")
    add("--check", action="store_true", help="compare with 2 to 4 processes here")
    options = parser.parse_args()
    if options.check:
        from harness import rank_check

        raise SystemExit(rank_check.run())
    problem = ranks.Problem(options.length, *options.heads, options.dim, options.dtype, backward=options.backward)
    network = ranks.Network(options.node, tuple(options.latency), tuple(options.bandwidth),
                            copies=options.copies, joins=1.3e9 * options.speed)
    if options.plot:
        for name, themes in drawings(problem, network, options.speed).items():
            for theme, drawing in themes.items():
                options.plot.with_name(f"{options.plot.name}-{name}-{theme}.svg").write_text(drawing)
        return
    print("\n".join(table(problem, options.ranks, network, options.speed)))
    lengths = (4096, 65_536, 1_048_576, 10_000_000)
    print("\nthe fastest:\n\n" + "\n".join(fastest(lengths, (8, 32, 128, 1024), network, options.speed, problem)))


if __name__ == "__main__":
    main()
