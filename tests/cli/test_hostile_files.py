"""`regard run`, `explain` and `bench` on files whose tensors do not fit each other, or are empty and
huge."""

import os
import random
import struct
import unittest

from _cli import NO_BACKEND, OK, USAGE, CliTest, floats, ints, qkv, tensor_file

HUGE = 1 << 40
# Files drawn for the random test; more with REGARD_DEV_CLI_FILES=N.
FILES = int(os.environ.get("REGARD_DEV_CLI_FILES", "60"))


def empty(batch, heads_q, heads_kv, sq, skv, dim=4):
    """q, k and v without elements."""
    return {
        "q": ("F32", [batch, heads_q, sq, dim], b""),
        "k": ("F32", [batch, heads_kv, skv, dim], b""),
        "v": ("F32", [batch, heads_kv, skv, dim], b""),
    }


class Hostile(CliTest):
    def put_file(self, tensors, options=None):
        return self.put("in.safetensors", tensor_file(tensors, options))


class Gradients(Hostile):
    """--grad checks what describe and execute check before the oracle reads a tensor."""

    def refused_file(self, tensors, *names, args=()):
        path = self.put_file(tensors)
        for flags in (["--grad"], ["--grad", "--all-backends"], ["--grad", "--backend", "math"]):
            self.refused("run", path, *flags, *args, names=names)
        self.refused("explain", path, "--grad", *args, names=names)
        self.refused("bench", path, "--grad", "--rounds", "1", *args, names=names)

    def test_lengths_beyond_the_tensors(self):
        one = qkv(1, 1, 1, 1, 1, 1)
        for name in ("seqlens_q", "seqlens_kv"):
            for length in (2, -1, 2**31 - 1, -(2**31)):
                lengths = {name: ("I32", [1], ints(length))}
                self.refused_file({**one, **lengths}, f"{name}[0] ({length})", "0 to 1")
        self.refused_file({**qkv(), "seqlens_q": ("I32", [2], ints(3, 4))}, "seqlens_q[1] (4)")

    def test_d_lse_of_another_shape(self):
        for shape in ([2, 2, 2], [1, 2, 3], [2, 1, 3], [2, 2], [12], [2, 2, 3, 1], [0, 2, 3]):
            count = 1
            for extent in shape:
                count *= extent
            d_lse = ("F32", shape, floats(count))
            self.refused_file({**qkv(), "d_lse": d_lse}, "d_lse", "[B,Hq,Sq]")
        wide = struct.pack("<12d", *range(12))
        self.refused_file({**qkv(), "d_lse": ("F64", [2, 2, 3], wide)}, "d_lse", "f32")

    def test_d_lse_that_ends_far_before_the_rows(self):
        tensors = {**qkv(1, 1, 1, 20000, 1, 1), "d_lse": ("F32", [1, 1, 2], floats(2))}
        self.refused_file(tensors, "d_lse")

    def test_d_out_of_another_type(self):
        halves = struct.pack("<48e", *(i / 16 for i in range(48)))
        self.refused_file({**qkv(), "d_out": ("F16", [2, 2, 3, 4], halves)}, "d_out", "f32")


def random_tensor(rng, extents, dtypes):
    """Mostly what fits: a shape of `extents`, now and then changed, and bytes of its size."""
    shape = list(extents)
    if rng.random() < 0.3:
        shape[rng.randrange(len(shape))] = rng.choice([0, 1, 2, 3, 7])
    if rng.random() < 0.1:
        shape = shape[:-1] if rng.random() < 0.5 else [*shape, rng.choice([1, 2])]
    dtype = dtypes[0] if rng.random() < 0.9 else rng.choice(dtypes)
    width = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2}.get(dtype, 1)
    count = 1
    for extent in shape:
        count *= extent
    if dtype in ("I32", "I64"):
        code = "i" if dtype == "I32" else "q"
        numbers = (rng.choice([0, 1, 2, 2, 3, 4, -1]) for _ in range(count))
        values = struct.pack(f"<{count}{code}", *numbers)
    elif dtype == "F32":
        values = floats(count, rng.randrange(11))
    else:
        values = bytes(rng.choice([0, 1]) for _ in range(count * width))
    return dtype, shape, values


