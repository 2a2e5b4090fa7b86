"""Runs a check of what nvcc made over the files of this build."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(os.environ.get("REGARD_DEV_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BUILD = pathlib.Path(os.environ.get("REGARD_DEV_BUILD_DIR", ROOT / "build" / "dev"))
NOT_HERE = 77  # the exit code of a check that lacks one of its programs

sys.path.insert(0, str(ROOT / "scripts"))


def skip(test, reason):
    """Skips the test; ./dev cuda finds the line in ctest's log, and prints it."""
    print(f"\nnot checked: {reason}", flush=True)
    test.skipTest(reason)


def expect_pass(test, script, target, pattern):
    """The test passes where scripts/<script> does for what <target> made by <pattern>; skips where there is none."""
    files = sorted((BUILD / "src" / "CMakeFiles" / f"{target}.dir").rglob(pattern))
    if not files:
        skip(test, f"{script}: built without {target}")
    done = subprocess.run([sys.executable, "-B", ROOT / "scripts" / script, *files], capture_output=True, text=True)
    if done.returncode == NOT_HERE:
        skip(test, done.stdout.strip())
    test.assertEqual(done.returncode, 0, done.stdout + done.stderr)
