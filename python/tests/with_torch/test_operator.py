"""torch.ops.regard: derivatives, transforms, compiled and exported graphs."""

import pytest
import torch
import torch.nn.functional as F
from test_sdpa import make, same
from torch.func import grad, jacrev, jvp, vmap
from torch.library import opcheck
from torch.nn.attention import SDPBackend

import regard
import regard.torch
from regard.torch._call import attend
from regard.torch._options import Options
from regard.torch._ops import kept

sdpa = regard.torch.scaled_dot_product_attention
F64 = torch.float64


def small(**keywords):
    return make(**{**dict(b=2, hq=2, sq=3, skv=4, d=4, dtype=F64, grad=True), **keywords})


DEAD = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])
DERIVED = {
    "plain": {}, "causal": dict(is_causal=True), "causal_bottom_right": dict(
        is_causal=True, diagonal="bottom_right"), "softcap": dict(softcap=1.5),
    "scale": dict(softmax_scale=-0.7), "mask": dict(attn_mask=DEAD[None, None]),
    "window": dict(window_left=1, window_right=0),
    "lengths": dict(seqlens_q=torch.tensor([3, 2], dtype=torch.int32),
                    seqlens_kv=torch.tensor([4, 0], dtype=torch.int32)),
    "alibi": dict(alibi_slopes=torch.tensor([0.5, 0.25])),
    "dropout": dict(dropout_p=0.3, rng=torch.tensor([2**62 + 17]), is_causal=True,
                    diagonal="bottom_right"),
}


@pytest.mark.parametrize("operator", [False, True])
@pytest.mark.parametrize("name", DERIVED)
def test_first_and_second_derivatives(name, operator):
    options = Options(**DERIVED[name])
    inputs = small(hq=4, hkv=2, b=2, skv=4)[:3] if name in ("plain", "mask") else small()

    def f(q, k, v):
        if operator:
            return torch.ops.regard.attention(q, k, v, *options, "BSHD", "", True)[0]
        return attend(q, k, v, options)[0]

    assert torch.autograd.gradcheck(f, inputs)
    assert torch.autograd.gradgradcheck(f, inputs)


def test_derivatives_of_bias_sinks_and_lse():
    bias = torch.randn(1, 2, 3, 1, dtype=F64, requires_grad=True)
    sinks = torch.randn(2, dtype=F64)

    def f(q, k, v, bias):
        return attend(q, k, v, Options(attn_bias=bias, is_causal=True), return_lse=True)

    assert torch.autograd.gradcheck(f, [*small(), bias])
    assert torch.autograd.gradgradcheck(f, [*small(), bias])
    q, k, v = small()
    sinks = sinks.float().requires_grad_()  # the library's own type of sinks
    given = torch.randn(2, 2, 3, 4, dtype=F64)
    out, _ = attend(q, k, v, Options(sinks=sinks))
    mine = torch.autograd.grad(out, (q, sinks), given, create_graph=True)
    with regard.torch.exportable():
        plain, _ = attend(q, k, v, Options(sinks=sinks))
    theirs = torch.autograd.grad(plain, (q, sinks), given, create_graph=True)
    for a, b in zip(mine, theirs):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    a, b = (torch.autograd.grad(x[0].square().sum() + x[1].square().sum(), (v, sinks))
            for x in (mine, theirs))
    for x, y in zip(a, b):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


