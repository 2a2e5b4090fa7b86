"""torch.ops.regard: attention and its backward as operators of torch.library.

Tensors are [B,H,S,D], whatever their memory order; `layout` is the memory order of the results.
Two more results are what a backward needs: `stats`, and `state` (the backend that ran, seed and
offset). A graph can hold them, and a policy scope cannot change the backend of the backward. On a
CUDA device, and where sequences are packed, `stats` is empty and the backward takes lse, since an
operator's results may not share memory; `state` is a CPU tensor, so that no backward waits for the
device. Packed sequences are [1,H,total,D], and their lse [1,Hq,total].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _core
from . import _device
from ._call import backward_numbers, require_type, saved_of, state_of, turned
from ._formula import dropout_factors, formula
from ._options import OPTIONS_SCHEMA, TENSORS, Options, explain_shapes, is_packed, native_keywords
from ._scopes import ArgumentError, call_policy, drop_in_errors

_COUNT = len(Options._fields)
_KEPT = TENSORS + 1  # options that are tensors, rng among them
_FORWARD = (f"(Tensor q, Tensor k, Tensor v, {OPTIONS_SCHEMA}, str layout, str backends, bool save) -> "
            "(Tensor, Tensor, Tensor, Tensor)")
_BACKWARD = (f"(Tensor d_out, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor "
             f"stats, Tensor state, {OPTIONS_SCHEMA}, str layout) -> "
             "(Tensor, Tensor, Tensor, Tensor, Tensor)")


def _stats_shape(q: Tensor, options: Options, save: bool) -> tuple[int, ...]:
    return (*q.shape[:3], 2) if save and not _device.runs_in_place(q, options) else (0,)


def _new_state(q: Tensor, save: bool) -> Tensor:
    return torch.empty(4 if save else 0, dtype=torch.int64,
                       device="meta" if q.device.type == "meta" else "cpu")


def _numbers(q: Tensor, k: Tensor, v: Tensor, options: Options, layout: Any, backends: str,
             save: bool) -> tuple[Any, ...]:
    """out, lse and, with `save`, what the backward needs; CPU tensors."""
    with drop_in_errors:
        out, *others = _core.attention(*turned(layout, q, k, v), layout=layout, return_lse=True,
                                       return_saved=save, policy=call_policy(backends),
                                       **native_keywords(options))
    return (*turned(layout, out), *others)


def _attention(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    options = Options(*rest[:_COUNT])
    layout, backends, save = rest[_COUNT:]
    require_type("q", q)
    with torch.no_grad():
        if _device.runs_in_place(q, options):
            results = _device.numbers(q, k, v, options, backends, save, layout)
        else:
            results = _numbers(q, k, v, options, layout, backends, save)
    out, lse, *saved = results
    shape = _stats_shape(q, options, save)
    stats = saved[0].stats if len(shape) > 1 else q.new_empty(shape, dtype=_device.wide(q))
    return out, lse, stats, state_of(saved[0]) if save else _new_state(q, save)


def kept(results: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """out, stats and state of a call, as its backward takes them."""
    out, lse, stats, state = results
    return out, lse if stats.dim() == 1 else stats, state


def _require_valid(q: Tensor, k: Tensor, v: Tensor, options: Options) -> None:
    """Raises what the call would raise, from shapes and options alone.

    Symbolic extents are not checked: a question about one would become a guard of the graph. The
    operator itself raises when it runs.
    """
    require_type("q", q)
    _device.require_built(q)
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            raise ArgumentError(f"dtype of {name} ({tensor.dtype}) must be q's, {q.dtype}")
    tensors = [x for x in (q, k, v, *options[:TENSORS]) if x is not None]
    if not is_packed(options) and all(type(extent) is int for x in tensors for extent in x.shape):
        with drop_in_errors:
            explain_shapes(q, k, v, options)


def _attention_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    layout, _, save = rest[_COUNT:]
    options = Options(*rest[:_COUNT])
    _require_valid(q, k, v, options)
    batch, heads, rows, _ = q.shape
    out = _device.like_rows(q, (batch, heads, rows, v.shape[3]), layout)
    lse = q.new_empty((batch, heads, rows), dtype=_device.wide(q))
    stats = q.new_empty(_stats_shape(q, options, save), dtype=_device.wide(q))
    return out, lse, stats, _new_state(q, save)


def _backward(d_out: Tensor, d_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor,
              stats: Tensor, state: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    options = Options(*rest[:_COUNT])
    with torch.no_grad():
        in_place = _device.runs_in_place(q, options)
        saved = saved_of(_device.Saved if in_place else _core.Saved, stats, state)
        grads = backward_numbers((d_out, d_lse), (q, k, v, out), saved, options, rest[_COUNT])
    return tuple(q.new_empty(0) if grad is None else grad for grad in grads)


def _backward_fake(d_out: Tensor, d_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor,
                   out: Tensor, stats: Tensor, state: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    options, layout = Options(*rest[:_COUNT]), rest[_COUNT]
    rows = [_device.like_rows(x, tuple(x.shape), layout) for x in (q, k, v)]
    empty = [q.new_empty(0) if x is None else x.new_empty(x.shape)
             for x in (options.attn_bias, options.sinks)]
    return (*rows, *empty)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:3], *kept(output), *inputs[3:3 + _KEPT])
    ctx.options = inputs[3 + _KEPT:3 + _COUNT]
    ctx.layout, ctx.backends, ctx.saved = inputs[3 + _COUNT:]
    ctx.count = len(inputs)
    ctx.set_materialize_grads(False)


def _first_derivative(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None, *unused: Any) -> Any:
    q, k, v, out, stats, state, *tensors = ctx.saved_tensors
    if not ctx.saved:  # recorded where no input had a gradient: vmap, an exported program
        with torch.no_grad():
            out, stats, state = kept(torch.ops.regard.attention(
                q, k, v, *tensors, *ctx.options, ctx.layout, ctx.backends, True))
    if d_out is None:
        d_out = torch.zeros_like(out)
    d_q, d_k, d_v, d_bias, d_sinks = torch.ops.regard.attention_backward(
        d_out, d_lse, q, k, v, out, stats, state, *tensors, *ctx.options, ctx.layout)
    grads: list[Tensor | None] = [None] * ctx.count
    grads[:3] = d_q, d_k, d_v
    if tensors[1] is not None:
        grads[4] = d_bias
    if tensors[2] is not None:
        grads[5] = d_sinks
    return tuple(grads)


def _setup_second(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    d_out, d_lse, q, k, v, _, _, state = inputs[:8]
    ctx.save_for_backward(d_out, d_lse, q, k, v, state, *inputs[8:8 + _KEPT])
    ctx.options, ctx.count = inputs[8 + _KEPT:8 + _COUNT], len(inputs)
    ctx.set_materialize_grads(False)


def _second_derivative(ctx: Any, *grads: Tensor | None) -> Any:
    """Through the formula, whichever backend ran: a backward of a backward is MATH's alone."""
    d_out, d_lse, q, k, v, state, *tensors = ctx.saved_tensors
    options = Options(*tensors, *ctx.options)
    if options.dropout_p:
        options = options._replace(rng=state[1:2])
    factors = dropout_factors(q, k, options)
    places = {0: d_out, 1: d_lse, 2: q, 3: k, 4: v, 9: options.attn_bias, 10: options.sinks}
    with torch.enable_grad():
        # Views, so that each place has a gradient of its own even where one tensor stands in two.
        views = {at: x.view_as(x) for at, x in places.items() if x is not None and
                 (x.requires_grad or at >= 2)}
        views = {at: x if x.requires_grad else x.detach().requires_grad_()
                 for at, x in views.items()}
        given = {at: views.get(at, x) for at, x in places.items()}
        result = formula(given[2], given[3], given[4],
                         options._replace(attn_bias=given[9], sinks=given[10]), factors)
        value = (result.out * given[0]).sum()
        if given[1] is not None:
            seen = torch.isfinite(result.lse)
            value = value + torch.where(seen, result.lse * given[1], 0.0).sum()
        first_places = [2, 3, 4, *(at for at in (9, 10) if given[at] is not None)]
        first = torch.autograd.grad(value, [given[at] for at in first_places], create_graph=True,
                                    allow_unused=True)
        wanted = [at for at, needed in enumerate(ctx.needs_input_grad) if needed and at in views]
        pairs = [(f, g) for f, g in zip(first, _in_order(grads, given)) if f is not None and
                 g is not None and f.requires_grad]
        if not pairs or not wanted:
            return (None,) * ctx.count
        second = torch.autograd.grad([f for f, _ in pairs], [views[at] for at in wanted],
                                     [g for _, g in pairs], create_graph=torch.is_grad_enabled(),
                                     allow_unused=True)
    all_grads: list[Tensor | None] = [None] * ctx.count
    for at, grad in zip(wanted, second):
        all_grads[at] = grad
    return tuple(all_grads)


