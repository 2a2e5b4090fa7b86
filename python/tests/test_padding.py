"""attention(lengths=) of padded tensors: with lengths, with a mask, or packed."""

import json
import pickle

import numpy as np
import pytest

import regard

MASKS = {
    "right": [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]],
    "left": [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1]],
    "holes": [[1, 0, 1, 0, 1], [0, 1, 1, 0, 1], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0]],
    "full": [[1, 1, 1], [1, 1, 1]],
}
CALLS = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"window": (1, 0), "diagonal": "top_left"},
    "alibi": {"alibi_slopes": [0.5, 0.25, 0.125, 0.5], "diagonal": "bottom_right"},
    "softcap": {"softcap": 3.0, "sinks": [0.1, 0.2, 0.3, 0.4]},
}


def tensors(mask, layout="BHSD", heads=4, kv_heads=2, dim=8):
    rng = np.random.default_rng(3)
    batch, seqlen = mask.shape
    made = [rng.standard_normal((batch, h, seqlen, dim)).astype(np.float32)
            for h in (heads, kv_heads, kv_heads)]
    hidden = ~mask[:, None, :, None] & np.ones((1, heads, 1, dim), bool)
    made[0][hidden] = np.nan  # padding never reaches a result
    for x in made[1:]:
        x[hidden[:, :kv_heads]] = np.nan
    return made if layout == "BHSD" else [x.transpose(0, 2, 1, 3) for x in made]


def singles(q, k, v, mask, **words):
    """A loop of single sequences: out and lse, padding 0 and -inf."""
    out = np.zeros_like(q)
    lse = np.full(q.shape[:3], -np.inf, np.float32)
    for b, rows in enumerate(mask):
        if not rows.any():
            continue
        one, one_lse = regard.attention(q[b:b + 1, :, rows], k[b:b + 1, :, rows],
                                        v[b:b + 1, :, rows], return_lse=True, **words)
        out[b][:, rows], lse[b][:, rows] = one[0], one_lse[0]
    return out, lse


@pytest.mark.parametrize("padding", [None, "auto", "padded", "packed"])
@pytest.mark.parametrize("words", CALLS)
@pytest.mark.parametrize("name", MASKS)
def test_equals_a_loop_of_single_sequences(name, words, padding):
    mask = np.array(MASKS[name], bool)
    q, k, v = tensors(mask)
    lengths = regard.Lengths(mask=mask)
    expected, expected_lse = singles(q, k, v, mask, **CALLS[words])
    call = dict(CALLS[words], lengths=lengths, padding=padding, return_lse=True)
    if name == "holes" and words in ("causal", "window", "alibi") and padding == "padded":
        with pytest.raises(ValueError, match=r"padding \(padded\) has no path: .* distances"):
            regard.attention(q, k, v, **call)
        return
    out, lse = regard.attention(q, k, v, **call)
    assert not out[np.broadcast_to(~mask[:, None, :, None], out.shape)].any()
    assert np.isneginf(lse[np.broadcast_to(~mask[:, None], lse.shape)]).all()
    if name in ("right", "full") or padding == "packed":  # lengths and packed: the same bits
        assert np.array_equal(out, expected) and np.array_equal(lse, expected_lse)
    assert np.abs(out - expected).max() < 1e-5
    assert np.allclose(lse, expected_lse, atol=1e-5)


def single_gradients(d_out, q, k, v, mask, **words):
    """The gradients of a loop of single sequences, 0 at padding."""
    made = [np.zeros_like(x) for x in (q, k, v)]
    for b, rows in enumerate(mask):
        if not rows.any():
            continue
        one = [x[b:b + 1, :, rows] for x in (q, k, v)]
        out, saved = regard.attention(*one, return_saved=True, **words)
        gradients = regard.attention_backward(d_out[b:b + 1, :, rows], *one, out, saved, **words)
        for whole, gradient in zip(made, gradients):
            whole[b][:, rows] = gradient[0]
    return made


