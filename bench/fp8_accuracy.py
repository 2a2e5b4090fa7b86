#!/usr/bin/env python3
"""How far attention of 8-bit floats is from float64, beside bfloat16: the table of docs/numerics.md.

    python3 bench/fp8_accuracy.py

Each tensor is rounded once and everything else is float64: what CPU kernels compute, but for the rounding of
float32. Root mean square of the error of out over that of out, and of d_q likewise, in percent.
"""

import json
import pathlib
import struct

import numpy as np

from regard import fp8

MINILM = pathlib.Path(__file__).parent.parent / "examples" / "data" / "minilm.safetensors"


def normal(rng, shape):
    return rng.standard_normal(shape)


def outliers(rng, shape):
    """FlashAttention 3's: one number in a thousand is ten times as large."""
    return rng.standard_normal(shape) + 10 * rng.standard_normal(shape) * (rng.random(shape) < 1e-3)


def large_column(rng, shape):
    """One column of q and k is 8 times as large as the others, as keys of real models have."""
    x = rng.standard_normal(shape)
    x[..., 3] *= 8
    return x


def minilm():
    """q, k and v of a layer of a real encoder: the first sequence's, without its padding."""
    data = MINILM.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    tensors, body = json.loads(data[8:8 + size]), data[8 + size:]

    def read(name, dtype):
        begin, end = tensors[name]["data_offsets"]
        return np.frombuffer(body[begin:end], dtype).reshape(tensors[name]["shape"])

    length = next((int(read(n, np.int32)[0]) for n in ("seqlens_kv", "seqlens_q", "lengths")
                   if n in tensors), None)
    arrays = [read(n, np.float32)[:1].astype(np.float64) for n in "qkv"]
    if arrays[0].shape[1] > arrays[0].shape[2]:  # positions before heads
        arrays = [x.swapaxes(1, 2) for x in arrays]
    return [x[:, :, :length] for x in arrays]


def hadamard(x):
    size = x.shape[-1]
    matrix = np.ones((1, 1))
    while matrix.shape[0] < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return x @ (matrix / np.sqrt(size))


def attention(q, k, v, d_out):
    scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3])
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    d_p = d_out @ v.swapaxes(2, 3)
    d_s = p * (d_p - (p * d_p).sum(-1, keepdims=True))
    return p @ v, d_s @ k / np.sqrt(q.shape[3])


def in_bf16(x, backward=False):
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


def in_f8(recipe):
    def rounded(x, backward=False):
        state = recipe.new_state(backward)
        if hasattr(recipe, "spread"):
            state.step(recipe.amax_of(x, backward))
            scale = recipe.spread(state.scale, x.shape, backward)
        else:
            state.step(np.abs(x).max())
            scale = np.float32(state.scale)
        codes = fp8.quantize(x.astype(np.float32), state.form.name, scale=scale)
        return fp8.dequantize(codes, state.form.name).astype(np.float64) / scale

    return rounded


FORMS = [("bf16", in_bf16), ("one scale", in_f8(fp8.Float8CurrentScaling())),
         ("1 x 128", in_f8(fp8.Float8BlockScaling())), ("MXFP8", in_f8(fp8.MXFP8BlockScaling()))]


def error(got, want):
    return 100 * np.sqrt(np.mean((got - want) ** 2) / np.mean(want ** 2))


def main():
    rng = np.random.default_rng(0)
    inputs = {name: [make(rng, (1, 4, 512, 128)) for _ in range(3)]
              for name, make in (("normal", normal), ("outliers", outliers), ("a large column", large_column))}
    inputs["MiniLM"] = minilm()
    print("| input | of |", " | ".join(name for name, _ in FORMS), "| one scale, Hadamard |")
    print("|---|---|" + "---|" * (len(FORMS) + 1))
    for name, (q, k, v) in inputs.items():
        d_out = rng.standard_normal((*q.shape[:3], v.shape[3]))
        want = attention(q, k, v, d_out)
        columns = [attention(*(rounded(x) for x in (q, k, v)), rounded(d_out, True))
                   for _, rounded in FORMS]
        rounded = FORMS[1][1]
        turned = attention(rounded(hadamard(q)), rounded(hadamard(k)), rounded(v), rounded(d_out, True))
        columns.append((turned[0], hadamard(turned[1])))  # the matrix is its own inverse
        for at, result in enumerate(("out", "d_q")):
            cells = " | ".join(f"{error(c[at], want[at]):.2g} %" for c in columns)
            print(f"| {name} | {result} | {cells} |")


if __name__ == "__main__":
    main()
