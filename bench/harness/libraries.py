"""How each library is called: <library>_call(case, sets, ...) returns call(i), which computes set i
and returns its output, or raises Refused with the reason. Only who takes part is imported."""

from .tensors import contiguous, visibility


class Refused(Exception):
    """The library, or this script's use of it, cannot run the case; says why."""


def is_rectangular_br(case):
    return case.causal and case.diagonal == "br" and case.seqlen_q != case.seqlen_kv


def as_torch(array):
    import numpy as np
    import torch

    if array.dtype.name == "bfloat16":  # NumPy's bf16 is ml_dtypes', which torch does not know
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def torch_call(case, sets, threads, math_backend=False):
    """PyTorch's own choice of backend (on CPUs FLASH where it can), or its unfused MATH."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.set_num_threads(threads)
    if case.backward:
        return torch_backward_call(case, sets, math_backend)
    torch.set_grad_enabled(False)  # a scope in each call would cost as much as a small problem
    mask = torch.from_numpy(visibility(case)) if is_rectangular_br(case) else None
    options = {"attn_mask": mask, "is_causal": case.causal and mask is None,
               "enable_gqa": case.num_heads_q != case.num_heads_kv}
    tensors = [tuple(map(as_torch, qkv)) for qkv in sets]
    attend = torch.nn.functional.scaled_dot_product_attention

    def unfused(i):
        with sdpa_kernel(SDPBackend.MATH):
            return attend(*tensors[i], **options)

    return unfused if math_backend else lambda i: attend(*tensors[i], **options)


def torch_backward_call(case, sets, math_backend):
    """The gradients of q, k and v by autograd; the forward runs once, outside of the calls."""
    import contextlib
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if is_rectangular_br(case):
        raise Refused("a backward of a rectangle is not measured")
    torch.set_grad_enabled(True)
    scope = sdpa_kernel(SDPBackend.MATH) if math_backend else contextlib.nullcontext()
    graphs = []
    for tensors in sets:
        q, k, v, d_out = map(as_torch, tensors)
        inputs = [x.requires_grad_(True) for x in (q, k, v)]
        with scope:
            out = torch.nn.functional.scaled_dot_product_attention(
                *inputs, is_causal=case.causal,
                enable_gqa=case.num_heads_q != case.num_heads_kv)
        graphs.append((out, inputs, d_out))

    def call(i):
        out, inputs, d_out = graphs[i]
        return torch.autograd.grad(out, inputs, d_out, retain_graph=True)

    return call


def torch_math_call(case, sets, threads):
    return torch_call(case, sets, threads, math_backend=True)


def onnxruntime_call(case, sets, threads):
    """The Attention operator of opset 23 on contiguous [B,H,S,D], the order it takes."""
    import onnxruntime
    from onnx import TensorProto, helper

    if case.dtype != "f32":
        raise Refused("its CPU kernel computes f32")
    if is_rectangular_br(case) or (case.causal and case.seqlen_q != case.seqlen_kv):
        raise Refused("is_causal of a rectangle is not measured")
    feeds = [{n: contiguous(t) for n, t in zip("qkv", qkv)} for qkv in sets]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, feeds[0][n].shape) for n in "qkv"]
    shape = [case.batch, case.num_heads_q, case.seqlen_q, case.head_dim_v]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    node = helper.make_node("Attention", list("qkv"), ["y"], is_causal=int(case.causal))
    model = helper.make_model(helper.make_graph([node], "attention", inputs, [output]),
                              opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options,
                                           providers=["CPUExecutionProvider"])
    return lambda i: session.run(None, feeds[i])[0]


def openvino_call(case, sets, threads):
    """f32 inputs on contiguous [B,H,S,D]; for bf16 and f16 its precision hint, which it follows
    where the CPU has the instructions."""
    import numpy as np
    import openvino
    from openvino import opset13

    if case.num_heads_q != case.num_heads_kv:
        raise Refused("its operator has no grouped heads")
    if case.dtype == "f64":
        raise Refused("f64 is not measured")
    arrays = [[contiguous(t, np.float32) for t in qkv] for qkv in sets]
    if is_rectangular_br(case):
        arrays = [qkv + [visibility(case)] for qkv in arrays]
    inputs = [opset13.parameter(a.shape, a.dtype) for a in arrays[0]]
    causal = case.causal and len(inputs) == 3
    node = opset13.scaled_dot_product_attention(*inputs, causal=causal)
    config = {"INFERENCE_NUM_THREADS": str(threads), "PERFORMANCE_HINT": "LATENCY",
              "INFERENCE_PRECISION_HINT": case.dtype}
    compiled = openvino.compile_model(openvino.Model([node], inputs, "attention"), "CPU", config)
    request = compiled.create_infer_request()
    request.infer(arrays[0])

    def call(i):
        # One set stays bound in the request, without a copy a run; several are passed each time.
        found = request.infer() if len(arrays) == 1 else request.infer(arrays[i])
        return next(iter(found.values()))

    call.ran = "precision " + str(compiled.get_property("INFERENCE_PRECISION_HINT"))
    return call


def ggml_call(case, sets, threads):
    """Its flash attention on an f16 cache, which it reads in any layout."""
    from . import ggml

    if case.dtype != "f16":
        raise Refused("measured with the f16 cache that llama.cpp keeps")
    if case.causal:
        raise Refused("measured without a mask")
    return ggml.FlashAttention(sets, threads)


def regard_call(case, sets, backend, max_error):
    """regard.attention on the NumPy arrays as they lie in memory. Threads and ISA are the
    environment's, read when the module is imported."""
    try:
        import regard
    except ImportError as error:
        raise Refused(f"not installed: {error}") from error

    # Only what differs from the defaults, as one calls it: words cost time too.
    options = {"is_causal": True} if case.causal else {}
    options |= {"backend": backend} if backend else {}
    options |= {"policy": regard.Policy(max_error=max_error)} if max_error is not None else {}
    if case.causal and case.seqlen_q != case.seqlen_kv:
        options["diagonal"] = {"tl": "top_left", "br": "bottom_right"}[case.diagonal]
    if case.backward:
        return regard_backward_call(sets, options)
    selection = regard.explain(*sets[0], **options)
    if not selection.ok:
        raise Refused("; ".join(str(r) for r in selection.refusals if r.backend == backend)
                      or "no backend can run it")
    attention = regard.attention

    def call(i):
        return attention(*sets[i], **options)

    call.ran = selection.plan["kernel"]
    call.workspace_bytes = selection.plan["workspace_bytes"]
    return call


