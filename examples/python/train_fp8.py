"""The same small transformer trains with attention in bfloat16 and in 8-bit floats.

    python train_fp8.py [steps] [plot.svg]

Prints the losses, and writes a plot of them, an SVG. After 300 steps the mean losses of the last 50 lie
within 0.05 of each other.
"""

import contextlib
import sys

import torch
from torch import nn

import regard.torch

LENGTH, WIDTH, VOCABULARY, BACK = 32, 64, 16, 4


class Block(nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).bfloat16().unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = regard.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2).float())
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids):
        return self.head(self.blocks(self.tokens(ids) + self.places(torch.arange(LENGTH))))


def train(steps, recipe=None):
    """The loss of each step: the model learns to repeat what stood BACK places before, of which a
    fifth is replaced by chance, so that no loss lies below 0.99."""
    torch.manual_seed(0)
    model, losses = Model(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(steps):
        ids = torch.randint(0, VOCABULARY, (16, LENGTH))
        with regard.torch.fp8_autocast(recipe) if recipe else contextlib.nullcontext():
            logits = model(ids)
        wanted = torch.where(torch.rand(ids.shape) < 0.2, torch.randint(0, VOCABULARY, ids.shape), ids)
        loss = nn.functional.cross_entropy(logits[:, BACK:].flatten(0, 1), wanted[:, :-BACK].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if recipe:
            recipe.advance()  # the next step's scales are those of this one's largest numbers
        losses.append(float(loss.detach()))
    return losses


def plot(path, curves):
    """An SVG of the losses."""
    top = max(max(losses) for losses in curves.values())
    lines = []
    for n, (name, losses) in enumerate(curves.items()):
        color = ("#1f77b4", "#d62728", "#2ca02c")[n]
        points = " ".join(f"{40 + 560 * i / len(losses):.1f},{310 - 290 * y / top:.1f}"
                          for i, y in enumerate(losses))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{color}"/>'
                     f'<text x="470" y="{40 + 20 * n}" fill="{color}">{name}</text>')
    axes = '<path d="M40 20V310H600" fill="none" stroke="black"/>'
    labels = (f'<text x="5" y="25">{top:.1f}</text><text x="20" y="315">0</text>'
              '<text x="300" y="335">step</text>')
    with open(path, "w", encoding="utf-8") as file:
        file.write('<svg xmlns="http://www.w3.org/2000/svg" width="620" height="340" font-size="13">'
                   f'<rect width="620" height="340" fill="white"/>{axes}{labels}{"".join(lines)}</svg>\n')


if __name__ == "__main__":
    torch.set_num_threads(1)  # more gain nothing at this size
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    curves = {"bf16": train(steps), "DelayedScaling": train(steps, regard.fp8.DelayedScaling()),
              "MXFP8": train(steps, regard.fp8.MXFP8BlockScaling())}
    last = {name: sum(losses[-50:]) / len(losses[-50:]) for name, losses in curves.items()}
    for name, losses in curves.items():
        print(f"{name:15} loss {losses[0]:.3f} -> {last[name]:.3f}")
    if len(sys.argv) > 2:
        plot(sys.argv[2], curves)
    distance = max(abs(loss - last["bf16"]) for loss in last.values())
    print(f"largest distance {distance:.4f}")
    assert distance < 0.05
    if steps >= 300:
        assert last["bf16"] < 1.3
