"""What PyTorch's function takes and refuses, regard.torch takes and refuses."""

import math
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from test_sdpa import make, same
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import regard
import regard.torch
from regard.flash_attn import flash_attn_func

sdpa = regard.torch.scaled_dot_product_attention


def causal_bias(kind, rows, keys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows without keys, where rows > keys
        return (causal_upper_left if kind == "upper_left" else causal_lower_right)(rows, keys)


@pytest.mark.parametrize("kind", ["upper_left", "lower_right"])
@pytest.mark.parametrize("lengths", [(6, 6), (5, 7), (7, 5)])
def test_causal_bias_is_what_its_class_says(kind, lengths):
    q, k, v = make(sq=lengths[0], skv=lengths[1], grad=True)
    bias = causal_bias(kind, *lengths)
    theirs = F.scaled_dot_product_attention(q, k, v, bias)
    seen = bias._materialize().any(-1)  # PyTorch's rows without keys are 0 or NaN
    mine = sdpa(q, k, v, bias)
    same(mine[:, :, seen], theirs[:, :, seen])
    assert not mine[:, :, ~seen].any()
    with regard.torch.install():
        assert torch.equal(F.scaled_dot_product_attention(q, k, v, bias), mine)
    (first,) = torch.autograd.grad(mine[:, :, seen].sum(), q)
    (second,) = torch.autograd.grad(theirs[:, :, seen].sum(), q)
    same(first[:, :, seen], second[:, :, seen])
    same(sdpa(q[0], k[0], v[0], bias), mine[0])
    assert regard.torch.explain(q, k, v, bias).ok


def test_causal_bias_of_other_lengths_and_beside_is_causal():
    q, k, v = make(sq=5, skv=7)
    same(sdpa(q, k, v, causal_upper_left(3, 3)),
         F.scaled_dot_product_attention(q, k, v, causal_upper_left(3, 3)))
    with pytest.raises(ValueError, match="attn_mask"):
        sdpa(q, k, v, causal_lower_right(4, 7))
    with pytest.raises(ValueError, match="CausalBias should not"):
        sdpa(q, k, v, causal_lower_right(5, 7), is_causal=True)


@pytest.mark.parametrize("kind", ["upper_left", "lower_right"])
def test_causal_bias_is_compiled(kind):
    q, k, v = make(sq=5, skv=7)
    expected = sdpa(q, k, v, causal_bias(kind, 5, 7))
    compiled = torch.compile(lambda q, k, v, b: sdpa(q, k, v, b), fullgraph=True, backend="eager")
    same(compiled(q, k, v, causal_bias(kind, 5, 7)), expected)


class Doubled(torch.Tensor):
    """A tensor that means twice its memory, and says so by PyTorch's protocol."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in (sdpa, F.scaled_dot_product_attention):
            args = [2 * x.as_subclass(torch.Tensor) if isinstance(x, Doubled) else x for x in args]
            return function(*args, **(kwargs or {}))
        return super().__torch_function__(function, types, args, kwargs)


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return NotImplemented


def test_subclasses_are_asked():
    q, k, v = make()
    doubled = q.as_subclass(Doubled)
    same(sdpa(doubled, k, v), sdpa(2 * q, k, v))
    with regard.torch.install():
        same(F.scaled_dot_product_attention(doubled, k, v), sdpa(2 * q, k, v))
    with pytest.raises(TypeError):
        sdpa(q, k, v, torch.zeros(9, 13).as_subclass(Refusing))

    class Plain(torch.Tensor):
        pass

    assert type(sdpa(q.as_subclass(Plain), k, v)) is Plain


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_tensors_without_strides_are_named():
    q, k, v = make()
    for turn in (torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr, torch.Tensor.to_mkldnn):
        other, mask = turn(k), turn(torch.randn(9, 13))
        layout = str(other.layout)
        for call, name in ((lambda: sdpa(q, other, v), "key"),
                           (lambda: sdpa(q, k, v, mask), "attn_mask"),
                           (lambda: sdpa(q.clone().requires_grad_(), other, v), "key"),
                           (lambda: flash_attn_func(q, other, v), "k"),
                           (lambda: regard.attention(q, other, v), "k")):
            with pytest.raises(TypeError, match=f"layout of {name} .{layout}. must be torch.str"):
                call()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_8_bit_floats_are_refused_everywhere(dtype):
    tensors = [x.to(dtype) for x in make()]
    x = [x.transpose(1, 2) for x in tensors]
    options = [*regard.torch._options.Options(), "BHSD", "", False]
    for call in (lambda: sdpa(*tensors), lambda: flash_attn_func(*x),
                 lambda: torch.ops.regard.attention(*tensors, *options),
                 lambda: sdpa(*(t.to("meta") for t in tensors))):
        with pytest.raises(ValueError, match=f"{dtype}.*regard.attention"):
            call()
    with regard.torch.exportable(), pytest.raises(ValueError, match="regard.attention"):
        sdpa(*tensors)
    with pytest.raises(Exception, match="regard.attention"):
        torch.compile(sdpa, fullgraph=True, backend="eager")(*tensors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_before_anything_is_checked(dtype):
    q, k, v = make(grad=True)
    bias = torch.randn(9, 13)
    low = v.to(dtype)
    with torch.autocast("cpu", dtype=dtype):
        for mask in (None, bias, bias.to(dtype)):
            mine, theirs = (f(q, k, low, mask) for f in (sdpa, F.scaled_dot_product_attention))
            same(mine, theirs)
        with regard.torch.install():
            same(F.scaled_dot_product_attention(q, k, low), sdpa(q, k, low))
        x, y, z = (t.transpose(1, 2) for t in (q, k, low))
        same(flash_attn_func(x, y, z).transpose(1, 2), sdpa(q, k, low))
        name = "bf16" if dtype == torch.bfloat16 else "f16"
        assert f" {name}" in str(regard.torch.explain(q, k, low))
        double = [t.double() for t in (q, k, v)]
        assert sdpa(*double).dtype == torch.float64
        compiled = torch.compile(lambda *a: sdpa(*a), fullgraph=True, backend="eager")
        same(compiled(q, k, low), sdpa(q, k, low))
    sdpa(q, k, v).sum().backward()
    assert q.grad.dtype == torch.float32


@pytest.mark.parametrize("heads", [(4, 2, 1), (4, 1, 2), (4, 2, 4), (12, 4, 6)])
def test_key_and_value_of_unlike_heads(heads):
    q, k, v = (torch.randn(2, n, 5, 8, requires_grad=True) for n in heads)
    mine, theirs = (f(q, k, v, enable_gqa=True) for f in (sdpa, F.scaled_dot_product_attention))
    same(mine, theirs)
    for a, b in zip(torch.autograd.grad(mine.sum(), (q, k, v)),
                    torch.autograd.grad(theirs.sum(), (q, k, v))):
        same(a, b)


@pytest.mark.parametrize("depths", [(0, 8), (8, 0), (0, 0)])
def test_head_dims_of_zero(depths):
    q, k, v = make(sq=5, skv=7, grad=True)
    q, k, v = q[..., :depths[0]], k[..., :depths[0]], v[..., :depths[1]]
    for x in ((q, k, v), (q[0], k[0], v[0])):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            theirs = F.scaled_dot_product_attention(*x)
        mine = sdpa(*x)
        assert mine.requires_grad
        same(mine, theirs)


def test_dropout_of_almost_nothing_and_almost_all():
    q, k, v = make()
    same(sdpa(q, k, v, dropout_p=1e-9), sdpa(q, k, v))
    assert not sdpa(q, k, v, dropout_p=1 - 1e-9).any()
    assert regard.torch.can_use("math", q, k, v, dropout_p=1.0)


@pytest.mark.parametrize("rows, keys, batch", [(0, 5, 3), (2, 0, 3), (2, 5, 0), (0, 0, 3)])
def test_no_rows_of_more_batch_dimensions(rows, keys, batch):
    q, k = torch.randn(2, batch, 4, rows, 8), torch.randn(2, batch, 4, keys, 8)
    for mask in (None, torch.ones(batch, 1, rows, keys), torch.ones(2, batch, 1, 1, keys) > 0):
        out = sdpa(q.requires_grad_(), k, k, attn_mask=mask)
        assert out.shape == q.shape and (keys or not out.any())
        out.sum().backward()


@pytest.mark.parametrize("keywords, error, word", [
    (dict(is_causal=1), TypeError, r"is_causal \(1\)"),
    (dict(is_causal=None), TypeError, r"is_causal \(None\)"),
    (dict(enable_gqa="x"), TypeError, r"enable_gqa \('x'\)"),
    (dict(dropout_p=None), TypeError, r"dropout_p \(None\)"),
    (dict(dropout_p="a"), TypeError, r"dropout_p \('a'\)"),
    (dict(scale="a"), TypeError, r"scale \('a'\)"),
    (dict(scale=10**400), ValueError, r"scale \(an int\) .*float64"),
    (dict(dropout_p=-(10**5000)), ValueError, r"dropout_p \(an int\) .*float64"),
    (dict(attn_mask=torch.zeros(1, 1, 1, 9, 13)), ValueError, "at most 4 dimensions"),
    (dict(attn_mask=torch.zeros(9, 13, dtype=torch.float64)), ValueError, "torch.float64"),
    (dict(attn_mask=torch.zeros(9, 13, dtype=torch.bfloat16)), ValueError, "torch.bfloat16"),
    (dict(attn_mask=torch.zeros(9, 13, device="meta")), ValueError, "device of attn_mask"),
])
def test_wrong_arguments(keywords, error, word):
    q, k, v = make()
    for grad in (False, True):
        with pytest.raises(error, match=word):
            sdpa(q.requires_grad_(grad), k, v, **keywords)
    if "device" not in word:
        with pytest.raises((error, RuntimeError, OverflowError)):
            F.scaled_dot_product_attention(q.detach(), k, v, **keywords)


def test_numbers_that_pytorch_takes():
    q, k, v = make()
    expected = sdpa(q, k, v, scale=1.0)
    for scale in (1, True, torch.tensor(1.0)):
        same(sdpa(q, k, v, scale=scale), expected)
    same(sdpa(q, k, v, dropout_p=0), sdpa(q, k, v))
    with pytest.raises(TypeError, match="positional"):
        sdpa(q, k, v, None, 0.0, False, 0.5)
    with pytest.raises(ValueError, match="must have heads"):
        sdpa(q[0, 0], k[0, 0], v[0, 0], enable_gqa=True)


def test_tensors_without_memory():
    q, k, v = make(b=2, hq=4, hkv=2)
    meta = [x.to("meta") for x in (q, k, v)]
    out = sdpa(*meta, enable_gqa=True, is_causal=True)
    assert out.is_meta and out.shape == q.shape and out.dtype == q.dtype
    assert sdpa(*meta, enable_gqa=True, dropout_p=0.5).is_meta
    with torch.device("meta"):
        made = torch.randn(2, 4, 9, 16)
        assert sdpa(made, made, made).is_meta
        for keywords in ({}, dict(dropout_p=0.5)):
            grad = q.clone().requires_grad_()
            sdpa(grad, k, v, enable_gqa=True, **keywords).sum().backward()
            assert not grad.grad.is_meta
    wrong = {"head_dim": (q, k[..., :8], v), "batch": (q, k.expand(2, -1, -1, -1)[:1], v),
             "positions|seqlen|length": (q, k, v[:, :, :4])}
    operator = torch.ops.regard.attention
    rest = [*regard.torch._options.Options(), "BHSD", "", False]
    for word, tensors in wrong.items():
        with pytest.raises(ValueError) as eager:
            operator(*tensors, *rest)
        with pytest.raises(ValueError) as fake:
            operator(*(x.to("meta") for x in tensors), *rest)
        assert str(fake.value) == str(eager.value), word
    with pytest.raises(ValueError, match="dtype of v"):
        operator(meta[0], meta[1], meta[2].double(), *rest)
    with pytest.raises(ValueError, match="query's"):
        sdpa(meta[0], k, v)


def test_flash_attn_of_rows_without_keys_and_wrong_types():
    q, k, v = (x.transpose(1, 2) for x in make(sq=13, skv=9))
    out, lse, _ = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert (lse[:, :, :4] == math.inf).all() and torch.isfinite(lse[:, :, 4:]).all()
    assert not out[:, :4].any()
    for keywords, word in [(dict(softcap=None), r"softcap \(None\)"),
                           (dict(dropout_p=None), r"dropout_p \(None\)"),
                           (dict(alibi_slopes=[0.5] * 4), r"alibi_slopes \(list\)")]:
        with pytest.raises(TypeError, match=word):
            flash_attn_func(q, k, v, **keywords)


@pytest.mark.parametrize("base", [regard.torch.ArgumentError, ValueError, RuntimeError])
@pytest.mark.parametrize("call", [
    lambda q: sdpa(q, q, q, dropout_p=2.0),  # found in Python
    lambda q: sdpa(q, q, q[:, :, :2]),  # found by the library
    lambda q: flash_attn_func(q, q, q, dropout_p=2.0),
    lambda q: regard.torch.varlen_attn(q, q, q, None, None, 1, 1),
])
def test_a_wrong_argument_is_an_argument_error(base, call):
    q = torch.ones(1, 2, 3, 4)
    with pytest.raises(base) as caught:
        call(q)
    assert type(caught.value) is regard.torch.ArgumentError
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is regard.torch.ArgumentError and str(copy) == str(caught.value)
