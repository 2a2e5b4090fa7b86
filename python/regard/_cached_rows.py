"""The memory of one layer of regard.transformers.Cache: rows of keys and values, contiguous or in pages,
that are written by the call of regard.attention that attends to them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from . import _core
from ._cache_memory import TorchMemory
from .torch import _device
from .torch._scopes import ArgumentError, drop_in_errors

_FIRST_ROWS = 256  # of contiguous rows that grow


def _bits(memory: Tensor) -> Tensor:
    """The same memory of a type that PyTorch can index."""
    return memory.view(torch.int8) if memory.dtype.itemsize == 1 else memory


class Rows:
    """Rows [batch, kv heads, length, head_dim] of keys and of values.

    `append` keeps new rows; the next call of `attend`, or of anything else that reads rows, writes
    them. Of `memories` the first two are keys and values [entries, kv heads, rows, head_dim]; where
    their type has 8 bits, the others are their scales [entries, kv heads, rows]. `version` counts the
    changes to rows that were there.
    """

    def __init__(self, dtype: torch.dtype, states: tuple[Tensor, Tensor], limit: int | None) -> None:
        key = states[0]
        self.batch, self.heads = key.shape[:2]
        self.dims = [x.shape[3] for x in states]
        self.dtypes = [x.dtype for x in states]  # differ under autocast
        self.dtype, self.device, self.limit = dtype, key.device, limit
        self.has_scales = dtype.itemsize == 1
        self.length = self.version = 0
        self.memories: list[Tensor] = []
        self._lengths = np.empty(self.batch, np.int32)
        self._pending: tuple[Tensor, Tensor] | None = None

    def _allocate(self, entries: int, rows: int) -> list[Tensor]:
        shape = (entries, self.heads, rows)
        with torch.inference_mode(False):  # a tensor of inference mode cannot be written to outside
            if self.device.type == "cpu":
                made = [TorchMemory(self.dtype).zeros((*shape, dim)) for dim in self.dims]
            else:
                made = [torch.empty((*shape, dim), dtype=self.dtype, device=self.device)
                        for dim in self.dims]
            return made + [torch.empty(shape, dtype=torch.float32, device=self.device)
                           for _ in self.dims if self.has_scales]

    def append(self, key: Tensor, value: Tensor) -> None:
        """Adds rows, which are written later."""
        self._write_pending()
        if key.shape[2]:
            self._reserve(self.length + key.shape[2])
            self._pending = key, value
            self.length += key.shape[2]

    def _reserve(self, end: int) -> None:
        """Room for rows up to `end`, which nobody else sees."""
        raise NotImplementedError

    def _memories_of(self, end: int, fits: bool) -> tuple[list[Tensor], dict[str, Any]]:
        """Memories with rows up to `end`, for attention, and its keywords; fits: with no more rows than
        a mask has to have."""
        raise NotImplementedError

    def _gather(self, memory: Tensor, end: int) -> Tensor:
        """Rows [batch, kv heads, end, ...] of a memory."""
        raise NotImplementedError

    def _keep(self, batch: NDArray[np.int64]) -> None:
        """Entries of the batch take the places of others."""
        raise NotImplementedError

    def attend(self, q: Tensor, end: int, keywords: dict[str, Any]) -> Any:
        """What regard.attention returns for q on the rows up to `end`. Rows that are still to be
        written are dropped where it raises."""
        if end != self.length:
            self._write_pending()
        pending = self._pending
        masks = [name for name in ("attn_mask", "attn_bias") if name in keywords]
        memories, where = self._memories_of(end, bool(masks) or q.shape[2] != 1)
        keywords.update(where)
        rows = memories[0].shape[2] * (where["page_table"].shape[1] if "page_table" in where else 1)
        for name in masks:
            columns = keywords[name].shape[-1]
            if columns == end != rows:
                keywords[name] = pad(keywords[name], (0, rows - end))
        if self.has_scales:
            keywords.update(scales_k=memories[2], scales_v=memories[3])
        begin = end
        if pending is not None:
            begin -= pending[0].shape[2]
            dtype = q.dtype if self.has_scales else self.dtype
            keywords["k_new"], keywords["v_new"] = (x if x.dtype == dtype else x.to(dtype)
                                                    for x in pending)
        try:
            if _device.takes(q):
                keywords["seqlens_kv"] = torch.full((self.batch,), begin, dtype=torch.int32,
                                                    device=self.device)
                out = _device.attention(q, memories[0], memories[1], **keywords)
            else:
                self._lengths.fill(begin)
                with drop_in_errors:
                    out = _core.attention(q, memories[0], memories[1], seqlens_kv=self._lengths,
                                          **keywords)
        except BaseException:
            self._take_back(begin)
            raise
        self._pending = None
        return out

    def _take_back(self, length: int) -> None:
        if self._pending is not None:
            self._pending, self.length = None, length
            self.version += 1

    def _write_pending(self) -> None:
        if self._pending is not None:
            key = self._pending[0]
            nobody = key.new_empty((self.batch, self.heads, 0, key.shape[3]))
            self.attend(nobody, self.length, {})

    def numbers(self, which: int, end: int) -> Tensor:
        """Keys (0) or values (1) up to `end`, of the type of the rows that were appended; in the cache's
        memory where they lie there as such."""
        self._write_pending()
        made = self._gather(_bits(self.memories[which]), end).view(self.dtype)
        if self.has_scales:
            scales = self._gather(self.memories[2 + which], end)
            made = made.to(torch.float32) * scales[..., None]
        return made.to(self.dtypes[which])

    def choose(self, batch: Tensor) -> None:
        """Entry i of the batch becomes what entry batch[i] was."""
        self._write_pending()
        index = batch.nonzero()[:, 0] if batch.dtype == torch.bool else batch
        self._keep(index.to("cpu", torch.int64).numpy())
        self.batch = len(index)
        self._lengths = np.empty(self.batch, np.int32)
        self.version += 1

    def crop(self, length: int) -> None:
        """Keeps the first rows."""
        self._write_pending()
        self.length = length
        self.version += 1


class ContiguousRows(Rows):
    """Rows behind one another. Memory for `limit` rows, or for twice as many as are needed."""

    def __init__(self, dtype: torch.dtype, states: tuple[Tensor, Tensor], limit: int | None) -> None:
        super().__init__(dtype, states, limit)
        rows = limit or max(_FIRST_ROWS, 2 * states[0].shape[2])
        self.memories = self._allocate(self.batch, rows)

    def _reserve(self, end: int) -> None:
        if end > self.memories[0].shape[2]:
            self._move(self._allocate(self.batch, 2 * end))

    def _move(self, memories: list[Tensor]) -> None:
        for target, memory in zip(memories, self.memories):
            target[:, :, :self.length] = memory[:, :, :self.length]
        self.memories = memories

    def _memories_of(self, end: int, fits: bool) -> tuple[list[Tensor], dict[str, Any]]:
        return [memory[:, :, :end] for memory in self.memories] if fits else self.memories, {}

    def write(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Appends rows without scales by PyTorch's operators, which any device has and autograd records.
        Returns all rows, in the cache's memory and of its type."""
        self._write_pending()
        begin, end = self.length, self.length + key.shape[2]
        self._reserve(end)
        for memory, states in zip(self.memories, (key, value)):
            memory[:, :, begin:end] = states
        self.length = end
        return self.memories[0][:, :, :end], self.memories[1][:, :, :end]

    def _gather(self, memory: Tensor, end: int) -> Tensor:
        return memory[:, :, :end]

    def _keep(self, batch: NDArray[np.int64]) -> None:
        index, memories = torch.from_numpy(batch), self.memories
        if len(batch) != self.batch:
            memories = self._allocate(len(batch), memories[0].shape[2])
        for target, memory in zip(memories, self.memories):
            _bits(target)[:, :, :self.length] = _bits(memory)[:, :, :self.length][index]
        self.memories = memories


