"""The same for regard.torch and regard.transformers: every public name has an example that runs."""

import pytest

import regard.torch
import regard.transformers
from docstrings import run_examples

OF_TORCH = [name for name in regard.torch.__all__ if name != "AuxRequest"]  # PyTorch's own
OF_TRANSFORMERS = ["explain", "register", "unregister"]


@pytest.mark.parametrize("name", OF_TORCH)
def test_the_example_of_torch_runs(name):
    run_examples(name, getattr(regard.torch, name))


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_the_example_of_transformers_runs(name):
    pytest.importorskip("transformers")
    try:
        run_examples(name, getattr(regard.transformers, name))
    finally:
        regard.transformers.unregister()
