"""examples/train_tiny: it learns, and neither threads nor the backend change what it learns."""

import json
import math
import os
import pathlib
import re
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

SOURCE = pathlib.Path(os.environ["REGARD_DEV_SOURCE_DIR"])
PROGRAM = pathlib.Path(os.environ["REGARD_DEV_BUILD_DIR"]) / "examples" / "train_tiny"
STEPS = 50
# Two instruction sets of one backend differ by 2e-8 after 50 steps.
FLOAT_NOISE = 1e-5


def environment():
    return {k: v for k, v in os.environ.items() if not k.startswith("REGARD_")}


def backends_with_a_backward():
    """Names of those that explain() would let train the example's attention."""
    words = "b8 hq4 sq64 d16 f32 causal dropout=0.1 saved grad layout_q=bshd"
    done = subprocess.run([os.environ["REGARD_DEV_CLI"], "explain", words, "--json"], text=True,
                          capture_output=True, env=environment(), check=True)
    return [c["backend"] for c in json.loads(done.stdout)["candidates"] if c["usable"]]


class TrainTiny(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="regard-train-")
        self.addCleanup(directory.cleanup)
        self.dir = pathlib.Path(directory.name)

    def train(self, *args, steps=STEPS, code=0):
        """What the program says, and its losses."""
        losses = self.dir / "losses"
        done = subprocess.run(
            [PROGRAM, "--text", SOURCE / "LICENSE", "--steps", str(steps), "--losses", losses,
             *args], text=True, capture_output=True, env=environment(), timeout=300, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        if code != 0:
            return done.stderr, []
        self.assertEqual(done.stderr, "")  # the progress bar is a terminal's
        return done.stdout, [float(line) for line in losses.read_text().split()]

    def checksum(self, text):
        return re.search(r"^parameters  ([0-9a-f]{16})$", text, re.M).group(1)

    def test_it_learns_the_same_on_any_number_of_threads(self):
        svg = self.dir / "curve.svg"
        one, losses = self.train("--threads", "1", "--svg", svg)
        self.assertEqual(len(losses), STEPS)
        guess = math.log(int(re.search(r"(\d+) symbols", one).group(1)))
        self.assertAlmostEqual(losses[0], guess, delta=0.1)
        self.assertLess(sum(losses[-10:]) / 10, 2.9)  # of 4.33
        root = xml.etree.ElementTree.parse(svg).getroot()
        curves = [e for e in root if e.tag.endswith("polyline")]
        self.assertEqual([len(c.get("points").split()) for c in curves], [STEPS, STEPS])

        two, same = self.train("--threads", "2")
        self.assertIn("2 threads", two)
        self.assertEqual(self.checksum(two), self.checksum(one))
        self.assertEqual(same, losses)

    def test_every_backend_learns_the_same(self):
        names = backends_with_a_backward()
        self.assertIn("math", names)
        _, expected = self.train("--backend", "MATH")
        for name in names:
            if name == "math":
                continue
            text, losses = self.train("--backend", name)
            self.assertIn(f"{name} attention", text)
            for step, (a, b) in enumerate(zip(losses, expected, strict=True)):
                self.assertAlmostEqual(a, b, delta=FLOAT_NOISE, msg=f"{name}, step {step}")

    def test_what_is_wrong_is_named(self):
        for args, words, code in (
            (["--backend", "fast"], ["fast"], 2),
            (["--backend", "CUDNN_ATTENTION"], ["cudnn", "device"], 1),
            (["--steps", "0"], ["--steps (0)", "1..1000000"], 2),
            (["--threads", "two"], ["--threads (two)"], 2),
            (["--colour", "red"], ["--colour", "usage"], 2),
            (["--svg"], ["--svg", "value"], 2),
            (["--text", self.dir / "none"], ["none", "cannot be read"], 1),
        ):
            with self.subTest(args=args):
                complaint, _ = self.train(*args, steps=1, code=code)
                for word in words:
                    self.assertIn(word, complaint)


if __name__ == "__main__":
    unittest.main()
