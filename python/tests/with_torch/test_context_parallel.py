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


@pytest.mark.parametrize("program", ["windows", "documents"])
def test_features_have_the_same_numbers(program):
    check(ranks.run(2, getattr(rank_programs, program), ("p2p", "all_gather", "a2a")))


def test_scopes_hold_for_their_thread_and_nest():
    ranks.run(2, rank_programs.scopes)


def test_compiled_functions_have_the_same_numbers():
    assert max(ranks.run(2, rank_programs.compiled)) <= 1


def test_what_ranks_cannot_compute_is_refused_by_name():
    ranks.run(2, rank_programs.refusals)
