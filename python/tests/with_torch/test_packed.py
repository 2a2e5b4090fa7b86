"""Packed sequences: varlen_attn, and the operators with cu_seqlens."""

import inspect

import pytest
import torch
from torch.library import opcheck

import regard
import regard.torch
from regard.torch import AuxRequest, varlen_attn
from regard.torch._call import attend
from regard.torch._options import Options
from regard.torch._ops import kept
from regard.torch._packed import attend_packed

F64 = torch.float64
LENGTHS_Q, LENGTHS_KV = [3, 0, 5, 1, 6], [4, 2, 5, 0, 3]
BEHIND = 2  # rows of no sequence


def starts(lengths, dtype=torch.int32):
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


def make(dtype=torch.float32, grad=False, hq=4, hkv=2, depth=8):
    rng = torch.Generator().manual_seed(3)
    rows = sum(LENGTHS_Q) + BEHIND, sum(LENGTHS_KV) + BEHIND
    return [torch.randn(n, heads, depth, generator=rng, dtype=F64).to(dtype).requires_grad_(grad)
            for n, heads in ((rows[0], hq), (rows[1], hkv), (rows[1], hkv))]


def packing(dtype=torch.int32, longest=(6, 5)):
    return dict(cu_seqlens_q=starts(LENGTHS_Q, dtype), cu_seqlens_kv=starts(LENGTHS_KV, dtype),
                max_seqlen_q=longest[0], max_seqlen_kv=longest[1])


def single(options, b):
    """The options of sequence b alone."""
    def cut(mask):
        if mask is None:
            return None
        mask = mask[b:b + 1] if mask.shape[0] > 1 else mask
        return mask[:, :, :LENGTHS_Q[b] if mask.shape[2] > 1 else 1,
                    :LENGTHS_KV[b] if mask.shape[3] > 1 else 1]

    changed = {name: getattr(options, name)[b:b + 1] for name in ("seqlens_q", "seqlens_kv")
               if getattr(options, name) is not None}
    if options.alibi_slopes is not None and options.alibi_slopes.dim() == 2:
        changed["alibi_slopes"] = options.alibi_slopes[b:b + 1]
    return options._replace(attn_mask=cut(options.attn_mask), attn_bias=cut(options.attn_bias),
                            **changed)


def one_by_one(q, k, v, options, backends=""):
    """out and lse of each sequence by itself, packed."""
    outs, sums = [], []
    ends_q, ends_kv = starts(LENGTHS_Q).tolist(), starts(LENGTHS_KV).tolist()
    for b in range(len(LENGTHS_Q)):
        of_q, of_kv = slice(*ends_q[b:b + 2]), slice(*ends_kv[b:b + 2])
        four = [x[rows].transpose(0, 1)[None] for x, rows in ((q, of_q), (k, of_kv), (v, of_kv))]
        out, lse = attend(*four, single(options, b), return_lse=True, backends=backends)
        outs.append(out[0].transpose(0, 1))
        sums.append(lse[0])
    outs.append(q.new_zeros(BEHIND, q.shape[1], v.shape[2]))
    sums.append(sums[0].new_full((q.shape[1], BEHIND), -torch.inf))
    return torch.cat(outs), torch.cat(sums, 1)


RNG = torch.Generator().manual_seed(5)
CASES = {
    "plain": {}, "top_left": dict(is_causal=True),
    "bottom_right": dict(is_causal=True, diagonal="bottom_right"),
    "window": dict(window_left=1, window_right=2, diagonal="bottom_right"),
    "softcap": dict(softcap=1.5, softmax_scale=0.7),
    "sinks": dict(sinks=torch.tensor([0.3, -1.0, 0.0, 2.0])),
    "alibi": dict(alibi_slopes=torch.tensor([0.5, 0.25, 1.0, 0.125]), diagonal="bottom_right"),
    "alibi_of_each": dict(alibi_slopes=torch.rand(5, 4, generator=RNG), is_causal=True),
    "mask": dict(attn_mask=torch.rand(5, 1, 6, 5, generator=RNG) > 0.3),
    "bias": dict(attn_bias=torch.randn(1, 4, 6, 5, generator=RNG)),
    "lengths": dict(seqlens_q=torch.tensor([2, 0, 5, 1, 6]),
                    seqlens_kv=torch.tensor([4, 1, 0, 0, 2])),
}


@pytest.mark.parametrize("backend", ["math", "efficient", "flash"])
@pytest.mark.parametrize("name", CASES)
def test_each_sequence_is_what_it_is_alone(name, backend):
    options = Options(**CASES[name])
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = make(dtype)
        expected, sums = one_by_one(q, k, v, options, backend)
        for index in (torch.int32, torch.int64):
            out, lse = attend_packed(q, k, v, options._replace(**packing(index)), True, backend)
            assert torch.equal(out, expected) and out.is_contiguous()
            assert torch.equal(lse, sums)
        read = attend_packed(q, k, v, options._replace(**packing(longest=(0, 0))), True, backend)
        assert torch.equal(read[0], expected)


