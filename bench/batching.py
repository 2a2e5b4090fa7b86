#!/usr/bin/env python3
"""An engine that decodes up to 64 sequences at a time: regard over pages, and PyTorch's sdpa on
contiguous caches, with the same sequences batch by batch.

    build/peers/bin/python bench/batching.py                   # a minute of each, two threads
    batching.py --seconds 10 --every 32 --way mask
    batching.py --json batching.json

regard is examples/continuous_batching: a layer of 32 query heads, 8 kv heads and head_dim 128 in bf16,
sequences that join as others end, rows appended in the call. Batch n of PyTorch has the sequences and
lengths of batch n of the example. Its caches are [64, 8, capacity, 128] tensors, a row of a sequence
each; new rows are copied there, then attention is one of these, --way (each, of which the fastest in the
first batches goes on):

    mask    one sdpa over all sequences and the longest length, with a boolean mask; the 4 query heads
            of a kv head are rows of one head, so that nothing is repeated
    gqa     the same with enable_gqa=True
    each    an sdpa of each sequence over its own rows, without a mask

A figure is tokens a second of appending and attention; the random rows that stand for a model's
projections are made before. Ratios are regard over PyTorch: above 1 regard is faster.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADS, HEADS_KV, DIM = 32, 8, 128
BATCH, PAGE_SIZE, NUM_PAGES = 64, 16, 2048
CAPACITY = 600  # rows of the longest sequence
WAYS = ("mask", "gqa", "each")
TRIAL = 8  # batches that each way computes before one goes on
LINE = re.compile(r"batches +(\d+) to +(\d+): +([\d.]+) sequences of +([\d.]+) keys, +(\d+) tokens")
TOTAL = re.compile(r"decode +(\d+) tokens in +(\d+) calls, +(\d+) tokens a second")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--seconds", type=float, default=60.0, help="of each of both (60)")
    add("--every", type=int, default=64, help="batches of a line (64)")
    add("--threads", type=int, default=2, help="of each of both (2)")
    add("--way", choices=WAYS, help="of PyTorch's attention (the fastest)")
    add("--example", type=Path, default=ROOT / "build/release/examples/continuous_batching",
        help="the built example (build/release/examples/continuous_batching)")
    add("--json", type=Path, help="write every line there")
    return parser.parse_args()


class Schedule:
    """The sequences of each batch of examples/continuous_batching.cc: the same numbers, the same rules."""

    def __init__(self):
        self.next, self.free = 0, NUM_PAGES
        self.slots = list(range(BATCH - 1, -1, -1))
        self.active = []  # [slot, length, last, pages]

    def join(self):
        """Slots and prompts of sequences that begin."""
        joined = []
        while len(self.active) < BATCH:
            prompt = 16 + self.next * 7919 % 385
            last = prompt + 20 + self.next * 104729 % 181
            pages = -(-last // PAGE_SIZE)
            if pages > self.free:
                break
            self.free -= pages
            slot = self.slots.pop()
            self.active.append([slot, prompt, last, pages])
            joined.append((slot, prompt))
            self.next += 1
        return joined

    def batch(self):
        """Slots and lengths before the batch."""
        return [each[0] for each in self.active], [each[1] for each in self.active]

    def advance(self):
        for each in self.active:
            each[1] += 1
        for slot, length, last, pages in self.active:
            if length >= last:
                self.slots.append(slot)
                self.free += pages
        self.active = [each for each in self.active if each[1] < each[2]]


class Torch:
    """PyTorch's side: caches, and the three ways."""

    def __init__(self):
        import torch

        self.torch = torch
        self.sdpa = torch.nn.functional.scaled_dot_product_attention
        shape = (BATCH, HEADS_KV, CAPACITY, DIM)
        self.k, self.v = (torch.zeros(shape, dtype=torch.bfloat16) for _ in range(2))
        self.columns = torch.arange(CAPACITY)

    def rows(self, batch, heads, count=1):
        return self.torch.rand(batch, heads, count, DIM).mul_(2).sub_(1).bfloat16()

    def prefill(self, slot, prompt):
        """Seconds."""
        q, k, v = (self.rows(1, heads, prompt) for heads in (HEADS, HEADS_KV, HEADS_KV))
        begin = time.perf_counter()
        self.k[slot, :, :prompt], self.v[slot, :, :prompt] = k[0], v[0]
        self.sdpa(q, k, v, is_causal=True, enable_gqa=True)
        return time.perf_counter() - begin

    def decode(self, slots, lengths, way):
        """Seconds."""
        torch, count = self.torch, len(slots)
        q, k, v = (self.rows(count, heads) for heads in (HEADS, HEADS_KV, HEADS_KV))
        begin = time.perf_counter()
        where, at = torch.tensor(slots), torch.tensor(lengths)
        self.k[where, :, at], self.v[where, :, at] = k[:, :, 0], v[:, :, 0]
        getattr(self, f"_{way}")(q, slots, lengths)
        return time.perf_counter() - begin

    def _all(self, q, slots, lengths, grouped):
        """Over all slots: one without a sequence has a query of zeros on its first row."""
        torch, where, longest = self.torch, self.torch.tensor(slots), max(lengths) + 1
        ends = torch.zeros(BATCH, dtype=torch.long)
        ends[where] = torch.tensor(lengths)
        mask = (self.columns[:longest] <= ends[:, None])[:, None, None]
        rows = torch.zeros(BATCH, HEADS, 1, DIM, dtype=q.dtype)
        rows[where] = q
        k, v = self.k[:, :, :longest], self.v[:, :, :longest]
        if grouped:
            rows = rows.view(BATCH, HEADS_KV, HEADS // HEADS_KV, DIM)
            out = self.sdpa(rows, k, v, attn_mask=mask).reshape(BATCH, HEADS, 1, DIM)
        else:
            out = self.sdpa(rows, k, v, attn_mask=mask, enable_gqa=True)
        return out[where]

    def _mask(self, q, slots, lengths):
        return self._all(q, slots, lengths, True)

    def _gqa(self, q, slots, lengths):
        return self._all(q, slots, lengths, False)

    def _each(self, q, slots, lengths):
        made = self.torch.empty_like(q)
        for n, (slot, length) in enumerate(zip(slots, lengths)):
            k, v = (x[slot:slot + 1, :, :length + 1] for x in (self.k, self.v))
            rows = q[n:n + 1].view(1, HEADS_KV, HEADS // HEADS_KV, DIM)
            made[n] = self.sdpa(rows, k, v).view(HEADS, 1, DIM)
        return made


def check_ways(side, slots, lengths):
    """Raises unless all ways compute the same attention."""
    q = side.rows(len(slots), HEADS)
    outs = {way: getattr(side, f"_{way}")(q, slots, lengths).float() for way in WAYS}
    for way, out in outs.items():
        error = (out - outs["each"]).abs().max().item()
        if not error < 0.03:  # bf16
            raise RuntimeError(f"the way {way!r} differs from 'each' by {error}, expected less than 0.03")


def choose(side, slots, lengths):
    """The way with the least time of TRIAL calls each."""
    best = {way: min(side.decode(slots, lengths, way) for _ in range(TRIAL)) for way in WAYS}
    print("PyTorch, ms of the first batch: " +
          ", ".join(f"{way} {1e3 * seconds:.2f}" for way, seconds in best.items()), flush=True)
    return min(best, key=best.get)


def pytorch(options):
    """Lines of (first, last, sequences, keys, tokens a second), the total, and the way."""
    side, schedule, way = Torch(), Schedule(), options.way
    side.torch.manual_seed(0)
    side.torch.set_num_threads(options.threads)
    lines, tokens, keys, seconds, calls = [], 0, 0, 0.0, 0
    all_tokens, all_seconds = 0, 0.0
    start = time.perf_counter()
    with side.torch.inference_mode():
        while time.perf_counter() - start < options.seconds:
            for slot, prompt in schedule.join():
                side.prefill(slot, prompt)
            slots, lengths = schedule.batch()
            if calls == 0 and not lines:
                check_ways(side, slots, lengths)
                way = way or choose(side, slots, lengths)
                start = time.perf_counter()
            took = side.decode(slots, lengths, way)
            schedule.advance()
            tokens, seconds, calls = tokens + len(slots), seconds + took, calls + 1
            keys += sum(lengths) + len(lengths)
            all_tokens, all_seconds = all_tokens + len(slots), all_seconds + took
            if calls == options.every:
                first = len(lines) * options.every
                lines.append((first, first + calls - 1, tokens / calls, keys / tokens, tokens / seconds))
                tokens, keys, seconds, calls = 0, 0, 0.0, 0
    return lines, all_tokens / all_seconds, way


def regard(options):
    """The same of the example."""
    command = [options.example, "--seconds", str(options.seconds), "--every", str(options.every),
               "--threads", str(options.threads)]
    done = subprocess.run(list(map(str, command)), text=True, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{options.example} ended with {done.returncode}: {done.stdout}{done.stderr}")
    lines = [(int(a), int(b), float(c), float(d), float(e)) for a, b, c, d, e in LINE.findall(done.stdout)]
    whole = [line for line in lines if line[1] - line[0] + 1 == options.every]
    return whole, float(TOTAL.search(done.stdout)[3])


def check_same(mine, theirs):
    """Raises unless lines of the same batches have the same sequences."""
    for a, b in zip(mine, theirs):
        if a[:2] != b[:2] or abs(a[2] - b[2]) > 0.06 or abs(a[3] - b[3]) > 0.06:
            raise RuntimeError(f"batches {a[0]} to {a[1]}: the example has {a[2]} sequences of {a[3]} keys, "
                               f"PyTorch {b[2]:.1f} of {b[3]:.1f}")


def main():
    options = arguments()
    if not options.example.is_file():
        sys.exit(f"--example ({options.example}) must be the built example: cmake --build build/release "
                 "--target regard_example_continuous_batching")
    mine, my_total = regard(options)
    theirs, their_total, way = pytorch(options)
    check_same(mine, theirs)
    print(f"{'batches':>13}  sequences   keys   regard, tokens/s   PyTorch ({way})   regard/PyTorch")
    cells = []
    for a, b in zip(mine, theirs):
        print(f"{a[0]:6}-{a[1]:6}  {a[2]:9.1f}  {a[3]:5.0f}  {a[4]:17.0f}  {b[4]:15.0f}  {a[4] / b[4]:15.2f}")
        cells.append(dict(first=a[0], last=a[1], sequences=a[2], keys=a[3], regard=a[4], pytorch=b[4]))
    print(f"all of {options.seconds:g} s each: regard {my_total:.0f} tokens a second, PyTorch "
          f"{their_total:.0f}, {my_total / their_total:.2f}")
    if options.json is not None:
        options.json.write_text(json.dumps(dict(
            seconds=options.seconds, threads=options.threads, way=way, regard=my_total,
            pytorch=their_total, batches=cells), indent=1) + "\n")


if __name__ == "__main__":
    main()
