"""regard.create_block_mask: its blocks are those of a mask of elements, and calls with it are calls without."""

import gc
import time
import weakref

import numpy as np
import pytest

import regard
from regard.score_functions import b, captured, h, kv_idx, q_idx, q_pos

rng = np.random.default_rng(3)
BATCH, HEADS, QUERIES, KEYS = 2, 3, 75, 110
DOCUMENTS = np.sort(rng.integers(0, 4, (BATCH, KEYS), dtype=np.int32), axis=1)
WIDTHS = np.array([5, 30, 70])
MASKS = {
    "causal": (kv_idx <= q_idx, lambda b, h, i, j: j <= i),
    "window": ((kv_idx <= q_pos) & (q_pos - kv_idx < 20), lambda b, h, i, j: (j <= i + 35) & (i + 35 - j < 20)),
    "prefix": ((kv_idx < 17) | (kv_idx <= q_idx), lambda b, h, i, j: (j < 17) | (j <= i)),
    "documents": (captured(DOCUMENTS)[b, q_idx] == captured(DOCUMENTS)[b, kv_idx],
                  lambda b, h, i, j: DOCUMENTS[b, i] == DOCUMENTS[b, j]),
    "heads": (abs(q_idx - kv_idx) < captured(WIDTHS)[h], lambda b, h, i, j: abs(i - j) < WIDTHS[h]),
    "elements": ((q_idx * kv_idx + b) % 5 == 3, lambda b, h, i, j: (i * j + b) % 5 == 3),
    "nothing": (kv_idx < 0, lambda b, h, i, j: j < 0 * i),
}


def elements(function, batch=BATCH, heads=HEADS, queries=QUERIES, keys=KEYS):
    at = np.ix_(*map(np.arange, (batch, heads, queries, keys)))
    return np.broadcast_to(function(*at), (batch, heads, queries, keys))


