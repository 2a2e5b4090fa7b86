"""Calls on tensors where they lie: those of a CUDA device, and packed sequences of any device.

Results are torch's memory, and the work is launched on torch's current stream. A seed that lies on
the device is waited for, and so are cu_seqlens there without max_seqlen and segment_ids of int64. Arrays
of the host go to the device in the stream's order. Not run on a device.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import _core
from .._selection import Selection
from ._options import Options, is_packed, native_keywords, seed_of
from ._scopes import ArgumentError, call_policy, drop_in_errors

_FLOATS = ("sinks", "alibi_slopes")
_INTEGERS = ("seqlens_q", "seqlens_kv", "cache_leftpad", "page_table", "cache_batch_idx", "positions")
_SEGMENTS = ("segment_ids_q", "segment_ids_kv")
_SCORES = ("attn_mask", "attn_bias")
_STARTS = ("cu_seqlens_q", "cu_seqlens_kv")
_ROWS = ("lse", "saved.stats", "d_lse")  # [Hq,total] in the library where sequences are packed


# Keywords of torch.library.custom_op for every operator: a CUDA graph would repeat the policy and the seed
# of the call that it captured. PyTorch without the tag makes no such graph of the operators of which a
# result is the CPU's.
OPERATOR: dict[str, Any] = {"device_types": ("cpu", "cuda")}
if hasattr(torch.Tag, "cudagraph_unsafe"):
    OPERATOR["tags"] = (torch.Tag.cudagraph_unsafe,)


class Saved(NamedTuple):
    """What a backward needs of its forward: lse, which every backend takes."""

    stats: Tensor
    seed: int
    backend: str
    offset: int = 0
    max_error: float | None = None  # of the forward's policy


def is_built() -> bool:
    """Whether this build has CUDA."""
    return _core.built_with_cuda()


setattr(is_built, "_dynamo_marked_constant", True)  # torch.compile cannot trace the module


def takes(q: Tensor) -> bool:
    """Whether calls on q run on a CUDA device."""
    return q.is_cuda and is_built()


def require_built(q: Tensor) -> None:
    """Raises where q lies on a CUDA device that this build cannot use."""
    if q.is_cuda and not is_built():
        raise ArgumentError(f"device of q ({q.device}) must be cpu: this build of regard has no CUDA "
                            "support")


def runs_in_place(q: Tensor, options: Options) -> bool:
    """Whether a call takes this module's way."""
    return takes(q) or is_packed(options)


def longest(starts: Tensor) -> int:
    """The longest of packed sequences; whether starts ascend is checked where they are used."""
    return max(0, int(starts.diff().max())) if len(starts) > 1 else 0


