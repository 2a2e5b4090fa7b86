#!/usr/bin/env python3
"""Score and mask functions: regard.torch.flex_attention beside PyTorch's compiled flex_attention, in alternation.

    flex.py                          # ten forms
    flex.py --only documents --rounds 9
    flex.py --json flex.json

One process, the same tensors and functions, block masks of each library's own create_block_mask, no gradients. What the
first call takes (PyTorch: compiling, without its caches; regard: tracing) is printed apart. A turn is one
call to warm up and the best of at least three; a figure is the median over the rounds of PyTorch's time over
regard's within the round. The results are compared before anything is timed.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from statistics import median

from harness import ratios
from harness.timing import timed_turn

HEADS, LENGTH, DEPTH, WINDOW, PREFIX = 8, 2048, 64, 256, 512


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", default="", help="forms whose name contains this")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of both")
    add("--rounds", type=int, default=5, help="alternations a form (5)")
    add("--turn", type=float, default=0.1, help="least seconds of a turn (0.1)")
    add("--pause", type=float, default=0.02, help="seconds before each turn (0.02)")
    add("--json", type=Path, help="write every figure there")
    return parser.parse_args()


def forms():
    """{name: (score_mod, mask_mod)}"""
    import torch

    slopes = torch.exp2(-8.0 * torch.arange(1, HEADS + 1) / HEADS)
    table = torch.randn(HEADS, 2 * LENGTH)
    documents = torch.arange(LENGTH) // 300

    def causal(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx

    def sliding(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx < WINDOW)

    def prefix(b, h, q_idx, kv_idx):
        return (kv_idx < PREFIX) | (q_idx >= kv_idx)

    def document(b, h, q_idx, kv_idx):
        return documents[q_idx] == documents[kv_idx]

    def dilated(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx < 4 * WINDOW) & ((q_idx - kv_idx) % 4 == 0)

    def causal_document(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (documents[q_idx] == documents[kv_idx])

    def alibi(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    def softcap(score, b, h, q_idx, kv_idx):
        return 20 * torch.tanh(score / 20)

    def relative(score, b, h, q_idx, kv_idx):
        return score + table[h, q_idx - kv_idx + LENGTH]

    return {"causal": (None, causal), "sliding window": (None, sliding), "prefix-LM": (None, prefix),
            "documents": (None, document), "ALiBi": (alibi, causal), "softcap": (softcap, None),
            "relative bias": (relative, None), "dilated window": (None, dilated),
            "sliding window, softcap": (softcap, sliding), "causal documents, ALiBi": (alibi, causal_document)}


def seconds_of(call):
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def measure(tensors, score_mod, mask_mod, options):
    """{"first": {library: seconds}, "seconds": {library: [seconds, ...]}}"""
    import torch
    from torch.nn.attention import flex_attention as theirs

    import regard.torch

    torch._dynamo.reset()
    compiled = torch.compile(theirs.flex_attention, fullgraph=True, dynamic=False)
    calls, first, results = {}, {}, {}
    for name, function, create in (("pytorch", compiled, theirs.create_block_mask),
                                   ("regard", regard.torch.flex_attention, regard.torch.create_block_mask)):
        keywords = {"device": "cpu"}
        mask = mask_mod and create(mask_mod, None, None, LENGTH, LENGTH, **keywords)
        calls[name] = lambda _=0, run=function, mask=mask: run(*tensors, score_mod=score_mod, block_mask=mask)
        first[name], results[name] = seconds_of(calls[name])
    torch.testing.assert_close(results["regard"], results["pytorch"], rtol=1e-3, atol=1e-4)
    seconds = {name: [] for name in calls}
    for _ in range(options.rounds):
        for name, times in seconds.items():
            times.append(timed_turn(calls[name], 1, options.pause, options.turn))
    return {"first": first, "seconds": seconds}


def line(name, row):
    over = ratios.ratios(row["seconds"]["pytorch"], row["seconds"]["regard"])
    low, high = ratios.quartiles(over)
    times = "  ".join(f"{key} {1e3 * median(values):7.1f} ms (first {row['first'][key]:6.2f} s)"
                      for key, values in row["seconds"].items())
    return f"{name:24} {times}   pytorch over regard {median(over):.2f} ({low:.2f} to {high:.2f})"


def main():
    options = arguments()
    os.environ["REGARD_NUM_THREADS"] = str(options.threads)  # read when regard is imported
    import torch
    import torch._inductor.config

    torch._inductor.config.force_disable_caches = True
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    tensors = torch.randn(3, 1, HEADS, LENGTH, DEPTH).unbind()
    rows = []
    with torch.inference_mode():
        for name, (score_mod, mask_mod) in forms().items():
            if options.only not in name:
                continue
            row = measure(tensors, score_mod, mask_mod, options)
            rows.append({"form": name, **row})
            print(line(name, row), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"schema_version": 1, "rows": rows}, indent=1) + "\n")
    return 0 if rows else 2


if __name__ == "__main__":
    sys.exit(main())
