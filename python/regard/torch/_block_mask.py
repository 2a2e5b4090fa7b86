"""Block masks of FlexAttention: which blocks of queries and keys a mask_mod hides, and which it leaves whole.

They are objects of PyTorch's own class, so that they have its methods and PyTorch's flex_attention takes
them, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _core
from ._function_cache import Functions, functions_of
from ._function_call import Blocks
from ._function_math import Extents
from ._function_trace import SCORE_ARGUMENTS, TracingError, check_arity
from ._scopes import ArgumentError

HIDDEN, PARTIAL, FULL = 0, 1, 2
_CHUNK = 1 << 24  # elements of a mask that are evaluated at once
_NO_BLOCKS = 1 << 30  # the block size of PyTorch's masks that hide nothing
_MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def or_masks(*mask_mods: _MaskMod) -> _MaskMod:
    """The mask_mod that lets a query attend to a key where any of these does.

        >>> import torch, regard.torch
        >>> prefix = lambda b, h, q_idx, kv_idx: kv_idx < 4
        >>> causal = lambda b, h, q_idx, kv_idx: q_idx >= kv_idx
        >>> mask = regard.torch.create_block_mask(regard.torch.or_masks(prefix, causal), None, None, 256, 256)
        >>> mask.to_dense()[0, 0].tolist()
        [[1, 0], [1, 1]]

    More: `python -m regard docs pytorch`.
    """
    _check_masks(mask_mods)

    def or_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        result = b.new_zeros((), dtype=torch.bool)
        for mask in mask_mods:
            result = result | mask(b, h, q_idx, kv_idx)
        return result

    return or_mask


def and_masks(*mask_mods: _MaskMod) -> _MaskMod:
    """The mask_mod that lets a query attend to a key where all of these do.

        >>> import torch, regard.torch
        >>> window = lambda b, h, q_idx, kv_idx: q_idx - kv_idx < 100
        >>> causal = lambda b, h, q_idx, kv_idx: q_idx >= kv_idx
        >>> mask = regard.torch.create_block_mask(regard.torch.and_masks(window, causal), None, None, 512, 512)
        >>> mask.sparsity()
        56.25

    More: `python -m regard docs pytorch`.
    """
    _check_masks(mask_mods)

    def and_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        result = b.new_ones((), dtype=torch.bool)
        for mask in mask_mods:
            result = result & mask(b, h, q_idx, kv_idx)
        return result

    return and_mask


def _check_masks(mask_mods: tuple[Any, ...]) -> None:
    for mask in mask_mods:
        if not callable(mask):
            raise ArgumentError(f"All inputs should be callable mask_mods: {mask!r} is none")


def _block_sizes(size: Any) -> tuple[int, int]:
    sizes = (size, size) if isinstance(size, int) else size
    if (not isinstance(sizes, (tuple, list)) or len(sizes) != 2 or
            any(not isinstance(x, int) or isinstance(x, bool) or x < 1 for x in sizes)):
        raise ArgumentError(f"BLOCK_SIZE ({size!r}) must be a positive integer, or two: (queries, keys)")
    return sizes[0], sizes[1]


def _extent(name: str, value: Any, default: int | None = None) -> int:
    if value is None and default is not None:
        return default
    if not isinstance(value, (int, torch.SymInt)) or isinstance(value, bool) or value < 1:
        raise ArgumentError(f"{name} ({value!r}) must be an integer of at least 1"
                            + ("" if default is None else ", or None"))
    return int(value)


def create_block_mask(mask_mod: _MaskMod, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int,  # noqa: N803
                      device: Any = None, BLOCK_SIZE: int | tuple[int, int] = 128,  # noqa: N803
                      _compile: bool = False, separate_full_blocks: bool = True,
                      compute_dq_write_order: bool = False, dq_kv_order: bool = True) -> Any:
    """torch.nn.attention.flex_attention.create_block_mask, of a mask_mod that regard can run.

    mask_mod(b, h, q_idx, kv_idx) is True where a query may attend to a key; it is called once, with traced
    numbers. B and H are the sequences and query heads; None where the mask does not depend on them.
    Returns PyTorch's BlockMask. device is "cpu" unless it is named. _compile, compute_dq_write_order and
    dq_kv_order make no difference here.

        >>> import regard.torch
        >>> causal = lambda b, h, q_idx, kv_idx: q_idx >= kv_idx
        >>> mask = regard.torch.create_block_mask(causal, None, None, 512, 512)
        >>> mask.sparsity(), mask.shape
        (37.5, (1, 1, 512, 512))

    Raises regard.torch.TracingError, which names the line, for a mask_mod that cannot be traced, and
    regard.torch.ArgumentError for another argument.

    More: `python -m regard docs pytorch`.
    """
    from torch.nn.attention.flex_attention import BlockMask

    check_arity(mask_mod, "mask_mod", SCORE_ARGUMENTS[1:])
    sizes = _block_sizes(BLOCK_SIZE)
    extents = Extents(_extent("B", B, 1), _extent("H", H, 1), _extent("Q_LEN", Q_LEN),
                      _extent("KV_LEN", KV_LEN))
    device = torch.device("cpu" if device is None else device)
    functions = functions_of(None, mask_mod, extents, torch.float32, device)
    blocks = _blocks_of(functions, mask_mod, extents, sizes)
    full = _whole(blocks, extents) if separate_full_blocks else None
    partial = blocks.map != HIDDEN if full is None else (blocks.map != HIDDEN) & ~full
    counts, indices = _ordered(partial)
    full_counts, full_indices = (None, None) if full is None else _ordered(full)
    made = BlockMask.from_kv_blocks(counts, indices, full_counts, full_indices, BLOCK_SIZE=sizes,
                                    mask_mod=mask_mod, seq_lengths=(extents.queries, extents.keys))
    _know(made, blocks, True)
    return made


def _whole(blocks: Blocks, extents: Extents) -> Tensor:
    """The full blocks, for PyTorch less those that reach beyond the last query or key."""
    full = blocks.map == FULL
    if extents.queries % blocks.size_q:
        full[:, :, -1] = False
    if extents.keys % blocks.size_kv:
        full[..., -1] = False
    return full


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks each row has, and which: those first."""
    numbers = blocks.to(torch.int32)
    order = torch.argsort(numbers, dim=-1, descending=True, stable=True)
    return numbers.sum(-1, dtype=torch.int32), order.to(torch.int32)


