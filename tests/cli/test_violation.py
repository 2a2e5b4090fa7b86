"""The file and the command of a violation of a self-check reproduce it."""

import os
import shlex
import struct
import subprocess
import unittest
from pathlib import Path

from _cli import CliTest, environment, read_tensors

VIOLATION = Path(os.environ["REGARD_DEV_BUILD_DIR"]) / "tests" / "regard_violation"
BATCH, HEADS, QUERIES, DIM = 2, 4, 33, 16
SHAPE = f"b{BATCH} hq{HEADS} hkv2 sq{QUERIES} skv65 d{DIM} f32"


def values(data):
    return struct.unpack(f"<{len(data) // 4}f", data)


class Violation(CliTest):
    def reproduce(self, words):
        done = subprocess.run([VIOLATION, self.dir, words], capture_output=True, text=True, check=False,
                              env=environment())
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        file, command, output, place = done.stdout.splitlines()
        batch, head, row, error = place.split()
        self.assertEqual(output, "out")
        program, *args = shlex.split(command)
        self.assertEqual((program, args[:4]), ("regard", ["run", file, "--backend", "flash"]))
        args[3] = "flash"
        self.cli(*args, "-o", self.dir / "flash.safetensors")
        args[3] = "math"
        self.cli(*args, "-o", self.dir / "math.safetensors")
        outs = []
        for name in ("flash", "math"):
            dtype, shape, data = read_tensors(self.dir / f"{name}.safetensors")[0]["out"]
            self.assertEqual((dtype, shape), ("F32", [BATCH, HEADS, QUERIES, DIM]))
            outs.append(values(data))
        wrong = values((self.dir / "out.bin").read_bytes())
        # Only the first element of each row is wrong; the call computed the others as the command does.
        differ = [n for n, (a, b) in enumerate(zip(wrong, outs[0], strict=True)) if n % DIM and a != b]
        self.assertEqual(differ[:9], [])
        at = ((int(batch) * HEADS + int(head)) * QUERIES + int(row)) * DIM
        self.assertGreater(float(error), 0.1)
        self.assertAlmostEqual(abs(wrong[at] - outs[1][at]), float(error), delta=1e-6 * float(error))
        self.assertAlmostEqual(outs[0][at], outs[1][at], delta=1e-4)

    def test_dense_call(self):
        self.reproduce(SHAPE)

    def test_mask_diagonal_scale_and_dropout(self):
        self.reproduce(SHAPE + " mask bias=1,H,Sq,Skv causal diag=br scale=0.4 softcap=5 dropout=0.25 seed=7")

    def test_lengths_and_window(self):
        self.reproduce(SHAPE + " lens causal window=9,0 diag=br seed=3")


if __name__ == "__main__":
    unittest.main()
