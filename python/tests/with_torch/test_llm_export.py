"""python -m regard.llm export: programs of PyTorch and ONNX, held against Transformers' own model."""

import os
import stat
import subprocess
import sys

import numpy as np
import pytest
import torch

import regard.llm

gguf = pytest.importorskip("gguf")
pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

import tiny_gguf  # noqa: E402
from docstrings import run_examples  # noqa: E402
from documents import WITH_EXPORT, code_of  # noqa: E402

PROMPT, TOKENS = [1, 50, 77, 140, 9], 24
LENGTHS = (1, 2, 3, 8, 65, 256)
# f32 through all layers, relative to the largest logit: products in another order.
TOLERANCE = 1e-5
BACKENDS = ("math", "regard", "flash_attention", "efficient_attention")
# Runs a program of torch.export in a process of its own, without regard where it should need none.
RUNNER = """
import json, sys, torch
if sys.argv[1] == "with":
    import regard.torch
program = torch.export.load(sys.argv[2]).module()
ids = json.loads(sys.argv[3])
tokens = []
for _ in range(int(sys.argv[4])):
    tokens.append(int(program(torch.tensor([ids + tokens]))[0, -1].argmax()))
print(json.dumps([tokens, sorted(name for name in ("regard", "transformers") if name in sys.modules)]))
"""


def command(*words, **keywords):
    return subprocess.run([sys.executable, "-B", "-m", "regard.llm", *map(str, words)],
                          capture_output=True, text=True, timeout=600, **keywords)


