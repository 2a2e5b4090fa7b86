"""regard.attention_backward against the float64 reference, and what `saved` carries."""

import copy
import pickle

import numpy as np
import pytest
from reference import attention as reference
from reference import gradients
from test_attention import BACKENDS, FEATURES, TOLERANCE, make

import regard

NAMES = ("d_q", "d_k", "d_v", "d_bias", "d_sinks")


def gradient_like(out, seed=5):
    numbers = np.random.default_rng(seed).standard_normal(out.shape)
    return numbers.astype(np.float32).astype(out.dtype)


def compare(grads, expected, dtype="float32"):
    for name, mine, right in zip(NAMES, grads, expected):
        if right is None:
            assert mine is None
            continue
        assert mine.shape == right.shape, name
        scale = max(1.0, np.abs(right).max(initial=0))
        error = np.abs(mine.astype(np.float64) - right).max(initial=0)
        own = max(TOLERANCE[dtype], TOLERANCE[str(mine.dtype)])  # a float32 bias beside float64 q
        assert error <= 8 * own * scale, name


def run(q, k, v, extra=None, d_lse=False, **options):
    out, lse, saved = regard.attention(q, k, v, return_lse=True, return_saved=True,
                                       **(extra or {}), **options)
    d_out = gradient_like(out)
    rows = gradient_like(lse, 6) if d_lse else None
    grads = regard.attention_backward(d_out, q, k, v, out, saved, d_lse=rows, **options)
    return grads, gradients(d_out, q, k, v, d_lse=rows, **options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FEATURES)
def test_feature(name, backend):
    options = FEATURES[name]
    q, k, v = make()
    selection = regard.explain(q, k, v, backends=backend, return_saved=True, **options)
    assert selection.ok, "; ".join(map(str, selection.refusals))  # none is expected here
    grads, expected = run(q, k, v, extra=dict(backends=backend), **options)
    compare(grads, expected)
    assert all(g.dtype == np.float32 for g in grads[:3])


def test_some_backend_has_every_gradient():
    q, k, v = make()
    for name, options in FEATURES.items():
        assert regard.explain(q, k, v, return_saved=True, **options).ok, name


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["plain", "everything"])
def test_dtype(name, dtype):
    made = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
    q, k, v = make(dtype=made)
    grads, expected = run(q, k, v, **FEATURES[name])
    compare(grads, expected, dtype)
    assert all(g.dtype == q.dtype for g in grads[:3])


def test_the_reference_agrees_with_differences():
    """The reference's gradients, which the library is held to, are held to its own forward."""
    options = dict(FEATURES["everything"])
    q, k, v = (x.astype(np.float64) for x in make())
    rng = np.random.default_rng(0)
    options["attn_bias"] = rng.standard_normal((4, 1, 13))
    options["sinks"] = rng.standard_normal(4)
    d_out, d_lse = rng.standard_normal((2, 4, 9, 16)), rng.standard_normal((2, 4, 9))
    given = dict(zip(NAMES, [q, k, v, options["attn_bias"], options["sinks"]]))

    def loss():
        out, lse, _ = reference(q, k, v, **options)
        return (out * d_out).sum() + np.where(np.isfinite(lse), lse * d_lse, 0).sum()

    for name, right in zip(NAMES, gradients(d_out, q, k, v, d_lse=d_lse, **options)):
        array, step = given[name], rng.standard_normal(given[name].shape)
        array += 1e-6 * step
        above = loss()
        array -= 2e-6 * step
        difference = (above - loss()) / 2e-6
        array += 1e-6 * step
        assert abs(difference - (right * step).sum()) < 1e-6 * max(1, abs(difference)), name


def test_gradients_of_lse():
    for name in ("plain", "everything", "dead_rows_sink"):
        grads, expected = run(*make(), d_lse=True, **FEATURES[name])
        compare(grads, expected)


