"""fp8_autocast: scaled_dot_product_attention of 8-bit floats, with the scales of a recipe."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import _core, fp8
from ._call import is_traced
from ._inputs import Arguments, checked, problem
from ._options import Options, native_keywords
from ._scopes import ArgumentError, call_policy, current_backends, drop_in_errors

_F8 = {"f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_TENSORS = ("q", "k", "v", "d_out")


class _State(threading.local):
    def __init__(self) -> None:  # an attribute, which torch.compile traces with its guards
        self.scope: fp8_autocast | None = None  # the innermost; None where it is not enabled
        self.open: list[fp8_autocast] = []


_state = _State()


class _CallStates:
    """The states of the tensors of one call of a step, and what the step noted of them."""

    def __init__(self, recipe: fp8.Recipe) -> None:
        self.recipe = recipe
        self.tensors = {name: recipe.new_state(backward=name == "d_out") for name in _TENSORS}
        self.noted: dict[str, Tensor] = {}

    def note(self, name: str, amax: Tensor) -> None:
        """Of gradients that are summed over several backwards the largest counts."""
        seen = self.noted.get(name)
        self.noted[name] = amax if seen is None else torch.maximum(seen, amax)

    def step(self) -> None:
        """Takes what was noted; tensors of no use in the step stay as they are."""
        noted, self.noted = self.noted, {}
        if getattr(self.recipe, "reduce_amax", False) and _is_distributed():
            amax = torch.stack([noted.get(name, torch.zeros(())) for name in _TENSORS])
            torch.distributed.all_reduce(amax, torch.distributed.ReduceOp.MAX)
            noted = {name: amax[n] for n, name in enumerate(_TENSORS) if name in noted}
        for name, amax in noted.items():
            self.tensors[name].step(amax.item())


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


class fp8_autocast:  # noqa: N801 (TransformerEngine's name)
    """A scope in which scaled_dot_product_attention rounds q, k, v and the gradient of its result to 8-bit
    floats, with the scales that `recipe` finds.

    recipe is one of regard.fp8's: DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling or
    Float8BlockScaling. Results have q's type, and gradients have the types of their tensors; sums and
    probabilities are float32. Tensors are float32, bfloat16, float16, or 8-bit floats already,
    which are taken as they are and give bfloat16. enabled=False makes an inner scope without effect.

    A recipe that keeps a history has states for each call of a scope, by their order in it: the same
    model must run in each scope. Call recipe.advance() after every step of training.

    Where is_causal hides later keys, a scale of blocks along the sequence (Float8BlockScaling with
    x_block_scaling_dim=2) would let them change earlier results: it is refused unless
    allow_future_scales=True. Float8CurrentScaling has one scale for all positions: it cannot keep
    earlier results apart from later keys.

    quantize_probs=True rounds probabilities to the format of q, and in the backward dS to that of the result's
    gradient; both are float32 otherwise.

        >>> import torch, regard.torch
        >>> recipe = regard.fp8.DelayedScaling()
        >>> q = k = v = torch.ones(1, 2, 5, 64, requires_grad=True)
        >>> with regard.torch.fp8_autocast(recipe):
        ...     out = regard.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
        >>> out.sum().backward()
        >>> recipe.advance()

    Raises TypeError for another recipe; calls raise regard.torch.ArgumentError for what 8-bit floats do not
    support: float64, graphs that are traced, second derivatives.

    More: `python -m regard docs pytorch`.
    """

    def __init__(self, recipe: fp8.Recipe, enabled: bool = True, *,
                 allow_future_scales: bool = False, quantize_probs: bool = False) -> None:
        if not isinstance(recipe, fp8.Recipe):
            raise TypeError(f"recipe ({recipe!r}) must be one of regard.fp8's: DelayedScaling, "
                            "Float8CurrentScaling, MXFP8BlockScaling or Float8BlockScaling")
        self.recipe, self.enabled, self.allow_future_scales = recipe, enabled, allow_future_scales
        self.quantize_probs = quantize_probs
        self._calls: list[int] = []

    def __enter__(self) -> fp8_autocast:
        self._calls.append(0)
        _state.open.append(self)
        _state.scope = self if self.enabled else None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        _state.open.remove(self)
        self._calls.pop()
        last = _state.open[-1] if _state.open else None
        _state.scope = last if last is not None and last.enabled else None

    def next_states(self) -> _CallStates:
        """Those of the next call of the scope."""
        if not isinstance(self.recipe, fp8.DelayedScaling):
            return _CallStates(self.recipe)
        index = self._calls[-1]
        self._calls[-1] += 1
        states: _CallStates = self.recipe._calls().setdefault(index, _CallStates(self.recipe))
        return states


autocast = fp8_autocast  # TransformerEngine's newer name


def active() -> fp8_autocast | None:
    """The scope that holds on this thread."""
    return _state.scope


def amax_of(x: Tensor) -> Tensor:
    return x.abs().amax().float() if x.numel() else torch.zeros(())


def _codes(x: Tensor, scale: float | Tensor, form: str) -> Tensor:
    """x * scale as 8-bit floats: to nearest, held to the largest number."""
    most = torch.finfo(_F8[form]).max
    return (x.float() * scale).clamp(-most, most).to(_F8[form])


def _block_amax(x: Tensor, rows: int, columns: int) -> Tensor:
    padded = torch.nn.functional.pad(x.abs().float(), (0, -x.shape[3] % columns, 0, -x.shape[2] % rows))
    return padded.unflatten(3, (-1, columns)).unflatten(2, (-1, rows)).amax((3, 5))


def _layout_of(recipe: fp8._Blocks) -> tuple[int, int]:
    """Rows and columns of a block that has one scale in q, k, v and the gradient of the result."""
    (rows, columns), (gradient_rows, _) = recipe.block(), recipe.block(backward=True)
    return min(rows, gradient_rows), columns


class Rounded:
    """A tensor in 8 bits and its descale, or those of its blocks."""

    def __init__(self, x: Tensor, states: _CallStates, name: str, given: torch.dtype | None,
                 amax: Tensor | None = None) -> None:
        """amax: the largest magnitude that counts, where it is not x's own."""
        state = states.tensors[name]
        self.descale: float | None = None
        self.scales: Tensor | None = None  # f32 [B,H,blocks of rows,blocks of columns]
        if given is not None:
            self.tensor = x.to(given)
        elif isinstance(states.recipe, fp8._Blocks):
            self._round_blocks(x, states, name)
        else:
            amax = amax_of(x) if amax is None else amax
            if isinstance(states.recipe, fp8.DelayedScaling):
                states.note(name, amax)
            else:
                state.step(amax.item())
            self.tensor = _codes(x, state.scale, state.form.name)
            self.descale = state.descale
        if self.tensor.stride(-1) != 1:
            self.tensor = self.tensor.contiguous()

    def _round_blocks(self, x: Tensor, states: _CallStates, name: str) -> None:
        recipe, state, backward = states.recipe, states.tensors[name], name == "d_out"
        assert isinstance(recipe, fp8._Blocks)
        if x.numel() == 0:
            self.tensor = x.to(_F8[state.form.name])
            return
        rows, columns = recipe.block(backward)
        state.step(_block_amax(x, rows, columns).numpy())
        spread = torch.from_numpy(recipe.spread(state.scale, tuple(x.shape), backward).copy())
        self.tensor = _codes(x, spread, state.form.name)
        scales = torch.from_numpy(np.array(state.descale, np.float32))
        if rows > _layout_of(recipe)[0]:  # another tensor has a scale for each row
            scales = scales.repeat_interleave(rows, 2)[:, :, :x.shape[2]].contiguous()
        self.scales = scales


