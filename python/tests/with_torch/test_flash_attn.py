"""regard.flash_attn beside flash_attn's own reference, written from its documentation."""

import inspect
import math

import pytest
import torch
from test_sdpa import make, same

import regard
from regard import flash_attn
from regard.flash_attn import flash_attn_func
from regard.torch import ArgumentError


def reference(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
              alibi_slopes=None):
    """flash_attn's attention_ref: [B,S,H,D], bottom-right, rows that see nothing are 0."""
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    sq, sk = q.shape[1], k.shape[1]
    scale = 1 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale
    scores = torch.einsum("bthd,bshd->bhts", q * scale, k)
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    row, col = torch.arange(sq)[:, None] + sk - sq, torch.arange(sk)[None]
    if alibi_slopes is not None:
        slopes = alibi_slopes.double().reshape(-1, q.shape[2], 1, 1)
        scores = scores - slopes * (row - col).abs()
    left, right = window_size
    right = 0 if causal else right
    hidden = torch.zeros(sq, sk, dtype=torch.bool)
    hidden |= (col > row + right) if right >= 0 else hidden
    hidden |= (col < row - left) if left >= 0 else hidden
    scores = scores.masked_fill(hidden, -math.inf)
    probs = torch.softmax(scores, -1).masked_fill(hidden.all(-1)[:, None], 0.0)
    lse = torch.logsumexp(scores, -1).masked_fill(hidden.all(-1), math.inf)  # flash_attn 2's sign
    return torch.einsum("bhts,bshd->bthd", probs, v), lse


