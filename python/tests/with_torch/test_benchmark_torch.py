"""PyTorch's row of regard.benchmark: where it is comparable, and why where not."""

import numpy as np
import pytest
import torch

import regard
from regard import _benchmark_torch

Q = torch.randn(1, 4, 32, 16)
K, V = torch.randn(1, 2, 48, 16), torch.randn(1, 2, 48, 16)


def torch_row(q=Q, k=K, v=V, direction="forward", **options):
    result = regard.benchmark(q, k, v, rounds=1, **options)
    return next(r for r in result.rows if (r.name, r.direction) == ("torch", direction))


def result_of(q, k, v, **options):
    """What PyTorch's row computes."""
    (row, *_) = _benchmark_torch.torch_rows(q, k, v, options)
    assert not row.reason
    return row.call()


MASK = torch.rand(32, 48) > 0.3
MASK[:, 0] = True
SAME = [
    {},
    {"softmax_scale": 0.7},
    {"is_causal": True, "diagonal": "top_left"},
    {"attn_mask": MASK},
    {"attn_bias": torch.randn(1, 4, 32, 48)},
    {"window": [-1, -1], "softcap": 0, "dropout_p": 0.0, "return_lse": False},
]


@pytest.mark.parametrize("options", SAME, ids=lambda options: "-".join(options) or "plain")
def test_the_same_call(options):
    row = torch_row(**options)
    assert row.reason is None and row.seconds > 0 and row.peak_share > 0
    assert row.kernel.startswith("scaled_dot_product_attention of PyTorch 2")
    assert row.workers == torch.get_num_threads()
    torch.testing.assert_close(result_of(Q, K, V, **options), regard.attention(Q, K, V, **options))


def test_squares_and_single_queries():
    q, k, v = torch.randn(3, 1, 4, 48, 16)
    for options in ({"is_causal": True}, {"is_causal": True, "diagonal": "bottom_right"}):
        torch.testing.assert_close(result_of(q, k, v, **options),
                                   regard.attention(q, k, v, **options))
    last = q[:, :, -1:]
    options = {"is_causal": True, "diagonal": "bottom_right"}
    torch.testing.assert_close(result_of(last, k, v, **options),
                               regard.attention(last, k, v, **options))


def test_layouts_and_kinds_of_arrays():
    expected = regard.attention(Q, K, V)
    rows = [x.transpose(1, 2).contiguous() for x in (Q, K, V)]
    torch.testing.assert_close(result_of(*rows, layout="BSHD"), expected)
    arrays = [x.numpy() for x in (Q, K, V)]
    torch.testing.assert_close(result_of(*arrays), expected)
    for array in arrays:
        array.flags.writeable = False
    torch.testing.assert_close(result_of(*arrays), expected)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    halves = [x.astype(ml_dtypes.bfloat16) for x in arrays]
    assert result_of(*halves).dtype == torch.bfloat16


@pytest.mark.parametrize("options, word", [
    ({"window": (4, 4), "diagonal": "top_left"}, "window"),
    ({"softcap": 30.0}, "softcap"),
    ({"dropout_p": 0.5, "seed": 1}, "dropout_p"),
    ({"seqlens_kv": [40]}, "seqlens_kv"),
    ({"cache_batch_idx": [0]}, "cache_batch_idx"),
    ({"return_lse": True}, "return_lse"),
    ({"sinks": [0.0] * 4}, "sinks"),
    ({"cache_batch_idx": [0]}, "cache_batch_idx"),
    ({"is_causal": True, "diagonal": "bottom_right"}, "top left"),
    ({"is_causal": True, "diagonal": 3}, "top left"),
    ({"is_causal": True, "diagonal": np.array([3])}, "top left"),
    ({"attn_mask": MASK, "attn_bias": torch.zeros(32, 48)}, "one mask"),
    ({"attn_mask": MASK, "is_causal": True, "diagonal": "top_left"}, "no mask beside"),
])
def test_not_comparable(options, word):
    row = torch_row(**options)
    assert row.seconds is None and row.reason.startswith("not comparable: ") and word in row.reason


@pytest.mark.parametrize("name", ["page_table", "cache_batch_idx", "k_new", "v_new", "rotary_cos",
                                  "rotary_sin"])
def test_a_cache_is_not_comparable(name):
    (row,) = _benchmark_torch.torch_rows(Q, K, V, {name: torch.zeros(1, 2, 1, 16)})
    assert row.reason == f"not comparable: scaled_dot_product_attention has no {name}"


def test_packed_sequences():
    packed = torch.randn(12, 4, 16)
    row = torch_row(packed, packed, packed, cu_seqlens_q=[0, 5, 12], cu_seqlens_kv=[0, 5, 12],
                    is_causal=True, diagonal="top_left")
    assert row.operations == 2 * (16 + 16) * 4 * (15 + 28)
    assert "cu_seqlens_q" in row.reason


def test_arrays_that_cannot_be_shared():
    arrays = [x.numpy() for x in (Q, K, V)]
    arrays[1] = arrays[1][..., ::-1]
    assert "k cannot be shared" in torch_row(*arrays).reason
    small = [x.astype(np.float32).view(np.uint32) for x in arrays]
    with pytest.raises(TypeError):
        regard.benchmark(*small)


@pytest.mark.parametrize("options", [{}, {"attn_bias": torch.randn(32, 48)}], ids=["plain", "bias"])
def test_gradients(options):
    row = torch_row(direction="backward", return_saved=True, **options)
    assert row.seconds > 0 and row.operations > 0
    _, backward = _benchmark_torch.torch_rows(Q, K, V, {"return_saved": True, **options})
    out, saved = regard.attention(Q, K, V, return_saved=True, **options)
    ours = [x for x in regard.attention_backward(out, Q, K, V, out, saved, **options)
            if x is not None]
    for a, b in zip(backward.call(), ours, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_pytorchs_own_where_regards_is_installed():
    import regard.torch

    with regard.torch.install():
        (row,) = _benchmark_torch.torch_rows(Q, K, V, {})
        with regard.use_policy(only=["cudnn"]):  # regard's would raise
            torch.testing.assert_close(row.call(), regard_free(Q, K, V))


def regard_free(q, k, v):
    return torch._C._nn.scaled_dot_product_attention(q, k, v, enable_gqa=True)
