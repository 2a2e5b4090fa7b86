"""`regard run -o`: the file appears whole or not at all."""

import os
import resource
import signal
import stat
import subprocess
import time
import unittest
from json import loads

from _cli import (
    CLI,
    FAILED,
    INTERRUPTED,
    USAGE,
    CliTest,
    environment,
    qkv,
    read_tensors,
    tensor_file,
)

BIG = {"batch": 1, "heads_q": 2, "heads_kv": 2, "sq": 256, "skv": 256, "dim": 64}


def limit_file_size(size):
    def apply():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    return apply


class OutputFile(CliTest):
    def setUp(self):
        super().setUp()
        self.file = self.put("in.safetensors", tensor_file(qkv(**BIG)))
        self.before = self.file.read_bytes()

    def run_limited(self, size, out, code):
        return self.cli(
            "run",
            self.file,
            "--repeat",
            "1",
            "-o",
            out,
            code=code,
            preexec_fn=limit_file_size(size),
        )

    def test_naming_the_input(self):
        self.cli("run", self.file, "--repeat", "1", "-o", self.file)
        tensors, _ = read_tensors(self.file)
        self.assertEqual(set(tensors), {"out", "lse"})
        self.assertEqual(self.names(), ["in.safetensors"])

    def test_file_size_limit(self):
        old = self.put("old.safetensors", b"old")
        for out in (self.file, old):
            for size in (0, 100, 65536):
                done = self.run_limited(size, out, FAILED)
                self.assertIn("File too large", done.stderr)
                self.assertIn(out.name, done.stderr)
        self.assertEqual(old.read_bytes(), b"old")
        self.assertEqual(self.file.read_bytes(), self.before)
        self.assertEqual(self.names(), ["in.safetensors", "old.safetensors"])
        self.run_limited(1 << 20, self.file, 0)

    def test_file_size_limit_with_json(self):
        args = [CLI, "run", str(self.file), "--repeat", "1", "-o", str(self.file), "--json"]
        done = subprocess.run(
            args,
            capture_output=True,
            text=True,
            env=environment(),
            preexec_fn=limit_file_size(100),
            check=False,
        )
        self.assertEqual(done.returncode, FAILED)
        self.assertIn('"output_failed"', done.stdout)

    def test_a_full_device(self):
        done = self.cli("run", self.file, "-o", "/dev/full", code=USAGE)
        self.assertIn("not a regular file", done.stderr)
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/full").st_mode))

    def test_bad_targets_are_refused_before_any_work(self):
        for target, why in (
            (self.dir, "directory"),
            (self.dir / "missing" / "x", "No such file"),
            (f"{self.dir}/x/", "No such file"),
        ):
            with self.subTest(target=target):
                done = self.cli("run", self.file, f"--output={target}", code=USAGE)
                self.assertIn(why, done.stderr)
                self.assertEqual(done.stdout, "")
        self.assertEqual(self.names(), ["in.safetensors"])

    def test_nothing_is_written_where_nothing_ran(self):
        self.cli("run", self.file, "--backend", "cudnn", "-o", self.dir / "out", code=3)
        self.cli("run", self.file, "--option", "causal=maybe", "-o", self.dir / "out", code=2)
        self.assertEqual(self.names(), ["in.safetensors"])

    def test_links_are_followed(self):
        (self.dir / "far").mkdir()
        for link, to, written in (
            ("absolute", self.dir / "far" / "a", "far/a"),
            ("relative", "far/b", "far/b"),
            ("chain", "relative_to_link", "far/c"),
            ("present", "in.safetensors", "in.safetensors"),
        ):
            with self.subTest(link=link):
                (self.dir / link).symlink_to(to)
                if link == "chain":
                    (self.dir / "far" / "link").symlink_to("c")
                    (self.dir / "relative_to_link").symlink_to("far/link")
                self.cli("run", self.file, "--repeat", "1", "-o", self.dir / link)
                self.assertTrue((self.dir / link).is_symlink())
                self.assertFalse((self.dir / written).is_symlink())
                self.assertIn("out", read_tensors(self.dir / written)[0])
                self.file.write_bytes(self.before)

    def test_links_that_lead_nowhere(self):
        (self.dir / "a").symlink_to("b")
        (self.dir / "b").symlink_to("a")
        self.refused("run", self.file, "-o", self.dir / "a", names=["symbolic links"])
        (self.dir / "gone").symlink_to("missing/out")
        self.refused("run", self.file, "-o", self.dir / "gone", names=["missing"])
        self.assertEqual(self.names(), ["a", "b", "gone", "in.safetensors"])

    def test_permissions_survive(self):
        self.file.chmod(0o604)
        self.cli("run", self.file, "--repeat", "1", "-o", self.file)
        self.assertEqual(stat.S_IMODE(self.file.stat().st_mode), 0o604)


