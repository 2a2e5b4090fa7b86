"""The documents with Python code, and running it."""

import os
import pathlib
import re

# The package may be installed far from the repository; these tests lie in it.
ROOT = pathlib.Path(__file__).resolve().parents[2]
WITHOUT_TORCH = ["docs/python.md"]
WITH_TORCH = ["docs/pytorch.md", "docs/transformers.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.M | re.S)


def run_blocks(path):
    """Every ```python block from top to bottom, in one namespace; their number."""
    text = (ROOT / path).read_text()
    names, count = {}, 0
    for count, block in enumerate(BLOCK.finditer(text), 1):
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block[1], os.fspath(ROOT / path), "exec"), names)
    return count