def _blocks_of(functions: Functions, mask_mod: _MaskMod, extents: Extents, sizes: tuple[int, int]) -> Blocks:
    """The blocks of a mask, [B,H,rows,columns], by its expression."""
    batch, heads, queries, keys = extents
    try:
        mask = _core.create_block_mask(functions.mask or "true", seqlen_q=queries, seqlen_kv=keys, batch=batch,
                                       num_heads=heads, captured=functions.captured, block_size=sizes)
    except ValueError:  # indices whose bounds are too wide, which calls refuse
        return compute_blocks(mask_mod, extents, sizes)
    found = torch.from_numpy(mask.view(queries, keys).copy())
    return Blocks(found.expand(batch, heads, -1, -1), *sizes)


def _own_blocks(mask_mod: _MaskMod, extents: Extents, sizes: tuple[int, int]) -> Blocks:
    """The same of a mask_mod that may have no expression."""
    try:
        functions = functions_of(None, mask_mod, extents, torch.float32, torch.device("cpu"))
    except TracingError:
        return compute_blocks(mask_mod, extents, sizes)
    return _blocks_of(functions, mask_mod, extents, sizes)


def compute_blocks(mask_mod: _MaskMod, extents: Extents, sizes: tuple[int, int]) -> Blocks:
    """The blocks of a mask, evaluated element by element."""
    batch, heads, queries, keys = extents
    rows, columns = math.ceil(queries / sizes[0]), math.ceil(keys / sizes[1])
    found = torch.empty((batch, heads, rows, columns), dtype=torch.uint8)
    function = _vectorized(mask_mod)
    step = max(1, _CHUNK // (max(batch * heads * keys, 1) * sizes[0]))
    places = [torch.arange(x) for x in (batch, heads, keys)]
    padding = columns * sizes[1] - keys
    for first in range(0, rows, step):
        last = min(first + step, rows)
        at = torch.arange(first * sizes[0], min(last * sizes[0], queries))
        visible = function(places[0], places[1], at, places[2])
        below = (last - first) * sizes[0] - at.numel()
        some = torch.nn.functional.pad(visible, (0, padding, 0, below), value=False)
        all_of = torch.nn.functional.pad(visible, (0, padding, 0, below), value=True)
        shape = (batch, heads, last - first, sizes[0], columns, sizes[1])
        found[:, :, first:last] = (some.view(shape).any(-1).any(3).to(torch.uint8)
                                   + all_of.view(shape).all(-1).all(3))
    return Blocks(found, *sizes)


def _vectorized(mask_mod: _MaskMod) -> Callable[..., Tensor]:
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    function: Any = mask_mod
    for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        function = torch.vmap(function, in_dims=dims)

    def run(*places: Tensor) -> Tensor:
        with TransformGetItemToIndex(), torch.no_grad():
            made: Tensor = function(*places)
        return made

    return run


# What is known of a PyTorch BlockMask: an attribute of the object

class _Known(NamedTuple):
    mask_mod: Any
    tensors: tuple[Any, ...]  # those of the block mask that `blocks` was made of
    blocks: Blocks
    agrees: bool              # the mask_mod hides and shows what they say


def _tensors_of(block_mask: Any) -> tuple[Any, ...]:
    return (block_mask.kv_num_blocks, block_mask.kv_indices, block_mask.full_kv_num_blocks,
            block_mask.full_kv_indices)


def _know(block_mask: Any, blocks: Blocks, agrees: bool) -> _Known:
    known = _Known(block_mask.mask_mod, _tensors_of(block_mask), blocks, agrees)
    block_mask._regard_known = known
    return known


def _known_of(block_mask: Any) -> _Known:
    """The blocks of any BlockMask, PyTorch's too, and whether its mask_mod agrees with them, for which it is
    evaluated once."""
    known: _Known | None = getattr(block_mask, "_regard_known", None)
    if known is not None and known.mask_mod is block_mask.mask_mod and all(
            a is b for a, b in zip(known.tensors, _tensors_of(block_mask))):
        return known
    found = _dense(block_mask.kv_num_blocks, block_mask.kv_indices).to(torch.uint8)
    if block_mask.full_kv_num_blocks is not None:
        found[_dense(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)] = FULL
    sizes = _block_sizes(tuple(block_mask.BLOCK_SIZE))
    extents = Extents(*found.shape[:2], *block_mask.seq_lengths)
    own = _own_blocks(block_mask.mask_mod, extents, sizes).map
    agrees = own.shape == found.shape and bool(
        ((own == HIDDEN) | (found != HIDDEN)).all() and ((own == FULL) | (found != FULL)).all())
    return _know(block_mask, Blocks(own if agrees else found, *sizes), agrees)


def mask_of(block_mask: Any) -> tuple[_MaskMod, Blocks]:
    """A mask_mod that agrees with blocks, and these."""
    known = _known_of(block_mask)
    if known.agrees:
        return block_mask.mask_mod, known.blocks
    return restricted(block_mask.mask_mod, known.blocks), known.blocks


def restricted(mask_mod: _MaskMod, blocks: Blocks) -> _MaskMod:
    """A mask_mod that agrees with blocks which someone else has listed: hidden where they are hidden, and
    true where they are full."""
    found, size_q, size_kv = blocks
    by_batch, by_head = found.shape[0] > 1, found.shape[1] > 1

    def restricted_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        block = found[b if by_batch else 0, h if by_head else 0, q_idx // size_q, kv_idx // size_kv]
        visible = mask_mod(b, h, q_idx, kv_idx)
        return (block == FULL) | ((block == PARTIAL) & visible)

    return restricted_mask


def hides_nothing(block_mask: Any) -> bool:
    """PyTorch's own empty mask."""
    return tuple(block_mask.BLOCK_SIZE) == (_NO_BLOCKS, _NO_BLOCKS)


def _dense(counts: Tensor, indices: Tensor) -> Tensor:
    """bool [B,H,rows,columns] of the blocks that are listed."""
    counts = counts.reshape((1,) * (3 - counts.dim()) + tuple(counts.shape))
    indices = indices.reshape((1,) * (4 - indices.dim()) + tuple(indices.shape))
    columns = indices.shape[-1]
    listed = torch.arange(columns, device=indices.device) < counts[..., None]
    found = torch.zeros((*indices.shape[:-1], columns + 1), dtype=torch.bool, device=indices.device)
    found.scatter_(-1, torch.where(listed, indices, columns).long(), True)
    return found[..., :columns].contiguous()
