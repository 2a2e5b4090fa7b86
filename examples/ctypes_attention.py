"""The C ABI from Python, with nothing but ctypes: no extension module is built.

usage: ctypes_attention.py [libregard.so]      without an argument: the one that is installed
"""

import ctypes
import ctypes.util
import json
import math
import random
import sys

FLOAT, CPU = 2, 1  # DLPack's numbers, as in regard.h

TENSORS = """q k v out lse saved_stats scores_out attn_mask attn_bias alibi_slopes sinks
    segment_ids_q segment_ids_kv seqlens_q seqlens_kv cache_leftpad diagonal_offsets cu_seqlens_q
    cu_seqlens_kv page_table scales_k scales_v channel_scales_k scales_q block_mask captured0
    captured1 captured2 captured3 captured4 captured5 captured6 captured7 k_new v_new tree_mask
    rotary_cos rotary_sin positions cache_batch_idx descale_q descale_k descale_v
    out_amax""".split()


class Dtype(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):  # DLPack's DLTensor
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("dtype", Dtype),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Request(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t),
                *[(name, ctypes.POINTER(Tensor)) for name in TENSORS],
                ("diagonal_offset", ctypes.c_int64), ("rng_seed", ctypes.c_uint64),
                ("rng_offset", ctypes.c_uint64), ("dropout_origin", ctypes.c_int64 * 4),
                ("max_seqlen_q", ctypes.c_int64), ("max_seqlen_kv", ctypes.c_int64),
                ("softmax_scale", ctypes.POINTER(ctypes.c_double)),
                ("window_left", ctypes.POINTER(ctypes.c_int64)),
                ("window_right", ctypes.POINTER(ctypes.c_int64)), ("softcap", ctypes.c_double),
                ("dropout_p", ctypes.c_double), ("page_size", ctypes.c_int64),
                ("diagonal", ctypes.c_int32), ("scores_kind", ctypes.c_int32),
                ("is_causal", ctypes.c_int32), ("needs_grad", ctypes.c_int32)]


def load(path):
    regard = ctypes.CDLL(path)
    regard.regard_version.restype = ctypes.c_char_p
    regard.regard_last_error.restype = ctypes.c_char_p
    regard.regard_default_context.restype = ctypes.c_void_p
    text = [ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]
    regard.regard_explain_case.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, *text]
    regard.regard_attention.argtypes = [ctypes.c_void_p, ctypes.POINTER(Request), ctypes.c_void_p,
                                        ctypes.c_void_p]
    return regard


def check(regard, status):
    if status != 0:
        raise RuntimeError(regard.regard_last_error().decode())


def explain_case(regard, context, words):
    needed = ctypes.c_size_t()
    check(regard, regard.regard_explain_case(context, words, None, None, 0, needed))
    buffer = ctypes.create_string_buffer(needed.value)
    check(regard, regard.regard_explain_case(context, words, None, buffer, len(buffer), None))
    return json.loads(buffer.value)


def tensor(data, shape):
    """A Tensor over a ctypes array of floats; both arrays must stay alive with it."""
    return Tensor(data=ctypes.addressof(data), device_type=CPU, ndim=len(shape),
                  dtype=Dtype(FLOAT, 32, 1), shape=shape)


def expected_row(q, k, v, s, scale):
    """Causal attention of query s, by its definition."""
    weights = [math.exp(scale * sum(a * b for a, b in zip(q[s], key))) for key in k[:s + 1]]
    return [sum(w * row[d] for w, row in zip(weights, v)) / sum(weights) for d in range(len(v[0]))]


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else ctypes.util.find_library("regard")
    if path is None:
        sys.exit("libregard.so is not installed; expected its path as an argument")
    regard = load(path)
    context = regard.regard_default_context()
    print("regard", regard.regard_version().decode())

    selection = explain_case(regard, context, b"b1 hq32 hkv8 sq1 skv8192 d128 bf16")
    print("a decode step would run", selection["chosen"], "by", selection["decided_by"])

    seqlen, head_dim, scale = 12, 16, 0.5
    shape = (ctypes.c_int64 * 4)(1, 1, seqlen, head_dim)
    array = ctypes.c_float * (seqlen * head_dim)
    draw = random.Random(1)
    q, k, v = (array(*[draw.uniform(-1, 1) for _ in range(len(array()))]) for _ in range(3))
    out = array()
    tensors = [tensor(data, shape) for data in (q, k, v, out)]
    request = Request(struct_size=ctypes.sizeof(Request), is_causal=1,
                      softmax_scale=ctypes.pointer(ctypes.c_double(scale)))
    request.q, request.k, request.v, request.out = map(ctypes.pointer, tensors)
    check(regard, regard.regard_attention(context, request, None, None))

    def rows(data):
        return [data[s * head_dim:(s + 1) * head_dim] for s in range(seqlen)]

    error = max(abs(a - b) for s in range(seqlen) for a, b in
                zip(rows(out)[s], expected_row(rows(q), rows(k), rows(v), s, scale)))
    print(f"largest error {error:.1e}")
    if not error < 1e-5:
        sys.exit("out is not what the definition gives")

    request.struct_size = 1
    if regard.regard_attention(context, request, None, None) == 0:
        sys.exit("a struct_size of 1 was accepted")
    print("refused:", regard.regard_last_error().decode())
    print("ok")


if __name__ == "__main__":
    main()
