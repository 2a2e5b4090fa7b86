#!/usr/bin/env python3
"""regard.torch on a device's tensors beside PyTorch's own arithmetic in float64, with autograd."""

import gpu_check_cases

TOLERANCES = {"bf16": 2e-2, "f16": 4e-3, "f32": 1e-4}  # of the largest number


class Python:
    """Runs one case of regard.torch."""

    def __init__(self, rehearse):
        self._torch, self._device = gpu_check_cases.torch_and_device(rehearse)
        self._rehearse = rehearse
        try:
            import regard
            import regard.torch as regard_torch
        except (ImportError, OSError) as error:
            raise gpu_check_cases.Missing(f"regard cannot be imported: {error}") from None
        if not rehearse and not regard._core.built_with_cuda():
            raise gpu_check_cases.Missing("regard is built without CUDA")
        self._sdpa = regard_torch.scaled_dot_product_attention

    def __call__(self, item):
        words = item["case"]
        case = gpu_check_cases.parse(words)
        special = {"compile": self._compile, "streams": self._streams, "graph": self._graph,
                   "layouts": self._layouts}.get(words.split(":")[0])
        if case is None and special is None:
            return {"result": "failed", "detail": "no such case in gpu_check_python.py"}
        self._torch.manual_seed(1)
        error = self._compare(case) if special is None else special()
        if not self._rehearse:
            self._torch.cuda.synchronize()
        result = {"result": "passed" if error <= 1 else "failed", "error_over_tolerance": round(error, 3)}
        if error > 1:
            result["detail"] = "differs from PyTorch's arithmetic in float64"
        return result

    def _make(self, case):
        torch = self._torch
        dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[case["dtype"]]
        shapes = ((case["hq"], case["sq"]), (case["hkv"], case["skv"]), (case["hkv"], case["skv"]))
        return [torch.randn(case["b"], heads, rows, case["d"], device=self._device).to(dtype)
                .requires_grad_(case["grad"]) for heads, rows in shapes]

    def _reference(self, tensors, mask=None, causal=False):
        """PyTorch's arithmetic in float64; its leaves and its result."""
        torch = self._torch
        q, k, v = leaves = [x.detach().double().requires_grad_(x.requires_grad) for x in tensors]
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return leaves, scores.softmax(-1) @ v

    @staticmethod
    def _error(found, expected):
        largest = max(1.0, expected.abs().max().item())
        return (found.double() - expected).abs().max().item() / largest

    def _errors(self, call, tensors, **options):
        """The largest error of a call's output and of its gradients."""
        torch = self._torch
        out = call(*tensors)
        leaves, expected = self._reference(tensors, **options)
        errors = [self._error(out, expected)]
        if tensors[0].requires_grad:
            d_out = torch.randn_like(out)
            found = torch.autograd.grad(out, tensors, d_out)
            truth = torch.autograd.grad(expected, leaves, d_out.double())
            errors += [self._error(a, b) for a, b in zip(found, truth)]
        return max(errors)

    def _compare(self, case):
        mask = None
        if case["mask"]:
            mask = self._torch.rand(case["b"], 1, case["sq"], case["skv"], device=self._device) < 0.7
            mask[..., 0] = True  # rows that see nothing are NaN in PyTorch's arithmetic

        def call(q, k, v):
            return self._sdpa(q, k, v, attn_mask=mask, is_causal=case["causal"],
                              enable_gqa=case["hq"] != case["hkv"])

        error = self._errors(call, self._make(case), mask=mask, causal=case["causal"])
        return error / TOLERANCES[case["dtype"]]

    def _small(self, grad):
        return self._make(gpu_check_cases.parse("b2 hq4 sq96 d64 bf16" + (" grad" if grad else "")))

    def _causal(self, q, k, v):
        return self._sdpa(q, k, v, is_causal=True)

    def _compile(self):
        # Inductor would need a compiler on this machine, and would run the same operators.
        call = self._torch.compile(self._causal, fullgraph=True, backend="aot_eager")
        return self._errors(call, self._small(grad=True), causal=True) / TOLERANCES["bf16"]

    def _streams(self):
        torch = self._torch
        tensors = self._small(grad=True)

        def call(q, k, v):
            if self._rehearse:
                return self._causal(q, k, v)
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                out = self._causal(q, k, v)
            torch.cuda.current_stream().wait_stream(stream)
            return out

        return self._errors(call, tensors, causal=True) / TOLERANCES["bf16"]

    def _graph(self):
        torch = self._torch
        tensors = self._small(grad=False)
        fresh = [torch.randn_like(x) for x in tensors]
        out = self._causal(*tensors)
        if not self._rehearse:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = self._causal(*tensors)
        for tensor, other in zip(tensors, fresh):
            tensor.copy_(other)
        if self._rehearse:
            out = self._causal(*tensors)
        else:
            graph.replay()
        return self._error(out, self._reference(tensors, causal=True)[1]) / TOLERANCES["bf16"]

    def _layouts(self):
        torch = self._torch
        projection = torch.randn(2, 96, 3, 4, 64, device=self._device).to(torch.bfloat16)
        slices = [x.transpose(1, 2).requires_grad_() for x in projection.unbind(2)]
        heads_last = [x.transpose(1, 2).contiguous().transpose(1, 2).detach().requires_grad_()
                      for x in self._small(grad=False)]
        return max(self._errors(self._causal, tensors, causal=True)
                   for tensors in (slices, heads_last)) / TOLERANCES["bf16"]


if __name__ == "__main__":
    gpu_check_cases.serve(Python, __doc__)
