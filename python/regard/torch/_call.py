"""Runs a call by the shortest path that still records what torch needs."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .. import _core
from . import _device
from ._formula import traced_formula
from ._options import TENSORS, Options, native_keywords
from ._scopes import (
    NAMES,
    ArgumentError,
    call_policy,
    current_backends,
    current_ranks,
    drop_in_errors,
    is_exporting,
    require_math,
)

_DIFFERENTIATES = (torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp)
_PLAIN_TYPES = (Tensor, Parameter)
_CAST_TYPES = (torch.float32, torch.float16, torch.bfloat16)  # autocast leaves float64 alone
NUMBERS, GRADIENTS, MORE = "numbers", "gradients", "more"  # kinds of calls
TYPES = frozenset((*_CAST_TYPES, torch.float64))
_tracing_state = torch._C._get_tracing_state
_dispatch_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._functorch.peek_interpreter_stack
_is_batched = torch._C._functorch.is_legacy_batchedtensor  # by torch.autograd, not by torch.func
_any_autocast = torch._C._is_any_autocast_enabled


def _layout_of(q: Tensor) -> str:
    """The memory order of q, and so of the results: BSHD where heads lie inside positions."""
    if q.is_contiguous() or q.shape[1] <= 1 or q.shape[2] <= 1 or q.stride(1) >= q.stride(2):
        return "BHSD"
    return "BSHD"


def turned(layout: str, *tensors: Tensor) -> tuple[Any, ...]:
    """The tensors with their dimensions in the order that native functions expect for `layout`."""
    return tensors if layout == "BHSD" else tuple(t.transpose(1, 2) for t in tensors)


def is_traced() -> bool:
    """Whether a graph is traced or a transform is active, so that numbers do not suffice."""
    if torch.compiler.is_compiling() or _tracing_state() is not None:
        return True
    return bool(_dispatch_modes() or _transforms())


def _autocasts() -> bool:
    if torch.compiler.is_compiling() or _any_autocast():  # the other one takes four times as long
        return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    return False


def _cast(x: Any) -> Any:
    if not isinstance(x, Tensor) or x.dtype not in _CAST_TYPES:
        return x
    device = x.device.type
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.get_autocast_dtype(device))


def autocast(*tensors: Tensor | None) -> tuple[Any, ...]:
    """The tensors as torch.autocast casts them for PyTorch's own operator.

    Runs before any check, so that a call may have tensors of several types.
    """
    return tuple([_cast(x) for x in tensors]) if _autocasts() else tensors


def are_plain(*tensors: Any) -> bool:
    """Whether all are PyTorch's own tensors, not a subclass."""
    for tensor in tensors:
        if type(tensor) not in _PLAIN_TYPES:
            return False
    return True


def _needs_more() -> bool:
    """Whether the scope of a call needs more than numbers or gradients, whatever its tensors are."""
    return (is_traced() or is_exporting() or _autocasts() or _needs_formula() or
            current_ranks() is not None)


def kind_of(*tensors: Any) -> str:
    """The kind of a call with these tensors: NUMBERS, GRADIENTS (recorded by autograd), or MORE (a
    graph, a transform, a cast, an export, ranks, or tensors that are not plain CPU tensors)."""
    if _needs_more():
        return MORE
    kind = NUMBERS
    for tensor in tensors:
        if type(tensor) not in _PLAIN_TYPES or not tensor.is_cpu or tensor.is_nested:
            return MORE
        if tensor.is_neg():
            return MORE
        if tensor.requires_grad:
            kind = GRADIENTS
    return NUMBERS if kind is NUMBERS or not torch.is_grad_enabled() else GRADIENTS


def are_numbers_on_device(*tensors: Tensor) -> bool:
    """Whether a call with these plain tensors of a CUDA device needs numbers alone."""
    if _needs_more() or not are_plain(*tensors) or are_negated(tensors):
        return False
    return all([_device.takes(tensor) for tensor in tensors]) and not _needs_grad(list(tensors))


def recorded(q: Tensor, k: Tensor, v: Tensor, options: Options) -> Tensor:
    """out of a call that autograd records."""
    out: Tensor = _record(q, k, v, *options[:TENSORS], options[TENSORS:], current_backends(), False)[0]
    return out


def _records(tensor: Tensor) -> bool:
    """Whether a gradient of it is recorded, also of a tensor inside a transform's wrapper."""
    if tensor.requires_grad:
        return True
    if torch.compiler.is_compiling() or not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    return _records(torch._C._functorch.get_unwrapped(tensor))


def _needs_grad(tensors: list[Tensor]) -> bool:
    return torch.is_grad_enabled() and any([_records(tensor) for tensor in tensors])


