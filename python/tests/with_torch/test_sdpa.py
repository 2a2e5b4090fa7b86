"""regard.torch.scaled_dot_product_attention beside PyTorch's own."""

import math
import threading

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend
from torch.testing._internal.common_methods_invocations import op_db

import regard
import regard.torch
from regard.torch._formula import dropout_factors, formula
from regard.torch._options import Options

sdpa = regard.torch.scaled_dot_product_attention
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 6e-2, torch.float16: 8e-3}


def make(b=2, hq=4, hkv=None, sq=9, skv=13, d=16, dv=None, dtype=torch.float32, seed=0, grad=False):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(b, hq, sq, d), (b, hkv or hq, skv, d), (b, hkv or hq, skv, dv or d)]
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_(grad) for s in shapes]


def same(mine, theirs, scale=1.0):
    assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
    torch.testing.assert_close(mine, theirs, rtol=0, atol=scale * TOLERANCE[mine.dtype])


def samples(dtype, grad):
    (info,) = [op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention"]
    torch.manual_seed(0)
    return list(info.sample_inputs("cpu", dtype, requires_grad=grad))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_pytorchs_own_samples(dtype):
    grad = dtype in (torch.float64, torch.float32)
    compared = 0
    for sample in samples(dtype, grad):
        if sample.kwargs.get("dropout_p"):  # another mask, the same generator: see below
            assert sdpa(sample.input, *sample.args, **sample.kwargs).shape[-2] == 3
            continue
        theirs = F.scaled_dot_product_attention(sample.input, *sample.args, **sample.kwargs)
        mine = sdpa(sample.input, *sample.args, **sample.kwargs)
        same(mine, theirs, scale=10)  # PyTorch's samples reach from -9 to 9
        compared += 1
        if not grad:
            continue
        inputs = [x for x in (sample.input, *sample.args, sample.kwargs.get("attn_mask"))
                  if x is not None and x.requires_grad]
        d_out = torch.randn_like(theirs)
        expected = torch.autograd.grad(theirs, inputs, d_out)
        for a, b in zip(torch.autograd.grad(mine, inputs, d_out), expected):
            same(a, b, scale=100)
    assert compared >= 9


SHAPES = {
    "2d": ((5, 8), (7, 8), (7, 6)),
    "3d": ((3, 5, 8), (3, 7, 8), (3, 7, 8)),
    "4d": ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4)),
    "5d": ((2, 2, 3, 5, 8), (2, 2, 3, 7, 8), (2, 2, 3, 7, 8)),
    "batches_broadcast": ((2, 3, 5, 8), (1, 3, 7, 8), (2, 3, 7, 8)),
    "heads_broadcast": ((2, 3, 5, 8), (2, 1, 7, 8), (2, 1, 7, 8)),
    "dimensions_broadcast": ((2, 3, 5, 8), (7, 8), (3, 7, 8)),
    "query_broadcasts": ((1, 1, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)),
    "one_row": ((2, 3, 1, 8), (2, 3, 7, 8), (2, 3, 7, 8)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    q, k, v = (torch.randn(s, requires_grad=True) for s in SHAPES[name])
    mine, theirs = sdpa(q, k, v), F.scaled_dot_product_attention(q, k, v)
    same(mine, theirs)
    d_out = torch.randn_like(theirs)
    for a, b in zip(torch.autograd.grad(mine, (q, k, v), d_out),
                    torch.autograd.grad(theirs, (q, k, v), d_out)):
        same(a, b)
    lead = theirs.shape[:-2]
    for shape in [(7,), (5, 7), (5, 1), (*lead[-1:], 5, 7), (*lead, 5, 7)][:2 + len(lead)]:
        rows = q.shape[-2]
        if rows == 1:
            shape = tuple(1 if n == 5 else n for n in shape)
        mask = torch.rand(shape) < 0.8
        mask[..., 0] = True
        # PyTorch's FLASH takes no mask of one dimension
        two = (lambda x: x if x.dim() > 1 else x[None].expand(rows, -1))
        same(sdpa(q, k, v, mask), F.scaled_dot_product_attention(q, k, v, two(mask)))
        bias = torch.randn(shape, requires_grad=True)
        mine, theirs = sdpa(q, k, v, bias), F.scaled_dot_product_attention(q, k, v, two(bias))
        same(mine, theirs)
        same(*(torch.autograd.grad(x, bias, d_out)[0] for x in (mine, theirs)))


def test_grouped_heads_scale_and_views():
    q, k, v = make(hq=6, hkv=2, grad=True)
    for options in [dict(enable_gqa=True), dict(enable_gqa=True, scale=0.3),
                    dict(enable_gqa=True, is_causal=True), dict(enable_gqa=True, scale=-0.2)]:
        same(sdpa(q, k, v, **options), F.scaled_dot_product_attention(q, k, v, **options))
    x = torch.randn(2, 9, 3, 4, 16)  # packed as a projection leaves it
    parts = [x[:, :, i].transpose(1, 2) for i in range(3)]
    out = sdpa(*parts)
    same(out, F.scaled_dot_product_attention(*parts))
    assert out.transpose(1, 2).is_contiguous(), "heads inside positions, as they came"
    expanded = [parts[0], parts[1][:1].expand(2, -1, -1, -1),
                parts[2].transpose(-1, -2).contiguous().transpose(-1, -2)]
    same(sdpa(*expanded), F.scaled_dot_product_attention(*expanded))
    same(sdpa(torch._neg_view(parts[0]), *parts[1:]), sdpa(-parts[0], *parts[1:]))


def test_masks_of_a_model():
    q, k, v = make(sq=13)
    padding = torch.arange(13) < torch.tensor([13, 6])[:, None]
    mask = padding[:, None, None, :].expand(2, 1, 13, 13)
    same(sdpa(q, k, v, mask), F.scaled_dot_product_attention(q, k, v, mask))
    dead = torch.zeros(13, 13, dtype=torch.bool)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    out = sdpa(q, k, v, dead)
    assert not out.any()
    assert not any(g.any() for g in torch.autograd.grad(out.sum(), (q, k, v)))


@pytest.mark.parametrize("grad", [False, True])
def test_dropout_follows_torchs_generator(grad):
    q, k, v = make(b=1, sq=32, skv=40, grad=grad, dtype=torch.float64)
    torch.manual_seed(5)
    first, second = sdpa(q, k, v, dropout_p=0.3), sdpa(q, k, v, dropout_p=0.3)
    torch.manual_seed(5)
    assert torch.equal(sdpa(q, k, v, dropout_p=0.3), first) and not torch.equal(first, second)
    torch.manual_seed(5)
    options = Options(dropout_p=0.3, rng=torch.randint(0, 2**63 - 1, (1,)))
    factors = dropout_factors(q, k, options)
    assert abs((factors > 0).double().mean() - 0.7) < 0.05
    same(first, formula(q, k, v, options, factors).out)
    if grad:
        d_out = torch.randn_like(first)
        mine = torch.autograd.grad(first, (q, k, v), d_out)
        theirs = torch.autograd.grad(formula(q, k, v, options, factors).out, (q, k, v), d_out)
        for a, b in zip(mine, theirs):
            same(a, b)
    assert not sdpa(q, k, v, dropout_p=1.0).any()


ERRORS = [
    (lambda q: sdpa(q, q, q, attn_mask=torch.ones(9, 9), is_causal=True), "is_causal (True)"),
    (lambda q: sdpa(q, q.double(), q), "dtype of key (torch.float64)"),
    (lambda q: sdpa(q[0, 0, 0], q, q), "query (of shape (16,))"),
    (lambda q: sdpa(q, q, q, attn_mask=torch.ones(9, 9, dtype=torch.int64)), "torch.int64"),
    (lambda q: sdpa(q, q, q, dropout_p=1.5), "dropout_p (1.5)"),
    (lambda q: sdpa(q, q[:, :2], q[:, :2]), "key (2)"),
    (lambda q: sdpa(q, q[:, :3], q[:, :3], enable_gqa=True), "key (3)"),
    (lambda q: sdpa(q, q[..., :8], q), "head_dim"),
    (lambda q: sdpa(q, q, q[:, :, :8]), "seqlen of v (8)"),
    (lambda q: sdpa(q[None], q[None], q[None, :, :, :8]), "seqlen of v (8)"),
    (lambda q: sdpa(q, q, q.clone().requires_grad_()[:, :, :8]), "seqlen of v (8)"),
    (lambda q: sdpa(q.to("meta"), q.to("meta"), q[:, :, :8].to("meta")), "seqlen of v (8)"),
    (lambda q: torch.vmap(sdpa)(q, q, q[:, :, :8]), "seqlen of v (8)"),
    (lambda q: regard.torch.explain(q, q, q[:, :, :8]), "seqlen of v (8)"),
    (lambda q: sdpa(q, q, q, attn_mask=torch.ones(8, 9)), "attn_mask (of shape (8, 9))"),
    (lambda q: sdpa(q, q, q.clone().requires_grad_(), torch.ones(8, 9)), "attn_mask (of shape (8,"),
    (lambda q: sdpa(q[0, 0], q[0, 0], q[0, 0], torch.ones(8, 9)), "attn_mask (of shape (8, 9))"),
    (lambda q: sdpa(*[q.expand(2, *q.shape)] * 3, torch.ones(3, 1, 1, 9, 9)), "attn_mask (of sha"),
    (lambda q: sdpa(q, q, q, scale=math.nan), "scale (nan)"),
    (lambda q: sdpa(q.int(), q.int(), q.int()), "int32"),
]


@pytest.mark.parametrize("call, word", ERRORS)
def test_errors_are_pytorchs_kind_and_regards(call, word):
    q = make(sq=9, skv=9)[0]
    with pytest.raises(ValueError) as caught:
        call(q)
    assert word in str(caught.value)
    assert isinstance(caught.value, RuntimeError)  # PyTorch's
    with pytest.raises(TypeError, match="query .list. must be a torch.Tensor"):
        sdpa([1.0], q, q)
    with pytest.raises(RuntimeError, match="Explicit attn_mask"):  # what PyTorch raises
        sdpa(q, q, q, torch.ones(9, 9), is_causal=True)


def test_sdpa_kernel_scopes():
    q, k, v = make()
    kernel = regard.torch.sdpa_kernel
    chosen = lambda: regard.torch.explain(q, k, v).chosen  # noqa: E731
    outside = chosen()
    with kernel(SDPBackend.MATH):
        assert chosen() == "math"
        with kernel([SDPBackend.EFFICIENT_ATTENTION, "math"], set_priority=True):  # replaces
            assert chosen() == "efficient"
            with kernel(["math", SDPBackend.EFFICIENT_ATTENTION], set_priority=True):
                assert chosen() == "math"
            assert chosen() == "efficient"
        other = []
        thread = threading.Thread(target=lambda: other.append(chosen()))
        thread.start()
        thread.join()
        assert other == [outside], "another thread is not touched"
        with pytest.raises(KeyError), kernel("flash"):
            raise KeyError
        assert chosen() == "math"
    assert chosen() == outside
    with kernel(SDPBackend.CUDNN_ATTENTION), pytest.raises(regard.NoBackendError) as caught:
        sdpa(q, k, v)
    assert {r.backend for r in caught.value.selection.refusals} >= {"cudnn", "math"}
    with regard.use_policy(deny=["flash"]), kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        assert chosen() == "math", "what an outer policy denies stays denied"
    for spelling in ("MATH", "SDPBackend.MATH", "Math"):
        with kernel(spelling):
            assert chosen() == "math"
    with kernel("EFFICIENT_ATTENTION"), kernel("MEMORY_EFFICIENT"):
        assert chosen() == "efficient"
    for wrong, error in [("fast", ValueError), (SDPBackend.ERROR, ValueError), ([], ValueError),
                         (3, TypeError), ([3], TypeError)]:
        with pytest.raises(error, match="backends"):
            kernel(wrong)


def test_the_chosen_backend_is_what_runs():
    q, k, v = make(grad=True)
    with regard.torch.sdpa_kernel("math"):
        out = sdpa(q, k, v)
    with regard.use_policy(deny=["math"]):  # decided by the forward
        grads = torch.autograd.grad(out.sum(), (q, k, v))
    theirs = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v).sum(), (q, k, v))
    for a, b in zip(grads, theirs):
        same(a, b)


