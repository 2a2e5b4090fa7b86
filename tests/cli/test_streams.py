"""Standard streams that are closed or full, and file arguments that are no regular files."""

import os
import subprocess
import unittest

from _cli import CLI, FAILED, NO_BACKEND, OK, SMALL, USAGE, CliTest, environment, qkv, tensor_file


class Streams(CliTest):
    def shell(self, line, code):
        """Runs `regard LINE` in a shell, whose redirections close and replace streams."""
        done = subprocess.run(
            ["/bin/sh", "-c", f'exec "{CLI}" {line}'],
            capture_output=True,
            text=True,
            env=environment(),
            cwd=self.dir,
            timeout=60,
            check=False,
        )
        self.assertEqual(done.returncode, code, f"{line}\n{done.stdout}\n{done.stderr}")
        return done

    def test_a_complaint_that_cannot_be_written_keeps_the_exit_code(self):
        for broken in ("2>&-", "2>/dev/full"):
            for line, code in (
                ("sing", USAGE),
                ("", USAGE),
                ("explain b1 sq=x", USAGE),
                ("run missing.safetensors", USAGE),
                (f"explain {SMALL} --backend cudnn", NO_BACKEND),
                (f"explain {SMALL}", OK),
            ):
                self.shell(f"{line} {broken}", code)
                self.shell(f"{line} --json {broken}", code)

    def test_standard_output_that_cannot_be_written(self):
        for broken in (">&-", ">/dev/full"):
            for line in ("--help", "--version", "run --help", "env", "env --json", "devices"):
                done = self.shell(f"{line} {broken}", FAILED)
                self.assertIn("standard output", done.stderr, line)
            for line, code in (("sing", USAGE), (f"explain {SMALL} --backend cudnn", NO_BACKEND)):
                self.shell(f"{line} {broken}", code)
                self.shell(f"{line} {broken} 2>&-", code)
            self.shell(f"--help {broken} 2>/dev/full", FAILED)

    def test_a_reader_that_is_gone(self):
        reader, writer = os.pipe()
        os.close(reader)
        for verb, code in ((["env"], FAILED), (["sing"], USAGE), (["--help"], FAILED)):
            done = subprocess.run(
                [CLI, *verb], stdout=writer, stderr=writer, env=environment(), check=False
            )
            self.assertEqual(done.returncode, code, verb)
        os.close(writer)

    def test_text_does_not_end_up_in_the_output_file(self):
        self.put("in.safetensors", tensor_file(qkv()))
        self.shell("run in.safetensors --repeat 1 -o whole.safetensors", OK)
        self.shell("run in.safetensors --repeat 1 -o out.safetensors >&- 2>&-", FAILED)
        whole, out = (self.dir / n for n in ("whole.safetensors", "out.safetensors"))
        self.assertEqual(out.read_bytes(), whole.read_bytes())


class EmptyValues(CliTest):
    def test_a_flag_with_an_empty_value(self):
        file = self.put("in.safetensors", tensor_file(qkv()))
        for flag in ("-o", "--repeat", "--backend", "--max-error", "--threads", "--isa"):
            self.refused("run", file, flag, "", names=["expected a value"])
        self.refused("run", file, "--output=", names=["--output"])
        self.refused("check", "--random", "", names=["--random"])
        self.refused("check", "--random", "3", "--seed", "", names=["--seed"])
        self.refused("run", "", names=["''"])


class TuningFiles(CliTest):
    """REGARD_TUNING names a regular file of at most 1 MiB."""

    def refused_table(self, path, why):
        for verb in (["env"], ["explain", SMALL]):
            self.refused(*verb, env={"REGARD_TUNING": str(path)}, names=[str(path), why])

    def test_what_is_no_regular_file(self):
        fifo = self.dir / "fifo"
        os.mkfifo(fifo)
        for path in (fifo, self.dir, "/dev/zero", "/dev/null"):
            self.refused_table(path, "regular file")
        self.refused_table(self.dir / "missing", "No such file")

    def test_a_file_that_is_too_large(self):
        table = b"regard-tuning 1\n"
        self.put("just", table + b"#" * ((1 << 20) - len(table)))
        self.cli("env", env={"REGARD_TUNING": str(self.dir / "just")})
        path = self.put("large", table + b"#" * ((1 << 20) - len(table) + 1))
        self.refused_table(path, "1048577")
        with open(path, "wb") as sparse:
            sparse.truncate(1 << 40)
        self.refused_table(path, str(1 << 40))

    def test_the_input_of_run(self):
        fifo = self.dir / "fifo"
        os.mkfifo(fifo)
        for path in (fifo, self.dir, "/dev/zero"):
            self.refused("run", path, names=["regular file"])


if __name__ == "__main__":
    unittest.main()
