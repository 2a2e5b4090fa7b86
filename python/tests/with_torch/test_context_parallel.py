"""context_parallel over processes of gloo: the same numbers as one rank, forward and backward."""

import pytest
import rank_programs
import ranks

pytest.importorskip("torch.distributed")
COMMS = ("p2p", "all_gather", "a2a", "auto")


def check(results):
    worst = {case: max(result[case] for result in results) for case in results[0]}
    assert worst
    excess = {case: round(error, 2) for case, error in worst.items() if error > 1}
    assert not excess


@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_parts_of_ranks_partition_any_length(size):
    ranks.run(size, rank_programs.parts)


@pytest.mark.parametrize("size", [2, 4])
def test_the_same_numbers_as_one_rank(size):
    comms = COMMS if size == 2 else (*COMMS, "a2a+p2p")
    check(ranks.run(size, rank_programs.grid, comms, ("contiguous", "zigzag", "per_document")))


@pytest.mark.parametrize("size", [3, 7])
def test_the_same_numbers_on_odd_numbers_of_ranks(size):
    check(ranks.run(size, rank_programs.grid, ("p2p", "all_gather"), ("zigzag",)))


@pytest.mark.parametrize("program", ["windows", "documents", "dropout", "sinks"])
def test_features_have_the_same_numbers(program):
    check(ranks.run(2, getattr(rank_programs, program), ("p2p", "all_gather", "a2a")))


def test_eight_bits_have_the_same_numbers():
    check(ranks.run(2, rank_programs.eight_bits, ("p2p", "all_gather", "a2a")))
    check(ranks.run(4, rank_programs.eight_bits, ("a2a+p2p",)))


def test_keys_of_eight_bits_travel_as_such():
    ranks.run(3, rank_programs.eight_bit_messages)


def test_calls_of_eight_bits_are_freed_with_their_results():
    ranks.run(2, rank_programs.eight_bit_lifetimes)


def test_dropout_is_that_of_one_rank_on_any_number_of_ranks():
    check(ranks.run(3, rank_programs.dropout, ("p2p", "a2a")))
    check(ranks.run(4, rank_programs.dropout, ("a2a+p2p",)))


# Ranks of 16 rows, 4 heads and 2 of keys, of 8 elements of f64: a block of keys and values is BLOCK bytes. Of a zigzag
# the second half of a rank's rows is seen by the ranks before it alone.
BLOCK, SIZE_Q = 2 * 2 * 16 * 8 * 8, 4 * 16 * 8 * 8


@pytest.mark.parametrize("comm,layout,backward,messages,sent", [
    ("p2p", "zigzag", False, 3, [n * BLOCK // 2 for n in (5, 5, 5, 6)]),
    ("all_gather", "zigzag", False, 3, [n * BLOCK // 2 for n in (3, 4, 5, 6)]),
    ("p2p", "zigzag", True, 6, [n * BLOCK // 2 for n in (5 + 6, 5 + 5, 5 + 4, 6 + 3)]),  # keys again, and their gradients
    ("all_gather", "zigzag", True, 6, [n * BLOCK // 2 for n in (3 + 6, 4 + 5, 5 + 4, 6 + 3)]),
    ("a2a", "contiguous", False, 6, [3 * (SIZE_Q + 2 * BLOCK + SIZE_Q + SIZE_Q // 8) // 4] * 4)])
def test_messages_and_bytes_are_those_of_the_algorithm(comm, layout, backward, messages, sent):
    # With a2a two heads of keys go to four ranks: each head to two of them.
    assert ranks.run(4, rank_programs.traffic, comm, layout, backward, 1000) == [(messages, each) for each in sent]


def test_keys_that_nobody_sees_are_not_sent():
    # Contiguous parts of a causal sequence: rank r's keys pass the ranks behind it.
    assert ranks.run(4, rank_programs.traffic, "p2p", "contiguous", False, 1000) == [
        (n, n * BLOCK) for n in (1, 2, 3, 0)]
    assert ranks.run(4, rank_programs.traffic, "all_gather", "contiguous", False, 1000) == [
        (n, n * BLOCK) for n in (3, 2, 1, 0)]


def test_the_network_is_measured_once_and_alike_or_given():
    assert len(set(ranks.run(2, rank_programs.network))) == 1


def test_a_trace_has_when_ranks_compute_and_wait():
    ranks.run(2, rank_programs.activities)


def test_scopes_hold_for_their_thread_and_nest():
    ranks.run(2, rank_programs.scopes)


def test_compiled_functions_have_the_same_numbers():
    assert max(ranks.run(2, rank_programs.compiled)) <= 1


def test_what_ranks_cannot_compute_is_refused_by_name():
    ranks.run(2, rank_programs.refusals)
