"""fp8_autocast: what is rounded, what is selected, what trains."""

import math

import numpy as np
import pytest
import torch

import regard
import regard.torch
from regard import fp8
from regard.torch import ArgumentError, fp8_autocast, scaled_dot_product_attention

RECIPES = [fp8.DelayedScaling, fp8.Float8CurrentScaling, fp8.MXFP8BlockScaling, fp8.Float8BlockScaling]
BACKENDS = ["flash", "efficient", "math"]
either = pytest.mark.parametrize("quantize_probs", [False, True])


def make(seed=0, dtype=torch.float32, shape=(2, 4, 48, 32), kv=None, grad=True):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_(grad)
            for s in (shape, kv or shape, kv or shape)]


def rounded(x, recipe, backward=False):
    """A tensor through the recipe, by regard.fp8 alone, in float64."""
    state, x = recipe.new_state(backward), x.detach().double().numpy()
    if hasattr(recipe, "spread"):
        state.step(recipe.amax_of(x, backward))
        scale = recipe.spread(state.scale, x.shape, backward)
    else:
        if not isinstance(recipe, fp8.DelayedScaling):  # whose first scale is 1
            state.step(np.abs(x).max())
        scale = np.float32(state.scale)
    codes = fp8.quantize(x.astype(np.float32), state.form.name, scale=scale)
    values = fp8.dequantize(codes, state.form.name).astype(np.float64) / scale
    return torch.from_numpy(values)


def reference(q, k, v, d_out, is_causal):
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    out.backward(d_out)
    return out.detach(), q.grad, k.grad, v.grad


def long_blocks(**dims):
    return lambda: fp8.Float8BlockScaling(**dims)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("recipe", [*RECIPES, long_blocks(x_block_scaling_dim=2),
                                    long_blocks(grad_block_scaling_dim=2),
                                    long_blocks(x_block_scaling_dim=2, grad_block_scaling_dim=2)])
def test_each_tensor_is_rounded_once(recipe, backend):
    """Forward and gradients are those of the rounded tensors in float64, but for float32's error."""
    q, k, v = make(shape=(2, 4, 150, 40))
    d_out = torch.randn(q.shape, generator=torch.Generator().manual_seed(9))
    with regard.torch.sdpa_kernel([backend]), fp8_autocast(recipe(), allow_future_scales=True):
        out = scaled_dot_product_attention(q, k, v, is_causal=True)
    out.backward(d_out)
    want = reference(*(rounded(x, recipe()) for x in (q, k, v)), rounded(d_out, recipe(), True), True)
    for got, expected in zip((out.detach(), q.grad, k.grad, v.grad), want, strict=True):
        assert (got - expected).abs().max() < 2e-5 * expected.abs().max()


def test_the_kernels_take_codes_and_scales_of_blocks():
    for recipe, layout in ((fp8.MXFP8BlockScaling(), "1x32"), (fp8.Float8BlockScaling(), "1x128"),
                           (fp8.Float8BlockScaling(x_block_scaling_dim=2), "1x128"),
                           (fp8.Float8BlockScaling(x_block_scaling_dim=2, grad_block_scaling_dim=2), "128x128")):
        q, k, v = make(seed=3)
        with fp8_autocast(recipe):
            scaled_dot_product_attention(q, k, v)
        case = regard.last_selection().to_dict()["case"]
        assert "f8e4m3" in case and f"scales={layout} scales_q={layout}" in case, case


@pytest.mark.parametrize("shape", [(1, 2, 0, 16), (0, 2, 8, 16)])
@pytest.mark.parametrize("recipe", RECIPES)
def test_empty_tensors(recipe, shape):
    q, k, v = make(shape=shape, kv=(shape[0], 2, 5, 16))
    with fp8_autocast(recipe()):
        out = scaled_dot_product_attention(q, k, v)
    out.sum().backward()
    assert out.shape == shape and not k.grad.any()


def rmse(got, want):
    return ((got.double() - want) ** 2).mean().sqrt()


@pytest.mark.parametrize("shape, kv", [((2, 16, 64, 64), None), ((1, 8, 128, 128), (1, 2, 128, 128)),
                                       ((2, 4, 96, 64), (2, 4, 160, 64))])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("recipe", RECIPES)
@either
def test_transformer_engines_rule(quantize_probs, recipe, is_causal, shape, kv):
    """RMSE below 0.11 of the range of the result, as its test of dot-product attention demands; and below
    1.3 times that of the same tensors rounded once, in float64, where probabilities are not."""
    q, k, v = make(3, torch.bfloat16, shape, kv)
    d_out = torch.randn(shape, generator=torch.Generator().manual_seed(5)).bfloat16()
    results = {}
    for name in ("f8", "f64"):
        tensors = [x.detach().to(torch.float64 if name == "f64" else x.dtype).requires_grad_() for x in (q, k, v)]
        call = dict(is_causal=is_causal, enable_gqa=kv is not None)
        if name == "f64":
            out = torch.nn.functional.scaled_dot_product_attention(*tensors, **call)
        else:
            with fp8_autocast(recipe(), quantize_probs=quantize_probs):
                out = scaled_dot_product_attention(*tensors, **call)
        out.backward(d_out.to(out.dtype))
        results[name] = [out.detach(), *(x.grad for x in tensors)]
    group = shape[1] // k.shape[1]
    heads = [rounded(x, recipe()) for x in (q, k, v)]
    once = reference(heads[0], *(x.repeat_interleave(group, 1) for x in heads[1:]), rounded(d_out, recipe(), True),
                     is_causal)
    once = [x.unflatten(1, (-1, group)).sum(2) if n >= 2 else x for n, x in enumerate(once)]
    for got, want, emulated in zip(results["f8"], results["f64"], once, strict=True):
        assert got.dtype == torch.bfloat16
        assert rmse(got, want) < 0.11 * (want.max() - want.min())
        assert quantize_probs or rmse(got, want) < 1.3 * rmse(emulated, want)


