"""Layouts of ranks as numbers, and the plan that ranks agree on."""

import random

import numpy
import pytest

from regard import _core
from regard.torch._shards import LAYOUTS, pieces_of


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
    assert pieces_of("contiguous", 7, 3, None) == [[(0, 3)], [(3, 2)], [(5, 2)]]
    assert pieces_of("zigzag", 9, 2, None) == [[(0, 3), (7, 2)], [(3, 4)]]
    assert pieces_of("zigzag", 2, 3, None) == [[(0, 1)], [(1, 1)], []]
    # A document of three positions is cut as every other one: its first two chunks have one each, and its third.
    assert pieces_of("per_document", 12, 2, [0, 3, 4, 12]) == [[(0, 1), (3, 3), (10, 2)], [(1, 2), (6, 4)]]


def planned(comm="auto", ranks=4, heads=(8, 8), rows=16, topology=None, **keywords):
    q, k = (numpy.zeros((1, h, rows, 8), "f4") for h in heads)
    return _core.plan_ranks(q, k, k, rank=0, ranks=ranks, seqlens=(ranks * rows,) * 2, layout="contiguous", cu_seqlens=[],
                            comm=comm, topology=topology or (1, ranks), timeout=1.0, max_bytes=1 << 30, needs_grad=False,
                            keywords=keywords)


def test_auto_is_the_algorithm_with_the_least_predicted_time():
    for heads in ((8, 8), (32, 1), (2, 2)):
        made = planned(heads=heads)
        times = {}
        for line in made.explain().splitlines()[1:]:
            if "predicted" in line:
                number = line.rsplit("predicted ", 1)[1].split()[0]
                times[line[2:].split()[0]] = float(number)
        assert times[made.comm()] == min(times.values()), made.explain()
    assert "a2a divides query heads among 4 ranks, got 2 heads" in planned(heads=(2, 2)).explain()


def test_what_cannot_be_planned_is_named():
    for words, arguments in (("comm ('ring')", {"comm": "ring"}), ("a2a divides query heads", {"comm": "a2a", "heads": (2, 2)}),
                             ("topology (3x1)", {"topology": (3, 1)}), ("dropout_p", {"dropout_p": 2.0})):
        with pytest.raises(ValueError) as raised:
            planned(**arguments)
        assert words in str(raised.value)
    with pytest.raises(TypeError, match="'colour'"):
        planned(colour=1)
