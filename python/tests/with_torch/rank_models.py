"""Models of Transformers on ranks: functions of (rank, size, ...) that test_context_parallel_models.py runs."""

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh

import regard.torch
import regard.transformers

STEPS, LENGTH, VOCABULARY = 20, 45, 61


def config_of(kind, **more):
    return getattr(transformers, f"{kind}Config")(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, attention_dropout=0.0, **more)


def model_of(kind, implementation, **more):
    torch.manual_seed(0)
    regard.transformers.register()
    made = getattr(transformers, f"{kind}ForCausalLM")._from_config(config_of(kind, **more),
                                                                   attn_implementation=implementation)
    return made.double()  # rounding of f32 would grow over the steps of training


def batches():
    """Each token determines the next, so that there is something to learn."""
    numbers = torch.Generator().manual_seed(1)
    while True:
        first = torch.randint(0, VOCABULARY, (2, 1), generator=numbers)
        yield (first + 7 * torch.arange(LENGTH + 1)) % VOCABULARY


def train(model, cut=lambda x: x, sum_up=lambda x: x, positions=None):
    """The loss of each step. cut: this rank's part of [batch, positions]; sum_up: the sum over ranks, in place."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for tokens, _ in zip(batches(), range(STEPS)):
        inputs, labels = cut(tokens[:, :-1]), cut(tokens[:, 1:])
        logits = model(input_ids=inputs, position_ids=cut(positions), use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        loss = loss / tokens[:, 1:].numel()
        optimiser.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            sum_up(parameter.grad)
        optimiser.step()
        losses.append(sum_up(loss.detach()).item())
    return losses


def training(rank, size, kind, implementation, scope, more):
    """The largest difference of losses between these ranks and one rank."""
    positions = torch.arange(LENGTH)[None].expand(2, -1)
    alone = train(model_of(kind, implementation, **more), positions=positions)
    mesh = init_device_mesh("cpu", (2, size // 2) if scope.get("comm") == "a2a+p2p" else (size,))

    def cut(x):
        return regard.torch.context_parallel_shard(x, mesh, 1, scope.get("layout", "contiguous"))

    def sum_up(x):
        dist.all_reduce(x)
        return x

    with regard.torch.context_parallel(mesh, **scope):
        together = train(model_of(kind, implementation, **more), cut, sum_up, positions)
    assert alone[-1] < alone[0]
    return max(abs(a - b) / abs(b) for a, b in zip(together, alone))


def refused(rank, size):
    """Masks of this rank's keys alone are refused, and models run as before outside of the scope."""
    mesh = init_device_mesh("cpu", (size,))
    tokens = next(batches())[:, :8]
    positions = torch.arange(8)[None].expand(2, -1)
    llama, mistral = model_of("Llama", "sdpa"), model_of("Mistral", "sdpa", sliding_window=4)
    ours = model_of("Llama", "regard")
    padded = torch.ones_like(tokens)
    padded[0, 0] = 0
    again = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])[None].expand(2, -1)
    before = llama(tokens, position_ids=again, use_cache=False).logits
    with regard.torch.context_parallel(mesh):
        for words, model, given in (
                ("attn_mask", llama, {"attention_mask": padded}),
                ("attention_mask", ours, {"attention_mask": padded}),
                ("position_ids", llama, {"position_ids": again}),
                ("sliding_window", mistral, {"position_ids": positions}),
                ("output_attentions", ours, {"output_attentions": True})):
            try:
                model(tokens, use_cache=False, **given)
            except ValueError as error:
                assert words in str(error), error
            else:
                raise AssertionError(words)
    after = llama(tokens, position_ids=again, use_cache=False).logits
    assert torch.equal(before, after)