class PagedRows(Rows):
    """Rows in pages of a pool that grows. Sequences share the pages that `choose` has given to several
    of them, until one of these appends to a page: it gets a copy of that page then."""

    def __init__(self, dtype: torch.dtype, states: tuple[Tensor, Tensor], limit: int | None,
                 page_size: int) -> None:
        super().__init__(dtype, states, limit)
        self.page_size = page_size
        self.memories = self._allocate(0, page_size)
        self._table = np.full((self.batch, 0), -1, np.int32)
        self._columns = 0  # of the table, that are in use
        self._users = np.zeros(0, np.int64)
        self._has_shared = False
        self._free: list[int] = []
        self._sent: tuple[NDArray[np.int32], Tensor] | None = None  # the table that the device has

    @property
    def page_table(self) -> NDArray[np.int32]:
        """Page i of each sequence, [batch, pages]."""
        return self._table[:, :self._columns]

    def _needed(self, rows: int) -> int:
        return -(-rows // self.page_size)

    def _take(self, count: int) -> list[int]:
        """So many pages that nobody has."""
        if count > len(self._free):
            self._grow(count - len(self._free))
        pages = [self._free.pop() for _ in range(count)]
        self._users[pages] = 1
        return pages

    def _grow(self, count: int) -> None:
        before = len(self._users)
        pages = max(2 * before, before + count)
        if self.limit is not None:
            pages = max(min(pages, self.batch * self._needed(self.limit)), before + count)
        memories = self._allocate(pages, self.page_size)
        for target, memory in zip(memories, self.memories):
            target[:before] = memory
        self.memories = memories
        self._users = np.concatenate([self._users, np.zeros(pages - before, np.int64)])
        self._free = [*range(pages - 1, before - 1, -1), *self._free]

    def _reserve(self, end: int) -> None:
        begin = self.length // self.page_size  # the column of the next row
        if self._has_shared and begin < self._columns:
            self._copy_shared(begin)
        more = self._needed(end) - self._columns
        if more <= 0:
            return
        if self._columns + more > self._table.shape[1]:
            room = np.full((self.batch, max(2 * self._columns, self._columns + more)), -1, np.int32)
            room[:, :self._columns] = self.page_table
            self._table = room
        self._table[:, self._columns:self._columns + more] = np.reshape(
            self._take(self.batch * more), (self.batch, more))
        self._columns += more

    def _copy_shared(self, begin: int) -> None:
        """Gives sequences pages of their own from a column on; one keeps what several have."""
        table = self._table[:, begin:self._columns]
        users, places, olds = self._users.copy(), [], []
        for place, page in np.ndenumerate(table):
            if users[page] > 1:
                users[page] -= 1
                places.append(place)
                olds.append(int(page))
        news = self._take(len(olds))
        for memory in self.memories:
            _bits(memory)[news] = _bits(memory)[olds]
        for place, new in zip(places, news):
            table[place] = new
        np.subtract.at(self._users, olds, 1)

    def _count_users(self) -> None:
        """After the table has changed."""
        self._users = np.bincount(self.page_table.ravel(), minlength=len(self._users))
        self._has_shared = bool(self._users.max(initial=0) > 1)
        self._free = np.flatnonzero(self._users == 0)[::-1].tolist()

    def _memories_of(self, end: int, fits: bool) -> tuple[list[Tensor], dict[str, Any]]:
        table = self._table[:, :self._needed(end)]
        if not _device.takes(self.memories[0]):
            return self.memories, {"page_table": table}
        if self._sent is None or not np.array_equal(self._sent[0], table):
            self._sent = table.copy(), _device.placed("page_table", table, self.memories[0])
        return self.memories, {"page_table": self._sent[1]}

    def _gather(self, memory: Tensor, end: int) -> Tensor:
        pages = memory[torch.from_numpy(self._table[:, :self._needed(end)].astype(np.int64))]
        return pages.transpose(1, 2).flatten(2, 3)[:, :, :end]

    def _keep(self, batch: NDArray[np.int64]) -> None:
        self._columns = self._needed(self.length)
        self._table = self._table[batch]
        self._count_users()

    def crop(self, length: int) -> None:
        super().crop(length)
        self._columns = self._needed(length)
        self._count_users()


def rows_of(dtype: torch.dtype, states: tuple[Tensor, Tensor], limit: int | None,
            page_size: int | None) -> Rows:
    """Memory for keys and values like `states`, without a row. limit: the greatest length."""
    key = states[0]
    if dtype.itemsize > max(x.dtype.itemsize for x in states):
        raise ArgumentError(f"dtype ({dtype}) must be no wider than that of the model's keys, {key.dtype}")
    needs_regard = page_size is not None or dtype.itemsize == 1
    if needs_regard and not (key.device.type == "cpu" or _device.takes(key)):
        raise ArgumentError(f"device of key_states ({key.device}) must be cpu or, in a build with CUDA, cuda: "
                            "regard's attention alone reads pages and 8-bit rows")
    if page_size is None:
        return ContiguousRows(dtype, states, limit)
    return PagedRows(dtype, states, limit, page_size)
