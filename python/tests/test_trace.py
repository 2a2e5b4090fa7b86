"""last_selection() and trace(): what ran, on which thread, and why."""

import gc
import json
import os
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from test_attention import make

import regard


def run_in_thread(function):
    result = []
    thread = threading.Thread(target=lambda: result.append(function()))
    thread.start()
    thread.join()
    return result[0]


def test_last_selection_is_this_threads_last_call():
    q, k, v = make(b=1, hq=4, hkv=2, sq=9, skv=100, d=16)
    regard.attention(q, k, v, backends="math")
    selection = regard.last_selection()
    assert selection.chosen == "math" and selection.decided_by == "call policy (only)"
    assert selection.plan["kernel"].startswith("math_")
    assert str(selection) == str(regard.explain(q, k, v, backends="math"))
    assert run_in_thread(regard.last_selection) is None
    assert run_in_thread(lambda: (regard.attention(q, k, v),
                                  regard.last_selection().chosen)[1]) != "math"
    assert regard.last_selection().chosen == "math"


def test_last_selection_has_the_calls_own_extents_and_its_copies():
    q, k, v = make(b=1, hq=1, hkv=1, sq=97, skv=97, d=16)
    regard.attention(q, k, v)
    more = [np.ascontiguousarray(np.concatenate([x, x[:, :, :3]], axis=2)) for x in (q, k, v)]
    misses = regard.counters()["plan_misses"]
    regard.attention(*more)
    assert regard.counters()["plan_misses"] == misses  # one plan serves both
    selection = regard.last_selection()
    assert selection.to_dict()["case"].startswith("b1 hq1 hkv1 sq100 skv100")
    assert selection.notes == ()
    regard.attention(q, k[..., ::-1], v)
    assert regard.last_selection().notes[0].startswith("k is copied")
    regard.attention(q, k, v)
    assert regard.last_selection().notes == ()


def test_last_selection_of_a_call_that_nothing_can_run():
    q, k, v = make(b=1, hq=1, hkv=1, sq=8, skv=8, d=8)
    regard.attention(q, k, v)
    with pytest.raises(ValueError):
        regard.attention(q, k[:, :, :, :4], v)
    assert regard.last_selection().ok  # the wrong call never came to a selection
    with pytest.raises(regard.NoBackendError) as caught:
        regard.attention(q, k, v, backends="efficient", return_scores="probs")
    selection = regard.last_selection()
    assert selection.chosen == "error"
    assert selection.refusals == caught.value.selection.refusals


def test_last_selection_of_a_backward():
    q, k, v = make(b=1, hq=2, hkv=2, sq=8, skv=8, d=8)
    out, saved = regard.attention(q, k, v, return_saved=True, backends="efficient")
    regard.attention(q, k, v)
    regard.attention_backward(out, q, k, v, out, saved)
    selection = regard.last_selection()
    assert selection.chosen == "efficient" and selection.plan["backward"] == saved.plan["backward"]


def test_every_call_is_recorded_of_any_thread():
    q, k, v = make(b=1, hq=2, hkv=2, sq=8, skv=8, d=8)
    regard.attention(q, k, v)
    with regard.trace() as t:
        out, saved = regard.attention(q, k, v, return_saved=True, backends="math")
        regard.attention_backward(out, q, k, v, out, saved)
        run_in_thread(lambda: regard.attention(q, k, v, backends="efficient"))
        with pytest.raises(regard.NoBackendError):
            regard.attention(q, k, v, backends="cudnn")
    regard.attention(q, k, v)
    assert len(t) == len(t.records) == 4
    forward, backward, threaded, failed = t
    assert [call.backend for call in t] == ["math", "math", "efficient", None]
    assert [call.direction for call in t] == ["forward", "backward", "forward", "forward"]
    assert forward.case.startswith("b1 hq2 hkv2 sq8 skv8 d8 f32")
    assert forward.thread == threading.get_ident() != threaded.thread
    assert forward.kernel == saved.plan["forward"]["kernel"]
    assert backward.kernel == saved.plan["backward"]["kernel"]
    assert backward.workspace_bytes == saved.plan["backward"]["workspace_bytes"]
    assert all(0 < call.seconds < 60 for call in t)
    assert forward.error is None and forward.isa is not None
    assert "no backend can run" in failed.error and not failed.selection.ok
    assert forward.selection.decided_by == "call policy (only)"
    assert threaded.selection.plan["kernel"] == threaded.kernel
    assert all(call.layer is None for call in t)


