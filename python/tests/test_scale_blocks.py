"""Scales of blocks: the block recipes' codes and scales need no rounding in Python."""

import ml_dtypes
import numpy as np
import pytest
import regard
from reference import attention as reference
from reference import gradients

RECIPES = {
    "1x32": regard.fp8.MXFP8BlockScaling(),
    "1x128": regard.fp8.Float8BlockScaling(),
    "128x128": regard.fp8.Float8BlockScaling(x_block_scaling_dim=2),
}


def make(queries, keys, dim, seed=3, octaves=8):
    rng = np.random.default_rng(seed)
    shapes = [(2, 4, queries, dim), (2, 2, keys, dim), (2, 2, keys, dim)]
    # magnitudes that no common scale suits
    return [(rng.standard_normal(s) * np.exp2(rng.integers(-octaves, octaves, s[:3] + (1,)))).astype(np.float32)
            for s in shapes]


def in_blocks(x, recipe):
    """Codes, one descale for each block, and what they stand for."""
    state = recipe.new_state()
    state.step(recipe.amax_of(x))
    codes = regard.fp8.quantize(x, state.form.name, scale=recipe.spread(state.scale, x.shape))
    codes = np.asarray(codes).view(ml_dtypes.float8_e4m3fn)
    descale = np.asarray(state.descale, np.float32)
    return codes, descale, codes.astype(np.float32) * recipe.spread(descale, x.shape)


@pytest.mark.parametrize("layout", RECIPES)
@pytest.mark.parametrize("backend", ["math", "flash", "efficient"])
@pytest.mark.parametrize(("queries", "keys", "dim"), [(1, 300, 72), (40, 130, 160), (150, 40, 24)])
def test_they_are_what_python_would_round_to(layout, backend, queries, keys, dim):
    tensors = [in_blocks(x, RECIPES[layout]) for x in make(queries, keys, dim)]
    (q, sq, wq), (k, sk, wk), (v, sv, wv) = tensors
    out = np.empty(q.shape, np.float32)
    regard.attention(q, k, v, scales_q=sq, scales_k=sk, scales_v=sv, scale_layout=layout, out=out,
                     backends=backend)
    want = reference(wq, wk, wv)[0]
    assert np.abs(out - want).max() < 3e-5 * np.abs(want).max()


@pytest.mark.parametrize("layout", RECIPES)
@pytest.mark.parametrize("backend", ["math", "flash", "efficient"])
@pytest.mark.parametrize(("queries", "keys", "dim"), [(1, 300, 72), (140, 130, 40)])
def test_gradients_are_those_of_what_python_would_round_to(layout, backend, queries, keys, dim):
    recipe = RECIPES[layout]
    # Scores of thousands would lose in float32 what is compared.
    made = [*make(queries, keys, dim, octaves=2), make(queries, keys, dim, seed=8)[0]]
    (q, sq, wq), (k, sk, wk), (v, sv, wv), (d_out, sd, wd) = [in_blocks(x, recipe) for x in made]
    words = dict(scales_q=sq, scales_k=sk, scales_v=sv, scale_layout=layout, gradient_dtype="f32")
    out, saved = regard.attention(q, k, v, return_saved=True, out=np.empty(q.shape, np.float32),
                                  backends=backend, d_out_dtype="f8e4m3", **words)
    found = regard.attention_backward(d_out, q, k, v, out, saved, scales_d_out=sd, **words)
    for mine, want in zip(found[:3], gradients(wd, wq, wk, wv)[:3], strict=True):
        assert np.abs(mine - want).max() < 1e-4 * np.abs(want).max()


def test_what_is_no_scale_of_d_out():
    q, k, v = [x.astype(ml_dtypes.float8_e4m3fn) for x in make(7, 20, 40)]
    scales = np.ones(q.shape[:3], np.float32)
    out, saved = regard.attention(q, k, v, return_saved=True, d_out_dtype="f8e4m3")
    with pytest.raises(ValueError, match=r"scales_q \(absent\) must be given with scales_d_out"):
        regard.attention_backward(q, q, k, v, out, saved, scales_d_out=scales)
    out, saved = regard.attention(q, k, v, return_saved=True, d_out_dtype="f8e4m3", scales_q=scales)
    for bad in (0.0, -1.0, np.nan, np.inf):
        wrong = scales.copy()
        wrong[1, 2, 3] = bad
        with pytest.raises(ValueError, match=r"scales_d_out\[1,2,3\] \(.*\), expected finite and more than 0"):
            regard.attention_backward(q, q, k, v, out, saved, scales_q=scales, scales_d_out=wrong)
    with pytest.raises(ValueError, match="scales_d_out .* must be"):
        regard.attention_backward(q, q, k, v, out, saved, scales_q=scales, scales_d_out=scales[:, :1])
    out, saved = regard.attention(q, k, v, return_saved=True, d_out_dtype="bf16", scales_q=scales)
    with pytest.raises(ValueError, match=r"scales_d_out \(given\) must be left out where d_out is bf16"):
        regard.attention_backward(out, q, k, v, out, saved, scales_q=scales, scales_d_out=scales)


def test_rows_of_q():
    q, k, v = make(7, 20, 40)
    scale = np.abs(q).max(-1) / np.float32(448)
    codes = (q / scale[..., None]).astype(ml_dtypes.float8_e4m3fn)
    narrow = [x.astype(ml_dtypes.float8_e4m3fn) for x in (k, v)]
    out = np.empty(q.shape, np.float32)
    regard.attention(codes, *narrow, scales_q=scale, out=out)
    want = reference(codes.astype(np.float32) * scale[..., None],
                     *(x.astype(np.float32) for x in narrow))[0]
    assert np.abs(out - want).max() < 3e-5 * np.abs(want).max()


def test_no_earlier_row_sees_a_later_scale():
    q, k, v = make(64, 64, 32)
    recipe = RECIPES["1x32"]
    changed = [x.copy() for x in (q, k, v)]
    for x in changed:
        x[:, :, 40:] *= 1000

    def run(tensors):
        (q, sq, _), (k, sk, _), (v, sv, _) = [in_blocks(x, recipe) for x in tensors]
        return regard.attention(q, k, v, scales_q=sq, scales_k=sk, scales_v=sv, scale_layout="1x32",
                                is_causal=True, diagonal="top_left")
    assert run((q, k, v))[:, :, :40].tobytes() == run(changed)[:, :, :40].tobytes()


def test_blocks_of_rows_and_a_causal_mask_need_leave():
    (q, sq, _), (k, sk, _), (v, sv, _) = [in_blocks(x, RECIPES["128x128"]) for x in make(9, 9, 32)]
    words = dict(scales_q=sq, scales_k=sk, scales_v=sv, scale_layout="128x128", is_causal=True,
                 diagonal="top_left")
    with pytest.raises(ValueError, match="allow_future_scales"):
        regard.attention(q, k, v, **words)
    assert regard.attention(q, k, v, allow_future_scales=True, **words).shape == q.shape


def test_wrong_words():
    q = np.zeros((1, 1, 1, 8), ml_dtypes.float8_e4m3fn)
    with pytest.raises(ValueError, match=r"scale_layout \('32'\) must be '1x32', '1x128' or '128x128'"):
        regard.attention(q, q, q, scale_layout="32")
    with pytest.raises(ValueError, match="scale_layout .1x32. must be left out without scales_q"):
        regard.attention(q, q, q, scale_layout="1x32")