@pytest.mark.parametrize("shape", [(13,), (9, 13), (4, 1, 13), (2, 1, 9, 1), (1, 4, 1, 1)])
def test_a_bias_has_a_gradient_of_its_own_shape(shape):
    bias = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    grads, expected = run(*make(), attn_bias=bias)
    compare(grads, expected)
    q, k, v = make()
    out, saved = regard.attention(q, k, v, attn_mask=bias, return_saved=True)
    same = regard.attention_backward(gradient_like(out), q, k, v, out, saved, attn_mask=bias)
    assert np.array_equal(same.d_bias, grads.d_bias)


@pytest.mark.parametrize("shape", [dict(b=0), dict(sq=0), dict(skv=0), dict(hq=6, hkv=1, dv=24),
                                   dict(b=1, hq=1, hkv=1, sq=1, skv=1, d=1)])
def test_empty_and_other_sizes(shape):
    compare(*run(*make(**shape), sinks=np.ones(shape.get("hq", 1 if shape.get("d") else 4))))


def test_layout_bshd():
    q, k, v = make()
    options = dict(is_causal=True, diagonal="bottom_right")
    out, saved = regard.attention(q, k, v, return_saved=True, **options)
    d_out = gradient_like(out)
    grads = regard.attention_backward(d_out, q, k, v, out, saved, **options)
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v, d_out)]
    out2, saved2 = regard.attention(*turned[:3], return_saved=True, layout="BSHD", **options)
    grads2 = regard.attention_backward(turned[3], *turned[:3], out2, saved2, layout="BSHD",
                                       **options)
    for mine, other in zip(grads[:3], grads2[:3]):
        assert np.array_equal(mine, other.swapaxes(1, 2)) and other.flags.c_contiguous
    assert np.array_equal(saved.stats, saved2.stats)


def test_what_is_copied_has_the_same_gradients():
    q, k, v = make()
    out, saved = regard.attention(q, k, v, return_saved=True)
    d_out = gradient_like(out)
    expected = regard.attention_backward(d_out, q, k, v, out, saved)
    flipped = np.ascontiguousarray(d_out[..., ::-1])[..., ::-1]
    ones = np.broadcast_to(np.ones((), np.float32), out.shape)  # as a sum's gradient is
    before = regard.counters()["copies"]
    again = regard.attention_backward(flipped, q, k, v, out, saved)
    assert regard.counters()["copies"] == before + 1
    assert all(np.array_equal(a, b) for a, b in zip(again[:3], expected[:3]))
    compare(regard.attention_backward(ones, q, k, v, out, saved), gradients(ones, q, k, v))


def test_values_behind_a_mask_never_reach_a_gradient():
    q, k, v = make()
    mask = np.arange(13) < 5
    out, saved = regard.attention(q, k, v, attn_mask=mask, return_saved=True)
    d_out = gradient_like(out)
    expected = regard.attention_backward(d_out, q, k, v, out, saved, attn_mask=mask)
    k[:, :, 5:], v[:, :, 5:] = np.inf, np.nan
    grads = regard.attention_backward(d_out, q, k, v, out, saved, attn_mask=mask)
    assert all(np.array_equal(a, b) for a, b in zip(grads[:3], expected[:3]))
    assert not grads.d_k[:, :, 5:].any() and not grads.d_v[:, :, 5:].any()


def test_saved_says_what_it_holds():
    q, k, v = make()
    out, lse, scores, saved = regard.attention(q, k, v, return_lse=True, return_scores="probs",
                                               return_saved=True, backends="math", dropout_p=0.5,
                                               seed=11)
    assert saved.kind == "stats" and saved.backend == "math" and saved.seed == 11
    assert saved.stats.shape == (*lse.shape, 2)
    np.testing.assert_allclose(saved.stats[..., 0] + np.log(saved.stats[..., 1]), lse, atol=1e-5)
    assert saved.plan["forward"]["kernel"].startswith("math")
    assert saved.plan["backward"]["kernel"] and "backend math" in repr(saved)
    selection = regard.explain(q, k, v, return_saved=True)
    assert selection.plan["backward"]["workspace_bytes"] >= 0
    assert "backward" not in regard.explain(q, k, v).plan


