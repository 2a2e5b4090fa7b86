#!/usr/bin/env python3
"""PyTorch's backends on the cases that regard_gpu_check measures: cuDNN, flash and efficient."""

import time

import gpu_check_cases

RUNS, RUN_MS = 7, 50.0  # as regard_gpu_check measures
REHEARSED = 2, 0.2


class Torch:
    """Measures one backend of PyTorch."""

    def __init__(self, rehearse):
        self._torch, self._device = gpu_check_cases.torch_and_device(rehearse)
        self._rehearse = rehearse

    def __call__(self, item):
        case = gpu_check_cases.parse(item["case"])
        if case is None:
            return {"result": "refused", "detail": "PyTorch has no such call"}
        if self._rehearse:
            case["sq"], case["skv"] = (min(case[name], gpu_check_cases.MAX_ROWS) for name in ("sq", "skv"))
        try:
            runs = self._measure(case, item["backend"])
        except RuntimeError as error:  # no kernel for it, no memory
            if "CUDA error" in str(error):
                raise
            return {"result": "refused", "detail": str(error).strip().split("\n")[0]}
        median = sorted(runs)[len(runs) // 2]
        return {"result": "measured", "ms": round(median, 5),
                "spread": round((max(runs) - min(runs)) / median, 3), "version": self._torch.__version__}

    def _measure(self, case, name):
        """Milliseconds of a call, in each run."""
        torch = self._torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        backend = {"torch cudnn": SDPBackend.CUDNN_ATTENTION, "torch flash": SDPBackend.FLASH_ATTENTION,
                   "torch efficient": SDPBackend.EFFICIENT_ATTENTION}[name]
        if self._rehearse:
            backend = SDPBackend.MATH  # the one that every CPU build has
        dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[case["dtype"]]
        # The efficient backend needs as many heads of keys as of queries: a caller repeats them,
        # outside the measurement.
        shared = name != "torch efficient" and case["hkv"] != case["hq"]
        heads = case["hkv"] if shared else case["hq"]
        q, k, v = (torch.randn(case["b"], h, rows, case["d"], dtype=dtype, device=self._device,
                               requires_grad=case["grad"])
                   for h, rows in ((case["hq"], case["sq"]), (heads, case["skv"]), (heads, case["skv"])))
        with sdpa_kernel(backend):
            def forward():
                return scaled_dot_product_attention(q, k, v, is_causal=case["causal"], enable_gqa=shared)

            out = forward()
            d_out = torch.randn_like(out)
            call = forward if not case["grad"] else (
                lambda: torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True))
            runs, run_ms = REHEARSED if self._rehearse else (RUNS, RUN_MS)
            self._run(call, 2)
            count = int(min(max(run_ms / max(self._run(call, 1), 1e-3), 1), 2000))
            return [self._run(call, count) / count for _ in range(runs)]

    def _run(self, call, count):
        if self._rehearse:
            start = time.perf_counter()
            for _ in range(count):
                call()
            return (time.perf_counter() - start) * 1e3
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)


if __name__ == "__main__":
    gpu_check_cases.serve(Torch, __doc__)
