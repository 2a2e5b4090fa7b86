"""regard.unpad, regard.pad and packed sequences on torch tensors."""

import pytest
import torch

import regard

MASK = torch.tensor([[0, 1, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_unpad_and_pad(dtype):
    x = (torch.randn(4, 5, 3, 2) * 9).to(dtype)
    packed, lengths = regard.unpad(x, mask=MASK)
    assert isinstance(packed, torch.Tensor) and torch.equal(packed, x[MASK.bool()])
    padded = regard.pad(packed, lengths)
    assert padded.dtype == dtype and torch.equal(padded, x * MASK[..., None, None].to(dtype))
    assert lengths == regard.unpad(x, mask=MASK.bool())[1]
    assert lengths.cu_seqlens.tolist() == [0, 3, 3, 8, 9]


def test_gradients_also_of_the_second_order():
    x = torch.randn(4, 5, 2, dtype=torch.float64, requires_grad=True)
    lengths = regard.Lengths(mask=MASK)
    assert torch.autograd.gradcheck(lambda x: regard.unpad(x, lengths=lengths)[0], x)
    packed = torch.randn(9, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: regard.pad(x, lengths), packed)
    assert torch.autograd.gradgradcheck(lambda x: regard.pad(x**2, lengths), packed)


def test_the_indices_are_copied_once_for_a_batch(monkeypatch):
    lengths = regard.Lengths(mask=MASK)
    x = torch.randn(4, 5, 2)
    regard.unpad(x, lengths=lengths)
    monkeypatch.setattr(torch, "tensor", None)
    assert regard.pad(regard.unpad(x, lengths=lengths)[0], lengths).shape == x.shape


def test_seqlens_and_position_ids_as_tensors():
    x = torch.randn(2, 4, 3)
    packed, lengths = regard.unpad(x, seqlens=torch.tensor([3, 1], dtype=torch.int32))
    assert torch.equal(packed, torch.cat([x[0, :3], x[1, :1]]))
    packed, lengths = regard.unpad(x, position_ids=torch.tensor([[0, 1, 0, 1], [0, 1, 2, 3]]))
    assert torch.equal(packed, x.flatten(0, 1)) and lengths.cu_seqlens.tolist() == [0, 2, 4, 8]


def test_wrong_shapes_are_refused():
    lengths = regard.Lengths(mask=MASK)
    with pytest.raises(ValueError, match=r"shape of x .* 4, 5"):
        regard.unpad(torch.randn(5, 4, 2), lengths=lengths)
    with pytest.raises(ValueError, match=r"shape of packed .* 9"):
        regard.pad(torch.randn(8, 2), lengths)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_regard_attention_on_packed_tensors(dtype):
    q, k, v = (torch.randn(4, 5, 2, 16).to(dtype) for _ in range(3))
    lengths = regard.Lengths(mask=MASK)
    rows = [regard.unpad(x, lengths=lengths)[0] for x in (q, k, v)]
    out = regard.attention(*rows, lengths=lengths)
    assert isinstance(out, torch.Tensor) and out.dtype == dtype and out.shape == (9, 2, 16)
    starts = torch.from_numpy(lengths.cu_seqlens.copy())
    assert torch.equal(out, regard.attention(*rows, cu_seqlens_q=starts, cu_seqlens_kv=starts))
    expected = regard.attention(q, k, v, layout="BSHD", attn_mask=MASK.bool()[:, None, None])
    seen = MASK.bool()
    torch.testing.assert_close(regard.pad(out, lengths)[seen], expected[seen], atol=2e-2 if
                               dtype == torch.bfloat16 else 1e-5, rtol=0)
