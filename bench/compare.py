#!/usr/bin/env python3
"""Measures PyTorch, ONNX Runtime, OpenVINO, ggml and regard on the same tensors, in alternation.

    ./dev bench-peers --grid forward --targets          # makes the environment, then runs this
    ./dev bench-peers --grid headline --results bench/results/zen4.json --plot docs/plots/headline
    compare.py --grid shapes --only torch,regard --json shapes.json
    compare.py "b1 hq32 hkv8 sq1024 d128 bf16 causal" --backend flash,efficient
    compare.py --from forward.json --from threads.json --targets --markdown table.md
    compare.py --from bench/results/zen4.json --plot docs/plots/headline    # drawn again

Every round gives each a turn: the machine's own peak, then each library. A turn is a pause, so that
the previous one's threads stop spinning, a run to warm up, and the best of at least three. A figure
is the median over at least seven rounds of a ratio within the round. Every output is held against a
double precision reference on a few rows, before and after; a wrong one prints WRONG, not its rate.
--json keeps every round, --results the medians that documents show.
docs/performance.md has the whole method.
"""

import argparse
import functools
import json
import os
import sys
import time
from importlib import metadata
from pathlib import Path

from harness import grids, limits, plot, published, report, results, tables
from harness.cases import CaseError, parse_case

ROOT = Path(__file__).resolve().parent.parent


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("case", nargs="*", help="cases, each one argument; in place of a grid")
    add("--grid", choices=grids.GRIDS, help="built-in cases and entrants (forward)")
    add("--only", help="these entrants: torch, torch_math, onnxruntime, openvino, ggml, "
        "benchmark:NAME, regard[:BACKEND][@threads=N+isa=NAME+sq=N+max_error=X]")
    add("--backend", default="", help="regard's backends, each a column: flash,efficient,math")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of everybody")
    add("--layout", default="bshd", choices=("bshd", "bhsd"), help="of the memory (bshd)")
    add("--rounds", type=int, default=7, help="at least so many alternations a case (7)")
    add("--seconds", type=float, default=0.0, help="and at least so long a case")
    add("--turn", type=float, default=0.03, help="least seconds of a turn (0.03)")
    add("--pause", type=float, default=0.02, help="seconds before each turn (0.02)")
    add("--peak", type=Path, default=ROOT / "build/release/bench/regard_peak",
        help="the program that measures the machine's limits; regard_bench is taken beside it")
    add("--from", dest="sources", action="append", default=[], type=Path,
        help="show what an earlier --json or --results wrote; measures nothing")
    add("--json", type=Path, help="write every round of every case there")
    add("--results", type=Path, help="put the medians into this machine's file (bench/results)")
    add("--setup", help="what to say of the machine there (N threads)")
    add("--markdown", type=Path, help="write the table there")
    add("--plot", type=Path, help="draw PLOT-light.svg and PLOT-dark.svg: the shares of the limit")
    add("--targets", action="store_true", help="print how far each target is met")
    return parser.parse_args()


def chosen(options):
    """(cases, entrants) that the arguments name."""
    backends = [name for name in options.backend.split(",") if name]
    grid = options.grid or "forward"
    cases = [parse_case(text) for text in options.case] or grids.grid_cases(grid)
    entrants = grids.grid_entrants(grid, backends)
    if options.only:
        entrants = []
        for text in options.only.split(","):
            several = backends if text == "regard" else []
            entrants += [grids.parse_entrant(t)
                         for t in [f"{text}:{b}" for b in several] or [text]]
    return cases, entrants


def without_missing_isa(entrants, available):
    """Those whose instruction set this CPU has."""
    order = ("scalar", "avx2", "avx512", "avx512_bf16", "amx_bf16")
    missing = [e.name for e in entrants
               if e.isa and order.index(e.isa) > order.index(available)]
    if missing:
        print(f"left out, this CPU has {available} at most: {', '.join(missing)}")
    return [e for e in entrants if e.name not in missing]


def prepared(case, entrants, options):
    """name -> (entry, runner), the runner None where the entrant refuses."""
    from harness import benchmark, libraries, tensors, turns

    make_sets = functools.cache(lambda own: tensors.make_sets(own, options.layout))
    found = {}
    for entrant in entrants:
        entry, runner, own = results.new_entry(entrant), None, entrant.case_of(case)
        try:
            if entrant.library == "benchmark":
                runner = benchmark.Benchmark(options.peak.with_name("regard_bench"),
                                             entrant.backend)
            elif entrant.own_process:
                runner = turns.Apart(entrant, own, options.layout, options.threads)
            else:
                runner = turns.Here(entrant, own, make_sets(own), options.threads)
            entry["ran"], entry["workspace_bytes"] = runner.ran, runner.workspace_bytes
            results.judge(own, entry, runner.error())
        except (libraries.Refused, ImportError) as reason:
            entry["verdict"], entry["reason"] = "refused", str(reason)
        found[entrant.name] = (entry, runner)
    return found