def scale_keywords(rounded: dict[str, Rounded]) -> dict[str, Any]:
    """The arguments for the descales and scales of tensors."""
    return {**{f"descale_{name}": x.descale for name, x in rounded.items() if x.descale is not None},
            **{f"scales_{name}": x.scales for name, x in rounded.items() if x.scales is not None}}


class _Fp8Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: Options, states: _CallStates,
                given: torch.dtype | None, quantize_probs: bool) -> Tensor:
        rounded = {name: Rounded(x.detach(), states, name, given)
                   for name, x in (("q", q), ("k", k), ("v", v))}
        keywords: dict[str, Any] = {**native_keywords(options), **scale_keywords(rounded),
                                    "fp8_recipe": states.recipe.kind,
                                    "d_out_dtype": states.tensors["d_out"].form.name,
                                    "gradient_dtype": NAMES[q.dtype],
                                    "quantize_probs": quantize_probs}
        codes = [x.tensor for x in rounded.values()]
        if isinstance(states.recipe, fp8._Blocks) and any(x.scales is not None for x in rounded.values()):
            rows, columns = _layout_of(states.recipe)
            keywords.update(scale_layout=f"{rows}x{columns}", allow_future_scales=rows > 1)
        out = torch.empty((*q.shape[:3], v.shape[3]), dtype=q.dtype)
        needs_grad = any(ctx.needs_input_grad[:3])
        with drop_in_errors:
            result = _core.attention(*codes, out=out, return_saved=needs_grad,
                                     policy=call_policy(current_backends()), **keywords)
        if needs_grad:
            keywords.pop("seed", None)  # saved has it
            keywords.pop("d_out_dtype", None)
            ctx.save_for_backward(*codes, out)
            ctx.keywords, ctx.saved, ctx.states = keywords, result[1], states
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        q, k, v, out = ctx.saved_tensors
        rounded = Rounded(d_out, ctx.states, "d_out", None)
        keywords = {**ctx.keywords, **scale_keywords({"d_out": rounded})}
        with drop_in_errors:
            grads = _core.attention_backward(rounded.tensor, q, k, v, out, ctx.saved, **keywords)
        return (*grads[:3], None, None, None, None)


