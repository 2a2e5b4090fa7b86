"""The way of CUDA tensors, taken by tensors of a CPU: all of it but the device and its stream."""

import pytest
import torch

import regard
from regard.torch import _call, _device
from regard.torch._options import Options, native_keywords

CASES = {
    "plain": Options(),
    "causal": Options(is_causal=True, diagonal="bottom_right"),
    "window": Options(window_left=3, window_right=2, softmax_scale=0.3, softcap=2.0),
    "mask": Options(attn_mask=torch.rand(7, 9, generator=torch.Generator().manual_seed(1)) > 0.3),
    "bias": Options(attn_bias=torch.linspace(-1, 1, 4 * 7 * 9).reshape(4, 7, 9)),
    "sinks": Options(sinks=torch.tensor([0.1, -1.0, 2.0, 0.0], dtype=torch.float64)),
    "alibi": Options(alibi_slopes=torch.tensor([0.5, 0.25, 0.125, 1.0])),
    "lengths": Options(seqlens_q=torch.tensor([7, 3]), seqlens_kv=torch.tensor([5, 0])),
    "dropout": Options(dropout_p=0.25, rng=torch.tensor([17])),
}


def tensors(layout="BHSD"):
    rng = torch.Generator().manual_seed(7)
    made = [torch.randn(2, heads, rows, depth, generator=rng)
            for heads, rows, depth in ((4, 7, 8), (2, 9, 8), (2, 9, 5), (4, 7, 5))]
    if layout == "BSHD":
        made = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in made]
    return made


@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_as_by_arrays(name, layout):
    options = CASES[name]
    q, k, v, d_out = tensors(layout)
    keywords = {**native_keywords(options), "return_lse": True, "return_saved": True}
    out, lse, saved = _call.numbers(q, k, v, keywords, "math")
    grads = _call.backward_numbers((d_out, None), (q, k, v, out), saved, options, layout)
    here, here_lse, here_saved = _device.numbers(q, k, v, options, "math", True, layout)
    assert here_saved.backend == "math"
    assert torch.equal(here, out) and here.stride() == out.stride()
    assert torch.equal(here_lse, lse)
    here_grads = _device.backward_numbers((d_out, None), (q, k, v, out), here_saved, options,
                                          layout)
    for here_grad, grad in zip(here_grads, grads, strict=True):
        assert (here_grad is None) == (grad is None)
        if grad is not None:  # lse and saved_stats differ in a rounding
            torch.testing.assert_close(here_grad, grad, rtol=1e-4, atol=1e-5)


def test_a_gradient_of_lse_arrives():
    q, k, v, d_out = tensors()
    out, lse, saved = _device.numbers(q, k, v, Options(), "math", True, "BHSD")
    without = _device.backward_numbers((d_out, None), (q, k, v, out), saved, Options(), "BHSD")
    both = _device.backward_numbers((d_out, torch.ones_like(lse)), (q, k, v, out), saved,
                                    Options(), "BHSD")
    assert not torch.allclose(both[0], without[0])
    assert torch.equal(both[2], without[2])


def test_a_backward_is_outside_of_scopes():
    q, k, v, d_out = tensors()
    out, _, saved = _device.numbers(q, k, v, Options(), "math", True, "BHSD")
    call = ((d_out, None), (q, k, v, out), saved, Options(), "BHSD")
    expected = _device.backward_numbers(*call)
    with regard.use_policy(deny=["math"]):
        for here, grad in zip(_device.backward_numbers(*call)[:3], expected[:3], strict=True):
            assert torch.equal(here, grad)


def test_rows_that_are_not_dense_are_copied():
    q, k, v, _ = tensors()
    spread = torch.stack([q, q], dim=-1)[..., 0]
    assert torch.equal(_device.numbers(spread, k, v, Options(), "", False, "BHSD")[0],
                       _device.numbers(q, k, v, Options(), "", False, "BHSD")[0])


def test_what_cudnn_reads_as_it_lies():
    rows = torch.zeros(2, 3, 5, 16, dtype=torch.float16)
    assert _device._is_aligned(rows) and _device._is_aligned(rows.transpose(1, 2))
    assert _device._is_aligned(rows[:1].expand(1, 3, 5, 16))
    for other in (rows[..., 1:], rows[..., :8].flatten()[4:-4].reshape(1, 1, -1, 8),
                  torch.zeros(2, 3, 5, 12, dtype=torch.float16), rows[:, :1].expand(2, 3, 5, 16)):
        assert not _device._is_aligned(other)


def test_errors_are_the_librarys():
    q, k, v, _ = tensors()
    with pytest.raises(ValueError, match="num_heads"):
        _device.numbers(q[:, :3], k, v, Options(), "", False, "BHSD")
    with pytest.raises(regard.NoBackendError):
        _device.numbers(q, k, v, Options(), "cudnn", False, "BHSD")
