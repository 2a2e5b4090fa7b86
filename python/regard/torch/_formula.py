"""MATH as a formula of differentiable ATen operators.

It is the graph of regard.torch.exportable(), the second derivative of the operators, and what
forward-mode differentiation runs. It computes in f32 (f64 for f64), as MATH does.
"""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _core
from . import _device
from ._options import (
    DROPOUT_STEPS,
    Options,
    explain_shapes,
    is_packed,
    kept_steps,
    native_keywords,
)


class Result(NamedTuple):
    out: Tensor
    lse: Tensor
    probs: Tensor


def _shift(options: Options, sq: int, skv: int) -> Tensor | int:
    """The shift of the diagonal from the top left corner; [B,1,1,1] where lengths are given."""
    if options.diagonal == "top_left":
        return 0
    if options.seqlens_q is None and options.seqlens_kv is None:
        return skv - sq
    len_q = sq if options.seqlens_q is None else options.seqlens_q.view(-1, 1, 1, 1).long()
    len_kv = skv if options.seqlens_kv is None else options.seqlens_kv.view(-1, 1, 1, 1).long()
    return len_kv - len_q


def _distances(options: Options, scores: Tensor) -> Tensor:
    """The key's position minus the row's position on the diagonal, [.,.,Sq,Skv]."""
    sq, skv = scores.shape[-2], scores.shape[-1]
    rows = torch.arange(sq, device=scores.device).view(1, 1, -1, 1)
    keys = torch.arange(skv, device=scores.device).view(1, 1, 1, -1)
    return keys - rows - _shift(options, sq, skv)


def _allowed(options: Options, scores: Tensor) -> Tensor | None:
    """True where a row may see a key; None where every row sees every key."""
    rules = [] if options.attn_mask is None else [options.attn_mask]
    right = 0 if options.is_causal else options.window_right
    if right >= 0:
        rules.append(_distances(options, scores) <= right)
    if options.window_left >= 0:
        rules.append(_distances(options, scores) >= -options.window_left)
    if options.seqlens_kv is not None:
        keys = torch.arange(scores.shape[-1], device=scores.device)
        rules.append(keys < options.seqlens_kv.view(-1, 1, 1, 1))
    if options.seqlens_q is not None:
        rows = torch.arange(scores.shape[-2], device=scores.device).view(1, 1, -1, 1)
        rules.append(rows < options.seqlens_q.view(-1, 1, 1, 1))
    allowed = None
    for rule in rules:
        allowed = rule if allowed is None else allowed & rule
    return allowed


