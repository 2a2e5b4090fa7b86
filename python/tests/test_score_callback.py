"""C functions that edit scores: pointers of ctypes, addresses, and what numba's @cfunc returns."""

import ctypes
import threading
import types

import numpy as np
import pytest

import regard

EDIT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_float), *[ctypes.c_int64] * 5)
GRADIENT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.POINTER(ctypes.c_float)] * 2, *[ctypes.c_int64] * 5)


# The function where(kv_idx<=q_idx+b,score*score*0.25-0.125*h,-inf), as C code would have it.
TEXT = "where(kv_idx<=q_idx+b,score*score*0.25-0.125*h,-inf)"


@EDIT
def edit(_, scores, count, b, h, q, kv_begin):
    row = np.ctypeslib.as_array(scores, (count,))
    visible = kv_begin + np.arange(count) <= q + b
    row[:] = np.where(visible, row * row * 0.25 - 0.125 * h, -np.inf)


@GRADIENT
def gradient(_, scores, d_scores, count, b, h, q, kv_begin):
    row, d_row = (np.ctypeslib.as_array(x, (count,)) for x in (scores, d_scores))
    d_row *= row * 0.5


def address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def tensors(dtype=np.float32):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, 2, 37, 16)).astype(dtype) for _ in range(4)]


@pytest.mark.parametrize("backend", ["flash", "efficient", "math"])
@pytest.mark.parametrize("form", [lambda f: f, address, lambda f: types.SimpleNamespace(address=address(f))],
                         ids=["ctypes", "address", "numba"])
def test_a_callback_and_its_gradient_are_the_expression(backend, form):
    q, k, v, d_out = tensors()
    results = []
    for keywords in ({"score_callback": (form(edit), form(gradient))}, {"score_function": TEXT}):
        out, saved = regard.attention(q, k, v, return_saved=True, backends=backend, **keywords)
        grads = regard.attention_backward(d_out, q, k, v, out, saved, backends=backend, **keywords)
        results.append([out, grads.d_q, grads.d_k, grads.d_v])
    for of_callback, of_function in zip(*results):
        np.testing.assert_allclose(of_callback, of_function, rtol=1e-4, atol=1e-5)


def test_it_edits_what_the_score_function_returns():
    q, k, v, _ = tensors()
    both = regard.attention(q, k, v, score_function="score+1.5", score_callback=edit)
    text = TEXT.replace("score", "(score+1.5)")
    np.testing.assert_allclose(both, regard.attention(q, k, v, score_function=text), rtol=1e-4, atol=1e-5)


def test_a_callback_without_gradient_is_for_forwards():
    q, k, v, d_out = tensors()
    for callback in (edit, (edit, None)):
        out, saved = regard.attention(q, k, v, return_saved=True, score_callback=callback)
        with pytest.raises(ValueError, match=r"gradient of score_callback \(null\) must be given"):
            regard.attention_backward(d_out, q, k, v, out, saved, score_callback=callback)


def test_calls_may_come_from_many_threads():
    q, k, v, _ = tensors()
    expected = regard.attention(q, k, v, score_callback=edit)
    results = [None] * 4

    def run(at):
        results[at] = regard.attention(q, k, v, score_callback=edit)

    threads = [threading.Thread(target=run, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(x, expected) for x in results)


def test_explain_says_that_it_is_slower():
    q, k, v, _ = tensors()
    text = str(regard.explain(q, k, v, score_callback=edit))
    assert " callback\n" in text and "slower than a score_function" in text
    assert "slower" not in str(regard.explain(q, k, v, score_function="score*2"))


@pytest.mark.parametrize("callback, error, message", [
    (lambda scores: None, TypeError, "must be the address of a C function"),
    ("edit", TypeError, "must be the address of a C function"),
    ((edit, 1.0), TypeError, "gradient of score_callback .*must be the address"),
    ((edit,), TypeError, "must be a function, or one and its gradient"),
    (0, ValueError, "must not be a null pointer"),
    ((edit, 0), ValueError, "the gradient of score_callback must not be a null pointer"),
    (-(2**70), OverflowError, "too big|too large"),
    (EDIT(), ValueError, "must not be a null pointer"),
])
def test_what_is_no_callback_is_refused(callback, error, message):
    q, k, v, _ = tensors()
    with pytest.raises(error, match=message):
        regard.attention(q, k, v, score_callback=callback)


def test_f64_is_refused():
    q, k, v, _ = tensors(np.float64)
    with pytest.raises(ValueError, match="score_callback .*q is f64"):
        regard.attention(q, k, v, score_callback=edit)
