"""`pip install .` in a clean environment: a compiler is all that it needs. Where CLI11, fmt and
nlohmann_json are installed, as `./dev` does, the wheel has the command `regard`, too."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

from packaging.requirements import Requirement

import regard
from documents import code_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = ROOT / "build" / "clean-venv"
STAMP = VENV / "regard-installed"

SMOKE = """
import importlib.metadata, json, sys
import numpy as np, regard
x = np.random.default_rng(0).standard_normal((1, 2, 8, 16)).astype(np.float32)
out = regard.attention(x, x, x, is_causal=True)
print(json.dumps({
    "version": importlib.metadata.version("regard"), "file": regard.__file__,
    "first_row_is_v": bool(np.allclose(out[:, :, 0], x[:, :, 0], atol=1e-6)),
    "chosen": regard.explain(x, x, x).chosen, "requires": importlib.metadata.requires("regard"),
    "torch": sorted(f.name for f in importlib.metadata.files("regard") if f.parent.name == "torch"),
    "unasked": [m for m in ("torch", "transformers", "onnx") if m in sys.modules],
    "typed": any(f.name == "py.typed" for f in importlib.metadata.files("regard")),
    "headers": [str(f) for f in importlib.metadata.files("regard") if f.suffix in (".h", ".a")]}))
"""


def packaging_digest():
    """Of what can break an installation alone: the build's files, and which sources there are. What
    a C++ source says is compiled for the other tests already."""
    digest = hashlib.sha256(sys.version.encode())
    for top in ("include", "src", "oracle", "conformance", "cmake", "python", "docs", "tools"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and "tests" not in path.parts:
                digest.update(os.fsencode(path.relative_to(ROOT)))
                if top in ("cmake", "python") or path.name == "CMakeLists.txt":
                    digest.update(path.read_bytes())
    for name in ("CMakeLists.txt", "pyproject.toml"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def requirements(path):
    """{name: version} of a requirements file; "" where it leaves the version to its constraints."""
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return dict((line.split("==") + [""])[:2] for line in lines if line and not line.startswith("-c"))


def test_tools_have_one_version():
    pins = requirements(ROOT / "python" / "requirements.txt")
    assert all(pins.values()), pins
    for path in (ROOT / "bench" / "requirements.txt",
                 *(ROOT / "python" / "tests" / "with_torch").glob("requirements*.txt")):
        for name, version in requirements(path).items():
            assert bool(version) != (name in pins), f"{path}: {name}=={version}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "nanobind==" + pins["nanobind"] in project["build-system"]["requires"]
    wanted = project["build-system"]["requires"] + project["project"]["dependencies"]
    for requirement in map(Requirement, wanted):
        assert pins[requirement.name] in requirement.specifier, requirement
    assert set(project["project"]["optional-dependencies"]["test"]) <= pins.keys()


def run(*command, **keywords):
    ran = subprocess.run(command, capture_output=True, text=True, timeout=3600, **keywords)
    assert ran.returncode == 0, f"{command}\n{ran.stdout[-4000:]}\n{ran.stderr[-4000:]}"
    return ran.stdout


def install():
    """Once for each state of the packaging: it compiles the library again."""
    digest = packaging_digest()
    if STAMP.exists() and STAMP.read_text() == digest:
        return
    shutil.rmtree(VENV, ignore_errors=True)
    run(sys.executable, "-m", "venv", str(VENV))
    env = {**os.environ, "CMAKE_BUILD_PARALLEL_LEVEL": os.environ.get("REGARD_DEV_JOBS", "1"),
           # the release preset's flags, so that ccache may have the objects
           "SKBUILD_CMAKE_DEFINE": "REGARD_WARNINGS_AS_ERRORS=ON"}
    env.pop("PYTHONPATH", None)
    run(str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", ".",
        cwd=ROOT, env=env)
    STAMP.write_text(digest)


def test_pip_install_from_the_root_in_a_clean_environment(tmp_path):
    install()
    python = str(VENV / "bin" / "python")
    facts = json.loads(run(python, "-I", "-c", SMOKE, cwd=tmp_path))
    assert facts["version"] == regard.__version__
    assert pathlib.Path(facts["file"]).is_relative_to(VENV)
    assert facts["first_row_is_v"] and facts["chosen"] != "error" and facts["typed"]
    assert {"__init__.py", "_formula.py", "_ops.py"} <= set(facts["torch"]) and not facts["unasked"]
    assert facts["headers"] == [], "the wheel is the package alone"
    required = [r for r in facts["requires"] if "extra" not in r]
    assert len(required) == 1 and required[0].startswith("numpy")
    run(python, "-m", "pip", "check")


def test_pip_installs_the_command(tmp_path):
    """With NumPy alone beside it: the empty environment has no other package."""
    install()
    packages = json.loads(run(str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check",
                              "list", "--format=json"))
    assert {p["name"] for p in packages} - {"pip", "setuptools"} == {"numpy", "regard"}
    command = str(VENV / "bin" / "regard")
    assert run(command, "--version").split()[-1] == regard.__version__
    assert "flash" in run(command, "devices", cwd=tmp_path)
    table = run(command, "bench", "b1 hq2 sq64 d64", "--seconds", "0.05", cwd=tmp_path)
    assert "flash" in table and "math" in table
    run(command, "check", "b1 hq2 sq64 d64", cwd=tmp_path)
    needed = re.findall(r"^\s*(\S+?)\.so", run("ldd", command), flags=re.M)
    assert {pathlib.Path(name).name for name in needed} <= {
        "linux-vdso", "libstdc++", "libm", "libgcc_s", "libc", "libpthread", "ld-linux-x86-64",
        "ld-linux-aarch64"}


def test_pip_installs_the_documents(tmp_path):
    install()
    python = str(VENV / "bin" / "python")
    listed = run(python, "-I", "-m", "regard", "docs", cwd=tmp_path).split("\n")
    assert {line.split()[0] for line in listed if line} == {
        path.stem for path in ROOT.glob("docs/*.md")}
    assert run(python, "-I", "-m", "regard", "docs", "quickstart", cwd=tmp_path) == (
        ROOT / "docs" / "quickstart.md").read_text()
    code = code_of("docs/quickstart.md")
    assert "regard.attention" in code
    assert "chosen" in run(python, "-I", "-c", code, cwd=tmp_path)
