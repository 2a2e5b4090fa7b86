"""regard.torch.flex_attention: PyTorch's own score_mods and mask_mods give eager's results and gradients."""

import math
import time
import warnings

import pytest
import torch
from flex_reference import flex_attention as reference
from torch.nn.attention import flex_attention as theirs

import regard.torch
from regard.torch import AuxRequest, create_block_mask, flex_attention

B, HQ, HKV, Q, K, D = 2, 4, 2, 150, 200, 32
torch.manual_seed(0)
HEAD_BIAS, BATCH_BIAS = torch.randn(HQ), torch.randn(B)
REL_TABLE = torch.randn(HQ, Q + K)
TOKEN_BIAS = torch.randn(B, K)
FULL_BIAS = torch.randn(B, HQ, Q, K) * 0.5
SEQ_Q, SEQ_K = torch.arange(Q) // 40, torch.arange(K) // 50
PREFIX = torch.tensor([30, 77])
LENGTHS = torch.tensor([K, 90], dtype=torch.int32)
DOCS = torch.sort(torch.randint(0, 5, (B, K)), 1).values.int()
NOISE = torch.rand(Q, K) > 0.3
SLOPES = torch.exp2(-8.0 * torch.arange(1, HQ + 1) / HQ)


def trace_of_head(h):
    return torch.where(h % 2 == 0, -1.0, 1.0)


