"""torch.nn.functional.scaled_dot_product_attention, run by regard."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .. import _core
from .._selection import Selection
from . import _device, _fp8
from ._call import GRADIENTS, MORE, TYPES, are_plain, attend, kind_of, numbers, recorded
from ._inputs import Arguments, Problem, checked, is_usual, problem, with_dims
from ._nested import has_nested, nested_attention
from ._options import Options, mask_options, native_keywords
from ._scopes import (
    ArgumentError,
    backend_name,
    current_backends,
    current_policy,
    current_ranks,
    drop_in_errors,
)


def _is_simple(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> bool:
    """Whether tensors of 2 to 4 dimensions need neither a copy nor an error."""
    if not query.dtype == key.dtype == value.dtype or query.dtype not in TYPES:
        return False
    q, k, v = query.shape, key.shape, value.shape
    if len(q) == 4:
        return is_usual(q, k, v, enable_gqa)
    if not 2 <= len(q) == len(k) == len(v) <= 3 or len(q) == 2 and enable_gqa:
        return False
    if len(q) == 2:
        return k[1] == q[1] != 0 != v[1]
    return is_usual((1, *q), (1, *k), (1, *v), enable_gqa)


def _lifted(x: Tensor) -> Tensor:
    """A tensor of 2 or 3 dimensions as [B,H,S,D]."""
    return x.unsqueeze(0) if x.dim() == 3 else x.view((1, 1, *x.shape))


def _lowered(out: Tensor, dims: int) -> Tensor:
    return out.squeeze(0) if dims == 3 else out.view(out.shape[2:])


def _is_simple_mask(mask: Tensor, query: Tensor) -> bool:
    return 1 <= mask.dim() <= query.dim() and mask.dtype in (torch.bool, torch.float32, query.dtype)


def _simple(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool,
            scale: float | None) -> Tensor:
    """A call without gradients. Short, because a small attention takes less time than the checks of
    its arguments."""
    keywords: dict[str, Any] = {} if scale is None else {"softmax_scale": scale}
    if is_causal:
        keywords.update(is_causal=True, diagonal="top_left")
    elif attn_mask is not None:  # the library adds missing dimensions in front
        keywords["attn_mask" if attn_mask.dtype == torch.bool else "attn_bias"] = attn_mask
    dims = query.dim()
    if dims == 4:
        return numbers(query, key, value, keywords, current_backends())
    out = numbers(_lifted(query), _lifted(key), _lifted(value), keywords, current_backends())
    return _lowered(out, dims)


def _simple_recorded(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None,
                     is_causal: bool, scale: float | None) -> Tensor:
    """The same with gradients."""
    mask = attn_mask if attn_mask is None else with_dims(attn_mask, 4)
    options = Options(*mask_options(mask), softmax_scale=scale, is_causal=is_causal)
    dims = query.dim()
    if dims == 4:
        return recorded(query, key, value, options)
    return _lowered(recorded(_lifted(query), _lifted(key), _lifted(value), options), dims)


def _without_causal_bias(given: Arguments) -> Arguments:
    """Replaces causal_upper_left and causal_lower_right of torch.nn.attention.bias by is_causal:
    their class defines what they mean, and their memory was never written."""
    from torch.nn.attention.bias import CausalBias, CausalVariant

    bias = given.attn_mask
    if not isinstance(bias, CausalBias):
        return given
    if given.is_causal:
        raise ArgumentError("CausalBias should not be used with causal=True: is_causal (True) must be "
                            "False beside a causal attn_mask")
    rows, keys = bias.seq_len_q, bias.seq_len_kv
    if rows == keys or bias.variant == CausalVariant.UPPER_LEFT:  # PyTorch's own conditions
        return given._replace(attn_mask=None, is_causal=True)
    if rows == given.query.shape[-2] and keys == given.key.shape[-2]:
        return given._replace(attn_mask=None, is_causal=True, diagonal="bottom_right")
    return given._replace(attn_mask=bias._materialize(given.query.device))


def general(given: Arguments, function: Callable[..., Any] | None = None) -> Tensor:
    """Any call, recorded or not. `function` is the one that the caller named, for subclasses."""
    if has_nested(*given[:3]):
        return nested_attention(given, general)
    if not are_plain(*given[:3]) or not (given.attn_mask is None or are_plain(given.attn_mask)):
        if given.attn_mask is not None:
            given = _without_causal_bias(given)
        tensors = tuple(x for x in given[:4] if isinstance(x, Tensor))
        if has_torch_function(tensors) and given.diagonal == "top_left":
            return _overridden(tensors, given, function or scaled_dot_product_attention)
    given = checked(given)
    made = problem(given)
    out, _ = attend(made.q, made.k, made.v, made.options)
    return made.of_caller(out, given)


def _overridden(tensors: tuple[Tensor, ...], given: Arguments,
                function: Callable[..., Any]) -> Tensor:
    """Calls the __torch_function__ of a subclass of Tensor."""
    query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, _ = given
    out: Tensor = handle_torch_function(
        function, tensors, query, key, value, attn_mask=attn_mask, dropout_p=dropout_p,
        is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    return out


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor,
                                 attn_mask: Tensor | None = None, dropout_p: float = 0.0,
                                 is_causal: bool = False, *, scale: float | None = None,
                                 enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, computed by regard.

    Arguments, shapes and meaning are PyTorch's: query [..., Hq, L, E], key [..., H, S, E] and value
    [..., H, S, Ev] give [..., Hq, L, Ev]; is_causal counts from the top left corner, a boolean mask
    is True where a query may attend. Nested tensors of the jagged layout are taken without a mask,
    and is_causal is counted within each sequence. Types are float64, float32, bfloat16 and float16.
    Tensors lie on the CPU or, in a build with CUDA, on a device. A row that may attend to nothing
    is 0, with zero gradients.

        >>> import torch, regard.torch
        >>> q = k = v = torch.ones(1, 2, 5, 64, requires_grad=True)
        >>> out = regard.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
        >>> out.shape
        torch.Size([1, 2, 5, 64])
        >>> out.sum().backward()

    Raises regard.torch.ArgumentError or TypeError for an argument, and regard.NoBackendError, with
    every reason, where no backend can run the call.

    More: `python -m regard docs pytorch`.
    """
    if (scope := _fp8.active()) is not None and current_ranks() is None:  # ranks round together
        return _fp8.attention(scope, Arguments(query, key, value, attn_mask, dropout_p, is_causal,
                                               scale, enable_gqa))
    kind = (kind_of(query, key, value) if attn_mask is None
            else kind_of(query, key, value, attn_mask))
    if (kind is not MORE and dropout_p == 0.0
            and (is_causal is False or is_causal is True and attn_mask is None)
            and (enable_gqa is False or enable_gqa is True)
            and (scale is None or type(scale) is float)
            and _is_simple(query, key, value, enable_gqa)
            and (attn_mask is None or _is_simple_mask(attn_mask, query))):
        simple = _simple_recorded if kind is GRADIENTS else _simple
        try:
            return simple(query, key, value, attn_mask, is_causal, scale)
        except (RuntimeError, TypeError, ValueError):  # a sparse tensor, for instance
            problem(checked(Arguments(query, key, value, attn_mask, dropout_p, is_causal, scale,
                                      enable_gqa)), draws=False)
            raise
    return general(Arguments(query, key, value, attn_mask, dropout_p, is_causal, scale,
                             enable_gqa))