def test_enabled_is_not_usable():
    q, k, v = make()
    cudnn = regard.torch.cudnn_sdp_enabled()
    assert cudnn and cudnn.enabled and not cudnn.usable and "CUDA" in cudnn.reason
    for enabled in (regard.torch.flash_sdp_enabled, regard.torch.math_sdp_enabled,
                    regard.torch.mem_efficient_sdp_enabled):
        assert enabled() and enabled().usable and enabled().reason == ""
    with regard.torch.sdpa_kernel("math"):
        flash = regard.torch.flash_sdp_enabled()
        assert not flash and flash.usable
        assert regard.torch.can_use("flash", q, k, v), "whatever the policy"
    with pytest.warns(UserWarning, match="cudnn needs a CUDA device"):
        assert not regard.torch.can_use(SDPBackend.CUDNN_ATTENTION, q, k, v, debug=True)
    q = make(dtype=torch.float64)[0]
    assert not regard.torch.can_use("flash", q, q, q) and regard.torch.can_use("math", q, q, q)


def test_explain_names_the_formula_of_second_derivatives():
    q, k, v = make(grad=True)
    notes = regard.torch.explain(q, k, v, is_causal=True).notes
    assert any("MATH formula" in note for note in notes)
    assert regard.torch.explain(*(x.detach() for x in (q, k, v))).notes == ()


