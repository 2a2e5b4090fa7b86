"""The machine's own limits, from regard_peak."""

import json
import subprocess


def measure(program, threads, isa=None, bandwidth=False):
    """One measurement: {"cpu_model", "isa_available", "threads", "f32_gflops": {isa: rate},
    "bf16_gflops": {isa: rate}, "read_gbps"}; `isa` None is the best of the machine."""
    command = [str(program), "--threads", str(threads)]
    command += ["--isa", isa] if isa else []
    command += ["--bandwidth"] if bandwidth else []
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def arithmetic_of(case, found, isa=None):
    """(kind, GFLOP/s): bf16 dot products for bf16 where the instruction set has them and they are faster (on
    Intel's CPUs they have half the rate of f32), else multiply-adds in f32, half of that in f64."""
    isa = isa or found["isa_available"]
    f32, pairs = found["f32_gflops"][isa], found["bf16_gflops"].get(isa, 0)
    if case.dtype == "bf16" and pairs > f32:
        return "bf16_gflops", pairs
    return ("f64_gflops", f32 / 2) if case.dtype == "f64" else ("f32_gflops", f32)


def limit_of(case, found, isa=None):
    """(kind, the smallest number of seconds that it allows). Decode and short sequences have two limits, memory
    traffic and arithmetic: which one binds depends on how many rows share a key."""
    kind, gflops = arithmetic_of(case, found, isa)
    limits = [(case.flops / (gflops * 1e9), kind)]
    if case.traffic:
        limits.append((case.traffic / (found["read_gbps"] * 1e9), "read_gbps"))
    seconds, kind = max(limits)
    return kind, seconds
