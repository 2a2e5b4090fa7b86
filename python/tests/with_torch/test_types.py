"""The package and its stubs are typed: mypy, strictly, with PyTorch's and NumPy's own types."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


def check(*arguments):
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"),
               "--cache-dir", str(ROOT / "build" / "mypy_cache"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=ROOT / "python")


def test_the_package_is_typed(tmp_path):
    pytest.importorskip("mypy")
    ran = check("regard")
    assert ran.returncode == 0, ran.stdout
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import numpy, regard\n"
                     "x = numpy.zeros((1, 1, 2, 4))\n"
                     "regard.attention(x, x, x, is_causal='yes')\n"
                     "print(regard.explain(x, x, x).chosen + 1)\n")
    found = check(str(wrong))
    assert found.returncode == 1 and "wrong.py:3:" in found.stdout and "wrong.py:4:" in found.stdout