def test_the_ambient_policy_is_the_forwards_alone():
    q, k, v = make()
    with regard.use_policy(only=["math"]):
        out, saved = regard.attention(q, k, v, return_saved=True)
    d_out = gradient_like(out)
    expected = regard.attention_backward(d_out, q, k, v, out, saved)
    copied = pickle.loads(pickle.dumps(saved))
    assert copied.plan is None and copied.backend == "math" and copy.copy(saved).kind == "stats"
    with regard.use_policy(deny=["math"]):
        for each in (saved, copied):
            grads = regard.attention_backward(d_out, q, k, v, out, each)
            assert all(np.array_equal(a, b) for a, b in zip(grads[:3], expected[:3]))


def test_a_policy_restricts_what_computes_it():
    q, k, v = make()
    out, saved = regard.attention(q, k, v, return_saved=True, backends="flash")
    d_out = gradient_like(out)
    expected = regard.attention_backward(d_out, q, k, v, out, saved)
    for each in (saved, pickle.loads(pickle.dumps(saved))):
        with pytest.raises(regard.NoBackendError) as caught:
            regard.attention_backward(d_out, q, k, v, out, each, backends="math")
        refused = {refusal.backend for refusal in caught.value.selection.refusals}
        assert refused >= {"flash", "math", "efficient"}
        allowed = regard.Policy(only=["math", "flash"], require="batch_invariant", prefer=["math"])
        grads = regard.attention_backward(d_out, q, k, v, out, each, policy=allowed)
        assert all(np.array_equal(a, b) for a, b in zip(grads[:3], expected[:3]))


def test_backward_from_a_merged_lse():
    q, k, v = make(skv=40)
    parts = [(0, 15), (15, 40)]
    states = [regard.attention(q, k[:, :, i:j], v[:, :, i:j], return_lse=True) for i, j in parts]
    out, lse = regard.merge_states(states)
    d_out = gradient_like(out)
    saved = regard.Saved(lse=lse)
    assert saved.kind == "lse" and saved.backend is None and saved.plan is None
    grads = [regard.attention_backward(d_out, q, k[:, :, i:j], v[:, :, i:j], out, saved)
             for i, j in parts]
    d_q, d_k, d_v, _, _ = gradients(d_out, q, k, v)
    np.testing.assert_allclose(grads[0].d_q + grads[1].d_q, d_q, atol=2e-5)
    for name, right in (("d_k", d_k), ("d_v", d_v)):
        mine = np.concatenate([getattr(g, name) for g in grads], axis=2)
        np.testing.assert_allclose(mine, right, atol=2e-5)
    delta = (d_out * out).sum(-1)
    again = regard.attention_backward(d_out, q, k[:, :, :15], v[:, :, :15], out, saved, delta=delta)
    np.testing.assert_allclose(again.d_q, grads[0].d_q, atol=1e-5)
    with regard.use_policy(deny=["math", "flash", "efficient"]), pytest.raises(regard.NoBackendError):
        regard.attention_backward(d_out, q, k[:, :, :15], v[:, :, :15], out, saved)


def test_dropout_of_the_forward_is_drawn_again():
    q, k, v = make(b=1, sq=32, skv=32)
    out, saved = regard.attention(q, k, v, dropout_p=0.4, return_saved=True)  # a fresh seed
    d_out = gradient_like(out)
    grads = regard.attention_backward(d_out, q, k, v, out, saved, dropout_p=0.4)
    compare(grads, gradients(d_out, q, k, v, dropout_p=0.4, seed=saved.seed))


OUT, SAVED = regard.attention(*make(), return_saved=True, backends="math")
GIVEN = dict(zip(("q", "k", "v"), make()), d_out=gradient_like(OUT), out=OUT, saved=SAVED)


