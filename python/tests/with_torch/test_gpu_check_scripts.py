"""The scripts of regard_gpu_check's phases on CPU tensors: what they would run on a device."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
CASES = (ROOT / "tools" / "gpu_check" / "cases.h").read_text(encoding="utf-8")


def cases_of(name):
    """The strings of one list of tools/gpu_check/cases.h."""
    return re.findall(r'"([^"]+)"', re.search(rf"k{name}\[\] = {{(.*?)}};", CASES, re.S)[1])


@pytest.mark.parametrize("script,cases,backend,good", [
    ("gpu_check_python.py", cases_of("Python"), "regard.torch", "passed"),
    ("gpu_check_torch.py", [case for case in cases_of("Speeds") if "f8e4m3" not in case][:3], "torch flash",
     "measured"),
])
def test_rehearsal(script, cases, backend, good):
    items = "".join(json.dumps({"case": case, "backend": backend}) + "\n" for case in cases)
    ran = subprocess.run([sys.executable, "-B", ROOT / "scripts" / script, "--rehearse"], input=items,
                         capture_output=True, text=True, timeout=300, check=True)
    lines = ran.stdout.splitlines()
    assert lines[::2] == [f"begin {index}" for index in range(len(cases))], ran.stdout + ran.stderr
    for case, line in zip(cases, lines[1::2]):
        assert json.loads(line)["result"] == good, (case, line)


def test_a_wrong_result_is_noticed():
    """The output of another scale is far from the reference."""
    program = (f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r})\n"
               "import regard.torch\n"
               "from gpu_check_python import Python\n"
               "run = Python(True)\n"
               "right = run._sdpa\n"
               "run._sdpa = lambda *tensors, **options: right(*tensors, **options, scale=0.2)\n"
               "print(run({'case': 'b2 hq4 sq128 d64 f32'})['result'])\n")
    ran = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True,
                         timeout=300, check=True)
    assert ran.stdout == "failed\n", ran.stdout


@pytest.mark.parametrize("wrong", [
    "options.update(softmax_scale=0.2)",
    "options.update(is_causal=False)",
    "options['page_table'] = options['page_table'][:, [0, 1, 2, 3, 5, 4]]",
    "k_new.copy_(k_new * 1.1)",
    "v_new[0, 0, 0, 0] = v_new[0, 0, 0, 1]",
    "options['seqlens_kv'] = options['seqlens_kv'] + 1",
])
def test_a_wrong_cache_is_noticed(wrong):
    """A call of other rows, or of another meaning, beside what the script expects of its own."""
    (case,) = [case for case in cases_of("Python") if case.startswith("cache: i8")]
    program = (f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r})\n"
               "import regard.torch\n"
               "from gpu_check_python import Python\n"
               "run = Python(True)\n"
               "right = run._attention_with_kvcache\n"
               "def call(q, k, v, *, k_new, v_new, **options):\n"
               "    k_new, v_new = k_new.clone(), v_new.clone()\n"
               f"    {wrong}\n"
               "    return right(q, k, v, k_new=k_new, v_new=v_new, **options)\n"
               "run._attention_with_kvcache = call\n"
               f"print(run({{'case': {case!r}}})['result'])\n")
    ran = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True,
                         timeout=300, check=True)
    assert ran.stdout == "failed\n", ran.stdout