def _to(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else x.to(dtype)  # a conversion to the same type stays in a graph


def _product(x: Tensor, y: Tensor) -> Tensor:
    """x [B,Hq,S,N] times y [B,Hkv,N,M], each head of x with the y of its group."""
    heads, heads_kv = x.shape[1], y.shape[1]
    if heads == heads_kv:
        return torch.matmul(x, y)
    # A group's rows below each other in one matrix would copy no y, but exporting it with dynamic
    # extents fails: the view's strides have guards that no extent is proved to keep.
    grouped = x.unflatten(1, (heads_kv, heads // heads_kv))
    return torch.matmul(grouped, y.unsqueeze(2)).flatten(1, 2)


def _edited(scores: Tensor, options: Options) -> Tensor:
    if options.softcap:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    if options.attn_bias is not None:
        scores = scores + _to(options.attn_bias, scores.dtype)
    if options.alibi_slopes is not None:
        slopes = _to(options.alibi_slopes, scores.dtype)
        slopes = slopes.view(*slopes.shape, 1, 1) if slopes.dim() == 2 else slopes.view(1, -1, 1, 1)
        scores = scores - slopes * _distances(options, scores).abs().to(scores.dtype)
    return scores


def _normalised(scores: Tensor, sinks: Tensor | None,
                past: Tensor | None) -> tuple[Tensor, Tensor]:
    """softmax and lse. A row of -inf gives zeros and -inf (or its sink), and zero gradients."""
    top = scores.detach().amax(-1, keepdim=True)
    if sinks is not None:
        sinks = _to(sinks, scores.dtype).view(1, -1, 1, 1)
        top = torch.maximum(top, sinks.detach())
    top = torch.where(torch.isinf(top), torch.zeros_like(top), top)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks - top)
    if past is not None:
        total = torch.where(past, torch.zeros_like(total), total)
    dead = total == 0
    divisor = torch.where(dead, torch.ones_like(total), total)
    lse = torch.where(dead, torch.full_like(total, -math.inf), torch.log(divisor) + top)
    return weights / divisor, lse.squeeze(-1)


def formula(q: Tensor, k: Tensor, v: Tensor, options: Options,
            factors: Tensor | None = None) -> Result:
    """out, lse and the probabilities before dropout, each a differentiable function of the inputs.

    factors [B,Hq,Sq,Skv]: what dropout multiplies each probability by. Sq and Skv of packed
    sequences are the longest lengths, here and in the probabilities.
    """
    if is_packed(options):
        return _packed_formula(q, k, v, options, factors)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    rows, depth, keys = q.shape[2], q.shape[3], k.shape[2]
    scale = options.softmax_scale
    if scale is None:
        scale = 1 / math.sqrt(depth) if depth else 1.0
    # q is scaled after the product, as MATH does: negative and zero scales included.
    product = _product(_to(q, wide), _to(k, wide).transpose(-2, -1))
    scores = _edited(product * scale, options)
    allowed = _allowed(options, scores)
    if allowed is not None:
        scores = torch.where(allowed, scores, torch.full_like(scores, -math.inf))
    if keys == 0:  # nothing to take a maximum of: one key that no row sees
        scores = torch.nn.functional.pad(scores, (0, 1), value=-math.inf)
    past = None
    if options.seqlens_q is not None:
        positions = torch.arange(rows, device=q.device).view(1, 1, -1, 1)
        past = positions >= options.seqlens_q.view(-1, 1, 1, 1)
    probs, lse = _normalised(scores, options.sinks, past)
    if keys == 0:
        probs = probs[..., :0]
    kept = probs if factors is None else probs * factors
    return Result(_to(_product(kept, _to(v, wide)), q.dtype), lse, probs)


class _Places(NamedTuple):
    """Where the rows of one side's packed sequences are in the padded form."""

    rows: Tensor   # [B, longest]: the packed row of each padded one, `total` where it is padding
    total: int

    def padded(self, x: Tensor) -> Tensor:
        """[B,H,S,D] of [1,H,total,D]; padding is 0."""
        behind = torch.nn.functional.pad(x[0], (0, 0, 0, 1))
        return behind[:, self.rows].transpose(0, 1)

    def packed(self, x: Tensor, value: float) -> Tensor:
        """The reverse; rows of no sequence hold `value`."""
        heads, depth = x.shape[1], x.shape[3]
        flat = x.transpose(0, 1).reshape(heads, -1, depth)
        rows = flat.new_full((heads, self.total + 1, depth), value)
        return rows.index_copy(1, self.rows.flatten(), flat)[None, :, :self.total]


def _places(starts: Tensor, total: int, most: int) -> _Places:
    starts = starts.long()
    rows = starts[:-1, None] + torch.arange(most, device=starts.device)
    return _Places(torch.where(rows < starts[1:, None], rows, total), total)


def _padding(q: Tensor, k: Tensor, options: Options) -> tuple[_Places, _Places, Options]:
    """The places of queries and of keys, and the options of the padded call."""
    starts_q, starts_kv = options.cu_seqlens_q, options.cu_seqlens_kv
    assert starts_q is not None and starts_kv is not None
    # A longest length of 0 leaves no row whose gradient could be taken: one of padding is there.
    most_q = options.max_seqlen_q or max(1, _device.longest(starts_q))
    most_kv = options.max_seqlen_kv or max(1, _device.longest(starts_kv))
    lengths = [starts.diff() if given is None else torch.minimum(starts.diff(), given)
               for starts, given in ((starts_q, options.seqlens_q),
                                     (starts_kv, options.seqlens_kv))]
    options = options._replace(seqlens_q=lengths[0], seqlens_kv=lengths[1], cu_seqlens_q=None,
                               cu_seqlens_kv=None)
    return (_places(starts_q, q.shape[2], most_q), _places(starts_kv, k.shape[2], most_kv), options)


def _packed_formula(q: Tensor, k: Tensor, v: Tensor, options: Options,
                    factors: Tensor | None) -> Result:
    """The formula of the padded call, whose rows are then packed again."""
    of_q, of_kv, options = _padding(q, k, options)
    out, lse, probs = formula(of_q.padded(q), of_kv.padded(k), of_kv.padded(v), options, factors)
    return Result(of_q.packed(out, 0.0), of_q.packed(lse[..., None], -math.inf)[..., 0], probs)


def dropout_factors(q: Tensor, k: Tensor, options: Options) -> Tensor | None:
    """What the operators' dropout multiplies each probability by; None without dropout.

    Drawn by the library itself, on the CPU, whose mask is every device's: attention over equal
    scores and unit vectors as values. It waits for a seed and for lengths that lie on a device.
    """
    if not options.dropout_p:
        return None
    rng = options.rng
    if rng is None:
        raise ValueError(f"dropout_p ({options.dropout_p}) needs rng, the seed of its mask")
    if is_packed(options):
        of_q, of_kv, options = _padding(q, k, options)
        q, k = of_q.padded(q), of_kv.padded(k)
    batch, heads, rows, _ = q.shape
    heads_kv, keys = k.shape[1], k.shape[2]
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    shift = _shift(options, rows, keys)
    shifts = (shift.flatten() if isinstance(shift, Tensor) else
              torch.full((batch,), shift, device="cpu"))
    units = torch.eye(keys, dtype=dtype, device="cpu").expand(batch, heads_kv, keys, keys)
    with torch.no_grad():
        mean = _core.attention(torch.zeros(batch, heads, rows, 1, dtype=dtype, device="cpu"),
                               torch.zeros(batch, heads_kv, keys, 1, dtype=dtype, device="cpu"),
                               units,
                               diagonal=shifts.long().cpu().numpy(), dropout_p=options.dropout_p,
                               seed=int(rng[0]) & 0xFFFFFFFFFFFFFFFF, backends="math")
    kept = (mean * keys > 0.5).to(q.device, dtype)
    return kept * (DROPOUT_STEPS / kept_steps(options.dropout_p))


def _case_of(q: Tensor, k: Tensor, v: Tensor, options: Options) -> str:
    """The problem in words; of tensors without memory of their own (torch.func's), as float32."""
    options = options._replace(rng=None)
    detached: dict[str, Any] = {name: x.detach() for name, x in options._asdict().items()
                                if isinstance(x, Tensor)}
    try:
        selection = _core.explain(q.detach(), k.detach(), v.detach(),
                                  **native_keywords(options._replace(**detached)))
    except (BufferError, RuntimeError, TypeError, ValueError):
        selection = explain_shapes(q, k, v, options)
    return str(selection.to_dict()["case"])


def traced_formula(q: Tensor, k: Tensor, v: Tensor, options: Options,
                   factors: Tensor | None = None) -> Result:
    """formula() in place of a call of a backend, which an open regard.trace records."""
    if torch.compiler.is_compiling() or not _core.is_recording():
        return formula(q, k, v, options, factors)
    start = time.perf_counter()
    result = formula(q, k, v, options, factors)
    seconds = time.perf_counter() - start
    _core.record_formula(_case_of(q, k, v, options), seconds)
    return result