@pytest.mark.parametrize("padding", [None, "padded", "packed"])
@pytest.mark.parametrize("words", ["plain", "causal", "window", "softcap"])
@pytest.mark.parametrize("name", MASKS)
def test_gradients_equal_those_of_single_sequences(name, words, padding):
    if name == "holes" and words in ("causal", "window") and padding == "padded":
        return  # no way to compute it
    mask = np.array(MASKS[name], bool)
    q, k, v = tensors(mask)
    call = dict(CALLS[words], lengths=regard.Lengths(mask=mask), padding=padding)
    out, lse, saved = regard.attention(q, k, v, return_lse=True, return_saved=True, **call)
    d_out = np.random.default_rng(7).standard_normal(out.shape).astype(np.float32)
    expected = single_gradients(d_out, q, k, v, mask, **CALLS[words])
    hidden = np.broadcast_to(~mask[:, None, :, None], out.shape)
    d_out[hidden] = out[hidden] = np.nan  # nothing of padding reaches a gradient
    exact = name in ("right", "full") or padding == "packed"  # lengths and packed: the same bits
    without_plan = pickle.loads(pickle.dumps(saved))
    for kept in (saved, without_plan, regard.Saved(lse=lse)):
        gradients = regard.attention_backward(d_out, q, k, v, out, kept, **call)
        for gradient, right in zip(gradients, expected):
            assert gradient.shape == right.shape
            assert not gradient[np.broadcast_to(~mask[:, None, :, None], right.shape)].any()
            if exact and kept.kind == "stats":
                assert np.array_equal(gradient, right)
            assert np.abs(gradient - right).max() < 1e-5


@pytest.mark.parametrize("padding", ["padded", "packed"])
def test_gradients_of_bias_and_sinks_in_another_layout(padding):
    mask = np.array(MASKS["right"], bool)
    mask[1, 4] = False  # no sequence has all positions
    q, k, v = tensors(mask)
    bias = np.random.default_rng(1).standard_normal((4, 1, 5, 5)).astype(np.float32)
    sinks = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    seqlens = mask.sum(1).astype(np.int32)
    words = dict(attn_bias=bias, sinks=sinks)
    by_seqlens = dict(words, seqlens_q=seqlens, seqlens_kv=seqlens)
    out, saved = regard.attention(q, k, v, return_saved=True, **by_seqlens)
    d_out = np.random.default_rng(7).standard_normal(out.shape).astype(np.float32)
    expected = regard.attention_backward(d_out, q, k, v, out, saved, **by_seqlens)
    rows = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    call = dict(words, layout="BSHD", lengths=regard.Lengths(mask=mask), padding=padding)
    made, saved = regard.attention(*rows, return_saved=True, **call)
    gradients = regard.attention_backward(d_out.transpose(0, 2, 1, 3), *rows, made, saved, **call)
    for gradient, right in zip(gradients[:3], expected):
        assert np.array_equal(gradient.transpose(0, 2, 1, 3), right)
    assert np.abs(gradients.d_bias - expected.d_bias).max() < 1e-5
    assert np.abs(gradients.d_sinks - expected.d_sinks).max() < 1e-5


def test_gradients_refuse_lengths_of_another_forward():
    mask = np.array([[0, 1, 1], [1, 1, 1]], bool)
    q, k, v = tensors(mask)
    lengths = regard.Lengths(mask=mask)
    out, saved = regard.attention(np.nan_to_num(q), np.nan_to_num(k), np.nan_to_num(v),
                                  return_saved=True)
    with pytest.raises(ValueError, match="saved.plan .* must be the plan of this call's forward"):
        regard.attention_backward(out, q, k, v, out, saved, lengths=lengths)
    with pytest.raises(ValueError, match="lengths of q .* must be of 2 x 3 positions"):
        regard.attention_backward(out, q, k, v, out, saved,
                                  lengths=regard.Lengths(mask=np.ones((3, 2), bool)))


@pytest.mark.parametrize("padding", ["padded", "packed"])
def test_layout_bias_and_out(padding):
    mask = np.array(MASKS["right"], bool)
    q, k, v = tensors(mask)
    bias = np.random.default_rng(1).standard_normal((4, 1, 5, 5)).astype(np.float32)
    lengths = regard.Lengths(mask=mask)
    seqlens = mask.sum(1).astype(np.int32)
    expected = regard.attention(q, k, v, attn_bias=bias, seqlens_q=seqlens, seqlens_kv=seqlens)
    out = np.full((4, 5, 4, 8), np.nan, np.float32)
    rows = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    made = regard.attention(*rows, layout="BSHD", lengths=lengths, padding=padding, attn_bias=bias,
                            out=out)
    assert made is out
    assert np.array_equal(out.transpose(0, 2, 1, 3), expected)