def wide(q: Tensor) -> torch.dtype:
    """The type of lse and of what is saved beside it."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def like_rows(tensor: Tensor, shape: tuple[int, ...], layout: str) -> Tensor:
    """A new [B,H,S,D] tensor in the memory order of the layout."""
    if layout == "BHSD":
        return tensor.new_empty(shape)
    batch, heads, rows, depth = shape
    return tensor.new_empty((batch, rows, heads, depth)).transpose(1, 2)


def _dense_rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] <= 1 else tensor.contiguous()


def _is_aligned(tensor: Tensor) -> bool:
    """Whether every row begins at a multiple of 16 bytes, and no two are the same memory."""
    size = tensor.element_size()
    return tensor.data_ptr() % 16 == 0 and all(
        stride > 0 and stride * size % 16 == 0
        for stride, extent in zip(tensor.stride()[:-1], tensor.shape) if extent > 1)


def _broadcast(tensor: Tensor) -> Tensor:
    return tensor.reshape((1,) * (4 - tensor.dim()) + tuple(tensor.shape))


def _int32(tensor: Tensor) -> Tensor:
    """Numbers that int32 does not hold become its own first and last, which no length or page is."""
    limits = torch.iinfo(torch.int32)
    return tensor if tensor.dtype == torch.int32 else tensor.clamp(limits.min, limits.max).int()


def _same_in_int32(name: str, tensor: Tensor) -> Tensor:
    """Numbers that are compared with one another, so that int32 has to hold each: others are waited for."""
    if tensor.dtype == torch.int32:
        return tensor
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"dtype of {name} ({tensor.dtype}) must be an integer type")
    numbers = tensor.int()
    if bool((numbers != tensor).any()):
        raise ArgumentError(f"{name} holds a number that int32 does not, of {tensor.dtype}")
    return numbers


def _score_name(name: str, tensor: Tensor) -> str:
    """attn_bias where attn_mask is of floats, which are added."""
    if name == "attn_bias" or tensor.dtype == torch.bool:
        return name
    if not tensor.is_floating_point():
        raise TypeError(f"dtype of attn_mask ({tensor.dtype}) must be bool (True: may attend), or a float "
                        "type, which is added to the scores as attn_bias is")
    return "attn_bias"


def _split(tensors: dict[str, Tensor],
           keywords: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a call, those of its keywords among them, and its other keywords."""
    values, tensors = dict(keywords), dict(tensors)
    for name in [name for name, value in values.items() if isinstance(value, Tensor)]:
        tensor = values.pop(name)
        if name in _FLOATS:
            tensor = tensor.float()
        elif name in _INTEGERS:
            tensor = _int32(tensor)
        elif name in _STARTS:
            most = name.replace("cu_seqlens", "max_seqlen")
            values[most] = values.get(most) or longest(tensor)
            tensor = tensor.contiguous()
        elif name in _SEGMENTS:
            tensor = _same_in_int32(name, tensor)
        elif name in _SCORES:
            name, tensor = _score_name(name, tensor), _broadcast(tensor)
            if name in tensors:
                raise ArgumentError("attn_mask is added to the scores as attn_bias is, and both were "
                                    "given; expected one")
        tensors[name] = tensor
    if "cu_seqlens_q" in tensors:
        tensors.update({name: tensors[name][0] for name in _ROWS if name in tensors})
    return {name: tensor.detach() for name, tensor in tensors.items()}, values


