"""Floats of 8 bits and descales: what the numbers stand for, what comes back, what is refused."""

import numpy as np
import pytest
from reference import attention as reference
from dlpack_tensor import Exporter
from test_attention import BACKENDS, make

import regard

ml_dtypes = pytest.importorskip("ml_dtypes")
FORMATS = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


def descaled(x, descale):
    x = x.astype(np.float64)
    return x if descale is None else x * np.reshape(descale, (*np.shape(descale), 1, 1))


def expected(q, k, v, descale_q=None, descale_k=None, descale_v=None, **options):
    group = q.shape[1] // k.shape[1]
    for_q = np.repeat(descale_q, group, axis=-1) if np.ndim(descale_q) == 2 else descale_q
    return reference(descaled(q, for_q), descaled(k, descale_k), descaled(v, descale_v), **options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", FORMATS)
def test_forward(form, backend):
    q, k, v = make(dtype=form)
    per_head = np.array([[0.5, 2.0], [1.5, 0.25]])
    for descales in [{}, dict(descale_v=0.5), dict(descale_q=2, descale_k=[0.25]),
                     dict(descale_q=per_head, descale_k=np.float32(0.5), descale_v=1 / per_head)]:
        place = np.empty(q.shape, np.float32)
        out, lse = regard.attention(q, k, v, return_lse=True, out=place, backends=backend,
                                    is_causal=True, diagonal="bottom_right", **descales)
        want, want_lse, _ = expected(q, k, v, is_causal=True, diagonal="bottom_right",
                                     **descales)
        assert out is place
        np.testing.assert_allclose(out, want, atol=5e-6 * np.abs(want).max())
        np.testing.assert_allclose(lse, want_lse, atol=5e-6)


@pytest.mark.parametrize("form", FORMATS)
def test_types_of_the_result(form):
    q, k, v = make(dtype=form)
    want = expected(q, k, v)[0]
    assert regard.attention(q, k, v).dtype == ml_dtypes.bfloat16
    for dtype, tolerance in [(ml_dtypes.bfloat16, 4e-3), (np.float16, 5e-4), (form, 0.13)]:
        out = regard.attention(q, k, v, out=np.empty(q.shape, dtype))
        assert out.dtype == dtype
        np.testing.assert_allclose(out.astype(np.float64), want,
                                   atol=tolerance * np.abs(want).max())
    with pytest.raises(TypeError, match="dtype of out .float64"):
        regard.attention(q, k, v, out=np.empty(q.shape))


def test_descales_of_other_types_too():
    q, k, v = make()
    out = regard.attention(q, k, v, descale_k=0.5, descale_v=3.0)
    np.testing.assert_allclose(out, expected(q, k, v, descale_k=0.5, descale_v=3.0)[0], atol=2e-5)
    assert regard.explain(q, k, v, descale_k=0.5).notes[0].startswith("descale_k is converted")
    assert regard.explain(q, k, v, descale_k=np.float32([0.5])).notes == ()


@pytest.mark.parametrize("options, error, words", [
    (dict(descale_q=np.ones((2, 4))), ValueError, r"descale_q \(\[2,4\]\) must be \[2,2\], "),
    (dict(descale_v=-1.0), ValueError, r"descale_v\[0\] \(-1\), expected finite and at least 0"),
    (dict(descale_k=np.full((2, 2), np.nan)), ValueError, r"descale_k\[0,0\] \(nan\)"),
    (dict(descale_k="half"), TypeError, "descale_k"),
])
def test_refusals(options, error, words):
    with pytest.raises(error, match=words):
        regard.attention(*make(dtype=FORMATS[0]), **options)


def test_a_bias_of_8_bits_is_refused():
    bias = np.zeros((9, 13), FORMATS[0])
    with pytest.raises(TypeError, match="dtype of attn_bias"):
        regard.attention(*make(dtype=FORMATS[0]), attn_bias=bias)


@pytest.mark.parametrize("form, code", [(FORMATS[0], 10), (FORMATS[1], 12)])
def test_dlpack(form, code):
    arrays = make(dtype=form)
    out = regard.attention(*(Exporter(x, code) for x in arrays), descale_v=2.0)
    assert out.dtype == ml_dtypes.bfloat16
    assert np.array_equal(out, regard.attention(*arrays, descale_v=2.0))


def test_torch():
    torch = pytest.importorskip("torch")
    for form, own in zip(FORMATS, [torch.float8_e4m3fn, torch.float8_e5m2], strict=True):
        arrays = make(dtype=form)
        tensors = [torch.from_numpy(x.view(np.uint8)).view(own) for x in arrays]
        out = regard.attention(*tensors, descale_k=torch.tensor([0.5]))
        assert out.dtype == torch.bfloat16
        same = regard.attention(*arrays, descale_k=0.5)
        assert np.array_equal(out.view(torch.int16).numpy(), same.view(np.int16))