def test_one_tensor_in_three_places_and_third_derivatives():
    x = torch.randn(1, 1, 3, 2, dtype=F64, requires_grad=True)

    def f(x):
        return sdpa(x, x, x, is_causal=True)

    assert torch.autograd.gradcheck(f, x) and torch.autograd.gradgradcheck(f, x)
    (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
    (third,) = torch.autograd.grad(second.square().sum(), x)
    assert torch.isfinite(third).all() and third.any()


@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(layout, dtype):
    q, k, v = make(grad=True, dtype=dtype, sq=5, skv=6)
    bias = torch.randn(1, 4, 5, 1, dtype=dtype, requires_grad=True)
    sinks = torch.randn(4, requires_grad=True)
    for options in (Options(), Options(attn_bias=bias, sinks=sinks, is_causal=True),
                    Options(dropout_p=0.2, rng=torch.tensor([7]), softcap=2.0)):
        results = opcheck(torch.ops.regard.attention, (q, k, v, *options, layout, "", True))
        assert set(results.values()) == {"SUCCESS"}
    frozen = [x.detach() for x in (q, k, v)]
    results = opcheck(torch.ops.regard.attention, (*frozen, *Options(), layout, "math", False))
    assert set(results.values()) == {"SUCCESS"}
    out, stats, state = kept(torch.ops.regard.attention(*frozen, *Options(), layout, "", True))
    results = opcheck(torch.ops.regard.attention_backward,
                      (out, None, *frozen, out, stats, state, *Options(), layout))
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    q, k, v = make(grad=True)
    with torch.autocast("cpu", dtype=dtype):
        out = sdpa(q, k, v)
        theirs = F.scaled_dot_product_attention(q, k, v)
    same(out, theirs)
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32
    with torch.autocast("cpu", enabled=False):
        assert sdpa(q, k, v).dtype == torch.float32


def test_vmap_and_torch_func():
    x = torch.randn(3, 2, 4, 9, 16)
    mask = torch.rand(3, 9, 9) < 0.7
    same(vmap(lambda a, m: sdpa(a, a, a, m))(x, mask),
         torch.stack([sdpa(a, a, a, m) for a, m in zip(x, mask)]))
    k = torch.randn(2, 4, 9, 16)
    same(vmap(lambda a: sdpa(a, k, k, is_causal=True), in_dims=2, out_dims=1)(x.movedim(0, 2)),
         torch.stack([sdpa(a, k, k, is_causal=True) for a in x], 1))
    f = lambda a: sdpa(a, a, a, is_causal=True).square().sum()  # noqa: E731
    theirs = F.scaled_dot_product_attention
    g = lambda a: theirs(a, a, a, is_causal=True).square().sum()  # noqa: E731
    same(grad(f)(k), grad(g)(k), scale=10)
    same(vmap(grad(f))(x), torch.stack([grad(g)(a) for a in x]), scale=10)
    d = torch.randn(1, 1, 3, 2, dtype=F64)
    with torch.nn.attention.sdpa_kernel(SDPBackend.MATH):  # PyTorch's others have no second one
        same(jacrev(grad(f))(d), jacrev(grad(g))(d))
    _, tangent = jvp(f, (d,), (torch.ones_like(d),))
    torch.testing.assert_close(tangent, grad(g)(d).sum())
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(lambda a: sdpa(a, a, a, dropout_p=0.5))(x)
    assert vmap(lambda a: sdpa(a, a, a, dropout_p=0.5), randomness="different")(x).shape == x.shape


def test_forward_mode():
    import torch.autograd.forward_ad as fwd

    q, k, v = (x.detach() for x in small())
    with fwd.dual_level():
        dual = fwd.make_dual(q, torch.ones_like(q))
        tangent = fwd.unpack_dual(sdpa(dual, k, v)).tangent
    step = 1e-6
    same(tangent, ((sdpa(q + step, k, v) - sdpa(q - step, k, v)) / (2 * step)), scale=1e4)


def test_compile_fullgraph():
    def f(q, k, v):
        return sdpa(q.sin(), k, v, is_causal=True) * 2

    compiled = torch.compile(f, fullgraph=True, dynamic=True)
    for sq in (9, 17):
        q, k, v = make(sq=sq, skv=sq, grad=True)
        mine, theirs = compiled(q, k, v), f(q, k, v)
        same(mine, theirs)
        d_out = torch.randn_like(mine)
        for a, b in zip(torch.autograd.grad(mine, (q, k, v), d_out),
                        torch.autograd.grad(theirs, (q, k, v), d_out)):
            same(a, b)
    same(compiled(*(x.detach() for x in (q, k, v))), f(q, k, v).detach())


def test_compile_follows_scopes():
    def inside(q, k, v):
        with regard.torch.sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return sdpa(q, k, v)

    q, k, v = make()
    with pytest.raises(regard.NoBackendError):
        torch.compile(inside, fullgraph=True, backend="eager")(q, k, v)
    compiled = torch.compile(lambda q, k, v: sdpa(q, k, v), fullgraph=True, backend="eager")
    expected = compiled(q, k, v)
    with regard.torch.sdpa_kernel(SDPBackend.CUDNN_ATTENTION), pytest.raises(regard.NoBackendError):
        compiled(q, k, v)
    with regard.use_policy(only=["cudnn"]), pytest.raises(regard.NoBackendError):
        compiled(q, k, v)
    assert torch.equal(compiled(q, k, v), expected)


def test_a_graph_keeps_the_limit_of_its_policy():
    """Where the machine multiplies pairs of bf16, max_error chooses other kernels: the backward
    runs outside of the policy, and must take the same ones."""
    q, k, v = make(hq=2, hkv=2, sq=40, skv=40, d=16, dtype=torch.bfloat16, grad=True)
    d_out = torch.randn_like(q)
    compiled = torch.compile(lambda q, k, v: sdpa(q, k, v), fullgraph=True, backend="aot_eager")

    def gradients(f, **limit):
        with regard.use_policy(**limit):
            out = f(q, k, v)
        return torch.autograd.grad(out, (q, k, v), d_out)

    fast, exact = gradients(sdpa), gradients(sdpa, max_error=5e-3)
    isa = regard.explain("sq40 d16 bf16 grad").plan["isa"]
    if isa != "amx_bf16":  # its backward is that of f32, after another forward
        assert (isa == "avx512_bf16") != all(torch.equal(a, b) for a, b in zip(fast, exact))
    for limit, expected in ((dict(max_error=5e-3), exact), ({}, fast)):
        for mine, other in zip(gradients(compiled, **limit), expected):
            assert torch.equal(mine, other)


class Block(torch.nn.Module):
    """Attention as a decoder has it: projections, grouped heads, a mask, causal."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.kv = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)

    def forward(self, x, mask):
        b, s, _ = x.shape
        q = self.q(x).view(b, s, 4, 8).transpose(1, 2)
        k, v = self.kv(x).view(b, s, 2, 2, 8).permute(2, 0, 3, 1, 4)
        out = sdpa(q, k, v, attn_mask=mask, enable_gqa=True)
        return out.transpose(1, 2).reshape(b, s, 32)


def masked(b, s):
    mask = torch.ones(s, s, dtype=torch.bool).tril().expand(b, 1, s, s).clone()
    mask[0, :, :, 0] = False  # its first row sees nothing
    return torch.randn(b, s, 32), mask


DYNAMIC = {"x": {0: torch.export.Dim("b"), 1: torch.export.Dim("s")},
           "mask": {0: torch.export.Dim("b"), 2: torch.export.Dim("s"), 3: torch.export.Dim("s")}}


def targets(program):
    return [str(n.target) for n in program.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("strict", [False, True])
def test_export_with_dynamic_shapes(strict, tmp_path):
    model = Block().eval()
    program = torch.export.export(model, masked(2, 9), dynamic_shapes=DYNAMIC, strict=strict)
    assert targets(program).count("regard.attention.default") == 1
    torch.export.save(program, tmp_path / "block.pt2")
    loaded = torch.export.load(tmp_path / "block.pt2").module()
    for b, s in ((3, 5), (2, 21)):
        args = masked(b, s)
        same(loaded(*args), model(*args))


@pytest.mark.parametrize("strict", [False, True])
def test_exportable_graphs_are_plain(strict):
    model = Block().eval()
    with regard.torch.exportable():
        program = torch.export.export(model, masked(2, 9), dynamic_shapes=DYNAMIC, strict=strict)
    for graph in (program, program.run_decompositions()):
        called = targets(graph)
        assert called and not any("regard" in target for target in called)
        for node in graph.graph.nodes:
            if isinstance(node.target, torch._ops.OpOverload):
                assert node.target.namespace == "aten"
                assert not node.target._schema.is_mutable, node.target
        for b, s in ((3, 5), (2, 21)):
            args = masked(b, s)
            same(graph.module()(*args), model(*args))


def test_an_exported_graph_runs_without_regard(tmp_path):
    import os
    import subprocess
    import sys

    model, args = Block().eval(), masked(2, 9)
    with regard.torch.exportable():
        program = torch.export.export(model, args, dynamic_shapes=DYNAMIC)
    torch.export.save(program, tmp_path / "block.pt2")
    other = masked(4, 12)
    torch.save((other, model(*other)), tmp_path / "data.pt")
    code = ("import sys, torch; sys.modules['regard'] = None\n"
            "args, expected = torch.load('data.pt')\n"
            "out = torch.export.load('block.pt2').module()(*args)\n"
            "print(float((out - expected).abs().max()))")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, text=True,
                         capture_output=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) < 2e-5


def test_another_choice_than_math_is_an_error_in_exportable():
    q, k, v = make()
    exportable, kernel = regard.torch.exportable, regard.torch.sdpa_kernel
    with kernel("flash"), pytest.raises(ValueError, match=r"exportable\(\).*flash.*excludes"):
        exportable().__enter__()
    with exportable(), pytest.raises(ValueError, match=r"exportable\(\).*efficient.*excludes"):
        with kernel("efficient"):
            pass
    with regard.use_policy(only=["flash"]), pytest.raises(regard.NoBackendError, match="exportable"):
        exportable().__enter__()
    with regard.use_policy(deny=["math"]), pytest.raises(regard.NoBackendError, match="exportable"):
        exportable().__enter__()
    with kernel(["flash", "math"]), exportable():
        assert regard.torch.explain(q, k, v).chosen == "math"
        with pytest.raises(ValueError, match="dropout_p"):
            sdpa(q, k, v, dropout_p=0.5)
    assert regard.torch.explain(q, k, v).ok and torch.ops.regard.attention
    with regard.use_policy(prefer=["math"]):
        same(sdpa(q, k, v), F.scaled_dot_product_attention(q, k, v))


def test_a_module_trains():
    attention = torch.nn.MultiheadAttention(32, 4, batch_first=True, dropout=0.1)
    blocks = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh())
    head = torch.nn.Linear(32, 8)
    parameters = [*attention.parameters(), *blocks.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    torch.manual_seed(0)
    x = torch.randn(8, 12, 8)
    target = x.cumsum(1)  # what came before matters
    losses = []
    with regard.torch.install():
        for _ in range(30):
            hidden = blocks(x)
            causal = torch.nn.Transformer.generate_square_subsequent_mask(12)
            mixed, _ = attention(hidden, hidden, hidden, need_weights=False, attn_mask=causal,
                                 is_causal=True)
            loss = (head(mixed + hidden) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert losses[-1] < 0.6 * losses[0]


def test_gradients_that_were_not_known_of():
    """What was recorded with inputs without gradients is differentiated afterwards."""
    y = torch.randn(3, 2, 4, 5, 8, requires_grad=True)
    mine = torch.autograd.grad(vmap(lambda a: sdpa(a, a, a))(y).square().sum(), y)[0]
    theirs = torch.autograd.grad(sum(F.scaled_dot_product_attention(a, a, a).square().sum()
                                     for a in y), y)[0]
    same(mine, theirs, scale=10)

    class Model(torch.nn.Module):
        def forward(self, a):
            return sdpa(a, a, a, is_causal=True)

    x = y[0].detach()
    programs = [torch.export.export(Model(), (x,)).module(),
                torch.jit.trace(lambda a: sdpa(a, a, a, is_causal=True), (x,)),
                torch.fx.experimental.proxy_tensor.make_fx(Model())(x)]
    x = x.clone().requires_grad_()
    expected = torch.autograd.grad(F.scaled_dot_product_attention(
        x, x, x, is_causal=True).square().sum(), x)[0]
    for program in programs:
        same(torch.autograd.grad(program(x).square().sum(), x)[0], expected, scale=10)
    q, k, v = small()
    rng = torch.tensor([5])
    operator = lambda save: torch.ops.regard.attention(  # noqa: E731
        q, k, v, *Options(dropout_p=0.5, rng=rng), "BHSD", "", save)[0]
    known, unknown = (torch.autograd.grad(operator(save).square().sum(), (q, k, v))
                      for save in (True, False))
    for a, b in zip(known, unknown):
        assert torch.equal(a, b), "the same mask of dropout"


def test_batched_gradients():
    q, k, v = make(b=1, hq=2, sq=3, skv=4, d=4, grad=True, dtype=F64)
    out = sdpa(q, k, v)
    given = torch.randn(5, *out.shape, dtype=F64)
    many = torch.autograd.grad(out, (q, k, v), given, is_grads_batched=True, retain_graph=True)
    for i in range(5):
        for a, b in zip(torch.autograd.grad(out, (q, k, v), given[i], retain_graph=True), many):
            same(a, b[i])
    f = lambda q: sdpa(q, k, v, is_causal=True)  # noqa: E731
    jacobian = torch.autograd.functional.jacobian
    same(jacobian(f, q, vectorize=True), jacobian(f, q))
    assert torch.autograd.gradcheck(lambda *x: sdpa(*x), (q, k, v), check_batched_grad=True)
