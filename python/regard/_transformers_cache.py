"""The cache that regard offers to Transformers' generate. Private: the public name is
regard.transformers.Cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import cache_utils

from ._cache import CacheFullError
from ._cached_rows import ContiguousRows, Rows, rows_of
from ._row_handles import handles
from .torch import _device
from .torch._scopes import ArgumentError

_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "int8": torch.int8,
          "i8": torch.int8, "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
_KINDS = ("full_attention", "sliding_attention", "chunked_attention")


class _Layer(cache_utils.CacheLayerMixin):
    """Keys and values of a layer. Sliding layers keep every row, which their masks hide: an update then
    moves nothing.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, dtype: torch.dtype, page_size: int | None, max_batch_size: int,
                 max_cache_len: int | None) -> None:
        self.dtype, self._page_size = dtype, page_size
        self._max_batch_size, self._limit = max_batch_size, max_cache_len
        self.rows: Rows | None = None
        self.is_initialized = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Memory for the batch of the first rows."""
        self.rows = rows_of(self.dtype, (key_states, value_states), self._limit, self._page_size)
        self.device = key_states.device
        self.is_initialized = True

    def _check(self, key_states: Tensor) -> None:
        batch, length = key_states.shape[0], self.get_seq_length() + key_states.shape[2]
        if batch > self._max_batch_size:
            raise CacheFullError(f"the batch ({batch}) must be at most max_batch_size, "
                                 f"{self._max_batch_size}; num_beams counts")
        if self.rows is not None and batch != self.rows.batch:
            raise ArgumentError(f"the batch ({batch}) must be the cache's, {self.rows.batch}; "
                                "reset() empties it for another one")
        if self._limit is not None and length > self._limit:
            raise CacheFullError(f"{length} rows are more than max_cache_len, {self._limit}")
    def update(self, key_states: Tensor, value_states: Tensor, *args: Any,
               **keywords: Any) -> tuple[Tensor, Tensor]:
        """Appends rows; returns all of them. Raises CacheFullError before anything is written."""
        if torch.compiler.is_compiling():
            return self._update_numbers(key_states, value_states)
        rows = self._rows_for(key_states, value_states)
        return self._written(rows, key_states, value_states) or handles(rows)

    def _written(self, rows: Rows, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor] | None:
        """Appends rows. All rows where PyTorch's operators write them, None where attention will."""
        records = (key_states.requires_grad or value_states.requires_grad) and torch.is_grad_enabled()
        if not records and (key_states.is_cpu or _device.takes(key_states)):
            rows.append(key_states, value_states)
            return None
        if isinstance(rows, ContiguousRows) and not rows.has_scales:
            return rows.write(key_states, value_states)
        raise ArgumentError("key_states or value_states (requires a gradient) must be of a call within "
                            "torch.no_grad(): there is no backward over pages or 8-bit rows")

    def _rows_for(self, key_states: Tensor, value_states: Tensor) -> Rows:
        self._check(key_states)
        if self.rows is None:
            self.lazy_initialization(key_states, value_states)
        assert self.rows is not None
        return self.rows

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _update_numbers(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """The same for compiled code, which takes ordinary tensors alone."""
        rows = self._rows_for(key_states, value_states)
        return self._written(rows, key_states, value_states) or (
            rows.numbers(0, rows.length), rows.numbers(1, rows.length))

    @property
    def keys(self) -> Tensor | None:  # type: ignore[override]
        """All keys; None before the first."""
        return None if self.rows is None else handles(self.rows)[0]

    @property
    def values(self) -> Tensor | None:  # type: ignore[override]
        """All values."""
        return None if self.rows is None else handles(self.rows)[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys after an update with so many rows, and the position of the first."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Rows in the cache."""
        return 0 if self.rows is None else self.rows.length

    def get_max_length(self) -> int:
        """max_cache_len, or -1."""
        return -1 if self._limit is None else self._limit

    def reset(self) -> None:
        """Empties the cache, for any batch."""
        self.rows = None
        self.is_initialized = False

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last -tokens_to_remove rows, as DynamicCache does."""
        if tokens_to_remove > 0:
            raise ValueError(f"tokens_to_remove ({tokens_to_remove}) must be negative or 0")
        if self.rows is not None and tokens_to_remove:
            self.rows.crop(max(self.rows.length + tokens_to_remove, 0))

    def _choose(self, batch: Tensor) -> None:
        """Entries of the batch take the places of others."""
        if self.rows is None:
            return
        if len(batch) > self._max_batch_size:
            raise CacheFullError(f"the batch ({len(batch)}) must be at most max_batch_size, "
                                 f"{self._max_batch_size}")
        self.rows.choose(batch)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Entry i of the batch becomes what entry beam_idx[i] was."""
        self._choose(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats each entry of the batch."""
        if self.rows is not None:
            self._choose(torch.arange(self.rows.batch).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps these entries of the batch."""
        self._choose(indices)


class Cache(cache_utils.Cache):
    """Keys and values for `past_key_values` of a model with attn_implementation="regard".

        >>> import regard.transformers, transformers, torch
        >>> regard.transformers.register()
        >>> config = transformers.LlamaConfig(hidden_size=32, intermediate_size=64, vocab_size=99,
        ...                                   num_hidden_layers=1, num_attention_heads=2)
        >>> model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="regard")
        >>> cache = regard.transformers.Cache(config, dtype="f32")
        >>> model.generate(torch.tensor([[5, 6, 7]]), past_key_values=cache, max_new_tokens=4,
        ...                do_sample=False, eos_token_id=-1, pad_token_id=0).shape
        torch.Size([1, 7])

    DynamicCache copies all rows for every token, StaticCache attends to rows that are not there
    yet; here rows are written once, and attention reads those in use where they are.

    config: the model's. dtype: of the rows, "f32", "bf16", "f16", "f8e4m3" or "f8e5m2"; where it is
    not the model's own, the model needs attn_implementation="regard", whose attention reads any type
    that is no wider than the queries'. Rows of "int8" (or "i8"), "f8e4m3" and "f8e5m2" are quantised as
    they are appended, with a scale for each row of a head. page_size: rows of a page; pages come from a
    pool that grows, and beams share those that they have in common. None: rows behind one another.
    max_batch_size: of sequences, beams counted. max_cache_len: rows that are never exceeded, and that
    are allocated at once where there are no pages; None: the memory doubles as it grows.

    Rows in pages or of 8 bits need torch.no_grad(), and a CPU or, in a build with CUDA, a CUDA device. The
    host waits for the device only where beams are reordered, to read their indices. Another attention than
    regard's gets such rows as an ordinary tensor, a copy of the numbers that they stand for.

    Raises regard.CacheFullError before a row is written where the batch or the rows are too many,
    regard.torch.ArgumentError for a dtype, a page_size, a layer or a tensor that it cannot hold.

    More: `python -m regard docs transformers`.
    """

    def __init__(self, config: Any, dtype: str = "bf16", page_size: int | None = None,
                 max_batch_size: int = 1, max_cache_len: int | None = None) -> None:
        if dtype not in _TYPES:
            raise ArgumentError(f"dtype ({dtype!r}) must be one of {', '.join(_TYPES)}")
        for name, number in (("page_size", page_size), ("max_batch_size", max_batch_size),
                             ("max_cache_len", max_cache_len)):
            if number is not None and number < 1:
                raise ArgumentError(f"{name} ({number}) must be at least 1")
        text = config.get_text_config(decoder=True)
        kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
        for at, kind in enumerate(kinds):
            if kind not in _KINDS:
                raise ArgumentError(f"layer {at} of the model ({kind}) must be one of "
                                    f"{', '.join(_KINDS)}; expected Transformers' own cache for it")
        super().__init__(layers=[_Layer(_TYPES[dtype], page_size, max_batch_size, max_cache_len)
                                 for _ in kinds])
