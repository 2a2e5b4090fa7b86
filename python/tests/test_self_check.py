"""Calls that check themselves, what is recorded of them, and decisions as text."""

import numpy as np
import pytest

import regard

CASES = ["b1 hq8 sq128 d64 f32", "b1 hq2 sq1 skv300 d16 bf16"]


@pytest.fixture
def tensors():
    rng = np.random.default_rng(7)
    return [rng.standard_normal((2, 4, 33, 16)).astype(np.float32) for _ in range(3)]


def test_calls_are_checked_and_counted(tensors):
    before = regard.counters()
    with regard.use_policy(self_check=2):
        for _ in range(20):
            regard.attention(*tensors, is_causal=True)
    after = regard.counters()
    assert after["self_check_calls"] - before["self_check_calls"] == 20
    assert 9 <= after["self_check_checked"] - before["self_check_checked"] <= 11
    assert after["self_check_rows"] > before["self_check_rows"]
    assert after["self_check_violations"] == before["self_check_violations"] == 0
    assert regard.self_check_violations() == []


def test_what_is_not_checked_is_said():
    selection = regard.explain("b1 hq2 sq8 d8 f32 grad saved", policy=regard.Policy(self_check=5))
    assert "self_check compares the forward; gradients are not checked" in str(selection)


def test_calls_are_recorded(tensors, tmp_path):
    path = tmp_path / "calls.record"
    regard.record(str(path))
    try:
        for _ in range(3):
            regard.attention(*tensors)
    finally:
        regard.record(None)
    regard.attention(*tensors)
    lines = path.read_text().splitlines()
    assert lines[0] == "regard-record 1"
    assert [line.split()[:4] for line in lines[2:]] == [["3", "forward", "b2", "hq4"]]
    path.write_text("my notes\n")
    with pytest.raises(ValueError, match="expected 'regard-record 1', got 'my notes'"):
        regard.record(str(path))
    with pytest.raises(TypeError, match="path .7. must be a file's name or None"):
        regard.record(7)


def test_decisions_as_text():
    text = regard.freeze(CASES)
    assert text.endswith("end 2\n") and regard.diff(text, text) == []
    with regard.use_policy(deny=["flash"]):
        other = regard.freeze(CASES)
    causes = {cause for cause, *_ in regard.diff(text, other)}
    assert causes == {"policy"}
    regard.replay(text)
    try:
        with pytest.raises(ValueError, match="policy: policy: "):
            regard.replay(other)
        assert regard.explain(CASES[0]).chosen == "flash"
    finally:
        regard.replay(None)
    with pytest.raises(ValueError, match="a:1: expected 'regard-frozen 1'"):
        regard.diff("", text)
    with pytest.raises(ValueError, match="colour"):
        regard.freeze("b1 colour")
    with pytest.raises(TypeError, match="cases .7. must be a case"):
        regard.freeze(7)
