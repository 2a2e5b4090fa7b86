"""bench/harness/ranks.py against what can be counted by hand."""

import pathlib
import sys
from dataclasses import replace

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
from harness import ranks  # noqa: E402

FREE = ranks.Network(node=1 << 20, latency=(0.0, 0.0), bandwidth=(1e30, 1e30), copies=1e30)
PROBLEM = ranks.Problem(1 << 12, 8, 8, 64, "f32")


def kernel(rows, keys, heads_q, heads_kv, causal):
    """A second for each pair of 1,000 queries and 1,000 keys that a head sees."""
    return rows * keys * heads_q * (0.5 if causal else 1.0) / 1e6


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_ranks_share_the_work_where_messages_are_free(causal, size):
    problem = ranks.Problem(1 << 12, 8, 8, 64, "f32", causal)
    whole = kernel(problem.length, problem.length, 8, 8, causal)
    for name in ("p2p", "all_gather", "a2a"):
        made = ranks.simulate(name, problem, size, FREE, kernel)
        assert made.seconds == pytest.approx(whole / size, rel=1e-6), name
        assert made.balance == pytest.approx(1.0)


def test_a_ring_hides_messages_that_are_shorter_than_a_block_takes():
    block = (1 << 12) // 4 * 2 * 8 * 64 * 4
    compute = ranks.simulate("p2p", PROBLEM, 4, FREE, kernel).seconds
    for factor, shown in ((0.5, 0.0), (3.0, 2.0 * compute / 4 * 3)):
        network = ranks.Network(node=4, latency=(0.0, 0.0), bandwidth=(block / (factor * compute / 4),) * 2, copies=1e30)
        agreed = 3 * ranks.AGREEMENT / network.bandwidth[0]
        made = ranks.simulate("p2p", PROBLEM, 4, network, kernel)
        assert made.seconds == pytest.approx(compute + shown + agreed, rel=1e-6)
        serial = ranks.simulate("p2p", PROBLEM, 4, replace(network, overlap=False), kernel)
        assert serial.seconds == pytest.approx(compute + 3 * factor * compute / 4 + agreed, rel=1e-6)