def _in_order(grads: tuple[Tensor | None, ...], given: dict[int, Any]) -> list[Tensor | None]:
    """The gradients of d_q, d_k, d_v, and of d_bias and d_sinks where those exist."""
    return [*grads[:3], *(g for g, at in zip(grads[3:], (9, 10)) if given[at] is not None)]


def _vmap(op: Any) -> Any:
    """Calls an operator for each element: its heads and its dropout are one batch's own."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        results = [op(*(a if dim is None else a.select(dim, i) for a, dim in zip(args, in_dims)))
                   for i in range(info.batch_size)]
        stacked = tuple(torch.stack(parts) for parts in zip(*results))
        return stacked, (0,) * len(stacked)

    return rule


def _vmap_forward(info: Any, in_dims: tuple[int | None, ...], q: Tensor, k: Tensor, v: Tensor,
                  *rest: Any) -> Any:
    """One call over N*B sequences where only tensors with a batch dimension are mapped over."""
    options = Options(*rest[:_COUNT])
    n, dims = info.batch_size, dict(enumerate(in_dims))
    per_head = any(dims[3 + Options._fields.index(name)] is not None
                   for name in ("sinks", "alibi_slopes", "rng"))
    if per_head or is_packed(options) or options.dropout_p or n == 0:
        return _vmap(torch.ops.regard.attention)(info, in_dims, q, k, v, *rest)

    def folded(x: Tensor | None, dim: int | None, batch: int) -> Tensor | None:
        if x is None or (dim is None and x.dim() == 4 and x.shape[0] == 1):
            return x
        x = x.unsqueeze(0).expand(n, *x.shape) if dim is None else x.movedim(dim, 0)
        return x.expand(n, batch, *x.shape[2:]).reshape(n * batch, *x.shape[2:])

    batch = q.shape[0] if dims[0] is None else q.movedim(dims[0], 0).shape[1]
    tensors = [folded(x, dims[i], batch) for i, x in enumerate((q, k, v))]
    changed: dict[str, Any] = {name: folded(getattr(options, name), dims[3 + i], batch)
               for i, name in enumerate(Options._fields[:TENSORS])
               if name in ("attn_mask", "attn_bias", "seqlens_q", "seqlens_kv")}
    results = torch.ops.regard.attention(*tensors, *options._replace(**changed), *rest[_COUNT:])
    out, lse, stats, state = results
    parts = [x.unflatten(0, (n, batch)) for x in (out, lse)]
    stats = stats.unflatten(0, (n, batch)) if stats.dim() == 4 else stats.expand(n, 0)
    return (*parts, stats, state.expand(n, *state.shape)), (0, 0, 0, 0)


def _autocast(op: Any, device: str) -> Any:
    """q, k, v and a bias in autocast's type, as PyTorch does for its own operator."""
    key = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device}"))

    def kernel(keyset: Any, *args: Any) -> Any:
        dtype = torch.get_autocast_dtype(device.lower())

        def cast(at: int, x: Any) -> Any:
            floats = (torch.float32, torch.float16, torch.bfloat16)
            return x.to(dtype) if at in (0, 1, 2, 4) and x is not None and x.dtype in floats else x

        with torch._C._ExcludeDispatchKeyGuard(key):
            return op(*(cast(at, x) for at, x in enumerate(args)))

    return kernel


def register() -> None:
    """Makes torch.ops.regard; once, when regard.torch is imported."""
    keywords: dict[str, Any] = {"mutates_args": (), **_device.OPERATOR}
    forward = torch.library.custom_op("regard::attention", _attention, schema=_FORWARD, **keywords)
    backward = torch.library.custom_op("regard::attention_backward", _backward, schema=_BACKWARD,
                                       **keywords)
    forward.register_fake(_attention_fake)
    backward.register_fake(_backward_fake)
    forward.register_autograd(_first_derivative, setup_context=_setup)
    backward.register_autograd(_second_derivative, setup_context=_setup_second)
    forward.register_vmap(_vmap_forward)
    backward.register_vmap(_vmap(torch.ops.regard.attention_backward))
    library = torch.library.Library("regard", "FRAGMENT")
    for device in ("CPU", "CUDA"):
        library.impl("attention", _autocast(torch.ops.regard.attention.default, device),
                     f"Autocast{device}", with_keyset=True)
    _libraries.append(library)


_libraries: list[torch.library.Library] = []  # a registration lives as long as its library
