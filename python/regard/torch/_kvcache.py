"""Attention over a cache of keys: two operators of torch.library, and the function that calls them.

regard::kvcache_append_attention writes k_new and v_new into k and v, and their scales into scales_k and
scales_v, which its schema declares, so that a graph keeps the order of its calls on one cache.
regard::kvcache_attention only reads. Both return out and lse, which is empty where it was not requested;
tensors are in the order of `layout`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _core
from . import _device
from ._call import are_negated, are_plain, is_traced, require_type
from ._inputs import check_tensor, with_dims
from ._options import OPTIONS_SCHEMA, TENSORS, Options, mask_options, native_keywords, stand_in
from ._scopes import (
    ArgumentError,
    call_policy,
    current_backends,
    drop_in_errors,
    is_exporting,
    refuse_ranks,
)


class CacheOptions(NamedTuple):
    """Which rows of a cache each sequence has, the rotation of q and k_new, and what codes stand for, in
    the order of the operators' schema."""

    page_table: Tensor | None = None       # int32 [B,pages]
    cache_batch_idx: Tensor | None = None  # int32 [B]
    cache_leftpad: Tensor | None = None    # int32 [B]
    tree_mask: Tensor | None = None        # bool [1|B,Sq,new]
    positions: Tensor | None = None        # int32 [B,Sq]
    rotary_cos: Tensor | None = None       # [positions,rotary_dim/2]
    rotary_sin: Tensor | None = None
    rotary_interleaved: bool = False
    scales_k: Tensor | None = None          # float32 [entries,Hkv,rows|1], of u4 [entries,Hkv,rows,2*groups]
    scales_v: Tensor | None = None
    channel_scales_k: Tensor | None = None  # float32 [Hkv,D]
    k_dtype: str | None = None              # "u4": uint8 with two codes in a byte
    v_dtype: str | None = None
    hadamard: bool = False

    @property
    def tensors(self) -> list[Tensor]:
        return [x for x in self if isinstance(x, Tensor)]

    def scales(self, name: str) -> list[Tensor]:
        """Those of k, or v: none where its rows are numbers of its own type."""
        made = [getattr(self, f"scales_{name}"), self.channel_scales_k if name == "k" else None]
        return [x for x in made if x is not None]


_PLACES = ("Tensor? page_table, Tensor? cache_batch_idx, Tensor? cache_leftpad, Tensor? tree_mask, "
           "Tensor? positions, Tensor? rotary_cos, Tensor? rotary_sin, bool rotary_interleaved")
_REST = ("Tensor? channel_scales_k, str? k_dtype, str? v_dtype, bool hadamard, "
         f"{OPTIONS_SCHEMA}, str layout, str backends, bool return_lse) -> (Tensor, Tensor)")
_READ = f"(Tensor q, Tensor k, Tensor v, {_PLACES}, Tensor? scales_k, Tensor? scales_v, {_REST}"
_APPEND = (f"(Tensor q, Tensor(a!) k, Tensor(b!) v, Tensor k_new, Tensor v_new, {_PLACES}, "
           f"Tensor(c!)? scales_k, Tensor(d!)? scales_v, {_REST}")
_WRITTEN = ("k", "v", "scales_k", "scales_v")
_CODES = (torch.int8, torch.uint8)  # which have scales
_NAMES = CacheOptions._fields
_COUNT = len(_NAMES)


def _split(rest: tuple[Any, ...]) -> tuple[CacheOptions, Options, str, str, bool]:
    layout, backends, return_lse = rest[-3:]
    return CacheOptions(*rest[:_COUNT]), Options(*rest[_COUNT:-3]), layout, backends, return_lse


def _keywords(new: dict[str, Tensor], cache: CacheOptions, options: Options) -> dict[str, Any]:
    """The keywords of regard.attention."""
    keywords = native_keywords(options)
    keywords.update(new)
    for name, x in zip(_NAMES, cache):
        if x is not None:
            keywords[name] = x
    if options.cu_seqlens_q is not None:
        del keywords["cu_seqlens_kv"], keywords["max_seqlen_kv"]
        if options.max_seqlen_q == 0:  # the longest length is read from cu_seqlens_q
            del keywords["max_seqlen_q"]
    return keywords


