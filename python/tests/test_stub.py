"""_core.pyi, which is written by hand, says what the compiled module has: no more, no less.

nanobind's generator would write `(*args, **kwargs)` for the functions that take their arguments
themselves.
"""

import ast
import inspect
import pathlib

import numpy
import pytest

import regard
from regard import _core

STUB, TYPES = (ast.parse(pathlib.Path(regard.__file__).with_name(name).read_text())
               for name in ("_core.pyi", "_types.pyi"))
# Of overloads the last, which takes every call.
FUNCTIONS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
with regard.trace() as traced:
    regard.attention(*[numpy.zeros((1, 1, 1, 1), numpy.float32)] * 3)
EXAMPLES = {"BlockMask": regard.create_block_mask("q_idx<3", seqlen_q=1, seqlen_kv=1),
            "Lengths": regard.Lengths(seqlens=[1], seqlen=1), "Policy": _core.Policy(),
            "Saved": regard.Saved(stats=[[[[0.0, 1.0]]]]),
            "RankPlan": _core.plan_ranks(*[numpy.zeros((1, 1, 1, 1), "f4")] * 3, rank=0, ranks=1, seqlens=(1, 1),
                                         layout="contiguous", cu_seqlens=[], comm="auto", topology=(1, 1), timeout=1.0,
                                         max_bytes=1, needs_grad=False, keywords={}),
            "Measurement": _core.plan_benchmark(*[numpy.zeros((1, 1, 1, 1), "f4")] * 3),
            "Scopes": _core.with_scope(None, _core.Policy(), False),
            "TracedCall": traced.records[0], "Recording": _core.Recording()}


def parameters(node):
    """[(name, may be given by position, has a default)] of a function of a stub."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    first = len(positional) - len(arguments.defaults)
    found = [(argument.arg, True, n >= first) for n, argument in enumerate(positional)]
    return found + [(argument.arg, False, default is not None) for argument, default in
                    zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]


def real_parameters(function):
    if hasattr(function, "__nb_signature__"):
        (signature, *_), = function.__nb_signature__
        return parameters(ast.parse(signature.replace("\\", "_") + ": ...").body[0])
    return [(p.name, p.kind != p.KEYWORD_ONLY, p.default is not p.empty)
            for p in inspect.signature(function).parameters.values()]


def test_names():
    said = {node.target.id for node in STUB.body if isinstance(node, ast.AnnAssign)}
    said |= set(FUNCTIONS) | set(CLASSES)
    real = {name for name in vars(_core) if not name.startswith("_")} | {"__version__"}
    assert said == real


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters(name):
    assert parameters(FUNCTIONS[name]) == real_parameters(getattr(_core, name))


def test_overloads_of_attention_take_its_parameters():
    """Each names the return_* keywords itself, and the others by AttentionOptions."""
    options = next(node for node in TYPES.body
                   if isinstance(node, ast.ClassDef) and node.name == "AttentionOptions")
    types = {node.target.id: ast.unparse(node.annotation) for node in options.body
             if isinstance(node, ast.AnnAssign)}
    *overloads, last = [node for node in STUB.body
                        if isinstance(node, ast.FunctionDef) and node.name == "attention"]
    assert len(overloads) == 16
    every = {argument.arg: ast.unparse(argument.annotation) for argument in last.args.kwonlyargs}
    for overload in overloads:
        own = {argument.arg for argument in overload.args.kwonlyargs}
        assert own == {"return_lse", "return_scores", "return_saved"}
        assert ast.unparse(overload.args.kwarg.annotation) == "Unpack[AttentionOptions]"
        assert types == {name: every[name] for name in every if name not in own}


@pytest.mark.parametrize("name", CLASSES)
def test_members(name):
    members = [node.name for node in CLASSES[name].body if isinstance(node, ast.FunctionDef)]
    for member in members:
        assert hasattr(EXAMPLES[name], member), member
    real = {x for x in vars(getattr(_core, name)) if not x.startswith("_")}
    assert real <= set(members)


def test_fields_of_a_policy():
    made = next(node for node in CLASSES["Policy"].body if node.name == "__init__")
    assert [name for name, _, _ in parameters(made)][1:] == list(_core.Policy().to_dict())
