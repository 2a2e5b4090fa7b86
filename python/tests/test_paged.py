"""Keys in pages, in entries of a cache, and rows that are appended to them."""

import numpy as np
import pytest

import regard

PAGE = 4
RNG = np.random.default_rng(7)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def gathered(pages, table):
    """[batch, kv heads, keys, head_dim] of pages [pages, kv heads, page size, head_dim]."""
    return np.stack([np.concatenate([pages[max(n, 0)] for n in row], axis=1) for row in table])


TABLE = np.array([[5, 2, 0], [1, 4, -1]], np.int32)
LENGTHS = [11, 6]


def caches(layout="BHSD"):
    k, v = normal(7, 2, PAGE, 8), normal(7, 2, PAGE, 8)
    own = [x if layout == "BHSD" else np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (k, v)]
    return k, v, own


@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
@pytest.mark.parametrize("backend", ["flash", "efficient", "math"])
def test_pages_are_the_batch(layout, backend):
    k, v, own = caches(layout)
    q = normal(2, 6, 3, 8)
    turned = q if layout == "BHSD" else np.ascontiguousarray(q.transpose(0, 2, 1, 3))
    out, lse = regard.attention(turned, *own, page_table=TABLE, seqlens_kv=LENGTHS, is_causal=True,
                                diagonal="bottom_right", layout=layout, backends=backend,
                                return_lse=True)
    expected, expected_lse = regard.attention(
        q, gathered(k, TABLE), gathered(v, TABLE), seqlens_kv=LENGTHS, is_causal=True,
        diagonal="bottom_right", backends=backend, return_lse=True)
    if layout == "BSHD":
        out = out.transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(lse, expected_lse)


def test_queries_may_be_packed():
    k, v, _ = caches()
    rows = normal(5, 6, 8)
    out = regard.attention(rows, k, v, cu_seqlens_q=[0, 2, 5], page_table=TABLE,
                           seqlens_kv=LENGTHS, is_causal=True, diagonal="bottom_right")
    for b, part in enumerate((slice(0, 2), slice(2, 5))):
        one = regard.attention(rows[part].transpose(1, 0, 2)[None], k, v, page_table=TABLE[b:b + 1],
                               seqlens_kv=LENGTHS[b:b + 1], is_causal=True, diagonal="bottom_right")
        np.testing.assert_array_equal(out[part], one[0].transpose(1, 0, 2))


def test_scores_have_the_keys_of_all_pages():
    k, v, _ = caches()
    _, scores = regard.attention(normal(2, 2, 3, 8), k, v, page_table=TABLE, seqlens_kv=LENGTHS,
                                 return_scores="probs")
    assert scores.shape == (2, 2, 3, 12)
    assert not scores[0, :, :, 11:].any() and not scores[1, :, :, 6:].any()


def test_entries_of_a_cache():
    k, v = normal(5, 2, 9, 8), normal(5, 2, 9, 8)
    q = normal(2, 2, 3, 8)
    out = regard.attention(q, k, v, cache_batch_idx=[3, 0])
    np.testing.assert_array_equal(out, regard.attention(q, k[[3, 0]], v[[3, 0]]))


def test_rows_are_appended_in_place():
    k, v, _ = caches()
    before, new = k.copy(), normal(2, 2, 1, 8)
    q = normal(2, 2, 1, 8)
    out = regard.attention(q, k, v, page_table=TABLE, seqlens_kv=LENGTHS, k_new=new, v_new=2 * new)
    before[0, :, 3], before[4, :, 2] = new[0, :, 0], new[1, :, 0]  # rows 11 and 6
    np.testing.assert_array_equal(k, before)
    again = regard.attention(q, k, v, page_table=TABLE, seqlens_kv=[12, 7])
    np.testing.assert_array_equal(out, again)


def refused(match, **keywords):
    k, v, _ = caches()
    arguments = dict(q=normal(2, 2, 1, 8), k=k, v=v, page_table=TABLE, seqlens_kv=LENGTHS)
    arguments.update(keywords)
    kept = [arguments[name].copy() for name in ("k", "v")]
    with pytest.raises(ValueError, match=match):
        regard.attention(**arguments)
    for name, before in zip(("k", "v"), kept):
        np.testing.assert_array_equal(arguments[name], before)


def test_bad_input_is_refused_before_anything_is_written():
    new = normal(2, 2, 1, 8)
    refused(r"page_table\[0,1\] \(7\), expected 0 to 6", page_table=[[5, 7, 0], [1, 4, -1]])
    refused(r"page_table\[1,1\] \(-1\)", page_table=[[5, 2, 0], [1, -1, -1]])
    refused("seqlens_kv", seqlens_kv=None)
    refused(r"seqlens_kv\[0\] \(13\), expected 0 to 12", seqlens_kv=[13, 1])
    refused(r"seqlens_kv\[0\] \(12\), expected 0 to 11", seqlens_kv=[12, 1], k_new=new, v_new=new)
    refused("v_new", k_new=new)
    refused("append to page 0", page_table=[[5, 2, 0], [1, 0, -1]], k_new=new, v_new=new)
    refused("k and v must be taken where they are", k=caches()[0][..., ::-1], k_new=new, v_new=new)
    readonly = caches()[0]
    readonly.flags.writeable = False
    refused("k", k=readonly, k_new=new, v_new=new)
    refused("cache_batch_idx", cache_batch_idx=[0, 1])
    refused("cu_seqlens_kv", q=normal(3, 2, 8), cu_seqlens_q=[0, 1, 3], cu_seqlens_kv=[0, 1, 3])


def test_no_backward_takes_them():
    q = normal(2, 2, 1, 8)
    k, v, _ = caches()
    with pytest.raises(regard.NoBackendError, match="paged"):
        regard.attention(q, k, v, page_table=TABLE, seqlens_kv=LENGTHS, return_saved=True)
    with pytest.raises(TypeError, match="page_table"):
        regard.attention_backward(q, q, q, q, q, page_table=TABLE)
