"""Three exports of one attention: regard's operator, plain ATen operators, ONNX.

    python export_model.py
"""

import torch

import regard.onnx
import regard.torch


class Attention(torch.nn.Module):
    def forward(self, q, k, v):
        return regard.torch.scaled_dot_product_attention(q, k, v, is_causal=True)


def operators(program):
    return sorted({str(n.target) for n in program.graph.nodes if n.op == "call_function"})


q, k, v = (torch.randn(2, 4, 10, 16) for _ in range(3))
batch, rows = torch.export.Dim("batch"), torch.export.Dim("rows")
shapes = ({0: batch, 2: rows},) * 3
model = Attention()

program = torch.export.export(model, (q, k, v), dynamic_shapes=shapes)
print("for programs that have regard:", [o for o in operators(program) if "regard" in o])

with regard.torch.exportable():  # MATH, as operators that every PyTorch has
    plain = torch.export.export(model, (q, k, v), dynamic_shapes=shapes)
print("for all others:", len(operators(plain)), "kinds of ATen operators")
assert not any("regard" in name for name in operators(plain))

other = [torch.randn(3, 4, 25, 16) for _ in range(3)]  # sizes that were not traced
for exported in (program, plain):
    assert torch.allclose(exported.module()(*other), model(*other), atol=1e-5)

graph = regard.onnx.export_attention("hq4 sq10 d16 causal diag=tl")
print("ONNX:", [node.op_type for node in graph.graph.node])
fused = regard.onnx.export_attention("hq4 sq10 d16 causal diag=tl", fused=True)
print("ONNX, fused:", [node.op_type for node in fused.graph.node])
