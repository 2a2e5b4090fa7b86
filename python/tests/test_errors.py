"""Every error names the argument, its value and what is accepted."""

import pickle

import numpy as np
import pytest
from test_attention import make

import regard

Q, K, V = make()
READ_ONLY = np.empty_like(Q)
READ_ONLY.flags.writeable = False
MASKED = np.ma.masked_array(Q, mask=np.zeros(Q.shape, bool))

CASES = [
    # keywords and arguments, error, what the message must hold
    (dict(attn_masks=None), TypeError, ["unexpected keyword 'attn_masks'", "attn_mask,", "out"]),
    (dict(q=Q), TypeError, ["got q twice"]),
    (dict(is_causal=1), TypeError, ["is_causal (1)", "True or False"]),
    (dict(return_lse="yes"), TypeError, ["return_lse ('yes')", "True or False"]),
    (dict(softmax_scale="1"), TypeError, ["softmax_scale ('1')", "number"]),
    (dict(softmax_scale=float("nan")), ValueError, ["softmax_scale", "nan", "finite"]),
    (dict(softmax_scale=10**400), ValueError, ["softmax_scale (1000", "float64 holds"]),
    (dict(dropout_p=10**5000), ValueError, ["dropout_p (int)", "float64 holds"]),
    (dict(softcap=-1.0), ValueError, ["softcap (-1)"]),
    (dict(dropout_p=1.5), ValueError, ["dropout_p (1.5)"]),
    (dict(dropout_p=True), TypeError, ["dropout_p (True)", "number"]),
    (dict(seed=-1), ValueError, ["seed (-1)", "2**64"]),
    (dict(seed=1.0), TypeError, ["seed (1.0)", "integer"]),
    (dict(layout="BSDH"), ValueError, ["layout ('BSDH')", "'BHSD' or 'BSHD'"]),
    (dict(layout="BHSD\0"), ValueError, [r"layout ('BHSD\x00')", "'BHSD' or 'BSHD'", "NUL"]),
    (dict(layout="\ud800"), ValueError, [r"layout ('\ud800')", "'BHSD' or 'BSHD'", "surrogates"]),
    (dict(layout=4), TypeError, ["layout (4)", "'BHSD' or 'BSHD'"]),
    (dict(backends="fast"), ValueError, ["backends ('fast')", "'math'", "'flash'"]),
    (dict(backends="math\0custom"), ValueError, [r"backends ('math\x00custom')", "NUL"]),
    (dict(backends=["math", "fast"]), ValueError, ["backends ('fast')", "'math'", "'flash'"]),
    (dict(backends=["math", 3]), TypeError, ["backends (3)", "'math'"]),
    (dict(backends=[]), ValueError, ["backends ([])", "at least one"]),
    (dict(backends=3), TypeError, ["backends (3)", "a list of names, as ['math', 'efficient']"]),
    (dict(backend="math"), TypeError, ["'backend'", "write backends='math'", "a list"]),
    (dict(policy=regard.Policy(prefer="math"), backends=["flash", "math"]), ValueError,
     ["backends (['flash', 'math'])", "policy.prefer"]),
    (dict(policy={"only": ["math"]}), TypeError, ["policy ({'only': ['math']})", "regard.Policy"]),
    (dict(policy=regard.Policy(only="math"), backends="math"), ValueError,
     ["backends ('math')", "policy.only"]),
    (dict(window=3), TypeError, ["window (3)", "pair"]),
    (dict(window=(1, 2, 3)), ValueError, ["window ((1, 2, 3))", "pair"]),
    (dict(window=(1.0, 2)), TypeError, ["window[0] (1.0)", "integer"]),
    (dict(window=(-2, 0), diagonal="top_left"), ValueError, ["window_left (-2)"]),
    (dict(diagonal="topleft"), ValueError, ["diagonal ('topleft')", "'top_left'"]),
    (dict(diagonal="top_left\0"), ValueError, [r"diagonal ('top_left\x00')", "NUL"]),
    (dict(diagonal=1.5), TypeError, ["diagonal (1.5)", "integer"]),
    (dict(diagonal=2**70), ValueError, ["diagonal (1180591620717411303424)", "64 bits"]),
    (dict(is_causal=True), ValueError, ["diagonal (unnamed)", "top_left", "bottom_right"]),
    (dict(attn_mask=np.ones((9, 13), np.int64)), TypeError,
     ["attn_mask (int64 (9, 13))", "bool", "attn_bias"]),
    (dict(attn_mask=np.ones((9, 13), np.uint8)), TypeError, ["attn_mask (uint8 (9, 13))", "bool"]),
    (dict(attn_mask=[[True]]), TypeError, ["attn_mask (list)", "NumPy array"]),
    (dict(attn_mask=np.ones((8, 13), bool)), ValueError, ["attn_mask", "8,13", "broadcast"]),
    (dict(attn_mask=np.ones((8, 13), np.float32)), ValueError, ["attn_mask", "8,13", "broadcast"]),
    (dict(attn_bias=np.ones((8, 13), np.float32)), ValueError, ["attn_bias", "8,13", "broadcast"]),
    (dict(attn_mask=np.ones((1, 1, 1, 9, 13), bool)), ValueError, ["attn_mask (5", "1 to 4"]),
    (dict(attn_mask=np.ones(13, np.float32), attn_bias=np.ones(13, np.float32)), ValueError,
     ["attn_mask (float32 (13))", "attn_bias", "expected one"]),
    (dict(attn_bias=np.ones(13, bool)), TypeError, ["attn_bias (bool (13))", "attn_mask"]),
    (dict(seqlens_q=[1.5, 2]), TypeError, ["seqlens_q (float64 (2))", "integer"]),
    (dict(seqlens_kv=[3, 2**40]), ValueError, ["seqlens_kv holds 1099511627776 at 1", "int32"]),
    (dict(seqlens_kv=np.array([3, 9], np.uint64)), TypeError,
     ["dtype of seqlens_kv (uint64) must be an integer type: int32, int64, int8 or uint8"]),
    (dict(seqlens_kv=[2**63]), ValueError, ["seqlens_kv ([9223372036854775808])", "int64"]),
    (dict(seqlens_kv=[3, 2**70]), ValueError, ["seqlens_kv ([3, 11805", "int64"]),
    (dict(seqlens_kv=[3, 99]), ValueError, ["seqlens_kv[1] (99)", "0 to 13"]),
    (dict(seqlens_kv=[3]), ValueError, ["seqlens_kv", "[1]", "[2]"]),
    (dict(seqlens_kv=3), ValueError, ["seqlens_kv (0, from int64 ())", "1, [batch]"]),
    (dict(segment_ids_q=0, segment_ids_kv=0), ValueError, ["segment_ids_q (0", "[batch, queries]"]),
    (dict(sinks=1.0), ValueError, ["sinks (0, from float64 ())", "1, [heads]"]),
    (dict(descale_q=np.ones((1, 1, 1))), ValueError, ["descale_q (3", "a number or [batch, kv"]),
    (dict(segment_ids_q=np.zeros((2, 9), np.int32)), ValueError, ["segment_ids_kv"]),
    (dict(sinks=[1.0, 2.0]), ValueError, ["sinks", "[2]", "[4]"]),
    (dict(alibi_slopes="steep", diagonal="top_left"), TypeError, ["alibi_slopes"]),
    (dict(alibi_slopes=[0.5, 0.5, -1e300, 0.5], diagonal="top_left"), ValueError,
     ["alibi_slopes holds -1e+300 at 2", "float32"]),
    (dict(sinks=[1e39, 0, 0, 0]), ValueError, ["sinks holds 1e+39 at 0", "float32"]),
    (dict(descale_q=1e39), ValueError, ["descale_q holds 1e+39 at 0", "float32"]),
    (dict(return_scores="probs\0"), ValueError, [r"return_scores ('probs\x00')", "NUL"]),
    (dict(return_scores="all"), ValueError, ["return_scores ('all')", "'probs'"]),
    (dict(return_scores=True), TypeError, ["return_scores (True)", "'probs'"]),
    (dict(return_saved=1), TypeError, ["return_saved (1)", "True or False"]),
    (dict(d_out=Q), TypeError, ["unexpected keyword 'd_out'", "return_saved, out"]),
    (dict(out=READ_ONLY), ValueError, ["out (f32[2,4,9,16] strides", "is read-only"]),
    (dict(out=np.empty((2, 4, 9, 17), np.float32)), ValueError,
     ["shape of out (float32 (2, 4, 9, 17))", "(2, 4, 9, 16)"]),
    (dict(out=np.empty(Q.shape)), TypeError, ["dtype of out (float64", "q's"]),
    (dict(out=Q), ValueError, ["out", "overlap", "q"]),
    (dict(out=np.broadcast_to(np.zeros(1, np.float32), Q.shape)), ValueError, ["out"]),
    (dict(out=np.empty((2, 4, 9, 32), np.float32)[..., ::2]), ValueError, ["stride 3 of out (8"]),
    (dict(out=np.empty(Q.shape, ">f4")), ValueError, ["out", "byte order"]),
    (dict(out="here"), TypeError, ["out (str)", "NumPy array"]),
]


