"""DLPack structures that describe no memory are refused before anything is read."""

import numpy as np
import pytest
from dlpack_tensor import Exporter
from test_attention import make

import regard

Q, K, V = make()
BATCH, HEADS, KEYS, DIM = K.shape
DENSE = tuple(stride // K.itemsize for stride in K.strides)


def test_a_tensor_made_by_hand_is_taken():
    expected = regard.attention(Q, K, V)
    assert np.array_equal(regard.attention(Q, Exporter(K), V), expected)
    assert np.array_equal(regard.attention(Q, Exporter(K, strides=DENSE), V), expected)
    shifted = Exporter(K, data=K.ctypes.data - 64, byte_offset=64)
    assert np.array_equal(regard.attention(Q, shifted, V), expected)
    # The stride of a single element says nothing.
    one = Exporter(K, shape=(1, *K.shape[1:]), strides=(2**62, *DENSE[1:]))
    assert np.array_equal(regard.attention(Q[:1], one, V[:1]), expected[:1])


@pytest.mark.parametrize("changes, error, words", [
    (dict(data=None), ValueError, ["k (Exporter) has no memory", "null"]),
    (dict(data=None, byte_offset=64), ValueError, ["k (Exporter) has no memory", "null"]),
    (dict(shape=None), ValueError, ["shape of k (null)", "4 extents"]),
    (dict(shape=(BATCH, HEADS, -1, DIM)), ValueError, ["extent 2 of k (-1)", ">= 0"]),
    (dict(ndim=-1), ValueError, ["rank of k (-1)", "0 to 32"]),
    (dict(ndim=33, shape=(1,) * 33), ValueError, ["rank of k (33)", "0 to 32"]),
    (dict(ndim=3, shape=K.shape[1:]), ValueError, ["rank of k (3", "must be 4"]),
    (dict(lanes=0), TypeError, ["dtype of k", "0 lanes", "1 lane"]),
    (dict(lanes=4), TypeError, ["dtype of k", "4 lanes", "1 lane"]),
    (dict(bits=24), TypeError, ["dtype of k", "24 bits"]),
    (dict(byte_offset=2**64 - 8), ValueError, ["k (Exporter)", "fit 64 bits"]),
    (dict(strides=(2**62, *DENSE[1:])), ValueError, ["k (Exporter)", "fit 64 bits"]),
    (dict(strides=(2**61, *DENSE[1:])), ValueError, ["k (Exporter)", "fit 64 bits"]),
    (dict(strides=(-(2**61), *DENSE[1:])), ValueError, ["k (Exporter)", "fit 64 bits"]),
    (dict(strides=(-(2**60), *DENSE[1:])), ValueError, ["k (Exporter)", "fit 64 bits"]),
    (dict(shape=(2**40, 2**40, KEYS, DIM)), ValueError, ["k (Exporter)", "fit 64 bits"]),
    (dict(shape=(2**40, 2**40, KEYS, DIM), strides=(0, 0, DIM, 1)), ValueError,
     ["k (Exporter)", "fit 64 bits"]),
    (dict(device=(2, 0)), ValueError, ["k is on cuda:0", "CPU"]),
])
def test_what_describes_no_memory_is_refused(changes, error, words):
    with pytest.raises(error) as caught:
        regard.attention(Q, Exporter(K, **changes), V)
    for word in words:
        assert word in str(caught.value)


class Interrupted:
    """Ctrl-C while the object's own method runs."""

    def __init__(self, method):
        self.method = method

    def raise_in(self, method):
        if method == self.method:
            raise KeyboardInterrupt

    def __dlpack__(self, **keywords):
        self.raise_in("__dlpack__")
        return K.__dlpack__(**keywords)

    def __dlpack_device__(self):
        self.raise_in("__dlpack_device__")
        return 1, 0

    def __float__(self):
        raise KeyboardInterrupt

    def __array__(self, *args, **keywords):
        raise KeyboardInterrupt


def test_keyboard_interrupt_propagates():
    for method in ("__dlpack__", "__dlpack_device__"):
        with pytest.raises(KeyboardInterrupt):
            regard.attention(Q, Interrupted(method), V)
    with pytest.raises(KeyboardInterrupt):
        regard.attention(Q, K, V, softmax_scale=Interrupted(""))

    class ArrayLike:
        __array__ = Interrupted.__array__

    with pytest.raises(KeyboardInterrupt):
        regard.attention(Q, K, V, sinks=ArrayLike())
