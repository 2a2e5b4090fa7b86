"""torch.nn.attention.flex_attention.flex_attention, run by regard."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from . import _block_mask
from ._call import MORE, autocast, is_traced, kind_of, require_type
from ._function_cache import functions_of
from ._function_call import Blocks, Call, attend
from ._function_math import Extents
from ._inputs import check_alike, check_tensor, checked_scale
from ._options import Options
from ._scopes import ArgumentError, is_exporting, refuse_ranks

try:
    from torch.nn.attention.flex_attention import AuxOutput as AuxOutput
except ImportError:  # PyTorch before 2.9
    class AuxOutput(NamedTuple):  # type: ignore[no-redef]
        """The results of flex_attention besides out that return_aux requested."""

        lse: Tensor | None = None
        max_scores: Tensor | None = None


def _check_tensors(query: Any, key: Any, value: Any, enable_gqa: Any) -> None:
    if not isinstance(enable_gqa, bool):
        raise TypeError(f"enable_gqa ({enable_gqa!r}) must be True or False")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_tensor(name, tensor)
        if tensor.dim() != 4:
            raise ArgumentError(f"{name} (of shape {tuple(tensor.shape)}) must have 4 dimensions, [batch, "
                                "heads, positions, head_dim]")
        check_alike(name, tensor, "query", query)
    require_type("query", query)
    if query.shape[3] != key.shape[3]:
        raise ArgumentError(f"head_dim of key ({key.shape[3]}) must be query's, {query.shape[3]}")
    if key.shape[:3] != value.shape[:3]:
        raise ArgumentError(f"value (of shape {tuple(value.shape)}) must have the batch, heads and positions "
                            f"of key, {tuple(key.shape[:3])}")
    heads, heads_kv = query.shape[1], key.shape[1]
    if heads != heads_kv and not enable_gqa:
        raise ArgumentError(f"number of heads in key ({heads_kv}) must be query's ({heads}); enable_gqa=True "
                            "lets it divide them")
    if heads_kv == 0 or heads % heads_kv:
        raise ArgumentError(f"number of heads in key ({heads_kv}) must divide that of query ({heads})")


def _with_batch(query: Tensor, key: Tensor, value: Tensor,
                block_mask: Any) -> tuple[Tensor, Tensor]:
    """Keys and values of one sequence for all, which PyTorch allows beside a block mask of as many."""
    batch = query.shape[0]
    if key.shape[0] == batch:
        return key, value
    if key.shape[0] != 1 or block_mask is None:
        raise ArgumentError(f"batch of key ({key.shape[0]}) must be query's ({batch}), or 1 with a block_mask")
    return key.expand(batch, -1, -1, -1), value.expand(batch, -1, -1, -1)


def _check_block_mask(block_mask: Any, extents: Extents, device: torch.device) -> None:
    for name in ("kv_num_blocks", "kv_indices", "mask_mod", "BLOCK_SIZE", "seq_lengths"):
        if not hasattr(block_mask, name):
            raise TypeError(f"block_mask ({type(block_mask).__name__}) must be a BlockMask, as "
                            "create_block_mask makes it")
    if block_mask.kv_indices.device != device:
        raise ArgumentError(f"device of block_mask ({block_mask.kv_indices.device}) must be query's, {device}")
    if _block_mask.hides_nothing(block_mask):
        return
    if getattr(block_mask.mask_mod, "__name__", "") == "_sliced_mask_mod_error":
        raise ArgumentError("Cannot use mask_mod from a sliced BlockMask: a sliced block_mask has none; expected "
                            "block_mask.mask_mod to be set")
    lengths = tuple(block_mask.seq_lengths)
    if lengths != (extents.queries, extents.keys):
        raise ArgumentError(f"block_mask was created for block_mask.shape={block_mask.shape}; expected "
                            f"{extents.queries} queries and {extents.keys} keys")
    shape = (1,) * (4 - block_mask.kv_indices.dim()) + tuple(block_mask.kv_indices.shape)
    if shape[0] not in (1, extents.batch) or shape[1] not in (1, extents.heads):
        raise ArgumentError(f"block_mask (of shape {block_mask.shape}) must be of 1 or {extents.batch} "
                            f"sequences and 1 or {extents.heads} heads")


class _Mask(NamedTuple):
    """A block mask as a call needs it: a mask_mod that agrees with its blocks."""

    mask_mod: Callable[..., Any] | None
    blocks: Blocks | None


def _mask_of(block_mask: Any, extents: Extents, device: torch.device) -> _Mask:
    if block_mask is None:
        return _Mask(None, None)
    _check_block_mask(block_mask, extents, device)
    if _block_mask.hides_nothing(block_mask):
        return _Mask(block_mask.mask_mod, None)
    return _Mask(*_block_mask.mask_of(block_mask))


def _check_options(kernel_options: Any, return_lse: Any, return_aux: Any) -> None:
    if kernel_options is not None and not isinstance(kernel_options, dict):
        raise TypeError(f"kernel_options ({type(kernel_options).__name__}) must be a dict or None")
    if return_aux is not None and not hasattr(return_aux, "lse"):
        raise TypeError(f"return_aux ({type(return_aux).__name__}) must be an AuxRequest or None")
    if return_lse and return_aux is not None:
        raise ArgumentError("Cannot specify both return_lse and return_aux: return_lse (True) must be False; "
                            "return_aux=AuxRequest(lse=True) replaces it")
    if getattr(return_aux, "max_scores", False):
        raise NotImplementedError("return_aux: max_scores (True) must be False; as PyTorch on a CPU, regard "
                                  "returns no maximum of the scores")


def _check_runs(query: Tensor, key: Tensor, value: Tensor, captured: list[Tensor]) -> None:
    if kind_of(query, key, value, *captured) is MORE:
        raise ArgumentError("flex_attention runs at once, on PyTorch's own CPU tensors; expected no graph that "
                            "is traced, no torch.func transform and no subclass of torch.Tensor")


_F = TypeVar("_F", bound=Callable[..., Any])
_breaks_graphs: Callable[[_F], _F] = torch.compiler.disable(
    reason="regard.torch.flex_attention traces its functions itself")


@_breaks_graphs
def flex_attention(query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Any] | None = None,
                   block_mask: Any = None, scale: float | None = None, enable_gqa: bool = False,
                   return_lse: bool = False, kernel_options: dict[str, Any] | None = None, *,
                   return_aux: Any = None) -> Any:
    """torch.nn.attention.flex_attention.flex_attention, computed by regard: nothing is compiled, and
    gradients work on a CPU.

    query [B, Hq, L, E], key [B, Hkv, S, E] and value [B, Hkv, S, Ev] give out [B, Hq, L, Ev].
    score_mod(score, b, h, q_idx, kv_idx) returns the score that is used; block_mask, of create_block_mask
    here or of PyTorch's, says which keys a query may attend to. The functions are called once, with traced
    numbers, and become expressions of regard's score functions; the tensors that they read get gradients.
    return_aux=AuxRequest(lse=True) also returns AuxOutput(lse [B, Hq, L], None). kernel_options are for
    GPUs, and make no difference.

        >>> import torch, regard.torch
        >>> q = k = v = torch.ones(1, 2, 8, 64)
        >>> slopes = torch.tensor([0.5, 0.25], requires_grad=True)
        >>> def alibi(score, b, h, q_idx, kv_idx):
        ...     return score + slopes[h] * (kv_idx - q_idx)
        >>> regard.torch.flex_attention(q, k, v, score_mod=alibi).sum().backward()
        >>> slopes.grad.shape
        torch.Size([2])

    Raises regard.torch.TracingError, which names the line, for a function that cannot be traced,
    regard.torch.ArgumentError or TypeError for another argument, and regard.NoBackendError, with every
    reason, where no backend can run the call.

    More: `python -m regard docs pytorch`.
    """
    _check_options(kernel_options, return_lse, return_aux)
    if return_lse:
        warnings.warn("return_lse is deprecated in PyTorch; return_aux=AuxRequest(lse=True) replaces it",
                      FutureWarning, stacklevel=2)
    if is_exporting() or is_traced():
        raise ArgumentError("flex_attention traces its functions, and runs at once; it is not supported in a graph "
                            "that is traced, in torch.func or in exportable()")
    refuse_ranks("flex_attention")
    query, key, value = autocast(query, key, value)
    _check_tensors(query, key, value, enable_gqa)
    key, value = _with_batch(query, key, value, block_mask)
    extents = Extents(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    mask = _mask_of(block_mask, extents, query.device)
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    functions = functions_of(score_mod, mask.mask_mod, extents, dtype, query.device)
    call = Call(Options(softmax_scale=checked_scale(scale)), functions,
                mask.blocks if functions.needs_blocks else None)
    with_lse = return_lse or return_aux is not None and return_aux.lse
    with torch.autocast("cpu", enabled=False):
        _check_runs(query, key, value, functions.captured)
        out, lse = attend(query, key, value, call, with_lse)
    if return_aux is not None:
        return out, AuxOutput(lse if return_aux.lse else None, None)
    return (out, lse) if return_lse else out

