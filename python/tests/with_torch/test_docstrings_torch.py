"""The same for regard.torch and regard.transformers: every public name has an example that runs."""

import pathlib
import subprocess
import sys

import pytest

import regard.flash_attn
import regard.torch
from docstrings import run_examples

OF_TORCH = [name for name in regard.torch.__all__ if name not in ("AuxOutput", "AuxRequest")]  # PyTorch's own
OF_TRANSFORMERS = ["Cache", "enable_continuous_batching", "enable_packed_vision", "explain", "register",
                   "unregister"]


@pytest.mark.parametrize("name", OF_TORCH)
def test_the_example_of_torch_runs(name):
    run_examples(name, getattr(regard.torch, name))


def test_the_example_of_flash_attn_with_kvcache_runs():
    run_examples("flash_attn_with_kvcache", regard.flash_attn.flash_attn_with_kvcache)


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_the_example_of_transformers_runs(name):
    """In a process of its own: other tests count on what they registered."""
    pytest.importorskip("transformers")
    program = (f"import regard.transformers; from docstrings import run_examples; "
               f"run_examples({name!r}, regard.transformers.{name})")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                         cwd=pathlib.Path(__file__).parents[1], timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
