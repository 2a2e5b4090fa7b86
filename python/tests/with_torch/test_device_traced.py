"""What is traced or transformed of CUDA tensors: the tests of CPU tensors by the way of a device, and
fake tensors of a device, of which only autograd's engine needs the device itself."""

import gc
import weakref

import pytest
import test_flash_attn
import test_operator
import test_sdpa
import test_transformers
import torch
import transformers
from test_operator import Block
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

import regard
import regard.torch
from regard.flash_attn import flash_attn_func
from regard.torch import _call, _device, _install, _sdpa
from regard.torch._formula import dropout_factors
from regard.torch._options import Options

sdpa = regard.torch.scaled_dot_product_attention
operator = torch.ops.regard.attention


@pytest.fixture
def device_way(device_calls, monkeypatch):
    for module in (_call, _sdpa):
        monkeypatch.setattr(module, "kind_of", lambda *tensors: _call.MORE)


def test_a_recorded_lse_is_freed_with_its_last_name(device_way):
    """Without the collector of cycles: memory of a device that waits for it is soon all of it."""
    q, k, v = (torch.randn(1, 2, 3, 4, requires_grad=True) for _ in range(3))
    gc.disable()
    try:
        out, lse = _call.attend(q, k, v, Options(), return_lse=True)
        node = weakref.ref(lse.grad_fn)
        del out, lse
        assert node() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("name", test_operator.DERIVED)
@pytest.mark.parametrize("by_operator", [False, True])
def test_derivatives(device_way, name, by_operator):
    test_operator.test_first_and_second_derivatives(name, by_operator)


@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
def test_opcheck(device_way, layout):
    test_operator.test_opcheck(layout, torch.float32)


@pytest.mark.parametrize("test", [
    test_operator.test_derivatives_of_bias_sinks_and_lse,
    test_operator.test_one_tensor_in_three_places_and_third_derivatives,
    test_operator.test_vmap_and_torch_func,
    test_operator.test_compile_fullgraph,
    test_operator.test_gradients_that_were_not_known_of,
    test_operator.test_batched_gradients,
    test_operator.test_a_module_trains,
    test_sdpa.test_grouped_heads_scale_and_views,
    test_sdpa.test_masks_of_a_model,
    test_flash_attn.test_dropout,
    test_transformers.test_a_compiled_model,
    test_transformers.test_queries_of_one_batch_and_dropping_all,
], ids=lambda test: test.__name__)
def test_what_holds_of_cpu_tensors(device_way, test):
    test()


def test_others_that_hold_of_cpu_tensors(device_way, tmp_path):
    test_operator.test_autocast(torch.bfloat16)
    test_operator.test_export_with_dynamic_shapes(False, tmp_path)
    test_sdpa.test_dropout_follows_torchs_generator(True)
    test_flash_attn.test_against_the_reference("alibi_per_batch", (9, 13))
    test_transformers.test_logits_of_decoders("Gemma2")
    test_transformers.test_training("GptOss")


def test_cuda_graphs_of_inductor_leave_the_operators_out():
    from torch._inductor.utils import is_cudagraph_unsafe_fx_node

    graph = make_fx(lambda q: sdpa(q, q, q))(torch.empty(1, 2, 3, 4)).graph
    unsafe = [n for n in graph.nodes if n.op == "call_function" and is_cudagraph_unsafe_fx_node(n)]
    assert [str(n.target) for n in unsafe] == ["regard.attention.default"]


def test_dropouts_factors_lie_with_q():
    q = torch.empty(2, 2, 3, 4, device="meta")
    options = Options(dropout_p=0.5, rng=torch.tensor([3]))
    assert dropout_factors(q, q, options).device == q.device


def test_explain_asks_of_the_call_itself(monkeypatch):
    q, k, v = test_sdpa.make(grad=True)
    monkeypatch.setattr(_device, "takes", lambda q: True)
    selection = regard.torch.explain(q, k, v, is_causal=True)
    assert selection.ok and {"lse", "needs_grad"} <= set(selection.to_dict()["params"]["features"])
    assert any("second derivatives" in note for note in selection.notes)
    with regard.torch.sdpa_kernel("math"):
        assert regard.torch.explain(q, k, v).chosen == "math"
    assert not regard.torch.can_use("cudnn", q, k, v)


@pytest.fixture
def fake():
    """(q, k, v) of a CUDA device that is not there, k and v of fewer heads."""
    if not torch.backends.cuda.is_built():
        pytest.skip("PyTorch is built without CUDA")
    with FakeTensorMode():
        yield tuple(torch.empty(2, heads, rows, 16, device="cuda", requires_grad=True)
                    for heads, rows in ((4, 9), (2, 13), (2, 13)))