@pytest.mark.parametrize("backend", ["math", "efficient", "flash"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_each_alone(name, backend):
    options = Options(**CASES[name])
    inputs = make(grad=True)
    extra = [x.clone().requires_grad_() for x in (options.attn_bias, options.sinks)
             if x is not None]
    if extra:
        options = options._replace(**{"attn_bias" if name == "bias" else "sinks": extra[0]})
    inputs += extra
    torch.manual_seed(0)
    d_out = torch.randn_like(inputs[0])
    expected, sums = one_by_one(*inputs[:3], options, backend)
    d_lse = torch.where(torch.isfinite(sums), 0.5, 0.0)
    out, lse = attend_packed(*inputs[:3], options._replace(**packing()), True, backend)
    found = torch.autograd.grad((out, lse), inputs, (d_out, d_lse))
    for here, there in zip(found, torch.autograd.grad((expected, sums), inputs, (d_out, d_lse)),
                           strict=True):
        torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-5)
    assert not found[0][-BEHIND:].any() and not found[1][-BEHIND:].any()


@pytest.mark.parametrize("operator", [False, True])
@pytest.mark.parametrize("name", [*CASES, "dropout"])
def test_first_and_second_derivatives(name, operator):
    given = CASES.get(name) or dict(is_causal=True)
    options = Options(**given, **packing())
    if name == "dropout":
        options = options._replace(dropout_p=0.3, rng=torch.tensor([2**62 + 17]))

    def f(q, k, v):
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        if operator:
            return torch.ops.regard.attention(q, k, v, *options, "BSHD", "", True)[:2]
        return attend(q, k, v, options, return_lse=True)

    def of_rows(q, k, v):
        return f(q, k, v)[0]

    inputs = make(F64, True, depth=2, hq=4, hkv=2)
    assert torch.autograd.gradcheck(of_rows, inputs)
    assert torch.autograd.gradgradcheck(of_rows, inputs)


@pytest.mark.parametrize("name", ["plain", "bottom_right", "bias"])
def test_opcheck(name):
    given = CASES[name]
    options = Options(**given, **packing())
    q, k, v = (x.transpose(0, 1)[None] for x in make(grad=True))
    opcheck(torch.ops.regard.attention.default, (q, k, v, *options, "BSHD", "", True))
    frozen = [x.detach() for x in (q, k, v)]
    out, stats, state = kept(torch.ops.regard.attention(*frozen, *options, "BSHD", "", True))
    assert stats.shape == (1, 4, q.shape[2])
    opcheck(torch.ops.regard.attention_backward.default,
            (torch.ones_like(out), None, *frozen, out, stats, state, *options, "BSHD"))


CU_Q, CU_KV = starts(LENGTHS_Q), starts(LENGTHS_KV)


def causal(q, k, v, cu_q=CU_Q, cu_kv=CU_KV):
    return varlen_attn(q, k, v, cu_q, cu_kv, 6, 5, window_size=(-1, 0), enable_gqa=True)


def test_varlen_attn_is_pytorchs():
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    ours, theirs = (inspect.signature(f).parameters
                    for f in (varlen_attn, varlen.varlen_attn))
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values()]
    assert AuxRequest is varlen.AuxRequest


def test_varlen_attn():
    q, k, v = make()
    for window, options in {(-1, -1): {}, (-1, 0): dict(is_causal=True),
                            (2, 0): dict(window_left=2, window_right=0),
                            (1, 1): dict(window_left=1, window_right=1)}.items():
        options = Options(**options, softmax_scale=0.4, diagonal="bottom_right")
        expected, sums = one_by_one(q, k, v, options)
        words = dict(window_size=window, scale=0.4, enable_gqa=True)
        out = varlen_attn(q, k, v, CU_Q, CU_KV, 6, 5, **words)
        assert torch.equal(out, expected)
        out, lse = varlen_attn(q, k, v, CU_Q, CU_KV, 6, 5, return_aux=AuxRequest(lse=True), **words)
        assert torch.equal(out, expected) and torch.equal(lse, sums)
        assert torch.is_tensor(varlen_attn(q, k, v, CU_Q, CU_KV, 6, 5, return_aux=AuxRequest(),
                                           **words))
        used = torch.tensor([4, 1, 2, 0, 3], dtype=torch.int32)
        out = varlen_attn(q, k, v, CU_Q, CU_KV, 6, 5, seqused_k=used, num_splits=1, **words)
        assert torch.equal(out, one_by_one(q, k, v, options._replace(seqlens_kv=used))[0])


