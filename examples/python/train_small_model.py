"""A small transformer learns to copy what stood some places before; attention is regard's.

    python train_small_model.py
"""

import torch
from torch import nn

import regard.torch


class Block(nn.Module):
    """A decoder's block: grouped heads, causal attention, a feed-forward part."""

    def __init__(self, width, heads, heads_kv):
        super().__init__()
        self.heads, self.heads_kv, self.depth = heads, heads_kv, width // heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * heads_kv * self.depth)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(),
                                 nn.Linear(2 * width, width))

    def forward(self, x):
        batch, rows, width = x.shape
        y = self.norm1(x)
        q = self.q(y).view(batch, rows, self.heads, self.depth).transpose(1, 2)
        kv = self.kv(y).view(batch, rows, 2, self.heads_kv, self.depth).permute(2, 0, 3, 1, 4)
        mixed = regard.torch.scaled_dot_product_attention(q, kv[0], kv[1], is_causal=True,
                                                          enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, rows, width))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, vocabulary=16, length=32, width=64):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(Block(width, 4, 2), Block(width, 4, 2))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.blocks(x))


torch.manual_seed(0)
model, back = Model(), 4
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
first = last = None
for step in range(100):
    ids = torch.randint(0, 16, (32, 32))
    logits = model(ids)
    loss = nn.functional.cross_entropy(logits[:, back:].flatten(0, 1), ids[:, :-back].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    last = float(loss.detach())
    first = last if first is None else first
    if step % 20 == 0:
        print(f"step {step:3}  loss {last:.3f}")
print(f"loss {first:.3f} -> {last:.3f}")
assert last < 0.2 * first