def reference(path):
    """Transformers' own model on eager attention, built here and not by the export."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32, attn_implementation="eager",
        local_files_only=True).eval()


def ids_of(length, vocabulary):
    return torch.randint(0, vocabulary, (1, length), generator=torch.Generator().manual_seed(length))


def greedy(logits_of, prompt=PROMPT, tokens=TOKENS):
    ids = list(prompt)
    for _ in range(tokens):
        ids.append(int(np.asarray(logits_of(torch.tensor([ids])))[0, -1].argmax()))
    return ids[len(prompt):]


def eager_logits(model):
    @torch.no_grad()
    def logits(ids):
        return model(input_ids=ids, use_cache=False).logits
    return logits


def assert_close(mine, theirs):
    mine, theirs = np.asarray(mine), np.asarray(theirs)
    assert mine.shape == theirs.shape and mine.dtype == theirs.dtype == np.float32
    assert abs(mine - theirs).max() <= TOLERANCE * abs(theirs).max()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(checkpoint):
    return reference(checkpoint)


def test_the_reference_tells_models_apart(model, checkpoint, tmp_path):
    """The tokens depend on the prompt, and are not one token again and again."""
    tokens = greedy(eager_logits(model))
    assert len(set(tokens)) > 4 and tokens != greedy(eager_logits(model), PROMPT[:-1] + [10])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_torch_program_computes_the_logits(backend, checkpoint, model, tmp_path):
    output = tmp_path / "model.pt2"
    regard.llm.export(checkpoint, output, attention_backend=backend)
    program = torch.export.load(output)
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert ("regard.attention.default" in names) == (backend != "math")
    forced = {node.args[-2] for node in program.graph.nodes if str(node.target) == "regard.attention.default"}
    expected = {"math": set(), "regard": {""}, "flash_attention": {"flash"},
                "efficient_attention": {"efficient"}}
    assert forced == expected[backend]
    run = program.module()
    for length in LENGTHS:
        ids = ids_of(length, tiny_gguf.Shape().vocabulary)
        assert_close(run(ids), eager_logits(model)(ids))
    assert greedy(run) == greedy(eager_logits(model))
    with pytest.raises(Exception, match="<= 256"):  # longer than the context
        run(ids_of(257, 60))


@pytest.mark.parametrize("backend", ["math", "regard"])
def test_a_torch_program_runs_in_a_fresh_process(backend, checkpoint, model, tmp_path):
    """As a user has it: the command writes it, another process loads it."""
    output = tmp_path / "model.pt2"
    ran = command("export", "--checkpoint", checkpoint, "--output", output, "--attention-backend", backend)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == (f"{output}: input_ids [1, S] to logits [1, S, vocabulary], S from 1 to 256; "
                          f"attention {backend}, {output.stat().st_size} bytes\n")
    environment = dict(os.environ)
    if backend == "math":  # regard cannot even be imported
        environment.pop("PYTHONPATH", None)
    done = subprocess.run([sys.executable, "-B", "-c", RUNNER, "with" if backend == "regard" else "without",
                           output, str(PROMPT), str(TOKENS)], capture_output=True, text=True,
                          env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    loaded = ["regard"] if backend == "regard" else []
    assert done.stdout.strip() == f"[{greedy(eager_logits(model))}, {loaded}]".replace("'", '"')


@pytest.mark.parametrize("shape", [
    tiny_gguf.Shape(heads=1, heads_kv=1), tiny_gguf.Shape(heads=6, heads_kv=1, tied=False),
    tiny_gguf.Shape(heads=3, heads_kv=3, head_dim=24, layers=1, base=500.0)],
    ids=["one head", "six heads on one", "three heads"])
def test_onnx(shape, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    checkpoint = tiny_gguf.write(tmp_path / "tiny.gguf", shape, seed=3)
    output = tmp_path / "model.onnx"
    if shape.heads == 6:
        ran = command("export", "--checkpoint", checkpoint, "--output", output, "--format", "onnx")
        assert (ran.returncode, ran.stderr) == (0, "")
    else:
        regard.llm.export(checkpoint, output, format="onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "tiny.gguf"]
    exported = onnx.load(output)
    onnx.checker.check_model(exported, full_check=True)
    assert {opset.domain for opset in exported.opset_import} <= {"", "ai.onnx"}
    assert not exported.functions
    (given,), (found,) = exported.graph.input, exported.graph.output
    dims = [[dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in (given, found)]
    assert (given.name, found.name) == ("input_ids", "logits")
    assert dims == [[1, "seq_length"], [1, "seq_length", shape.vocabulary]]
    session = onnxruntime.InferenceSession(output)
    model = reference(checkpoint)

    def run(ids):
        return session.run(None, {"input_ids": ids.numpy()})[0]
    for length in LENGTHS:
        ids = ids_of(length, shape.vocabulary)
        assert_close(run(ids), eager_logits(model)(ids))
    assert greedy(run) == greedy(eager_logits(model))


@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_a_fixed_length(format, checkpoint, model, tmp_path):
    output = tmp_path / f"model{'.pt2' if format == 'torch' else '.onnx'}"
    regard.llm.export(checkpoint, output, format=format, dynamic_shapes=False, max_seq_length=17)
    ids = ids_of(17, 200)
    expected = eager_logits(model)(ids)
    if format == "torch":
        run = torch.export.load(output).module()
        assert_close(run(ids), expected)
        with pytest.raises(Exception, match="17"):
            run(ids[:, :16])
    else:
        session = pytest.importorskip("onnxruntime").InferenceSession(output)
        assert session.get_inputs()[0].shape == [1, 17]
        assert_close(session.run(None, {"input_ids": ids.numpy()})[0], expected)


def test_max_seq_length_bounds_a_dynamic_program(checkpoint, model, tmp_path):
    regard.llm.export(checkpoint, tmp_path / "model.pt2", max_seq_length=3)
    run = torch.export.load(tmp_path / "model.pt2").module()
    for length in (1, 2, 3):
        ids = ids_of(length, 200)
        assert_close(run(ids), eager_logits(model)(ids))
    with pytest.raises(Exception, match="<= 3"):
        run(ids_of(4, 200))


def test_nothing_is_left_of_the_attention_function_or_of_settings(checkpoint, tmp_path):
    table = transformers.AttentionInterface._global_mapping
    before, progress = dict(table), transformers.utils.logging.is_progress_bar_enabled()
    regard.llm.export(checkpoint, tmp_path / "model.pt2")
    assert dict(table) == before
    assert transformers.utils.logging.is_progress_bar_enabled() == progress


REFUSED = {
    "format": (["--format", "onyx"], "--format ('onyx') must be one of torch, onnx"),
    "backend": (["--attention-backend", "flash"],
                "--attention-backend ('flash') must be one of math, regard, flash_attention, "
                "efficient_attention"),
    "auto": (["--attention-backend", "auto"], "--attention-backend ('auto') selects when a model runs"),
    "cudnn": (["--attention-backend", "cudnn_attention"],
              "--attention-backend ('cudnn_attention') runs on CUDA devices"),
    "operator in onnx": (["--format", "onnx", "--attention-backend", "regard"],
                         "--attention-backend ('regard') is the operator regard::attention, which ONNX "
                         "Runtime does not have; expected math with format onnx, or format torch"),
    "forced in onnx": (["--format", "onnx", "--attention-backend", "flash_attention"],
                       "--attention-backend ('flash_attention') is the operator regard::attention"),
    "too long": (["--max-seq-length", "257"],
                 "--max-seq-length (257) must be from 3 to 256, the llama.context_length"),
    "too short": (["--max-seq-length", "2"], "--max-seq-length (2) must be from 3 to 256"),
    "none": (["--max-seq-length", "0", "--no-dynamic-shapes"], "--max-seq-length (0) must be from 1 to 256"),
    "suffix": (["--format", "onnx", "--output", "model.pt2"],
               "--output ('model.pt2') must end in .onnx for format onnx"),
    "folder": (["--output", "nowhere/model.pt2"], "--output ('nowhere/model.pt2'): the folder 'nowhere'"),
    "no checkpoint": (["--checkpoint", "missing.gguf"], "--checkpoint ('missing.gguf') does not exist"),
    "a folder": (["--checkpoint", "."], "--checkpoint ('.') must be a GGUF file"),
    "no file of GGUF": (["--checkpoint", "text.gguf"], "--checkpoint ('text.gguf') is no GGUF file"),
    "truncated": (["--checkpoint", "half.gguf"], "--checkpoint ('half.gguf') is no GGUF file"),
    "not a number": (["--max-seq-length", "many"], "argument --max-seq-length: invalid int value: 'many'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_option_and_writes_nothing(name, checkpoint, tmp_path):
    words, message = REFUSED[name]
    (tmp_path / "text.gguf").write_text("This is no model.\n")
    (tmp_path / "half.gguf").write_bytes(checkpoint.read_bytes()[:100_000])
    before = sorted(tmp_path.iterdir())
    ran = command("export", "--checkpoint", checkpoint, "--output", "model.pt2", *words, cwd=tmp_path)
    assert ran.returncode == 2 and ran.stdout == ""
    assert message in ran.stderr and "Traceback" not in ran.stderr
    assert sorted(tmp_path.iterdir()) == before


ZEROS = np.zeros(64, np.float32)
FILES = {
    "architecture": (dict(architecture="qwen2"), r"general\.architecture \('qwen2'\) must be llama"),
    "rope scaling": (dict(replaced={"llama.rope.scaling.type": "linear"}),
                     r"llama\.rope\.scaling\.type \('linear'\) has no export; expected none"),
    "rope factor": (dict(replaced={"llama.rope.scaling.factor": 4.0}),
                    r"llama\.rope\.scaling\.factor \(4\.0\) has no export; expected 1"),
    "rope_freqs": (dict(tensors={"rope_freqs.weight": ZEROS[:8]}),
                   r"tensor rope_freqs\.weight has no export"),
    "biases": (dict(tensors={"blk.0.attn_q.bias": ZEROS}), r"tensor blk\.0\.attn_q\.bias has no export"),
    "experts": (dict(replaced={"llama.expert_count": 8}), r"llama\.expert_count \(8\) has no export"),
    "window": (dict(replaced={"llama.attention.sliding_window": 64}),
               r"llama\.attention\.sliding_window \(64\) has no export"),
    "key length": (dict(replaced={"llama.attention.key_length": 32}),
                   r"llama\.attention\.key_length \(32\) must be llama\.rope\.dimension_count, 16"),
    "heads": (dict(replaced={"llama.attention.head_count_kv": 3}),
              r"llama\.attention\.head_count_kv \(3\) must divide llama\.attention\.head_count \(4\)"),
    "no heads": (dict(replaced={"llama.attention.head_count_kv": 0}),
                 r"llama\.attention\.head_count_kv \(0\) must be an integer of at least 1"),
    "a missing key": (dict(replaced={"llama.attention.layer_norm_rms_epsilon": None}),
                      r"llama\.attention\.layer_norm_rms_epsilon is missing"),
    "a missing tensor": (dict(tensors={"blk.1.ffn_up.weight": None}),
                         r"tensor blk\.1\.ffn_up\.weight is missing"),
    "many blocks": (dict(replaced={"llama.block_count": 2_000_000_000}),
                    r"llama\.block_count \(2000000000\) needs"),
    "shape": (dict(replaced={"llama.embedding_length": 48}),
              r"tensor blk\.0\.attn_q\.weight of shape \[64, 64\] must be \[64, 48\]"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_transformers_would_misread_is_refused(name, tmp_path):
    changes, message = FILES[name]
    checkpoint = tiny_gguf.write(tmp_path / "model.gguf", **changes)
    with pytest.raises(ValueError, match=message) as raised:
        regard.llm.export(checkpoint, tmp_path / "model.pt2")
    assert str(raised.value).startswith(f"checkpoint ({str(checkpoint)!r})")
    assert list(tmp_path.iterdir()) == [checkpoint]


@pytest.mark.parametrize("options, kind, message", [
    (dict(dynamic_shapes=1), TypeError, r"dynamic_shapes \(1\)"),
    (dict(max_seq_length=4.0), TypeError, r"max_seq_length \(4\.0\)"),
    (dict(max_seq_length=True), TypeError, r"max_seq_length \(True\)"),
    (dict(format="pt2"), ValueError, r"format \('pt2'\) must be one of torch, onnx"),
])
def test_options_of_the_function(options, kind, message, checkpoint, tmp_path):
    with pytest.raises(kind, match=message):
        regard.llm.export(checkpoint, tmp_path / "model.pt2", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(checkpoint, tmp_path):
    """A limit on the size of files stands for a full disk."""
    resource = pytest.importorskip("resource")
    output = tmp_path / "model.pt2"
    output.write_text("what was there")
    ran = command("export", "--checkpoint", checkpoint, "--output", output,
                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)))
    assert ran.returncode == 1 and ran.stderr.startswith("python -m regard.llm export: ")
    assert ran.stdout == "" and "Traceback" not in ran.stderr
    assert output.read_text() == "what was there" and list(tmp_path.iterdir()) == [output]


def test_the_file_has_the_permissions_of_a_new_file(checkpoint, tmp_path):
    output, other = tmp_path / "model.pt2", tmp_path / "other"
    other.touch()
    output.write_text("what was there")
    regard.llm.export(checkpoint, output)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (output, other)]
    assert modes[0] == modes[1] and output.stat().st_size > 100_000
    assert sorted(tmp_path.iterdir()) == [output, other]


def test_the_package_is_light():
    """The help, and importing regard.llm, load no PyTorch."""
    program = ("import sys, regard.llm, regard.llm.__main__ as m\n"
               "try:\n    m.main(['export', '--help'])\nexcept SystemExit as e:\n    assert e.code == 0\n"
               "assert not {'torch', 'transformers', 'gguf'} & set(sys.modules)\n")
    ran = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert all(option in ran.stdout for option in (
        "--checkpoint", "--output", "--format", "--attention-backend", "--dynamic-shapes",
        "--max-seq-length"))


def test_missing_packages_are_named(checkpoint, tmp_path, monkeypatch):
    import importlib.util
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec",
                        lambda name, *rest: None if name == "onnxscript" else find(name, *rest))
    with pytest.raises(ImportError, match="format .'onnx'. needs .*; missing: pip install onnxscript"):
        regard.llm.export(checkpoint, tmp_path / "model.onnx", format="onnx")


def test_a_policy_that_excludes_the_backend_is_an_error(checkpoint, tmp_path):
    with regard.use_policy(deny=["math"]), pytest.raises(regard.NoBackendError, match="math"):
        regard.llm.export(checkpoint, tmp_path / "model.pt2")
    with regard.use_policy(deny=["flash"]), pytest.raises(regard.NoBackendError, match="flash"):
        regard.llm.export(checkpoint, tmp_path / "model.pt2", attention_backend="flash_attention")
    ran = command("export", "--checkpoint", checkpoint, "--output", tmp_path / "model.pt2",
                  env=os.environ | {"REGARD_DENY": "math"})
    assert ran.returncode == 3 and "math is listed in" in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_example_of_the_docstring_runs():
    run_examples("export", regard.llm.export)


@pytest.mark.parametrize("document", WITH_EXPORT)
def test_the_code_of_the_document_runs(document, checkpoint, model, tmp_path):
    regard.llm.export(checkpoint, tmp_path / "model.pt2")
    code = code_of(document) + "\nprint(ids)\n"
    ran = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=300,
                         cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == f"{[1, 50, 77, *greedy(eager_logits(model), [1, 50, 77], 64)]}\n"
