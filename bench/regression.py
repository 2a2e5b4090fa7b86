#!/usr/bin/env python3
"""Is this tree slower than another commit? Advisory: it prints, and never fails for a slow case.

    bench/regression.py                       # the working tree against origin/main, or HEAD~1
    bench/regression.py --base v0.1 --head HEAD --rounds 15
    bench/regression.py "b1 hq8 sq1024 d64 f32 causal" --backend flash

Both are built in build/regression/, then `regard run` of each computes the same tensors in turn,
A B A B: every backend that both can run. A ratio is the head's time over the base's within a round.
A case counts as slower where the median of the ratios is above 1 by more than --threshold and by
more than the spread: half the distance of the quartiles of the ratios, or of the base's own times
from one round to the next.
"""

import argparse
import array
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path
from statistics import median

from harness import ratios
from harness.cases import CaseError, parse_case

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build/regression"
WORKING_TREE = "working tree"
CASES = """
b1 hq12 sq512 d64 f32
b1 hq4 sq1024 d64 f32 causal
b1 hq4 sq1024 d128 f32
b1 hq2 sq1024 d256 f32
b8 hq12 sq128 d32 f32
b1 hq4 sq1021 d80 f32 causal
b1 hq32 hkv8 sq256 d128 f32 causal
b1 hq32 hkv8 sq1 skv4096 d128 f32
b1 hq4 sq1024 d64 bf16
b1 hq4 sq1024 d128 bf16 causal
b1 hq4 sq1024 d128 f16
"""


