"""What a score or mask function's text means: an evaluator of its own, on tensors of PyTorch.

Written from docs/score_functions.md alone, it shares no code with the library. Real numbers have the dtype
of `score`, ints are int64.
"""

import re

import torch

_TOKEN = re.compile(r"\s*(\d+\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|[a-z_]\w*|//|==|!=|<=|>=|[-+*/%<>&|!()\[\],])")
_LEVELS = [["|"], ["&"], ["==", "!="], ["<", "<=", ">", ">="], ["+", "-"], ["*", "/", "//", "%"]]


class Evaluator:
    """variables: tensors by name, which broadcast against each other; captured: those of r0, i1, ..."""

    def __init__(self, text, variables, captured=(), dtype=torch.float64):
        self.tokens = _TOKEN.findall(text)
        assert "".join(self.tokens) == text.replace(" ", ""), text
        self.variables, self.captured, self.dtype = variables, captured, dtype
        self.at = 0

    def run(self):
        value = self.binary(0)
        assert self.at == len(self.tokens), self.tokens[self.at:]
        return value

    def peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, token=None):
        found = self.peek()
        assert token is None or found == token, (found, token)
        self.at += 1
        return found

    def numbers(self, x, y):
        assert x.dtype != torch.bool and y.dtype != torch.bool
        if x.is_floating_point() == y.is_floating_point():
            return x, y
        return x.to(self.dtype), y.to(self.dtype)

    def binary(self, level):
        if level == len(_LEVELS):
            return self.unary()
        x = self.binary(level + 1)
        while self.peek() in _LEVELS[level]:
            x = self.operate(self.take(), x, self.binary(level + 1))
        return x

    def operate(self, op, x, y):
        if op in "&|":
            assert x.dtype == y.dtype == torch.bool
            return x & y if op == "&" else x | y
        x, y = self.numbers(x, y)
        if op in ("//", "%"):
            assert not x.is_floating_point()
            safe = torch.where(y == 0, 1, y)
            whole = torch.div(x, safe, rounding_mode="floor")
            return torch.where(y == 0, 0, whole if op == "//" else x - whole * safe)
        if op == "/":
            return x.to(self.dtype) / y.to(self.dtype)
        return {"+": torch.add, "-": torch.sub, "*": torch.mul, "<": torch.lt, "<=": torch.le,
                ">": torch.gt, ">=": torch.ge, "==": torch.eq, "!=": torch.ne}[op](x, y)

    def unary(self):
        if self.peek() == "-":
            self.take()
            return -self.unary()
        if self.peek() == "!":
            self.take()
            x = self.unary()
            assert x.dtype == torch.bool
            return ~x
        return self.primary()

    def listed(self, opening, closing):
        self.take(opening)
        args = [self.binary(0)]
        while self.peek() == ",":
            self.take()
            args.append(self.binary(0))
        self.take(closing)
        return args

    def primary(self):
        token = self.peek()
        if token == "(":
            (x,) = self.listed("(", ")")
            return x
        self.take()
        if token[0].isdigit() or token[0] == ".":
            if token.isdigit():
                assert int(token) < 2**31
                return torch.tensor(int(token))
            return torch.tensor(float(token), dtype=self.dtype)
        if token in ("true", "false"):
            return torch.tensor(token == "true")
        if token == "inf":
            return torch.tensor(float("inf"), dtype=self.dtype)
        if re.fullmatch(r"[ri]\d", token):
            return self.gather(token, self.listed("[", "]"))
        if self.peek() == "(":
            return self.call(token, self.listed("(", ")"))
        return self.variables[token]

    def gather(self, name, indices):
        tensor = self.captured[int(name[1:])]
        assert tensor.is_floating_point() == (name[0] == "r"), name
        assert tensor.dim() == len(indices)
        for index, extent in zip(indices, tensor.shape):
            assert not index.is_floating_point() and index.dtype != torch.bool
            assert index.min() >= 0 and index.max() < extent, f"{name}: index out of range"
        return tensor[tuple(torch.broadcast_tensors(*indices))].to(
            self.dtype if name[0] == "r" else torch.int64)

    def call(self, name, args):
        if name == "where":
            condition, x, y = args
            if x.dtype != torch.bool:
                x, y = self.numbers(x, y)
            return torch.where(condition, x, y)
        if name in ("min", "max"):
            x, y = self.numbers(*args)
            return (torch.minimum if name == "min" else torch.maximum)(x, y)
        (x,) = args
        if name == "abs":
            return x.abs()
        x = x.to(self.dtype)
        if name == "int":
            return torch.where(x.isnan(), 0, x.clamp(-2.0**31, 2.0**31 - 1)).to(torch.int64)
        return {"exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "tanh": torch.tanh,
                "sigmoid": torch.sigmoid}[name](x)


def evaluate(text, score, captured=()):
    """The function of every element of score [B,H,Q,K], of one length for all sequences."""
    batch, heads, queries, keys = score.shape
    variables = {
        "score": score, "b": torch.arange(batch).view(-1, 1, 1, 1), "h": torch.arange(heads).view(-1, 1, 1),
        "q_idx": torch.arange(queries).view(-1, 1), "kv_idx": torch.arange(keys),
        "q_pos": torch.arange(queries).view(-1, 1), "q_len": torch.tensor(queries),
        "kv_len": torch.tensor(keys)}
    value = Evaluator(text, variables, captured, score.dtype).run()
    return value.expand(score.shape)
