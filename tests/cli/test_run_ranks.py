"""`mpirun regard run`: a sequence that the memory of one rank does not hold, and a rank that is killed."""

import os
import resource
import shlex
import signal
import subprocess
import time
import unittest
from pathlib import Path

from _cli import CLI, FAILED, OK, environment

MPIRUN = shlex.split(os.environ["REGARD_DEV_MPIRUN"])
RANKS = Path(CLI).with_name("regard-ranks")
# q, k, v and out are 0.5 GiB in all; a quarter of them, with what Open MPI maps, is 0.45 GiB.
CASE = "hq4 sq131072 d64 f32 window=256,0 layout=contiguous comm=p2p"
LIMIT = 600 << 20


def can_limit_memory():
    # A sanitizer maps terabytes.
    return bool(MPIRUN) and RANKS.exists() and b"__sanitizer" not in RANKS.read_bytes()


@unittest.skipUnless(can_limit_memory(), "needs MPI, and a build without sanitizers")
class MemoryOfARankTest(unittest.TestCase):
    def run_on(self, ranks):
        return subprocess.run(
            [*MPIRUN, "-n", str(ranks), CLI, "run", CASE],
            capture_output=True, text=True, timeout=120, check=False,
            env=environment(REGARD_NUM_THREADS="1"),
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT)),
        )  # fmt: skip

    def test_four_ranks_hold_what_one_does_not(self):
        alone = self.run_on(1)
        self.assertEqual(alone.returncode, FAILED, alone.stderr)
        self.assertEqual(alone.stdout, "")
        self.assertIn("regard run: rank 0: memory ran out; more ranks need less each\n", alone.stderr)
        together = self.run_on(4)
        self.assertEqual(together.returncode, OK, together.stderr)
        self.assertIn("within the tolerance 2e-05", together.stdout)


@unittest.skipUnless(MPIRUN and RANKS.exists(), "needs MPI")
class KilledRankTest(unittest.TestCase):
    CASE = "hq8 sq16384 d64 f32 comm=p2p"  # two seconds
    TIMEOUT = 60  # of a message

    def ranks_of(self, job):
        """The processes of the job's ranks that compute or exchange messages, or fewer after 30 s."""
        ranks = []
        for _ in range(3000):
            children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
            ranks = [int(pid) for pid in children if os.readlink(f"/proc/{pid}/exe") == str(RANKS.resolve())]
            if len(ranks) == 3 or job.poll() is not None:
                break
            time.sleep(0.01)
        return ranks

    def test_the_job_ends_with_an_error(self):
        job = subprocess.Popen(
            [*MPIRUN, "-n", "3", CLI, "run", self.CASE],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(REGARD_NUM_THREADS="1"),
        )  # fmt: skip
        self.addCleanup(job.kill)
        ranks = self.ranks_of(job)
        self.assertEqual(len(ranks), 3)
        time.sleep(0.5)
        os.kill(ranks[-1], signal.SIGKILL)
        _, errors = job.communicate(timeout=self.TIMEOUT)
        self.assertNotEqual(job.returncode, 0, errors)
        self.assertIn("signal 9", errors)


if __name__ == "__main__":
    unittest.main()
