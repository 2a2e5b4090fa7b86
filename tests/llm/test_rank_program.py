"""regard-llm over the ranks of mpirun: the tokens of one rank, and what it refuses there."""

import json
import os
import shlex
import subprocess
import tempfile
import unittest
from pathlib import Path

from _tiny_gguf import tiny_model

PROGRAMS = Path(os.environ["REGARD_DEV_BUILD_DIR"])
PROGRAM = PROGRAMS / "tools" / "llm" / "regard-llm"
MPIRUN = shlex.split(os.environ["REGARD_DEV_MPIRUN"])
USAGE, NO_BACKEND = 2, 3


class RankProgramTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.models = tempfile.TemporaryDirectory(prefix="regard-llm-ranks-")
        cls.addClassCleanup(cls.models.cleanup)
        cls.model = Path(cls.models.name) / "tiny.gguf"
        cls.model.write_bytes(tiny_model())
        cls.env = {k: v for k, v in os.environ.items() if not k.startswith("REGARD")}

    def run_program(self, words, *args, code=0):
        common = ("--checkpoint", self.model, "--threads", 1, "--dtype", "f32")
        done = subprocess.run(
            [*words, PROGRAM, args[0], *map(str, [*common, *args[1:]])],
            capture_output=True, timeout=300, env=self.env, check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, code, f"{args}\n{done.stdout}\n{done.stderr}")
        return done

    def on_ranks(self, ranks, *args, **kwargs):
        return self.run_program([*MPIRUN, "-n", str(ranks)], *args, **kwargs)

    def refused(self, ranks, args, *texts, code=USAGE):
        done = self.on_ranks(ranks, *args, code=code)
        self.assertEqual(done.stdout, b"")
        for text in texts:
            self.assertEqual(done.stderr.decode().count(text), 1, done.stderr)


@unittest.skipUnless(MPIRUN, "this build has no MPI")
class RanksTest(RankProgramTest):
    ARGS = ("generate", "--prompt", "once upon a time, on ranks", "--max-new-tokens", 25)

    def test_greedy_tokens_are_those_of_one_rank(self):
        greedy = (*self.ARGS, "--temperature", 0, "--json")
        expected = json.loads(self.run_program([], *greedy).stdout)
        self.assertEqual(len(expected["samples"][0]["tokens"]), 25)
        for ranks, comm in ((2, "auto"), (4, "p2p"), (4, "all_gather"), (4, "a2a")):
            found = json.loads(self.on_ranks(ranks, *greedy, "--comm", comm).stdout)
            self.assertEqual(found["samples"], expected["samples"], (ranks, comm))
            self.assertEqual(found["prompt_tokens"], expected["prompt_tokens"])
            self.assertEqual(found["ranks"], ranks)
            self.assertIn(found["comm"], ("p2p", "all_gather", "a2a") if comm == "auto" else comm)

    def test_rank_zero_alone_prints_and_draws(self):
        drawn = (*self.ARGS, "--temperature", 1.5, "--seed", 3)
        expected = self.run_program([], *drawn).stdout
        done = self.on_ranks(2, *drawn, "--explain", "--profile")
        self.assertEqual(done.stdout, expected)
        for text in ("ranks 2, layout zigzag, comm", "decode\neach rank", "matrix products"):
            self.assertEqual(done.stderr.decode().count(text), 1, done.stderr)

    def test_the_logits_of_a_prompt_shorter_than_the_ranks(self):
        values = []
        for words in ([], [*MPIRUN, "-n", "4"]):
            path = Path(self.models.name) / "logits"
            self.run_program(words, "generate", "--prompt", "ab", "--max-new-tokens", 1,
                             "--write-logits", path)  # fmt: skip
            values.append(memoryview(path.read_bytes()).cast("f"))
        self.assertEqual(len(values[0]), 258)
        for one, many in zip(*values):
            self.assertAlmostEqual(one, many, delta=1e-5)

    def test_what_has_no_meaning_over_ranks_is_refused_once_and_by_name(self):
        self.refused(2, ("chat", "--prompt", "a"), "verb ('chat') must be generate under mpirun")
        for option, text in {
            ("--hadamard",): "--hadamard must be left out under mpirun",
            ("--page-size", 16): "--page-size (16) must be 0 under mpirun",
        }.items():
            self.refused(2, (*self.ARGS, *option), text)
        self.refused(2, (*self.ARGS, "--attention-backend", "cudnn_attention"),
                     "no backend can run attention", code=NO_BACKEND)  # fmt: skip
        self.run_program([], *self.ARGS, "--comm", "p2p", code=USAGE)

    def test_ranks_with_other_weights_disagree(self):
        other = Path(self.models.name) / "other.gguf"
        other.write_bytes(tiny_model(ffn_width=64))
        self.addCleanup(other.unlink)
        one = [PROGRAM, *map(str, self.ARGS), "--threads", "1", "--dtype", "f32", "--checkpoint"]
        done = subprocess.run(
            [*MPIRUN, "-n", "1", *one, self.model, ":", "-n", "1", *one, other],
            capture_output=True, timeout=300, env=self.env, check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, USAGE)
        self.assertEqual(done.stderr.decode().count("ranks disagree: rank 0 (weights f32 of"), 1)


class WithoutMpiTest(unittest.TestCase):
    def test_mpirun_is_refused(self):
        program = PROGRAMS / "tests" / "regard_llm_without_mpi"
        for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
            env = {k: v for k, v in os.environ.items() if k != "OMPI_COMM_WORLD_SIZE"}
            done = subprocess.run(
                [program, "generate", "--prompt", "a"],
                capture_output=True, timeout=60, env=env | {name: "2"}, check=False,
            )  # fmt: skip
            self.assertEqual(done.returncode, USAGE)
            self.assertIn(b"mpirun needs MPI, which this build does not have", done.stderr)


if __name__ == "__main__":
    unittest.main()
