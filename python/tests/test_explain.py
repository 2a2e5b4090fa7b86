"""explain, Selection, and what the package says about itself."""

import html
import json
import pickle
import re
import pathlib

import numpy as np
import pytest
from test_attention import make

import regard


def test_of_arrays_is_of_their_case():
    q, k, v = make()
    options = dict(is_causal=True, diagonal="bottom_right", seqlens_kv=[13, 6], return_lse=True)
    selection = regard.explain(q, k, v, **options)
    assert selection.to_dict()["case"].startswith("b2 hq4 hkv2 sq9 skv13 d16 f32 causal diag=br")
    words = regard.explain("b2 hq4 hkv2 sq9 skv13 d16 f32 causal diag=br lens=kv lse tokens_kv=19")
    assert words.to_dict()["candidates"] == selection.to_dict()["candidates"]
    assert regard.explain(q, k, v, layout="BHSD").to_dict()["params"]["layout_q"] == "bhsd"
    turned = [x.swapaxes(1, 2).copy() for x in (q, k, v)]
    params = regard.explain(*turned, layout="BSHD").to_dict()["params"]
    assert params["layout_q"] == params["layout_out"] == "bshd" and params["seqlen_q"] == 9


def test_selection_is_data():
    selection = regard.explain("b1 hq8 sq128 d64 f32", backends="math")
    assert selection.chosen == "math" and selection.ok
    assert selection.decided_by == "call policy (only)"
    data = selection.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["plan"]["workspace_bytes"] == selection.plan["workspace_bytes"] > 0
    assert all(isinstance(r, regard.Refusal) for r in selection.refusals)
    assert {"backend", "built", "usable", "refusals"} <= set(selection.candidates[0])
    text = str(selection)
    assert text.startswith("case     b1 hq8 ") and "\nmath       chosen  " in text
    assert "\n\nplan     math" in text
    assert repr(selection) == text == selection.table()
    assert pickle.loads(pickle.dumps(selection)).to_dict() == data


def test_refusals_are_sentences():
    selection = regard.explain("b1 hq8 sq128 d64 f32 scores=probs", backends="flash")
    assert not selection.ok and selection.advice == "remove scores_out to run flash, or allow math"
    (refusal,) = [r for r in selection.refusals if r.backend == "flash"]
    assert str(refusal) == "flash does not support scores_out; remove it, or use math"
    assert refusal.code == "feature" and refusal.fix == "remove scores_out"
    assert refusal.actual == "scores_out" and not refusal.in_backward
    status = {c["backend"]: c["status"] for c in selection.candidates}
    assert status["flash"] == "cannot run" and status["math"] == "excluded by policy"
    assert f"  - {refusal.message}\n" in str(selection)


def test_the_table_folds_the_backends_of_devices():
    selection = regard.explain("b1 hq8 sq128 d64 f32")
    assert "cudnn needs a CUDA device; verbose shows it" in str(selection)
    verbose = selection.table(verbose=True)
    assert "\ncudnn " in verbose and "built  enabled  usable  chosen" in verbose
    assert "verbose" not in str(regard.explain("b1 hq8 sq128 d64 f32", backends="cudnn"))


def test_the_notebook_leaves_nothing_out():
    q, k, v = make()
    turned = [x[..., ::-1] for x in (q, k, v)]  # copied: a note
    selection = regard.explain(*turned, policy=regard.Policy(deny="math", max_error=1e-3),
                               return_saved=True)
    page = html.unescape(selection._repr_html_())
    data = selection.to_dict()
    assert selection.notes and data["plan"]["backward"]["kernel"] in page
    for text in (data["case"], data["plan"]["kernel"], selection.decided_by, *selection.notes,
                 "max_error=0.001", *(r.message for r in selection.refusals)):
        assert text in page
    for candidate in data["candidates"]:
        for name in ("backend", "status", "workspace_bytes", "backward_workspace_bytes",
                     "error_bound", "determinism"):
            assert candidate[name] is None or f"<td>{candidate[name]}</td>" in page
    assert data["cost_source"] in page and f"backend={data['runner_up']['backend']}" in page
    assert f"seconds={data['candidates'][0]['backward_time']['seconds']}, " in page
    warned = regard.explain("b1 hq8 sq128 d64 f32", policy=regard.Policy(prefer=["custom:none"]))
    assert warned.warnings and all(w in html.unescape(warned._repr_html_()) for w in warned.warnings)
    refused = regard.explain("b1 hq8 sq128 d640 f32", backends="flash")
    assert refused.advice in html.unescape(refused._repr_html_())