def test_codes_are_those_of_quantize():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(1)) * 10
    x[:4] = torch.tensor([1e6, -1e6, math.inf, 0.0])
    from regard.torch._fp8 import _F8, _codes
    for form in _F8:
        for scale in (1.0, 0.37, 60.0):
            codes = _codes(x, scale, form)
            assert torch.equal(codes.view(torch.uint8),
                               fp8.quantize(x, form, scale=scale).view(torch.uint8))


def step(recipe, tensors, optimizer=None):
    with fp8_autocast(recipe):
        out = scaled_dot_product_attention(*tensors, is_causal=True)
    out.sum().backward()
    recipe.advance()


def test_delayed_scales_are_those_of_the_step_before():
    recipe = fp8.DelayedScaling(amax_history_len=4)
    q, k, v = make()
    step(recipe, (q, k, v))
    (states,) = recipe._calls().values()
    for name, x in (("q", q), ("k", k), ("v", v)):
        assert states.tensors[name].scale == np.float32(448) / np.float32(x.abs().max().item())
    assert states.tensors["d_out"].scale == 57344.0
    copies = {name: state.scale for name, state in states.tensors.items()}
    with fp8_autocast(recipe):  # without advance() nothing changes
        scaled_dot_product_attention(q * 2, k, v)
    assert {name: state.scale for name, state in states.tensors.items()} == copies


def test_a_thousand_steps_are_one_selection():
    """Scales, history and margin are no part of the key; the recipe's kind and the formats are."""
    tensors = make(shape=(1, 2, 40, 24))
    recipe = fp8.DelayedScaling(amax_history_len=3)
    step(recipe, tensors)  # the forward with its backward
    before = regard.counters()
    for n in range(1000):
        recipe.margin = n % 3
        if n % 100 == 50:
            recipe = fp8.DelayedScaling(margin=n % 2, amax_history_len=1 + n % 5,
                                        amax_compute_algo=("max", "most_recent")[n % 2])
        scaled = [(x.detach() * (1 + 0.01 * n)).requires_grad_() for x in tensors]
        step(recipe, scaled)
    after = regard.counters()
    assert after["plan_misses"] == before["plan_misses"]
    assert after["plan_hits"] >= before["plan_hits"] + 1000
    step(fp8.Float8CurrentScaling(), tensors)
    assert regard.counters()["plan_misses"] == before["plan_misses"] + 1
    for _ in range(3):
        step(fp8.Float8CurrentScaling(), tensors)
        step(recipe, tensors)
    assert regard.counters()["plan_misses"] == before["plan_misses"] + 1


