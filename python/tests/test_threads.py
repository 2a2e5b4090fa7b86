"""set_num_threads and get_num_threads, also while calls run."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from test_attention import make

import regard

pytestmark = pytest.mark.usefixtures("restored_threads")


def workers_of(q, k, v):
    regard.attention(q, k, v)
    return regard.last_selection().to_dict()["plan"]["workers"]


def test_a_call_uses_the_threads_that_are_set():
    q, k, v = make(b=2, hq=8, hkv=8, sq=256, skv=256, d=64)
    for n in (3, 1, 5):
        regard.set_num_threads(n)
        assert regard.get_num_threads() == n
        assert workers_of(q, k, v) == n


def test_the_bits_do_not_depend_on_it():
    q, k, v = make(b=1, hq=4, hkv=4, sq=300, skv=300, d=32)
    regard.set_num_threads(1)
    expected = regard.attention(q, k, v, is_causal=True)
    for n in (4, 2, 7):
        regard.set_num_threads(n)
        assert np.array_equal(regard.attention(q, k, v, is_causal=True), expected)


@pytest.mark.parametrize("n, error", [(0, ValueError), (-1, ValueError), (1025, ValueError),
                                      (1 << 70, ValueError), (2.0, TypeError), (True, TypeError),
                                      ("2", TypeError), (None, TypeError)])
def test_other_numbers_are_errors_that_change_nothing(n, error):
    regard.set_num_threads(2)
    with pytest.raises(error, match=r"^n \("):
        regard.set_num_threads(n)
    assert regard.get_num_threads() == 2


def test_a_thread_sets_it_while_others_compute():
    q, k, v = make(b=1, hq=4, hkv=4, sq=128, skv=128, d=32)
    expected = regard.attention(q, k, v)
    stop, wrong = threading.Event(), []

    def busy():
        while not stop.is_set():
            if not np.array_equal(regard.attention(q, k, v), expected):
                wrong.append(1)

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for n in range(200):
            regard.set_num_threads(1 + n % 5)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


MERGES = """
import os
import numpy as np, regard
regard.set_num_threads(3)
q = np.ones((1, 8, 512, 64), np.float32)
state = regard.attention(q, q, q, return_lse=True)
before = len(os.listdir("/proc/self/task"))
regard.merge_states([state, state])
print(before, len(os.listdir("/proc/self/task")))
"""


def test_merge_states_starts_no_threads_beside_those_of_other_calls():
    ran = subprocess.run([sys.executable, "-c", MERGES], capture_output=True, text=True, timeout=60)
    before, after = map(int, ran.stdout.split())
    assert before == after


def test_a_forked_child_has_the_number():
    q, k, v = make(b=2, hq=8, hkv=8, sq=256, skv=256, d=64)
    regard.set_num_threads(3)
    regard.attention(q, k, v)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if regard.get_num_threads() == 3 and workers_of(q, k, v) == 3 else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_the_environment_sets_the_first_number():
    words = "import regard; print(regard.get_num_threads())"
    for value in ("1", "7"):
        ran = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True,
                             timeout=60, env={**os.environ, "REGARD_NUM_THREADS": value})
        assert ran.stdout == f"{value}\n", ran
