"""The reference that bench/compare.py holds gradients to."""

import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench"))
from harness import cases, gradients, reference  # noqa: E402


def test_gradients_are_differences_of_the_loss():
    case = cases.parse_case("b1 hq2 hkv1 sq5 skv7 d3 dv2 causal diag=br grad")
    random = np.random.default_rng(3)
    q, k, v, d_out = (random.standard_normal(size) for size in
                      ((1, 2, 5, 3), (1, 1, 7, 3), (1, 1, 7, 2), (1, 2, 5, 2)))

    def loss():
        return sum(np.dot(d_out[0, h, i], reference.attention_row(
            q[0, h, i].tolist(), k[0, 0].tolist(), v[0, 0].tolist(),
            reference.visible_keys(case, i))) for h in range(2) for i in range(5))

    (found,) = gradients.expected_gradients(case, q, k, v, d_out).values()
    for tensor, gradient in zip((q[0], k[0, 0], v[0, 0]), found, strict=True):
        for index in np.ndindex(tensor.shape):
            kept, step = tensor[index], 1e-6
            tensor[index] = kept + step
            above = loss()
            tensor[index] = kept - step
            below = loss()
            tensor[index] = kept
            assert abs((above - below) / (2 * step) - gradient[index]) < 1e-8
    as_given = [found[0][None], found[1][None, None], found[2][None, None]]
    truth = {(0, 0): found}
    assert gradients.gradient_error(case, truth, as_given) == 0.0
    as_given[2] = as_given[2] * 1.5
    assert gradients.gradient_error(case, truth, as_given) == 0.5
