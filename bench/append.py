#!/usr/bin/env python3
"""What appending a row and rotary embedding add to a decode call, for each format of a cache.

    build/peers/bin/python bench/append.py                     # after ./dev bench-peers, which installs regard
    append.py --keys 2048 --batch 8 --format bf16,u4 --threads 1

A call has one query in bf16, --keys keys (2048, the new row among them), 32 query heads, 8 kv heads and
head_dim 128. Each round gives every kind of call a turn: without a new row (read), with one (append),
with one that is rotated as q is (append, rotary), and with keys times the Hadamard matrix besides
(append, rotary, hadamard). Calls go round over caches that no processor's memory holds. Printed are the
median times, and the median over the rounds of the ratio to read: 1.05 is 5 % more.
"""

import argparse
import os
from statistics import median

from harness.ratios import median_ratio
from harness.timing import timed_turn

HEADS, HEADS_KV, DIM = 32, 8, 128
ROTATING_BYTES = 256 << 20
FORMATS = ("bf16", "i8", "u4")
KINDS = ("read", "append", "append, rotary", "append, rotary, hadamard")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--keys", type=int, default=2048, help="of each sequence, with the new row (2048)")
    add("--batch", type=int, default=1, help="sequences (1)")
    add("--format", default=",".join(FORMATS), help="of the cache, with commas between (all)")
    add("--threads", type=int, default=2, help="of a call (2)")
    add("--rounds", type=int, default=15, help="alternations (15)")
    add("--turn", type=float, default=0.1, help="least seconds of a turn (0.1)")
    add("--pause", type=float, default=0.002, help="seconds before each turn (0.002)")
    return parser.parse_args()


def cache_of(name, batch, keys):
    """k, v and the keywords that say what they hold; rows of ones, so that each has memory of its own."""
    import ml_dtypes
    import numpy as np

    shape = (batch, HEADS_KV, keys)
    if name == "bf16":
        return *(np.ones((*shape, DIM), ml_dtypes.bfloat16) for _ in range(2)), {}
    columns, dtype = (DIM // 2, np.uint8) if name == "u4" else (DIM, np.int8)
    numbers = (*shape, 2 * DIM // 32) if name == "u4" else shape
    words = {f"scales_{letter}": np.ones(numbers, np.float32) for letter in "kv"}
    if name == "u4":
        words.update(k_dtype="u4", v_dtype="u4")
    return *(np.ones((*shape, columns), dtype) for _ in range(2)), words


class Calls:
    """A call of each kind on one of several caches."""

    def __init__(self, name, options):
        import ml_dtypes
        import numpy as np

        import regard

        self.attention, self.keys, self.batch = regard.attention, options.keys, options.batch
        self.caches = [cache_of(name, options.batch, options.keys)]
        bytes_of_one = sum(x.nbytes for x in self.caches[0][:2])
        self.caches += [cache_of(name, options.batch, options.keys)
                        for _ in range(ROTATING_BYTES // bytes_of_one)]
        rng = np.random.default_rng(1)
        self.q, self.k_new, self.v_new = (
            rng.standard_normal((options.batch, heads, 1, DIM)).astype(ml_dtypes.bfloat16)
            for heads in (HEADS, HEADS_KV, HEADS_KV))
        angles = np.outer(np.arange(options.keys), 10000.0 ** (-np.arange(0, DIM, 2) / DIM))
        self.tables = [f(angles).astype(np.float32) for f in (np.cos, np.sin)]
        self.lengths = {new: np.full(options.batch, options.keys - new, np.int32) for new in (0, 1)}

    def call(self, kind):
        """A function of the number of a cache."""
        words = {"diagonal": "bottom_right", "is_causal": True}
        if kind != "read":
            words.update(k_new=self.k_new, v_new=self.v_new)
        words["seqlens_kv"] = self.lengths[int(kind != "read")]
        if "rotary" in kind:
            words.update(rotary_cos=self.tables[0], rotary_sin=self.tables[1])
        if "hadamard" in kind:
            words["hadamard"] = True

        def run(i):
            k, v, of_cache = self.caches[i]
            self.attention(self.q, k, v, **of_cache, **words)

        return run


def main():
    options = arguments()
    os.environ["REGARD_NUM_THREADS"] = str(options.threads)  # read when regard is imported
    for name in options.format.split(","):
        if name not in FORMATS:
            raise SystemExit(f"--format ({name}) must be one of {', '.join(FORMATS)}")
        calls = Calls(name, options)
        times = {kind: [] for kind in KINDS}
        for _ in range(options.rounds):
            for kind in KINDS:
                times[kind].append(timed_turn(calls.call(kind), len(calls.caches), options.pause,
                                              options.turn))
        for kind in KINDS:
            print(f"{name:5} b{options.batch} skv{options.keys}  {kind:26} {1e6 * median(times[kind]):9.1f} us"
                  f"  {median_ratio(times[kind], times['read']):6.3f} of read", flush=True)


if __name__ == "__main__":
    main()
