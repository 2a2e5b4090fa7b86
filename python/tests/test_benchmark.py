"""regard.benchmark: every usable backend on the arrays of a call."""

import json

import numpy as np
import pytest

import regard

rng = np.random.default_rng(0)
Q = rng.standard_normal((1, 4, 32, 16), dtype=np.float32)
K, V = (rng.standard_normal((1, 2, 48, 16), dtype=np.float32) for _ in range(2))


def measured(**options):
    return regard.benchmark(Q, K, V, rounds=1, **options)


def row_of(result, name, direction="forward"):
    return next(r for r in result.rows if (r.name, r.direction) == (name, direction))


def test_every_usable_backend_has_times():
    result = measured(is_causal=True, diagonal="bottom_right")
    selection = regard.explain(Q, K, V, is_causal=True, diagonal="bottom_right")
    assert result.to_dict()["chosen"] == selection.chosen
    pairs = sum(min(48, i + 17) for i in range(32))
    for candidate in selection.candidates:
        row = row_of(result, candidate["backend"])
        assert (row.reason is None) == candidate["usable"]
        assert (row.seconds is None) != candidate["usable"]
        if not candidate["usable"]:
            assert row.runs == 0 and row.gflops is None
            continue
        assert row.operations == 2 * (16 + 16) * 4 * pairs
        assert 0 < row.min_seconds <= row.first_quartile_seconds <= row.seconds
        assert row.seconds <= row.third_quartile_seconds <= row.max_seconds
        assert row.gflops == pytest.approx(row.operations / row.seconds / 1e9)
        assert 0 < row.peak_share and 0 < row.memory_share
        assert row.runs >= 1 and row.kernel and row.workers >= 1 and row.workspace_bytes >= 0


def test_text_and_dict():
    result = measured()
    text = str(result)
    assert text == repr(result) and text.startswith("case     b1 hq4 hkv2 sq32 skv48 d16 f32")
    for row in result.rows:
        assert f"\n{row.name} " in text
    assert "GFLOP/s" in text and "from memory" in text
    document = result.to_dict()
    assert json.loads(json.dumps(document)) == document
    assert document["machine"]["threads"] == regard.machine_rates()["threads"]
    assert document["one_thread"]["threads"] == 1
    assert result._repr_html_().startswith("<pre>case")


def test_backward_where_saved_is_returned():
    result = measured(return_saved=True)
    for name in ("flash", "efficient", "math"):
        forward, backward = row_of(result, name), row_of(result, name, "backward")
        assert backward.seconds > 0, backward.reason
        assert backward.operations == 2.5 * forward.operations
        assert backward.kernel != forward.kernel


def test_policies_narrow():
    result = measured(backends="math")
    assert [r.name for r in result.rows if r.seconds and r.name != "torch"] == ["math"]
    assert row_of(result, "flash").reason
    policy = regard.Policy(deny=["math"], prefer=["efficient"])
    result = measured(policy=policy)
    assert result.to_dict()["chosen"] == "efficient"
    assert row_of(result, "math").seconds is None and row_of(result, "flash").seconds > 0
    with regard.use_policy(deny=["flash"]):
        assert row_of(measured(), "flash").seconds is None


def test_options_reach_the_calls():
    with pytest.raises(ValueError, match="diagonal"):
        measured(is_causal=True)
    with pytest.raises(TypeError, match="windows"):
        measured(windows=(1, 1))
    with pytest.raises(TypeError, match="k is missing|required"):
        regard.benchmark(Q)
    out = np.zeros_like(Q)
    measured(out=out)
    np.testing.assert_array_equal(out, regard.attention(Q, K, V, backends="math"))


@pytest.mark.parametrize("wrong", [{"seconds": 0}, {"seconds": -1.0}, {"seconds": float("nan")},
                                   {"rounds": 0}])
def test_wrong_amounts(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        regard.benchmark(Q, K, V, **wrong)


def test_rounds_and_seconds():
    assert regard.benchmark(Q, K, V, rounds=2).to_dict()["rounds"] == 2
    assert regard.benchmark(Q, K, V, seconds=1e-9).to_dict()["rounds"] == 3


def test_an_interrupt_ends_it(monkeypatch):
    from regard import _benchmark

    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(_benchmark._core, "attention", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured()


def test_a_call_that_fails_is_a_reason(monkeypatch):
    from regard import _benchmark

    real = _benchmark._core.attention

    def fails_on_math(*args, **options):
        if options["policy"].only == ["math"]:
            raise RuntimeError("math broke")
        return real(*args, **options)

    monkeypatch.setattr(_benchmark._core, "attention", fails_on_math)
    result = measured()
    assert row_of(result, "math").reason == "math broke"
    assert row_of(result, "flash").seconds > 0