def _numbers(q: Tensor, k: Tensor, v: Tensor, new: dict[str, Tensor], cache: CacheOptions,
             options: Options, layout: str, backends: str, return_lse: bool) -> Any:
    """What regard.attention returns."""
    keywords = _keywords(new, cache, options)
    keywords.update(layout=layout, policy=call_policy(backends), return_lse=return_lse)
    if _device.takes(q):
        return _device.attention(q, k, v, **keywords)
    with drop_in_errors:
        return _core.attention(q, k, v, **keywords)


def _run(q: Tensor, k: Tensor, v: Tensor, new: dict[str, Tensor],
         rest: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    require_type("q", q)
    return_lse = rest[-1]
    with torch.no_grad():
        results = _numbers(q, k, v, new, *_split(rest))
    return results if return_lse else (results, q.new_empty(0, dtype=_device.wide(q)))


def _read(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _run(q, k, v, {}, rest)


def _append(q: Tensor, k: Tensor, v: Tensor, k_new: Tensor, v_new: Tensor,
            *rest: Any) -> tuple[Tensor, Tensor]:
    return _run(q, k, v, {"k_new": k_new, "v_new": v_new}, rest)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, keywords: dict[str, Any]) -> None:
    """Raises what the call would raise, from shapes and options alone. Not checked: packed queries, and
    symbolic extents, since a question about one would become a guard of the graph."""
    given = {"q": q, "k": k, "v": v, **keywords}
    tensors = {name: x for name, x in given.items() if isinstance(x, Tensor)}
    if "cu_seqlens_q" in keywords or any(type(n) is not int for x in tensors.values() for n in x.shape):
        return
    written = _WRITTEN if "k_new" in keywords else ()
    codes = [name for name in ("k", "v") if f"scales_{name}" in given or f"channel_scales_{name}" in given]
    whole = {*written, "scales_k", "scales_v"}  # explain refuses these of a broadcast
    with drop_in_errors:
        _core.explain(**{name: stand_in(x, name in whole, name in codes) if name in tensors else x
                         for name, x in given.items()})


def _fake(q: Tensor, k: Tensor, v: Tensor, new: dict[str, Tensor],
          rest: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    require_type("q", q)
    _device.require_built(q)
    cache, options, layout, _, return_lse = _split(rest)
    _check_shapes(q, k, v, {"layout": layout, **_keywords(new, cache, options._replace(rng=None))})
    *batch, first, second, _ = q.shape
    is_heads_first = layout == "BHSD" and q.dim() == 4  # packed queries are [total, heads, head_dim]
    heads, rows = (first, second) if is_heads_first else (second, first)
    columns = v.shape[-1] if cache.v_dtype is None else 2 * v.shape[-1]
    return (q.new_empty((*q.shape[:-1], columns)),
            q.new_empty((*batch, heads, rows) if return_lse else (0,), dtype=_device.wide(q)))


def _read_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _fake(q, k, v, {}, rest)


def _append_fake(q: Tensor, k: Tensor, v: Tensor, k_new: Tensor, v_new: Tensor,
                 *rest: Any) -> tuple[Tensor, Tensor]:
    return _fake(q, k, v, {"k_new": k_new, "v_new": v_new}, rest)


def register() -> None:
    """Adds both operators to torch.ops.regard; once, when regard.torch is imported."""
    for name, schema, mutated, run, fake in (
            ("kvcache_attention", _READ, (), _read, _read_fake),
            ("kvcache_append_attention", _APPEND, _WRITTEN, _append, _append_fake)):
        made: Any = torch.library.custom_op(f"regard::{name}", run, schema=schema,
                                            mutates_args=mutated, **_device.OPERATOR)
        made.register_fake(fake)


def attend(q: Tensor, k: Tensor, v: Tensor, new: dict[str, Tensor], cache: CacheOptions,
           options: Options, layout: str, return_lse: bool) -> Any:
    """out, or (out, lse); `new`: k_new and v_new, or nothing. By the operators where a graph is
    traced, else without them, which costs less."""
    if is_exporting():
        raise ArgumentError("exportable() (open) must be closed: calls on a cache have no graph of "
                            "plain operators")
    refuse_ranks("a call on a cache")
    backends = current_backends()
    of_options = [x for x in options[:TENSORS] if x is not None]
    tensors = [q, k, v, *new.values(), *cache.tensors, *of_options]
    if is_traced() or not are_plain(*tensors) or are_negated(tensors):
        op = torch.ops.regard.kvcache_append_attention if new else torch.ops.regard.kvcache_attention
        out, lse = op(q, k, v, *new.values(), *cache, *options, layout, backends, return_lse)
        return (out, lse) if return_lse else out
    made = _numbers(q, k, v, new, cache, options, layout, backends, return_lse)
    if new:
        scales = [x for x in (cache.scales_k, cache.scales_v) if x is not None]
        torch.autograd.graph.increment_version((k, v, *scales))
    return made


def _check_device(name: str, tensor: Tensor, q: Tensor) -> None:
    if tensor.device != q.device:
        raise ArgumentError(f"device of {name} ({tensor.device}) must be q's, {q.device}")


def check_integers(name: str, tensor: Any, dims: int, q: Tensor) -> None:
    """Raises unless it is a tensor of integers with so many dimensions, on q's device."""
    check_tensor(name, tensor)
    if tensor.dtype not in (torch.int32, torch.int64) or tensor.dim() != dims:
        raise ArgumentError(f"{name} ({tensor.dtype}, of shape {tuple(tensor.shape)}) must be int32 of "
                            f"{dims} dimension{'s' if dims > 1 else ''}")
    _check_device(name, tensor, q)


def check_rotary(q: Tensor, cos: Any, sin: Any) -> None:
    """Raises unless both are None, or both are tables for q."""
    if cos is None and sin is None:
        return
    for name, table in (("rotary_cos", cos), ("rotary_sin", sin)):
        if table is None:
            raise ArgumentError(f"{name} (None) must be given: rotary_cos and rotary_sin, or neither")
        check_tensor(name, table)
        if table.dim() != 2 or table.dtype not in (torch.float32, q.dtype):
            raise ArgumentError(f"{name} ({table.dtype}, of shape {tuple(table.shape)}) must be "
                                "[positions, rotary_dim / 2] in q's type or float32")
        _check_device(name, table, q)


def check_rows(q: Any, others: dict[str, Any], dims_q: int = 4) -> None:
    """Raises unless all are tensors of one device that regard runs on, q of a type that PyTorch's function
    has, the others of 4 dimensions."""
    check_tensor("q", q)
    require_type("q", q)
    _device.require_built(q)
    if q.device.type not in ("cpu", "cuda"):
        raise ArgumentError(f"device of q ({q.device}) must be cpu or cuda")
    for name, tensor in {"q": q, **others}.items():
        check_tensor(name, tensor)
        _check_device(name, tensor, q)
        dims = dims_q if name == "q" else 4
        if tensor.dim() != dims:
            raise ArgumentError(f"{name} (of shape {tuple(tensor.shape)}) must have {dims} dimensions")


def _check_scales(q: Tensor, cache: CacheOptions) -> dict[str, Tensor]:
    """The scales by their names; raises unless they are tensors of float32 on q's device."""
    given = {name: getattr(cache, name) for name in ("scales_k", "scales_v", "channel_scales_k")}
    given = {name: x for name, x in given.items() if x is not None}
    for name, scales in given.items():
        check_tensor(name, scales)
        if scales.dtype != torch.float32:
            raise ArgumentError(f"dtype of {name} ({scales.dtype}) must be torch.float32")
        _check_device(name, scales, q)
    return given


def _check_new(rows: tuple[Tensor, Tensor, Tensor], k_new: Any, v_new: Any,
               options: CacheOptions, seqlens_kv: Any) -> dict[str, Tensor]:
    """k_new and v_new by their names, or nothing; `rows`: q, k and v."""
    if k_new is None and v_new is None:
        return {}
    if k_new is None or v_new is None:
        raise ArgumentError("k_new and v_new must both be given, or neither")
    if seqlens_kv is None:
        raise ArgumentError("seqlens_kv (None) must be given with k_new and v_new, which follow these "
                            "rows")
    new = {"k_new": k_new, "v_new": v_new}
    q = rows[0]
    for (name, given), cache, letter in zip(new.items(), rows[1:], ("k", "v")):
        check_tensor(name, given)
        if options.scales(letter):
            if given.dtype != q.dtype:
                raise ArgumentError(f"dtype of {name} ({given.dtype}) must be q's, {q.dtype}: the call "
                                    "quantises these rows")
        elif cache.dtype in _CODES:
            raise ArgumentError(f"scales_{letter} (None) must be given: {letter} holds codes, {cache.dtype}")
        elif given.dtype != cache.dtype:
            raise ArgumentError(f"dtype of {name} ({given.dtype}) must be the cache's, {cache.dtype}")
    return new


def _check_gradients(tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise ArgumentError(f"{name} (requires a gradient) must be detached, or the call within "
                                "torch.no_grad(): there is no backward over a cache")


def attention_with_kvcache(
        q: Tensor, k: Tensor, v: Tensor, *, seqlens_kv: Tensor | None = None,
        k_new: Tensor | None = None, v_new: Tensor | None = None, page_table: Tensor | None = None,
        cache_batch_idx: Tensor | None = None, cache_leftpad: Tensor | None = None,
        cu_seqlens_q: Tensor | None = None, max_seqlen_q: int = 0,
        rotary_cos: Tensor | None = None, rotary_sin: Tensor | None = None,
        rotary_interleaved: bool = False, positions: Tensor | None = None, attn_mask: Tensor | None = None,
        tree_mask: Tensor | None = None, is_causal: bool = False, diagonal: str = "bottom_right",
        window: tuple[int, int] = (-1, -1), softmax_scale: float | None = None, softcap: float = 0.0,
        alibi_slopes: Tensor | None = None, sinks: Tensor | None = None, layout: str = "BHSD",
        return_lse: bool = False, scales_k: Tensor | None = None, scales_v: Tensor | None = None,
        channel_scales_k: Tensor | None = None, k_dtype: str | None = None,
        v_dtype: str | None = None, hadamard: bool = False) -> Any:
    """Attention over a cache, which new rows are appended to first: regard.attention of these keywords,
    for torch.compile and torch.export, too. Returns out, or (out, lse) with return_lse.

    q is [batch, heads, queries, head_dim]; k and v are [batch, kv heads, capacity, head_dim]; with
    cache_batch_idx, int32 [batch], of any number of entries; with page_table, int32 [batch, pages],
    pages [pages in all, kv heads, page size, head_dim]. seqlens_kv, int32 [batch], are the rows that
    each sequence has; the first cache_leftpad of them, int32 [batch], are no keys. k_new and v_new
    [batch, kv heads, new, head_dim], of the cache's type, are written behind them, into the tensors k and
    v, and then seen. layout="BSHD" swaps heads and rows of all these and of out. With cu_seqlens_q,
    int32 [batch + 1], q and out are packed rows [total, heads, head_dim] over pages; no sequence has more
    than max_seqlen_q of them (0: read from cu_seqlens_q). out has q's type: float64, float32, float16 or
    bfloat16; k and v may be of a type that is no wider. lse is [batch, heads, queries], float32 (float64 of
    float64).

    All tensors lie on one device: a CPU or, in a build with CUDA, a CUDA device. There the call is launched
    on the current stream and nothing waits, except for the longest length where max_seqlen_q is 0. The
    host reads no lengths, pages or scales there: docs/cuda.md says what kernels make of wrong ones.

    k and v of int8, or of 8-bit floats, may have scales, float32: scales_k and scales_v [entries of k, kv
    heads, rows of k] or [.., 1], channel_scales_k [kv heads, head_dim]. k_dtype="u4" (or "int4"), or v_dtype:
    the tensor is uint8 and half as wide, two codes in a byte, and its scales are [entries, kv heads, rows,
    2 * groups], a scale and a minimum for each 32 elements. Rows with scales are appended in q's type; the
    call quantises them, and where scales are those of rows writes these, too, in place. hadamard=True
    multiplies q and k_new by the Walsh-Hadamard matrix, after the rotation; k holds such rows. What each
    means: regard.attention.

    rotary_cos and rotary_sin [positions, rotary_dim / 2] rotate q and k_new, at `positions`, int32
    [batch, queries], or behind the rows before them. attn_mask is boolean (True = may attend) or added
    to the scores. tree_mask, boolean [1 or batch, queries, new], says which of the last keys of its
    sequence each query may attend to, as the drafts of speculative decoding do. The diagonal is
    "bottom_right" (the last query is at the last row) or "top_left".

        >>> import torch, regard.torch
        >>> k, v = torch.zeros(2, 2, 2, 64, 32)  # room for 64 rows of 2 sequences
        >>> new = torch.ones(2, 2, 1, 32)
        >>> lengths = torch.tensor([5, 9], dtype=torch.int32)
        >>> regard.torch.attention_with_kvcache(torch.ones(2, 8, 1, 32), k, v, seqlens_kv=lengths,
        ...                                     k_new=new, v_new=new, is_causal=True).shape
        torch.Size([2, 8, 1, 32])

    Raises regard.torch.ArgumentError or TypeError for an argument, before anything is written: among
    others for a tensor that requires a gradient outside of torch.no_grad(), for there is no backward, and
    inside exportable(). Raises regard.NoBackendError where no backend can run the call.

    More: `python -m regard docs pytorch`.
    """
    new = {name: x for name, x in (("k_new", k_new), ("v_new", v_new)) if x is not None}
    check_rows(q, {"k": k, "v": v, **new}, 4 if cu_seqlens_q is None else 3)
    cache = CacheOptions(page_table, cache_batch_idx, cache_leftpad, tree_mask, positions, rotary_cos,
                         rotary_sin, rotary_interleaved, scales_k, scales_v, channel_scales_k, k_dtype,
                         v_dtype, hadamard)
    scales = _check_scales(q, cache)
    new = _check_new((q, k, v), k_new, v_new, cache, seqlens_kv)
    _check_gradients({"q": q, "k": k, "v": v, **new, **scales})
    check_rotary(q, rotary_cos, rotary_sin)
    integers = {"seqlens_kv": seqlens_kv, "page_table": page_table, "cache_batch_idx": cache_batch_idx,
                "cache_leftpad": cache_leftpad, "cu_seqlens_q": cu_seqlens_q, "positions": positions}
    for name, tensor in integers.items():
        if tensor is not None:
            packed = name == "positions" and cu_seqlens_q is None
            check_integers(name, tensor, 2 if name == "page_table" or packed else 1, q)
    if tree_mask is not None:
        check_tensor("tree_mask", tree_mask)
        if tree_mask.dtype != torch.bool or tree_mask.dim() != 3:
            raise ArgumentError(f"tree_mask ({tree_mask.dtype}, of shape {tuple(tree_mask.shape)}) must "
                                "be torch.bool of 3 dimensions")
        _check_device("tree_mask", tree_mask, q)
    if diagonal not in ("bottom_right", "top_left"):
        raise ArgumentError(f"diagonal ({diagonal!r}) must be 'bottom_right' or 'top_left'")
    mask, bias = mask_options(None if attn_mask is None else with_dims(attn_mask, 4))
    left, right = window
    options = Options(mask, bias, sinks, alibi_slopes, seqlens_kv=seqlens_kv, cu_seqlens_q=cu_seqlens_q,
                      softmax_scale=softmax_scale, softcap=softcap, is_causal=is_causal,
                      diagonal=diagonal, window_left=left, window_right=right, max_seqlen_q=max_seqlen_q)
    return attend(q, k, v, new, cache, options, layout, return_lse)