def git(*words, ok=True):
    done = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False)
    if done.returncode and ok:
        raise ValueError(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip() if not done.returncode else None


def default_base():
    """origin/main where the head is not that commit itself, else the commit before."""
    main = git("rev-parse", "-q", "--verify", "origin/main", ok=False)
    return "origin/main" if main and main != git("rev-parse", "HEAD") else "HEAD~1"


def source_of(commit):
    """(name, folder of the sources): the repository itself, or a copy of the commit's files."""
    if commit == WORKING_TREE:
        return "working-tree", ROOT
    sha = git("rev-parse", "--verify", commit + "^{commit}")[:12]
    source = PLACE / sha / "source"
    if not source.is_dir():
        unpacked = PLACE / sha / "unpacked"
        unpacked.mkdir(parents=True, exist_ok=True)
        files = subprocess.run(["git", "-C", ROOT, "archive", sha], capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", unpacked], input=files.stdout, check=True)
        unpacked.rename(source)
    return sha, source


def build(commit):
    """The command line tool of a commit, built as a release."""
    name, source = source_of(commit)
    folder = PLACE / name / "build"
    jobs = os.environ.get("REGARD_DEV_JOBS", "2")
    for command in (["cmake", "-S", source, "-B", folder, "-G", "Ninja",
                     "-DCMAKE_BUILD_TYPE=Release", "-DREGARD_BUILD_TESTS=OFF",
                     "-DREGARD_BUILD_BENCH=OFF", "-DREGARD_BUILD_EXAMPLES=OFF"],
                    ["cmake", "--build", folder, "-j", jobs, "--target", "regard_cli"]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        if done.returncode:
            raise ValueError(f"{commit} does not build:\n{done.stdout[-4000:]}")
    return next(folder.rglob("tools/regard/regard"))


def values(case, name, count):
    """`count` elements as bytes: one block of normal values again and again, since no time
    depends on them."""
    generator = random.Random(name)
    block = array.array("f", (generator.gauss(0, 1) for _ in range(4099)))
    if case.dtype == "bf16":
        data = array.array("H", block.tobytes())[1::2].tobytes()
    elif case.dtype == "f32":
        data = block.tobytes()
    else:
        data = struct.pack(f"<{len(block)}{'e' if case.dtype == 'f16' else 'd'}", *block)
    size = count * len(data) // len(block)
    return (data * (size // len(data) + 1))[:size]


def tensor_file(case):
    """A safetensors file of the case under build/regression, for `regard run`."""
    path = PLACE / (hashlib.sha256(case.text.encode()).hexdigest()[:16] + ".safetensors")
    if path.is_file():
        return path
    words = ["causal"] * case.causal + [f"diag={case.diagonal}"] * bool(case.diagonal)
    header, data = {"__metadata__": {"regard.options": " ".join(words)}}, []
    begin = 0
    for name, heads, seqlen, head_dim in (
            ("q", case.num_heads_q, case.seqlen_q, case.head_dim_qk),
            ("k", case.num_heads_kv, case.seqlen_kv, case.head_dim_qk),
            ("v", case.num_heads_kv, case.seqlen_kv, case.head_dim_v)):
        shape = [case.batch, heads, seqlen, head_dim]
        data.append(values(case, name, case.batch * heads * seqlen * head_dim))
        header[name] = {"dtype": case.dtype.upper(), "shape": shape,
                        "data_offsets": [begin, begin + len(data[-1])]}
        begin += len(data[-1])
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))
    return path


def turn(tool, path, backend, repeat):
    """{backend: seconds} of one run of the tool; empty where it cannot run the file."""
    command = [tool, "run", path, "--no-check", "--repeat", str(repeat), "--json"]
    command += ["--backend", backend] if backend else ["--all-backends"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)
    except json.JSONDecodeError:
        return {}
    return {r["backend"]: r["seconds"] for r in found.get("results", []) if r.get("seconds")}


def alternate(tools, path, options):
    """{backend: (base seconds, head seconds)}, a number for each round."""
    rounds = []
    for _ in range(options.rounds):
        rounds.append([turn(tool, path, options.backend, options.repeat) for tool in tools])
    common = [b for b in rounds[0][1] if all(b in side for pair in rounds for side in pair)]
    return {b: tuple([pair[side][b] for pair in rounds] for side in (0, 1)) for b in common}


def half_spread(numbers):
    lower, upper = ratios.quartiles(numbers)
    return (upper - lower) / 2


def judge(base, head, threshold):
    """(median ratio, spread, "slower", "faster" or "") of the times of the rounds."""
    found = ratios.ratios(head, base)
    middle = median(found)
    own = half_spread([b / a for a, b in zip(base, base[1:])]) if len(base) > 2 else 0.0
    spread = max(half_spread(found), own)
    limit = max(threshold, spread)
    word = "slower" if middle > 1 + limit else "faster" if middle < 1 / (1 + limit) else ""
    return middle, spread, word


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("case", nargs="*", help="cases, each one argument; in place of the built-in ones")
    add("--base", help="a commit (origin/main, or HEAD~1 where that is the head)")
    add("--head", default=WORKING_TREE, help="a commit (the working tree)")
    add("--backend", help="this backend alone")
    add("--rounds", type=int, default=9, help="alternations a case (9)")
    add("--repeat", type=int, default=5, help="timed runs of a turn; their median counts (5)")
    add("--threshold", type=float, default=0.02, help="least change that counts (0.02)")
    return parser.parse_args()


def compare(options):
    """Prints a line a case and backend; returns those that got slower."""
    texts = options.case or [line for line in CASES.splitlines() if line]
    cases = [parse_case(text) for text in texts]
    base = options.base or default_base()
    PLACE.mkdir(parents=True, exist_ok=True)
    tools = [build(base), build(options.head)]
    print(f"time of {options.head} over {base}: median of {options.rounds} rounds, their spread")
    slower = []
    for case in cases:
        found = alternate(tools, tensor_file(case), options)
        for backend, (before, after) in found.items():
            middle, spread, word = judge(before, after, options.threshold)
            times = f"{median(before) * 1e3:9.3f} ms -> {median(after) * 1e3:9.3f} ms"
            print(f"{case.text:38s} {backend:10s} {times}  {middle:.3f} +- {spread:.3f}  {word}",
                  flush=True)
            if word == "slower":
                slower.append(f"{case.text} ({backend}): {(middle - 1) * 100:+.1f} %")
        if not found:
            print(f"{case.text:38s} nothing that both can run")
    return slower


def main():
    try:
        slower = compare(arguments())
    except (CaseError, ValueError, OSError) as error:
        sys.exit(f"regression.py: {error}")
    print("\n".join(["slower by more than the noise:", *slower] if slower
                    else ["no case is slower by more than the noise"]))


if __name__ == "__main__":
    main()