def test_messages_and_bytes_are_those_of_the_algorithm():
    rows, kv = 1 << 10, 2 * 8 * 64 * 4
    made = {name: ranks.simulate(name, PROBLEM, 4, FREE, kernel) for name in ("p2p", "all_gather", "a2a")}
    assert (made["p2p"].messages, made["p2p"].sent) == (3, 3 * rows * kv)
    assert (made["all_gather"].messages, made["all_gather"].sent) == (3, 3 * rows * kv)
    q = 8 * 64 * 4
    assert (made["a2a"].messages, made["a2a"].sent) == (6, 3 * rows * (q + kv + q + 8 * 4) // 4)


def test_memory_grows_as_the_algorithms_buffers():
    rows, kv, sums = 1 << 10, 2 * 8 * 64 * 4, 8 * 65 * 4
    held = {name: [ranks.simulate(name, PROBLEM, count, FREE, kernel).memory for count in (1, 2, 4)]
            for name in ("p2p", "all_gather")}
    own = held["p2p"][0] // 4  # of 4 ranks
    assert held["p2p"][2] - own == 3 * rows * kv + rows * sums  # arrived, arriving and sent
    assert held["all_gather"][2] - own == 2 * 3 * rows * kv + rows * sums
    assert held["p2p"][1] - 2 * own == 2 * 2 * rows * kv + 2 * rows * sums
    back = replace(PROBLEM, backward=True)
    rings = [ranks.simulate("p2p", back, count, FREE, kernel).memory for count in (1, 4)]
    assert rings[1] - rings[0] // 4 == (3 + 3) * rows * kv  # f32: gradients are as large as keys


def test_passes_over_memory_are_those_of_the_algorithm():
    copies = 1e6
    network = replace(FREE, copies=copies)
    compute = ranks.simulate("p2p", PROBLEM, 4, FREE, kernel).seconds
    rows, of_q = 1 << 10, 8 * 64 * 4
    result, pair = 2 * rows * of_q / copies, 2 * rows * of_q / copies  # sums and results; keys and values
    passes = {name: ranks.simulate(name, PROBLEM, 4, network, kernel).seconds - compute
              for name in ("p2p", "all_gather", "a2a")}
    assert passes["all_gather"] == pytest.approx(3 * pair + result)  # a message for each rank
    assert passes["p2p"] == pytest.approx(3 * pair + result)  # a message for each step but the last
    moved = rows * (4 * of_q + 8 * 4) / copies  # q, k, v, out and lse are packed, and put where they belong
    assert passes["a2a"] == pytest.approx(2 * moved + result / 2)  # sums that are results
    narrow = replace(PROBLEM, dtype="bf16")
    joined = [ranks.simulate("p2p", narrow, 4, replace(FREE, joins=joins), kernel).seconds for joins in (1e30, 1e6)]
    assert joined[1] - joined[0] == pytest.approx(rows * of_q / 1e6)


def test_heads_that_ranks_do_not_divide_are_those_of_the_slowest():
    made = ranks.simulate("a2a", PROBLEM, 3, FREE, kernel)
    assert made.balance == pytest.approx(9 / 8)
    assert made.compute == pytest.approx(kernel(PROBLEM.length, PROBLEM.length, 3, 3, True))
    few = replace(PROBLEM, heads_kv=2)
    assert ranks.simulate("a2a", few, 3, FREE, kernel).compute == pytest.approx(
        kernel(PROBLEM.length, PROBLEM.length, 3, 1, True))


def test_ranks_that_share_cores_take_turns():
    """On two cores three ranks take as long as four; in a ring one goes on where another waits for its block."""
    problem = replace(PROBLEM, heads_q=12, heads_kv=12, length=3 << 10, causal=False)
    whole, two = kernel(3 << 10, 3 << 10, 12, 12, False), replace(FREE, cores=2)
    took = {(name, size): ranks.simulate(name, problem, size, two, kernel).seconds / whole
            for name in ("p2p", "all_gather", "a2a") for size in (2, 3, 4)}
    for name in ("p2p", "all_gather", "a2a"):
        assert took[name, 2] == pytest.approx(1 / 2)
        assert took[name, 4] == pytest.approx(1 / 2)
    assert took["all_gather", 3] == took["a2a", 3] == pytest.approx(2 / 3)
    assert took["p2p", 3] == pytest.approx(5 / 9)  # nine blocks, five at a time of two cores
    uneven = replace(problem, heads_q=8, heads_kv=8)  # 2, 3 and 3 heads
    assert ranks.simulate("a2a", uneven, 3, two, kernel).seconds == pytest.approx(
        kernel(3 << 10, 3 << 10, 5, 5, False))
    in_groups = replace(problem, heads_q=8, heads_kv=4)  # 2, 2 and 4 heads: both cores compute four
    assert ranks.simulate("a2a", in_groups, 3, two, kernel).seconds == pytest.approx(
        kernel(3 << 10, 3 << 10, 4, 2, False))
    slow = replace(two, copies=1e6)  # passes over memory take turns, too
    rows, of_q = (3 << 10) // 4, 12 * 64 * 4
    gathered = ranks.simulate("all_gather", problem, 4, slow, kernel).seconds - whole / 2
    assert gathered == pytest.approx(2 * (3 * 2 + 2) * rows * of_q / 1e6)
    halves = replace(two, node=2)  # two rings of two ranks, a core each
    assert ranks.simulate("a2a+p2p", problem, 4, halves, kernel).seconds == pytest.approx(whole / 2)


def test_the_link_of_a_node_is_shared():
    near = ranks.Network(node=4, latency=(0.0, 0.0), bandwidth=(1e9, 1e9))
    assert ranks._all_to_all(1e9, 8, replace(near, shared=False)) == pytest.approx(7.0)
    assert ranks._all_to_all(1e9, 4, near) == pytest.approx(3.0)
    assert ranks._all_to_all(1e9, 8, near) == pytest.approx(3.0 + 4 * 4)  # four ranks of a node send at once


def test_what_cannot_run_is_refused_by_name():
    assert "got 8 heads" in ranks.simulate("a2a", PROBLEM, 16, FREE, kernel).refused
    assert "nodes" in ranks.simulate("a2a+p2p", PROBLEM, 4, ranks.Network(node=8), kernel).refused
