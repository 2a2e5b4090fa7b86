"""KVCache and PagedKVCache against a model that keeps every row."""

import importlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import regard

HEADS, SIZE = 2, 8


def rows_of(seed, count):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((2, HEADS, count, SIZE)).astype(np.float32)


class Machine(RuleBasedStateMachine):
    """Any sequence of calls leaves the rows that the model has; one that raises changes nothing."""

    def make(self):
        raise NotImplementedError

    def given(self, data, rows):
        """The rows as the cache is given them: with_torch has tensors."""
        return rows

    def numbers(self, rows):
        """float32 in NumPy of what the cache returns."""
        return rows

    def expected(self, q, k, v, **options):
        """The attention that attend must return, of NumPy arrays of float32."""
        return regard.attention(q, k, v, **options)

    @initialize()
    def start(self):
        self.cache = self.make()
        self.model = {}  # of each sequence its rows, [2, heads, length, head_dim]
        self.seed = 0

    def next_rows(self, count):
        self.seed += 1
        return rows_of(self.seed, count)

    def pick(self, data):
        return data.draw(st.sampled_from(sorted(self.model)))

    def state(self):
        """What a call that raises leaves as it was, beside the rows."""
        return {sequence: self.cache.length(sequence) for sequence in self.model}

    def has_no_entry(self):
        """Whether there is no place for one more sequence."""
        raise NotImplementedError

    def lacks_room(self, sequences, new):
        """Whether `new` more rows of each of these sequences do not fit."""
        raise NotImplementedError

    def cannot_move(self, sequence, count):
        """Whether the rows behind the first `count` cannot move to the front."""
        raise NotImplementedError

    def attempt(self, is_full, call):
        """The result; None where the cache is full, which the call must then report, and only then."""
        before = self.state()
        if not is_full:
            return call()
        with pytest.raises(regard.CacheFullError):
            call()
        assert self.state() == before
        return None

    @rule()
    def allocate(self):
        sequence = self.attempt(self.has_no_entry(), self.cache.allocate)
        if sequence is not None:
            assert sequence not in self.model
            self.model[sequence] = np.zeros((2, HEADS, 0, SIZE), np.float32)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), count=st.integers(0, 9))
    def append(self, data, count):
        sequence, rows = self.pick(data), self.next_rows(count)
        k, v = (self.given(data, x) for x in rows)
        if self.attempt(self.lacks_room([sequence], count),
                        lambda: self.cache.append(sequence, k, v) or True):
            self.model[sequence] = np.concatenate([self.model[sequence], rows], axis=2)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def fork(self, data):
        sequence = self.pick(data)
        twin = self.attempt(self.has_no_entry(), lambda: self.cache.fork(sequence))
        if twin is not None:
            self.model[twin] = self.model[sequence]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def evict(self, data):
        sequence = self.pick(data)
        count = data.draw(st.integers(0, self.model[sequence].shape[2]))
        if self.attempt(self.cannot_move(sequence, count),
                        lambda: self.cache.evict(sequence, count) or True):
            self.model[sequence] = self.model[sequence][:, :, count:]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def free(self, data):
        sequence = self.pick(data)
        self.cache.free(sequence)
        del self.model[sequence]
        with pytest.raises(KeyError, match="is none of this cache"):
            self.cache.length(sequence)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), new=st.integers(0, 3), causal=st.booleans())
    def attend(self, data, new, causal):
        sequences = data.draw(st.lists(st.sampled_from(sorted(self.model)), min_size=1, max_size=3,
                                       unique=True))
        q = self.next_rows(2)[0].repeat(2, 0)[None].repeat(len(sequences), 0)
        added = [self.next_rows(new) for _ in sequences]
        appended = {} if new == 0 else dict(
            k_new=self.given(data, np.stack([x[0] for x in added])),
            v_new=self.given(data, np.stack([x[1] for x in added])))
        queries = self.given(data, q)
        out = self.attempt(self.lacks_room(sequences, new),
                           lambda: self.cache.attend(queries, sequences, is_causal=causal, **appended))
        if out is None:
            return
        assert type(out) is type(queries) and out.dtype == queries.dtype
        out = self.numbers(out)
        for n, sequence in enumerate(sequences):
            self.model[sequence] = np.concatenate([self.model[sequence], added[n]], axis=2)
            k, v = self.model[sequence][:, None]
            one = self.expected(q[n:n + 1], k, v, is_causal=causal, diagonal="bottom_right")
            np.testing.assert_array_equal(out[n:n + 1], one)

    @invariant()
    def has_the_rows(self):
        for sequence, rows in self.model.items():
            assert self.cache.length(sequence) == rows.shape[2]
            k, v = (self.numbers(x) for x in self.cache.rows(sequence))
            np.testing.assert_array_equal(np.stack([k, v]), rows)


