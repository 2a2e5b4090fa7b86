"""trace() and last_selection() with PyTorch and Transformers: which layer ran what."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from torch import nn
from torch.nn import functional

import regard
import regard.torch
from test_transformers import decoder, prompts, transformers

LAYERS = ["model.layers.0.self_attn", "model.layers.1.self_attn"]


class Attention(nn.Module):
    """One that calls PyTorch's function."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(32, 96)

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def tensors(*shape, grad=False):
    torch.manual_seed(0)
    return [torch.randn(*shape, requires_grad=grad) for _ in range(3)]


def test_last_selection_of_every_way_in():
    q, k, v = tensors(1, 2, 8, 16)
    with regard.torch.sdpa_kernel("math"):
        regard.torch.scaled_dot_product_attention(q, k, v)
    assert regard.last_selection().chosen == "math"
    with regard.torch.install(), regard.torch.sdpa_kernel("efficient"):
        functional.scaled_dot_product_attention(q, k, v)
    assert regard.last_selection().chosen == "efficient"
    torch.ops.regard.attention(q, k, v, *regard.torch._options.Options(), "BHSD", "math", False)
    assert regard.last_selection().chosen == "math"


def test_gradients_are_recorded_with_the_layer_of_their_forward():
    net = Net()
    x = torch.randn(2, 6, 32)
    with regard.torch.install(), regard.trace() as t:
        net(x).sum().backward()
    assert [(call.direction, call.layer) for call in t] == [
        ("forward", "blocks.0"), ("forward", "blocks.1"), ("backward", "blocks.1"),
        ("backward", "blocks.0")]
    assert all(call.backend == "flash" and call.kernel for call in t)
    net(x).sum().backward()
    assert len(t) == 4


def test_autograds_own_threads_are_recorded():
    q, k, v = tensors(1, 2, 8, 16, grad=True)
    with regard.trace() as t:
        out = regard.torch.scaled_dot_product_attention(q, k, v)
        import threading

        thread = threading.Thread(target=lambda: out.sum().backward())
        thread.start()
        thread.join()
    assert [call.direction for call in t] == ["forward", "backward"]
    assert t.records[0].thread != t.records[1].thread


def test_names_are_those_of_the_given_model():
    net = Net()
    x = torch.randn(2, 6, 32)
    with regard.torch.install():
        with regard.trace() as t:
            net.blocks[1](x)
        with regard.trace(net) as named:
            net.blocks[1](x)
    assert t.records[0].layer == "Attention"  # the outermost module that was called
    assert named.records[0].layer == "blocks.1"


def test_a_call_beside_modules_has_no_layer():
    q, k, v = tensors(1, 2, 8, 16)
    with regard.trace() as t:
        regard.torch.scaled_dot_product_attention(q, k, v)
    assert t.records[0].layer is None


def test_a_module_that_is_no_part_of_the_outermost_one():
    inner = Attention()

    class Outer(nn.Module):
        def forward(self, x):
            return inner(x)

    with regard.torch.install(), regard.trace() as t:
        Outer()(torch.randn(1, 4, 32))
    assert t.records[0].layer == "Outer"


@pytest.mark.parametrize("name", ["Llama", "Gemma2", "GptOss"])
def test_layers_of_transformers(name):
    model = decoder(name)
    model.set_attn_implementation("regard")
    ids, mask = prompts()
    with torch.no_grad(), regard.trace() as t:
        model(ids, attention_mask=mask)
    assert [call.layer for call in t] == LAYERS
    assert all(call.share_of_peak > 0 for call in t)
    rows = t.summary().splitlines()
    assert [row.split()[0] for row in rows[1:3]] == LAYERS


def test_generation_and_training_of_transformers():
    model = decoder("Llama")
    model.set_attn_implementation("regard")
    ids, mask = prompts()
    with regard.trace() as t:
        model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False)
    assert [call.layer for call in t] == LAYERS * 4
    assert " sq11 " in t.records[0].case and " sq1 " in t.records[2].case
    model.train()
    model.gradient_checkpointing_enable()
    with regard.trace() as t:
        model(ids, attention_mask=mask, labels=ids).loss.backward()
    backward = [call.layer for call in t if call.direction == "backward"]
    assert backward == LAYERS[::-1]
    assert [call.layer for call in t if call.direction == "forward"] == LAYERS + LAYERS[::-1]


def test_bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=97, hidden_size=32, num_hidden_layers=2,
                                     num_attention_heads=4, intermediate_size=64)
    model = transformers.BertModel(config).eval()
    model.set_attn_implementation("regard")
    ids, mask = prompts(left=False)
    with torch.no_grad(), regard.trace() as t:
        model(ids, attention_mask=mask)
    assert [call.layer for call in t] == ["encoder.layer.0.attention.self",
                                          "encoder.layer.1.attention.self"]


def test_weights_are_recorded_as_the_formula():
    model = decoder("Llama", torch.bfloat16)
    model.set_attn_implementation("regard")
    ids, mask = prompts()
    with torch.no_grad(), regard.trace() as t:
        model(ids, attention_mask=mask, output_attentions=True)
    assert [(call.layer, call.backend, call.kernel) for call in t] == [
        (layer, "math", "aten_formula") for layer in LAYERS]
    assert " bf16 " in t.records[0].case and t.records[0].selection is None
    assert t.records[0].seconds > 0 and t.records[0].share_of_peak is None


def test_torch_func_is_recorded_as_the_formula():
    q, k, v = tensors(1, 2, 8, 16)
    with regard.trace() as t:
        torch.func.grad(lambda x: regard.torch.scaled_dot_product_attention(x, k, v).sum())(q)
    assert [call.kernel for call in t] == ["aten_formula"]
    assert t.records[0].case.startswith("b1 hq2 hkv2 sq8 skv8 d16 f32")


def test_compiled_models_are_recorded_without_a_new_compilation():
    torch._dynamo.reset()
    net = Net()
    x = torch.randn(2, 6, 32)
    with regard.torch.install():
        expected = net(x)
        compiled = torch.compile(net, backend="aot_eager")
        compiled(x)
        frames = torch._dynamo.utils.counters["frames"]["ok"]
        with regard.trace() as t:
            out = compiled(x)
        with regard.trace(), torch.no_grad():
            torch._dynamo.reset()
            compiled(x)  # compiled while a trace is open
    torch.testing.assert_close(out, expected)
    assert torch._dynamo.utils.counters["frames"]["ok"] >= frames
    assert len(t) == 2 and {call.layer for call in t} == {"Net"}  # one graph has all layers


def test_the_stack_is_not_searched_without_a_trace(monkeypatch):
    def fails():
        raise AssertionError("no trace is open")

    monkeypatch.setattr("regard._trace.current_layer", fails)
    with regard.torch.install():
        Net()(torch.randn(1, 4, 32))
