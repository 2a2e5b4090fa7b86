"""The code of the documents that need PyTorch or Transformers runs."""

import pytest

from documents import WITH_TORCH, run_blocks


@pytest.mark.parametrize("document", WITH_TORCH)
def test_the_code_of_the_document_runs(document):
    assert run_blocks(document) >= 1