def random_file(rng):
    """A problem of random extents; any of its tensors may not fit."""
    b, hq, sq, skv, d = (rng.choice([1, 2, 3]) for _ in range(5))
    hkv = rng.choice([1, hq])
    real = ["F32", "F16", "BF16", "F64", "F8_E4M3", "F8_E5M2", "I64", "U8", "BOOL"]
    whole = ["I32", "I64", "F32", "U8"]
    shapes = {
        "q": ([b, hq, sq, d], real),
        "k": ([b, hkv, skv, d], real),
        "v": ([b, hkv, skv, d], real),
    }
    optional = {
        "attn_mask": ([b, hq, sq, skv], ["BOOL", "U8", "F32", "I64"]),
        "attn_bias": ([1, hq, sq, skv], real),
        "alibi_slopes": (rng.choice([[hq], [b, hq]]), real),
        "sinks": ([hq], real),
        "segment_ids_q": ([b, sq], whole),
        "segment_ids_kv": ([b, skv], whole),
        "seqlens_q": ([b], whole),
        "seqlens_kv": ([b], whole),
        "diagonal_offsets": ([b], ["I64", "I32", "F64"]),
        "descale_k": (rng.choice([[1], [b, hkv]]), real),
        "cu_seqlens_q": ([b + 1], whole),
        "page_table": ([b, 2], whole),
        "d_out": ([b, hq, sq, d], real),
        "d_lse": ([b, hq, sq], real),
    }
    for name in rng.sample(sorted(optional), rng.choice([0, 1, 1, 2, 3])):
        shapes[name] = optional[name]
    return {name: random_tensor(rng, *of) for name, of in shapes.items()}


def complaint(done):
    """What is wrong, without the function that found it."""
    return done.stderr.partition("] ")[2]


class RandomFiles(Hostile):
    def test_an_answer_or_a_complaint(self):
        rng = random.Random(20)
        codes = []
        for _ in range(FILES):
            path = self.put_file(random_file(rng))
            options = rng.choice(["", "causal diag=br", "diag=tl", "diag=offset", "layout=bshd"])
            args = [path, "--option", options or "seed=1"]
            if rng.random() < 0.7:
                args.append("--grad")
            with self.subTest(tensors=path.read_bytes()[8:600], options=options):
                done = self.cli("run", *args, "--repeat", "1", code=(OK, USAGE, NO_BACKEND))
                self.assertEqual(done.stderr == "", done.returncode == OK, done.stderr)
                codes.append(done.returncode)
                # explain finds what run would find.
                explained = self.cli("explain", *args, code=done.returncode)
                if done.returncode == USAGE:
                    self.assertEqual(complaint(explained), complaint(done))
        for code in (OK, USAGE):
            self.assertIn(code, codes, "the files are all alike")


class EmptyAndHuge(Hostile):
    """Extents that no element goes with cost no time."""

    SHAPES = (
        (HUGE, 1, 1, 0, 0),
        (1, HUGE, HUGE, 0, 0),
        (1, HUGE, 1, 0, 0),
        (1 << 20, 1 << 20, 1 << 20, 0, 0),
        (1, 0, 0, HUGE, HUGE),
        (1 << 20, 0, 0, 1 << 20, 5),
        (0, 1, 1, HUGE, HUGE),
    )

    def at_once(self, *args):
        self.cli(*args, timeout=20)

    def test_run(self):
        paths = [self.put(f"{n}.safetensors", tensor_file(empty(*shape))) for n, shape in enumerate(self.SHAPES)]
        for path, shape in zip(paths, self.SHAPES):
            for flags in ([], ["--grad"], ["--no-check"], ["--profile"]):
                with self.subTest(shape=shape, flags=flags):
                    self.at_once("run", path, "--repeat", "1", *flags)
            for flags in ([], ["--grad"]):
                self.at_once("explain", path, *flags)
        for flags in ([], ["--grad"]):
            # One thread: the rates of more take a second, and `run` has them all.
            self.at_once("bench", *paths, "--rounds", "1", "--threads", "1", *flags)

    def test_check(self):
        for words in (f"b{HUGE} sq0 skv0", f"hq{HUGE} sq0 skv0", f"hq0 hkv0 sq{HUGE} skv8"):
            with self.subTest(words=words):
                self.at_once("check", f"{words} d8 f32 lse")
                self.at_once("check", f"{words} d8 f32 saved grad", "--backend", "flash")


if __name__ == "__main__":
    unittest.main()
