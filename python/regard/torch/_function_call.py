"""Calls with score and mask functions, recorded by autograd where gradients are needed."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import _core
from ._call import GRADIENTS, _layout_of, kind_of, turned
from ._function_cache import Functions
from ._options import TENSORS, Options, native_keywords
from ._scopes import call_policy, current_backends, drop_in_errors, refuse_ranks


class Blocks(NamedTuple):
    """What is known of a mask function, as regard.attention takes it."""

    map: Tensor  # uint8 [1|B,1|H,blocks_q,blocks_kv]: 0 hidden, 1 partial, 2 full
    size_q: int
    size_kv: int


class Call(NamedTuple):
    """What a call computes besides its tensors."""

    options: Options
    functions: Functions
    blocks: Blocks | None = None


def _keywords(call: Call, tensors: list[Tensor | None], captured: list[Tensor]) -> dict[str, Any]:
    """The keywords of regard.attention, with these tensors in place of those of the options."""
    found = native_keywords(Options._make([*tensors, *call.options[TENSORS:]]))
    if call.functions.score:
        found["score_function"] = call.functions.score
    if call.functions.mask:
        found["mask_function"] = call.functions.mask
        if "q_pos" in call.functions.mask:
            found["diagonal"] = call.options.diagonal
        if call.blocks is not None:
            found.update(block_mask=call.blocks.map, block_size_q=call.blocks.size_q,
                         block_size_kv=call.blocks.size_kv)
    if captured:
        found["captured"] = captured
    return found


def function_keywords(call: Call) -> dict[str, Any]:
    """The keywords of regard.attention that such a call has, policies aside."""
    return _keywords(call, list(call.options[:TENSORS]), [x.detach() for x in call.functions.captured])


def _run(q: Tensor, k: Tensor, v: Tensor, keywords: dict[str, Any], backends: str, **wanted: bool) -> Any:
    """What regard.attention returns, with out in q's memory order."""
    if backends:
        keywords["policy"] = call_policy(backends)
    layout = _layout_of(q)
    if layout == "BSHD":
        q, k, v = turned(layout, q, k, v)
        keywords["layout"] = layout
    with drop_in_errors:
        result = _core.attention(q, k, v, **{**keywords, **wanted})
    if layout == "BHSD":
        return result
    if isinstance(result, Tensor):
        return result.transpose(1, 2)
    return result[0].transpose(1, 2), *result[1:]


class _Recorded(torch.autograd.Function):
    """A call whose gradients are recorded: of q, k, v, of an added mask, of sinks, and of what the score
    function has captured."""

    @staticmethod
    def forward(ctx: Any, call: Call, backends: str, q: Tensor, k: Tensor, v: Tensor,
                *rest: Any) -> tuple[Tensor, Tensor]:
        tensors, captured = list(rest[:TENSORS]), [x.detach() for x in rest[TENSORS:]]
        keywords = _keywords(call, tensors, captured)
        out, lse, saved = _run(q, k, v, keywords, backends, return_lse=True, return_saved=True)
        ctx.save_for_backward(q, k, v, out, *rest)
        # Not the captured tensors and those of the options: autograd has them, and counts their versions.
        ctx.call = call._replace(options=Options._make([*[None] * TENSORS, *call.options[TENSORS:]]),
                                 functions=call.functions._replace(captured=[]))
        ctx.saved = saved
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None) -> tuple[Any, ...]:
        q, k, v, out, *rest = ctx.saved_tensors
        call, tensors = ctx.call, list(rest[:TENSORS])
        keywords = _keywords(call, tensors, [x.detach() for x in rest[TENSORS:]])
        keywords.pop("seed", None)  # saved has it
        keywords["d_lse"] = d_lse
        layout = _layout_of(q)
        if layout == "BSHD":
            keywords["layout"] = layout
        d_out = torch.zeros_like(out) if d_out is None else d_out
        with drop_in_errors:
            d_out, q, k, v, out = turned(layout, d_out, q, k, v, out)
            grads = _core.attention_backward(d_out, q, k, v, out, ctx.saved, **keywords)
        of_options: list[Tensor | None] = [None] * TENSORS
        for name, grad in (("attn_bias", grads.d_bias), ("sinks", grads.d_sinks)):
            at = Options._fields.index(name)
            given = tensors[at]
            if given is not None:
                of_options[at] = grad.to(given.dtype)
        d_captured = [grad if read else None
                      for grad, read in zip(grads.d_captured or (), call.functions.differentiable)]
        return (None, None, *turned(layout, grads.d_q, grads.d_k, grads.d_v), *of_options, *d_captured)


def attend(q: Tensor, k: Tensor, v: Tensor, call: Call, with_lse: bool = False,
           backends: str = "") -> tuple[Tensor, Tensor | None]:
    """out [B,Hq,Sq,Dv] and lse of [B,H,S,D] tensors on a CPU, outside of graphs and transforms; lse may be
    None where it was not requested."""
    refuse_ranks("attention with score or mask functions")
    backends = backends or current_backends()
    captured = call.functions.captured
    kind = kind_of(q, k, v, *[x for x in call.options[:TENSORS] if x is not None], *captured)
    if kind is GRADIENTS:
        made: Any = _Recorded.apply(call, backends, q, k, v, *call.options[:TENSORS], *captured)
        return made[0], made[1]
    result = _run(q, k, v, function_keywords(call), backends, **({"return_lse": True} if with_lse else {}))
    return result if with_lse else (result, None)