def test_traces_nest_and_open_again():
    q, k, v = make(b=1, hq=1, hkv=1, sq=8, skv=8, d=8)
    outer, inner = regard.trace(), regard.trace()
    with outer:
        regard.attention(q, k, v)
        with inner:
            regard.attention(q, k, v)
        with pytest.raises(RuntimeError, match="open already"):
            outer.__enter__()
        regard.attention(q, k, v)
    assert (len(outer), len(inner)) == (3, 1)
    with inner:
        regard.attention(q, k, v)
    assert (len(outer), len(inner)) == (3, 2)


def test_an_exception_ends_a_trace():
    q, k, v = make(b=1, hq=1, hkv=1, sq=8, skv=8, d=8)
    with pytest.raises(ZeroDivisionError), regard.trace() as t:
        regard.attention(q, k, v)
        1 / 0
    regard.attention(q, k, v)
    assert len(t) == 1


def test_a_trace_that_is_dropped_while_it_is_open():
    q, k, v = make(b=1, hq=1, hkv=1, sq=8, skv=8, d=8)
    recording = regard._core.Recording()
    recording.open()
    del recording
    gc.collect()
    regard.attention(q, k, v)


def test_summary_groups_calls():
    q, k, v = make(b=1, hq=2, hkv=2, sq=8, skv=8, d=8)
    with regard.trace() as t:
        pass
    assert t.summary() == "no call of regard was made while the trace was open"
    with t:
        for _ in range(3):
            regard.attention(q, k, v, backends="math")
        regard.attention(q, k[:, :, :5], v[:, :, :5], backends="math")
    head, *rows, total = t.summary().splitlines()
    assert re.split("  +", head) == ["layer", "direction", "backend", "kernel", "calls", "time",
                                     "of time", "of peak", "of bandwidth", "case"]
    assert len(rows) == 2 and total.startswith("4 calls in ")
    assert rows[0].split()[1:5] == ["forward", "math", t.records[0].kernel, "3"]
    assert rows[0].endswith(t.records[0].case) and rows[1].endswith(t.records[3].case)
    shares = [[float(cell.split()[-1]) for cell in row.split(" %")[:3]] for row in rows]
    assert abs(shares[0][0] + shares[1][0] - 100) < 0.3
    calls = t.records[:3]
    assert shares[0][1] == pytest.approx(
        100 * sum(c.share_of_peak * c.seconds for c in calls) / sum(c.seconds for c in calls),
        abs=0.06)


def test_json_has_every_call():
    q, k, v = make(b=1, hq=2, hkv=2, sq=8, skv=8, d=8)
    with regard.trace() as t:
        regard.attention(q, k, v, backends="math")
    document = json.loads(t.to_json())
    assert document["regard"] == regard.__version__
    (call,) = document["calls"]
    assert call["case"] == t.records[0].case and call["seconds"] == t.records[0].seconds
    assert call["backend"] == "math" and call["layer"] is None and call["error"] is None
    assert document["machine"] == regard.machine_rates()


