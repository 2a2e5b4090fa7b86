"""Every example that needs PyTorch runs and holds what it asserts."""

import pytest
from test_examples import EXAMPLES, PLAIN, run_example

NAMES = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in PLAIN)


@pytest.mark.parametrize("name", NAMES)
def test_example(name):
    run_example(name)


def test_all_are_here():
    assert {"export_model.py", "flex_attention.py", "generate_llama.py", "minilm_embeddings.py",
            "train_small_model.py"} <= set(NAMES)