@pytest.mark.parametrize("keywords, error, words", CASES)
def test_keyword(keywords, error, words):
    with pytest.raises(error) as caught:
        regard.attention(Q, K, V, **keywords)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("arguments, error, words", [
    ((Q, K), TypeError, ["v is missing"]),
    ((Q, K, V, None), TypeError, ["by position", "4 were given"]),
    ((None, K, V), TypeError, ["q (NoneType)", "NumPy array", "__dlpack__"]),
    ((Q, None, V), TypeError, ["k (NoneType)", "NumPy array"]),
    ((Q, K, None), TypeError, ["v (NoneType)", "NumPy array"]),
    ((Q, K.tolist(), V), TypeError, ["k (list)", "NumPy array"]),
    ((Q, K[0], V), ValueError, ["rank of k (3, from float32 (2, 13, 16))", "must be 4"]),
    ((Q.astype(int), K, V), TypeError, ["dtype of q (int64", "float32"]),
    ((Q.astype(complex), K, V), TypeError, ["dtype of q (complex128)", "float32"]),
    ((Q.astype(object), K, V), TypeError, ["dtype of q (object)", "float32"]),
    ((MASKED, K, V), TypeError, ["q (a masked array)", "attn_mask"]),
    ((Q, K[:, :, :5], V), ValueError, ["v", "5"]),
    ((Q[:, :3], K, V), ValueError, ["num_heads", "3"]),
])
def test_positional(arguments, error, words):
    with pytest.raises(error) as caught:
        regard.attention(*arguments)
    for word in words:
        assert word in str(caught.value)


