"""regard.fp8: conversions bit by bit, and recipes beside the formula that they state."""

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from reference import philox

import regard
from regard import fp8
from regard._fp8_codec import FORMATS, TABLES, philox_words

NAMES = sorted(FORMATS)
F32_MAX = np.finfo(np.float32).max


def numbers_of(name):
    """Every finite number of a format with its code, from the definition alone."""
    exponent, mantissa = {"f8e4m3": (4, 3), "f8e5m2": (5, 2)}[name]
    bias = 2 ** (exponent - 1) - 1
    found = {}
    for code in range(128):
        field, fraction = code >> mantissa, code & (2**mantissa - 1)
        if code > {"f8e4m3": 0x7E, "f8e5m2": 0x7B}[name]:
            continue
        power = Fraction(2) ** (max(field, 1) - bias - mantissa)
        found[code] = (fraction + (2**mantissa if field else 0)) * power
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_table_is_the_definition(name):
    table = fp8.dequantize(np.arange(256, dtype=np.uint8), name)
    for code, value in numbers_of(name).items():
        assert table[code] == float(value) and table[code | 0x80] == -float(value)
    special = {"f8e4m3": (0x7F, np.isnan), "f8e5m2": (0x7C, np.isinf)}[name]
    assert special[1](table[special[0]])
    assert np.isnan(table[0x7F])


@pytest.mark.parametrize("name", NAMES)
def test_rounds_to_the_nearest_and_ties_to_even(name):
    """Every number, every midpoint, and the float64 beside each of them."""
    values = numbers_of(name)
    codes = sorted(values)
    for low, high in zip(codes, codes[1:]):
        middle = float((values[low] + values[high]) / 2)
        even = low if low % 2 == 0 else high
        cases = [(float(values[low]), low), (math.nextafter(middle, 0), low), (middle, even),
                 (math.nextafter(middle, math.inf), high), (float(values[high]), high)]
        got = fp8.quantize([x for x, _ in cases], name)
        assert got.tolist() == [code for _, code in cases], (low, high)
        negative = fp8.quantize([-x for x, _ in cases], name)
        assert negative.tolist() == [code | 0x80 for _, code in cases]


@pytest.mark.parametrize("name", NAMES)
def test_beyond_the_range(name):
    form = FORMATS[name]
    step = form.max - float(numbers_of(name)[form.max_code - 1])
    tie = form.max + step / 2  # E4M3's largest code is even, E5M2's is not
    below, beyond = (tie, math.nextafter(tie, math.inf)) if name == "f8e4m3" else (
        math.nextafter(tie, 0), tie)
    values = [below, beyond, 1e300, math.inf, -math.inf, math.nan]
    held = fp8.dequantize(fp8.quantize(values, name), name)
    assert held[:5].tolist() == [form.max, form.max, form.max, form.max, -form.max]
    assert np.isnan(held[5])
    free = fp8.dequantize(fp8.quantize(values, name, saturate=False), name)
    assert free[0] == form.max
    is_beyond = np.isinf if name == "f8e5m2" else np.isnan
    assert is_beyond(free[1:5]).all() and np.isnan(free[5])


@pytest.mark.parametrize("name", NAMES)
def test_scales_are_float32_factors_and_every_code_survives(name):
    codes = np.array([c for c in range(256) if (c & 0x7F) <= FORMATS[name].max_code], np.uint8)
    for power in (-20, 0, 13):
        scale = 2.0**power
        x = fp8.dequantize(codes, name, descale=1 / scale)
        assert (fp8.quantize(x, name, scale=scale) == codes).all()
    # 0.1f * 3f rounds in float32, then once to the format.
    product = np.float32(0.1) * np.float32(3)
    assert fp8.quantize(np.float32(0.1), name, scale=3) == fp8.quantize(np.float64(product), name)
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    scales = np.float32([[1], [2], [4]])
    assert (fp8.quantize(rows, name, scale=scales)
            == np.stack([fp8.quantize(r, name, scale=float(s)) for r, s in zip(rows, scales[:, 0])])).all()


def test_the_stream_is_the_documented_one():
    seed, offset = 0x123456789ABCDEF0, 0xFEDCBA9876543210
    key = (seed & 0xFFFFFFFF, seed >> 32 ^ offset >> 32)
    want = [w for n in range(3) for w in philox(key, (n, 0, 0x66703872, offset & 0xFFFFFFFF))]
    assert philox_words(seed, offset, 10).tolist() == want[:10]