CASES = {
    "plain": {}, "causal": dict(causal=True), "window": dict(window_size=(3, 2)),
    "window_causal": dict(window_size=(4, 0), causal=True), "scale": dict(softmax_scale=0.1),
    "window_right_and_causal": dict(window_size=(2, 5), causal=True),
    "softcap": dict(softcap=1.5), "alibi": dict(alibi_slopes=torch.tensor([0.5, 0.25, 0.1, 0.0])),
    "alibi_per_batch": dict(alibi_slopes=torch.rand(2, 4), causal=True),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("lengths", [(9, 13), (13, 9), (1, 13), (7, 7)])
def test_against_the_reference(name, lengths):
    q, k, v = (x.transpose(1, 2).contiguous().requires_grad_() for x in make(
        hkv=2, sq=lengths[0], skv=lengths[1]))
    out, lse, probs = flash_attn_func(q, k, v, return_attn_probs=True, **CASES[name])
    expected, expected_lse = reference(q, k, v, **CASES[name])
    assert probs is None and out.is_contiguous()
    same(out, expected.float())
    same(lse, expected_lse.float(), scale=2)
    same(flash_attn_func(q, k, v, **CASES[name]), expected.float())
    d_out = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad(out, (q, k, v), d_out),
                    torch.autograd.grad(expected, (q, k, v), d_out.double())):
        same(a, b, scale=3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_types(dtype):
    q, k, v = (x.transpose(1, 2) for x in make(dtype=dtype))
    same(flash_attn_func(q, k, v, causal=True), reference(q, k, v, causal=True)[0].to(dtype))


def test_dropout():
    q, k, v = (x.transpose(1, 2) for x in make(b=1, sq=32, skv=32))
    torch.manual_seed(1)
    out, _, probs = flash_attn_func(q, k, v, dropout_p=0.5, return_attn_probs=True)
    torch.manual_seed(1)
    assert torch.equal(out, flash_attn_func(q, k, v, dropout_p=0.5))
    kept = torch.where(probs > 0, 2 * probs, 0.0)
    same(torch.einsum("bhts,bshd->bthd", kept, v), out)
    assert abs((probs < 0).float().mean() - 0.5) < 0.05


@pytest.mark.parametrize("keywords, error, word", [
    (dict(causal=1), TypeError, r"causal \(1\)"),
    (dict(window_size=3), TypeError, r"window_size \(3\)"),
    (dict(dropout_p=1.0), ValueError, r"dropout_p \(1.0\)"),
    (dict(softcap=-1.0), ValueError, r"softcap \(-1"),
    (dict(softcap=-1.0), RuntimeError, r"softcap \(-1"),
    (dict(return_attn_probs=None), TypeError, r"return_attn_probs \(None\)"),
    (dict(page_table=None), TypeError, "page_table"),
])
def test_errors(keywords, error, word):
    q, k, v = (x.transpose(1, 2) for x in make())
    with pytest.raises(error, match=word):
        flash_attn_func(q, k, v, **keywords)
    with pytest.raises(ValueError, match=r"k \(of shape"):
        flash_attn_func(q, k[0], v)
    with pytest.raises(TypeError, match=r"v \(list\)"):
        flash_attn_func(q, k, [1])
    assert regard.flash_attn.flash_attn_func is flash_attn_func


STARTS_Q, STARTS_K = [0, 5, 5, 14, 15], [0, 7, 11, 20, 20]


def varlen(dtype=torch.float32, grad=True, past=0):
    torch.manual_seed(0)
    shapes = [(15 + past, 4, 16), (20 + past, 2, 16), (20 + past, 2, 16)]
    return [torch.randn(shape).to(dtype).requires_grad_(grad) for shape in shapes]


def starts(values):
    return torch.tensor(values, dtype=torch.int32)


def call_varlen(q, k, v, **options):
    return flash_attn.flash_attn_varlen_func(q, k, v, starts(STARTS_Q), starts(STARTS_K), 9, 9,
                                             **options)


VARLEN = {name: case for name, case in CASES.items() if name != "alibi_per_batch"}


@pytest.mark.parametrize("name", VARLEN)
def test_varlen_against_the_reference(name):
    q, k, v = varlen()
    out, lse, probs = call_varlen(q, k, v, return_attn_probs=True, **VARLEN[name])
    assert probs is None and out.shape == q.shape and lse.shape == (4, 15)
    expected = []
    for n in range(4):
        rows, keys = (slice(at[n], at[n + 1]) for at in (STARTS_Q, STARTS_K))
        if rows.start == rows.stop:
            continue
        one, one_lse = reference(q[None, rows], k[None, keys], v[None, keys], **VARLEN[name])
        same(lse[:, rows], one_lse[0].float(), scale=2)
        expected.append(one[0])
    expected = torch.cat(expected)
    same(out, expected.float())
    same(call_varlen(q, k, v, **VARLEN[name]), expected.float())
    d_out = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad(out, (q, k, v), d_out),
                    torch.autograd.grad(expected, (q, k, v), d_out.double())):
        same(a, b, scale=3)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_forms_are_views_of_one_tensor(causal):
    torch.manual_seed(0)
    qkv = torch.randn(2, 7, 3, 4, 16, requires_grad=True)
    q, k, v = (x.detach().clone().requires_grad_() for x in qkv.unbind(2))
    out = flash_attn.flash_attn_qkvpacked_func(qkv, causal=causal)
    expected = flash_attn_func(q, k, v, causal=causal)
    assert torch.equal(out, expected)
    kv = torch.stack([k, v], 2)
    assert torch.equal(flash_attn.flash_attn_kvpacked_func(q, kv, causal=causal), expected)
    d_out = torch.randn_like(out)
    grads = torch.autograd.grad(expected, (q, k, v), d_out)
    assert torch.equal(torch.autograd.grad(out, qkv, d_out)[0], torch.stack(grads, 2))


