"""The clock of a turn."""

import math
import time

MIN_RUN = 1e-3  # seconds that the clock is read for: below it a call is repeated


def timed_turn(call, sets, pause, min_seconds):
    """Seconds of a call in the best run: a pause, so that the threads of whoever came before stop
    spinning, a run to warm up, then at least three and at least `min_seconds` seconds. Several sets: once
    round them is a run. Short calls: as many as fill MIN_RUN."""
    time.sleep(pause)
    once = seconds_of(call, [0])
    if once < MIN_RUN:
        once = seconds_of(call, [0])  # the first one has woken the threads
    order = list(range(sets)) * max(1, math.ceil(MIN_RUN / (sets * once)))
    best, runs, end = math.inf, 0, time.perf_counter() + min_seconds
    while runs < (3 if sets == 1 else 1) or (time.perf_counter() < end and runs < 1000):
        best = min(best, seconds_of(call, order) / len(order))
        runs += 1
    return best


def seconds_of(call, order):
    start = time.perf_counter()
    for i in order:
        call(i)
    return time.perf_counter() - start
