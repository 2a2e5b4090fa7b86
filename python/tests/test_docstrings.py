"""Docstrings of the functions that need NumPy alone: shapes, errors, and an example that runs."""

import pytest

import regard
from docstrings import run_examples

FUNCTIONS = [name for name in regard.__all__ if name.islower() and not name.startswith("_")]
NAMES = ["KVCache", "PagedKVCache", "Policy", *FUNCTIONS]
CANNOT_FAIL = {"counters", "devices", "get_num_threads", "last_selection", "self_check_violations",
               "trim"}
WITH_SHAPES = ["attention", "attention_backward", "merge_states", "pad", "unpad"]

pytestmark = pytest.mark.usefixtures("restored_threads")


@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs(name):
    run_examples(name, getattr(regard, name))


@pytest.mark.parametrize("name", sorted({*NAMES} - CANNOT_FAIL))
def test_the_errors_are_named(name):
    assert "Raises " in getattr(regard, name).__doc__


@pytest.mark.parametrize("name", WITH_SHAPES)
def test_the_shapes_are_named(name):
    assert "[batch, " in getattr(regard, name).__doc__ or "[total, " in getattr(regard, name).__doc__