def test_install_routes_and_restores():
    q, k, v = make()
    original = F.scaled_dot_product_attention
    plans = lambda: sum(regard.counters()[x] for x in ("plan_hits", "plan_misses"))  # noqa: E731
    with regard.torch.install():
        before = plans()
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5)
        assert plans() > before
        with regard.torch.install():
            torch.nn.functional.scaled_dot_product_attention(q, k, v)
        assert F.scaled_dot_product_attention is not original
        meta = F.scaled_dot_product_attention(q.to("meta"), k.to("meta"), v.to("meta"))
        assert meta.device.type == "meta"
    assert F.scaled_dot_product_attention is original
    same(out, original(q, k, v, is_causal=True, scale=0.5))
    with pytest.raises(KeyError), regard.torch.install():
        raise KeyError
    assert F.scaled_dot_product_attention is original


def test_two_threads_train_at_once():
    q, k, v = make(b=1, sq=64, skv=64, grad=True)
    d_out = torch.randn(1, 4, 64, 16)

    def train():
        return torch.autograd.grad(sdpa(q, k, v, is_causal=True), (q, k, v), d_out)

    expected, found = train(), []
    threads = [threading.Thread(target=lambda: found.extend(train() for _ in range(50)))
               for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 100
    for grads in found:
        assert all(torch.equal(a, b) for a, b in zip(grads, expected, strict=True))


def test_memory_does_not_grow():
    from test_processes import resident_kib

    q, k, v = make(b=1, hq=2, sq=4, skv=4, d=8)

    def run(n):
        for _ in range(n):
            sdpa(q, k, v, is_causal=True)

    run(5000)
    before = resident_kib()
    run(100_000)
    assert resident_kib() - before < 4096
