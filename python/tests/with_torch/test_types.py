"""The package and its stubs are typed: mypy, strictly, with PyTorch's and NumPy's own types."""

import pathlib
import re
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


def simple(printed):
    """A type as mypy prints it, in the words of reveal_types.py."""
    short = printed.replace("numpy.ndarray[Any, Any]", "Array")
    return re.sub(r"[\w.]+\.(\w+)", r"\1", short)


def test_types_of_results():
    pytest.importorskip("mypy")
    source = pathlib.Path(__file__).with_name("reveal_types.py")
    ran = check(str(source))
    assert ran.returncode == 0, ran.stdout[:4000]
    found = {int(line): simple(printed) for line, printed in
             re.findall(r'reveal_types\.py:(\d+): note: Revealed type is "(.*)"', ran.stdout)}
    expected = {number: line.rpartition("  # ")[2]
                for number, line in enumerate(source.read_text().splitlines(), 1)
                if line.startswith("reveal_type")}
    assert found == expected and len(expected) > 10
