"""The examples that need NumPy alone; those with PyTorch are run beside its tests."""

import os
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"
PLAIN = ["packed_sentences.py", "quickstart.py", "which_backend.py"]


def run_example(name):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}
    ran = subprocess.run([sys.executable, "-B", str(EXAMPLES / name)], capture_output=True,
                         text=True, timeout=600, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
    return ran.stdout


@pytest.mark.parametrize("name", PLAIN)
def test_example(name):
    run_example(name)