@pytest.mark.parametrize("change, error, words", [
    (dict(saved=None), TypeError, ["saved (None)", "return_saved=True"]),
    (dict(saved=OUT), TypeError, ["saved (array(", "regard.Saved"]),
    (dict(seed=SAVED.seed + 1), ValueError, ["seed (1)", "saved.seed, 0"]),
    (dict(backends="efficient"), regard.NoBackendError, ["the forward ran on math", "efficient"]),
    (dict(policy=regard.Policy(only=["flash", "efficient"])), regard.NoBackendError,
     ["the forward ran on math", "flash,efficient"]),
    (dict(policy=regard.Policy(deny="math")), regard.NoBackendError,
     ["the forward ran on math", "deny"]),
    (dict(policy=regard.Policy(max_error=1e-30)), regard.NoBackendError, ["max_error"]),
    (dict(policy=regard.Policy(max_workspace_bytes=0)), regard.NoBackendError,
     ["max_workspace_bytes"]),
    (dict(return_lse=True), TypeError, ["unexpected keyword 'return_lse'", "d_lse, delta"]),
    (dict(d_out=GIVEN["d_out"][:, :, :5]), ValueError, ["d_out", "out"]),
    (dict(d_out=GIVEN["d_out"].astype(np.float64)), ValueError, ["d_out", "f64"]),
    (dict(d_out=[1.0]), TypeError, ["d_out (list)", "NumPy array"]),
    (dict(out=OUT[0]), ValueError, ["rank of out (3", "must be 4"]),
    (dict(d_lse=np.zeros((2, 4, 8), np.float32)), ValueError, ["d_lse", "[B,Hq,Sq]"]),
    (dict(d_lse=np.zeros((2, 4, 9), np.float16)), TypeError, ["d_lse (float16", "float32"]),
    (dict(softcap=3.0), ValueError, ["softcap"]),
    (dict(saved=regard.Saved(lse=np.zeros((2, 4, 9), np.float64))), ValueError,
     ["saved.stats", "f64"]),
])
def test_errors(change, error, words):
    with pytest.raises(error) as caught:
        regard.attention_backward(**{**GIVEN, **change})
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["d_out", "q", "k", "v", "out", "saved"])
def test_what_is_missing_is_named(name):
    with pytest.raises(TypeError, match=f"{name} is missing"):
        regard.attention_backward(**{key: x for key, x in GIVEN.items() if key != name})


@pytest.mark.parametrize("keywords, error, word", [
    (dict(), TypeError, "neither"), (dict(stats=OUT, lse=OUT), TypeError, "both"),
    (dict(lse=OUT, seed=-1), ValueError, r"seed \(-1\)"),
    (dict(lse=OUT, backend="quick"), ValueError, r"backend \('quick'\)"),
    (dict(lse=OUT, max_error="small"), TypeError, r"max_error \('small'\)"),
])
def test_saved_refuses(keywords, error, word):
    with pytest.raises(error, match=word):
        regard.Saved(**keywords)


def test_the_policys_limit_holds_for_the_backward():
    q, k, v = make()
    with regard.use_policy(max_error=0.5):
        out, saved = regard.attention(q, k, v, return_saved=True)
    assert saved.max_error == 0.5 and SAVED.max_error is None
    copied = pickle.loads(pickle.dumps(saved))
    assert copied.max_error == 0.5
    tight = regard.Saved(stats=saved.stats, backend=saved.backend, max_error=1e-9)
    with pytest.raises(regard.NoBackendError, match="max_error allows 1.0e-09"):
        regard.attention_backward(gradient_like(out), q, k, v, out, tight)


def test_memory_does_not_grow():
    from test_processes import resident_kib

    q, k, v = make(b=1, hq=2, hkv=1, sq=4, skv=4, d=8)

    def train(n):
        for _ in range(n):
            out, saved = regard.attention(q, k, v, return_saved=True)
            regard.attention_backward(out, q, k, v, out, saved)

    train(2000)
    before = resident_kib()
    train(20000)
    assert resident_kib() - before < 2048
