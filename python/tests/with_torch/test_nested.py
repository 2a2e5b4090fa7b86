"""Nested tensors of the jagged layout in scaled_dot_product_attention."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import regard.torch

sdpa = regard.torch.scaled_dot_product_attention
LENGTHS_Q, LENGTHS_KV = (3, 5, 1), (4, 2, 6)


def make(lengths, heads=4, depth=8, grad=True, dtype=torch.float32):
    """[batch, heads, ragged, depth], and the leaf that it is a view of."""
    torch.manual_seed(sum(lengths))
    leaf = torch.nested.nested_tensor([torch.randn(n, heads, depth, dtype=dtype) for n in lengths],
                                      layout=torch.jagged, requires_grad=grad)
    return leaf.transpose(1, 2), leaf


def rows(nested):
    return nested.transpose(1, 2).values()


def theirs(q, k, v, is_causal=False, **keywords):
    function = torch.nn.functional.scaled_dot_product_attention
    if not is_causal:
        with sdpa_kernel(SDPBackend.MATH):  # the one that runs where there is no device
            return function(q, k, v, **keywords)
    # That one is not causal with nested tensors: each sequence by itself.
    ends = q.offsets().tolist(), k.offsets().tolist()
    outs = [function(*(rows(x)[side[b]:side[b + 1]].transpose(0, 1)
                       for x, side in ((q, ends[0]), (k, ends[1]), (v, ends[1]))),
                     is_causal=True, **keywords).transpose(0, 1) for b in range(q.shape[0])]
    return torch.nested.nested_tensor_from_jagged(torch.cat(outs), q.offsets()).transpose(1, 2)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("lengths_kv", [LENGTHS_Q, LENGTHS_KV])
def test_the_results_and_gradients_of_pytorch(is_causal, lengths_kv):
    (q, leaf_q), (k, leaf_k), (v, leaf_v) = (make(LENGTHS_Q), make(lengths_kv), make(lengths_kv))
    if lengths_kv is LENGTHS_Q:
        k, v = 2 * q, q.cos()
        leaves = [leaf_q]
    else:
        v = k.sin()
        leaves = [leaf_q, leaf_k]
    results = []
    for function in (sdpa, theirs):
        out = function(q, k, v, is_causal=is_causal, scale=0.3)
        assert out.shape == q.shape and out.is_nested and out.layout == torch.jagged
        grads = torch.autograd.grad(rows(out).square().sum(), leaves, retain_graph=True)
        results.append([rows(out), *(grad.values() for grad in grads)])
    for here, there in zip(*results):
        torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-5)


def test_the_result_goes_on_as_a_nested_tensor():
    q, _ = make(LENGTHS_Q)
    out = sdpa(q, q, q)
    assert torch.equal((out + q).transpose(1, 2).values(), rows(out) + rows(q))


def test_installed():
    q, leaf = make(LENGTHS_Q)
    expected = sdpa(q, q, q, is_causal=True)
    with regard.torch.install():
        out = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        strided = torch.nested.nested_tensor([torch.randn(1, 2, 4), torch.randn(1, 3, 4)])
        kept = theirs(strided, strided, strided)
    assert torch.equal(rows(out), rows(expected))
    assert kept.layout == torch.strided  # PyTorch's own
    rows(out).sum().backward()
    assert leaf.grad is not None


def test_without_heads_and_ragged_batches():
    nested = torch.nested.nested_tensor([torch.randn(n, 8) for n in LENGTHS_Q], layout=torch.jagged)
    out = sdpa(nested, nested, nested)
    for one, x in zip(out.unbind(), nested.unbind()):
        torch.testing.assert_close(one, torch.nn.functional.scaled_dot_product_attention(x, x, x))
    ragged = torch.nested.nested_tensor([torch.randn(n, 6, 8) for n in LENGTHS_Q],
                                        layout=torch.jagged)
    out = sdpa(ragged, ragged, ragged, is_causal=True)
    x = ragged.values()
    torch.testing.assert_close(out.values(), torch.nn.functional.scaled_dot_product_attention(
        x, x, x, is_causal=True))


def test_sequences_with_holes():
    """Offsets and lengths: the rows behind each length are no part of the sequence."""
    values = torch.randn(10, 4, 8)
    offsets, lengths = torch.tensor([0, 4, 10]), torch.tensor([3, 5])
    nested = torch.nested.nested_tensor_from_jagged(values, offsets, lengths).transpose(1, 2)
    out = sdpa(nested, nested, nested)
    for b, one in enumerate(out.transpose(1, 2).unbind()):
        x = values[offsets[b]:offsets[b] + lengths[b]].transpose(0, 1)
        expected = torch.nn.functional.scaled_dot_product_attention(x, x, x).transpose(0, 1)
        torch.testing.assert_close(one, expected)


def test_grouped_heads_and_dropout():
    q, _ = make(LENGTHS_Q)
    k = torch.nested.nested_tensor_from_jagged(
        rows(q)[:, :2].detach(), q.offsets()).transpose(1, 2)
    out = sdpa(q, k, k, enable_gqa=True)
    full = torch.nested.nested_tensor_from_jagged(
        rows(k).repeat_interleave(2, 1), q.offsets()).transpose(1, 2)
    torch.testing.assert_close(rows(out), rows(sdpa(q, full, full)))
    torch.manual_seed(0)
    dropped = rows(sdpa(q, q, q, dropout_p=0.5))
    torch.manual_seed(0)
    assert torch.equal(dropped, rows(sdpa(q, q, q, dropout_p=0.5)))
    assert not torch.equal(dropped, rows(sdpa(q, q, q)))
    assert not rows(sdpa(q, q, q, dropout_p=1.0)).any()


def test_compiled():
    compiled = torch.compile(lambda q: sdpa(q, q, q, is_causal=True), fullgraph=True,
                             backend="aot_eager")
    q, leaf = make(LENGTHS_Q)
    out = compiled(q)
    assert torch.equal(rows(out), rows(sdpa(q, q, q, is_causal=True)))
    rows(out).sum().backward()
    assert leaf.grad is not None


def test_refusals():
    q, _ = make(LENGTHS_Q)
    k, _ = make(LENGTHS_KV)
    strided = torch.nested.nested_tensor([torch.randn(1, 2, 4), torch.randn(1, 3, 4)])
    for given, words, error in [
            ((q, k, k), dict(attn_mask=torch.ones(3, 6)), "attn_mask must be None"),
            ((q, k, torch.randn(3, 4, 6, 8)), {}, r"value .* must be a nested tensor"),
            ((strided,) * 3, {}, "layout of query .* must be torch.jagged"),
            ((q, k, make((4, 3, 5))[0]), {}, "value must have key's sequences"),
            ((q, make((4, 2))[0], make((4, 2))[0]), {}, "offsets of key"),
            ((q, k, make(LENGTHS_KV, dtype=torch.float64)[0]), {}, "dtype of value"),
            ((q, make(LENGTHS_KV, 2)[0], make(LENGTHS_KV, 2)[0]), {}, "enable_gqa=True")]:
        with pytest.raises(ValueError, match=error):
            sdpa(*given, **words)
