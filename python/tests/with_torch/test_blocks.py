"""Transformer blocks as models write them train through regard as through PyTorch's sdpa."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
import regard.torch as rt

DIM, HEADS, KV_HEADS, VOCABULARY = 48, 4, 2, 31


class Gpt2Block(nn.Module):
    """One projection makes q, k and v: views of one tensor, heads inside positions."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(DIM) for _ in range(2)])
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x, attend):
        b, s, _ = x.shape
        q, k, v = (y.view(b, s, HEADS, -1).transpose(1, 2)
                   for y in self.qkv(self.norms[0](x)).split(DIM, dim=2))
        y = attend(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, DIM)
        x = x + self.out(y)
        return x + self.mlp(self.norms[1](x))


class LlamaBlock(nn.Module):
    """Grouped heads, rotated q and k, a gated MLP."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(DIM) for _ in range(2)])
        size = DIM // HEADS
        self.q, self.kv = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, 2 * KV_HEADS * size)
        self.out = nn.Linear(DIM, DIM, bias=False)
        self.gate, self.up = nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)

    @staticmethod
    def rotate(x):
        angle = torch.arange(x.shape[2])[:, None] / 100.0 ** torch.linspace(0, 1, x.shape[3] // 2)
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack([even * angle.cos() - odd * angle.sin(),
                            even * angle.sin() + odd * angle.cos()], -1).flatten(-2)

    def forward(self, x, attend):
        b, s, _ = x.shape
        y = self.norms[0](x)
        q = self.q(y).view(b, s, HEADS, -1).transpose(1, 2)
        k, v = self.kv(y).view(b, s, 2, KV_HEADS, -1).permute(2, 0, 3, 1, 4)
        y = attend(self.rotate(q), self.rotate(k), v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, DIM))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def losses(block_type, attend, steps=8):
    torch.manual_seed(0)
    embedding, blocks = nn.Embedding(VOCABULARY, DIM), [block_type() for _ in range(2)]
    parameters = [p for module in (embedding, *blocks) for p in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)
    tokens = torch.randint(0, VOCABULARY, (3, 40))
    found = []
    for _ in range(steps):
        x = embedding(tokens[:, :-1])
        for block in blocks:
            x = block(x, attend)
        loss = F.cross_entropy((x @ embedding.weight.T).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("backend", ["flash", "efficient", "math"])
@pytest.mark.parametrize("block_type", [Gpt2Block, LlamaBlock])
def test_a_block_trains_as_on_pytorchs_sdpa(block_type, backend):
    expected = losses(block_type, F.scaled_dot_product_attention)
    assert expected[-1] < 0.8 * expected[0]
    with regard.use_policy(only=[backend]):
        found = losses(block_type, rt.scaled_dot_product_attention)
    assert found == pytest.approx(expected, rel=2e-5)