def _selection(made: Problem, needs_grad: bool) -> Selection:
    q, k, v, options = made[:4]
    with drop_in_errors:
        if _device.takes(q):
            return _device.explain(q, k, v, options, current_policy(), needs_grad)
        return _core.explain(q, k, v, policy=current_policy(), return_saved=needs_grad,
                             **native_keywords(options))


def explain(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
            dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
            enable_gqa: bool = False) -> Selection:
    """The regard.Selection of scaled_dot_product_attention with these arguments: which backend runs
    it, and why the others do not. Computes nothing.

        >>> import torch, regard.torch
        >>> q = k = v = torch.ones(1, 2, 5, 64)
        >>> regard.torch.explain(q, k, v, is_causal=True).chosen
        'flash'

    Raises what scaled_dot_product_attention raises for its arguments.

    More: `python -m regard docs pytorch`.
    """
    given = Arguments(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if attn_mask is not None and not are_plain(attn_mask):
        given = _without_causal_bias(given)
    wants_grad = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in given[:4])
    with torch.no_grad():
        made = problem(checked(given), draws=False)
        selection = _selection(made, wants_grad)
    if wants_grad:
        selection.notes += ("second derivatives are those of regard.torch's explicit MATH formula "
                            "in ATen operators, whichever backend computes the first",)
    return selection


def can_use(backend: Any, query: Tensor, key: Tensor, value: Tensor,
            attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
            scale: float | None = None, enable_gqa: bool = False, debug: bool = False) -> bool:
    """Whether that backend can run the call here, whatever the policy; debug=True warns of each
    reason why it can not.

    backend is a torch.nn.attention.SDPBackend or a name; the rest is scaled_dot_product_attention's.

        >>> import torch, regard.torch
        >>> q = k = v = torch.ones(1, 2, 5, 64)
        >>> regard.torch.can_use("flash", q, k, v, is_causal=True)
        True

    Raises TypeError or ValueError for another backend, and what scaled_dot_product_attention raises.

    More: `python -m regard docs pytorch`.
    """
    name = backend_name(backend, "backend")
    selection = explain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                        enable_gqa=enable_gqa)
    (candidate,) = [c for c in selection.candidates if c["backend"] == name]
    usable = bool(candidate["usable"])
    if debug and not usable:
        for refusal in selection.refusals:
            if refusal.backend == name:
                warnings.warn(str(refusal), stacklevel=2)
    return usable
