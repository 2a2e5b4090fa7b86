"""Policies: as a value, for a call, for a scope of a thread or task."""

import asyncio
import pickle
import threading

import pytest

import regard

CASE = "b1 hq8 sq128 d64 f32"


def chosen(**keywords):
    return regard.explain(CASE, **keywords).chosen


def test_a_policy_is_a_value():
    policy = regard.Policy(only=["MATH", "efficient"], max_error=1e-3, require="run_to_run",
                           on_fallback="warn", max_workspace_bytes=1 << 20, assume_finite=True,
                           self_check=1000, self_check_deny=True, self_check_dir="/tmp/a 'b")
    assert policy.only == ["math", "efficient"] and policy.deny == [] and policy.prefer is None
    assert policy.max_error == 1e-3 and policy.assume_finite is True
    assert policy == regard.Policy(**policy.to_dict()) and policy != regard.Policy()
    assert hash(policy) == hash(regard.Policy(**policy.to_dict()))
    assert policy != "policy" and len({policy, regard.Policy()}) == 2
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert eval(repr(policy)) == policy
    assert regard.Policy(only="math") == regard.Policy(only=["math"])
    with pytest.raises(AttributeError, match="only_"):
        policy.only_


@pytest.mark.parametrize("fields, error, words", [
    (dict(onyl="math"), TypeError, "unexpected keyword 'onyl'; accepted are only, deny"),
    (dict(onyl=None), TypeError, "unexpected keyword 'onyl'"),
    (dict(n=None), TypeError, "unexpected keyword 'n'"),
    (dict(only="maths"), ValueError, "only .'maths'. must be a backend's name"),
    (dict(deny={"math"}), TypeError, "deny .{'math'}. must be a backend.s name or a list"),
    (dict(require="always"), ValueError, "require .'always'. must be 'none'"),
    (dict(on_fallback="cry"), ValueError, "on_fallback .'cry'. must be 'allow'"),
    (dict(max_error="small"), TypeError, "max_error .'small'. must be a number"),
    (dict(max_error=float("nan")), ValueError, "max_error of policy .nan. must be at least 0"),
    (dict(max_error=-1e-9), ValueError, "max_error of policy .-1e-09. must be at least 0"),
    (dict(max_workspace_bytes=-1), ValueError, "max_workspace_bytes of policy .-1. must be at "),
    (dict(max_workspace_bytes=1.5), TypeError, "max_workspace_bytes .1.5. must be an integer"),
    (dict(assume_finite=1), TypeError, "assume_finite .1. must be True or False"),
    (dict(self_check=-1), ValueError, "self_check of policy .-1. must be at least 0"),
    (dict(self_check=0.5), TypeError, "self_check .0.5. must be an integer"),
    (dict(self_check_deny=1), TypeError, "self_check_deny .1. must be True or False"),
    (dict(self_check_dir=7), TypeError, "self_check_dir .7. must be a folder's name"),
])
def test_wrong_fields(fields, error, words):
    with pytest.raises(error, match=words):
        regard.Policy(**fields)
    with pytest.raises(error, match=words):
        regard.use_policy(**fields)


def test_for_a_call():
    assert chosen(policy=regard.Policy(only=["math"])) == "math"
    assert chosen(backends="math", policy=regard.Policy(max_error=1.0)) == "math"
    assert chosen(backends="EFFICIENT_ATTENTION") == "efficient"
    assert chosen(policy=regard.Policy(deny=["math"]), backends="math") == "error"


def test_backends_of_a_call_in_order():
    for names in (["math", "efficient"], ("efficient", "math"), ["efficient"]):
        assert chosen(backends=names) == names[0]
        selection = regard.explain(CASE, backends=names)
        policy = regard.Policy(only=names, prefer=names if len(names) > 1 else None)
        assert str(selection) == str(regard.explain(CASE, policy=policy))
    with regard.use_policy(prefer=["math"]):
        assert chosen(backends=["efficient", "math"]) == "efficient"
    # one name keeps a policy's order for what else it may be: it excludes the others
    assert chosen(policy=regard.Policy(prefer=["math"]), backends="efficient") == "efficient"
    assert chosen(backends=["cudnn", "math"]) == "math"  # the first that can run


def test_scopes_nest_and_end():
    before = chosen()
    with regard.use_policy(only=["math", "efficient"]) as value:
        assert value == regard.Policy(only=["math", "efficient"])
        with regard.use_policy(prefer=["math"]):
            assert chosen() == "math"
            with regard.use_policy(only=["efficient"]):
                assert chosen() == "efficient"
                assert chosen(backends="efficient") == "efficient"
                with regard.use_policy(only=["math"], replace=True):
                    assert chosen() == "math"
                assert chosen() == "efficient"
            assert regard.explain(CASE).decided_by == "scope (only, prefer)"
            with pytest.raises(KeyError), regard.use_policy(deny=["math"]):
                assert chosen() == "efficient"
                raise KeyError
            assert chosen() == "math"
    assert chosen() == before


def test_disjoint_scopes_name_both():
    with regard.use_policy(only=["math"]), regard.use_policy(only=["efficient"]):
        assert chosen() == "error"


def test_a_value_makes_a_scope():
    with regard.use_policy(regard.Policy(only=["math"])):
        assert chosen() == "math"
    with pytest.raises(TypeError, match="both"):
        regard.use_policy(regard.Policy(), only=["math"])
    with pytest.raises(TypeError, match="regard.Policy"):
        regard.use_policy("math")


def test_a_scope_is_open_once():
    scope = regard.use_policy(only=["math"])
    for _ in range(2):
        with scope:
            with pytest.raises(RuntimeError, match="open already"):
                scope.__enter__()
            assert chosen() == "math"
    assert "only=['math']" in repr(scope)


def test_another_thread_has_its_own():
    seen = {}
    entered, go_on = threading.Event(), threading.Event()

    def inside():
        with regard.use_policy(only=["math"]):
            entered.set()
            go_on.wait(30)
            seen["inside"] = chosen()

    thread = threading.Thread(target=inside)
    thread.start()
    entered.wait(30)
    with regard.use_policy(only=["efficient"]):
        seen["here"] = chosen()
        go_on.set()
        thread.join()
        seen["after"] = chosen()
    assert seen == {"inside": "math", "here": "efficient", "after": "efficient"}


def test_asyncio_tasks_do_not_see_each_other():
    async def task(name):
        with regard.use_policy(only=[name]):
            for _ in range(20):
                await asyncio.sleep(0)
                assert chosen() == name
        await asyncio.sleep(0)
        return chosen()

    async def main():
        outside = chosen()
        with regard.use_policy(prefer=["math"]):
            inherited = asyncio.ensure_future(asyncio.to_thread(chosen))
            results = await asyncio.gather(*(task(n) for n in ["math", "efficient"] * 3))
            assert results == ["math"] * 6, "a task inherits the scopes of who made it"
            assert await inherited == "math"
        assert chosen() == outside

    asyncio.run(main())
