"""Exported graphs, run by ONNX Runtime and OpenVINO, against regard at two shapes."""

import numpy as np
import pytest

import regard

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
openvino = pytest.importorskip("openvino")

import regard.onnx  # noqa: E402

CASES = {
    "plain": "", "causal": "causal diag=tl", "bottom_right": "causal diag=br",
    "offset": "causal diag=-2", "window": "window=2,1 diag=br", "grouped": "hkv2",
    "head_dims": "dv24 hkv1", "scale": "scale=0.3", "softcap": "softcap=1.5 causal diag=tl",
    "mask": "mask", "mask_keys": "mask=B,1,1,Skv", "dead_rows": "mask causal diag=br",
    "bias": "bias=1,H,Sq,Skv", "bias_and_mask": "bias=B,1,1,Skv mask=1,1,Sq,Skv",
    "alibi": "alibi diag=br", "lengths": "lens causal diag=br", "length_of_keys": "lens=kv hkv2",
    "segments": "segments", "sinks": "sinks mask", "lse": "lse lens mask",
    "sinks_lse": "sinks lse lens",
    "per_sequence": "causal diag=seq", "f16": "f16 causal diag=tl", "f64": "f64 mask",
}
NOT_FUSED = {"sinks", "lse", "sinks_lse"}


def values(model, batch, sq, skv, seed):
    """Numbers for each of the graph's inputs, and the keywords of regard.attention."""
    rng, feeds = np.random.default_rng(seed), {}
    extents = {"batch": batch, "seqlen_q": sq, "seqlen_kv": skv}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [d.dim_value or extents[d.dim_param] for d in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        name = value.name
        if dtype == bool:
            feeds[name] = rng.random(shape) < 0.6
            feeds[name][0, 0, 0] = False  # a row, or a sequence, that sees nothing
        elif name.startswith("seqlens"):
            longest = sq if name.endswith("_q") else skv
            feeds[name] = rng.integers(0, longest + 1, shape).astype(dtype)
        elif np.issubdtype(dtype, np.integer):
            feeds[name] = rng.integers(0, 3, shape).astype(dtype)
        else:
            feeds[name] = rng.standard_normal(shape).astype(dtype)
    return feeds


def expected(case, feeds):
    """What regard computes of the same numbers."""
    words = dict(word.partition("=")[::2] for word in case.split())
    keywords = {k: v for k, v in feeds.items() if k not in ("q", "k", "v")}
    diagonal = words.get("diag")
    if diagonal is not None and diagonal != "seq":
        named = {"tl": "top_left", "br": "bottom_right"}
        keywords["diagonal"] = named.get(diagonal) or int(diagonal)
    if "window" in words:
        keywords["window"] = tuple(int(n) for n in words["window"].split(","))
    for word, name in (("scale", "softmax_scale"), ("softcap", "softcap")):
        if word in words:
            keywords[name] = float(words[word])
    results = regard.attention(feeds["q"], feeds["k"], feeds["v"], is_causal="causal" in words,
                               return_lse="lse" in words, **keywords)
    return results if "lse" in words else (results,)


def in_onnxruntime(model, feeds):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, feeds)


def in_openvino(model, feeds):
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU",
                                  {"INFERENCE_PRECISION_HINT": "f32"})
    found = compiled(feeds)
    return [found[compiled.output(value.name)] for value in model.graph.output]


def run_both(name, fused):
    case = f"b2 hq4 sq5 skv7 d16 {CASES[name]}"
    model = regard.onnx.export_attention(case, fused=fused)
    assert model.opset_import[0].version == (23 if fused else 17)
    assert ("Attention" in {node.op_type for node in model.graph.node}) == fused
    rounded = 4e-3 if " f16" in case else 2e-6
    # OpenVINO turns f64 into f32, and the -inf of its constants into the lowest number.
    engines = (in_onnxruntime,) if " f64" in case else (in_onnxruntime, in_openvino)
    for batch, sq, skv in ((2, 5, 7), (3, 6, 4)):
        feeds = values(model, batch, sq, skv, seed=sq)
        for engine in engines:
            for mine, theirs in zip(engine(model, feeds), expected(case, feeds), strict=True):
                assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
                np.testing.assert_allclose(mine, theirs, atol=rounded, rtol=1e-5,
                                           err_msg=f"{name} {engine.__name__} {(batch, sq, skv)}")


@pytest.mark.parametrize("name", CASES)
def test_decomposed(name):
    run_both(name, fused=False)


@pytest.mark.parametrize("name", sorted(set(CASES) - NOT_FUSED))
def test_fused(name):
    run_both(name, fused=True)


def test_from_arrays_and_their_options():
    q = np.zeros((2, 4, 5, 16), np.float32)
    k = np.zeros((2, 2, 7, 16), np.float32)
    mask = np.ones((5, 7), bool)
    model = regard.onnx.export_attention(q, k, k, attn_mask=mask, softcap=2.0, is_causal=True,
                                         diagonal=-1)
    same = regard.onnx.export_attention("b2 hq4 hkv2 sq5 skv7 d16 mask=1,1,Sq,Skv softcap=2 causal "
                                        "diag=-1")
    assert model == same


@pytest.mark.parametrize("case, fused, word", [
    ("sq4 d8 dropout=0.5", False, "dropout has no ONNX graph"),
    ("sq4 d8 packed", False, "packed has no ONNX graph"),
    ("sq4 d8 scores=probs", False, "scores_out has no ONNX graph"),
    ("sq4 d8 kv=bf16", False, "kv=bf16"), ("sq4 d8 sinks", True, "no sinks; expected fused=False"),
    ("sq4 d8 lse", True, "no lse"), ("sq4 d8 softcap=2 bias", True, "softcap"),
    ("sq4 d8 colour", False, "colour"),
])
def test_what_has_no_graph(case, fused, word):
    with pytest.raises(ValueError, match=word):
        regard.onnx.export_attention(case, fused=fused)
    with pytest.raises(TypeError, match=r"fused \(1\)"):
        regard.onnx.export_attention("sq4 d8", fused=1)


@pytest.mark.parametrize("fused", [False, True])
def test_options_that_only_the_call_has(fused):
    """A NumPy offset, positions before heads, slopes for each sequence, a float attn_mask."""
    rng = np.random.default_rng(2)
    q = rng.standard_normal((2, 5, 4, 16)).astype(np.float32)
    k, v = rng.standard_normal((2, 2, 7, 2, 16)).astype(np.float32)
    options = {"layout": "BSHD", "is_causal": True, "diagonal": np.int64(-1),
               "alibi_slopes": rng.random((2, 4), np.float32),
               "attn_mask": rng.standard_normal((5, 7)).astype(np.float32)}
    model = regard.onnx.export_attention(q, k, v, fused=fused, **options)
    feeds = {"q": q, "k": k, "v": v, "alibi_slopes": options["alibi_slopes"],
             "attn_mask": options["attn_mask"][None, None]}
    assert {value.name for value in model.graph.input} == set(feeds)
    for engine in (in_onnxruntime, in_openvino):
        (out,) = engine(model, feeds)
        np.testing.assert_allclose(out, regard.attention(q, k, v, **options), atol=2e-6)


def test_a_fused_graph_needs_a_scale_above_zero():
    q = np.zeros((1, 2, 3, 8), np.float32)
    for scale in (0.0, -0.5):
        with pytest.raises(ValueError, match=rf"softmax_scale \({scale}\) .* fused=False"):
            regard.onnx.export_attention(q, q, q, fused=True, softmax_scale=scale)
