"""What this machine can do, as a call's rates are held against it."""

import time

import pytest

import regard


def test_rates_are_positive_and_remembered():
    rates = regard.machine_rates(1)
    assert set(rates) == {"isa", "threads", "f32_gflops", "f64_gflops", "bf16_gflops", "read_gbps"}
    assert rates["threads"] == 1 and rates["isa"] == regard.show_config("dicts")["machine"]["isa"]
    assert rates["f32_gflops"] > 0 and rates["read_gbps"] > 0
    assert rates["bf16_gflops"] >= 0.8 * rates["f32_gflops"]
    start = time.perf_counter()
    assert regard.machine_rates(threads=1) == rates
    assert time.perf_counter() - start < 1e-2


def test_threads_are_a_calls():
    assert regard.machine_rates()["threads"] == regard.show_config("dicts")["machine"]["concurrency"]
    with pytest.raises(TypeError):
        regard.machine_rates("many")


def test_a_number_below_one_is_an_error():
    with pytest.raises(ValueError, match=r"threads \(0\) must be at least 1"):
        regard.machine_rates(0)