def test_varlen_attn_refuses_by_name():
    q, k, v = make()
    given = dict(query=q, key=k, value=v, cu_seq_q=CU_Q, cu_seq_k=CU_KV, max_q=6, max_k=5,
                 enable_gqa=True)
    for changed, word in [
            (dict(block_table=torch.zeros(5, 1, dtype=torch.int32)), "block_table is not supported"),
            (dict(num_splits=4), r"num_splits \(4\)"), (dict(cu_seq_k=None), "cu_seq_k"),
            (dict(enable_gqa=False), "enable_gqa=True"), (dict(window_size=(1,)), "window_size"),
            (dict(query=q[None]), r"query \(of shape \(1, 17, 4, 8\)\)"),
            (dict(key=k.double()), "dtype of key"), (dict(value=v[:-1]), r"value \(of shape"),
            (dict(key=k[..., :4]), "head_dim of key"),
            (dict(query=q[:, :3]), "number of heads in key"),
            (dict(cu_seq_q=CU_Q.float()), "dtype of cu_seq_q"),
            (dict(cu_seq_q=CU_Q[None]), r"cu_seq_q \(of shape \(1, 6\)\)"),
            (dict(cu_seq_k=CU_KV[:-1]), r"cu_seq_k \(of shape \(5,\)\)"),
            (dict(cu_seq_q=CU_Q.to("meta")), "device of cu_seq_q"),
            (dict(max_q=6.0), r"max_q \(6.0\)"), (dict(max_k=-1), r"max_k \(-1\)"),
            (dict(max_q=5), "length of sequence 4, 6"),
            (dict(cu_seq_q=CU_Q + 1), r"cu_seqlens_q\[0\] \(1\)"),
            (dict(cu_seq_k=CU_KV.flip(0)), r"cu_seqlens_kv\[0\] \(14\)"),
            (dict(cu_seq_q=CU_Q * 2, max_q=12), r"cu_seqlens_q\[4\] \(18\)"),
            (dict(seqused_k=torch.tensor([4, 3, 5, 0, 3])), r"seqlens_kv\[1\] \(3\)")]:
        with pytest.raises((ValueError, TypeError), match=word):
            varlen_attn(**{**given, **changed})


def test_autocast():
    q, k, v = make()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = causal(q, k, v)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, causal(*(x.bfloat16() for x in (q, k, v))))


def test_transforms_and_forward_mode():
    q, k, v = make(F64)
    mapped = torch.func.vmap(causal, (0, None, None))(torch.stack([q, 2 * q]), k, v)
    assert torch.equal(mapped[0], causal(q, k, v)) and torch.equal(mapped[1], causal(2 * q, k, v))

    def loss(q):
        return causal(q, k, v).square().sum()

    wanted = q.clone().requires_grad_()
    expected, = torch.autograd.grad(loss(wanted), wanted)
    torch.testing.assert_close(torch.func.grad(loss)(q), expected)
    direction = torch.ones_like(q)
    _, slope = torch.func.jvp(loss, (q,), (direction,))
    torch.testing.assert_close(slope, (expected * direction).sum())


class Packed(torch.nn.Module):
    def forward(self, q, k, v, cu_q, cu_kv):
        return causal(q, k, v, cu_q, cu_kv)


def shorter():
    """The same with the last sequence and all rows behind it left out."""
    q, k, v = make()
    return q[:9], k[:11], v[:11], CU_Q[:-1], CU_KV[:-1]


def test_compile_fullgraph():
    compiled = torch.compile(Packed(), fullgraph=True, backend="aot_eager", dynamic=True)
    for given in ((*make(grad=True), CU_Q, CU_KV), shorter()):
        assert torch.equal(compiled(*given), causal(*given))
    q, k, v = make(grad=True)
    found = torch.autograd.grad(compiled(q, k, v, CU_Q, CU_KV).sum(), (q, k, v))
    for here, there in zip(found, torch.autograd.grad(causal(q, k, v).sum(), (q, k, v))):
        torch.testing.assert_close(here, there)


@pytest.mark.parametrize("plain", [False, True])
def test_export_with_dynamic_totals(plain):
    queries, keys, sequences = (torch.export.Dim(name, min=3) for name in ("q", "kv", "b"))
    shapes = ({0: queries}, {0: keys}, {0: keys}, {0: sequences}, {0: sequences})
    example = (*make(), CU_Q, CU_KV)
    if plain:
        with regard.torch.exportable():
            program = torch.export.export(Packed(), example, dynamic_shapes=shapes)
        assert not any("regard" in str(node.target) for node in program.graph.nodes)
    else:
        program = torch.export.export(Packed(), example, dynamic_shapes=shapes)
        assert "regard.attention.default" in [str(node.target) for node in program.graph.nodes]
    for given in (example, shorter()):
        torch.testing.assert_close(program.module()(*given), causal(*given))


def test_scopes_choose_the_backend():
    q, k, v = make()
    for name in ("math", "efficient", "flash"):
        with regard.torch.sdpa_kernel(name):
            out = causal(q, k, v)
        options = Options(is_causal=True, diagonal="bottom_right")
        assert torch.equal(out, one_by_one(q, k, v, options, name)[0])


def test_what_holds_nothing():
    q, k, v = (x[:0] for x in make())
    none = torch.zeros(1, dtype=torch.int32)
    assert varlen_attn(q, k, v, none, none, 0, 0, enable_gqa=True).shape == (0, 4, 8)
    zeros = torch.zeros(4, dtype=torch.int32)
    q, k, v = make(grad=True)
    out = varlen_attn(q, k, v, zeros, zeros, 1, 1, enable_gqa=True)
    assert not out.any()
    assert not any(x.any() for x in torch.autograd.grad(out.sum(), (q, k, v)))
