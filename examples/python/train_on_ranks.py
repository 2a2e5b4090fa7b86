"""Four processes train a small Llama on sequences of which each holds a part, as one process would.

    python train_on_ranks.py
"""

import os
import tempfile
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from transformers import LlamaConfig, LlamaForCausalLM

import regard.torch
from regard.torch import context_parallel, context_parallel_shard

RANKS, STEPS, LENGTH, VOCABULARY = 4, 20, 90, 61


def train(mesh=None):
    """The loss of each step; with a mesh of ranks, each computes its part of every sequence."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128)
    model = LlamaForCausalLM(config)  # attn_implementation="sdpa": PyTorch's function, as always
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def part(x):
        return x if mesh is None else context_parallel_shard(x, mesh, dim=1, layout="zigzag")

    def add_up(x):
        if mesh is not None:
            dist.all_reduce(x)
        return x

    positions = torch.arange(LENGTH).expand(2, -1)
    losses = []
    for step in range(STEPS):
        tokens = (11 * step + torch.tensor([[0], [30]]) + 7 * torch.arange(LENGTH + 1)) % VOCABULARY
        inputs, labels = part(tokens[:, :-1]), part(tokens[:, 1:])  # shifted before they are cut
        with nullcontext() if mesh is None else context_parallel(mesh, layout="zigzag"):
            logits = model(input_ids=inputs, position_ids=part(positions), use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        loss = loss / (2 * LENGTH)  # of all ranks: their sum is the mean
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            add_up(parameter.grad)
        optimizer.step()
        losses.append(add_up(loss.detach()).item())
    return losses


def run(rank, store):
    torch.set_num_threads(1)
    regard.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    together = train(init_device_mesh("cpu", (RANKS,)))
    dist.destroy_process_group()
    if rank == 0:
        alone = train()
        print(f"loss {together[0]:.4f} -> {together[-1]:.4f} on {RANKS} ranks, {alone[-1]:.4f} on one")
        assert max(abs(a - b) for a, b in zip(together, alone)) < 1e-3 and alone[-1] < alone[0]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:  # fork: the processes share what was imported
        mp.start_processes(run, (os.path.join(folder, "store"),), RANKS, start_method="fork")
