"""Models of Transformers in context_parallel, unchanged."""

import pytest
import ranks

pytest.importorskip("transformers")
import rank_models  # noqa: E402


@pytest.mark.parametrize("implementation,scope", [
    ("sdpa", {"layout": "zigzag"}), ("regard", {"comm": "all_gather"}), ("sdpa", {"comm": "a2a+p2p"})])
def test_training_a_llama_on_four_ranks_is_training_it_on_one(implementation, scope):
    worst = max(ranks.run(4, rank_models.training, "Llama", implementation, scope, {}))
    assert worst < 1e-9


def test_a_sliding_window_of_a_model_counts_in_the_whole_sequence():
    scope, more = {"layout": "zigzag"}, {"sliding_window": 7}
    assert max(ranks.run(2, rank_models.training, "Mistral", "regard", scope, more)) < 1e-9


def test_masks_of_one_rank_are_refused():
    ranks.run(2, rank_models.refused)