def test_nothing_that_a_call_takes_falls_through_to_the_binding():
    with pytest.raises(TypeError, match=r"Policy\(\) takes keywords alone: only, deny"):
        regard.Policy(["math"])
    with pytest.raises(TypeError, match=r"layout \(None\) must be 'BHSD'"):
        regard.merge_states([], layout=None)
    for wrong in (None, {1: 2}, (pair for pair in ())):
        with pytest.raises(TypeError, match="states .* must be a list of pairs"):
            regard.merge_states(wrong)


def test_text_after_a_nul_is_refused():
    with pytest.raises(ValueError, match=r"case \('b1 .*NUL"):
        regard.explain("b1 hq1 sq8 d64 f32\0 nonsense")
    with pytest.raises(ValueError, match=r"only \('math.x00'\).*NUL"):
        regard.Policy(only=["math\0"])
    with pytest.raises(ValueError, match=r"require \('none.x00'\).*NUL"):
        regard.Policy(require="none\0")
    with pytest.raises(ValueError, match=r"keyword of Policy\(\) \('only.x00'\).*NUL"):
        regard.Policy(**{"only\0": ["math"]})


def test_infinities_are_not_an_overflow():
    expected = regard.attention(Q, K, V)
    assert np.array_equal(regard.attention(Q, K, V, sinks=[-np.inf] * 4), expected)


def test_an_error_speaks_of_the_layout():
    with pytest.raises(ValueError, match=r"softcap \(-1\) must be finite and >= 0 \(0: none\)$"):
        regard.attention(Q, Q, Q, softcap=-1, layout="BSHD")
    with pytest.raises(ValueError, match=r"\[batch, positions, heads, head_dim\]"):
        regard.attention(Q[0], K, V, layout="BSHD")
    with pytest.raises(ValueError, match="the layout is BSHD"):
        regard.attention(Q, K[:1], V[:1], layout="BSHD")


def test_no_backend_carries_every_reason():
    with pytest.raises(regard.NoBackendError) as caught:
        regard.attention(Q, K, V, return_scores="probs", backends="efficient")
    selection = caught.value.selection
    assert selection.chosen == "error" and not selection.ok and selection.plan is None
    reasons = {(r.backend, r.code) for r in selection.refusals}
    assert ("efficient", "feature") in reasons and ("math", "not_in_only") in reasons
    fixes = {r.fix for r in selection.refusals if r.code == "feature"}
    assert fixes == {"remove scores_out"}
    assert "efficient does not support scores_out; remove it, or use math" in str(caught.value)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value) and str(copy.selection) == str(selection)


def test_an_error_leaves_out_alone():
    out = np.full(Q.shape, 7.0, np.float32)
    with pytest.raises(ValueError):
        regard.attention(Q, K, V, seqlens_kv=[3, 99], out=out)
    assert (out == 7).all()
