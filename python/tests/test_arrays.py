"""What arrays are taken, what is copied, and what comes back."""

import subprocess
import sys

import numpy as np
import pytest
from reference import attention as reference
from test_attention import make

import regard


def copies():
    return regard.counters()["copies"]


def assert_no_copy(call):
    before = copies()
    result = call()
    assert copies() == before
    return result


def close(out, q, k, v, **options):
    np.testing.assert_allclose(out, reference(q, k, v, **options)[0], atol=1e-5)


def test_views_are_not_copied():
    q, k, v = make(hq=4, hkv=4)
    transposed = [x.swapaxes(1, 2).copy().swapaxes(1, 2) for x in (q, k, v)]
    close(assert_no_copy(lambda: regard.attention(*transposed)), q, k, v)
    packed = np.zeros((2, 13, 3, 4, 16), np.float32)
    packed[:] = np.random.default_rng(0).standard_normal(packed.shape)
    parts = [packed[:, :, i].swapaxes(1, 2) for i in range(3)]
    close(assert_no_copy(lambda: regard.attention(*parts)), *parts)
    shared = [q, np.broadcast_to(k[:1], k.shape), np.broadcast_to(v[:, :1], v.shape)]
    close(assert_no_copy(lambda: regard.attention(*shared)), *shared)
    sliced = [q[:, :, ::2], k[:, :, 1:], v[:, :, 1:]]
    close(assert_no_copy(lambda: regard.attention(*sliced)), *sliced)


def reversed_last(x):
    return x[..., ::-1]


def every_other(x):
    return np.repeat(x, 2, axis=-1)[..., ::2]


def reversed_rows(x):
    return x[:, :, ::-1]


def swapped_bytes(x):
    return x.astype(x.dtype.newbyteorder())


def misaligned(x):
    memory = np.zeros(x.nbytes + 1, np.uint8)
    view = memory[1:].view(x.dtype).reshape(x.shape)
    view[:] = x
    return view


@pytest.mark.parametrize("spoil", [reversed_last, every_other, reversed_rows, swapped_bytes,
                                   misaligned])
def test_what_the_core_cannot_take_is_copied_and_said(spoil):
    q, k, v = make()
    before = copies()
    out = regard.attention(q, spoil(k), v)
    assert copies() == before + 1
    close(out, q, spoil(k), v)
    selection = regard.explain(q, spoil(k), v)
    assert copies() == before + 1, "explain computes nothing, so it copies nothing"
    assert len(selection.notes) == 1 and selection.notes[0].startswith("k is copied: ")
    assert f"note     {selection.notes[0]}" in str(selection)
    assert regard.explain(q, k, v).notes == ()


def test_read_only_inputs_are_fine():
    q, k, v = make()
    expected = regard.attention(q, k, v)
    for x in (q, k, v):
        x.flags.writeable = False
    assert np.array_equal(regard.attention(q, k, v), expected)


def test_the_layout_bshd():
    q, k, v = make()
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    options = dict(is_causal=True, diagonal="bottom_right", return_lse=True)
    expected, expected_lse = regard.attention(q, k, v, **options)
    out, lse = assert_no_copy(lambda: regard.attention(*turned, layout="BSHD", **options))
    assert out.flags.c_contiguous and out.shape == (2, 9, 4, 16)
    assert np.array_equal(out.swapaxes(1, 2), expected) and np.array_equal(lse, expected_lse)
    place = np.empty_like(out)
    assert regard.attention(*turned, layout="BSHD", is_causal=True, diagonal="bottom_right",
                            out=place) is place
    assert np.array_equal(place, out)


def test_out_is_written_in_place():
    q, k, v = make()
    expected = regard.attention(q, k, v)
    out = np.empty_like(expected)
    assert regard.attention(q, k, v, out=out) is out
    assert np.array_equal(out, expected)
    wide = np.full((2, 9, 8, 16), 7.0, np.float32)
    place = wide[:, :, 1::2].swapaxes(1, 2)
    assert regard.attention(q, k, v, out=place) is place
    assert np.array_equal(place, expected) and (wide[:, :, ::2] == 7).all()


def test_a_float32_out_of_half_inputs():
    q, k, v = make(dtype="float16")
    out = np.empty(q.shape, np.float32)
    assert regard.attention(q, k, v, out=out) is out
    np.testing.assert_allclose(out, reference(q, k, v)[0], atol=1e-5)


class Exporter:
    """An object that offers DLPack and nothing else."""

    def __init__(self, array, versioned=True):
        self._array = array
        self._versioned = versioned

    def __dlpack__(self, **kwargs):
        if not self._versioned and kwargs:
            raise TypeError("unexpected keyword")
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack_in_numpy_out(versioned):
    q, k, v = make()
    if versioned:
        k.flags.writeable = False
    out = regard.attention(*(Exporter(x, versioned) for x in (q, k, v)))
    assert type(out) is np.ndarray and np.array_equal(out, regard.attention(q, k, v))
    place = np.empty_like(out)
    wrapped = Exporter(place, versioned)
    assert regard.attention(q, k, v, out=wrapped) is wrapped
    assert np.array_equal(place, out)