def blocks_of(visible, size_q, size_kv):
    """By looking at every element."""
    batch, heads, queries, keys = visible.shape
    found = np.empty((batch, heads, -(-queries // size_q), -(-keys // size_kv)), np.uint8)
    for i in range(found.shape[2]):
        for j in range(found.shape[3]):
            block = visible[:, :, i * size_q:(i + 1) * size_q, j * size_kv:(j + 1) * size_kv]
            found[:, :, i, j] = block.any((2, 3)).astype(np.uint8) + block.all((2, 3))
    return found


def make(name, **options):
    return regard.create_block_mask(MASKS[name][0], **{
        **dict(seqlen_q=QUERIES, seqlen_kv=KEYS, batch=BATCH, num_heads=HEADS, diagonal="bottom_right"), **options})


@pytest.mark.parametrize("size", [16, (7, 32), 128])
@pytest.mark.parametrize("name", MASKS)
def test_blocks_are_those_of_elements(name, size):
    mask = make(name, block_size=size)
    sizes = size if isinstance(size, tuple) else (size, size)
    expected = blocks_of(elements(MASKS[name][1]), *sizes)
    assert np.array_equal(np.broadcast_to(mask.blocks, expected.shape), expected)
    assert mask.block_size == sizes and mask.shape == (*mask.blocks.shape[:2], QUERIES, KEYS)
    assert mask.empty == np.mean(mask.blocks == 0) and mask.partial == np.mean(mask.blocks == 1)


@pytest.mark.parametrize("name", MASKS)
def test_calls_are_those_without_it(name):
    q = rng.standard_normal((BATCH, HEADS, QUERIES, 16), dtype=np.float32)
    k, v = rng.standard_normal((2, BATCH, HEADS, KEYS, 16), dtype=np.float32)
    mask = make(name, block_size=(16, 32))
    options = dict(mask_function=MASKS[name][0], diagonal="bottom_right")
    out, saved = regard.attention(q, k, v, block_mask=mask, return_saved=True, **options)
    alone, saved_alone = regard.attention(q, k, v, attn_mask=elements(MASKS[name][1]), return_saved=True)
    np.testing.assert_allclose(out, alone, rtol=1e-5, atol=1e-5)
    grads = regard.attention_backward(out, q, k, v, out, saved, block_mask=mask, **options)
    expected = regard.attention_backward(out, q, k, v, alone, saved_alone, attn_mask=elements(MASKS[name][1]))
    np.testing.assert_allclose(grads.d_q, expected.d_q, rtol=1e-4, atol=1e-5)
    assert "block_mask=16,32" in regard.explain(q, k, v, block_mask=mask, **options).to_dict()["case"]


def test_calls_skip_what_it_hides():
    """Even where the mask function would show it, which no caller should do."""
    q = rng.standard_normal((1, 1, 64, 16), dtype=np.float32)
    hides_all = regard.create_block_mask("kv_idx<0", seqlen_q=64, seqlen_kv=64, block_size=32)
    assert not regard.attention(q, q, q, mask_function="(q_idx*kv_idx)%5!=7", block_mask=hides_all).any()


def test_shorter_calls():
    mask = make("prefix", block_size=16)
    assert np.array_equal(mask.view(50, 110), mask.blocks[:, :, :4])
    q = rng.standard_normal((BATCH, HEADS, 40, 16), dtype=np.float32)
    out = regard.attention(q, q, q, mask_function=MASKS["prefix"][0], block_mask=mask)
    visible = elements(MASKS["prefix"][1], queries=40, keys=40)
    np.testing.assert_allclose(out, regard.attention(q, q, q, attn_mask=visible), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="lengths .76 and 110. must be at most"):
        mask.view(76, 110)
    with pytest.raises(ValueError, match="block_mask: .*the function reads q_len, kv_len or q_pos"):
        regard.attention(q, q, q, mask_function=MASKS["window"][0], diagonal="bottom_right",
                         block_mask=make("window", block_size=16))


def test_packed_calls():
    rows = rng.standard_normal((50, 2, 16), dtype=np.float32)
    mask = regard.create_block_mask("kv_idx<4|kv_idx<=q_idx", seqlen_q=100, seqlen_kv=100, block_size=8)
    options = dict(mask_function="kv_idx<4|kv_idx<=q_idx", cu_seqlens_q=[0, 20, 50], cu_seqlens_kv=[0, 20, 50])
    np.testing.assert_allclose(regard.attention(rows, rows, rows, block_mask=mask, **options),
                               regard.attention(rows, rows, rows, **options), rtol=1e-5, atol=1e-5)


def test_texts():
    mask = regard.create_block_mask("kv_idx<=q_idx", seqlen_q=512, seqlen_kv=512)
    assert str(mask) == repr(mask) == "<regard.BlockMask of 128 x 128, [1,1,4,4], 37.5 % empty, 25 % partial>"
    assert mask.to_text() == "+   \n#+  \n##+ \n###+\n"
    heads = make("heads", block_size=32)
    assert len({heads.to_text(h=at) for at in range(HEADS)}) == HEADS
    with pytest.raises(IndexError, match="h .3. must be 0 or more and less than 3"):
        heads.to_text(h=3)


def test_blocks_share_memory_and_keep_it():
    mask = make("documents", block_size=16)
    blocks, part = mask.blocks, mask.view(20, 20)
    assert np.shares_memory(blocks, part) and np.shares_memory(blocks, mask.blocks)
    assert not blocks.flags.writeable and blocks.dtype == np.uint8
    before, alive = blocks.copy(), weakref.ref(mask)
    del mask
    gc.collect()
    assert alive() is not None and np.array_equal(blocks, before)
    del blocks, part
    gc.collect()
    assert alive() is None


def test_diagonals_and_empty_extents():
    def make_one(**options):
        return regard.create_block_mask("kv_idx<=q_pos", seqlen_q=8, seqlen_kv=12, block_size=1, **options).blocks

    places = np.arange(12) - np.arange(8)[:, None]
    for diagonal, shift in (("top_left", 0), ("bottom_right", 4), (-3, -3)):
        assert np.array_equal(make_one(diagonal=diagonal)[0, 0] == 2, places <= shift)
    empty = regard.create_block_mask("kv_idx<=q_idx", seqlen_q=0, seqlen_kv=3)
    assert empty.blocks.shape == (1, 1, 0, 1) and empty.empty == 0.0 and empty.to_text() == ""


REFUSED = {
    "a text": (dict(mask_function="kv_idx<"), ValueError, "mask_function: "),
    "a number": (dict(mask_function=3), TypeError, "mask_function .3. must be text"),
    "no bool": (dict(mask_function="kv_idx"), ValueError, "must be a bool"),
    "none": (dict(mask_function=None), TypeError, "mask_function"),
    "no captured": (dict(mask_function="i0[q_idx]==1"), ValueError, "captured0 .absent. must be given"),
    "captured": (dict(captured=3), TypeError, "captured .3. must be a list"),
    "an index": (dict(mask_function="i0[q_idx]==1", captured=[np.zeros(3, np.int32)]), ValueError, "expected 0 to 2"),
    "block_size": (dict(block_size=0), ValueError, "block_size_q .0. must be 1"),
    "block_sizes": (dict(block_size=(1, 2, 3)), ValueError, "must be an integer, or .queries, keys."),
    "seqlen": (dict(seqlen_q=-1), ValueError, "seqlen_q .-1. must be 0 or more"),
    "diagonal": (dict(diagonal="left"), ValueError, "diagonal .'left'. must be 'top_left'"),
    "no diagonal": (dict(mask_function="kv_idx<=q_pos", seqlen_kv=9), ValueError, "diagonal"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    given, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        regard.create_block_mask(**{**dict(mask_function="kv_idx<9", seqlen_q=8, seqlen_kv=8), **given})


def test_refusals_of_calls():
    x = np.zeros((1, 1, 75, 16), np.float32)
    mask = regard.create_block_mask("kv_idx<=q_idx", seqlen_q=75, seqlen_kv=75)
    with pytest.raises(ValueError, match="mask_function .absent. must be given with block_mask"):
        regard.attention(x, x, x, block_mask=mask)
    with pytest.raises(ValueError, match="block_size_q .64. must be left out: block_mask has blocks of 128"):
        regard.attention(x, x, x, mask_function="kv_idx<=q_idx", block_mask=mask, block_size_q=64)
    regard.attention(x, x, x, mask_function="kv_idx<=q_idx", block_mask=mask, block_size_q=128)


LONG = 32768
LONG_DOCUMENTS = np.sort(rng.integers(0, 40, LONG, dtype=np.int32))
LONG_MASKS = {
    "causal": kv_idx <= q_idx,
    "window": (kv_idx <= q_idx) & (q_idx - kv_idx < 4096),
    "prefix": (kv_idx < 1000) | (kv_idx <= q_idx),
    "documents": (captured(LONG_DOCUMENTS)[q_idx] == captured(LONG_DOCUMENTS)[kv_idx]) & (kv_idx <= q_idx),
}


@pytest.mark.parametrize("name", LONG_MASKS)
def test_long_masks_are_bounded(name, capsys):
    """Most of their blocks are never looked at: 2^30 elements would take seconds."""
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        mask = regard.create_block_mask(LONG_MASKS[name], seqlen_q=LONG, seqlen_kv=LONG)
        seconds.append(time.perf_counter() - began)
    with capsys.disabled():
        print(f"\n{name}: {min(seconds) * 1e3:.2f} ms, {mask}")
    assert mask.blocks.shape == (1, 1, 256, 256) and min(seconds) < 0.5
