"""context_parallel over the configurations that TransformerEngine tests its own with: masks, windows, grouped heads,
heads of two sizes, sinks, biases, formats, types and ways of communication. Here every one of them runs, or is refused
by name."""

import functools

import pytest
import rank_grid
import ranks

pytest.importorskip("torch.distributed")


@functools.cache
def results(size):
    """Of every case on that number of ranks, by rank, or why there are none: the processes start once."""
    try:
        return ranks.run(size, rank_grid.run_all, seconds=600)
    except AssertionError as error:
        return error


@pytest.mark.parametrize("case", rank_grid.CASES, ids=rank_grid.name_of)
def test_a_case_is_computed_or_refused_by_name(case):
    found = results(rank_grid.size_of(case))
    assert not isinstance(found, AssertionError), found
    answers = [of_rank[rank_grid.name_of(case)] for of_rank in found]
    wanted = rank_grid.refusal_of(case)
    if wanted is not None:
        assert all(isinstance(answer, str) and wanted in answer for answer in answers), answers
    else:
        assert all(isinstance(answer, float) and answer <= 1 for answer in answers), answers


def test_every_combination_is_there():
    seen = {(c.model, c.form, c.comm, c.dtype) for c in rank_grid.CASES}
    assert len(seen) == len(rank_grid.CASES) == len(rank_grid.MODELS) * 3 * 4 * 3
    computed = [c for c in rank_grid.CASES if rank_grid.refusal_of(c) is None]
    assert {c.comm for c in computed} == set(rank_grid.COMMS)
    assert {c.dtype for c in computed} == set(rank_grid.DTYPES)
    assert {c.form for c in computed} == set(rank_grid.FORMS)
