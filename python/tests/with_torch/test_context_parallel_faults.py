"""A rank that fails in context_parallel: an error on every other rank within the time-out, never a hang."""

import pytest
import rank_faults
import ranks

SIZE, VICTIM = 3, 1


def begin(comm, kind, message):
    started = ranks.start(SIZE, rank_faults.attend, comm, kind, VICTIM, message)
    others = [rank for rank in range(SIZE) if rank != VICTIM or kind == "delay"]
    return lambda: (others, ranks.collect(*started, others, 20))


@pytest.mark.parametrize("comm", ["p2p", "all_gather", "a2a"])
@pytest.mark.parametrize("kind", ["exit", "stop", "raise", "sleep"])
def test_a_rank_that_fails_is_an_error_on_the_others(comm, kind):
    # Messages exchange lengths, send keys, return gradients. The groups run side by side: they wait most of the time.
    groups = {message: begin(comm, kind, message) for message in (1, 6, 11)}
    for message, group in groups.items():
        others, found = group()
        assert set(found) == set(others), f"message {message}: no answer of {set(others) - set(found)}"
        for rank in others:
            succeeded, answer = found[rank]
            assert succeeded, answer
            seconds, text = answer
            assert seconds < rank_faults.TIMEOUT + 8, text
            assert f"rank {rank}" in text and ("step" in text or "exchange" in text), text


@pytest.mark.parametrize("comm", ["p2p", "a2a"])
def test_a_slow_rank_is_waited_for(comm):
    others, found = begin(comm, "delay", 7)()
    assert found == {rank: (True, None) for rank in others}
