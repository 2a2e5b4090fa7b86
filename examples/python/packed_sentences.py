"""Real sentences of several lengths: padded with lengths, padded with a mask, and packed.

    python packed_sentences.py [FILE]

FILE is examples/data/minilm.safetensors: queries, keys and values of the encoder all-MiniLM-L6-v2.
"""

import json
import pathlib
import sys
import timeit

import numpy as np

import regard

DATA = pathlib.Path(__file__).resolve().parents[1] / "data" / "minilm.safetensors"
DTYPES = {"F32": np.float32, "I32": np.int32}


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        array = np.frombuffer(data[begin + first:begin + last], DTYPES[entry["dtype"]])
        arrays[name] = array.reshape(entry["shape"])
    return arrays


def milliseconds(call):
    """The median of 9 repeats."""
    runs = timeit.repeat(call, number=20, repeat=9)
    return 1e3 * sorted(runs)[4] / 20


arrays = read_safetensors(sys.argv[1] if len(sys.argv) > 1 else DATA)
seqlens = arrays["seqlens_kv"]
q, k, v = (arrays[name].transpose(0, 2, 1, 3) for name in "qkv")  # [batch, positions, heads, dim]
mask = np.arange(k.shape[1]) < seqlens[:, None]

# Once for the batch; an encoder packs its hidden states before the first layer, not in each.
packed_q, lengths = regard.unpad(q, seqlens=seqlens)
packed_k, packed_v = (regard.unpad(x, lengths=lengths)[0] for x in (k, v))
print(f"{lengths.num_sequences} sentences, {lengths.total} of {mask.size} positions hold a token")

calls = {
    "padded, lengths": lambda: regard.attention(q, k, v, layout="BSHD", seqlens_q=seqlens,
                                                seqlens_kv=seqlens),
    "padded, mask": lambda: regard.attention(q, k, v, layout="BSHD",
                                             attn_mask=mask[:, None, None]),
    "packed": lambda: regard.attention(packed_q, packed_k, packed_v, lengths=lengths),
}
expected = calls["padded, lengths"]()
for name, call in calls.items():
    out = regard.pad(call(), lengths) if name == "packed" else call()
    difference = float(np.abs(out[mask] - expected[mask]).max())
    print(f"{name:16} {milliseconds(call):7.3f} ms, differs by {difference:.1e} at the tokens")
    assert difference < 1e-5

packed = regard.pad(calls["packed"](), lengths)
assert np.array_equal(packed[mask], expected[mask])  # the same bits
assert not packed[~mask].any()  # padding is exactly 0