def _needs_formula() -> bool:
    """Whether forward mode or torch.func differentiates. Operators of torch.library support
    neither."""
    if torch.autograd.forward_ad._current_level >= 0:
        return True
    if torch.compiler.is_dynamo_compiling():
        return False
    stack = torch._C._functorch.get_interpreter_stack()
    return stack is not None and any(level.key() in _DIFFERENTIATES for level in stack)


def _by_formula(q: Tensor, k: Tensor, v: Tensor, options: Options,
                backends: str) -> tuple[Tensor, Tensor]:
    require_math(backends, "exportable()" if is_exporting() else "torch.func and forward mode")
    if options.dropout_p:
        raise ArgumentError(f"dropout_p ({options.dropout_p}) must be 0 in exportable(), in "
                            "torch.func and in forward mode: their operators draw no such mask")
    result = traced_formula(q, k, v, options)
    return result.out, result.lse


def _by_operator(q: Tensor, k: Tensor, v: Tensor, options: Options, backends: str,
                 needs_grad: bool) -> tuple[Tensor, Tensor]:
    out, lse, _, _ = torch.ops.regard.attention(q, k, v, *options, _layout_of(q), backends,
                                                needs_grad)
    return out, lse


def attend(q: Tensor, k: Tensor, v: Tensor, options: Options, return_lse: bool = False,
           backends: str = "") -> tuple[Tensor, Tensor | None]:
    """out [B,Hq,Sq,Dv] and lse of [B,H,S,D] tensors, [1,H,total,D] where options pack sequences; lse
    may be None where it was not requested.

    `backends` overrules what an sdpa_kernel scope says.
    """
    if _autocasts():
        q, k, v, bias = autocast(q, k, v, options.attn_bias)
        options = options._replace(attn_bias=bias)
    require_type("q", q)
    backends = backends or current_backends()
    ranks = current_ranks()
    if ranks is not None:
        results: tuple[Tensor, Tensor] = ranks.attend(q, k, v, options, backends)
        return results
    tensors = [q, k, v, *[tensor for tensor in options[:TENSORS] if tensor is not None]]
    kind = kind_of(*tensors)
    if kind is MORE:
        if is_exporting() or _needs_formula():
            return _by_formula(q, k, v, options, backends)
        kind = GRADIENTS if _needs_grad(tensors) else NUMBERS
        if is_traced() or q.is_meta or not are_plain(*tensors) or are_negated(tensors):
            return _by_operator(q, k, v, options, backends, kind is GRADIENTS)
    if kind is GRADIENTS:
        return _record(q, k, v, *options[:TENSORS], options[TENSORS:], backends, return_lse)
    return _run(q, k, v, options, backends, return_lse=return_lse)[:2]


def require_type(name: str, tensor: Tensor) -> None:
    """PyTorch's function has no kernel of 8 bits, and its results would be of another type."""
    if tensor.dtype not in TYPES:
        hint = ("; tensors of 8-bit floats are what regard.attention takes"
                if tensor.dtype.is_floating_point else "")
        raise ArgumentError(f"dtype of {name} ({tensor.dtype}) must be torch.float64, torch.float32, "
                            f"torch.float16 or torch.bfloat16{hint}")


def are_negated(tensors: Sequence[Tensor]) -> bool:
    """Whether the memory of any holds the numbers of another sign."""
    for tensor in tensors:
        if tensor.is_neg():
            return True
    return False


_BOTH = {"return_lse", "return_saved"}  # a gradient of lse may follow


def _run(q: Tensor, k: Tensor, v: Tensor, options: Options, backends: str,
         **wanted: bool) -> tuple[Tensor, Tensor | None, _core.Saved | _device.Saved | None]:
    """out; lse and saved, where return_lse and return_saved are set."""
    wanted = {word: True for word, value in wanted.items() if value}
    if _device.runs_in_place(q, options):
        out, lse, saved = _device.numbers(q, k, v, options, backends, "return_saved" in wanted,
                                          _layout_of(q), d_lse=wanted.keys() == _BOTH)
        return out, lse if "return_lse" in wanted else None, saved
    result = numbers(q, k, v, {**native_keywords(options), **wanted}, backends)
    if not wanted:
        return result, None, None
    return (result[0], result[1] if "return_lse" in wanted else None,
            result[-1] if "return_saved" in wanted else None)


def numbers(q: Tensor, k: Tensor, v: Tensor, keywords: dict[str, Any], backends: str) -> Any:
    """What regard.attention returns, with out in q's memory order; `keywords` may be changed."""
    if backends:
        keywords["policy"] = call_policy(backends)
    layout = _layout_of(q)
    if layout == "BSHD":
        q, k, v = turned(layout, q, k, v)
        keywords["layout"] = layout
    with drop_in_errors:
        result = _core.attention(q, k, v, **keywords)
    if layout == "BHSD":
        return result
    if isinstance(result, Tensor):
        return result.transpose(1, 2)
    return result[0].transpose(1, 2), *result[1:]


