"""A rank that ends, stops or is late at every message of a ring and of an all-to-all, forward and backward: no test, but
the sweep whose figure docs/distributed.md states. test_context_parallel_faults.py runs a slice of it.

    PYTHONPATH=build/release/python python python/tests/with_torch/sweep_rank_faults.py

Prints a line for each kind; exit code 1 where a rank did not answer.
"""

import itertools
import sys
import time

import rank_faults
import ranks

SIZE, SECONDS, AT_ONCE = 3, 30, 4
# Transfers that a rank begins: 4 of the agreement; of a ring 4 forward, 4 and 4 of gradients backward; of an
# all-to-all 8 forward and 8 backward.
MESSAGES = {"p2p": 16, "a2a": 20}


def main():
    cases = [(comm, kind, victim, message) for victim, comm, kind in itertools.product((0, 1), MESSAGES, (
        "exit", "stop", "delay")) for message in range(1, MESSAGES[comm] + 1)]
    found = {}
    begin = time.monotonic()
    for at in range(0, len(cases), AT_ONCE):
        groups = [(case, ranks.start(SIZE, rank_faults.attend, *case)) for case in cases[at:at + AT_ONCE]]
        for (comm, kind, victim, message), started in groups:
            others = [rank for rank in range(SIZE) if rank != victim or kind == "delay"]
            answers = ranks.collect(*started, others, SECONDS)
            row = found.setdefault((comm, kind), {"runs": 0, "hangs": 0, "errors": 0, "results": 0, "longest": 0.0})
            row["runs"] += 1
            if set(answers) != set(others) or not all(succeeded for succeeded, _ in answers.values()):
                row["hangs"] += 1
                print("no answer:", comm, kind, "rank", victim, "message", message, answers, flush=True)
                continue
            errors = [answer for _, answer in answers.values() if answer is not None]
            assert all(isinstance(answer, tuple) for answer in errors), errors  # "too few messages"
            row["errors" if errors else "results"] += 1
            row["longest"] = max([row["longest"], *(seconds for seconds, _ in errors)])
    for (comm, kind), row in found.items():
        print(f"{comm:4} {kind:6} {row['runs']:3} runs: {row['hangs']} hangs, {row['errors']} errors within "
              f"{row['longest']:.1f} s of the call's begin, {row['results']} results")
    hangs = sum(row["hangs"] for row in found.values())
    print(f"{hangs} hangs in {len(cases)} runs of {SIZE} ranks, time-out {rank_faults.TIMEOUT:g} s, "
          f"{time.monotonic() - begin:.0f} s")
    return 1 if hangs else 0


if __name__ == "__main__":
    sys.exit(main())