PAGES, PAGE_SIZE = 9, 4


class Paged(Machine):
    def make(self):
        return regard.PagedKVCache(num_pages=PAGES, page_size=PAGE_SIZE, num_kv_heads=HEADS,
                                   head_dim=SIZE, dtype="f32")

    def users(self):
        """How many sequences have each page."""
        return Counter(page for sequence in self.model for page in self.cache.pages(sequence))

    def state(self):
        return (super().state(), self.cache.free_pages,
                {sequence: self.cache.pages(sequence) for sequence in self.model})

    def has_no_entry(self):
        return False

    def lacks_room(self, sequences, new):
        if new == 0:
            return False
        users, needed, writers = self.users(), 0, Counter()
        for sequence in sequences:
            length = self.cache.length(sequence)
            needed += pages_of(length + new) - pages_of(length)
            if length % PAGE_SIZE:
                writers[self.cache.pages(sequence)[-1]] += 1
        # Of the users of a page, the last one that writes need not copy it.
        copies = sum(min(count, users[page] - 1) for page, count in writers.items())
        return needed + copies > self.cache.free_pages

    def cannot_move(self, sequence, count):
        kept, users = self.cache.length(sequence) - count, self.users()
        own = sum(users[page] == 1 for page in self.cache.pages(sequence))
        return count % PAGE_SIZE > 0 and pages_of(kept) > self.cache.free_pages + own

    @invariant()
    def every_page_is_counted(self):
        assert self.cache.free_pages == PAGES - len(self.users())
        for sequence, rows in self.model.items():
            assert len(self.cache.pages(sequence)) == pages_of(rows.shape[2])


