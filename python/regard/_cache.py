"""KV caches that keep sequences: which rows are whose, and where the next ones go. The arithmetic is
regard.attention's, by page_table or cache_batch_idx."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._cache_memory import (
    DeviceMemory,
    copy_of,
    memory_of,
    numbers_of,
    on_host,
    places_in,
    rounded_like,
)
from ._cache_scales import SCALES, RowScales, is_quantised

# Keywords of attention that say where the keys lie.
_OF_THE_CACHE = frozenset({"layout", "seqlens_kv", "page_table", "cache_batch_idx",
                           "cache_leftpad", "shared_prefix_kv", "cu_seqlens_q", "cu_seqlens_kv",
                           "max_seqlen_q", "max_seqlen_kv", "lengths", "lengths_kv", "padding",
                           "k_dtype", "v_dtype", "hadamard"})


class CacheFullError(RuntimeError):
    """Raised before anything is written where rows do not fit a cache."""


def _positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} ({number!r}) must be an integer of at least 1")


def _dtypes(dtype: Any, k_dtype: Any, v_dtype: Any) -> tuple[Any, Any]:
    return (dtype if k_dtype is None else k_dtype), (dtype if v_dtype is None else v_dtype)


class _Cache:
    """What both caches share: sequences by number, rows in and attention out."""

    def __init__(self, shape: tuple[int, ...], dtypes: tuple[Any, Any], scales: str | None,
                 hadamard: bool, device: Any) -> None:
        if scales not in (*SCALES, None):
            raise ValueError(f"scales ({scales!r}) must be {', '.join(map(repr, SCALES))} or None")
        self._memories = [memory_of(dtype, device) for dtype in dtypes]
        *outer, dim = shape
        if hadamard and dim & (dim - 1):
            raise ValueError(f"head_dim ({dim}) must be a power of two with hadamard=True")
        self._head_dim, self._hadamard = dim, bool(hadamard)
        self._row_scales: list[RowScales | None] = []
        rows = []
        for name, memory in zip(("k", "v"), self._memories):
            if dim % memory.per_element:
                raise ValueError(f"head_dim ({dim}) must be even where {name} is u4: two codes are a byte")
            rows.append(memory.zeros((*outer, dim // memory.per_element)))
            if scales is None and str(memory.dtype).endswith("int8"):
                raise ValueError(f"scales (None) must be one of {', '.join(map(repr, SCALES))} where {name} "
                                 f"is {'u4' if memory.per_element == 2 else 'int8'}")
            has_scales = scales is not None and is_quantised(memory.dtype)
            self._row_scales.append(RowScales(name, str(scales), shape, memory)
                                    if has_scales else None)
        self.k, self.v = rows
        self._lengths: dict[int, int] = {}
        self._next = 0

    @property
    def scales_k(self) -> Any:
        """What rows of k are multiplied by, [entries, kv heads, rows] or [pages, kv heads, 1]; of u4
        [entries, kv heads, rows, 2 * groups], a scale and a minimum for each group of 32 elements. None
        where they have no scales."""
        return self._scales("scales_k")

    @property
    def scales_v(self) -> Any:
        """What rows of v are multiplied by."""
        return self._scales("scales_v")

    @property
    def channel_scales_k(self) -> NDArray[np.float32] | None:
        """What columns of k are multiplied by, [kv heads, head_dim]; None where they have no scales."""
        return self._scales("channel_scales_k")

    def _scales(self, name: str) -> Any:
        return self._scale_keywords().get(name)

    def _scale_keywords(self) -> dict[str, Any]:
        """The scales, and what else says what rows stand for, by their names in attention."""
        made: dict[str, Any] = {"hadamard": True} if self._hadamard else {}
        for name, memory in zip(("k_dtype", "v_dtype"), self._memories):
            if memory.per_element == 2:
                made[name] = "u4"
        for scaled in self._row_scales:
            if scaled is not None:
                made.update(scaled.keywords())
        return made

    @property
    def _bits(self) -> list[Any]:
        """What rows are, as arrays of integers over their memory [entries, kv heads, rows, .]: k, v and the
        scales of rows. Made anew each time: a copied or pickled cache has other memory."""
        bits = [memory.bits(rows) for memory, rows in zip(self._memories, (self.k, self.v))]
        return bits + [q.scales for q in self._row_scales
                       if q is not None and q.of_rows and q.scales is not None]

    @property
    def _entry_scales(self) -> list[Any]:
        """One for all rows of an entry, [entries, kv heads, 1, 1]."""
        return [q.scales for q in self._row_scales
                if q is not None and not q.of_rows and q.scales is not None]

    def _new(self, length: int) -> int:
        sequence, self._next = self._next, self._next + 1
        self._lengths[sequence] = length
        return sequence

    def _check(self, sequence: int) -> None:
        if sequence not in self._lengths:
            raise KeyError(f"sequence ({sequence!r}) is none of this cache, or was freed")

    def length(self, sequence: int) -> int:
        """The rows that a sequence has."""
        self._check(sequence)
        return self._lengths[sequence]

    def _check_rows(self, rows: dict[str, Any], rank: int) -> None:
        """k and v [..., kv heads, new, head_dim]."""
        heads, size = self.k.shape[1], self._head_dim
        shapes = [tuple(np.shape(given)) for given in rows.values()]
        for name, shape in zip(rows, shapes):
            if len(shape) != rank or shape[-3] != heads or shape[-1] != size:
                raise ValueError(f"shape of {name} ({shape}) must end in [{heads} kv heads, new, "
                                 f"{size}] and have rank {rank}")
        if shapes[0] != shapes[1]:
            first, second = rows
            raise ValueError(f"shape of {second} ({shapes[1]}) must be {first}'s, {shapes[0]}")

    def _place(self, sequence: int) -> Any:
        """What _restore takes."""

    def _reserve(self, sequence: int, rows: int) -> None:
        """Room for rows behind those of a sequence, of its own; CacheFullError where there is none."""
        raise NotImplementedError

    def _keywords(self, sequences: Sequence[int]) -> dict[str, Any]:
        raise NotImplementedError

    def _read(self, rows: Any, sequence: int, begin: int, end: int) -> Any:
        raise NotImplementedError

    def _write(self, rows: Any, sequence: int, begin: int, values: Any) -> None:
        raise NotImplementedError

    def append(self, sequence: int, k: Any, v: Any) -> None:
        """Adds rows to a sequence.

        k and v are [kv heads, new, head_dim], NumPy arrays or PyTorch's tensors of any float type, of a
        CPU or of the cache's device; they are rounded to the cache's, or quantised as regard.attention
        quantises them. Raises, before anything is written, CacheFullError where they do not fit,
        ValueError for a shape, a tensor of another device or, where a CPU quantises rows, what is not
        finite, and TypeError for a tensor that requires a gradient, except within torch.no_grad().
        """
        self._check(sequence)
        given = {"k": k, "v": v}
        self._check_rows(given, 3)
        # The call quantises and mixes what it appends, also without queries.
        nobody = self._memories[0].nobody((1, self.k.shape[1], 0, self._head_dim))
        k, v = (memory.rounded(name, x) if scaled is None else rounded_like(nobody, name, x)
                for memory, scaled, (name, x) in zip(self._memories, self._row_scales, given.items()))
        new, begin = k.shape[1], self._lengths[sequence]
        if any(self._row_scales) or self._hadamard:
            if new:
                self.attend(nobody, [sequence], k_new=k[None], v_new=v[None])
            return
        self._reserve(sequence, new)
        for memory, bits, rows in zip(self._memories, self._bits, (k, v)):
            self._write(bits, sequence, begin, memory.bits(rows))
        self._lengths[sequence] = begin + new

    def _scales_of(self, scaled: RowScales, sequence: int, begin: int, end: int) -> Any:
        """Those of rows of a sequence, [kv heads, rows, 1]; None where columns alone have scales."""
        if scaled.scales is None:
            return None
        shape = (*scaled.scales.shape[:2], self.k.shape[2], scaled.scales.shape[3])
        whole = scaled.scales if scaled.of_rows else np.broadcast_to(scaled.scales, shape)
        return self._read(whole, sequence, begin, end)

    def _check_given_scales(self, sequence: int, new: int) -> None:
        """ValueError where the caller has not set what the next rows of a sequence are divided by."""
        begin = self._lengths[sequence]
        for scaled in self._row_scales:
            if scaled is not None and not scaled.of_rows:
                scaled.check(self._scales_of(scaled, sequence, begin, begin + new))

    def rows(self, sequence: int) -> tuple[Any, Any]:
        """Copies of the keys and values of a sequence, [kv heads, length, head_dim] each, of the
        cache's kind and type; with scales, the numbers of float32 that they stand for, in NumPy. With
        hadamard=True keys are those that the cache holds, times the matrix."""
        self._check(sequence)
        end = self._lengths[sequence]
        made = []
        for memory, scaled, bits in zip(self._memories, self._row_scales, self._bits):
            rows = memory.of_bits(self._read(bits, sequence, 0, end))
            if scaled is not None:
                scales = self._scales_of(scaled, sequence, 0, end)
                rows = scaled.numbers(numbers_of(scaled.name, on_host(rows)), on_host(scales))
            made.append(rows)
        return made[0], made[1]

    def evict(self, sequence: int, rows: int) -> None:
        """Drops the oldest rows of a sequence: what follows them moves to the front, and positions
        count from there. Raises ValueError where the sequence has fewer."""
        self._check(sequence)
        length = self._lengths[sequence]
        if isinstance(rows, bool) or not isinstance(rows, int) or not 0 <= rows <= length:
            raise ValueError(f"rows ({rows!r}) must be 0 to {length}, the rows of the sequence")
        if rows:
            self._drop(sequence, rows)

    def _drop(self, sequence: int, rows: int) -> None:
        kept = [self._read(each, sequence, rows, self._lengths[sequence]) for each in self._bits]
        for each, values in zip(self._bits, kept):
            self._write(each, sequence, 0, values)
        self._lengths[sequence] -= rows

    def attend(self, q: Any, sequences: Sequence[int], *, k_new: Any = None, v_new: Any = None,
               shared_prefix: bool = False, **options: Any) -> Any:
        """Attention of q [batch, heads, queries, head_dim] on the rows of one sequence for each entry.

        k_new and v_new [batch, kv heads, new, head_dim] are appended first, in the same call; no
        sequence may then be named twice. Each may be a NumPy array or a CPU tensor of PyTorch's; what
        is returned is of q's kind. With a device q is a tensor there, and nothing waits. The options are
        those of regard.attention; a diagonal that is not named is 'bottom_right': the last query is at
        the last row. Returns what regard.attention does. A call that raises leaves the cache as it was.
        Keywords that say where keys lie (layout, seqlens_kv and the like) are the cache's.

        shared_prefix=True, of a PagedKVCache, reads the pages once that all sequences begin with, as
        forks of one do (shared_prefix_kv of regard.attention, which says what it refuses). Results are
        then within the tolerance of those without it, and depend on the batch.
        """
        sequences = list(sequences)
        for sequence in sequences:
            self._check(sequence)
        if len(sequences) != np.shape(q)[0]:
            raise ValueError(f"sequences ({len(sequences)} of them) must be one for each entry of q's "
                             f"batch, {np.shape(q)[0]}")
        for name in _OF_THE_CACHE.intersection(options):
            raise TypeError(f"{name} ({options[name]!r}) is what the cache states; leave it out")
        if shared_prefix and isinstance(self._memories[0], DeviceMemory):
            raise ValueError("shared_prefix (True) must be False on a CUDA device: a CPU merges its states")
        options.setdefault("diagonal", "bottom_right")
        lengths = np.array([self._lengths[s] for s in sequences], np.int32)
        if (k_new is None) != (v_new is None):
            raise ValueError("k_new and v_new must both be given, or neither")
        if shared_prefix:
            # A row that is appended is the last that the last query sees.
            behind = np.shape(q)[2] - 1 - (0 if k_new is None else np.shape(k_new)[2])
            rows = int(lengths.min(initial=2**31 - 1)) - max(behind, 0)
            options["shared_prefix_kv"] = self._shared_keys(sequences, rows)
        if k_new is None:
            return self._memories[0].attend(q, self.k, self.v, seqlens_kv=lengths, **self._keywords(sequences),
                             **self._scale_keywords(), **options)
        if len(set(sequences)) != len(sequences):
            raise ValueError(f"sequences ({sequences!r}) must be different where rows are appended")
        given = {"k_new": k_new, "v_new": v_new}
        self._check_rows(given, 4)
        # Rows that the call quantises have q's type.
        k, v = (memory.rounded(name, x) if scaled is None else rounded_like(q, name, x)
                for memory, scaled, (name, x) in zip(self._memories, self._row_scales, given.items()))
        before = [self._place(s) for s in sequences]
        try:
            for sequence in sequences:
                self._reserve(sequence, k.shape[2])
                self._check_given_scales(sequence, k.shape[2])
            made = self._memories[0].attend(q, self.k, self.v, seqlens_kv=lengths, k_new=k, v_new=v,
                                **self._keywords(sequences), **self._scale_keywords(), **options)
        except BaseException:
            for sequence, place in zip(sequences, before):
                self._restore(sequence, place)
            raise
        for sequence in sequences:
            self._lengths[sequence] += k.shape[2]
        return made

    def _restore(self, sequence: int, place: Any) -> None:
        """Gives back what was reserved behind a place of before."""

    def _shared_keys(self, sequences: Sequence[int], rows: int) -> int:
        """How many of the first `rows` rows lie in pages that all sequences begin with."""
        raise ValueError("shared_prefix (True) must be False: only pages of a PagedKVCache are shared")


class PagedKVCache(_Cache):
    """Keys and values of many sequences in pages of one pool, NumPy arrays or PyTorch's tensors.

        >>> import numpy as np, regard
        >>> cache = regard.PagedKVCache(num_pages=64, page_size=16, num_kv_heads=2, head_dim=64,
        ...                             dtype="f32")
        >>> s = cache.allocate()
        >>> rows = np.ones((2, 20, 64), np.float32)
        >>> cache.append(s, rows, rows)
        >>> t = cache.fork(s)  # shares the pages until one of both appends
        >>> cache.attend(np.ones((2, 8, 1, 64), np.float32), [s, t], is_causal=True).shape
        (2, 8, 1, 64)

    k and v are the pages, [num_pages, kv heads, page_size, head_dim]. dtype is "f64", "f32", "f16",
    "bf16", "f8e4m3" or "f8e5m2" for NumPy arrays (the last three need the package ml_dtypes), or a
    torch.dtype of these for PyTorch's tensors: torch.bfloat16. Rows and queries may be of either kind
    whatever the cache holds. k_dtype and v_dtype stand for dtype where k and v differ.

    Rows of "i8" (torch.int8), "f8e4m3" and "f8e5m2" are quantised as they are appended, with scales of
    float32: one for each row ("token"), or those that the caller writes into scales_k and scales_v
    [num_pages, kv heads, 1] ("page") or channel_scales_k [kv heads, head_dim] ("channel", where v has
    scales of rows) before the first row, which then saturate. scales=None stores 8-bit floats as they
    are rounded. Rows of "u4" ("int4"; torch.uint8) have a scale and a minimum for every 32 elements of a row,
    in scales_k and scales_v [num_pages, kv heads, page_size, 2 * groups]; they need scales="token" and an
    even head_dim, and k and v hold two elements in a byte. hadamard=True keeps keys times the
    Walsh-Hadamard matrix, which spreads outliers of a few columns over all: head_dim is then a power of
    two. device="cuda" (or "cuda:1"), of a build with CUDA and with a torch.dtype, keeps rows and their scales
    on that device, as tensors; which rows are whose stays on the host. Scales are then those of rows, and
    shared_prefix is refused. Not for use by several threads at once.

    Raises ValueError for a size, dtype or device, ImportError where ml_dtypes is missing, CacheFullError where
    pages are too few, KeyError for a sequence that is not there; the cache is then as it was.

    More: `python -m regard docs python`.
    """

    def __init__(self, *, num_pages: int, page_size: int, num_kv_heads: int, head_dim: int,
                 dtype: Any = "bf16", k_dtype: Any = None, v_dtype: Any = None,
                 scales: str | None = "token", hadamard: bool = False, device: Any = None) -> None:
        _positive(num_pages=num_pages, page_size=page_size, num_kv_heads=num_kv_heads,
                  head_dim=head_dim)
        shape = (num_pages, num_kv_heads, page_size, head_dim)
        super().__init__(shape, _dtypes(dtype, k_dtype, v_dtype), scales, hadamard, device)
        self._pages: dict[int, list[int]] = {}
        self._users = [0] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))

    @property
    def free_pages(self) -> int:
        """Pages that no sequence has."""
        return len(self._free)

    def allocate(self) -> int:
        """A new sequence without rows; it takes pages when rows come."""
        sequence = self._new(0)
        self._pages[sequence] = []
        return sequence

    def fork(self, sequence: int) -> int:
        """A sequence with the same rows, in the same pages. The page that either appends to next is
        copied then."""
        self._check(sequence)
        twin = self._new(self._lengths[sequence])
        self._pages[twin] = list(self._pages[sequence])
        for page in self._pages[twin]:
            self._users[page] += 1
        return twin

    def free(self, sequence: int) -> None:
        """Ends a sequence; pages that nobody else has are free again."""
        self._check(sequence)
        self._release(self._pages.pop(sequence))
        del self._lengths[sequence]

    def pages(self, sequence: int) -> list[int]:
        """The pages of a sequence, in the order of its rows."""
        self._check(sequence)
        return list(self._pages[sequence])

    def _release(self, pages: list[int]) -> None:
        for page in pages:
            self._users[page] -= 1
            if self._users[page] == 0:
                self._free.append(page)

    def _take(self) -> int:
        page = self._free.pop()
        self._users[page] = 1
        return page

    def _place(self, sequence: int) -> list[int]:
        return list(self._pages[sequence])

    def _restore(self, sequence: int, place: list[int]) -> None:
        for page in place:
            self._users[page] += 1
        self._release(self._pages[sequence])
        self._pages[sequence] = place

    def _reserve(self, sequence: int, rows: int) -> None:
        size, length, own = self.k.shape[2], self._lengths[sequence], self._pages[sequence]
        pages = -(-(length + rows) // size)
        first = length // size  # the page of the next row
        shared = [n for n in range(first, len(own)) if self._users[own[n]] > 1] if rows else []
        needed = max(pages - len(own), 0) + len(shared)
        if needed > len(self._free):
            raise CacheFullError(f"{rows} more rows need {needed} pages, and {len(self._free)} of "
                                 f"{len(self._users)} are free")
        for n in shared:
            copy = self._take()
            for each in self._bits + self._entry_scales:
                each[copy] = each[own[n]]
            self._release([own[n]])
            own[n] = copy
        while len(own) < pages:
            own.append(self._take())

    def _drop(self, sequence: int, rows: int) -> None:
        size, own = self.k.shape[2], self._pages[sequence]
        whole, rest = divmod(rows, size)
        left = self._lengths[sequence] - rows
        if rest == 0 or left == 0:
            whole = len(own) if left == 0 else whole
            self._release(own[:whole])
            del own[:whole]
            self._lengths[sequence] = left
            return
        if self._entry_scales:
            raise ValueError(f"rows ({rows}) must be whole pages of {size} where pages have scales: rows are "
                             "not quantised anew")
        # Rows move down within pages: into others where somebody else has these, too.
        pages = -(-left // size)
        room = len(self._free) + sum(self._users[page] == 1 for page in own)
        if pages > room:
            raise CacheFullError(f"rows that move within shared pages need {pages} pages, and {room} "
                                 f"of {len(self._users)} are free")
        values = [self._read(each, sequence, rows, rows + left) for each in self._bits]
        self._release(own)
        self._pages[sequence] = [self._take() for _ in range(pages)]
        for each, moved in zip(self._bits, values):
            self._write(each, sequence, 0, moved)
        self._lengths[sequence] = left

    def _shared_keys(self, sequences: Sequence[int], rows: int) -> int:
        size = self.k.shape[2]
        shared = 0
        if len(set(sequences)) > 1:
            for pages in zip(*(self._pages[s] for s in sequences)):
                if len(set(pages)) > 1:
                    break
                shared += 1
        return min(shared, max(rows, 0) // size) * size

    def _keywords(self, sequences: Sequence[int]) -> dict[str, Any]:
        widest = max((len(self._pages[s]) for s in sequences), default=0)
        table = np.full((len(sequences), widest), -1, np.int32)
        for row, sequence in zip(table, sequences):
            own = self._pages[sequence]
            row[:len(own)] = own
        return {"page_table": table}

    def _places(self, rows: Any, sequence: int, begin: int, end: int) -> tuple[Any, slice, Any]:
        """The index of rows [begin, end) in k and v."""
        every, size = np.arange(begin, end), self.k.shape[2]
        pages, places = places_in(rows, np.array(self._pages[sequence], np.int64)[every // size],
                                  every % size)
        return pages, slice(None), places

    def _read(self, rows: Any, sequence: int, begin: int, end: int) -> Any:
        return copy_of(rows[self._places(rows, sequence, begin, end)].swapaxes(0, 1))

    def _write(self, rows: Any, sequence: int, begin: int, values: Any) -> None:
        places = self._places(rows, sequence, begin, begin + values.shape[1])
        rows[places] = values.swapaxes(0, 1)


class KVCache(_Cache):
    """Keys and values of up to batch_size sequences, each in `capacity` rows of its own, NumPy arrays
    or PyTorch's tensors.

        >>> import numpy as np, regard
        >>> cache = regard.KVCache(batch_size=4, capacity=128, num_kv_heads=2, head_dim=64, dtype="f32")
        >>> s = cache.allocate()
        >>> new = np.ones((1, 2, 1, 64), np.float32)
        >>> cache.attend(np.ones((1, 8, 1, 64), np.float32), [s], k_new=new, v_new=new).shape
        (1, 8, 1, 64)
        >>> cache.length(s)
        1

    k and v are [batch_size, kv heads, capacity, head_dim]; types, scales and device as of PagedKVCache,
    "page" being one for each of the batch_size entries. Not for use by several threads at once. Raises what
    PagedKVCache raises, CacheFullError where entries or rows are too few.

    More: `python -m regard docs python`.
    """

    def __init__(self, *, batch_size: int, capacity: int, num_kv_heads: int, head_dim: int,
                 dtype: Any = "bf16", k_dtype: Any = None, v_dtype: Any = None,
                 scales: str | None = "token", hadamard: bool = False, device: Any = None) -> None:
        _positive(batch_size=batch_size, capacity=capacity, num_kv_heads=num_kv_heads,
                  head_dim=head_dim)
        super().__init__((batch_size, num_kv_heads, capacity, head_dim),
                         _dtypes(dtype, k_dtype, v_dtype), scales, hadamard, device)
        self._entries: dict[int, int] = {}
        self._free = list(range(batch_size - 1, -1, -1))

    def _entry(self) -> int:
        if not self._free:
            raise CacheFullError(f"all {self.k.shape[0]} entries of the cache are taken; free one")
        return self._free.pop()

    def allocate(self) -> int:
        """A new sequence without rows. Raises CacheFullError where all entries are taken."""
        entry = self._entry()
        sequence = self._new(0)
        self._entries[sequence] = entry
        return sequence

    def fork(self, sequence: int) -> int:
        """A sequence with copies of the same rows."""
        self._check(sequence)
        entry, length = self._entry(), self._lengths[sequence]
        twin = self._new(length)
        self._entries[twin] = entry
        for each in self._bits:
            each[entry, :, :length] = each[self._entries[sequence], :, :length]
        for scales in self._entry_scales:
            scales[entry] = scales[self._entries[sequence]]
        return twin

    def free(self, sequence: int) -> None:
        """Ends a sequence; its entry is free again."""
        self._check(sequence)
        self._free.append(self._entries.pop(sequence))
        del self._lengths[sequence]

    def _reserve(self, sequence: int, rows: int) -> None:
        length, capacity = self._lengths[sequence], self.k.shape[2]
        if length + rows > capacity:
            raise CacheFullError(f"{rows} more rows than the {length} of the sequence do not fit the "
                                 f"capacity, {capacity}")

    def _keywords(self, sequences: Sequence[int]) -> dict[str, Any]:
        return {"cache_batch_idx": np.array([self._entries[s] for s in sequences], np.int32)}

    def _read(self, rows: Any, sequence: int, begin: int, end: int) -> Any:
        return copy_of(rows[self._entries[sequence], :, begin:end])

    def _write(self, rows: Any, sequence: int, begin: int, values: Any) -> None:
        rows[self._entries[sequence], :, begin:begin + values.shape[1]] = values
