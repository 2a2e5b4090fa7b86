"""Forked and spawned processes, asyncio tasks: through PyTorch."""

import asyncio
import multiprocessing

import pytest
import torch

import regard
import regard.torch as rt


def made(seed=0):
    torch.manual_seed(seed)
    return [torch.randn(1, 4, 96, 32, requires_grad=True) for _ in range(3)]


def train(tensors):
    out = rt.scaled_dot_product_attention(*tensors, is_causal=True)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), tensors)]


def _child(pipe, tensors):
    torch.set_num_threads(1)
    tensors = [torch.from_numpy(x).requires_grad_() for x in tensors]
    with rt.sdpa_kernel("efficient"):
        pipe.send(([x.numpy() for x in train(tensors)], rt.explain(*tensors).chosen))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_process_trains_the_same(method):
    tensors = made()
    with rt.sdpa_kernel("efficient"):
        expected = train(tensors)
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe()
    child = context.Process(target=_child, args=(sender, [x.detach().numpy() for x in tensors]))
    child.start()
    assert receiver.poll(120), "the child must answer"
    found, chosen = receiver.recv()
    child.join(60)
    assert child.exitcode == 0 and chosen == "efficient"
    for mine, theirs in zip(expected, found, strict=True):
        assert torch.equal(mine, torch.from_numpy(theirs))


def test_a_policy_follows_asyncio_tasks():
    q, k, v = (x.detach() for x in made())

    def chosen():
        rt.scaled_dot_product_attention(q, k, v)
        return rt.explain(q, k, v).chosen

    async def task(name):
        with regard.use_policy(only=[name]):
            seen = []
            for _ in range(5):
                await asyncio.sleep(0)
                seen += [chosen(), await asyncio.to_thread(chosen)]
            return seen

    async def main():
        names = ["math", "efficient", "flash"]
        results = await asyncio.gather(*[task(name) for name in names])
        assert results == [[name] * 10 for name in names]

    asyncio.run(main())