def test_work_and_shares_of_the_machine():
    q, k, v = make(b=1, hq=4, hkv=2, sq=64, skv=64, d=32)
    with regard.trace() as t:
        out, saved = regard.attention(q, k, v, return_saved=True)
        regard.attention_backward(out, q, k, v, out, saved)
        regard.attention(q, k, v, is_causal=True)
        regard.attention(q, k, v, seqlens_kv=[16])
        regard.attention(q, k[:, :, :0], v[:, :, :0])
    forward, backward, causal, short, empty = t
    pairs = 4 * 64 * 64
    assert forward.operations == 4 * 32 * pairs and backward.operations == 10 * 32 * pairs
    assert causal.operations == 4 * 32 * 4 * 64 * 65 / 2
    assert short.operations == forward.operations / 4
    assert forward.bytes == 4 * (2 * q.size + k.size + v.size + 2 * 4 * 64)  # with saved_stats
    assert short.bytes == 4 * (2 * q.size + (k.size + v.size) / 4 + 1)
    assert empty.operations is None and empty.share_of_peak is None
    rates = regard.machine_rates()
    assert forward.share_of_peak == pytest.approx(
        forward.operations / forward.seconds / (1e9 * rates["f32_gflops"]))
    assert forward.share_of_bandwidth == pytest.approx(
        forward.bytes / forward.seconds / (1e9 * rates["read_gbps"]))


def test_plot_says_that_it_needs_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        regard.trace().plot()


def test_plot_has_a_bar_for_each_layer():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    q, k, v = make(b=1, hq=2, hkv=2, sq=8, skv=8, d=8)
    with regard.trace() as t:
        out, saved = regard.attention(q, k, v, return_saved=True, backends="math")
        regard.attention_backward(out, q, k, v, out, saved)
    axes = t.plot()
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(
        1e3 * sum(call.seconds for call in t))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["math forward",
                                                                          "math backward"]


def test_many_threads_open_and_close_traces():
    q, k, v = make(b=1, hq=1, hkv=1, sq=4, skv=4, d=8)
    stop = threading.Event()

    def call():
        while not stop.is_set():
            regard.attention(q, k, v)

    callers = [threading.Thread(target=call) for _ in range(2)]
    for caller in callers:
        caller.start()
    seen = 0
    for _ in range(100):
        with regard.trace() as t, regard.trace() as inner:
            regard.attention(q, k, v)
            assert len(inner) >= 1
        assert len(t) >= len(inner)
        seen += len(t)
    stop.set()
    for caller in callers:
        caller.join()
    assert seen >= 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_begins_without_a_trace():
    code = """
import os, numpy as np, regard
q = np.ones((1, 1, 8, 8), np.float32)
with regard.trace() as t:
    regard.attention(q, q, q)
    child = os.fork()
    regard.attention(q, q, q)
    if child == 0:
        with regard.trace() as own:
            regard.attention(q, q, q)
        os._exit(0 if (len(t), len(own)) == (1, 1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert len(t) == 2
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_open_trace_at_exit_is_no_error():
    code = """
import numpy as np, regard
q = np.ones((1, 1, 8, 8), np.float32)
t = regard.trace()
t.__enter__()
regard.attention(q, q, q)
"""
    ran = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_calibration_lists_where_predictions_are_off():
    q, k, v = make(b=1, hq=2, hkv=1, sq=64, skv=64, d=16)
    with regard.trace() as t:
        for _ in range(5):
            regard.attention(q, k, v)
        with pytest.raises(regard.NoBackendError):
            regard.attention(q, k, v, backends="cudnn")
    assert [call.predicted_seconds is not None for call in t] == [True] * 5 + [False]
    assert t.records[0].predicted_seconds > 0
    (row,) = t.calibration(limit=1)
    assert (row.case, row.backend, row.direction, row.calls) == (t.records[0].case, "flash", "forward", 5)
    assert row.measured_seconds == sorted(call.seconds for call in t.records[:5])[2]
    assert row.predicted_seconds == t.records[0].predicted_seconds
    assert row.ratio == row.measured_seconds / row.predicted_seconds and row.spread > 1
    assert t.calibration(max(row.ratio, 1 / row.ratio) * 1.01) == []
    assert t.calibration(max(max(row.ratio, 1 / row.ratio) * 0.99, 1)) == [row]
    with pytest.raises(ValueError, match="limit .0.5."):
        t.calibration(0.5)
