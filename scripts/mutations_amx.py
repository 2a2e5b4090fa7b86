"""The faults of mutations.py in products by AMX: only a machine with AMX notices them."""

from mutation import Mutation

AMX = ("property", "*amx_bf16")
KERNELS = ("conformance", "All/Cases.*:All/Execute.*")

AMX_MUTATIONS = [
    Mutation("AMX: groups of keys begin where rows see them", "src/cpu/forward/amx_tiles.inl",
             "kKeyGroup = amx::kDepth;", "kKeyGroup = 2;", (AMX,)),
    Mutation("AMX: a register of q past head_dim is not cleared", "src/cpu/forward/amx_tiles.inl",
             "x < end * V::kWidth; ++x)", "x < 0; ++x)", (AMX, KERNELS)),
    Mutation("AMX: probabilities past the last key are what was there", "src/cpu/forward/amx_tiles.inl",
             "x < whole * V::kWidth; x += V::kLanes)", "x < 0; x += V::kLanes)", (AMX, KERNELS)),
]
