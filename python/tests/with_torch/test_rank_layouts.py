"""Layouts of ranks as pure functions, and which ranks need which keys."""

import itertools
import random

import pytest

from regard.torch._layouts import LAYOUTS, pieces_of, within_documents
from regard.torch._options import Options
from regard.torch._rank_attention import choose, refusal
from regard.torch._rank_ring import Rules


def starts_of(length, numbers):
    return sorted({0, length, *(numbers.randrange(length + 1) for _ in range(numbers.randrange(4)))})


def test_pieces_are_a_partition():
    numbers = random.Random(35)
    for _ in range(500):
        length, ranks = numbers.randrange(200), numbers.randrange(1, 12)
        layout, starts = numbers.choice(LAYOUTS), starts_of(length, numbers)
        found = pieces_of(layout, length, ranks, starts)
        assert len(found) == ranks
        positions = [n for own in found for begin, count in own for n in range(begin, begin + count)]
        assert sorted(positions) == list(range(length)), (layout, length, ranks)
        for own in found:
            assert own == sorted(own) and all(count > 0 for _, count in own)
            assert all(sum(a) < b[0] for a, b in zip(own, own[1:]))  # adjacent pieces are one
            cut = within_documents(own, starts)
            assert [n for b, c in cut for n in range(b, b + c)] == [n for b, c in own for n in range(b, b + c)]
            assert all(not any(begin < s < begin + count for s in starts) for begin, count in cut)


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 64])
@pytest.mark.parametrize("layout,starts", [("zigzag", None), ("per_document", (0, 2000, 5000, 8064))])
def test_causal_work_is_balanced_within_3_percent(layout, starts, ranks):
    starts = list(starts) if starts else [0, 8064]
    loads = []
    for own in pieces_of(layout, starts[-1], ranks, starts):
        positions = [n - max(s for s in starts if s <= n) for b, c in own for n in range(b, b + c)]
        loads.append(sum(n + 1 for n in positions))
    # Documents of 2,000 positions on 64 ranks are chunks of 15 or 16.
    assert max(loads) * ranks / sum(loads) < (1.03 if layout == "zigzag" else 1.05)


def test_lengths_and_order_of_the_layouts():
    assert pieces_of("contiguous", 7, 3) == [[(0, 3)], [(3, 2)], [(5, 2)]]
    assert pieces_of("zigzag", 9, 2) == [[(0, 3), (7, 2)], [(3, 4)]]
    assert pieces_of("zigzag", 2, 3) == [[(0, 1)], [(1, 1)], []]
    assert pieces_of("per_document", 12, 2, [0, 3, 4, 12]) == [[(0, 3), (4, 2), (10, 2)], [(3, 1), (6, 4)]]


def test_pieces_see_each_other_where_a_query_sees_a_key():
    numbers = random.Random(36)
    for _ in range(400):
        length_q, length_kv = numbers.randrange(1, 30), numbers.randrange(1, 30)
        left, right = numbers.choice((-1, 0, 2, 9)), numbers.choice((-1, 0, 3))
        shift = numbers.choice((0, length_kv - length_q))
        starts = [0, 7, 15, 40] if numbers.random() < 0.3 and length_q == length_kv else None
        rules = Rules(left, right, shift, starts, True, {})
        q = (numbers.randrange(length_q), 0)
        q = (q[0], numbers.randrange(1, length_q - q[0] + 1))
        k = (numbers.randrange(length_kv), 0)
        k = (k[0], numbers.randrange(1, length_kv - k[0] + 1))
        if starts:
            q, k = within_documents([q], starts)[0], within_documents([k], starts)[0]

        def seen(i, j):
            same = starts is None or sum(s <= i for s in starts) == sum(s <= j for s in starts)  # noqa: B023
            at = i + shift  # noqa: B023
            return same and (left < 0 or j >= at - left) and (right < 0 or j <= at + right)  # noqa: B023

        pairs = itertools.product(range(q[0], sum(q)), range(k[0], sum(k)))
        assert rules.sees(q, k) == any(seen(i, j) for i, j in pairs)


def test_auto_takes_what_sends_least_and_can_run():
    plain = Options()
    assert choose((1, 4), (8, 8), plain) == "a2a"   # 3 * (3 * 8 + 2 * 8) / 4 = 30 of 48 head rows
    assert choose((1, 4), (32, 1), plain) == "p2p"  # one head of keys
    assert choose((1, 4), (6, 6), plain) == "p2p"   # 4 ranks do not divide 6 heads
    assert "dropout_p" in refusal("p2p", (1, 2), (2, 2), Options(dropout_p=0.5))
    assert "heads of key (3)" in refusal("a2a", (1, 4), (12, 3), plain)
