#!/usr/bin/env python3
"""regard.torch on a device's tensors beside PyTorch's own arithmetic in float64, with autograd."""

import math

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
        self._attention_with_kvcache = regard_torch.attention_with_kvcache

    def __call__(self, item):
        words = item["case"]
        case = gpu_check_cases.parse(words)
        special = {"compile": self._compile, "streams": self._streams, "graph": self._graph,
                   "layouts": self._layouts, "cache": lambda: self._cache(words)}.get(words.split(":")[0])
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

    def _cache(self, words):
        """A cache in pages of bf16 or of codes with a scale for each row, to which rows are appended."""
        torch = self._torch
        dtype = next((made for name, made in (("i8", torch.int8), ("f8e4m3", torch.float8_e4m3fn))
                      if name in words.split()), torch.bfloat16)
        lengths, new, page_size = [90, 0, 33], 2, 16
        pages = -(-(max(lengths) + new) // page_size)
        table = torch.randperm(len(lengths) * pages).reshape(len(lengths), pages).int()
        for b, length in enumerate(lengths):
            table[b, -(-(length + new) // page_size):] = -1
        cache, options = {}, {}
        for name in "kv":
            rows = torch.randn(len(lengths) * pages, 2, page_size, 64)
            if dtype != torch.bfloat16:
                rows = (rows * 20).round().clamp(-100, 100)
                options[f"scales_{name}"] = (torch.rand(rows.shape[:3]) * 0.03 + 0.03).to(self._device)
            cache[name] = rows.to(dtype).to(self._device)
        q, *appended = (torch.randn(len(lengths), heads, new, 64, device=self._device).bfloat16()
                        for heads in (4, 2, 2))
        before = [self._numbers_of_cache(cache, options, name) for name in "kv"]
        out = self._attention_with_kvcache(
            q, cache["k"], cache["v"], seqlens_kv=torch.tensor(lengths, dtype=torch.int32, device=self._device),
            k_new=appended[0], v_new=appended[1], page_table=table.to(self._device), is_causal=True, **options)
        after = [self._numbers_of_cache(cache, options, name) for name in "kv"]
        for was, has, rows in zip(before, after, appended):
            if not self._holds(was, has, rows, table, lengths, dtype):
                return math.inf
        return max(self._error(out[b], self._over_pages(q[b], after, table[b], length + new))
                   for b, length in enumerate(lengths)) / TOLERANCES["bf16"]

    @staticmethod
    def _numbers_of_cache(cache, options, name):
        """What the rows of all pages stand for, in float64."""
        rows = cache[name].double()
        scales = options.get(f"scales_{name}")
        return rows.clone() if scales is None else rows * scales.double()[..., None]

    def _holds(self, was, has, rows, table, lengths, dtype):
        """Whether the new rows, quantised, lie behind those of their sequences, and all others are as before."""
        torch = self._torch
        page_size = was.shape[2]
        was = was.clone()
        for b, length in enumerate(lengths):
            for i in range(rows.shape[2]):
                page, slot = table[b, (length + i) // page_size].item(), (length + i) % page_size
                written, given = has[page, :, slot], rows[b, :, i].double()
                largest = given.abs().amax(-1, keepdim=True)
                # Half a code of i8; of e4m3 half of its last bit, and of the smallest where that is more.
                apart = {torch.int8: largest / 254, torch.bfloat16: 0 * largest}.get(
                    dtype, given.abs() / 16 + largest / 448 / 1024)
                if ((written - given).abs() > apart * 1.001).any():
                    return False
                was[page, :, slot] = written
        return bool((was == has).all())

    @staticmethod
    def _over_pages(q, caches, pages, rows):
        """A sequence's attention, its last query at its last row, in float64."""
        k, v = (x[pages[pages >= 0].long()].transpose(0, 1).flatten(1, 2)[:, :rows]
                .repeat_interleave(q.shape[0] // x.shape[1], 0) for x in caches)
        scores = q.double() @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        hidden = scores.new_ones(scores.shape[-2:]).triu(rows - q.shape[-2] + 1).bool()
        return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


if __name__ == "__main__":
    gpu_check_cases.serve(Python, __doc__)
