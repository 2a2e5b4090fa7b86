"""out_amax: the largest magnitude of a forward's output before it is rounded."""

import ml_dtypes
import numpy as np
import pytest
import regard


def make(dtype, queries=9, keys=33, seed=7):
    rng = np.random.default_rng(seed)
    shapes = [(2, 4, queries, 24), (2, 2, keys, 24), (2, 2, keys, 24)]
    return [rng.standard_normal(shape).astype(np.float32).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("backend", ["math", "flash", "efficient"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("queries", [1, 9, 70])
def test_it_is_that_of_out(backend, dtype, queries):
    q, k, v = make(dtype, queries)
    amax = np.full(1, 1e9, np.float32)
    wide = np.empty(q.shape, np.float32)
    regard.attention(q, k, v, out=wide, backends=backend)
    regard.attention(q, k, v, out_amax=amax, backends=backend)
    # float32 inputs: to the bit; others compute the same sums before they round
    assert amax[0] == np.abs(wide).max()


def test_it_is_taken_before_the_output_saturates():
    q, k, _ = make(ml_dtypes.float8_e4m3fn)
    v = np.full(k.shape, 300, ml_dtypes.float8_e4m3fn)
    amax, out = np.zeros(1, np.float32), np.empty(q.shape, ml_dtypes.float8_e4m3fn)
    regard.attention(q, k, v, descale_v=4.0, out=out, out_amax=amax)
    assert np.abs(out.astype(np.float32)).max() == 448
    assert abs(amax[0] - 4 * v.astype(np.float32).max()) < 1e-3


def test_nan_shows_and_nothing_is_zero():
    q, k, v = make(np.float32)
    amax = np.ones(1, np.float32)
    v[1, 1, 3, 5] = np.nan
    regard.attention(q, k, v, out_amax=amax)
    assert np.isnan(amax[0])
    regard.attention(q[:, :, :0], k, v, out_amax=amax)
    assert amax[0] == 0


def test_a_backward_follows():
    q, k, v = make(np.float32)
    amax = np.zeros(1, np.float32)
    out, saved = regard.attention(q, k, v, return_saved=True, out_amax=amax)
    plain, also = regard.attention(q, k, v, return_saved=True)
    assert amax[0] == np.abs(out).max() and out.tobytes() == plain.tobytes()
    mine = regard.attention_backward(out, q, k, v, out, saved)
    want = regard.attention_backward(out, q, k, v, out, also)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(mine[:3], want[:3], strict=True))


def test_what_is_no_place_for_it():
    q, k, v = make(np.float32)
    for wrong in (np.zeros(2, np.float32), np.zeros(1), np.zeros((1, 1), np.float32)):
        with pytest.raises(ValueError, match=r"out_amax .* must be an aligned float32 array of shape \(1,\)"):
            regard.attention(q, k, v, out_amax=wrong)