def regard_backward_call(sets, options):
    """regard.attention_backward; the forward runs once, outside of the calls."""
    import regard

    forwards = [regard.attention(*tensors[:3], return_saved=True, **options) for tensors in sets]
    for known in ("backend", "policy"):  # to what was saved
        options.pop(known, None)

    def call(i):
        q, k, v, d_out = sets[i]
        out, saved = forwards[i]
        found = regard.attention_backward(d_out, q, k, v, out, saved, **options)
        return found.d_q, found.d_k, found.d_v

    call.ran = str(forwards[0][1].backend)
    return call


def make_call(entrant, case, sets, threads):
    """call(i) of an entrant in this process."""
    if case.backward and entrant.library not in ("torch", "torch_math", "regard"):
        raise Refused("it has no backward here")
    if entrant.library == "regard":
        return regard_call(case, sets, entrant.backend, entrant.max_error)
    makers = {"torch": torch_call, "torch_math": torch_math_call, "ggml": ggml_call,
              "onnxruntime": onnxruntime_call, "openvino": openvino_call}
    try:
        return makers[entrant.library](case, sets, threads)
    except (Refused, ImportError):
        raise
    except Exception as error:  # whatever a peer throws at a case that it does not take
        raise Refused(str(error).strip().splitlines()[0] if str(error) else repr(error)) from error
