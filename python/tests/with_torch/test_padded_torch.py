"""regard.torch.attention_padded: padded sequences with gradients."""

import pytest
import torch

import regard
import regard.torch
from regard.torch import ArgumentError, attention_padded

MASKS = {
    "right": [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]],
    "left": [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1]],
    "holes": [[1, 0, 1, 0, 1], [0, 1, 1, 0, 1], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0]],
}
CALLS = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"window": (1, 0)},
    "softcap": {"softcap": 3.0, "softmax_scale": 0.7},
}


def tensors(mask, dtype=torch.float64, heads=(4, 2), dim=8):
    torch.manual_seed(0)
    batch, seqlen = mask.shape
    return [torch.randn(batch, h, seqlen, dim, dtype=dtype, requires_grad=True)
            for h in (heads[0], heads[1], heads[1])]


@pytest.mark.parametrize("padding", ["auto", "padded", "packed"])
@pytest.mark.parametrize("words", CALLS)
@pytest.mark.parametrize("name", MASKS)
def test_gradcheck(name, words, padding):
    mask = torch.tensor(MASKS[name], dtype=torch.bool)
    lengths = regard.Lengths(mask=mask.numpy())
    q, k, v = tensors(mask, heads=(2, 1), dim=3)
    if name == "holes" and words in ("causal", "window") and padding == "padded":
        with pytest.raises(ArgumentError, match="padding .padded. has no path"):
            attention_padded(q, k, v, lengths, padding=padding, **CALLS[words])
        return
    seen = mask[:, None]

    def call(q, k, v):
        out, lse = attention_padded(q, k, v, lengths, padding=padding, return_lse=True, **CALLS[words])
        return out, lse.masked_select(seen)

    assert torch.autograd.gradcheck(call, (q, k, v))


@pytest.mark.parametrize("padding", ["auto", "padded", "packed"])
@pytest.mark.parametrize("name", MASKS)
def test_padding_gets_gradients_of_zero(name, padding):
    mask = torch.tensor(MASKS[name], dtype=torch.bool)
    hidden = ~mask[:, None, :, None]
    made = []
    for padded_with in (0.0, float("nan")):
        q, k, v = (x.detach().masked_fill(hidden, padded_with).requires_grad_()
                   for x in tensors(mask, torch.float32))
        out = attention_padded(q, k, v, regard.Lengths(mask=mask.numpy()), padding=padding)
        assert not out[hidden.expand_as(out)].any()
        d_out = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
        out.backward(d_out.masked_fill(hidden, padded_with))
        for x in (q, k, v):
            assert not x.grad[hidden.expand_as(x)].any() and x.grad.isfinite().all() and x.grad.any()
        made.append([out.detach(), q.grad, k.grad, v.grad])
    for left, right in zip(*made):
        assert torch.equal(left, right)


@pytest.mark.parametrize("padding", ["padded", "packed"])
def test_gradients_of_a_mask_and_sinks_are_those_of_single_sequences(padding):
    mask = torch.tensor(MASKS["right"], dtype=torch.bool)
    q, k, v = tensors(mask)
    bias = torch.randn(4, 1, 5, 5, dtype=torch.float64, requires_grad=True)
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    given = (q, k, v, bias, sinks)
    d_out = torch.randn(4, 4, 5, 8, dtype=torch.float64)
    out = attention_padded(q, k, v, regard.Lengths(mask=mask.numpy()), padding=padding, attn_mask=bias,
                           sinks=sinks)
    found = torch.autograd.grad(out, given, d_out)
    total = torch.zeros((), dtype=torch.float64)
    for b, count in enumerate(mask.sum(1).tolist()):
        if count:
            part = slice(b, b + 1), slice(None), slice(count)
            scores = q[part] @ k[part].repeat_interleave(2, 1).mT / 8**0.5 + bias[part][..., :count]
            column = sinks[None, :, None, None].expand(1, 4, count, 1)
            probs = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
            total = total + (probs @ v[part].repeat_interleave(2, 1) * d_out[part]).sum()
    for gradient, expected in zip(found, torch.autograd.grad(total, given)):
        torch.testing.assert_close(gradient, expected)


def test_layout_lengths_of_keys_and_dropout():
    mask = torch.tensor(MASKS["right"], dtype=torch.bool)
    q, k, v = tensors(mask, torch.float32)
    lengths, keys = (regard.Lengths(seqlens=counts, seqlen=5) for counts in ([3, 5, 0, 1], [5, 2, 4, 3]))
    expected = attention_padded(q, k, v, lengths, lengths_kv=keys)
    turned = attention_padded(*(x.transpose(1, 2) for x in (q, k, v)), lengths, lengths_kv=keys,
                              layout="BSHD")
    torch.testing.assert_close(turned.transpose(1, 2), expected)
    for gradients in zip(torch.autograd.grad(expected.sum(), (q, k, v)),
                         torch.autograd.grad(turned.sum(), (q, k, v))):
        torch.testing.assert_close(*gradients)
    torch.manual_seed(3)
    dropped = attention_padded(q, k, v, lengths, dropout_p=0.5)
    gradient, = torch.autograd.grad(dropped, v, dropped.detach(), retain_graph=True)
    # out is linear in v, with the same mask of dropout in the backward
    torch.testing.assert_close((gradient * v).sum(), dropped.square().sum())


def test_without_gradients_the_numbers_are_the_same():
    mask = torch.tensor(MASKS["left"], dtype=torch.bool)
    q, k, v = tensors(mask, torch.float32)
    lengths = regard.Lengths(mask=mask.numpy())
    recorded = attention_padded(q, k, v, lengths, padding="packed")
    with torch.no_grad():
        assert torch.equal(recorded, attention_padded(q, k, v, lengths, padding="packed"))
        with torch.autocast("cpu", torch.bfloat16):
            assert attention_padded(q, k, v, lengths).dtype == torch.bfloat16
    q, k, v = (x.detach().bfloat16().requires_grad_() for x in (q, k, v))
    attention_padded(q, k, v, lengths).sum().backward()
    assert q.grad.dtype == torch.bfloat16


def test_what_is_refused():
    mask = torch.tensor(MASKS["left"], dtype=torch.bool)
    q, k, v = tensors(mask)
    lengths = regard.Lengths(mask=mask.numpy())
    with pytest.raises(TypeError, match=r"lengths .list. must be a regard.Lengths"):
        attention_padded(q, k, v, [1, 2, 3, 4])
    with pytest.raises(ArgumentError, match="q .of shape .4, 5, 8.. must have 4 dimensions"):
        attention_padded(q[:, 0], k, v, lengths)
    with pytest.raises(ArgumentError, match="dtype of k .torch.float32. must be q's"):
        attention_padded(q, k.float(), v, lengths)
    with pytest.raises(ArgumentError, match="padding"):
        attention_padded(q, k, v, lengths, padding="most")
    with pytest.raises(ArgumentError, match="traced, or in torch.func.*varlen_attn"):
        torch.func.grad(lambda q: attention_padded(q, k, v, lengths).sum())(q)
    with pytest.raises(ArgumentError, match="device of q .meta. must be cpu"):
        attention_padded(*(x.to("meta") for x in (q, k, v)), lengths)
    gradient, = torch.autograd.grad(attention_padded(q, k, v, lengths).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