def test_predicted_times():
    selection = regard.explain("b1 hq8 sq512 d64 f32 grad saved")
    assert selection.cost_source == "default rates" and selection.given_up == ""
    for candidate in selection.candidates:
        for name in ("forward_time", "backward_time"):
            time = candidate[name]
            assert (time is not None) == candidate["usable"]
            assert time is None or (time["seconds"] > 0 and time["spread"] > 1)
    assert selection.runner_up["backend"] in ("efficient", "math")
    assert selection.runner_up["ratio"] > 0
    assert selection.runner_up["changes"][-1]["field"] == "policy.prefer"
    assert f"next     {selection.runner_up['backend']}, predicted to take " in str(selection)
    flash = selection.candidates[0]
    assert flash["backend"] == "flash"
    forward = "b1 hq8 sq512 d64 f32"
    limit = regard.explain(forward).candidates[0]["workspace_bytes"] - 64
    less = regard.explain(forward, policy=regard.Policy(max_workspace_bytes=limit))
    assert less.ok and less.chosen != "flash"
    assert less.given_up.startswith("flash, which needs ") and less.given_up in str(less)
    assert regard.explain("b1 hq8 sq512 d64 f32", backends="math").runner_up is None


def test_another_machine_in_words():
    selection = regard.explain("b1 hq8 sq128 d64 f32 isa=scalar")
    assert selection.ok and selection.plan is None


def test_what_words_may_not_have_beside_them():
    with pytest.raises(TypeError, match="is_causal.*policy and backend"):
        regard.explain("b1 hq8 sq128 d64 f32", is_causal=True)
    with pytest.raises(ValueError, match="colour"):
        regard.explain("b1 hq8 sq128 d64 f32 colour=red")
    with pytest.raises(TypeError, match="k is missing"):
        regard.explain(np.ones((1, 1, 1, 4), np.float32))


def test_explain_refuses_what_attention_refuses():
    q, k, v = make()
    with pytest.raises(ValueError, match="diagonal"):
        regard.explain(q, k, v, is_causal=True)
    with pytest.raises(TypeError, match="unexpected keyword 'casual'"):
        regard.explain(q, k, v, casual=True)


def test_devices_and_config(capsys):
    names = {b["backend"] for b in regard.devices() if b["device"] == "cpu"}
    assert {"math", "efficient"} <= names
    on_cpu = {b["backend"]: b for b in regard.devices() if b["device"] == "cpu"}
    flash, math = on_cpu["flash"], on_cpu["math"]
    assert math["built"] and "lse" in math["forward"]["features"]
    assert flash["built"] and "gqa" in math["backward"]["features"]
    absent = [b for b in regard.devices() if not b["built"]]
    assert absent and all(b["forward"] is None and b["backward"] is None for b in absent)
    config = regard.show_config("dicts")
    assert config["regard"] == regard.__version__
    assert regard.show_config() is None
    assert json.loads(capsys.readouterr().out)["machine"] == config["machine"]
    with pytest.raises(ValueError, match="mode"):
        regard.show_config("yaml")


def test_signature_and_stub_agree():
    import inspect

    stub = pathlib.Path(regard.__file__).with_name("_core.pyi").read_text()
    for name in ("attention", "attention_backward", "explain"):
        parameters = inspect.signature(getattr(regard, name)).parameters
        body = re.findall(rf"^def {name}\((.*?)^\) ->", stub, flags=re.M | re.S)[-1]
        stubbed = re.findall(r"^    (\w+): .*?(?: = (.*))?,$", body, flags=re.M)
        assert [n for n, _ in stubbed] == list(parameters)
        for parameter, default in stubbed:
            found = parameters[parameter].default
            assert default == "" and found is inspect.Parameter.empty or eval(default) == found
    assert regard.attention.__doc__ and set(regard.__all__) <= set(dir(regard))


def test_shares_of_mask_functions():
    x = np.zeros((1, 2, 512, 16), np.float32)
    selection = regard.explain(x, x, x, mask_function="kv_idx<=q_idx|kv_idx<4")
    assert selection.mask_blocks == selection.to_dict()["mask_blocks"] == dict(
        block_size=128, empty=0.375, partial=0.25)
    assert "\nmask     skips 37.5 % of the blocks of 128 x 128; 25 % are partial\n" in str(selection)
    assert "<p><b>mask</b> block_size=128, empty=0.375, partial=0.25</p>" in selection._repr_html_()
    ids = np.zeros(512, np.int32)
    for options in (dict(mask_function="i0[q_idx]==kv_idx", captured=[ids]), dict(is_causal=True)):
        assert regard.explain(x, x, x, **options).mask_blocks is None
