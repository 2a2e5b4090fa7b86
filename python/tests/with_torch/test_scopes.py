"""Scopes of regard.torch, and what they exclude; install()."""

import asyncio
import os
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from test_sdpa import make, same
from torch.func import grad, jvp
from torch.nn.attention import SDPBackend

import regard
import regard.torch
from regard.torch._scopes import current_backends

sdpa = regard.torch.scaled_dot_product_attention
kernel, exportable = regard.torch.sdpa_kernel, regard.torch.exportable


@pytest.mark.parametrize("policy", [
    dict(only=["flash"]), dict(deny=["math"]), dict(only=["flash"], replace=True),
    dict(deny=["math"], replace=True)])
def test_a_policy_without_math_is_an_error_for_its_formula(policy):
    torch._dynamo.reset()
    q, k, v = make()
    f = lambda q: sdpa(q, k, v).sum()  # noqa: E731
    with exportable(), regard.use_policy(**policy):
        with pytest.raises(regard.NoBackendError, match=r"exportable\(\).*math"):
            sdpa(q, k, v)
    with regard.use_policy(**policy):
        for call in (lambda: grad(f)(q), lambda: jvp(f, (q,), (q,))):
            with pytest.raises(regard.NoBackendError, match="torch.func"):
                call()

        def inside(q, k, v):
            with exportable():
                return sdpa(q, k, v)

        with pytest.raises(Exception, match="math"):
            torch.compile(inside, fullgraph=True, backend="eager")(q, k, v)
    with kernel("cudnn"), pytest.raises(ValueError, match="torch.func.*cudnn"):
        grad(f)(q)
    with exportable(), regard.use_policy(prefer=["flash"]):
        same(sdpa(q, k, v), F.scaled_dot_product_attention(q, k, v))
    same(torch.compile(inside, fullgraph=True, backend="eager")(q, k, v), sdpa(q, k, v))


ENVIRONMENT = """
import torch, regard, regard.torch as rt
q = torch.randn(1, 1, 2, 4)
try:
    with rt.exportable():
        rt.scaled_dot_product_attention(q, q, q)
except regard.NoBackendError as error:
    assert "math" in str(error)
else:
    raise SystemExit(1)
"""


@pytest.mark.parametrize("setting", [("REGARD_BACKEND", "flash"), ("REGARD_DENY", "math")])
def test_an_environment_without_math_is_an_error(setting):
    environment = dict(os.environ, **dict([setting]))
    assert subprocess.run([sys.executable, "-c", ENVIRONMENT], env=environment).returncode == 0


def test_sdpa_kernel_decorates():
    q, k, v = make()

    @kernel("math")
    def chosen(depth=0):
        return chosen(depth - 1) if depth else regard.torch.explain(q, k, v).chosen

    assert chosen() == "math" and chosen(3) == "math" and current_backends() == ""

    @exportable()
    def plain(q, k, v):
        return sdpa(q, k, v)

    @kernel([SDPBackend.MATH, "efficient"])
    def compiled(q, k, v):
        return sdpa(q, k, v)

    for f in (plain, compiled):
        same(torch.compile(f, fullgraph=True, backend="eager")(q, k, v), sdpa(q, k, v))


def test_overrideable_is_no_backend():
    q, k, v = make()
    with kernel([SDPBackend.OVERRIDEABLE, SDPBackend.MATH]):
        assert regard.torch.explain(q, k, v).chosen == "math"
    with kernel(SDPBackend.OVERRIDEABLE), pytest.raises(regard.NoBackendError):
        sdpa(q, k, v)


