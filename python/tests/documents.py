"""The documents with Python code, and running it."""

import os
import pathlib
import re
import subprocess
import sys

# The package may be installed far from the repository; these tests lie in it.
ROOT = pathlib.Path(__file__).resolve().parents[2]
WITHOUT_TORCH = ["docs/python.md", "docs/quickstart.md", "docs/self_check.md", "docs/semantics.md"]
WITH_TORCH = ["README.md", "docs/distributed.md", "docs/pytorch.md", "docs/score_functions.md", "docs/transformers.md"]
WITH_EXPORT = ["docs/llm.md"]  # run by with_torch/test_llm_export.py, which exports the model
BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.M | re.S)
MODEL = "sentence-transformers/all-MiniLM-L6-v2"  # on the Hub; the tests have it in a package


def code_of(path):
    """The ```python blocks of a document as one program, at the lines where they stand."""
    text = (ROOT / path).read_text()
    lines = [""] * text.count("\n")
    for block in BLOCK.finditer(text):
        first = text[: block.start(1)].count("\n")
        code = block[1].splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines)


def run_blocks(path, model=None):
    """Runs the code of a document from top to bottom in a process of its own, for it may change
    torch and Transformers for good."""
    code = code_of(path)
    assert code.strip(), f"{path} has no Python code"
    if model:
        code = code.replace(MODEL, os.fspath(model))
    program = f"exec(compile({code!r}, {os.fspath(ROOT / path)!r}, 'exec'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          env=os.environ | {"HF_HUB_OFFLINE": "1"}, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
