"""What the ranks of test_context_parallel*.py run: functions of (rank, size, ...), which assert."""

import contextlib
import gc
import itertools
import json
import threading
import weakref

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.attention import SDPBackend

import regard.flash_attn
import regard.torch
from regard.torch._call import attend
from regard.torch._options import Options

shard, unshard = regard.torch.context_parallel_shard, regard.torch.context_parallel_unshard
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2}  # as one rank's, of values near 1


def make(length, heads_q=4, heads_kv=2, dim=8, dtype=torch.float64, batch=2, length_kv=None):
    """q, k and v, the same on every rank."""
    numbers = torch.Generator().manual_seed(length * 31 + heads_q)
    return [torch.randn(batch, heads, n, dim, generator=numbers, dtype=torch.float64).to(dtype)
            for heads, n in ((heads_q, length), (heads_kv, length_kv or length), (heads_kv, length_kv or length))]


def mesh_of(size, comm):
    """Two groups where heads are divided within groups."""
    if comm != "a2a+p2p":
        return init_device_mesh("cpu", (size,))
    return init_device_mesh("cpu", (size // 2, 2))


def compare(call, tensors, mesh, dims=(2, 2, 2), d_out_dim=2, reference=None, **scope):
    """Forward and gradients of this rank's part against one rank's; returns the error over the tolerance."""
    of_layout = {name: scope[name] for name in ("layout", "cu_seqlens") if name in scope}
    whole = [x.clone().requires_grad_() for x in tensors]
    expected = (reference or call)(*whole)
    d_out = torch.randn(expected.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    d_out = d_out.to(expected.dtype)
    expected.backward(d_out)
    parts = [shard(x, mesh, dim, **of_layout).clone().requires_grad_() for x, dim in zip(tensors, dims)]
    with regard.torch.context_parallel(mesh, **scope):
        out = call(*parts)
    assert out.dtype == expected.dtype
    out.backward(shard(d_out, mesh, d_out_dim, **of_layout))
    worst = 0.0
    for got, want, dim in ((out, expected, d_out_dim), *((p.grad, w.grad, d) for p, w, d in zip(parts, whole, dims))):
        want = shard(want, mesh, dim, **of_layout)
        assert got.shape == want.shape
        if got.numel():
            error = (got - want).abs().double() / (1 + want.abs().double())
            assert not error.isnan().any()
            worst = max(worst, error.max().item() / TOLERANCE[got.dtype])
    return worst


def grid(rank, size, comms, layouts):
    """Masks, types, grouped heads, lengths, windows: errors over the tolerance by case."""
    errors = {}
    meshes = {comm: mesh_of(size, comm) for comm in comms}
    cases = itertools.product(comms, layouts, (False, True), ((61, 4, 2), (16 * size, 4, 4)))
    for comm, layout, is_causal, (length, heads_q, heads_kv) in cases:
        def call(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)  # noqa: B023

        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            scope = {"comm": comm, "layout": layout}
            if layout == "per_document":
                scope["cu_seqlens"] = [0, length]
            tensors = make(length, heads_q, heads_kv, dtype=dtype)
            errors[comm, layout, is_causal, length, str(dtype)] = compare(call, tensors, meshes[comm], **scope)
    return errors


def windows(rank, size, comms):
    """Windows, softcap, ALiBi and lse by flash-attn's function, of [batch, positions, heads, head_dim]."""
    errors = {}
    for comm, window, causal in itertools.product(comms, ((7, 0), (5, 9), (-1, -1)), (False, True)):
        def call(q, k, v):
            return regard.flash_attn.flash_attn_func(q, k, v, causal=causal, window_size=window,  # noqa: B023
                                                     softcap=2.0)

        tensors = [x.transpose(1, 2) for x in make(53)]
        errors[comm, window, causal] = compare(call, tensors, mesh_of(size, comm), (1, 1, 1), 1, comm=comm,
                                               layout="zigzag")
    return errors


def documents(rank, size, comms):
    """Packed sequences: each document attends to itself."""
    starts, errors = [0, 5, 5, 30, 64, 71], {}
    for comm, layout, is_causal in itertools.product(comms, ("contiguous", "zigzag", "per_document"), (False, True)):
        def call(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)  # noqa: B023

        def alone(q, k, v):
            parts = [call(*(x[:, :, a:b] for x in (q, k, v))) for a, b in zip(starts, starts[1:]) if a < b]  # noqa: B023
            return torch.cat(parts, 2)

        errors[comm, layout, is_causal] = compare(call, make(71, batch=1), mesh_of(size, comm), reference=alone,
                                                  comm=comm, layout=layout, cu_seqlens=torch.tensor(starts))
    return errors


def dropout(rank, size, comms):
    """The mask of one rank, whatever the layout, with the seed that rank 0 draws."""
    errors = {}
    for comm, layout, is_causal in itertools.product(comms, ("contiguous", "zigzag"), (False, True)):
        def seeded(seed):
            def call(q, k, v):
                torch.manual_seed(seed)
                return regard.torch.scaled_dot_product_attention(q, k, v, dropout_p=0.3, is_causal=is_causal,  # noqa: B023
                                                                 enable_gqa=True)
            return call

        errors[comm, layout, is_causal] = compare(seeded(7 + rank), make(61), mesh_of(size, comm), reference=seeded(7),
                                                  comm=comm, layout=layout)
    return errors


def sinks(rank, size, comms):
    """Sinks join once, and the sum of the ranks' gradients is that of one rank."""
    errors = {}
    for comm in comms:
        logits = [torch.tensor([0.5, -1.0, 2.0, 0.0]).requires_grad_() for _ in range(2)]

        def call(q, k, v):
            options = Options(sinks=logits[0 if q.shape[2] == 53 else 1], is_causal=True)  # noqa: B023
            return attend(q, k, v, options)[0]

        errors[comm] = compare(call, make(53), mesh_of(size, comm), comm=comm, layout="zigzag")
        of_one, of_ranks = (x.grad for x in logits)
        summand = logits[0].detach().requires_grad_()  # of this rank's rows: other rows of d_out are 0
        d_out = torch.zeros(2, 4, 53, 8, dtype=torch.float64)
        rows = shard(torch.arange(53), mesh_of(size, comm), 0, "zigzag")
        d_out[:, :, rows] = torch.randn(d_out.shape, generator=torch.Generator().manual_seed(5),
                                        dtype=torch.float64)[:, :, rows]
        attend(*make(53), Options(sinks=summand, is_causal=True))[0].backward(d_out)
        errors[comm, "summand"] = ((of_ranks - summand.grad).abs().max() / of_one.abs().max()).item() / 1e-6
        dist.all_reduce(of_ranks)
        errors[comm, "sinks"] = ((of_ranks - of_one).abs().max() / of_one.abs().max()).item() / 1e-6
    return errors


def eight_bits(rank, size, comms):
    """fp8_autocast: the numbers of one rank with the same recipe, over steps of a history; keys travel in 8 bits."""
    errors = {}
    for comm, recipe, dtype in itertools.product(comms, (regard.fp8.DelayedScaling, regard.fp8.Float8CurrentScaling),
                                                 (torch.float32, torch.bfloat16)):
        recipes = [recipe(), recipe()]  # of one rank and of all

        def call(q, k, v):
            with regard.torch.fp8_autocast(recipes[q.shape[2] < 61]):  # noqa: B023
                return regard.torch.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        for step, factor in enumerate((0.5, 1.0, 0.25)):  # in the second step a history is too small
            tensors = [factor * x for x in make(61, dtype=dtype)]
            errors[comm, recipe.__name__, str(dtype), step] = compare(call, tensors, mesh_of(size, comm), comm=comm,
                                                                      layout="zigzag")
            for each in recipes:
                each.advance()
    return errors


def eight_bit_messages(rank, size):
    """Keys travel in 8 bits, and all ranks have the scales of the largest number of any."""
    link, sent = regard.torch._group.Communicator, []
    begin = link.isend
    link.isend = lambda self, peer, tag, data: sent.append((tag, data.nbytes)) or begin(self, peer, tag, data)
    mesh = mesh_of(size, "p2p")
    q, k, v = (shard(x, mesh, 2) for x in make(8 * size, 2, 2, 16, torch.float32, batch=1))
    recipe = regard.fp8.DelayedScaling(amax_history_len=4, reduce_amax=False)
    for _ in range(2):
        sent.clear()
        with regard.torch.context_parallel(mesh, comm="p2p"), regard.torch.fp8_autocast(recipe):
            F.scaled_dot_product_attention(*(x * (1 + 7 * (rank == 0)) for x in (q, k, v)))
        assert [count for tag, count in sent if tag >= 16] == [2 * 2 * 8 * 16] * (size - 1)  # kKeysTag
        recipe.advance()
    scales = [None] * size
    dist.all_gather_object(scales, [float(state.scale) for state in recipe._calls()[0].tensors.values()])
    assert all(each == scales[0] for each in scales), scales
    assert scales[0][0] != 1.0


def eight_bit_lifetimes(rank, size):
    """What a call keeps for its gradients is freed with its results, without the collector of cycles."""
    mesh = mesh_of(size, "p2p")
    q, k, v = (shard(x, mesh, 2).requires_grad_() for x in make(8 * size, dtype=torch.float32))
    gc.disable()
    with regard.torch.context_parallel(mesh, comm="p2p"), regard.torch.fp8_autocast(regard.fp8.DelayedScaling()):
        out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    freed = [weakref.ref(out), weakref.ref(out.grad_fn)]
    del out
    assert [each() for each in freed] == [None, None]


def parts(rank, size):
    """Shards partition every length, and unshard is their inverse."""
    mesh, group = mesh_of(size, "p2p"), dist.group.WORLD
    for length, layout in itertools.product((0, 1, size - 1, size, 2 * size + 1, 61), regard.torch._shards.LAYOUTS):
        starts = [0, length // 3, length // 2, length] if layout == "per_document" else None
        whole = torch.arange(length * 3).reshape(3, length)
        own = shard(whole, group, 1, layout, starts)
        assert torch.equal(own, shard(whole, mesh, -1, layout, starts))
        back = unshard(own, mesh, 1, layout, starts)
        assert torch.equal(back, whole), (length, layout)
        positions = shard(torch.arange(length), mesh, 0, layout, starts)
        assert torch.equal(own[0], positions)
    x = torch.randn(4, 6 * size, dtype=torch.bfloat16, requires_grad=True)
    assert torch.equal(unshard(shard(x, mesh, layout="zigzag"), mesh, layout="zigzag"), x.detach()) or rank != 0
    shard(x, mesh).sum().backward()
    assert x.grad.sum() == 4 * 6
    with _raises("lengths of dimension 1"):
        unshard(torch.zeros(2, 3 + 2 * rank), mesh)
    with _raises("tensor of rank"):
        unshard(torch.zeros(2, 3, 1 + rank), mesh)


def traffic(rank, size, comm, layout, backward, chunk):
    """Messages and bytes of this rank's call, without those in which ranks agree; and their number in pieces of
    `chunk` bytes at most, with the same result."""
    link, sent = regard.torch._group.Communicator, []
    begin = link.isend

    def counted(self, peer, tag, data):
        if tag != 2:  # kAgreementTag
            sent.append(data.nbytes)
        return begin(self, peer, tag, data)

    link.isend = counted
    tensors = [shard(x, dist.group.WORLD, 2, layout).requires_grad_(backward) for x in make(16 * size, 4, 2, 8, batch=1)]
    results = []
    for limit in (1 << 31, chunk):
        regard.torch._rank_call.MAX_MESSAGE = limit
        with regard.torch.context_parallel(mesh_of(size, comm), comm=comm, layout=layout):
            out = F.scaled_dot_product_attention(*tensors, is_causal=True, enable_gqa=True)
        if backward:
            sent.clear()
            out.sum().backward()
        results.append((len(sent), sum(sent), max(sent, default=0), out.detach()))
        sent.clear()
    assert torch.equal(results[0][3], results[1][3]) and results[0][1] == results[1][1]
    assert results[1][2] <= chunk and results[1][0] >= results[0][0]
    return results[0][:2]


def network(rank, size):
    """comm="auto" measures the group once, the same on every rank; a network that is given is used."""
    mesh, scope = mesh_of(size, "p2p"), regard.torch.context_parallel
    begun, measure = [], regard._core.measure_network
    regard._core.measure_network = lambda *args, **keywords: begun.append(1) or measure(*args, **keywords)
    q, k, v = (shard(x, mesh, 2) for x in make(64 * size, dtype=torch.float32))

    def text(**keywords):
        with scope(mesh, **keywords) as opened:
            F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return opened.explain()

    first = text()
    assert begun == [1] and "(measured)" in first, first
    assert text().split("\n")[1] == first.split("\n")[1] and begun == [1]
    assert "us a message" in text(comm="p2p") and "(assumed)" in text(comm="p2p")
    assert "network 1e+06 us a message, 1e+03 GB/s (given)" in text(network=(1.0, 1e12))
    with scope(mesh, network=(1.0, 1e12)) as slow, _raises("explain() must follow", RuntimeError):
        slow.explain()
    with _raises("network ((1.0,))"):
        scope(mesh, network=(1.0,))
    with scope(mesh, network=(1.0, 1e9 + rank)), _raises("network=(1.0, 1000000001.0"):
        F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    return first


def activities(rank, size):
    """A trace has each step of a ring, forward and backward; without one nothing is recorded."""
    mesh = mesh_of(size, "p2p")
    q, k, v = (shard(x, mesh, 2).requires_grad_() for x in make(64 * size, 4, 4, dtype=torch.float32))

    def call():
        with regard.torch.context_parallel(mesh, comm="p2p"):
            F.scaled_dot_product_attention(q, k, v).sum().backward()

    call()
    with regard.trace() as trace:
        call()
    made = [(a.direction, a.step, a.kind) for a in trace.rank_activities]
    ring = [(f"{step + 1} of p2p", kind) for step in range(size) for kind in ("computing", "waiting")][:-1]
    assert made == [(direction, *each) for direction in ("forward", "backward")
                    for each in (ring if direction == "forward" else [*ring, ("gradients of keys", "waiting")])], made
    assert all(a.rank == rank and 0 <= a.begin <= a.end for a in trace.rank_activities)
    assert f"rank {rank}: computing " in trace.summary()
    assert len(json.loads(trace.to_json())["rank_activities"]) == len(made)


@contextlib.contextmanager
def _raises(words, kind=ValueError):
    try:
        yield
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"nothing raised; expected {words!r}")


def scopes(rank, size):
    """Scopes hold for their thread, nest, and leave PyTorch's function as it was."""
    before = F.scaled_dot_product_attention
    q, k, v = make(8 * size, 2, 2, dtype=torch.float32)
    mesh = mesh_of(size, "p2p")
    whole = before(q, k, v)
    mine = [shard(x, mesh, 2) for x in (q, k, v)]
    local = before(*mine)
    seen = []
    with regard.torch.context_parallel(mesh):
        outer = F.scaled_dot_product_attention(*mine)
        thread = threading.Thread(target=lambda: seen.append(F.scaled_dot_product_attention(*mine)))
        thread.start()
        thread.join()
        zigzag = [shard(x, mesh, 2, "zigzag") for x in (q, k, v)]
        with regard.torch.context_parallel(mesh, layout="zigzag"), regard.torch.install():
            inner = F.scaled_dot_product_attention(*zigzag)
        again = F.scaled_dot_product_attention(*mine)
    assert F.scaled_dot_product_attention is before
    torch.testing.assert_close(outer, shard(whole, mesh, 2))
    torch.testing.assert_close(inner, shard(whole, mesh, 2, "zigzag"))
    assert torch.equal(outer, again)
    torch.testing.assert_close(seen[0], local)
    first, second = regard.torch.context_parallel(mesh), regard.torch.context_parallel(mesh, layout="zigzag")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # in another order, as tasks of one thread may end
    torch.testing.assert_close(F.scaled_dot_product_attention(*zigzag), inner)
    second.__exit__(None, None, None)
    assert F.scaled_dot_product_attention is before
    with _raises("inner", RuntimeError), regard.torch.context_parallel(mesh):
        raise RuntimeError("inner")
    assert F.scaled_dot_product_attention is before


def compiled(rank, size):
    """A graph break, and the same numbers, also of a function compiled outside of the scope."""
    mesh = mesh_of(size, "p2p")
    tensors = make(5 * size, 2, 2, dtype=torch.float64)

    @torch.compile(backend="aot_eager")
    def layer(q, k, v):
        return F.scaled_dot_product_attention(q * 2, k, v, is_causal=True) + 1

    def plain(q, k, v):
        return F.scaled_dot_product_attention(q * 2, k, v, is_causal=True) + 1

    local = [shard(x, mesh, 2) for x in tensors]
    torch.testing.assert_close(layer(*local), plain(*local))
    error = compare(layer, tensors, mesh, reference=plain)
    torch.testing.assert_close(layer(*local), plain(*local))
    return error


def refusals(rank, size):
    """What ranks cannot compute together is refused by name, before a message."""
    mesh, scope = mesh_of(size, "p2p"), regard.torch.context_parallel
    q, k, v = make(4, 2, 2, dtype=torch.float32)
    with _raises("comm ('ring')"):
        scope(mesh, comm="ring")
    with _raises("layout ('striped')"):
        scope(mesh, layout="striped")
    with _raises("timeout (0)"):
        scope(mesh, timeout=0)
    with _raises("cu_seqlens (None)"):
        scope(mesh, layout="per_document")
    with _raises("two dimensions"):
        scope(mesh, comm="a2a+p2p")
    with _raises("mesh (int)", TypeError):
        scope(3)
    with scope(mesh):
        for mask in (torch.ones(4, 4, dtype=torch.bool), torch.zeros(4, 4)):
            with _raises("attn_mask (a tensor)"):
                F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        with _raises("flex_attention"):
            regard.torch.flex_attention(q, k, v)
        with _raises("attention_padded"):
            regard.torch.attention_padded(q, k, v, None)
        with _raises("a call on a cache"):
            regard.torch.attention_with_kvcache(*(x.transpose(1, 2) for x in (q, k, v)))
        starts = torch.tensor([0, 4], dtype=torch.int32)
        with _raises("cu_seqlens_q"):
            regard.torch.varlen_attn(*(x[0].transpose(0, 1) for x in (q, k, v)), starts, starts, 4, 4)
        recipe = regard.fp8.Float8CurrentScaling()
        in_rows = [x.transpose(1, 2).float() for x in (q, k, v)]
        for call in (lambda: F.scaled_dot_product_attention(q, k, v),
                     lambda: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5, is_causal=True),
                     lambda: regard.torch.scaled_dot_product_attention(q, k, v),
                     lambda: regard.flash_attn.flash_attn_func(*in_rows),
                     lambda: attend(q, k, v, Options())):  # what models of Transformers and every other way call
            with _raises("must have one scale for a tensor"), regard.torch.fp8_autocast(regard.fp8.MXFP8BlockScaling()):
                call()
        with _raises("quantize_probs (True) must be False"), regard.torch.fp8_autocast(recipe, quantize_probs=True):
            F.scaled_dot_product_attention(q, k, v)
        with _raises("query (torch.float64)"), regard.torch.fp8_autocast(recipe):
            F.scaled_dot_product_attention(*(x.double() for x in (q, k, v)))
        with regard.torch.fp8_autocast(recipe), regard.torch.fp8_autocast(recipe, enabled=False):
            F.scaled_dot_product_attention(q, k, v)
        with _raises("torch.func"):
            torch.func.grad(lambda q: F.scaled_dot_product_attention(q, k, v).sum())(q)
        with regard.torch.exportable(), _raises("exportable()"):
            F.scaled_dot_product_attention(q, k, v)
    with scope(mesh, comm="a2a"), _raises("heads of query (1)"):
        F.scaled_dot_product_attention(q[:, :1], k[:, :1], v[:, :1])
    with scope(mesh), _raises("ranks disagree: rank 0 (q[2,2,*,8]"):
        F.scaled_dot_product_attention(q, k, v, is_causal=rank == 0)
    with scope(mesh), _raises("fp8_autocast=Float8CurrentScaling"), regard.torch.fp8_autocast(recipe, rank == 0):
        F.scaled_dot_product_attention(q, k, v)
    history = regard.fp8.DelayedScaling(margin=rank)
    with scope(mesh), _raises("margin=1"), regard.torch.fp8_autocast(history):
        F.scaled_dot_product_attention(q, k, v)
    with scope(mesh, comm=("p2p", "a2a")[rank % 2]), _raises("comm=p2p"):
        F.scaled_dot_product_attention(q, k, v)
    with scope(mesh), _raises("policy: default), rank 1 ("), regard.use_policy(
            regard.Policy(max_error=0.5) if rank == 1 else regard.Policy()):
        F.scaled_dot_product_attention(q, k, v)
    with scope(mesh), _raises("only=[math"), regard.torch.sdpa_kernel(
            (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION)[min(rank, 1)]):
        F.scaled_dot_product_attention(q, k, v)
    with scope(mesh), _raises("torch.float64"):
        F.scaled_dot_product_attention(*(x.to((torch.float64, torch.float32)[rank % 2]) for x in (q, k, v)))
    with scope(mesh), _raises("positions of query"):
        F.scaled_dot_product_attention(*(x[:, :, :2 + 2 * (rank == 0)] for x in (q, k, v)))
    with scope(mesh, cu_seqlens=[0, 3]), _raises("cu_seqlens"):
        F.scaled_dot_product_attention(q, k, v)