def alternate(case, taking_part, options):
    """Adds rounds to the entries until there are enough; the limits first in each round."""
    end = time.perf_counter() + options.seconds
    rounds = 0
    while taking_part and (rounds < options.rounds or time.perf_counter() < end):
        measured = {}
        for entry, runner in taking_part:
            key = (entry["threads"] or options.threads, entry["isa"])
            if key not in measured:
                time.sleep(options.pause)
                measured[key] = limits.measure(options.peak, *key, bandwidth=case.traffic > 0)
            entry["limits"].append(measured[key])
        for entry, runner in taking_part:
            entry["seconds"].append(runner.turn(options.pause, options.turn))
        rounds += 1


def measure(case, entrants, options, cpu):
    found = prepared(case, entrants, options)
    running = [(entry, runner) for entry, runner in found.values() if runner]
    try:
        alternate(case, running, options)
        for entry, runner in running:
            results.judge(case, entry, runner.error())
    finally:
        for _, runner in running:
            runner.close()
    unit = grids.GRIDS[options.grid].unit if options.grid else None
    entries = {name: entry for name, (entry, _) in found.items()}
    return results.summarise(case, entries, cpu, unit)


def measured(options):
    """Measures and prints each case as it is done. What --json writes."""
    cases, entrants = chosen(options)
    if not options.peak.is_file():
        sys.exit(f"compare.py: {options.peak} is missing: build it with ./dev build, or name "
                 "another with --peak")
    os.environ["REGARD_NUM_THREADS"] = str(options.threads)  # read when regard is imported
    machine = limits.measure(options.peak, options.threads)
    entrants = without_missing_isa(entrants, machine["isa_available"])
    if os.getloadavg()[0] > 0.5:  # two threads that spin for each other collapse beside a third
        print(f"warning: the load average is {os.getloadavg()[0]:.1f}, so other work runs here; "
              "libraries whose threads spin suffer most")
    print(f"cpu {machine['cpu_model']}, {machine['isa_available']}, threads {options.threads}, "
          f"layout {options.layout}; GFLOP/s, for decode GB/s of K and V (share of the machine's "
          "limit)", flush=True)
    run = {"schema_version": 1, "cpu": machine["cpu_model"], "threads": options.threads,
           "grid": "cases" if options.case else options.grid or "forward",
           "date": time.strftime("%Y-%m-%d"),
           "versions": versions(entrant.library for entrant in entrants), "rows": []}
    for case in cases:
        row = measure(case, entrants, options, machine["cpu_model"])
        run["rows"].append(row)
        explained = report.reasons(row) if options.case or options.grid == "overhead" else []
        print("\n".join([report.line(row), *explained]), flush=True)
        if options.json:  # a long run that is interrupted leaves what it has
            options.json.write_text(json.dumps(run, indent=1) + "\n")
    return run


def versions(libraries):
    """{other library that takes part: its version}."""
    packages = {"torch": "torch", "onnxruntime": "onnxruntime", "openvino": "openvino",
                "ggml": "libggml-python"}
    return {name: metadata.version(packages[name]) for name in libraries if name in packages}


def show(files, grid, options):
    """Writes the tables of machines' files, and the plot of a grid of the last one."""
    if options.markdown:
        grids_shown = dict.fromkeys(grid for file in files for grid in file["grids"])
        text = "\n".join(tables.markdown(files, grid) for grid in grids_shown)
        options.markdown.write_text(text)
    if options.plot:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        file = files[-1]
        drawings = plot.headline(file) if grid == "headline" else plot.whole_grid(file, grid)
        for theme, drawing in drawings.items():
            options.plot.with_name(f"{options.plot.name}-{theme}.svg").write_text(drawing)


def main():
    options = arguments()
    try:
        sources = [json.loads(path.read_text()) for path in options.sources] or [measured(options)]
        files = [file for file in sources if "grids" in file]  # what --results wrote
        runs = [file for file in sources if "rows" in file]  # what --json wrote
        if runs:
            file = published.read(options.results)
            for run in runs:
                file = published.merge(file, run, options.setup)
            if options.results:
                options.results.parent.mkdir(parents=True, exist_ok=True)
                options.results.write_text(published.text_of(file))
            files.append(file)
        show(files, options.grid or (runs[-1]["grid"] if runs else "headline"), options)
    except (CaseError, ValueError, OSError) as error:
        sys.exit(f"compare.py: {error}")
    rows = [row for run in runs for row in run["rows"]]
    if rows and options.sources and not options.targets:
        print("\n".join(report.line(row) for row in rows))
    if options.targets:
        print("\n".join(report.target_lines(rows)))


if __name__ == "__main__":
    main()
