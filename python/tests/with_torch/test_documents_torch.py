"""The code of docs/pytorch.md runs, top to bottom."""

import os
import re

from test_documents import DOCUMENT


def test_every_block_of_the_document_runs():
    document = DOCUMENT.with_name("pytorch.md")
    text = document.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, flags=re.M | re.S))
    assert len(blocks) == 5
    names = {}
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block[1], os.fspath(document), "exec"), names)
