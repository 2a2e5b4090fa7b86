"""The code of docs/python.md runs, top to bottom."""

import os
import pathlib
import re

import pytest

# The package may be installed far from the repository; these tests lie in it.
DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md"


def test_every_block_of_the_document_runs():
    text = DOCUMENT.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, flags=re.M | re.S))
    assert len(blocks) >= 5
    names = {}
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block[1], os.fspath(DOCUMENT), "exec"), names)


def test_the_document_names_every_keyword():
    import inspect

    import regard

    text = DOCUMENT.read_text()
    for name, parameter in inspect.signature(regard.attention).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and f"`{name}" not in text:
            pytest.fail(f"docs/python.md says nothing of {name}")
