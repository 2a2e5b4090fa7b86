"""Attention variants as short Python functions, with gradients and without compiling them.

    python flex_attention.py

Each variant is checked against the same computation with a dense tensor of scores.
"""

import math

import torch

from regard.torch import and_masks, create_block_mask, flex_attention, or_masks

BATCH, HEADS, LENGTH, DEPTH = 1, 4, 256, 32


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def window(b, h, q_idx, kv_idx):
    return q_idx - kv_idx < 64


def prefix(b, h, q_idx, kv_idx):
    return kv_idx < 16


# Lengths of the documents in the row: each attends to itself alone.
documents = torch.repeat_interleave(torch.arange(4), torch.tensor([40, 100, 16, 100]))


def same_document(b, h, q_idx, kv_idx):
    return documents[q_idx] == documents[kv_idx]


slopes = torch.exp2(-8.0 * torch.arange(1, HEADS + 1) / HEADS)


def alibi(score, b, h, q_idx, kv_idx):
    return score - slopes[h] * (q_idx - kv_idx).abs()


def softcap(score, b, h, q_idx, kv_idx):
    return 5 * torch.tanh(score / 5)


VARIANTS = {
    "sliding window, global prefix": (None, and_masks(causal, or_masks(window, prefix))),
    "prefix-LM": (None, or_masks(prefix, causal)),
    "packed documents": (None, and_masks(causal, same_document)),
    "tanh softcap": (softcap, None),
    "ALiBi": (alibi, causal),
}


def dense(q, k, v, score_mod, mask_mod):
    """The definition, with a tensor of all scores."""
    b, h, m, n = (torch.arange(x).view(shape) for x, shape in (
        (q.shape[0], (-1, 1, 1, 1)), (q.shape[1], (-1, 1, 1)), (q.shape[2], (-1, 1)), (k.shape[2], (-1,))))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if score_mod is not None:
        scores = score_mod(scores, b, h, m, n)
    if mask_mod is not None:
        scores = torch.where(mask_mod(b, h, m, n), scores, -math.inf)
    return scores.softmax(-1) @ v


def run_variants():
    q, k, v = torch.randn(3, BATCH, HEADS, LENGTH, DEPTH)
    for name, (score_mod, mask_mod) in VARIANTS.items():
        blocks = mask_mod and create_block_mask(mask_mod, None, None, LENGTH, LENGTH, BLOCK_SIZE=32)
        out = flex_attention(q, k, v, score_mod=score_mod, block_mask=blocks)
        torch.testing.assert_close(out, dense(q, k, v, score_mod, mask_mod), rtol=1e-4, atol=1e-4)
        skipped = f"{blocks.sparsity():3.0f} % of the blocks skipped" if blocks else ""
        print(f"{name:30} {skipped}")


def verify_tree():
    """The drafts of speculative decoding, a tree of 7 tokens behind 100 keys of a cache: each sees the cache,
    its ancestors and itself."""
    parents, cached = [-1, 0, 0, 1, 1, 2, 5], 100
    sees = torch.eye(len(parents), dtype=torch.bool)
    for draft, parent in enumerate(parents):
        if parent >= 0:
            sees[draft] |= sees[parent]

    def tree(b, h, q_idx, kv_idx):
        return (kv_idx < cached) | sees[q_idx, (kv_idx - cached).clamp(min=0)]

    q = torch.randn(BATCH, HEADS, len(parents), DEPTH)
    k, v = torch.randn(2, BATCH, HEADS, cached + len(parents), DEPTH)
    out = flex_attention(q, k, v, block_mask=create_block_mask(tree, None, None, q.shape[2], k.shape[2]))
    torch.testing.assert_close(out, dense(q, k, v, None, tree), rtol=1e-4, atol=1e-4)
    path = [0, 2, 5, 6]  # a branch alone has the results that it has in the tree
    keys = [*range(cached), *(cached + x for x in path)]
    alone = flex_attention(q[:, :, path], k[:, :, keys], v[:, :, keys], block_mask=create_block_mask(
        lambda b, h, q_idx, kv_idx: kv_idx <= q_idx + cached, None, None, len(path), len(keys)))
    torch.testing.assert_close(out[:, :, path], alone, rtol=1e-4, atol=1e-4)
    print(f"{'tree verification':30} {len(parents)} drafts in one call")


def train_relative_bias():
    """A bias for each head and distance is learned from the results of attention that has one."""
    wanted = torch.randn(HEADS, 17)
    learned = torch.zeros(HEADS, 17, requires_grad=True)

    def biased(table):
        return lambda score, b, h, q_idx, kv_idx: score + table[h, (q_idx - kv_idx).clamp(-8, 8) + 8]

    optimizer = torch.optim.Adam([learned], lr=0.1)
    first = last = None
    for _ in range(60):
        q, k, v = torch.randn(3, BATCH, HEADS, 96, DEPTH)
        target = dense(q, k, v, biased(wanted), None)
        loss = (flex_attention(q, k, v, score_mod=biased(learned)) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
        first = last if first is None else first
    print(f"{'learned relative bias':30} loss {first:.5f} -> {last:.5f}")
    assert last < 0.05 * first


torch.manual_seed(0)
run_variants()
verify_tree()
train_relative_bias()
