"""A small Llama with random weights generates on regard: padded prompts, grouped heads, a KV cache.

    python generate_llama.py
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import regard.transformers

regard.transformers.register()
torch.manual_seed(0)
config = LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=4,
                     num_attention_heads=8, num_key_value_heads=2, initializer_range=0.2,
                     pad_token_id=0, bos_token_id=1, eos_token_id=None)
model = LlamaForCausalLM(config).eval()

text = [b"attention is a weighted mean", b"of what was seen before"]
length = max(map(len, text))
ids = torch.tensor([[0] * (length - len(t)) + list(t) for t in text])  # padded on the left
mask = (ids != 0).long()

tokens = {}
for implementation in ("eager", "regard"):
    model.set_attn_implementation(implementation)
    tokens[implementation] = model.generate(ids, attention_mask=mask, max_new_tokens=24,
                                            do_sample=False)
print(tokens["regard"][:, length:].tolist())
assert torch.equal(tokens["eager"], tokens["regard"]), "token for token"