class Library:
    """An array-API library whose arrays are DLPack exporters; records what it is given."""

    class Array(Exporter):
        def __array_namespace__(self):
            return Library

    @staticmethod
    def from_dlpack(source):
        return Library.Array(np.from_dlpack(source))


def test_the_callers_kind_comes_back():
    q, k, v = make()
    out, lse = regard.attention(*(Library.Array(x) for x in (q, k, v)), return_lse=True)
    assert type(out) is Library.Array and type(lse) is Library.Array
    assert np.array_equal(np.from_dlpack(out), regard.attention(q, k, v))
    del q, k, v
    assert np.isfinite(np.from_dlpack(out)).all() and np.isfinite(np.from_dlpack(lse)).all()


def test_dlpack_that_regard_cannot_take():
    q, k, v = make()

    class Gpu(Exporter):
        def __dlpack_device__(self):
            return (2, 0)

    class Tensor(Exporter):
        requires_grad = True

    with pytest.raises(ValueError, match=r"k is on cuda:0.*CPU"):
        regard.attention(q, Gpu(k), v)
    with pytest.raises(TypeError, match=r"v requires a gradient.*regard\.torch.*v\.detach\(\)"):
        regard.attention(q, k, Tensor(v))
    class Sparse(Exporter):
        def __dlpack__(self, **kwargs):
            raise BufferError("no strided layout")

    with pytest.raises(ValueError, match=r"k \(Sparse\) cannot be read by DLPack: no strided") as e:
        regard.attention(q, Sparse(k), v)
    assert isinstance(e.value.__cause__, BufferError)
    with pytest.raises(TypeError, match="dtype of q"):
        regard.attention(Exporter(q.astype(np.complex64)), k, v)
    read_only = np.empty_like(q)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="out .*read-only"):
        regard.attention(q, k, v, out=Exporter(read_only))


def test_a_bias_of_another_16_bit_type_is_converted():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    q, k, v = make()
    bias = np.random.default_rng(1).standard_normal((9, 13)).astype(bfloat16)
    before = copies()
    out = regard.attention(q, k, v, attn_bias=bias)
    assert copies() == before + 1
    assert np.array_equal(out, regard.attention(q, k, v, attn_bias=bias.astype(np.float32)))
    notes = regard.explain(q, k, v, attn_bias=bias).notes
    assert "attn_bias is converted from bfloat16" in notes[0]
    halves = make(dtype=bfloat16)
    assert regard.explain(*halves, attn_bias=bias).notes == ()


def test_torch_in_torch_out():
    torch = pytest.importorskip("torch")
    for dtype, tolerance in [(torch.float32, 1e-5), (torch.bfloat16, 2**-7), (torch.float64, 1e-12)]:
        q, k, v = (torch.from_numpy(x).to(dtype) for x in make())
        out, lse = regard.attention(q, k, v, return_lse=True)
        assert type(out) is torch.Tensor and out.dtype == dtype and type(lse) is torch.Tensor
        expected = reference(*(x.double().numpy() for x in (q, k, v)))[0]
        np.testing.assert_allclose(out.double().numpy(), expected, atol=tolerance)
        place = torch.empty_like(out)
        assert regard.attention(q, k, v, out=place) is place and torch.equal(place, out)
    halves = torch.randn(9, 13).bfloat16()
    expected = regard.attention(q, k, v, attn_bias=halves.float())
    assert torch.equal(regard.attention(q, k, v, attn_bias=halves), expected)
    with pytest.raises(TypeError, match=r"q requires a gradient.*regard\.torch"):
        regard.attention(q.requires_grad_(), k, v)
    with torch.no_grad():
        assert torch.equal(regard.attention(q, k, v), regard.attention(q.detach(), k, v))


def test_torch_tensors_without_memory_of_their_own():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x) for x in make())
    with pytest.raises(ValueError, match=r"q has its negative bit set.*q\.resolve_neg\(\)"):
        regard.attention(torch._neg_view(q), k, v)
    with pytest.raises(ValueError, match=r"k \(Tensor\) cannot be read by DLPack: .*meta"):
        regard.attention(q, k.to("meta"), v)
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        fake = torch.empty(v.shape)
    with pytest.raises(ValueError, match=r"v \(FakeTensor\) has no memory"):
        regard.attention(q, k, fake)
    empty = regard.attention(q[:0], k[:0], v[:0])
    assert empty.shape == (0, 4, 9, 16)


def test_nothing_optional_is_imported():
    code = ("import sys, numpy as np, regard; x = np.ones((1, 1, 2, 4), np.float16);"
            "regard.attention(x, x, x); regard.explain(x, x, x);"
            "print([m for m in ('torch', 'ml_dtypes', 'pandas', 'jax') if m in sys.modules])")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "[]\n" and ran.stderr == ""