SCORE_MODS = {
    "identity": lambda score, b, h, m, n: score,
    "causal": lambda score, b, h, m, n: torch.where(m >= n, score, float("-inf")),
    "rel_bias": lambda score, b, h, m, n: score + (m - n),
    "rel_causal": lambda score, b, h, m, n: torch.where(m >= n, score + (m - n), float("-inf")),
    "inverse_causal": lambda score, b, h, m, n: torch.where(m <= n, score, float("-inf")),
    "times_two": lambda score, b, h, m, n: score * 2,
    "squared": lambda score, b, h, m, n: score * score,
    "head_offset": lambda score, b, h, m, n: score + 2 * h,
    "head_attention": lambda score, b, h, m, n: score * trace_of_head(h),
    "alibi": lambda score, b, h, m, n: score + torch.exp2(-((h + 1) * 8.0 / HQ)) * (n - m),
    "alibi_of_slopes": lambda score, b, h, m, n: score + SLOPES[h] * (n - m).abs() * -1,
    "seq_idx": lambda score, b, h, m, n: torch.where(SEQ_Q[m] == SEQ_K[n], score, float("-inf")),
    "head_bias": lambda score, b, h, m, n: score + HEAD_BIAS[h],
    "batch_bias": lambda score, b, h, m, n: score + BATCH_BIAS[b] * HEAD_BIAS[h],
    "token_bias": lambda score, b, h, m, n: score + TOKEN_BIAS[b, n],
    "full_bias": lambda score, b, h, m, n: score + FULL_BIAS[b, h, m, n],
    "relative_table": lambda score, b, h, m, n: score + REL_TABLE[h, m - n + K],
    "relative_clamped": lambda score, b, h, m, n: score + REL_TABLE[h][(m - n).clamp(-16, 16) + 16],
    "softcap": lambda score, b, h, m, n: 5 * torch.tanh(score / 5),
    "softcap_alibi": lambda score, b, h, m, n: 5 * torch.tanh((score + SLOPES[h] * (n - m)) / 5),
    "sigmoid": lambda score, b, h, m, n: torch.sigmoid(score) * 4 + torch.log1p(score.abs()),
    "dilated": lambda score, b, h, m, n: torch.where((m - n) % 3 == 0, score, float("-inf")),
    "natten": lambda score, b, h, m, n: torch.where(
        ((m // 16 - n // 16).abs() <= 2) & ((m % 16 - n % 16).abs() <= 3), score, float("-inf")),
    "trig_of_places": lambda score, b, h, m, n: score + torch.sin(m * 0.1) * torch.cos(n * 0.2),
    "clamped": lambda score, b, h, m, n: score.clamp(-1, 1.5) + torch.minimum(score, HEAD_BIAS[h]),
}


def tensors(dtype=torch.float32, requires_grad=False, heads_kv=HKV):
    generator = torch.Generator().manual_seed(1)
    made = [torch.randn(shape, generator=generator).to(dtype) for shape in (
        (B, HQ, Q, D), (B, heads_kv, K, D), (B, heads_kv, K, 24))]
    return [x.requires_grad_(requires_grad) for x in made]


TOLERANCES = {torch.float64: dict(rtol=1e-7, atol=1e-7), torch.float32: dict(rtol=2e-4, atol=2e-4),
              torch.bfloat16: dict(rtol=3e-2, atol=3e-2), torch.float16: dict(rtol=5e-3, atol=5e-3)}


def run(dtype, score_mod=None, mask_mod=None, block_mask=None, with_gradients=True):
    """Results and gradients here and of the reference, which has the same inputs in a wider type."""
    mine = tensors(dtype, with_gradients)
    wide = torch.float64 if dtype in (torch.float32, torch.float64) else torch.float32
    other = [x.detach().to(wide).requires_grad_(with_gradients) for x in mine]
    out, aux = flex_attention(*mine, score_mod=score_mod, block_mask=block_mask, enable_gqa=True,
                              return_aux=AuxRequest(lse=True))
    expected, lse = reference(*other, score_mod, mask_mod)
    tolerance = TOLERANCES[dtype]
    assert out.dtype == dtype and aux.lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(out.to(wide), expected, **tolerance)
    torch.testing.assert_close(aux.lse.to(wide), lse, **tolerance)
    if not with_gradients:
        return
    weights, lse_weights = torch.randn(out.shape), torch.where(lse.isfinite(), torch.randn(lse.shape), 0.0)
    finite = torch.where(aux.lse.isfinite(), aux.lse, 0.0)
    ((out.float() * weights).sum() + (finite * lse_weights).sum()).backward()
    finite = torch.where(lse.isfinite(), lse, 0.0)
    ((expected.float() * weights).sum() + (finite * lse_weights).sum()).backward()
    for x, y in zip(mine, other):
        size = y.grad.abs().max().item()
        torch.testing.assert_close(x.grad.to(wide), y.grad, rtol=tolerance["rtol"],
                                   atol=tolerance["atol"] * max(size, 1.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SCORE_MODS)
def test_score_mods(name, dtype):
    run(dtype, SCORE_MODS[name])


MASK_MODS = {
    "noop": theirs.noop_mask,
    "causal": lambda b, h, m, n: m >= n,
    "sliding_window": lambda b, h, m, n: (m >= n) & (m - n <= 32),
    "prefix_lm": lambda b, h, m, n: (n < PREFIX[b]) | (m >= n),
    "global_prefix_and_window": regard.torch.or_masks(
        lambda b, h, m, n: n < 4, lambda b, h, m, n: (m - n).abs() < 20),
    "documents": lambda b, h, m, n: (DOCS[b, m] == DOCS[b, n]) & (m >= n),
    "lengths": lambda b, h, m, n: n < LENGTHS[b],
    "nothing": lambda b, h, m, n: m < 0,
    "rows_of_nothing": lambda b, h, m, n: (m % 7 != 0) & (m >= n),
    "random": lambda b, h, m, n: NOISE[m, n],
    "dilated": theirs.and_masks(lambda b, h, m, n: (m - n) % 4 == 0, lambda b, h, m, n: m >= n),
    "natten": lambda b, h, m, n: ((m // 16 - n // 16).abs() <= 2) & ((m % 16 - n % 16).abs() <= 3),
    "by_head": lambda b, h, m, n: (m >= n) | (h % 2 == 0),
}


@pytest.mark.parametrize("maker", [create_block_mask, theirs.create_block_mask], ids=["regard", "pytorch"])
@pytest.mark.parametrize("name", MASK_MODS)
def test_mask_mods(name, maker):
    mask_mod = MASK_MODS[name]
    block_mask = maker(mask_mod, B, HQ, Q, K, device="cpu", BLOCK_SIZE=(64, 32))
    run(torch.float32, None, mask_mod, block_mask)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("score", ["alibi_of_slopes", "softcap", "relative_table"])
@pytest.mark.parametrize("mask", ["sliding_window", "documents"])
def test_both_functions(score, mask, dtype):
    block_mask = create_block_mask(MASK_MODS[mask], B, None, Q, K)
    run(dtype, SCORE_MODS[score], MASK_MODS[mask], block_mask)


def captured_gradients(score_mod_of, leaves, dtype):
    """Of what score_mod_of(*leaves) reads: here and in the reference."""
    mine = [x.detach().clone().requires_grad_(x.requires_grad) for x in leaves]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    other = [x.detach().to(wide if x.is_floating_point() else x.dtype).requires_grad_(x.requires_grad)
             for x in leaves]
    q, k, v = tensors(dtype)
    weights = torch.randn(B, HQ, Q, 24)
    (flex_attention(q, k, v, score_mod_of(*mine), enable_gqa=True).float() * weights).sum().backward()
    expected, _ = reference(*[x.to(wide) for x in (q, k, v)], score_mod_of(*other))
    (expected.float() * weights).sum().backward()
    return mine, other


# PyTorch's vmap has no gradient of a gather by a traced head alone, so that each has all indices.
LEARNED = {
    "head_bias_and_scale": (lambda bias, scale: lambda s, b, h, m, n: s * scale + bias[h, m, n],
                            [torch.randn(HQ, Q, K), torch.tensor(0.7)]),
    "relative": (lambda table, shift: lambda s, b, h, m, n: s + table[h, m - n + shift],
                 [torch.randn(HQ, Q + K), torch.tensor(K)]),
    "derived": (lambda weights, other: lambda s, b, h, m, n: s * torch.sigmoid(weights.exp()[n] * 0.1) +
                other[b, n], [torch.randn(K), torch.randn(B, K)]),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LEARNED)
def test_gradients_of_captured_tensors(name, dtype):
    make, leaves = LEARNED[name]
    leaves = [x.to(dtype).requires_grad_() if x.is_floating_point() else x for x in leaves]
    for mine, other in zip(*captured_gradients(make, leaves, dtype)):
        if mine.requires_grad:
            assert mine.grad.shape == mine.shape and mine.grad.dtype == dtype
            size = other.grad.abs().max().item()
            tolerance = TOLERANCES[dtype]["atol"]
            torch.testing.assert_close(mine.grad.to(other.dtype), other.grad, rtol=tolerance,
                                       atol=tolerance * max(size, 1.0))


def test_gradcheck():
    torch.manual_seed(3)
    q, k, v = (torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    table = torch.randn(2, 10, dtype=torch.float64, requires_grad=True)
    cap = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    mask = create_block_mask(lambda b, h, m, n: (m >= n) | (n == 0), None, None, 5, 5, BLOCK_SIZE=2)

    def run(q, k, v, table, cap):
        def score_mod(score, b, h, m, n):
            return cap * torch.tanh((score + table[h, m - n + 4]) / cap)

        out, aux = flex_attention(q, k, v, score_mod, mask, return_aux=AuxRequest(lse=True))
        return out, aux.lse

    assert torch.autograd.gradcheck(run, (q, k, v, table, cap))


def test_gradients_reach_what_the_bias_was_made_of():
    weight = torch.nn.Parameter(torch.randn(HQ, 8))
    basis = torch.randn(8, Q + K)
    q, k, v = tensors()

    def loss(attend, table):
        def score_mod(score, b, h, m, n):
            return score + table[h, m - n + K]
        return attend(score_mod).square().sum()

    loss(lambda f: flex_attention(q, k, v, f, enable_gqa=True), weight @ basis).backward()
    mine, weight.grad = weight.grad, None
    loss(lambda f: reference(q, k, v, f)[0], weight @ basis).backward()
    torch.testing.assert_close(mine, weight.grad, rtol=1e-3, atol=1e-3 * weight.grad.abs().max().item())


def test_layouts_of_memory_are_kept():
    """Heads inside positions, as models' projections have them."""
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in tensors())
    out = flex_attention(q, k, v, SCORE_MODS["alibi"], enable_gqa=True)
    assert out.stride() == out.transpose(1, 2).contiguous().transpose(1, 2).stride()
    out.sum().backward()
    expected = [x.detach().contiguous().requires_grad_() for x in (q, k, v)]
    flex_attention(*expected, SCORE_MODS["alibi"], enable_gqa=True).sum().backward()
    for x, y in zip((q, k, v), expected):
        torch.testing.assert_close(x.grad, y.grad)


def test_scale_and_lse():
    q, k, v = tensors()
    with pytest.warns(FutureWarning, match="return_lse is deprecated"):
        out, lse = flex_attention(q, k, v, None, None, 0.3, True, True)
    expected, expected_lse = reference(q, k, v, scale=0.3)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-4, atol=1e-4)
    assert flex_attention(q, k, v, enable_gqa=True, return_aux=AuxRequest())[1].lse is None
    assert flex_attention(q, k, v, enable_gqa=True, return_aux=theirs.AuxRequest(lse=True))[1].lse.shape == (
        B, HQ, Q)


def test_keys_of_one_sequence_for_all():
    q, k, v = tensors()
    mask = create_block_mask(MASK_MODS["lengths"], B, None, Q, K)
    out = flex_attention(q, k[:1], v[:1], block_mask=mask, enable_gqa=True)
    torch.testing.assert_close(out, reference(q, k[:1], v[:1], None, MASK_MODS["lengths"])[0], rtol=1e-4,
                               atol=1e-4)
    with pytest.raises(ValueError, match="batch of key .1. must be query's .2., or 1 with a block_mask"):
        flex_attention(q, k[:1], v[:1], enable_gqa=True)


def test_blocks_that_a_user_lists():
    """from_kv_blocks without a mask_mod: what is not listed is hidden, as PyTorch's compiled kernels have it."""
    listed = torch.tensor([[[[0, 1, 0, 0], [1, 3, 0, 0], [2, 0, 0, 0]]]], dtype=torch.int32)
    counts = torch.tensor([[[1, 2, 1]]], dtype=torch.int32)
    mask = theirs.BlockMask.from_kv_blocks(counts, listed, BLOCK_SIZE=(50, 50), seq_lengths=(Q, K))
    visible = torch.zeros(3, 4, dtype=torch.bool)
    visible[[0, 1, 1, 2], [0, 1, 3, 2]] = True
    whole = visible.repeat_interleave(50, 0).repeat_interleave(50, 1)
    run(torch.float32, None, lambda b, h, m, n: whole[m, n], mask)


def test_a_mask_mod_that_was_replaced():
    mask = create_block_mask(lambda b, h, m, n: m >= n, None, None, Q, K)
    mask.mask_mod = lambda b, h, m, n: n < 130
    visible = lambda b, h, m, n: ((m // 128 > n // 128) | (m // 128 == n // 128)) & (n < 130)  # noqa: E731
    q, k, v = tensors()
    out = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    torch.testing.assert_close(out, reference(q, k, v, None, visible)[0], rtol=1e-4, atol=1e-4)


def test_slices_of_masks():
    mask = create_block_mask(MASK_MODS["causal"], B, HQ, Q, K, BLOCK_SIZE=32)
    sliced = mask[:1]
    q, k, v = tensors()
    with pytest.raises(ValueError, match="Cannot use mask_mod from a sliced BlockMask"):
        flex_attention(q, k, v, block_mask=sliced, enable_gqa=True)
    sliced.mask_mod = mask.mask_mod
    out = flex_attention(q[:1], k[:1], v[:1], block_mask=sliced, enable_gqa=True)
    torch.testing.assert_close(out, reference(q, k, v, None, MASK_MODS["causal"])[0][:1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MASK_MODS)
@pytest.mark.parametrize("size", [128, (64, 32), 17])
def test_block_masks_are_pytorchs(name, size):
    mine = create_block_mask(MASK_MODS[name], B, HQ, Q, K, device="cpu", BLOCK_SIZE=size)
    other = theirs.create_block_mask(MASK_MODS[name], B, HQ, Q, K, device="cpu", BLOCK_SIZE=size)
    assert isinstance(mine, theirs.BlockMask)
    for x, y in zip(mine.as_tuple(), other.as_tuple()):
        if isinstance(x, torch.Tensor):
            assert x.dtype == y.dtype and torch.equal(x, y)
        elif not callable(x):
            assert x == y
    assert mine.sparsity() == other.sparsity() and str(mine) == str(other)
    assert torch.equal(mine.to_dense(), other.to_dense())


@pytest.mark.parametrize("name", MASK_MODS)
def test_block_masks_are_of_expressions(name, monkeypatch):
    """No element is evaluated by torch."""
    def evaluated(*unused):
        raise AssertionError

    monkeypatch.setattr(regard.torch._block_mask, "compute_blocks", evaluated)
    create_block_mask(MASK_MODS[name], B, HQ, Q, K)


def test_block_masks_of_indices_that_are_not_proven(monkeypatch):
    """Which calls refuse: torch evaluates each element."""
    table = torch.arange(Q) % 3 == 0
    evaluated, original = [], regard.torch._block_mask.compute_blocks
    monkeypatch.setattr(regard.torch._block_mask, "compute_blocks",
                        lambda *given: evaluated.append(given) or original(*given))
    mine, other = (make(lambda b, h, m, n: table[(m * n) // (n * m + 1)] | (m < n), None, None, Q, Q, device="cpu",
                        BLOCK_SIZE=32) for make in (create_block_mask, theirs.create_block_mask))
    assert len(evaluated) == 1 and torch.equal(mine.to_dense(), other.to_dense())


LONG = 32768
LONG_DOCUMENTS = torch.randint(0, 40, (LONG,), generator=torch.Generator().manual_seed(0)).sort().values
LONG_MASK_MODS = {
    "causal": lambda b, h, m, n: m >= n,
    "window": lambda b, h, m, n: (m >= n) & (m - n < 4096),
    "prefix": lambda b, h, m, n: (n < 1000) | (m >= n),
    "documents": lambda b, h, m, n: (LONG_DOCUMENTS[m] == LONG_DOCUMENTS[n]) & (m >= n),
}


@pytest.mark.parametrize("name", LONG_MASK_MODS)
def test_long_block_masks(name, capsys):
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        mask = create_block_mask(LONG_MASK_MODS[name], None, None, LONG, LONG)
        seconds.append(time.perf_counter() - began)
    with capsys.disabled():
        print(f"\n{name}: {', '.join(f'{x * 1e3:.1f}' for x in seconds)} ms, {mask.sparsity():.1f} % empty")
    assert mask.shape == (1, 1, LONG, LONG) and min(seconds) < 1


def test_block_masks_without_full_blocks():
    mine, other = (make(MASK_MODS["causal"], None, None, Q, K, device="cpu", BLOCK_SIZE=32,
                        separate_full_blocks=False) for make in (create_block_mask, theirs.create_block_mask))
    assert mine.full_kv_indices is None and torch.equal(mine.kv_num_blocks, other.kv_num_blocks)
    run(torch.float32, None, MASK_MODS["causal"], mine)


@pytest.mark.parametrize("arguments, error, message", [
    (dict(kernel_options=3), TypeError, "kernel_options .int. must be a dict or None"),
    (dict(return_lse=True, return_aux=AuxRequest(lse=True)), ValueError, "Cannot specify both return_lse and"),
    (dict(return_aux=3), TypeError, "return_aux .int. must be an AuxRequest"),
    (dict(return_aux=theirs.AuxRequest(max_scores=True)), NotImplementedError, "max_scores .True. must be False"),
    (dict(block_mask=torch.ones(3)), TypeError, "block_mask .Tensor. must be a BlockMask"),
    (dict(scale=math.inf), ValueError, "scale .inf. must be finite"),
    (dict(enable_gqa=False), ValueError, r"heads in key \(2\) must be query's \(4\); enable_gqa=True"),
    (dict(enable_gqa=1), TypeError, "enable_gqa .1. must be True or False"),
    (dict(score_mod=lambda b, h, m, n: m), ValueError, "must take 5 arguments"),
    (dict(score_mod=lambda s, b, h, m, n: torch.sin(s)), NotImplementedError, "torch.sin has no equivalent"),
    (dict(block_mask=theirs.create_block_mask(MASK_MODS["causal"], None, None, 64, 64, device="cpu")),
     ValueError, r"block_mask was created for.*\(1, 1, 64, 64\); expected 150 queries and 200 keys"),
    (dict(block_mask=theirs.create_block_mask(MASK_MODS["causal"], 3, None, Q, K, device="cpu")),
     ValueError, r"must be of 1 or 2 sequences and 1 or 4 heads"),
])
def test_arguments(arguments, error, message):
    q, k, v = tensors()
    with pytest.raises(error, match=message):
        flex_attention(q, k, v, **{"enable_gqa": True, **arguments})


@pytest.mark.parametrize("change, error, message", [
    (lambda q, k, v: (q[0], k[0], v[0]), ValueError, "query .of shape .4, 150, 32.. must have 4 dimensions"),
    (lambda q, k, v: (q, k[..., :8], v), ValueError, "head_dim of key .8. must be query's, 32"),
    (lambda q, k, v: (q, k.double(), v), ValueError, "dtype of key .torch.float64. must be query's"),
    (lambda q, k, v: (q, k, v[:, :, :9]), ValueError, "value .of shape.*must have the batch, heads and positions"),
    (lambda q, k, v: (q, k[:, :0], v[:, :0]), ValueError, "heads in key .0. must divide that of query"),
    (lambda q, k, v: (q.long(), k.long(), v.long()), ValueError, "dtype of query .torch.int64. must be"),
    (lambda q, k, v: (q.numpy(), k, v), TypeError, "query .ndarray. must be a torch.Tensor"),
])
def test_tensors(change, error, message):
    with pytest.raises(error, match=message):
        flex_attention(*change(*tensors()), enable_gqa=True)


@pytest.mark.parametrize("arguments, error, message", [
    (dict(mask_mod=lambda s, b, h, m, n: m), ValueError, "must take 4 arguments"),
    (dict(mask_mod=lambda b, h, m, n: m - n), ValueError, "must be torch.bool"),
    (dict(BLOCK_SIZE=0), ValueError, "BLOCK_SIZE .0. must be a positive integer"),
    (dict(BLOCK_SIZE=(3, 4, 5)), ValueError, "BLOCK_SIZE"),
    (dict(Q_LEN=0), ValueError, "Q_LEN .0. must be an integer of at least 1"),
    (dict(B=-1), ValueError, "B .-1. must be an integer of at least 1, or None"),
])
def test_arguments_of_create_block_mask(arguments, error, message):
    given = dict(mask_mod=MASK_MODS["causal"], B=None, H=None, Q_LEN=64, KV_LEN=64) | arguments
    with pytest.raises(error, match=message):
        create_block_mask(**given)


def test_indices_out_of_range_are_refused_before_anything_is_written():
    table = torch.randn(10)
    q, k, v = tensors()
    with pytest.raises(regard.torch.ArgumentError, match="index 0 of captured0 may be 0 to 199"):
        flex_attention(q, k, v, lambda s, b, h, m, n: s + table[n], enable_gqa=True)


def test_integers_beyond_32_bits_are_refused():
    numbers = torch.full((K,), 2**40)
    numbers[3] = 0
    q, k, v = tensors()
    with pytest.raises(regard.torch.ArgumentError, match="32 bits"):
        flex_attention(q, k, v, lambda s, b, h, m, n: torch.where(numbers[n] > 3, s, 0.0), enable_gqa=True)


def test_autocast():
    q, k, v = tensors()
    with torch.autocast("cpu", torch.bfloat16):
        out = flex_attention(q, k, v, SCORE_MODS["softcap"], enable_gqa=True)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, flex_attention(
        *(x.bfloat16() for x in (q, k, v)), SCORE_MODS["softcap"], enable_gqa=True))


def test_scopes_and_explanations():
    q, k, v = tensors()
    with regard.torch.sdpa_kernel("math"), regard.trace() as trace:
        flex_attention(q, k, v, lambda s, b, h, m, n: s * 3, enable_gqa=True)
    assert trace.records[0].backend == "math" and "score=score*3" in trace.records[0].case
    mask = create_block_mask(MASK_MODS["causal"], None, None, Q, K)
    with regard.trace() as trace:
        flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    assert "causal" in trace.records[0].case and "mask=" not in trace.records[0].case


def test_compiled_code_goes_around():
    q, k, v = tensors()

    @torch.compile(backend="eager")
    def run(q, k, v):
        return flex_attention(q * 1.0, k, v, SCORE_MODS["softcap"], enable_gqa=True) + 1

    torch.testing.assert_close(run(q, k, v), flex_attention(q, k, v, SCORE_MODS["softcap"], enable_gqa=True) + 1)


def test_transforms_are_refused():
    q, k, v = tensors()
    with pytest.raises(regard.torch.ArgumentError, match="torch.func"):
        torch.func.grad(lambda q: flex_attention(q, k, v, enable_gqa=True).sum())(q)
    with pytest.raises(regard.torch.ArgumentError, match="exportable"), regard.torch.exportable():
        flex_attention(q, k, v, enable_gqa=True)


def test_second_derivatives_are_refused():
    q, k, v = tensors(torch.float32, True)
    grad, = torch.autograd.grad(flex_attention(q, k, v, SCORE_MODS["squared"], enable_gqa=True).sum(), q,
                                create_graph=True)
    assert not grad.requires_grad


def test_signatures_are_pytorchs():
    import inspect

    for mine, other in ((flex_attention, theirs.flex_attention), (create_block_mask, theirs.create_block_mask)):
        expected, found = (inspect.signature(f).parameters.values() for f in (other, mine))
        assert [(p.name, p.kind, p.default) for p in found] == [(p.name, p.kind, p.default) for p in expected]


def test_pytorch_takes_masks_of_regard():
    """Compared with its eager implementation, which reads the mask_mod alone."""
    q, k, v = tensors(heads_kv=HQ)
    mask = create_block_mask(MASK_MODS["documents"], B, None, Q, K)
    theirs._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = theirs.flex_attention(q, k, v, SCORE_MODS["alibi"], mask)
    finally:
        theirs._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = False
    torch.testing.assert_close(flex_attention(q, k, v, SCORE_MODS["alibi"], mask), expected, rtol=1e-4, atol=1e-4)