class Interrupted(CliTest):
    def start(self, *args):
        return subprocess.Popen(
            [CLI, *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    @staticmethod
    def catches(process, number):
        """Whether the program handles the signal by now; before that it would just die."""
        with open(f"/proc/{process.pid}/status") as status:
            for line in status:
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
        return False

    def interrupt(self, process, number=signal.SIGINT):
        """Signals a program that would work for hours, as soon as it can be told to stop."""
        while not self.catches(process, number):
            self.assertIsNone(process.poll(), "the program must still be at work")
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
        self.assertIn("interrupted", err)
        return process.returncode, out

    def test_run_leaves_the_old_file(self):
        file = self.put("in.safetensors", tensor_file(qkv(**BIG)))
        before = file.read_bytes()
        run = ["run", file, "--repeat", "1000000", "-o", file]
        for number, code in ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, 143)):
            self.assertEqual(self.interrupt(self.start(*run), number)[0], code)
        self.assertEqual(file.read_bytes(), before)
        self.assertEqual(self.names(), ["in.safetensors"])

    def test_random_checks(self):
        process = self.start("check", "--random", "1000000000", "--json")
        code, out = self.interrupt(process)
        self.assertEqual(code, INTERRUPTED)
        self.assertIn('"exit_code": 130', out)

    def stops(self, *args):
        """A program that is interrupted amid `args` ends within a second."""
        for number, code, json in (
            (signal.SIGINT, INTERRUPTED, []),
            (signal.SIGTERM, 143, ["--json"]),
        ):
            process = self.start(*args, *json)
            self.addCleanup(process.kill)
            time.sleep(0.4)  # into the work
            begin = time.monotonic()
            found, out = self.interrupt(process, number)
            self.assertLess(time.monotonic() - begin, 1)
            self.assertEqual(found, code)
            if json:
                self.check_document(out, args[0], code)

    def check_document(self, text, verb, code):
        found = loads(text)
        self.assertEqual((found["schema_version"], found["verb"]), (1, verb))
        self.assertEqual(found["exit_code"], code)
        self.assertEqual(found["error"]["code"], "interrupted")

    def test_the_oracle(self):
        file = self.put("in.safetensors", tensor_file(qkv(1, 1, 1, 4000, 4000, 64)))
        self.stops("run", file, "--repeat", "1")
        self.stops("run", file, "--repeat", "1", "--grad", "--backend", "flash")

    def test_a_long_call(self):
        file = self.put("in.safetensors", tensor_file(qkv(1, 64, 1, 4000, 4000, 64)))
        self.stops("run", file, "--repeat", "1", "--no-check", "--backend", "math")

    def test_check(self):
        self.stops("check", "b1 hq8 hkv8 sq4096 skv4096 d128 f32")
        self.stops("check", "b1 hq8 hkv8 sq4096 skv4096 d128 f32 saved grad")

    def test_signals_that_a_parent_ignores_stay_ignored(self):
        process = subprocess.Popen(
            [CLI, "check", "--random", "40"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        )
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0)


if __name__ == "__main__":
    unittest.main()