@pytest.fixture
def fake_cuda(fake, monkeypatch):
    monkeypatch.setattr(_device, "is_built", lambda: True)
    return fake


def test_a_build_without_cuda_says_so(fake, monkeypatch):
    monkeypatch.setattr(_device, "is_built", lambda: False)
    with pytest.raises(ValueError, match=r"device of q \(cuda:0\) must be cpu.*no CUDA support"):
        sdpa(*fake, enable_gqa=True)
    assert not _install._is_here(fake[0])


@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
def test_results_of_the_operators(fake_cuda, layout):
    q, k, v = (x.detach() for x in fake_cuda)
    bias, sinks = (torch.empty(shape, device="cuda") for shape in ((1, 4, 9, 1), (4,)))
    options = Options(attn_bias=bias, sinks=sinks, is_causal=True)
    out, lse, stats, state = operator(q, k, v, *options, layout, "", True)
    assert [x.device.type for x in (out, lse, stats, state)] == ["cuda"] * 3 + ["cpu"]
    assert out.shape == q.shape and lse.shape == (2, 4, 9) and state.shape == (4,)
    assert stats.numel() == 0, "a backward takes lse"
    assert out.transpose(1, 2).is_contiguous() == (layout == "BSHD")
    grads = torch.ops.regard.attention_backward(out, lse, q, k, v, out, lse, state, *options,
                                                layout)
    for grad, x in zip(grads, (q, k, v, bias, sinks), strict=True):
        assert grad.shape == x.shape and grad.device == x.device and grad.dtype == x.dtype
    assert grads[0].transpose(1, 2).is_contiguous() == (layout == "BSHD")
    unsaved = operator(q, k, v, *options, layout, "", False)
    assert [x.numel() for x in unsaved[2:]] == [0, 0] and unsaved[3].device.type == "cpu"


def test_fake_tensors_through_every_door(fake_cuda):
    q, k, v = fake_cuda
    for out in (sdpa(q, k, v, enable_gqa=True, dropout_p=0.5),
                torch.vmap(lambda a: sdpa(a, k, v, enable_gqa=True))(q[None])[0],
                flash_attn_func(*(x.transpose(1, 2) for x in fake_cuda)).transpose(1, 2)):
        assert out.device == q.device and out.shape == q.shape and out.requires_grad
    torch.set_autocast_enabled("cuda", True)  # torch.autocast turns itself off without a device
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        assert sdpa(q, k, v, enable_gqa=True).dtype == torch.bfloat16
        assert operator(q, k, v, *Options(), "BHSD", "", True)[0].dtype == torch.bfloat16
        host = torch.empty(1, 2, 3, 4)
        assert sdpa(host, host, host).dtype == torch.float32, "another device's autocast"
    finally:
        torch.set_autocast_enabled("cuda", False)


def test_graphs(fake_cuda):
    q, k, v = (x.detach() for x in fake_cuda)

    def f(q, k, v):
        return sdpa(q.sin(), k, v, is_causal=True, enable_gqa=True) * 2

    graph = make_fx(f)(q, k, v).graph
    assert [str(n.target) for n in graph.nodes].count("regard.attention.default") == 1
    with regard.torch.install():  # as PyTorch's own function
        compiled = torch.compile(lambda q: torch.nn.functional.scaled_dot_product_attention(
            q, q, q), fullgraph=True, backend="eager")
        assert compiled(q).device == q.device
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        assert torch.compile(f, fullgraph=True, backend=backend)(q, k, v).device == q.device
    with torch.device("cuda"):
        model = Block()
    args = torch.empty(2, 9, 32, device="cuda"), torch.empty(2, 1, 9, 9, dtype=bool, device="cuda")
    program = torch.export.export(model, args)
    assert test_operator.targets(program).count("regard.attention.default") == 1
    with regard.torch.exportable():
        program = torch.export.export(model, args)
    called = test_operator.targets(program)
    assert called and not any("regard" in target for target in called)
    devices = {str(x.device) for node in program.graph.nodes
               for x in tree_leaves(node.meta.get("val", [])) if isinstance(x, torch.Tensor)}
    assert devices == {"cuda:0"}


def test_a_model_of_transformers(fake_cuda):
    with torch.device("cuda"):
        config = transformers.LlamaConfig(**test_transformers.COMMON)
        model = transformers.LlamaForCausalLM(config).eval()
        ids = torch.arange(10)[None]
    logits = test_transformers.on(model, "regard", lambda: model(ids).logits)
    assert logits.device.type == "cuda" and logits.shape == (1, 10, 97)
