"""The cache that regard offers to Transformers' generate. Private: the public name is
regard.transformers.Cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import cache_utils

from ._cache import CacheFullError
from .torch._scopes import ArgumentError

_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16,
          "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
_KINDS = ("full_attention", "sliding_attention", "chunked_attention")
_FIRST_ROWS = 256  # of a cache that grows


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x, within what 8 bits hold: beyond it PyTorch's conversion gives NaN or infinity."""
    if dtype.itemsize > 1:
        return x
    most = torch.finfo(dtype).max
    return x.clamp(-most, most)


class _Layer(cache_utils.CacheLayerMixin):
    """Keys and values [batch, kv heads, capacity, head_dim], of which the first rows are in use.

    Sliding layers keep every row, which their masks hide: an update then moves nothing.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, dtype: torch.dtype, max_batch_size: int, max_cache_len: int | None) -> None:
        super().__init__()
        self.dtype, self._max_batch_size, self._limit = dtype, max_batch_size, max_cache_len
        self._rows: list[Tensor] = []
        self._length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocates for the batch of the first rows."""
        capacity = self._limit or max(_FIRST_ROWS, 2 * key_states.shape[2])
        self._rows = [self._empty(x, x.shape[0], capacity) for x in (key_states, value_states)]
        self.device = key_states.device
        self.is_initialized = True

    def _empty(self, like: Tensor, batch: int, capacity: int) -> Tensor:
        shape = (batch, like.shape[1], capacity, like.shape[3])
        return torch.empty(shape, dtype=self.dtype, device=like.device)

    def _check(self, key_states: Tensor) -> None:
        batch, length = key_states.shape[0], self._length + key_states.shape[2]
        if batch > self._max_batch_size:
            raise CacheFullError(f"the batch ({batch}) must be at most max_batch_size, "
                                 f"{self._max_batch_size}; num_beams counts")
        if self.is_initialized and batch != self._rows[0].shape[0]:
            raise ArgumentError(f"the batch ({batch}) must be the cache's, {self._rows[0].shape[0]}; "
                                "reset() empties it for another one")
        if self._limit is not None and length > self._limit:
            raise CacheFullError(f"{length} rows are more than max_cache_len, {self._limit}")

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any,
               **keywords: Any) -> tuple[Tensor, Tensor]:
        """Appends rows; returns views of all rows. Raises CacheFullError before anything is written."""
        self._check(key_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        begin, end = self._length, self._length + key_states.shape[2]
        if end > self._rows[0].shape[2]:
            self._grow(2 * end)
        for rows, states in zip(self._rows, (key_states, value_states)):
            rows[:, :, begin:end] = _rounded(states, self.dtype)
        return self._show(end)

    def _grow(self, capacity: int) -> None:
        for at, rows in enumerate(self._rows):
            grown = self._empty(rows, rows.shape[0], capacity)
            grown[:, :, :self._length] = rows[:, :, :self._length]
            self._rows[at] = grown

    def _show(self, length: int) -> tuple[Tensor, Tensor]:
        self._length = length
        self.keys, self.values = keys, values = [rows[:, :, :length] for rows in self._rows]
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys after an update with so many rows, and the position of the first."""
        return self._length + query_length, 0

    def get_seq_length(self) -> int:
        """Rows in the cache."""
        return self._length

    def get_max_length(self) -> int:
        """max_cache_len, or -1."""
        return -1 if self._limit is None else self._limit

    def reset(self) -> None:
        """Empties the cache, for any batch."""
        self._rows, self._length = [], 0
        self.keys = self.values = None
        self.is_initialized = False

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last -tokens_to_remove rows, as DynamicCache does."""
        if tokens_to_remove > 0:
            raise ValueError(f"tokens_to_remove ({tokens_to_remove}) must be negative or 0")
        if self.is_initialized and tokens_to_remove:
            self._show(max(self._length + tokens_to_remove, 0))

    def _choose(self, batch: Tensor) -> None:
        """Entries of the batch take the places of others."""
        if not self.is_initialized:
            return
        if len(batch) > self._max_batch_size:
            raise CacheFullError(f"the batch ({len(batch)}) must be at most max_batch_size, "
                                 f"{self._max_batch_size}")
        for at, rows in enumerate(self._rows):
            chosen = rows[:, :, :self._length][batch.to(rows.device)]
            if len(batch) != rows.shape[0]:
                self._rows[at] = rows = self._empty(rows, len(batch), rows.shape[2])
            rows[:, :, :self._length] = chosen
        self._show(self._length)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Entry i of the batch becomes what entry beam_idx[i] was."""
        self._choose(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats each entry of the batch."""
        if self.is_initialized:
            self._choose(torch.arange(self._rows[0].shape[0]).repeat_interleave(repeats))

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
    that is no wider than the queries'. max_batch_size: of sequences, beams counted. max_cache_len:
    rows that are allocated at once and never exceeded; None: the cache doubles as it grows.
    page_size: None; pages are not supported yet.

    Raises regard.CacheFullError before a row is written where the batch or the rows are too many,
    regard.torch.ArgumentError for a dtype, a page_size or a layer that it cannot hold.

    More: `python -m regard docs transformers`.
    """

    def __init__(self, config: Any, dtype: str = "bf16", page_size: int | None = None,
                 max_batch_size: int = 1, max_cache_len: int | None = None) -> None:
        if dtype not in _TYPES:
            raise ArgumentError(f"dtype ({dtype!r}) must be one of {', '.join(_TYPES)}")
        if page_size is not None:
            raise ArgumentError(f"page_size ({page_size}) must be None: caches in pages are "
                                "regard.PagedKVCache's")
        for name, number in (("max_batch_size", max_batch_size), ("max_cache_len", max_cache_len)):
            if number is not None and number < 1:
                raise ArgumentError(f"{name} ({number}) must be at least 1")
        text = config.get_text_config(decoder=True)
        kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
        for at, kind in enumerate(kinds):
            if kind not in _KINDS:
                raise ArgumentError(f"layer {at} of the model ({kind}) must be one of "
                                    f"{', '.join(_KINDS)}; expected Transformers' own cache for it")
        super().__init__(layers=[_Layer(_TYPES[dtype], max_batch_size, max_cache_len)
                                 for _ in kinds])
