"""score_mod and mask_mod as expressions: their values are those of PyTorch's vmap, for every element."""

import functools
import math
import operator
import re

import pytest
import torch
import torch.nn.functional as F
from expression_reference import evaluate
from flex_reference import apply_mask_mod, apply_score_mod

import regard.torch
from regard.torch._function_cache import _entries, functions_of
from regard.torch._function_math import Extents

B, H, Q, K = SHAPE = 2, 3, 7, 9
torch.manual_seed(0)
SCORES = torch.randn(SHAPE, dtype=torch.float64) * 2
BIAS = torch.randn(H, Q, K, dtype=torch.float64)
REL = torch.randn(Q + K)
TABLE = torch.randn(H, 20, requires_grad=True)
SCALAR = torch.tensor(0.5, requires_grad=True)
DOCS_Q, DOCS_K = torch.tensor([0, 0, 1, 1, 1, 2, 2]), torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
STARTS = torch.tensor([0, 3, 6, 9])
FLAGS = torch.rand(Q, K) > 0.5
BYTES = torch.randint(0, 255, (9,), dtype=torch.uint8)
SHORTS = torch.randint(-2**15, 2**15, (9,), dtype=torch.int16)
PLACES = torch.randint(0, 4, (9, 2))
FIVE = torch.randn(2, 2, 3, 2, 9)
LENGTHS = torch.tensor([4, 9], dtype=torch.int32)
HALF = torch.randn(9).bfloat16()


def traced(score_mod=None, mask_mod=None, extents=SHAPE, dtype=torch.float64):
    return functions_of(score_mod, mask_mod, Extents(*extents), dtype, torch.device("cpu"))


def loop_of_terms(score, b, h, q, k):
    total = score
    for step in range(1, 4):
        total = total + torch.where(q - k == step, REL[step], 0.0)
    return total


def writes_in_place(score, b, h, q, k):
    score = score.clone()
    score += BIAS[h, q, k]
    score *= 2
    return score