@pytest.mark.parametrize("name", NAMES)
def test_stochastic_rounding(name):
    one, above = (float(numbers_of(name)[fp8.quantize(1.0, name).item() + n]) for n in (0, 1))
    share = 0.3
    x = np.full(40_000, one + share * (above - one))
    got = fp8.dequantize(fp8.quantize(x, name, seed=7), name)
    assert set(np.unique(got)) == {one, above}
    up = (got == above).mean()
    assert abs(up - share) < 5 * math.sqrt(share * (1 - share) / x.size)
    draws = philox_words(7, 0, x.size) * 2.0**-32
    assert ((got == above) == (draws < (x - one) / (above - one))).all()
    exact = np.float64([one, above, -one, 0.0])
    assert (fp8.dequantize(fp8.quantize(exact, name, seed=1), name) == exact).all()
    assert (fp8.quantize(x, name, seed=7) == fp8.quantize(x, name, seed=7)).all()
    assert (fp8.quantize(x, name, seed=7) != fp8.quantize(x, name, seed=7, offset=1)).any()


def test_refusals_of_conversions():
    with pytest.raises(ValueError, match="dtype .'f8'. must be"):
        fp8.quantize([1.0], "f8")
    for scale in (0.0, -1.0, math.inf, math.nan, [1.0, 0.0]):
        with pytest.raises(ValueError, match="scale .* must be finite and more than 0"):
            fp8.quantize([1.0, 2.0], "f8e4m3", scale=scale)
    with pytest.raises(ValueError, match="shape of scale"):
        fp8.quantize([1.0, 2.0], "f8e4m3", scale=[1.0, 2.0, 3.0])
    with pytest.raises(TypeError, match="dtype of codes .float32"):
        fp8.dequantize(np.float32([1]), "f8e4m3")
    with pytest.raises(TypeError, match="dtype of x"):
        fp8.quantize(["a"], "f8e4m3")


# ---- recipes

def published_step(history, scale, fp8_max, margin, algo):
    """TransformerEngine's formula, line by line: amax from the history, the history's move, the scale."""
    if algo == "max":
        amax = np.max(history, axis=0)
    else:
        amax = history[0].copy()
    if history.shape[0] > 1:
        history = np.roll(history, -1, 0)
    history[0] = 0.0
    with np.errstate(all="ignore"):
        sf = (np.float32(fp8_max) / amax) / np.float32(2**margin)
    sf = np.where(amax > 0.0, sf, scale)
    sf = np.where(np.isfinite(amax), sf, scale)
    sf = np.where(np.isinf(sf), F32_MAX, sf)
    return history, np.float32(sf)


@pytest.mark.parametrize("algo", ["max", "most_recent"])
@pytest.mark.parametrize("backward", [False, True])
def test_delayed_scaling_is_the_published_formula(algo, backward):
    rng = np.random.default_rng(3)
    for length in (1, 2, 5, 1024):
        for margin in (0, 1, -3, 0.5):
            recipe = fp8.DelayedScaling(margin=margin, amax_history_len=length, amax_compute_algo=algo)
            state = recipe.new_state(backward)
            history, scale = np.zeros(length, np.float32), np.float32(1)
            fp8_max = 57344 if backward else 448
            for n in range(60):
                amax = np.float32(10.0 ** rng.uniform(-6, 6))
                if n % 7 == 3:
                    amax = np.float32(rng.choice([0.0, 1e-45, 1e-38, F32_MAX, math.inf]))
                history[0] = amax
                history, scale = published_step(history, scale, fp8_max, margin, algo)
                state.step(amax)
                assert state.scale == scale and (state.amax_history == history).all()


def test_defaults_are_transformer_engines():
    delayed = fp8.DelayedScaling()
    assert repr(delayed) == ("DelayedScaling(margin=0, fp8_format='HYBRID', amax_history_len=1024, "
                             "amax_compute_algo='max', reduce_amax=True)")
    assert [r.fp8_format for r in (fp8.Float8CurrentScaling(), fp8.MXFP8BlockScaling(),
                                   fp8.Float8BlockScaling())] == ["HYBRID", "E4M3", "E4M3"]
    assert [r.format_of(True).name for r in (delayed, fp8.MXFP8BlockScaling())] == ["f8e5m2", "f8e4m3"]