def pages_of(rows):
    return -(-rows // PAGE_SIZE)


ENTRIES, CAPACITY = 4, 13


class Contiguous(Machine):
    def make(self):
        return regard.KVCache(batch_size=ENTRIES, capacity=CAPACITY, num_kv_heads=HEADS, head_dim=SIZE,
                              dtype="f32")

    def has_no_entry(self):
        return len(self.model) == ENTRIES

    def lacks_room(self, sequences, new):
        return any(self.cache.length(sequence) + new > CAPACITY for sequence in sequences)

    def cannot_move(self, sequence, count):
        return False


TestPaged = Paged.TestCase
TestContiguous = Contiguous.TestCase
TestPaged.settings = TestContiguous.settings = settings(max_examples=60, stateful_step_count=40,
                                                        deadline=None)


def paged(**changes):
    return regard.PagedKVCache(**dict(dict(num_pages=2, page_size=4, num_kv_heads=HEADS, head_dim=SIZE,
                                           dtype="f32"), **changes))


@pytest.mark.parametrize("changes, match", [
    (dict(num_pages=0), r"num_pages \(0\)"),
    (dict(page_size=True), r"page_size \(True\)"),
    (dict(dtype="int8"), r"dtype \('int8'\) must be one of f64, f32"),
    (dict(k_dtype="int2"), r"dtype \('int2'\) must be one of f64, f32"),
    (dict(hadamard=True, head_dim=12), r"head_dim \(12\) must be a power of two with hadamard=True"),
    (dict(scales="row"), r"scales \('row'\) must be 'token', 'page', 'channel' or None"),
    (dict(dtype="i8", scales=None), r"scales \(None\) must be one of .* where k is int8"),
])
def test_what_is_not_there_is_refused_by_name(changes, match):
    with pytest.raises(ValueError, match=match):
        paged(**changes)


def test_bad_calls_change_nothing():
    cache = paged()
    s, t = cache.allocate(), cache.allocate()
    rows = rows_of(1, 3)
    cache.append(s, *rows)
    q = rows_of(2, 1)[0][None]
    for call, error, match in [
        (lambda: cache.append(s, rows[0][0], rows[1]), ValueError, "shape of k"),
        (lambda: cache.append(s, rows[0], rows[1][:, :1]), ValueError, "shape of v"),
        (lambda: cache.append(s, *rows_of(3, 6)), regard.CacheFullError, "need 2 pages, and 1 of 2"),
        (lambda: cache.append(9, *rows), KeyError, "none of this cache"),
        (lambda: cache.evict(s, 4), ValueError, "must be 0 to 3"),
        (lambda: cache.attend(q, [s, t]), ValueError, "one for each entry"),
        (lambda: cache.attend(q, [s], k_new=q), ValueError, "both be given"),
        (lambda: cache.attend(q.repeat(2, 0), [s, s], k_new=q.repeat(2, 0), v_new=q.repeat(2, 0)),
         ValueError, "must be different"),
        # Room was reserved, then the call itself is refused.
        (lambda: cache.attend(q, [t], k_new=q, v_new=q, softcap=-1.0), ValueError, "softcap"),
    ]:
        with pytest.raises(error, match=match):
            call()
        assert (cache.length(s), cache.length(t), cache.free_pages) == (3, 0, 1)
        np.testing.assert_array_equal(np.stack(cache.rows(s)), rows)


@pytest.mark.parametrize("keyword, value", [
    ("layout", "BSHD"), ("seqlens_kv", [1]), ("page_table", [[0]]), ("cache_batch_idx", [0]),
    ("cu_seqlens_q", [0, 1]), ("cu_seqlens_kv", [0, 1]), ("max_seqlen_q", 1), ("max_seqlen_kv", 1),
    ("lengths", None), ("lengths_kv", None), ("padding", "auto"),
])
def test_keywords_that_the_cache_states_are_refused_by_name(keyword, value):
    cache = paged()
    s = cache.allocate()
    cache.append(s, *rows_of(1, 1))
    with pytest.raises(TypeError, match=rf"^{keyword} \(.*\) is what the cache states"):
        cache.attend(rows_of(2, 1)[0][None], [s], **{keyword: value})


def test_a_call_that_fails_after_a_fork_gives_back_the_copied_page():
    cache = paged(num_pages=3)
    s = cache.allocate()
    rows = rows_of(1, 3)
    cache.append(s, *rows)
    t = cache.fork(s)
    before = cache.pages(s), cache.pages(t), cache.free_pages
    q = rows_of(2, 1)[0][None]
    with pytest.raises(ValueError, match="softcap"):
        cache.attend(q, [t], k_new=q, v_new=q, softcap=-1.0)
    assert (cache.pages(s), cache.pages(t), cache.free_pages) == before
    cache.append(s, *rows_of(3, 1))
    np.testing.assert_array_equal(np.stack(cache.rows(t)), rows)


def test_bfloat16_needs_ml_dtypes(monkeypatch):
    def without(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(ImportError, match="dtype 'bf16' needs the package ml_dtypes"):
        paged(dtype="bf16")
    paged(dtype="f16")


def test_bfloat16_is_rounded_on_the_way_in():
    pytest.importorskip("ml_dtypes")
    cache = regard.KVCache(batch_size=1, capacity=4, num_kv_heads=HEADS, head_dim=SIZE)
    s = cache.allocate()
    rows = rows_of(5, 4)
    cache.append(s, *rows)
    np.testing.assert_array_equal(cache.rows(s)[0], rows[0].astype(cache.k.dtype))
    assert cache.attend(rows[0][None].astype(cache.k.dtype), [s]).dtype == cache.k.dtype


def huge_kilobytes(address):
    """Of the mapping that an address lies in."""
    at_address = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            begin, end = (int(number, 16) for number in words[0].split("-"))
            at_address = begin <= address < end
        elif at_address and words[0] == "AnonHugePages:":
            return int(words[1])
    return 0


def grants_huge_pages():
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return enabled.exists() and "[never]" not in enabled.read_text()


LARGE = [lambda dtype: regard.PagedKVCache(num_pages=256, page_size=64, num_kv_heads=2, head_dim=64, dtype=dtype),
         lambda dtype: regard.KVCache(batch_size=2, capacity=8192, num_kv_heads=2, head_dim=64, dtype=dtype)]


def check_large_cache(make, dtype):
    """Zeros in whole huge pages, all but what lies beside them."""
    cache = make(dtype)
    for rows, bits in zip((cache.k, cache.v), cache._bits):
        assert rows.shape[-1] == 64 and bits.nbytes == 8 << 20 and not bits.any()
        assert bits.ctypes.data % (2 << 20) == 0 and bits.flags.c_contiguous
        bits[:] = 1
        assert huge_kilobytes(bits.ctypes.data) >= 8192 - 2048


@pytest.mark.skipif(not grants_huge_pages(), reason="this system grants no huge pages")
@pytest.mark.parametrize("make", LARGE)
def test_large_caches_lie_in_huge_pages(make):
    check_large_cache(make, "f32")


def test_a_cache_that_no_memory_holds_is_a_memory_error():
    with pytest.raises(MemoryError):
        regard.PagedKVCache(num_pages=1 << 24, page_size=1024, num_kv_heads=256, head_dim=512, dtype="f32")