SCORE_MODS = [
    lambda score, b, h, q, k: score,
    lambda score, b, h, q, k: torch.where(q >= k, score, float("-inf")),
    lambda score, b, h, q, k: score + (q - k),
    lambda score, b, h, q, k: torch.where(q <= k, score + torch.abs(q - k), float("-inf")),
    lambda score, b, h, q, k: score * 2,
    lambda score, b, h, q, k: score * score,
    lambda score, b, h, q, k: score**2 + score.pow(3) + score.square() + score**-1 + score**0,
    lambda score, b, h, q, k: score.abs() ** 0.5 + score.abs().pow(1.7) + score.abs() ** -0.5,
    lambda score, b, h, q, k: score + BIAS[h, q, k],
    lambda score, b, h, q, k: score + REL[q - k + K] + REL[-1] + REL[3] * REL[-q - 1],
    lambda score, b, h, q, k: score + REL[q - k],  # indices below 0
    lambda score, b, h, q, k: score + TABLE[h][(q - k).clamp(-9, 9) + 9],
    lambda score, b, h, q, k: score + TABLE[h, torch.minimum(q, k)] * SCALAR,
    lambda score, b, h, q, k: score - torch.exp2(-((h + 1) * 8.0 / H)) * (q - k),
    lambda score, b, h, q, k: score + 2 ** (-8 * (h + 1) / H) * (k - q),
    lambda score, b, h, q, k: 20 * torch.tanh(score / 20),
    lambda score, b, h, q, k: torch.where(DOCS_Q[q] == DOCS_K[k], score, -float("inf")),
    lambda score, b, h, q, k: score.sigmoid().log() + torch.log2(score.exp()) + torch.log10(score.exp()),
    lambda score, b, h, q, k: torch.rsqrt(score.abs() + 1) + F.silu(score) + F.relu(score),
    lambda score, b, h, q, k: F.softplus(score) + F.logsigmoid(score) + F.leaky_relu(score) + F.elu(score),
    lambda score, b, h, q, k: score + (q.float() / 3).floor() + (q / 2).floor().int() + (k / 3).ceil(),
    lambda score, b, h, q, k: score.floor() + score.ceil() + score.trunc() + torch.floor(score * 1e10),
    lambda score, b, h, q, k: score * (q % 2 == 0) + (b + 1) * (k // 2),
    lambda score, b, h, q, k: score + torch.div(q - k, 2, rounding_mode="trunc") + (q - k) // 3,
    lambda score, b, h, q, k: score + torch.fmod(q - k, 3) + torch.remainder(q - k, 4) + (k - q) % -3,
    lambda score, b, h, q, k: score + FIVE[b, b, h, 0, k] + FIVE[b % 2][1][h][1][k],
    lambda score, b, h, q, k: score.clamp(-1, 1) + score.clamp(min=0.5) + torch.clamp(q, 1, 3),
    lambda score, b, h, q, k: score.clamp(1, -1) + torch.clamp(score, max=k - q),
    lambda score, b, h, q, k: score + torch.log1p((q - k).abs()) * SCALAR + torch.expm1(score),
    lambda score, b, h, q, k: score + (BYTES[q] - BYTES[k]) + BYTES[k].float() + (BYTES[q] + 200),
    lambda score, b, h, q, k: score + (SHORTS[q] * SHORTS[k]) + SHORTS[q].to(torch.int8),
    lambda score, b, h, q, k: score + (PLACES[q] - PLACES[k]).abs().sum() + PLACES[q].float().mean(),
    lambda score, b, h, q, k: score + (STARTS <= q).sum() + STARTS[:2].amax() - STARTS.prod(),
    lambda score, b, h, q, k: score + BIAS[:, q, k][h] + BIAS[..., k][h][q] + BIAS[0, q][k] + BIAS[h, :, 0][q],
    lambda score, b, h, q, k: score + BIAS[None, h, q, None, k][0][0],
    lambda score, b, h, q, k: score.new_zeros(()) + torch.zeros_like(score) + torch.ones_like(q) * score,
    lambda score, b, h, q, k: score + score.new_tensor(3.0) + torch.tensor(2.0) + torch.full((), 4),
    lambda score, b, h, q, k: torch.where(score.isnan() | score.isinf(), 0.0, score).masked_fill(q == k, -1),
    lambda score, b, h, q, k: score.sign() + (-score).exp() + score.reciprocal() + (q - k).sign(),
    lambda score, b, h, q, k: (score.float() + q.double()).to(score.dtype) + (score > 0).int(),
    lambda score, b, h, q, k: score + (k & 3) + (q << 2) - (k >> 1) + (~q) + (q - k >> 1) + (q - k & 7),
    lambda score, b, h, q, k: q,
    lambda score, b, h, q, k: q > k,
    lambda score, b, h, q, k: score + torch.stack([q, k]).max() + torch.cat([PLACES[q], PLACES[k]]).sum(),
    lambda score, b, h, q, k: torch.lerp(score, score * 2, 0.3) + torch.addcmul(score, score, score, value=2.0),
    lambda score, b, h, q, k: F.hardtanh(score) + torch.heaviside(score, torch.tensor(1.0).double()),
    lambda score, b, h, q, k: score + REL.exp()[q] + HALF[k],
    lambda score, b, h, q, k: score + torch.sin(q * 0.3) * torch.cos(k) + torch.erf(h / 2 + b),
    lambda score, b, h, q, k: score + F.embedding(q, TABLE.T)[h] + REL.take(k) + REL.index_select(0, k)[0],
    lambda score, b, h, q, k: score + math.sqrt(2.0) * (score / 3.0 if H > 2 else k),
    lambda score, b, h, q, k: torch.maximum(score, torch.minimum(score, -score)) - torch.neg(q),
    lambda score, b, h, q, k: torch.sub(score, q, alpha=2) + torch.add(score, k, alpha=0.5) + (1 - score) + 2 / (q + 1),
    loop_of_terms,
    writes_in_place,
    functools.partial(lambda bias, score, b, h, q, k: score + bias[h, q, k], BIAS),
]
MASK_MODS = [
    lambda b, h, q, k: q >= k,
    lambda b, h, q, k: (q >= k) & (q - k <= 3),
    lambda b, h, q, k: (DOCS_Q[q] == DOCS_K[k]) & (q >= k),
    lambda b, h, q, k: FLAGS[q, k],
    lambda b, h, q, k: ~FLAGS[q, k] ^ (q == k),
    lambda b, h, q, k: (q >= k) != FLAGS[q, k],
    lambda b, h, q, k: k < LENGTHS[b],
    lambda b, h, q, k: ((q // 3 - k // 3).abs() <= 1) & ((q % 3 - k % 3).abs() <= 1),
    lambda b, h, q, k: (q - k) % 2 == 0,
    lambda b, h, q, k: ~(q < k),
    lambda b, h, q, k: torch.logical_and(q > k, FLAGS[q, k]) | (FLAGS[q][k] == FLAGS[k - 2, q]),
    lambda b, h, q, k: q >= 0,
    lambda b, h, q, k: b.new_ones((), dtype=torch.bool),
    lambda b, h, q, k: torch.logical_xor(q > k, q < k + 2),
    lambda b, h, q, k: (PLACES[q] == PLACES[k]).all() | (PLACES[q] == PLACES[k]).any() & (h == 1),
    lambda b, h, q, k: torch.isin(k, torch.tensor([1, 3])),
    lambda b, h, q, k: torch.bucketize(q, STARTS) == torch.searchsorted(STARTS, k),
    lambda b, h, q, k: torch.round(q / 3) > 2**h - 1,
    lambda b, h, q, k: (q >= k).logical_not(),
    lambda b, h, q, k: operator.and_(q >= k, True) | torch.tensor(False),
    regard.torch.and_masks(lambda b, h, q, k: q >= k, lambda b, h, q, k: q - k < 3),
    regard.torch.or_masks(lambda b, h, q, k: k < 2, lambda b, h, q, k: q >= k),
    torch.nn.attention.flex_attention.noop_mask,
]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("score_mod", SCORE_MODS, ids=range(len(SCORE_MODS)))
def test_values_of_score_mods(score_mod):
    found = traced(score_mod)
    expected = apply_score_mod(score_mod, SCORES).double()
    values = evaluate(found.score or "score", SCORES, found.captured)
    # Numbers of indices alone are float32 in PyTorch.
    torch.testing.assert_close(values.double(), expected, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("mask_mod", MASK_MODS, ids=range(len(MASK_MODS)))
def test_values_of_mask_mods(mask_mod):
    found = traced(None, mask_mod)
    values = evaluate(found.mask or "true", SCORES, found.captured)
    assert torch.equal(values, apply_mask_mod(mask_mod, SHAPE))


def broadcast(score_mod, scores):
    """The function of whole tensors: PyTorch's vmap has no gradient of some gathers."""
    b, h, q, k = torch.meshgrid(*[torch.arange(x) for x in scores.shape], indexing="ij")
    return score_mod(scores, b, h, q, k)


@pytest.mark.parametrize("score_mod", [
    lambda score, b, h, q, k: score * score + score**3 + score.abs(),
    lambda score, b, h, q, k: score + TABLE[h, torch.minimum(q, k)] * SCALAR,
    lambda score, b, h, q, k: torch.where(q > k, score * SCALAR, TABLE[h, k].exp() / (1 + score**2)),
    lambda score, b, h, q, k: 20 * torch.tanh(score / 20) - torch.sigmoid(score * TABLE[h, q]),
    lambda score, b, h, q, k: score.clamp(-1, 1) + score.clamp(min=0.5) + score.clamp(1, -1),
    lambda score, b, h, q, k: torch.maximum(score, -score) + torch.minimum(score, torch.ones_like(score)),
    lambda score, b, h, q, k: F.relu(score) + F.softplus(score) + F.logsigmoid(score) + F.silu(score),
    lambda score, b, h, q, k: (score**2 + 1) ** 0.5 + (score.abs() + 1).pow(1.7) + (2 + score**2) ** -0.5,
    lambda score, b, h, q, k: torch.where(score > 0, score, 0.0).log1p() + score.floor() + score.sign(),
    lambda score, b, h, q, k: torch.exp2(score) + torch.expm1(score) + torch.rsqrt(score.square() + 1),
], ids=range(10))
def test_gradients_of_score_mods(score_mod):
    """Those that PyTorch gives to the expression and to the function, also where they jump."""
    found = traced(score_mod)
    leaves = [x.detach().requires_grad_() for x in found.captured]
    scores = SCORES.clone()
    scores.view(-1)[:5] = torch.tensor([0.0, 0.5, 1.0, -1.0, -0.0])
    mine, theirs = (scores.clone().requires_grad_() for _ in range(2))
    value = evaluate(found.score, mine, leaves)
    value.sum().backward()
    for x in (TABLE, SCALAR):
        x.grad = None
    expected = broadcast(score_mod, theirs)
    torch.testing.assert_close(value, expected.double(), rtol=1e-6, atol=1e-6)
    expected.sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-6, atol=1e-6)
    for leaf in leaves:
        source = TABLE if leaf.numel() > 1 else SCALAR
        torch.testing.assert_close(leaf.grad.view(source.shape), source.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("score_mod, message", [
    (lambda score, b, h, q, k: torch.sin(score), "torch.sin has no equivalent"),
    (lambda score, b, h, q, k: score if q > k else k, "the value of a traced number is not known.*torch.where"),
    (lambda score, b, h, q, k: min(score, q), "the value of a traced number is not known"),
    (lambda score, b, h, q, k: score * float(q), "the value of a traced number is not known"),
    (lambda score, b, h, q, k: score + BIAS, r"captured tensor of shape \(3, 7, 9\) needs an index"),
    (lambda score, b, h, q, k: score + BIAS[h], r"63|must be a single number"),
    (lambda score, b, h, q, k: score.detach(), "detach has no equivalent"),
    (lambda score, b, h, q, k: score + REL[score], "an index of torch.float64 must be an integer"),
    (lambda score, b, h, q, k: score + REL[q > k], "an index of bools"),
    (lambda score, b, h, q, k: score + (q * q * q * 10**9), "may not fit into 32 bits"),
    (lambda score, b, h, q, k: score + REL[q * 5 - 30], "an index from -30 to 0 may lie outside of.*16"),
    (lambda score, b, h, q, k: score**score, "a power of two numbers"),
    (lambda score, b, h, q, k: None, "the result .NoneType. must be a tensor"),
    (lambda score, b, h, q, k: score.expand(2), r"the result \(of shape \(2,\)\) must be a single number"),
    (lambda score, b, h, q, k: score + torch.zeros(3).to("meta")[q], "must be dense, and on the query's device"),
    (lambda score, b, h, q, k: score + torch.zeros(0)[q], "has no elements"),
    (lambda score, b, h, q, k: score % 2.0, "% of floats has no equivalent"),
    (lambda score, b, h, q, k: score + (q ^ k), "bitwise xor of integers"),
    (lambda score, b, h, q, k: functools.reduce(operator.mul, [score + q] * 90), "operators"),
])
def test_what_has_no_equivalent_names_its_line(score_mod, message):
    with pytest.raises(regard.torch.TracingError, match=message) as caught:
        traced(score_mod)
    line = score_mod.__code__.co_firstlineno
    assert re.search(rf'score_mod \(<lambda>\), "{re.escape(__file__)}", line {line}: ', str(caught.value))
    assert str(caught.value).splitlines()[-1].strip().startswith("(lambda score")
    assert isinstance(caught.value, (regard.torch.ArgumentError, NotImplementedError))


def test_the_innermost_line_of_the_user_is_named():
    def helper(x):
        return torch.special.i0(x)  # this line

    def score_mod(score, b, h, q, k):
        return score + helper(score)

    with pytest.raises(regard.torch.TracingError) as caught:
        traced(score_mod)
    assert f'line {helper.__code__.co_firstlineno + 1}: ' in str(caught.value)
    assert "# this line" in str(caught.value)


@pytest.mark.parametrize("mask_mod, message", [
    (lambda b, h, q, k: q - k, "the result .of torch.int64. must be torch.bool"),
    (lambda b, h, q, k: BIAS[h, q, k], "the result .of torch.float64. must be torch.bool")])
def test_masks_are_bools(mask_mod, message):
    with pytest.raises(regard.torch.TracingError, match=message):
        traced(None, mask_mod)


def test_arguments_of_functions():
    with pytest.raises(regard.torch.ArgumentError, match=r"must take 5 arguments, \(score, b, h, q_idx, kv_idx\)"):
        traced(lambda b, h, q, k: q)
    with pytest.raises(TypeError, match="score_mod .int. must be a function"):
        traced(3)


def test_errors_of_the_user_are_his_own():
    with pytest.raises(NameError, match="no_such_name"):
        traced(lambda score, b, h, q, k: score + no_such_name)  # noqa: F821
    with pytest.raises(KeyError):
        traced(lambda score, b, h, q, k: score + {}[3])


def test_no_grad_inside_is_an_error():
    def score_mod(score, b, h, q, k):
        with torch.no_grad():
            bias = score * 2
        return score + bias

    with pytest.raises(regard.torch.TracingError, match="torch.no_grad has no equivalent"):
        traced(score_mod)
    with torch.no_grad():
        assert traced(score_mod).score == "score+score*2"


def test_texts_of_common_forms():
    """As recognised forms are written."""
    cases = {
        "kv_idx<=q_idx": lambda b, h, q, k: q >= k,
        "kv_idx<=q_idx&q_idx-kv_idx<4": regard.torch.and_masks(
            lambda b, h, q, k: k <= q, lambda b, h, q, k: q - k < 4),
        "abs(q_idx-kv_idx)<=2": lambda b, h, q, k: (q - k).abs() <= 2,
        "i0[q_idx]==i1[kv_idx]": lambda b, h, q, k: DOCS_Q[q] == DOCS_K[k],
        "": lambda b, h, q, k: q >= 0}
    for text, mask_mod in cases.items():
        assert traced(None, mask_mod).mask == text
    assert traced(lambda score, b, h, q, k: 20.0 * torch.tanh(score / 20.0)).score == "tanh(score/20.0)*20.0"
    assert traced(lambda score, b, h, q, k: score).score == ""


def test_tensors_are_shared_by_both_functions():
    found = traced(lambda score, b, h, q, k: score + DOCS_K[k] * TABLE[h, q],
                   lambda b, h, q, k: DOCS_Q[q] == DOCS_K[k])
    assert found.score == "score+i0[kv_idx]*r1[h,q_idx]"
    assert found.mask == "i2[q_idx]==i0[kv_idx]"
    assert [x is y for x, y in zip(found.captured, (DOCS_K, TABLE, DOCS_Q))][1]
    assert found.differentiable == [True, True, False]


def count_calls(make):
    """How often a function is traced; `make` is given a hook to call."""
    calls = []
    return make(lambda: calls.append(1)), calls


def test_closures_are_compared_by_value():
    traces = []

    def make(window, bias, seen=traces):
        def score_mod(score, b, h, q, k):
            return torch.where(q - k < window, score + bias[k], 0.0)
        return score_mod

    _entries.clear()
    first, second = torch.randn(9), torch.randn(9)
    found = traced(make(3, first))
    assert len(_entries) == 1
    again = traced(make(3, second))  # another function, another tensor
    assert len(_entries) == 1 and again.captured[0] is not found.captured[0]
    assert torch.equal(again.captured[0], second) and again.score == found.score
    assert traced(make(4, first)).score != found.score
    assert traced(make(3.0, first)).score != found.score
    assert traced(make(3, first.double())).captured[0].dtype == torch.float64
    assert len(_entries) == 4
    assert traced(make(3, first), extents=(2, 3, 5, 9)).score == found.score and len(_entries) == 5


def test_one_tensor_twice_is_not_two():
    def make(x, y):
        return lambda score, b, h, q, k: score + x[q] * y[k]

    one, other = torch.randn(9), torch.randn(9)
    assert traced(make(one, one)).score == "score+r0[q_idx]*r0[kv_idx]"
    found = traced(make(one, other))
    assert found.score == "score+r0[q_idx]*r1[kv_idx]" and torch.equal(found.captured[1], other)


WINDOW = 2


def test_globals_are_compared_too():
    global WINDOW

    def mask_mod(b, h, q, k):
        return q - k < WINDOW

    before = traced(None, mask_mod).mask
    WINDOW = 5
    try:
        assert (before, traced(None, mask_mod).mask) == ("q_idx-kv_idx<2", "q_idx-kv_idx<5")
    finally:
        WINDOW = 2


def test_objects_are_traced_at_every_call():
    class Bias(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.window, self.bias = 3, torch.nn.Parameter(torch.randn(9))

        def forward(self, score, b, h, q, k):
            return torch.where(q - k < self.window, score + self.bias[k], 0.0)

    module = Bias()
    first = traced(module.forward)
    module.window = 4
    assert (first.score, traced(module).score) == ("where(q_idx-kv_idx<3,score+r0[kv_idx],0.0)",
                                                   "where(q_idx-kv_idx<4,score+r0[kv_idx],0.0)")
    assert first.captured[0] is module.bias

    box = [1]
    def mask_mod(b, h, q, k):
        return q - k < box[0]
    assert traced(None, mask_mod).mask == "q_idx-kv_idx<1"
    box[0] = 2
    assert traced(None, mask_mod).mask == "q_idx-kv_idx<2"


def test_values_that_were_read_are_read_again():
    """.item() and tensors that a function computes with are not those of an earlier call."""
    limit, weights = torch.tensor([3]), torch.ones(9)

    def score_mod(score, b, h, q, k):
        return torch.where(q - k < int(limit), score + (weights * 2)[k], 0.0)

    assert traced(score_mod).score == "where(q_idx-kv_idx<3,score+r0[kv_idx],0.0)"
    limit[0], weights[:] = 1, 5.0
    found = traced(score_mod)
    assert found.score == "where(q_idx-kv_idx<1,score+r0[kv_idx],0.0)"
    assert torch.equal(found.captured[0], torch.full((9,), 10.0))


def test_integers_that_become_negative_are_traced_again():
    """Indices of a captured tensor: those below 0 count from the end, which the text has to say."""
    pointers, table = torch.arange(9), torch.randn(9)

    def score_mod(score, b, h, q, k):
        return score + table[pointers[k]]

    assert traced(score_mod).score == "score+r0[i1[kv_idx]]"
    pointers[3] = -2
    found = traced(score_mod)
    assert found.score == "score+r0[i1[kv_idx]%9]"
    torch.testing.assert_close(evaluate(found.score, SCORES, found.captured).double(),
                               apply_score_mod(score_mod, SCORES).double())


def test_random_numbers_are_drawn_anew():
    found = [traced(lambda score, b, h, q, k: score + torch.rand(()).item()).score for _ in range(2)]
    assert found[0] != found[1]


def test_tables_are_kept():
    def score_mod(score, b, h, q, k):
        return score + torch.sin(q * 0.5)

    _entries.clear()
    first, second = traced(score_mod), traced(score_mod)
    assert len(_entries) == 1 and first.score == "score+r0[q_idx]"
    assert torch.equal(second.captured[0], torch.sin(torch.arange(Q) * 0.5))


def test_repeated_tracing_keeps_no_tensors_alive():
    import gc
    import weakref

    bias = torch.randn(9)
    traced(lambda score, b, h, q, k: score + bias[k])
    reference = weakref.ref(bias)
    del bias
    gc.collect()
    assert reference() is None