def test_recipes_that_decide_differently_are_never_equal():
    """All pairs of a grid of kinds, formats, types of gradients and layouts of descales."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    cases = {}
    for kind in ("none", "delayed", "current", "mxfp8", "block"):
        for form in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
            for d_out in ("f8e4m3", "f8e5m2", "bf16"):
                for gradient in ("f8e5m2", "bf16", "f32"):
                    for descale in (0.5, np.ones((2, 2), np.float32)):
                        x = np.zeros((2, 2, 8, 16), form)
                        selection = regard.explain(
                            x, x, x, return_saved=True, d_out_dtype=d_out, gradient_dtype=gradient,
                            descale_q=descale, fp8_recipe=None if kind == "none" else kind)
                        name = (kind, str(x.dtype), d_out, gradient, np.ndim(descale))
                        cases[name] = str(selection.to_dict()["params"] if hasattr(selection, "to_dict")
                                          else selection.case)
    assert len(set(cases.values())) == len(cases) == 5 * 2 * 3 * 3 * 2


@pytest.mark.parametrize("recipe", [fp8.DelayedScaling, fp8.MXFP8BlockScaling, fp8.Float8BlockScaling])
def test_later_keys_change_no_earlier_row(recipe):
    q, k, v = make(shape=(1, 2, 64, 32), grad=False)
    k2, v2 = k.clone(), v.clone()
    k2[:, :, 40:] *= 50
    v2[:, :, 40:] = 1e4
    outs = []
    for keys, values in ((k, v), (k2, v2)):
        with fp8_autocast(recipe()):
            outs.append(scaled_dot_product_attention(q, keys, values, is_causal=True))
    assert torch.equal(outs[0][:, :, :40], outs[1][:, :, :40])
    assert not torch.equal(outs[0][:, :, 40:], outs[1][:, :, 40:])


def test_recipes_that_cannot_keep_causality_say_so():
    q, k, v = make(shape=(1, 2, 64, 32), grad=False)
    recipe = fp8.Float8BlockScaling(x_block_scaling_dim=2)
    with pytest.raises(ArgumentError, match="later keys would change earlier results"), fp8_autocast(recipe):
        scaled_dot_product_attention(q, k, v, is_causal=True)
    with fp8_autocast(recipe):
        scaled_dot_product_attention(q, k, v)
    with fp8_autocast(recipe, allow_future_scales=True):
        scaled_dot_product_attention(q, k, v, is_causal=True)
    outs = []
    for last in (1.0, 1e4):  # a scale of the whole tensor: what stands last changes the first row
        values = v.clone()
        values[:, :, -1] = last
        with fp8_autocast(fp8.Float8CurrentScaling()):
            outs.append(scaled_dot_product_attention(q, k, values, is_causal=True))
    assert not torch.equal(outs[0][:, :, :-1], outs[1][:, :, :-1])


@either
def test_values_of_ones_give_ones(quantize_probs):
    """No probability lies below the format's range unless they are rounded to it, and then the sum is
    that of the rounded ones."""
    q, k, _ = make(shape=(1, 2, 256, 64), grad=False)
    for recipe in RECIPES:
        with fp8_autocast(recipe(), quantize_probs=quantize_probs):
            out = scaled_dot_product_attention(q * 4, k, torch.ones_like(k))
        assert (out - 1).abs().max() < 3e-6


@either
def test_errors_of_36_layers_grow_as_those_of_bf16(quantize_probs):
    """Unscaled q and k through 36 layers: the error stays within 20 times bf16's, from layer to layer
    and at the end (f8e4m3 has 16 times bf16's step)."""
    x = torch.randn(1, 4, 64, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def layers(run):
        y, found = x.clone(), []
        for _ in range(36):
            y = torch.nn.functional.layer_norm(y + run(y), y.shape[-1:])
            found.append(y)
        return found

    exact = layers(lambda y: torch.nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True))

    def in_bf16(y):
        z = y.bfloat16()
        return scaled_dot_product_attention(z, z, z, is_causal=True).double()

    recipe = fp8.DelayedScaling()

    def in_f8(y):
        z = y.bfloat16()
        with fp8_autocast(recipe, quantize_probs=quantize_probs):
            return scaled_dot_product_attention(z, z, z, is_causal=True).double()

    bf16, f8 = (np.array([rmse(a, b).item() for a, b in zip(layers(run), exact, strict=True)])
                for run in (in_bf16, in_f8))
    assert f8[-1] < 20 * bf16[-1]
    assert f8[-1] / f8[0] < 2 * bf16[-1] / bf16[0]


def test_float8_tensors_are_taken_as_they_are():
    q, k, v = make(grad=False)
    codes = [x.to(torch.float8_e4m3fn) for x in (q, k, v)]
    with fp8_autocast(fp8.DelayedScaling()):
        out = scaled_dot_product_attention(*codes, is_causal=True)
    want = torch.nn.functional.scaled_dot_product_attention(*(x.double() for x in codes), is_causal=True)
    assert out.dtype == torch.bfloat16
    assert (out.double() - want).abs().max() < 4e-3 * want.abs().max()


def test_scopes():
    q, k, v = make(grad=False)
    plain = scaled_dot_product_attention(q, k, v)
    with fp8_autocast(fp8.DelayedScaling()):
        inner = scaled_dot_product_attention(q, k, v)
        with fp8_autocast(fp8.DelayedScaling(), enabled=False):
            assert torch.equal(scaled_dot_product_attention(q, k, v), plain)
        assert torch.equal(scaled_dot_product_attention(q, k, v), inner)
    assert torch.equal(scaled_dot_product_attention(q, k, v), plain)
    assert not torch.equal(inner, plain)
    assert regard.torch.autocast is fp8_autocast
    with pytest.raises(TypeError, match="recipe .None. must be one of regard.fp8's"):
        fp8_autocast(None)
    with fp8_autocast(fp8.DelayedScaling()), pytest.raises(ArgumentError, match="float64"):
        scaled_dot_product_attention(q.double(), k.double(), v.double())


def test_masks_groups_and_dropout():
    q, k, v = make(shape=(2, 4, 24, 16), kv=(2, 2, 40, 16))
    mask = torch.rand(2, 1, 24, 40, generator=torch.Generator().manual_seed(1)) > 0.3
    recipe = fp8.Float8CurrentScaling()
    with fp8_autocast(recipe):
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        bias = scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(mask.shape).masked_fill(~mask, -math.inf),
                                            enable_gqa=True)
        dropped = scaled_dot_product_attention(q, k, v, dropout_p=0.5, enable_gqa=True)
    assert torch.allclose(out, bias, atol=1e-6)
    (out.sum() + dropped.sum()).backward()
    assert all(torch.isfinite(x.grad).all() for x in (q, k, v))