def test_cross_lengths_and_position_ids():
    mask_q, mask_kv = np.array(MASKS["right"], bool), np.array(MASKS["left"], bool)
    q = tensors(mask_q)[0]
    _, k, v = tensors(mask_kv)
    lengths = {"lengths": regard.Lengths(mask=mask_q), "lengths_kv": regard.Lengths(mask=mask_kv)}
    packed, padded = (regard.attention(q, k, v, padding=word, **lengths)
                      for word in ("packed", "padded"))
    assert np.abs(packed - padded).max() < 1e-5
    ids = np.array([[0, 1, 0], [0, 1, 2]])
    q, k, v = tensors(np.ones((2, 3), bool))
    several = regard.Lengths(position_ids=ids)
    out = regard.attention(q, k, v, lengths=several)
    alone = regard.attention(q[:1, :, :2], k[:1, :, :2], v[:1, :, :2])
    assert np.array_equal(out[:1, :, :2], alone)
    with pytest.raises(ValueError, match="padded.* one sequence for each entry of the batch"):
        regard.attention(q, k, v, lengths=several, padding="padded")


def test_explain_states_every_path():
    mask = np.zeros((8, 256), bool)
    mask[:, 200:] = True
    q, k, v = tensors(mask, heads=4, kv_heads=4, dim=64)
    lengths = regard.Lengths(mask=mask)
    selection = regard.explain(q, k, v, lengths=lengths)
    paths = {path["path"]: path for path in selection.to_dict()["paths"]}
    assert list(paths) == ["mask", "packed"]  # rows do not come first
    assert paths["packed"]["fastest"] and not paths["mask"]["fastest"]
    assert paths["packed"]["operations"] == 4 * 8 * 4 * 56 * 56 * 64
    assert paths["mask"]["operations"] == 4 * 8 * 4 * 256 * 256 * 64
    assert all(path["bytes"] > 0 and path["seconds"] > 0 for path in paths.values())
    assert "packed" in selection.to_dict()["case"]
    for word in ("path ", "operations", "mask", "fastest"):
        assert word in str(selection)
    seqlens = [250] * 8
    selection = regard.explain(q, k, v, seqlens_q=seqlens, seqlens_kv=seqlens)
    paths = selection.to_dict()["paths"]
    assert [path["path"] for path in paths] == ["lengths", "mask", "packed"]
    assert paths[0]["operations"] == 4 * 8 * 4 * 250 * 250 * 64 and paths[0]["fastest"]
    assert selection.paths == paths and "path=packed" in selection._repr_html_()
    json.dumps(selection.to_dict())
    assert regard.explain(q, k, v).to_dict()["paths"] == []


def test_auto_takes_the_predicted_path():
    """A short row with little padding is not worth its copies; a long one is."""
    short, long = np.ones((4, 32), bool), np.zeros((2, 512), bool)
    short[:, 0] = False
    long[:, 400:] = True
    for mask, expected in ((short, "mask"), (long, "packed")):
        q, k, v = tensors(mask, dim=64)
        case = regard.explain(q, k, v, lengths=regard.Lengths(mask=mask)).to_dict()["case"]
        assert expected in case


@pytest.mark.parametrize("words, error, message", [
    (dict(padding="fastest"), ValueError, r"padding \('fastest'\) must be 'auto', 'padded' or"),
    (dict(padding=3), TypeError, "padding"),
    (dict(seqlens_q=[1, 1]), ValueError, r"seqlens_q \(given\) is not supported"),
    (dict(return_scores="probs"), ValueError, "scores_out"),
    (dict(cu_seqlens_q=[0, 1]), ValueError, "cu_seqlens_q .*beside lengths"),
    (dict(attn_mask=np.ones((2, 1, 3, 3), bool), padding="padded"), ValueError, "attn_mask"),
])
def test_bad_input_is_refused_by_name(words, error, message):
    mask = np.array([[0, 1, 1], [1, 1, 1]], bool)
    q, k, v = tensors(mask)
    with pytest.raises(error, match=message):
        regard.attention(q, k, v, lengths=regard.Lengths(mask=mask), **words)
    if "padding" not in words:
        with pytest.raises(error, match=message):
            regard.explain(q, k, v, lengths=regard.Lengths(mask=mask), **words)


def test_what_takes_no_padded_lengths_refuses_them():
    mask = np.array([[0, 1, 1], [1, 1, 1]], bool)
    q, k, v = tensors(mask)
    lengths = regard.Lengths(mask=mask)
    with pytest.raises(ValueError, match="lengths of padded arrays .*benchmark"):
        regard.benchmark(q, k, v, lengths=lengths)


def test_lengths_of_other_tensors_are_refused():
    mask = np.ones((2, 3), bool)
    q, k, v = tensors(mask)
    with pytest.raises(ValueError, match="lengths of q .* must be of 2 x 3 positions"):
        regard.attention(q, k, v, lengths=regard.Lengths(mask=np.ones((3, 2), bool)))
    with pytest.raises(ValueError, match="needs lengths and padded tensors"):
        regard.attention(q, k, v, padding="packed")
