"""regard.Lengths, unpad and pad."""

import copy
import pickle

import numpy as np
import pytest

import regard

MASKS = {
    "right": [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]],
    "left": [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1], [0, 1, 1, 1, 1]],
    "holes": [[1, 0, 1, 0, 1], [0, 1, 1, 0, 1], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0]],
    "none": [[0, 0], [0, 0]],
}


@pytest.mark.parametrize("dtype", [bool, np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("name", MASKS)
def test_mask(name, dtype):
    mask = np.array(MASKS[name]).astype(dtype)
    lengths = regard.Lengths(mask=mask)
    assert np.array_equal(lengths.indices, np.flatnonzero(mask))
    counts = mask.astype(int).sum(1)
    assert lengths.cu_seqlens.tolist() == [0, *np.cumsum(counts)]
    assert lengths.cu_seqlens.dtype == np.int32 and lengths.indices.dtype == np.int64
    assert (lengths.batch, lengths.seqlen) == mask.shape
    assert lengths.max_seqlen == counts.max() and lengths.total == counts.sum()
    assert lengths == regard.Lengths(mask=np.asfortranarray(mask))
    assert lengths == regard.Lengths(mask=MASKS[name])


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("row", [(), (3,), (2, 4), (2, 2, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, bool])
def test_unpad_and_pad(name, row, dtype):
    mask = np.array(MASKS[name], bool)
    x = (np.random.default_rng(0).standard_normal((*mask.shape, *row)) * 9).astype(dtype)
    packed, lengths = regard.unpad(x, mask=mask)
    assert np.array_equal(packed, x[mask]) and packed.dtype == x.dtype
    padded = regard.pad(packed, lengths)
    expected = np.zeros_like(x)
    expected[mask] = x[mask]
    assert padded.dtype == x.dtype and np.array_equal(padded, expected)
    assert not np.signbit(padded[~mask]).any()
    again, same = regard.unpad(x, lengths=lengths)
    assert same is lengths and np.array_equal(again, packed)


def test_strides():
    mask = np.array(MASKS["holes"], bool)
    x = np.random.default_rng(0).standard_normal((5, 3, 4, 6)).astype(np.float32)
    for view in (x.transpose(2, 0, 1, 3), x.transpose(2, 0, 3, 1), x.transpose(2, 0, 1, 3)[..., ::2],
                 x.transpose(2, 0, 1, 3)[..., ::-1], x[:, :, :, 0].transpose(2, 0, 1)):
        packed, lengths = regard.unpad(view, mask=mask)
        assert np.array_equal(packed, view[mask])
        assert np.array_equal(regard.pad(packed[:, ::-1], lengths)[mask], packed[:, ::-1])


def test_seqlens():
    x = np.arange(24.0).reshape(3, 8)
    packed, lengths = regard.unpad(x, seqlens=[2, 0, 8])
    assert packed.tolist() == [0.0, 1.0, *range(16, 24)]
    assert lengths == regard.Lengths(mask=np.arange(8) < np.array([[2], [0], [8]]))
    assert repr(lengths) == "<regard.Lengths: 3 sequences of at most 8 rows, 10 of 3 x 8 positions>"
    assert hash(lengths) == hash(regard.Lengths(seqlens=[2, 0, 8], seqlen=8))
    assert lengths != regard.Lengths(seqlens=[2, 1, 8], seqlen=8) and lengths != 3


def test_position_ids():
    ids = [[0, 1, 2, 0, 1], [0, 0, 1, 2, 3]]
    x = np.arange(10).reshape(2, 5)
    packed, lengths = regard.unpad(x, position_ids=ids)
    assert packed.tolist() == list(range(10)) and lengths.num_sequences == 4
    assert lengths.cu_seqlens.tolist() == [0, 3, 5, 6, 10] and lengths.max_seqlen == 4
    assert np.array_equal(regard.pad(packed, lengths), x)


def test_lengths_serve_both_sides_of_a_call():
    rng = np.random.default_rng(0)
    mask = np.array(MASKS["holes"], bool)
    q, k, v = (rng.standard_normal((4, 5, 2, 8)).astype(np.float32) for _ in range(3))
    packed_q, lengths = regard.unpad(q, mask=mask)
    packed_k, packed_v = (regard.unpad(x, lengths=lengths)[0] for x in (k, v))
    out = regard.pad(regard.attention(packed_q, packed_k, packed_v, lengths=lengths),
                     lengths)
    starts = lengths.cu_seqlens
    by_starts = regard.attention(packed_q, packed_k, packed_v, cu_seqlens_q=starts,
                                 cu_seqlens_kv=starts)
    assert np.array_equal(out[mask], by_starts) and not out[~mask].any()
    expected = regard.attention(q, k, v, layout="BSHD", attn_mask=mask[:, None, None])
    np.testing.assert_allclose(out[mask], expected[mask], atol=1e-5)

    keys = regard.Lengths(seqlens=[3, 1, 2, 2], seqlen=4)
    k8 = rng.standard_normal((8, 2, 8)).astype(np.float32)
    out, saved = regard.attention(packed_q, k8, k8, lengths=lengths, lengths_kv=keys,
                                  return_saved=True)
    assert np.array_equal(out, regard.attention(packed_q, k8, k8, cu_seqlens_q=starts,
                                                cu_seqlens_kv=keys.cu_seqlens))
    grads = regard.attention_backward(np.ones_like(out), packed_q, k8, k8, out, saved,
                                      lengths=lengths, lengths_kv=keys)
    assert grads.d_k.shape == k8.shape
    assert regard.explain(packed_q, k8, k8, lengths=lengths, lengths_kv=keys).ok


def test_the_arrays_are_read_only_and_outlive_their_lengths():
    indices = regard.Lengths(mask=MASKS["holes"]).indices
    with pytest.raises(ValueError, match="read-only"):
        indices[0] = 1
    assert indices.tolist() == np.flatnonzero(MASKS["holes"]).tolist()


X = np.zeros((2, 3, 4), np.float32)
BAD = {
    "no way": (lambda: regard.unpad(X), TypeError, "one of mask, seqlens, position_ids and lengths"),
    "two ways": (lambda: regard.unpad(X, mask=np.ones((2, 3)), seqlens=[1, 2]), TypeError,
                 "mask, seqlens"),
    "another mask": (lambda: regard.unpad(X, mask=np.ones((2, 4), bool)), ValueError,
                     r"must begin with 2,4"),
    "a float mask": (lambda: regard.unpad(X, mask=np.ones((2, 3))), ValueError, "dtype of mask"),
    "a flat mask": (lambda: regard.unpad(X, mask=np.ones(3, bool)), ValueError, "rank of mask"),
    "a length too large": (lambda: regard.unpad(X, seqlens=[1, 4]), ValueError,
                           r"seqlens\[1\] \(4\), expected 0 to 3"),
    "a negative length": (lambda: regard.unpad(X, seqlens=[-1, 2]), ValueError,
                          r"seqlens\[0\] \(-1\)"),
    "positions from 1": (lambda: regard.unpad(X, position_ids=[[1, 2, 3], [0, 1, 2]]), ValueError,
                         r"position_ids\[0,0\] \(1\), expected 0"),
    "a gap": (lambda: regard.unpad(X, position_ids=[[0, 1, 3], [0, 1, 2]]), ValueError,
              r"position_ids\[0,2\] \(3\), expected 0 .*or 2"),
    "rank 1": (lambda: regard.unpad(np.zeros(3), seqlens=[1]), ValueError, "batch, seqlen"),
    "no lengths": (lambda: regard.pad(X, [0, 2]), TypeError, r"lengths .* must be a regard.Lengths"),
    "other rows": (lambda: regard.pad(X, regard.Lengths(seqlens=[1], seqlen=3)), ValueError,
                   "must begin with 1, the rows"),
    "seqlen alone": (lambda: regard.Lengths(mask=np.ones((2, 3), bool), seqlen=3), TypeError,
                     "seqlen"),
    "no seqlen": (lambda: regard.Lengths(seqlens=[1]), TypeError, "seqlen is missing"),
    "lengths_kv alone": (lambda: regard.attention(X, X, X, lengths_kv=regard.Lengths(
        seqlens=[2], seqlen=2)), ValueError, "lengths is missing"),
    "no such lengths": (lambda: regard.attention(X, X, X, lengths=[0, 2]), TypeError,
                        "lengths .*must be a regard.Lengths"),
    "too many rows": (lambda: regard.attention(X, X, X, lengths=regard.Lengths(
        seqlens=[3], seqlen=3)), ValueError, r"cu_seqlens_q\[1\] \(3\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("made", [
    *({"mask": mask} for mask in MASKS.values()),
    {"seqlens": [2, 0, 5], "seqlen": 5},
    {"position_ids": [[0, 1, 0], [0, 0, 1]]},
    {"position_ids": [[0, 1, 2], [0, 1, 2]]},
    {"mask": np.zeros((2, 0), bool)},
    {"position_ids": np.zeros((2, 0), int)},
])
def test_lengths_are_pickled_and_copied(made):
    lengths = regard.Lengths(**made)
    for copied in (pickle.loads(pickle.dumps(lengths)), copy.deepcopy(lengths), copy.copy(lengths)):
        assert copied == lengths and repr(copied) == repr(lengths)
        assert np.array_equal(copied.indices, lengths.indices)
        assert copied.cu_seqlens.tolist() == lengths.cu_seqlens.tolist()


def test_a_state_that_is_no_lengths_is_refused():
    made = regard.Lengths.__new__(regard.Lengths)
    with pytest.raises(ValueError, match="position_ids"):
        made.__setstate__(("position_ids", np.array([[1, 2]])))