def test_one_scope_entered_twice_and_by_two_threads():
    shared, seen = kernel("math"), []
    with kernel("efficient"):
        with shared, shared:
            assert current_backends() == "math"
        assert current_backends() == "efficient"
    barrier = threading.Barrier(2, timeout=60)

    def run(outer):
        with kernel(outer):
            barrier.wait()
            shared.__enter__()
            barrier.wait()
            shared.__exit__(None, None, None)
            seen.append((outer, current_backends()))

    threads = [threading.Thread(target=run, args=(name,)) for name in ("flash", "efficient")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [("efficient", "efficient"), ("flash", "flash")]


def test_tasks_that_end_in_any_order_leave_nothing():
    async def task(scope, first, second):
        with scope:
            await asyncio.sleep(first)
        await asyncio.sleep(second)

    async def both():
        both_flash = kernel(["flash", "math"])
        await asyncio.gather(task(kernel("math"), 0.02, 0), task(both_flash, 0.04, 0),
                             task(exportable(), 0.01, 0))

    with kernel(["efficient", "math"]):
        asyncio.run(both())
        assert current_backends() == "efficient,math"
        assert not regard.torch._scopes.is_exporting()
    assert current_backends() == ""


def test_enabled_compares_as_a_bool():
    flash = regard.torch.flash_sdp_enabled()
    assert flash == True and flash != False and not flash == False  # noqa: E712
    assert flash == regard.torch.flash_sdp_enabled()
    with kernel("math"):
        assert regard.torch.flash_sdp_enabled() == False  # noqa: E712


def test_what_was_taken_inside_install_is_pytorchs_outside():
    q, k, v = make()
    original = F.scaled_dot_product_attention
    with regard.torch.install():
        taken = F.scaled_dot_product_attention
    assert taken(q.to("meta"), k.to("meta"), v.to("meta")).is_meta
    with kernel(SDPBackend.CUDNN_ATTENTION):  # regard would refuse
        same(taken(q, k, v), original(q, k, v))


def test_install_keeps_what_others_put_there():
    q, k, v = make()
    original = F.scaled_dot_product_attention
    try:
        with regard.torch.install():
            ours = F.scaled_dot_product_attention
            patch = lambda *a, **b: ours(*a, **b)  # noqa: E731
            F.scaled_dot_product_attention = patch
        assert F.scaled_dot_product_attention is patch
        with regard.torch.install():  # around the patch, which calls what it found
            assert F.scaled_dot_product_attention(q.to("meta"), k.to("meta"), v.to("meta")).is_meta
            same(F.scaled_dot_product_attention(q, k, v), original(q, k, v))
        assert F.scaled_dot_product_attention is patch
        same(patch(q, k, v), original(q, k, v))
    finally:
        F.scaled_dot_product_attention = original


def test_install_as_a_statement_is_permanent():
    q, k, v = make()
    original = F.scaled_dot_product_attention
    try:
        regard.torch.install()
        assert F.scaled_dot_product_attention is not original
        with regard.torch.install():
            pass
        with kernel("math"):
            regard.torch.install()  # again
        assert F.scaled_dot_product_attention is not original
        with kernel(SDPBackend.CUDNN_ATTENTION), pytest.raises(regard.NoBackendError):
            F.scaled_dot_product_attention(q, k, v)  # regard's own
        regard.torch.uninstall()
        assert F.scaled_dot_product_attention is original
        regard.torch.uninstall()  # nothing is installed
        assert F.scaled_dot_product_attention is original
    finally:
        regard.torch.uninstall()


def test_uninstall_leaves_blocks_open():
    original = F.scaled_dot_product_attention
    regard.torch.install()
    with regard.torch.install():
        regard.torch.install()
        regard.torch.uninstall()
        assert F.scaled_dot_product_attention is not original
    assert F.scaled_dot_product_attention is original


def test_an_installation_ends_as_a_block():
    original = F.scaled_dot_product_attention
    handle = regard.torch.install()
    assert F.scaled_dot_product_attention is not original
    for _ in range(2):  # the second time it installs again
        with handle:
            with handle:
                assert F.scaled_dot_product_attention is not original
            assert F.scaled_dot_product_attention is not original
        assert F.scaled_dot_product_attention is original
    with pytest.raises(KeyError), regard.torch.install():
        raise KeyError
    assert F.scaled_dot_product_attention is original


def test_a_permanent_installation_is_every_threads():
    original, seen = F.scaled_dot_product_attention, []
    thread = threading.Thread(target=regard.torch.install)
    thread.start()
    thread.join()
    assert F.scaled_dot_product_attention is not original
    thread = threading.Thread(target=lambda: seen.append(F.scaled_dot_product_attention))
    thread.start()
    thread.join()
    assert seen == [F.scaled_dot_product_attention]
    thread = threading.Thread(target=regard.torch.uninstall)
    thread.start()
    thread.join()
    assert F.scaled_dot_product_attention is original


def test_many_threads_install():
    original, errors = F.scaled_dot_product_attention, []

    def work():
        try:
            for _ in range(1000):
                with regard.torch.install():
                    pass
                regard.torch.install()
                regard.torch.uninstall()
        except BaseException as error:
            errors.append(error)

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual)
    assert not errors and F.scaled_dot_product_attention is original