def test_current_scaling():
    for amax, scale in [(7.0, 64.0), (0.0, 1.0), (math.inf, 1.0), (1e-45, F32_MAX), (3.0, np.float32(448) / 3)]:
        state = fp8.Float8CurrentScaling().new_state()
        state.step(amax)
        assert state.scale == np.float32(scale)
        state = fp8.Float8CurrentScaling(use_power_2_scales=True).new_state()
        state.step(amax)
        assert math.frexp(state.scale)[0] == 0.5 and state.scale <= max(scale, 1)


def test_mxfp8_descales_are_e8m0_rounded_up():
    recipe = fp8.MXFP8BlockScaling()
    rng = np.random.default_rng(0)
    amax = np.float32(10.0 ** rng.uniform(-30, 30, 1000))
    state = recipe.new_state()
    state.step(amax)
    for a, descale in zip(amax, 1 / state.scale.astype(np.float64)):
        want = 2.0 ** math.ceil(math.log2(float(a) * float(np.float32(1 / 448)))) if a else 2.0**-127
        assert descale == max(want, 2.0**-127), a
    x = rng.standard_normal((3, 5, 70)).astype(np.float32)
    scales = recipe.amax_of(x)
    assert scales.shape == (3, 5, 3)
    assert (scales[..., 2] == np.abs(x[..., 64:]).max(-1)).all()
    state.step(scales)
    codes = fp8.quantize(x, "f8e4m3", scale=recipe.spread(state.scale, x.shape))
    back = fp8.dequantize(codes, "f8e4m3", descale=1 / recipe.spread(state.scale, x.shape))
    assert np.abs(back - x).max() <= 2.0**-4 * np.abs(x).max()


def test_blocks_of_128():
    x = np.random.default_rng(1).standard_normal((2, 200, 300)).astype(np.float32)
    for dim, shape in ((1, (2, 200, 3)), (2, (2, 2, 3))):
        recipe = fp8.Float8BlockScaling(x_block_scaling_dim=dim)
        amax = recipe.amax_of(x)
        assert amax.shape == shape
        state = recipe.new_state()
        state.step(amax)
        assert (np.frexp(state.scale)[0] == 0.5).all()
        assert (amax * state.scale <= 448).all() and (amax * state.scale > 224).all()
        assert recipe.spread(state.scale, x.shape).shape == x.shape


RECIPES = [fp8.DelayedScaling, fp8.Float8CurrentScaling, fp8.MXFP8BlockScaling, fp8.Float8BlockScaling]


@pytest.mark.parametrize("make", RECIPES)
def test_states_are_plain(make):
    state = make().new_state()
    state.step(3.0)
    copy = pickle.loads(pickle.dumps(state))
    for s in (state, copy):
        s.step(5.0)
    assert copy.scale == state.scale and (copy.amax_history == state.amax_history).all()
    assert repr(copy) == repr(state)


@pytest.mark.parametrize("make, word, values", [
    (fp8.DelayedScaling, "amax_history_len", [0, -1, 1.5, "a", True, None]),
    (fp8.DelayedScaling, "margin", [math.inf, -math.inf, math.nan, "a", None, 200]),
    (fp8.DelayedScaling, "amax_compute_algo", ["min", None, 0]),
    (fp8.DelayedScaling, "fp8_format", ["E5M2", None, "hybrid"]),
    (fp8.DelayedScaling, "reduce_amax", [None, 1]),
    (fp8.Float8CurrentScaling, "fp8_format", ["", None]),
    (fp8.MXFP8BlockScaling, "margin", [1, math.inf]),
    (fp8.Float8BlockScaling, "x_block_scaling_dim", [0, 3]),
])
def test_bad_parameters_are_refused_by_name(make, word, values):
    for value in values:
        with pytest.raises(ValueError, match=word):
            make(**{word: value})


@pytest.mark.parametrize("make", RECIPES)
def test_bad_steps_leave_the_state_as_it_was(make):
    rng = np.random.default_rng(11)
    state = make().new_state()
    for _ in range(300):
        bad = rng.choice([math.nan, -1.0, -math.inf, -1e-30])
        before = (state.scale, state.amax_history.tobytes())
        with pytest.raises(ValueError, match="amax"):
            state.step(bad)
        assert (state.scale, state.amax_history.tobytes()) == before
        state.step(10.0 ** rng.uniform(-40, 40) if rng.random() < 0.9 else 0.0)
        assert np.isfinite(state.scale) and state.scale > 0
        assert np.isfinite(state.descale) and state.descale > 0
    with pytest.raises(ValueError, match="amax"):
        state.step([1.0, math.nan])


def test_it_is_imported_when_named():
    assert regard.fp8 is fp8 and set(TABLES) == set(NAMES)