@pytest.mark.parametrize("causal", [False, True])
def test_varlen_packed_forms_are_views_of_one_tensor(causal):
    torch.manual_seed(0)
    qkv = torch.randn(15, 3, 4, 16, requires_grad=True)
    q, k, v = qkv.unbind(1)
    at = starts(STARTS_Q)
    out = flash_attn.flash_attn_varlen_qkvpacked_func(qkv, at, 9, causal=causal)
    expected = flash_attn.flash_attn_varlen_func(q, k, v, at, at, 9, 9, causal=causal)
    assert torch.equal(out, expected)
    kv = qkv[:, 1:]
    assert torch.equal(flash_attn.flash_attn_varlen_kvpacked_func(q, kv, at, at, 9, 9,
                                                                  causal=causal), expected)
    d_out = torch.randn_like(out)
    assert torch.equal(*(torch.autograd.grad(x, qkv, d_out)[0] for x in (out, expected)))


@pytest.mark.parametrize("name", ["k", "v"])
def test_a_tensor_of_another_device_is_refused_by_name(name):
    tensors = {each: torch.ones(1, 4, 2, 16) for each in "qkv"}
    tensors[name] = tensors[name].to("meta")
    with pytest.raises(ArgumentError, match=rf"device of {name} \(meta\) must be q's, cpu"):
        flash_attn_func(**tensors)


def test_varlen_dropout_and_s_dmask():
    q, k, v = varlen(grad=False)
    torch.manual_seed(1)
    out, _, probs = call_varlen(q, k, v, dropout_p=0.5, return_attn_probs=True)
    assert probs.shape == (4, 4, 9, 9)
    kept = torch.where(probs > 0, 2 * probs, 0.0)
    for n in (0, 2):
        rows, keys = (slice(at[n], at[n + 1]) for at in (STARTS_Q, STARTS_K))
        values = v[keys].repeat_interleave(2, 1)
        mine = kept[n, :, :rows.stop - rows.start, :keys.stop - keys.start]
        same(torch.einsum("hts,shd->thd", mine, values), out[rows])


def test_varlen_rows_past_the_last_sequence():
    q, k, v = varlen(past=3)
    out = call_varlen(q, k, v)
    assert not out[15:].any()
    d_out = torch.ones_like(out)
    d_out[15:] = math.nan
    for grad, total in zip(torch.autograd.grad(out, (q, k, v), d_out), (15, 20, 20)):
        assert torch.isfinite(grad).all() and not grad[total:].any()


@pytest.mark.parametrize("change, error, word", [
    (dict(block_table=torch.zeros(4, 1)), ValueError, "block_table"),
    (dict(cu_seqlens_q=[0, 15]), TypeError, r"cu_seqlens_q \(list\)"),
    (dict(cu_seqlens_k=torch.tensor(STARTS_K).float()), ValueError, "dtype of cu_seqlens_k"),
    (dict(cu_seqlens_q=starts([STARTS_Q])), ValueError, r"cu_seqlens_q \(of shape"),
    (dict(cu_seqlens_q=starts([0, 5, 4, 14, 15])), ValueError, r"cu_seqlens_q\[2\]"),
    (dict(max_seqlen_q=8), ValueError, "max_seqlen"),
    (dict(max_seqlen_k=None), TypeError, r"max_seqlen_k \(None\)"),
    (dict(q=torch.zeros(1, 15, 4, 16)), ValueError, r"q \(of shape .*\[total, heads, head_dim\]"),
    (dict(causal=1), TypeError, r"causal \(1\)"),
])
def test_varlen_errors(change, error, word):
    q, k, v = varlen(grad=False)
    call = dict(q=q, k=k, v=v, cu_seqlens_q=starts(STARTS_Q), cu_seqlens_k=starts(STARTS_K),
                max_seqlen_q=9, max_seqlen_k=9)
    with pytest.raises(error, match=word):
        flash_attn.flash_attn_varlen_func(**{**call, **change})


def test_packed_shapes_are_checked():
    with pytest.raises(ValueError, match=r"qkv \(of shape .*3, heads, head_dim"):
        flash_attn.flash_attn_qkvpacked_func(torch.zeros(2, 7, 2, 4, 16))
    with pytest.raises(ValueError, match=r"kv \(of shape"):
        flash_attn.flash_attn_kvpacked_func(torch.zeros(2, 7, 4, 16), torch.zeros(2, 7, 4, 16))