def attention(scope: fp8_autocast, given: Arguments) -> Tensor:
    """scaled_dot_product_attention in a scope, outside of context_parallel."""
    if is_traced():
        raise ArgumentError("fp8_autocast must be left out where a graph is traced or a transform is "
                            "active: its scales change between steps")
    f8 = given.query.dtype if given.query.dtype in _F8.values() else None
    if f8 is not None:  # bfloat16 has every number of theirs
        given = given._replace(query=given.query.to(torch.bfloat16), key=given.key.to(torch.bfloat16),
                               value=given.value.to(torch.bfloat16))
    made = problem(checked(given))
    if made.q.dtype not in NAMES or not made.q.is_cpu:
        raise ArgumentError(f"query ({made.q.dtype} on {made.q.device}) must be torch.float32, "
                            "torch.bfloat16, torch.float16 or an 8-bit float on the CPU in fp8_autocast")
    options = made.options
    if options.attn_bias is not None:
        if options.attn_bias.requires_grad:
            raise ArgumentError("attn_mask (requires_grad) must need no gradient in fp8_autocast")
        options = options._replace(attn_bias=options.attn_bias.float())
    recipe = scope.recipe
    along_sequence = isinstance(recipe, fp8._Blocks) and recipe.block()[0] > 1
    if options.is_causal and along_sequence and not scope.allow_future_scales:
        raise ArgumentError(
            f"recipe ({recipe!r}) has scales of blocks along the sequence: with is_causal later keys would "
            "change earlier results; use x_block_scaling_dim=1, or allow_future_scales=True")
    out: Tensor = _Fp8Attention.apply(made.q, made.k, made.v, options, scope.next_states(), f8,
                                      scope.quantize_probs)
    return made.of_caller(out, given)
