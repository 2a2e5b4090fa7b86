"""The code of the documents that need no PyTorch runs, and docs/python.md names every keyword."""

import inspect

import pytest

import regard
from documents import BLOCK, ROOT, WITH_EXPORT, WITH_TORCH, WITHOUT_TORCH, run_blocks


@pytest.mark.parametrize("document", WITHOUT_TORCH)
def test_the_code_of_the_document_runs(document):
    run_blocks(document)


def test_every_document_with_code_is_run():
    with_code = {str(path.relative_to(ROOT))
                 for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))
                 if BLOCK.search(path.read_text())}
    assert with_code == {*WITHOUT_TORCH, *WITH_TORCH, *WITH_EXPORT}


def test_the_document_names_every_keyword():
    text = (ROOT / "docs/python.md").read_text()
    for name, parameter in inspect.signature(regard.attention).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and f"`{name}" not in text:
            pytest.fail(f"docs/python.md says nothing of {name}")
