"""The log of the library is Python's logger "regard"; REGARD_LOG works without a handler, too."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from test_attention import make

import regard

LOGGER = logging.getLogger("regard")


@pytest.fixture(autouse=True)
def level_afterwards():
    level = LOGGER.level
    yield
    LOGGER.setLevel(level)


def events(caplog):
    return [(record.levelname, json.loads(record.getMessage())["event"])
            for record in caplog.records if record.name == "regard"]


def fresh(sizes=iter(range(1000, 10**6))):
    """A problem whose decision was not logged yet."""
    return make(b=1, hq=1, hkv=1, sq=1, skv=8, d=next(sizes) % 900 + 1)


def test_decisions_are_info_and_calls_are_debug(caplog):
    q, k, v = fresh()
    LOGGER.setLevel(logging.INFO)
    regard.attention(q, k, v)
    regard.attention(q, k, v)
    assert events(caplog) == [("INFO", "select")]
    caplog.clear()
    LOGGER.setLevel(logging.DEBUG)
    regard.attention(q, k, v)
    q, k, v = fresh()
    regard.attention(q, k, v)
    assert events(caplog) == [("DEBUG", "trace"), ("INFO", "select"), ("DEBUG", "trace")]
    call = json.loads(caplog.records[-1].getMessage())["call"]
    assert call["direction"] == "forward" and call["status"] == "ok" and call["ns"] > 0
    caplog.clear()
    LOGGER.setLevel(logging.WARNING)
    regard.attention(*fresh())
    assert events(caplog) == []


def test_the_level_may_be_the_roots(caplog):
    LOGGER.setLevel(logging.NOTSET)
    with caplog.at_level(logging.INFO):
        regard.attention(*fresh())
    assert events(caplog) == [("INFO", "select")]
    caplog.clear()
    with caplog.at_level(logging.ERROR):
        regard.attention(*fresh())
    assert events(caplog) == []


def test_a_record_names_the_line_that_called(caplog):
    LOGGER.setLevel(logging.INFO)
    regard.attention(*fresh())
    assert caplog.records[-1].funcName == "test_a_record_names_the_line_that_called"


def test_explain_and_backward_log_too(caplog):
    q, k, v = fresh()
    out, saved = regard.attention(q, k, v, return_saved=True)
    LOGGER.setLevel(logging.DEBUG)
    regard.attention_backward(out, q, k, v, out, saved)
    assert events(caplog) == [("DEBUG", "trace")]
    caplog.clear()
    regard.explain(*fresh())
    assert events(caplog) == [("INFO", "select")]  # of the plan that explain shows


def test_a_handler_may_call_regard_and_may_fail(caplog):
    q, k, v = fresh()
    seen = []

    class Calls(logging.Handler):
        def emit(self, record):
            seen.append(record)
            regard.attention(q, k, v)

    class Fails(logging.Filter):
        def filter(self, record):
            raise ValueError("a filter that fails")

    handler, fails = Calls(), Fails()
    LOGGER.setLevel(logging.DEBUG)
    LOGGER.addHandler(handler)
    try:
        regard.attention(q, k, v)
    finally:
        LOGGER.removeHandler(handler)
    assert len(seen) == 2  # the call's own lines, not those of the handler's calls
    LOGGER.addFilter(fails)
    errors = []
    hook, sys.unraisablehook = sys.unraisablehook, errors.append
    try:
        out = regard.attention(q, k, v)
    finally:
        LOGGER.removeFilter(fails)
        sys.unraisablehook = hook
    assert out.shape == q.shape
    assert [str(error.exc_value) for error in errors] == ["a filter that fails"]


@pytest.mark.skipif(not hasattr(signal, "raise_signal"), reason="no signals")
def test_ctrl_c_in_a_handler_is_raised():
    q, k, v = fresh()

    class Interrupts(logging.Filter):
        def filter(self, record):
            raise KeyboardInterrupt

    interrupts = Interrupts()
    LOGGER.setLevel(logging.INFO)
    LOGGER.addFilter(interrupts)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may have ignored it
    try:
        with pytest.raises(KeyboardInterrupt):
            regard.attention(q, k, v)
            for _ in range(1000):  # raised by the next instructions
                pass
    finally:
        signal.signal(signal.SIGINT, before)
        LOGGER.removeFilter(interrupts)


def test_many_threads_log_at_once(caplog):
    q, k, v = make(b=1, hq=2, hkv=2, sq=8, skv=8, d=8)
    LOGGER.setLevel(logging.DEBUG)

    def call():
        for _ in range(50):
            regard.attention(q, k, v)

    threads = [threading.Thread(target=call, name=f"caller {i}") for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    traced = [record.threadName for record in caplog.records
              if record.name == "regard" and record.levelno == logging.DEBUG]
    assert sorted(traced) == sorted([f"caller {i}" for i in range(4)] * 50)


def run(code, **variables):
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith("REGARD_")}
    code = "import numpy as np, regard\nq = np.ones((1, 1, 8, 8), np.float32)\n" + code
    return subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True,
                          env={**environment, **variables}, check=True)


CALL = "regard.attention(q, q, q); regard.attention(q, q, q)"


def test_the_environment_variable_needs_no_handler():
    assert run(CALL).stderr == ""
    assert [json.loads(line)["event"] for line in
            run(CALL, REGARD_LOG="select").stderr.splitlines()] == ["select"]
    assert [json.loads(line)["event"] for line in
            run(CALL, REGARD_LOG="trace").stderr.splitlines()] == ["select", "trace", "trace"]


def test_the_environment_variable_and_a_handler_write_each_line_once():
    code = "import logging; logging.basicConfig(format='%(levelname)s %(message).17s')\n" + CALL
    assert run(code, REGARD_LOG="trace").stderr.splitlines() == [
        'INFO {"event":"select"', 'DEBUG {"event":"trace",', 'DEBUG {"event":"trace",']


def test_the_programs_level_wins():
    code = "import logging; logging.getLogger('regard').setLevel('ERROR')\n" + CALL
    assert run(code, REGARD_LOG="trace").stderr == ""


def test_warnings_need_no_setting():
    ran = run(CALL, REGARD_BACKENDS="math")
    (line,) = ran.stderr.splitlines()
    assert json.loads(line)["event"] == "warning" and "REGARD_BACKEND" in line


def test_logging_is_imported_by_the_first_call():
    run("import sys\nassert 'regard._log' not in sys.modules\nregard.attention(q, q, q)\n"
        "assert 'regard._log' in sys.modules")


def test_a_forked_child_logs():
    code = """
import os, logging
regard.attention(q, q, q)
logging.getLogger('regard').setLevel('INFO')
logging.basicConfig()
if os.fork() == 0:
    regard.attention(q, q, q)
    os._exit(0)
os.wait()
"""
    (line,) = run(code).stderr.splitlines()
    assert line.startswith('INFO:regard:{"event":"select"')


def test_calls_while_the_interpreter_ends():
    code = """
import logging, threading
logging.getLogger('regard').setLevel('DEBUG')
logging.getLogger('regard').addHandler(logging.NullHandler())
class Last:
    def __del__(self):
        regard.attention(q, q, q)
last = Last()
def spin():
    while True:
        regard.attention(q, q, q)
for _ in range(2):
    threading.Thread(target=spin, daemon=True).start()
regard.attention(q, q, q)
"""
    for _ in range(5):
        run(code)
