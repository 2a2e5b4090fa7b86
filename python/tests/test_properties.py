"""Random problems, views and dtypes against the reference."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import attention as reference
from reference import gradients

import regard

SETTINGS = settings(max_examples=150, deadline=None,
                    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@st.composite
def problems(draw):
    extent = st.integers(0, 20)
    kv_heads = draw(st.integers(1, 3))
    b, sq, skv = draw(st.integers(0, 3)), draw(extent), draw(extent)
    hq = kv_heads * draw(st.integers(1, 3))
    d, dv = draw(st.integers(1, 24)), draw(st.integers(1, 24))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    arrays = [rng.standard_normal(shape).astype(np.float32)
              for shape in [(b, hq, sq, d), (b, kv_heads, skv, d), (b, kv_heads, skv, dv)]]
    return rng, arrays


@st.composite
def options_for(draw, rng, shape):
    b, h, sq, skv = shape
    options = {}
    if draw(st.booleans()):
        options["is_causal"] = True
    elif draw(st.booleans()):
        options["window"] = (draw(st.integers(-1, 20)), draw(st.integers(-1, 20)))
    if draw(st.booleans()):
        options["alibi_slopes"] = rng.random(h if draw(st.booleans()) else (b, h))
    options["diagonal"] = draw(st.sampled_from(["top_left", "bottom_right", -2, 3]))
    if draw(st.booleans()):
        options["softcap"] = draw(st.floats(0.5, 5))
    if draw(st.booleans()):
        options["softmax_scale"] = draw(st.floats(-1, 1))
    if draw(st.booleans()):
        extents = [n if draw(st.booleans()) else 1 for n in shape]
        options["attn_mask"] = rng.random(extents) < 0.6
    if draw(st.booleans()):
        options["attn_bias"] = rng.standard_normal((sq, skv)).astype(np.float32)
    if draw(st.booleans()):
        options["sinks"] = rng.standard_normal(h).astype(np.float32)
    if draw(st.booleans()):
        options["seqlens_kv"] = rng.integers(0, skv + 1, b)
    if draw(st.booleans()):
        options["seqlens_q"] = rng.integers(0, sq + 1, b, dtype=np.int32)
    if draw(st.booleans()):
        options["segment_ids_q"] = rng.integers(0, 2, (b, sq))
        options["segment_ids_kv"] = rng.integers(0, 2, (b, skv))
    return options


def strided(draw, array):
    """An array of the same elements with another memory order, some of which must be copied."""
    order = draw(st.permutations(range(4)))
    turned = np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))
    if draw(st.booleans()):
        axis = draw(st.integers(0, 3))
        turned = np.flip(np.ascontiguousarray(np.flip(turned, axis)), axis)
    return turned


@SETTINGS
@given(st.data())
def test_any_problem_in_any_memory_order(data):
    rng, (q, k, v) = data.draw(problems())
    shape = (*q.shape[:3], k.shape[2])
    options = data.draw(options_for(rng, shape))
    q, k, v = (strided(data.draw, x) for x in (q, k, v))
    out, lse = regard.attention(q, k, v, return_lse=True, **options)
    expected, expected_lse, _ = reference(q, k, v, **options)
    np.testing.assert_allclose(out, expected, atol=2e-5)
    np.testing.assert_allclose(lse, expected_lse, atol=2e-5, rtol=1e-5)
    turned = [x.swapaxes(1, 2) for x in (q, k, v)]
    again = regard.attention(*turned, layout="BSHD", **options)
    assert np.array_equal(again.swapaxes(1, 2), out)
    explained = regard.explain(q, k, v, return_lse=True, **options)
    assert explained.ok


@settings(SETTINGS, max_examples=100)
@given(st.data())
def test_any_gradient(data):
    rng, (q, k, v) = data.draw(problems())
    options = data.draw(options_for(rng, (*q.shape[:3], k.shape[2])))
    q, k, v = (strided(data.draw, x) for x in (q, k, v))
    backend = data.draw(st.sampled_from(["math", "flash", "efficient"]))
    if not regard.explain(q, k, v, return_saved=True, backends=backend, **options).ok:
        backend = None
    out, saved = regard.attention(q, k, v, return_saved=True, backends=backend, **options)
    d_out = rng.standard_normal(out.shape).astype(np.float32)
    grads = regard.attention_backward(d_out, q, k, v, out, saved, **options)
    nothing = (None, None)  # of captured tensors and of 8-bit floats
    for mine, right in zip(grads, (*gradients(d_out, q, k, v, **options), *nothing), strict=True):
        assert (mine is None) == (right is None)
        if right is not None:
            scale = max(1.0, np.abs(right).max(initial=0))
            np.testing.assert_allclose(mine, right, atol=5e-5 * scale)


@settings(SETTINGS, max_examples=300)
@given(st.dictionaries(
    st.sampled_from(["attn_mask", "is_causal", "diagonal", "window", "softmax_scale", "softcap",
                     "alibi_slopes", "sinks", "seqlens_q", "segment_ids_q", "dropout_p", "seed",
                     "layout", "backends", "policy", "return_lse", "return_scores", "out",
                     "colour"]),
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
              st.lists(st.integers(-5, 5), max_size=3), st.tuples(st.integers(), st.integers()),
              st.just(np.zeros((2, 3))), st.just(np.zeros(4, bool)), st.just(object())),
    max_size=3))
def test_nonsense_is_an_error_and_never_a_crash(keywords):
    q = np.ones((1, 2, 3, 4), np.float32)
    try:
        regard.attention(q, q, q, **keywords)
    except (TypeError, ValueError, NotImplementedError, regard.NoBackendError) as error:
        assert str(error)