@pytest.mark.parametrize("scale", ["0.5", [0.5], torch.tensor([0.5, 1.0])])
def test_a_scale_that_is_no_number(scale):
    q = torch.randn(1, 4, 2, 8)
    starts = torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(TypeError, match=r"softmax_scale \(.* must be a number or None"):
        flash_attn.flash_attn_func(q, q, q, softmax_scale=scale)
    with pytest.raises(TypeError, match=r"softmax_scale \(.* must be a number or None"):
        flash_attn.flash_attn_varlen_func(q[0], q[0], q[0], starts, starts, 4, 4,
                                          softmax_scale=scale)


SIGNATURES = {  # flash-attn 2.8.3's, flash_attn/flash_attn_interface.py
    "flash_attn_qkvpacked_func": "qkv",
    "flash_attn_kvpacked_func": "q kv",
    "flash_attn_func": "q k v",
    "flash_attn_varlen_qkvpacked_func": "qkv cu_seqlens max_seqlen",
    "flash_attn_varlen_kvpacked_func":
        "q kv cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k",
    "flash_attn_varlen_func": "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_flash_attns(name):
    options = dict(dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
                   softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False)
    if name == "flash_attn_varlen_func":
        options["block_table"] = None
    empty = inspect.Parameter.empty
    expected = [(x, empty) for x in SIGNATURES[name].split()] + list(options.items())
    parameters = inspect.signature(getattr(flash_attn, name)).parameters.values()
    assert [(p.name, p.default) for p in parameters] == expected


def test_bert_padding():
    from regard.flash_attn.bert_padding import index_first_axis, pad_input, unpad_input

    torch.manual_seed(0)
    x = torch.randn(3, 5, 4, 2, requires_grad=True)
    mask = torch.tensor([[1, 1, 0, 0, 0], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0]])
    unused = torch.tensor([[0, 0, 0, 0, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    for given in (mask, mask.bool()):
        rows, indices, cu_seqlens, longest, used = unpad_input(x, given)
        assert torch.equal(rows, x[mask.bool()]) and indices.tolist() == [0, 1, 6, 8, 9]
        assert cu_seqlens.tolist() == [0, 2, 5, 5] and cu_seqlens.dtype == torch.int32
        assert longest == 3 and isinstance(longest, int)
        assert used.tolist() == [2, 3, 0] and used.dtype == torch.int32
    rows, indices, cu_seqlens, longest, used = unpad_input(x, mask, unused)
    assert indices.tolist() == [0, 1, 4, 5, 6, 8, 9] and cu_seqlens.tolist() == [0, 3, 7, 7]
    assert longest == 4 and used.tolist() == [2, 3, 0]
    padded = pad_input(rows, indices, 3, 5)
    assert torch.equal(padded, x * (mask + unused)[..., None, None])
    grad, = torch.autograd.grad(padded.sum(), x)
    assert torch.equal(grad, (mask + unused)[..., None, None].expand(x.shape).float())
    assert torch.equal(index_first_axis(x.flatten(0, 1), indices), rows)
    lengths = regard.Lengths(mask=mask)
    assert lengths.indices.tolist() == unpad_input(x, mask)[1].tolist()
    for wrong in (mask * 2, mask * 0.5):  # numbers of sequences, or weights
        with pytest.raises(ValueError, match="must be 1 where a position is used"):
            unpad_input(x, wrong)
    with pytest.raises(ValueError, match="at one of both alone"):
        unpad_input(x, mask, mask)
    with pytest.raises(ValueError, match=r"attention_mask \(of shape"):
        unpad_input(x, mask[:2])
    with pytest.raises(TypeError, match=r"attention_mask \(list\)"):
        unpad_input(x, mask.tolist())
