"""The faults of mutations.py in products by AMX: only a machine with AMX notices them."""

from mutation import Mutation

AMX = ("property", "*amx_bf16")
GRADIENTS = ("conformance", "*Grad*:Rounding.*")
KERNELS = ("conformance", "All/Cases.*:All/Execute.*")

AMX_MUTATIONS = [
    Mutation("AMX: groups of keys begin where rows see them", "src/cpu/forward/amx_tiles.inl",
             "kKeyGroup = amx::kDepth;", "kKeyGroup = 2;", (AMX,)),
    Mutation("AMX: a register of q past head_dim is not cleared", "src/cpu/forward/amx_tiles.inl",
             "x < end * V::kWidth; ++x)", "x < 0; ++x)", (AMX, KERNELS)),
    Mutation("AMX: probabilities past the last key are what was there", "src/cpu/forward/amx_tiles.inl",
             "x < whole * V::kWidth; x += V::kLanes)", "x < 0; x += V::kLanes)", (AMX, KERNELS)),
    Mutation("AMX: backward: rows past the last are what was there", "src/cpu/backward/amx_products.inl",
             "missing > 0 && j < size; ++j)", "false; ++j)", (GRADIENTS, AMX)),
    Mutation("AMX: backward: keys past the last are what was there", "src/cpu/backward/amx_products.inl",
             "if (by_keys != nullptr) {", "if (false) {", (GRADIENTS, AMX)),
    Mutation("AMX: backward: keys that share a register are not hidden", "src/cpu/backward/tile.inl",
             "    hide_keys<V>(g.rows, 0, seen.begin, probs);\n", "", (GRADIENTS, AMX)),
    Mutation("AMX: backward: a register of q past head_dim is not cleared", "src/cpu/backward/amx_products.inl",
             "x < round_up(dim, kStep) / 2 * kWidth; ++x)", "x < 0; ++x)", (GRADIENTS, AMX)),
]
