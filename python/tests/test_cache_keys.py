"""Rows of a cache that are no keys, trees of drafts, and prefixes that sequences share."""

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
    (dict(shared_prefix_kv=16), "page_table .absent. must be given"),
    (dict(shared_prefix_kv=-1), "shared_prefix_kv .-1. must be >= 0"),
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


def forks(dtype="f32", **options):
    """A prompt of 50 rows, and 3 forks with rows of their own."""
    cache = regard.PagedKVCache(num_pages=32, page_size=16, num_kv_heads=2, head_dim=8, dtype=dtype,
                                **options)
    prompt = cache.allocate()
    cache.append(prompt, normal(2, 50, 8), normal(2, 50, 8))
    users = [cache.fork(prompt) for _ in range(3)]
    for n, user in enumerate(users):
        cache.append(user, normal(2, 3 * n, 8), normal(2, 3 * n, 8))
    return cache, users


@pytest.mark.parametrize("dtype", ["f32", "i8"])
@pytest.mark.parametrize("queries, new", [(1, 1), (1, 0), (4, 4), (20, 0)])
def test_forks_attend_to_their_prefix_at_once(dtype, queries, new):
    cache, users = forks(dtype)
    q = normal(3, 4, queries, 8)
    rows = {"k_new": normal(3, 2, new, 8), "v_new": normal(3, 2, new, 8)} if new else {}
    expected, expected_lse = cache.attend(q, users, return_lse=True, is_causal=True, **rows)
    with regard.trace() as traced:  # rows that were appended are there now
        out, lse = cache.attend(q, users, return_lse=True, is_causal=True, shared_prefix=True)
    assert len(traced.records) == 2
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(lse, expected_lse, rtol=2e-5, atol=2e-6)


def test_rows_are_appended_behind_a_shared_prefix():
    cache, users = forks()
    q, new = normal(3, 4, 1, 8), normal(3, 2, 1, 8)
    out = cache.attend(q, users, k_new=new, v_new=new, is_causal=True, shared_prefix=True)
    assert [cache.length(user) for user in users] == [51, 54, 57]
    expected = cache.attend(q, users, is_causal=True)
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(cache.rows(users[0])[0][:, -1], new[0, :, 0])


def test_sequences_without_a_common_page_are_one_call():
    cache, _ = forks()
    others = [cache.allocate() for _ in range(2)]
    for other in others:
        cache.append(other, normal(2, 20, 8), normal(2, 20, 8))
    q = normal(2, 4, 1, 8)
    with regard.trace() as traced:
        out = cache.attend(q, others, shared_prefix=True)
    assert len(traced.records) == 1
    np.testing.assert_array_equal(out, cache.attend(q, others))


def test_a_shared_prefix_is_refused_by_name():
    cache, users = forks()
    q = normal(3, 4, 1, 8)
    with pytest.raises(ValueError, match="attn_mask .given. is not supported"):
        cache.attend(q, users, shared_prefix=True, attn_mask=np.ones((1, 1, 1, 64), bool))
    with pytest.raises(TypeError, match="shared_prefix_kv"):
        cache.attend(q, users, shared_prefix_kv=16)
    rows = regard.KVCache(batch_size=2, capacity=8, num_kv_heads=2, head_dim=8, dtype="f32")
    with pytest.raises(ValueError, match="shared_prefix .True."):
        rows.attend(normal(1, 4, 1, 8), [rows.allocate()], shared_prefix=True)
    with pytest.raises(ValueError, match="page_table .absent. must be given"):
        regard.explain(q, q, q, shared_prefix_kv=16)
