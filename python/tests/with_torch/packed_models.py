"""Two sequences in one row of a small model, as Transformers' callers describe them."""

import torch

SMALL = dict(vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, intermediate_size=64, initializer_range=0.2)
LENGTHS = (7, 5)
STARTS = torch.tensor([0, 7, 12], dtype=torch.int32)
WORDS = dict(cu_seq_lens_q=STARTS, cu_seq_lens_k=STARTS, max_length_q=7, max_length_k=7)
POSITIONS = torch.cat([torch.arange(n) for n in LENGTHS])[None]
INDEX = (torch.arange(12)[None] >= 7).int()
ONES = torch.ones(1, 12, dtype=torch.long)
FORMS = {
    "no mask without cache": dict(position_ids=POSITIONS, use_cache=False),
    "no mask with the default cache": dict(position_ids=POSITIONS),
    "a mask of ones": dict(position_ids=POSITIONS, attention_mask=ONES),
    "a mask of ones without cache": dict(position_ids=POSITIONS, attention_mask=ONES,
                                         use_cache=False),
    "both": dict(WORDS, position_ids=POSITIONS, attention_mask=ONES),
    "both without cache": dict(WORDS, position_ids=POSITIONS, use_cache=False),
    "cu_seq_lens alone": WORDS,
    "cu_seq_lens and a mask of ones": dict(WORDS, attention_mask=ONES),
    "lengths in tensors": dict(WORDS, max_length_q=torch.tensor(7), max_length_k=torch.tensor(7)),
    "seq_idx": dict(seq_idx=INDEX),
    "seq_idx and positions": dict(seq_idx=INDEX, position_ids=POSITIONS),
    "all": dict(WORDS, seq_idx=INDEX, position_ids=POSITIONS, use_cache=False),
}


def tokens():
    torch.manual_seed(1)
    return torch.randint(4, 90, (1, 12))


@torch.no_grad()
def one_by_one(model, ids):
    model.set_attn_implementation("eager")
    return torch.cat([model(each).logits for each in ids.split(LENGTHS, 1)], 1)


def layer_of(is_causal=True):
    """A layer as an attention function gets it."""
    layer = torch.nn.Module()
    layer.is_causal, layer.layer_idx = is_causal, 0
    return layer
