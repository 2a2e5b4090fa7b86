"""Rows of a cache that are no keys, and trees of drafts."""

import numpy as np
import pytest

import regard

RNG = np.random.default_rng(11)
BOTTOM_RIGHT = dict(is_causal=True, diagonal="bottom_right")


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def test_keys_lie_behind_the_leftpad():
    q, k, v = normal(2, 4, 3, 8), normal(2, 2, 20, 8), normal(2, 2, 20, 8)
    k[0, :, :5] = v[0, :, :5] = np.nan
    out = regard.attention(q, k, v, seqlens_kv=[17, 20], cache_leftpad=[5, 0], **BOTTOM_RIGHT)
    for b, (begin, end) in enumerate([(5, 17), (0, 20)]):
        one = regard.attention(q[b:b + 1], k[b:b + 1, :, begin:end], v[b:b + 1, :, begin:end],
                               **BOTTOM_RIGHT)
        np.testing.assert_array_equal(out[b:b + 1], one)


@pytest.mark.parametrize("changes, message", [
    (dict(cache_leftpad=[18, 0]), r"cache_leftpad\[0\] \(18\), expected 0 to 17"),
    (dict(cache_leftpad=[0, -1]), r"cache_leftpad\[1\] \(-1\)"),
    (dict(cache_leftpad=[0, 0], seqlens_kv=None), "seqlens_kv .absent. must be given"),
    (dict(tree_mask=np.ones((1, 2, 4), bool)), "tree_mask"),
    (dict(tree_mask=np.ones((1, 3, 4), np.float32)), "dtype of tree_mask"),
])
def test_refused_by_name(changes, message):
    q, k, v = normal(2, 4, 3, 8), normal(2, 2, 20, 8), normal(2, 2, 20, 8)
    with pytest.raises(ValueError, match=message):
        regard.attention(q, k, v, **{"seqlens_kv": [17, 20], **changes})


def test_a_tree_is_the_mask_of_the_same_keys():
    parents = [-1, 0, 0, 1]
    tree = np.zeros((1, 4, 4), bool)
    for draft, parent in enumerate(parents):
        tree[0, draft] = tree[0, parent] if parent >= 0 else False
        tree[0, draft, draft] = True
    k, v = normal(2, 2, 20, 8), normal(2, 2, 20, 8)
    q, new_k, new_v = normal(2, 4, 4, 8), normal(2, 2, 4, 8), normal(2, 2, 4, 8)
    out = regard.attention(q, k, v, k_new=new_k, v_new=new_v, seqlens_kv=[9, 16], tree_mask=tree)
    mask = np.ones((2, 1, 4, 20), bool)
    for b, length in enumerate([9, 16]):
        mask[b, 0, :, length:length + 4] = tree[0]
    expected = regard.attention(q, k, v, seqlens_kv=[13, 20], attn_mask=mask)
    np.testing.assert_array_equal(out, expected)