def _prepared(tensors: dict[str, Tensor], options: Options,
              seed: int | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The same of a call's options."""
    tensors, values = _split(tensors, native_keywords(options._replace(rng=None)))
    if seed is not None:
        values["seed"] = seed
    return tensors, values


def _call(tensors: dict[str, Tensor], values: dict[str, Any], policy: Any, backend: str | None,
          needs_grad: bool) -> tuple[str, float | None]:
    """The backend that ran, and the max_error of the policy that chose it."""
    q = tensors["q"]
    stream = torch.cuda.current_stream(q.device).cuda_stream if q.is_cuda else 0
    with drop_in_errors:
        return _core.run_in_place(tensors, values, stream, policy, backend, needs_grad)


def _forward_tensors(q: Tensor, k: Tensor, v: Tensor, layout: str) -> dict[str, Tensor]:
    out = like_rows(q, (*q.shape[:3], v.shape[3]), layout)
    return {"q": _dense_rows(q), "k": _dense_rows(k), "v": _dense_rows(v), "out": out,
            "lse": q.new_empty(q.shape[:3], dtype=wide(q))}


def _as_seed(rng: Tensor) -> int:
    return int(rng[0]) & 0xFFFFFFFFFFFFFFFF


def numbers(q: Tensor, k: Tensor, v: Tensor, options: Options, backends: str, needs_grad: bool,
            layout: str, d_lse: bool = False) -> tuple[Tensor, Tensor, Saved]:
    """out, lse, and what the backward needs; `d_lse`: the backward may get a gradient of lse."""
    seed = None
    if options.dropout_p:
        seed = _as_seed(seed_of(q) if options.rng is None else options.rng)
    tensors = _forward_tensors(q, k, v, layout)
    out, lse = tensors["out"], tensors["lse"]
    tensors, values = _prepared(tensors, options, seed)
    if d_lse:
        values["d_lse"] = True
    backend, limit = _call(tensors, values, call_policy(backends), None, needs_grad)
    # Another tensor of the same memory: lse, a result, would keep its own graph alive from there.
    saved = Saved(lse.detach(), seed or 0, backend, max_error=limit)
    return out, lse, saved


def placed(name: str, x: Any, q: Tensor) -> Any:
    """An array of the host on q's device: from pinned memory, for whose copy nothing waits."""
    if isinstance(x, np.ndarray):
        x = torch.from_numpy(np.ascontiguousarray(x))
        return x.pin_memory().to(q.device, non_blocking=True) if q.is_cuda else x
    if isinstance(x, Tensor) and x.device != q.device:
        raise ArgumentError(f"device of {name} ({x.device}) must be q's, {q.device}")
    return x


def attention(q: Tensor, k: Tensor, v: Tensor, *, k_new: Tensor | None = None,
              v_new: Tensor | None = None, layout: str = "BHSD", policy: _core.Policy | None = None,
              return_lse: bool = False, out: Tensor | None = None, **keywords: Any) -> Any:
    """regard.attention over a cache, with the keywords that it has for one: out, or (out, lse).

    k and v may be of other types than q, and k_new and v_new are written into them.
    """
    given = {name: placed(name, x, q) for name, x in keywords.items() if x is not None}
    packed = "cu_seqlens_q" in given
    if packed and "cu_seqlens_kv" not in given:
        given.pop("max_seqlen_kv", None)
    if not isinstance(given.get("diagonal", ""), str):
        raise ArgumentError(f"diagonal ({given['diagonal']!r}) must be 'top_left' or 'bottom_right' on a "
                            "CUDA device")
    if given.get("dropout_p"):
        given.setdefault("seed", _as_seed(seed_of(q)))
    new = {name: x for name, x in (("k_new", k_new), ("v_new", v_new)) if x is not None}
    if out is None:
        columns = v.shape[-1] * (1 if given.get("v_dtype") is None else 2)
        out = q.new_empty((*q.shape[:-1], columns))
    rows = {"q": q, "k": k, "v": v, **new, "out": out}
    if layout == "BSHD":
        rows = {name: x.transpose(-2, -3) for name, x in rows.items()}
    if packed:  # [total, heads, head_dim], whatever the layout
        rows.update(q=q.transpose(0, 1)[None], out=out.transpose(0, 1)[None])
    # What is appended to is taken where it lies.
    rows.update({name: _dense_rows(x) for name, x in rows.items()
                 if name not in (("k", "v", "out") if new else ("out",))})
    if return_lse:
        rows["lse"] = q.new_empty(rows["q"].shape[:3], dtype=wide(q))
    _call(*_split(rows, given), policy, None, False)
    if not return_lse:
        return out
    return out, rows["lse"][0] if packed else rows["lse"]


def explain(q: Tensor, k: Tensor, v: Tensor, options: Options, policy: _core.Policy | None,
            needs_grad: bool) -> Selection:
    """The Selection of `numbers`. It allocates the results, whose memory order is part of the
    problem."""
    prepared = _prepared(_forward_tensors(q, k, v, "BHSD"), options, None)
    return _core.explain_in_place(*prepared, policy, needs_grad)


def backward_numbers(given: tuple[Tensor, Tensor | None], tensors: tuple[Tensor, ...],
                     saved: Saved, options: Options, layout: str) -> list[Tensor | None]:
    """d_q, d_k, d_v, d_bias and d_sinks; None where there is none."""
    d_out, d_lse = given
    q, k, v, out = tensors
    made: dict[str, Tensor] = {f"d_{name}": like_rows(x, tuple(x.shape), layout)
                               for name, x in (("q", q), ("k", k), ("v", v))}
    if options.attn_bias is not None:
        made["d_bias"] = torch.empty_like(_broadcast(options.attn_bias),
                                          memory_format=torch.contiguous_format)
    if options.sinks is not None:
        made["d_sinks"] = torch.empty_like(options.sinks, dtype=torch.float32)
    d_out = _dense_rows(d_out)
    if saved.backend == "cudnn" and not _is_aligned(d_out):  # autograd may pass such a tensor
        d_out = d_out.clone(memory_format=torch.contiguous_format)
    all_tensors = {"q": _dense_rows(q), "k": _dense_rows(k), "v": _dense_rows(v), "out": out,
                   "saved.stats": saved.stats, "d_out": d_out, **made}
    if d_lse is not None:
        all_tensors["d_lse"] = d_lse
    seed = saved.seed if options.dropout_p else None
    policy = None if saved.max_error is None else _core.Policy(max_error=saved.max_error)
    _call(*_prepared(all_tensors, options, seed), policy, saved.backend, True)
    grads: list[Tensor | None] = [made["d_q"], made["d_k"], made["d_v"], None, None]
    if options.attn_bias is not None:
        grads[3] = made["d_bias"].reshape(options.attn_bias.shape)
    if options.sinks is not None:
        grads[4] = made["d_sinks"].to(options.sinks.dtype)
    return grads
