"""Which backend runs, and why every other one does not.

    python which_backend.py
"""

import numpy as np

import regard

# A problem in words needs no arrays.
print(regard.explain("b1 hq32 hkv8 sq1 skv8192 d128 bf16 causal diag=br"))

# A debugging output that MATH alone has: every other backend's reason, and what would change it.
q = np.zeros((2, 8, 128, 64), np.float32)
selection = regard.explain(q, q, q, return_scores="probs")
for refusal in selection.refusals:
    print(refusal)
assert selection.chosen == "math"

# A policy is a value, for one call or for a stretch of code.
with regard.use_policy(max_workspace_bytes=1 << 20, prefer=["efficient"]):
    print("within a MiB of workspace:", regard.explain(q, q, q).chosen)

# A backend that is forced and can not run is an error with its reasons, never another backend.
try:
    regard.attention(q, q, q, return_scores="probs", backends="flash")
except regard.NoBackendError as error:
    print(str(error).splitlines()[0])
    assert not error.selection.ok
