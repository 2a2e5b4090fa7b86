"""Expressions that are written with Python's operators: their texts, types and errors."""

import gc
import operator

import numpy as np
import pytest

from regard import score_functions as sf
from regard.score_functions import (
    b,
    captured,
    h,
    i,
    inf,
    kv_idx,
    kv_len,
    maximum,
    minimum,
    q_idx,
    q_len,
    q_pos,
    r,
    resolve,
    score,
    where,
)

TEXTS = [
    (where(q_idx - kv_idx < 128, score, -inf), "where(q_idx-kv_idx<128,score,-inf)", "real"),
    (q_idx >= kv_idx, "kv_idx<=q_idx", "bool"),
    (3 > q_idx, "q_idx<3", "bool"),
    (~(q_idx < 3) | (h == 2) & (b != 1), "!(q_idx<3)|h==2&b!=1", "bool"),
    ((q_idx < 3) & ((h == 2) | (b == 1)), "q_idx<3&(h==2|b==1)", "bool"),
    (-(score + 1) * 2 / (3 - score), "-(score+1)*2/(3-score)", "real"),
    (1 - (2 - score), "1-(2-score)", "real"),
    ((1 - score) - 2, "1-score-2", "real"),
    (q_idx // 4 % 3 - kv_idx // (q_len % 5), "q_idx//4%3-kv_idx//(q_len%5)", "int"),
    (8 // q_idx + 8 % q_idx, "8//q_idx+8%q_idx", "int"),
    (abs(q_pos - kv_len), "abs(q_pos-kv_len)", "int"),
    (minimum(q_idx, 3), "min(q_idx,3)", "int"),
    (maximum(q_idx, 3.0), "max(q_idx,3.0)", "real"),
    (sf.exp(sf.log(sf.sqrt(sf.tanh(sf.sigmoid(h))))), "exp(log(sqrt(tanh(sigmoid(h)))))", "real"),
    (sf.to_int(score) + 1, "int(score)+1", "int"),
    (where(q_idx < 3, q_idx < 2, True), "where(q_idx<3,q_idx<2,true)", "bool"),
    (where(q_idx < 3, h, 0.5), "where(q_idx<3,h,0.5)", "real"),
    (-(-score), "--score", "real"),
    (-sf.constant(3), "-3", "int"),
    (score - sf.constant(-3), "score--3", "real"),
    (score * 1e-7 + 1e22 + 5.0, "score*1e-07+1e+22+5.0", "real"),
    (r(0)[h] * r(7)[b, h, q_idx, kv_idx] + i(1)[kv_idx - 1], "r0[h]*r7[b,h,q_idx,kv_idx]+i1[kv_idx-1]", "real"),
    (score / 2 + np.float32(0.5) + np.int64(3), "score/2+0.5+3", "real"),
    (where(np.bool_(True), score, score), "where(true,score,score)", "real"),
]


@pytest.mark.parametrize("expression, text, kind", TEXTS, ids=[text for _, text, _ in TEXTS])
def test_texts(expression, text, kind):
    assert (str(expression), expression.type) == (text, kind)


@pytest.mark.parametrize("make, message", [
    (lambda: score & (q_idx < 3), "& needs bools, not real and bool: score and q_idx<3"),
    (lambda: ~q_idx, "~ needs a bool, not int: q_idx"),
    (lambda: (q_idx < 3) + 1, r"\+ needs numbers, not bool and int: q_idx<3 and 1"),
    (lambda: -(q_idx < 3), "- needs a number, not bool: q_idx<3"),
    (lambda: score // 2, "// needs ints, not real and int: score and 2"),
    (lambda: q_idx % 2.0, "% needs ints, not int and real: q_idx and 2.0"),
    (lambda: where(score, 1, 2), "where needs a bool and two numbers or two bools, not real, int and int"),
    (lambda: where(q_idx < 1, 1, True), "where needs a bool and two numbers or two bools"),
    (lambda: (q_idx < 2) == (kv_idx < 2), "== needs numbers, not bool and bool"),
    (lambda: sf.exp(q_idx < 2), "exp needs a number, not bool"),
    (lambda: min(score, 2), r"2<score has no truth value.*minimum"),
    (lambda: 0 <= q_idx < 3, "has no truth value"),
    (lambda: r(0)[score], "an index must be an int, not real: score"),
    (lambda: r(0)[h, h, h, h, h], "1 to 4 indices, not 5"),
    (lambda: score + "1", r"an operand \(str\) must be an expression, a number or a bool"),
    (lambda: score + np.zeros(2), r"an operand \(ndarray\) must be.*captured\(tensor\)"),
    (lambda: captured(np.zeros((2, 3)))[h], r"of shape \(2, 3\) needs 2 indices, not 1"),
    (lambda: captured(np.zeros(())), r"of shape \(\)\) must have 1 to 4 dimensions"),
    (lambda: captured(np.zeros(3, complex)), "floats, ints or bools"),
])
def test_types_that_do_not_fit(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize("make, message", [
    (lambda: score + 2**31, "2147483648.*32 bits"),
    (lambda: score + float("nan"), "nan.*must be a number"),
    (lambda: r(8), "must be 0 to 7"),
    (lambda: str(sum([score] * 150)), "at most 256 operators and operands, not 301"),
    (lambda: str(nested(70)), "at most 64 deep, not 71"),
    (lambda: resolve(*[captured(np.zeros(1))[h] for _ in range(9)]), "at most 8 tensors, not 9"),
    (lambda: str(captured(np.zeros(1))[h] + r(0)[h]), r"captured\(tensor\) and r\(k\), i\(k\) are not of one"),
    (lambda: str(sum([q_idx * 123456789.123456789e100] * 80, score)), "at most 256"),
])
def test_values_that_do_not_fit(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def nested(depth):
    found = score
    for _ in range(depth):
        found = -(1 - found) if depth % 2 else abs(found)
    return found


def test_captured_tensors_are_numbered_in_order():
    slopes, ids = np.float32([1, 2]), np.int64([0, 1, 1])
    function = where(captured(ids)[q_idx] == captured(ids)[kv_idx], score * captured(slopes)[h], 0.0)
    assert str(function) == "where(i0[q_idx]==i0[kv_idx],score*r1[h],0.0)"
    assert [x is y for x, y in zip(function.captured, (ids, slopes))] == [True, True]
    texts, tensors = resolve(captured(slopes)[h] + score, captured(ids)[kv_idx] == 0)
    assert texts == ["r0[h]+score", "i1[kv_idx]==0"] and tensors[1] is ids


@pytest.mark.parametrize("dtype, letter", [
    ("float32", "r"), ("float64", "r"), ("float16", "r"), ("int32", "i"), ("int64", "i"), ("bool", "i"),
    ("uint8", "i")])
def test_types_of_captured_tensors(dtype, letter):
    assert str(captured(np.zeros(3, dtype))[h]) == f"{letter}0[h]"


def test_expressions_are_no_keys_of_equality():
    """== makes an expression, so that a dict tells them apart by identity."""
    table = {score: 1, q_idx: 2}
    assert table[score] == 1 and (score in [score])
    assert repr(score + 1) == "<real score+1>"
    with pytest.raises(TypeError, match="no truth value"):
        bool(score == 1)


def test_trees_are_freed():
    tensor = np.zeros(3)
    before = len(gc.get_referrers(tensor))
    text = str(captured(tensor)[h] + score)
    gc.collect()
    assert text and len(gc.get_referrers(tensor)) == before


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "floordiv", "mod"])
def test_operators_of_numbers_on_both_sides(name):
    function = getattr(operator, name)
    symbol = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%"}[name]
    assert str(function(q_idx, 3)) == f"q_idx{symbol}3"
    assert str(function(3, q_idx)) == f"3{symbol}q_idx"
