"""From tensors and options to a result, by the shortest way that keeps what torch records."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

from .. import _core
from ._formula import formula
from ._options import Options, native_keywords
from ._scopes import SdpaError, call_policy, current_backends, is_exporting

_DIFFERENTIATES = (torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp)
_PLAIN_TYPES = (Tensor, Parameter)


def _is_bshd(q: Tensor) -> bool:
    """Whether heads lie inside positions in memory: results then lie so, too."""
    return q.shape[1] > 1 and q.shape[2] > 1 and q.stride(1) < q.stride(2)


def _is_recorded(tensors: list[Tensor]) -> bool:
    """Whether anything but the numbers is asked of this call: a graph, a trace, a transform."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return True
    if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack():
        return True
    if torch.is_autocast_enabled("cpu"):
        return True
    grad = torch.is_grad_enabled()
    for tensor in tensors:
        if type(tensor) not in _PLAIN_TYPES or tensor.is_neg() or grad and tensor.requires_grad:
            return True
    return False


def _needs_grad(tensors: list[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _needs_formula() -> bool:
    """Whether tangents travel along, or torch.func differentiates: an operator of torch.library has
    neither a forward derivative nor a place in torch.func.grad."""
    if torch.autograd.forward_ad._current_level >= 0:
        return True
    if torch.compiler.is_dynamo_compiling():
        return False
    stack = torch._C._functorch.get_interpreter_stack()
    return stack is not None and any(level.key() in _DIFFERENTIATES for level in stack)


def attend(q: Tensor, k: Tensor, v: Tensor, options: Options, return_lse: bool = False,
           backends: str = "") -> tuple[Tensor, Tensor | None]:
    """out [B,Hq,Sq,Dv] and lse of [B,H,S,D] tensors; lse may be None where it was not asked for.

    `backends` overrules what an sdpa_kernel scope says.
    """
    tensors = [q, k, v]
    for tensor in options[:6]:
        if tensor is not None:
            tensors.append(tensor)
    if is_exporting() or _needs_formula():
        if options.dropout_p:
            raise SdpaError(f"dropout_p ({options.dropout_p}) must be 0 in exportable(), in torch.func "
                            "and in forward mode, whose plain operators draw no mask of regard's")
        result = formula(q, k, v, options)
        return result.out, result.lse
    backends = backends or current_backends()
    if _is_recorded(tensors):
        layout = "BSHD" if _is_bshd(q) else "BHSD"
        out, lse, _, _ = torch.ops.regard.attention(q, k, v, *options, layout, backends,
                                                    _needs_grad(tensors))
        return out, lse
    return _numbers(q, k, v, options, backends, return_lse)


def _numbers(q: Tensor, k: Tensor, v: Tensor, options: Options, backends: str,
             return_lse: bool) -> tuple[Tensor, Tensor | None]:
    keywords = native_keywords(options)
    if backends:
        keywords["policy"] = call_policy(backends)
    if return_lse:
        keywords["return_lse"] = True
    bshd = _is_bshd(q)
    if bshd:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        keywords["layout"] = "BSHD"
    result = _core.attention(q, k, v, **keywords)
    out, lse = result if return_lse else (result, None)
    return out.transpose(1, 2) if bshd else out, lse