def numbers_of_rows(q: Tensor, k: Tensor, v: Tensor, options: Options, **further: Any) -> Any:
    """What regard.attention returns of [B,S,H,D] tensors; eight transpositions cost as much as a small
    attention. `further`: its keywords that no option is."""
    keywords = native_keywords(options)
    backends = current_backends()
    if backends:
        keywords["policy"] = call_policy(backends)
    with drop_in_errors:
        return _core.attention(q, k, v, layout="BSHD", **keywords, **further)


class Recorded(torch.autograd.Function):
    """A call whose gradients are recorded, where nothing else is: the operator's own way costs ten
    times as much."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Any, ...]:
        *tensors, values, backends, return_lse = rest
        options = Options(*tensors, *values)
        out, lse, saved = _run(q, k, v, options, backends, return_lse=return_lse, return_saved=True)
        ctx.save_for_backward(q, k, v, out, *tensors)
        ctx.values, ctx.saved = values, saved
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None) -> tuple[Any, ...]:
        q, k, v, out, *tensors = ctx.saved_tensors
        options = Options(*tensors, *ctx.values)
        if d_out is None:
            d_out = torch.zeros_like(out)
        # A gradient of the gradient may follow, or d_out be many (is_grads_batched): the operator
        # records the one and has a rule for the other.
        more = (torch.is_grad_enabled() or is_traced() or _is_batched(d_out) or
                not are_plain(d_out) or d_out.is_neg())
        run = recorded_backward if more else backward_numbers
        grads = run((d_out, d_lse), (q, k, v, out), ctx.saved, options, _layout_of(q))
        return (*grads[:3], None, grads[3], grads[4], *[None] * TENSORS)


# Less Function.apply's own look at torch.func's transforms, a fifth of the time: none is there.
_record = super(torch.autograd.Function, Recorded).apply


def backward_numbers(given: tuple[Tensor, Tensor | None], tensors: tuple[Tensor, ...],
                     saved: _core.Saved | _device.Saved, options: Options,
                     layout: str) -> list[Tensor | None]:
    """d_q, d_k, d_v, d_bias and d_sinks, each of its tensor's type; None where there is none.

    given: d_out and d_lse; tensors: q, k, v and out; layout: the order in which results lie.
    """
    if isinstance(saved, _device.Saved):
        return _device.backward_numbers(given, tensors, saved, options, layout)
    d_out, d_lse = given
    keywords = native_keywords(options)
    keywords.pop("seed", None)  # saved has it
    if layout == "BSHD":
        keywords["layout"] = layout
    d_out, q, k, v, out = turned(layout, d_out, *tensors)
    grads = list(_core.attention_backward(d_out, q, k, v, out, saved, d_lse=d_lse, **keywords)[:5])
    grads[:3] = turned(layout, *grads[:3])
    for at, tensor in ((3, options.attn_bias), (4, options.sinks)):
        if tensor is not None and grads[at].dtype != tensor.dtype:
            grads[at] = grads[at].to(tensor.dtype)
    return grads


def recorded_backward(given: tuple[Tensor, Tensor | None], tensors: tuple[Tensor, ...],
                      saved: _core.Saved | _device.Saved, options: Options,
                      layout: str) -> tuple[Any, ...]:
    """The same by the operator, whose own derivative is the formula."""
    d_q, d_k, d_v, d_bias, d_sinks = torch.ops.regard.attention_backward(
        *given, *tensors, saved.stats, state_of(saved), *options, layout)
    return (d_q, d_k, d_v, None if options.attn_bias is None else d_bias,
            None if options.sinks is None else d_sinks)


def state_of(saved: _core.Saved | _device.Saved) -> Tensor:
    """The backend that ran, the seed, the offset and the policy's max_error, as a tensor that a
    graph can hold. On the CPU wherever the call's tensors lie, for a backward reads it before it
    can launch anything."""
    seed = saved.seed - (1 << 64) if saved.seed >> 63 else saved.seed
    limit = math.inf if saved.max_error is None else saved.max_error
    bits, = struct.unpack("q", struct.pack("d", limit))
    return torch.tensor([NAMES.index(str(saved.backend)), seed, saved.offset, bits],
                        dtype=torch.int64, device="cpu")


def saved_of(make: Any, stats: Tensor, state: Tensor) -> Any:
    """What state_of was made of, with its stats."""
    backend, seed, offset, bits = state.tolist()
    limit, = struct.unpack("d", struct.pack("q", bits))
    return make(stats=stats, seed=seed & 0xFFFFFFFFFFFFFFFF, offset=offset, backend=NAMES[backend],
                max_error=limit)
