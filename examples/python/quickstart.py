"""Attention of NumPy arrays: out, lse, gradients, and what was decided.

    python quickstart.py
"""

import numpy as np

import regard

rng = np.random.default_rng(0)
q = rng.standard_normal((1, 8, 128, 64), dtype=np.float32)  # [batch, heads, positions, head_dim]
# 4 heads of q share one of k and v
k, v = (rng.standard_normal((1, 2, 512, 64), dtype=np.float32) for _ in range(2))

# The last query stands at the last key: a prompt's end, after 384 keys in a cache.
options = dict(is_causal=True, diagonal="bottom_right", window=(256, -1))
out, lse, saved = regard.attention(q, k, v, return_lse=True, return_saved=True, **options)
print("out", out.shape, "lse", lse.shape, "ran on", saved.backend)

d_out = np.ones_like(out)
grads = regard.attention_backward(d_out, q, k, v, out, saved, **options)
print("d_q", grads.d_q.shape, "d_k", grads.d_k.shape, "d_v", grads.d_v.shape)

# The same by halves: partial results over disjoint keys merge exactly.
halves = [regard.attention(q, k[:, :, part], v[:, :, part], return_lse=True)
          for part in (slice(0, 200), slice(200, None))]
merged, _ = regard.merge_states(halves)
whole = regard.attention(q, k, v)
print("merged differs by", float(np.abs(merged - whole).max()))
assert np.abs(merged - whole).max() < 1e-5
