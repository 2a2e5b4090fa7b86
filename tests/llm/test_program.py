"""The program regard-llm: exit codes, streams, documents, and what it refuses."""

import json
import math
import os
import resource
import signal
import stat
import statistics
import struct
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from _tiny_gguf import tiny_model

PROGRAM = Path(os.environ["REGARD_DEV_BUILD_DIR"]) / "tools" / "llm" / "regard-llm"
LONG_ANSWER = ("--max-new-tokens", "4000000", "--temperature", "0")
OK, FAILED, USAGE, NO_BACKEND, INTERRUPTED = 0, 1, 2, 3, 130


def wait_for_handler(process):
    """Until the process catches SIGINT: before, it loads its model, on a busy machine for seconds."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        lines = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
        caught = next(line for line in lines if line.startswith("SigCgt")).split()[1]
        if int(caught, 16) >> (signal.SIGINT - 1) & 1:
            return
        time.sleep(0.01)


class ProgramTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.models = tempfile.TemporaryDirectory(prefix="regard-llm-models-")
        cls.addClassCleanup(cls.models.cleanup)
        cls.model = Path(cls.models.name) / "tiny.gguf"
        cls.model.write_bytes(tiny_model())

    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="regard-llm-")
        self.addCleanup(directory.cleanup)
        self.dir = Path(directory.name)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("REGARD")}
        self.env["REGARDLLM_MODELDIR"] = self.models.name

    def run_program(self, *args, code=OK, **kwargs):
        kwargs = {"capture_output": True, "timeout": 300, "env": self.env, "check": False} | kwargs
        done = subprocess.run([PROGRAM, *map(str, args)], **kwargs)
        self.assertEqual(done.returncode, code, f"{args}\n{done.stdout}\n{done.stderr}")
        return done

    def generate(self, *args, code=OK, prompt="once upon", **kwargs):
        return self.run_program(
            "generate", "--prompt", prompt, "--max-new-tokens", 20, *args, code=code, **kwargs
        )

    def document(self, done):
        return json.loads(done.stdout)

    def start(self, *args, **kwargs):
        """A process that can be interrupted, of a model with a context of 4 million tokens."""
        path = self.dir / "long.gguf"
        path.write_bytes(tiny_model(context=1 << 22, layers=1))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            [PROGRAM, args[0], "--checkpoint", path, *map(str, args[1:])],
            env=self.env,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            **(pipes | kwargs),
        )
        for stream in filter(None, (process.stdin, process.stdout, process.stderr)):
            self.addCleanup(stream.close)
        self.addCleanup(process.kill)
        return process

    def refused(self, args, *names, code=USAGE):
        """Nothing is printed, and the complaint has each of `names`."""
        done = self.run_program(*args, code=code)
        self.assertEqual(done.stdout, b"")
        for name in names:
            self.assertIn(name, done.stderr.decode())
        self.assertNotIn(b"\x1b", done.stderr)
        return done


class GenerateTest(ProgramTest):
    def test_text_comes_behind_the_prompt(self):
        done = self.generate()
        self.assertTrue(done.stdout.startswith(b"once upon"))
        self.assertTrue(done.stdout.endswith(b"\n"))
        for word in (b"9 prompt tokens", b"total", b"first-token", b"next-token", b"peak memory"):
            self.assertIn(word, done.stderr)
        # One token has no next one.
        done = self.run_program("generate", "--prompt", "a", "--max-new-tokens", 1)
        self.assertNotIn(b"next-token", done.stderr)

    def test_several_samples_are_whole_texts(self):
        done = self.generate("--num-samples", 2, "--temperature", 0)
        begin = b"sample 1 of 2:\nonce upon"
        self.assertEqual(done.stdout[: len(begin)], begin)
        first, second = done.stdout.split(b"sample 2 of 2:\n")
        self.assertEqual(first, b"sample 1 of 2:\n" + second)

    def test_one_document_with_json(self):
        found = self.document(self.generate("--json", "--num-samples", 3))
        self.assertEqual(found["prompt_tokens"], list(b"once upon"))
        self.assertEqual(len(found["samples"]), 3)
        self.assertEqual(set(found["phases"]), {"prefill", "decode"})
        self.assertFalse(found["context_full"] or found["interrupted"])
        for sample in found["samples"]:
            # 257 ends a sample.
            self.assertTrue(len(sample["tokens"]) <= 20 and 257 not in sample["tokens"])

    def test_backends_pages_threads_and_drafts_change_no_token(self):
        def tokens(*args):
            done = self.generate("--json", "--dtype", "f32", "--temperature", 0, *args)
            return self.document(done)["samples"][0]["tokens"]

        expected = tokens()
        self.assertEqual(len(expected), 20)
        for backend in ("math", "flash_attention", "efficient_attention"):
            for page_size in (0, 1, 16):
                args = ("--attention-backend", backend, "--page-size", page_size)
                self.assertEqual(tokens(*args), expected, args)
        for args in (["--threads", 1], ["--threads", 2], ["--prompt-lookup", 4]):
            self.assertEqual(tokens(*args), expected, args)

    def test_a_seed_repeats_its_tokens(self):
        first = self.generate("--seed", 5).stdout
        self.assertEqual(self.generate("--seed", 5).stdout, first)
        self.assertNotEqual(self.generate("--seed", 6).stdout, first)

    def test_every_cache_and_weights(self):
        for dtype in ("f32", "auto"):
            for cache in ("auto", "f32", "bf16", "f16", "int8", "fp8", "int4"):
                with self.subTest(dtype=dtype, cache=cache):
                    done = self.generate("--json", "--dtype", dtype, "--kv-cache", cache)
                    self.assertEqual(len(self.document(done)["samples"]), 1)

    def test_explain_and_profile_go_to_standard_error(self):
        done = self.generate("--json", "--explain", "--profile")
        self.document(done)
        for word in (b"prefill", b"decode", b"chosen", b"matrix products"):
            self.assertIn(word, done.stderr)

    def test_a_full_context_ends_the_answer(self):
        done = self.generate("--json", "--max-seq-length", 12, "--temperature", 0)
        found = self.document(done)
        self.assertTrue(found["context_full"])
        self.assertEqual(len(found["samples"][0]["tokens"]), 12 - 9 + 1)

    def test_logits_are_written_whole_or_not_at_all(self):
        path = self.dir / "logits"
        self.generate("--write-logits", path)
        logits = struct.unpack("<258f", path.read_bytes())
        self.assertTrue(all(map(math.isfinite, logits)))
        self.generate("--write-logits", self.dir / "none" / "logits", code=FAILED)
        self.generate("--write-logits", self.dir, code=FAILED)

    def test_a_device_that_cannot_be_written_stays(self):
        device = self.dir / "full"
        try:
            os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 7))
            device.open("wb").close()
        except OSError as error:
            self.skipTest(f"no device can be made here: {error}")
        done = self.generate("--write-logits", device, code=FAILED)
        self.assertIn(str(device).encode(), done.stderr)
        self.assertTrue(device.is_char_device())


class RefusalTest(ProgramTest):
    def test_options_are_named_with_their_values(self):
        for option, value in (
            ("--attention-backend", "fast"),
            ("--dtype", "f64"),
            ("--kv-cache", "int3"),
            ("--page-size", "-1"),
            ("--page-size", "5000"),
            ("--threads", "100000"),
            ("--max-seq-length", "0"),
            ("--max-seq-length", "97"),
            ("--max-new-tokens", "0"),
            ("--temperature", "-0.5"),
            ("--temperature", "warm"),
            ("--top-k", "-1"),
            ("--num-samples", "0"),
            ("--prompt-lookup", "65"),
            ("--seed", "x"),
        ):
            with self.subTest(option=option, value=value):
                self.refused(["generate", "--prompt", "a", option, value], option, value)

    def test_what_is_missing_or_unknown_is_named(self):
        self.refused(["generate"], "--prompt")
        self.refused(["generate", "--prompt", "a", "--nothing"], "--nothing")
        self.refused(["sing"], "sing", "generate, chat, eval")
        self.refused(["eval"], "file")
        self.refused([])

    def test_files_that_are_no_models(self):
        whole = self.model.read_bytes()
        name = b"blk.1.attn_v.weight"
        columns = whole.index(name) + len(name) + 4  # behind the number of extents
        for name, data in {
            "overflow": whole[:columns] + struct.pack("<Q", 1 << 62) + whole[columns + 8 :],
            "empty": b"",
            "text": b"hello",
            "cut": whole[: len(whole) // 2],
            "header": whole[:40],
        }.items():
            with self.subTest(name):
                path = self.dir / f"{name}.gguf"
                path.write_bytes(data)
                self.refused(["generate", "--prompt", "a", "--checkpoint", path])
        for path in (self.dir / "absent.gguf", self.dir):
            self.refused(["generate", "--prompt", "a", "--checkpoint", path], str(path))

    def test_prompts_that_do_not_fit_print_nothing(self):
        args = ["generate", "--prompt", "x" * 97]
        self.refused(args, "97 tokens", "room for 96", "--max-seq-length")
        self.refused(["generate", "--prompt", ""], "no token")
        self.refused([*args, "--max-seq-length", 20], "room for 20")
        self.refused(["chat", "--prompt", "x" * 97], "--max-seq-length")

    def test_prompts_that_are_no_utf8(self):
        self.refused(["generate", "--prompt", b"a\xff".decode(errors="surrogateescape")], "UTF-8")

    def test_a_backend_that_cannot_run_gives_its_reasons(self):
        for verb in (["generate", "--prompt", "a"], ["chat", "--prompt", "a"], ["bench"]):
            args = [*verb, "--attention-backend", "cudnn_attention"]
            self.refused(args, "cudnn", code=NO_BACKEND)

    def test_caches_that_no_memory_holds(self):
        path = self.dir / "long.gguf"
        path.write_bytes(tiny_model(context=1 << 24, layers=1))
        args = ["generate", "--prompt", "a", "--checkpoint", path, "--num-samples", 1024]
        done = self.refused([*args, "--page-size", 1], code=FAILED)
        self.assertIn(b"reduce --max-seq-length or --num-samples", done.stderr)

    def test_weights_that_no_memory_holds(self):
        """A file of 250 MB, whose weights take as much again, in 600 MB; the program itself has some 150."""
        path = self.dir / "large.gguf"
        path.write_bytes(tiny_model(layers=1, width=2048, ffn_width=8192, seed=None))
        args = ["generate", "--prompt", "a", "--checkpoint", path, "--threads", 1, "--dtype", "f32"]

        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))

        done = self.run_program(*args, code=FAILED, preexec_fn=limit)
        self.assertIn(b"no memory for the weights in f32; --dtype bf16 takes half", done.stderr)


class StreamTest(ProgramTest):
    VERBS = (
        ["generate", "--prompt", "a"],
        ["generate", "--prompt", "a", "--json"],
        ["generate", "--prompt", "a", "--num-samples", "2"],
        ["chat", "--prompt", "a"],
        ["where", "tiny"],
        ["list"],
        ["--help"],
        ["generate", "--help"],
    )

    def test_a_full_disk_is_a_failure(self):
        for verb in self.VERBS:
            with self.subTest(verb), open("/dev/full", "wb") as full:
                done = self.run_program(
                    *verb, code=FAILED, capture_output=False, stdout=full, stderr=subprocess.PIPE
                )
                self.assertIn(b"cannot write the output: No space left", done.stderr)

    def test_a_closed_pipe_is_a_failure(self):
        for verb in self.VERBS:
            with self.subTest(verb):
                read, write = os.pipe()
                os.close(read)
                done = self.run_program(
                    *verb, code=FAILED, capture_output=False, stdout=write, stderr=subprocess.PIPE
                )
                os.close(write)
                self.assertIn(b"cannot write the output: Broken pipe", done.stderr)

    def test_a_reader_that_leaves_ends_a_long_answer(self):
        process = self.start_long_answer()
        process.stdout.read(20)
        process.stdout.close()
        self.assertEqual(process.wait(timeout=60), FAILED)

    def start_long_answer(self, *args):
        return self.start("generate", "--prompt", "a", *LONG_ANSWER, *args)

    def test_ctrl_c_ends_an_answer(self):
        process = self.start_long_answer()
        process.stdout.read(20)
        self.assertEqual(Path(f"/proc/{process.pid}/comm").read_text(encoding="utf-8"), "regard-llm\n")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERRUPTED)
        self.assertIn(b"interrupted", err)
        self.assertTrue(out.endswith(b"\n"))

    def test_few_tokens_follow_ctrl_c(self):
        """Of those of half a second; a quarter of one would pass until the next poll of a long call."""
        shares = []
        for _ in range(3):
            process = self.start_long_answer()
            process.stdout.read(20)
            output, before = process.stdout.fileno(), 0
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                before += len(os.read(output, 1 << 16))
            process.send_signal(signal.SIGINT)
            shares.append(len(process.stdout.read()) / before)
            self.assertEqual(process.wait(timeout=60), INTERRUPTED)
        self.assertLess(statistics.median(shares), 0.08, shares)

    def test_ctrl_c_leaves_a_whole_document(self):
        process = self.start_long_answer("--json")
        wait_for_handler(process)
        time.sleep(1)  # for some tokens
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERRUPTED)
        found = json.loads(out)
        self.assertTrue(found["interrupted"])
        self.assertGreater(len(found["samples"][0]["tokens"]), 0)


class ChatTest(ProgramTest):
    def test_one_message(self):
        done = self.run_program("chat", "--prompt", "hi", "--max-new-tokens", 8)
        self.assertTrue(done.stdout.endswith(b"\n"))
        self.assertIn(b"next-token throughput", done.stderr)

    def test_json_is_one_document(self):
        done = self.run_program("chat", "--prompt", "hi", "--max-new-tokens", 8, "--json")
        found = self.document(done)
        self.assertEqual(len(found["samples"]), 1)
        self.refused(["chat", "--json"], "--json", "--prompt")

    def test_several_messages_are_the_whole_conversation(self):
        args = ("chat", "--temperature", 0, "--max-new-tokens", 4)
        done = self.run_program(*args, input=b"hi\n/reset\nhi\n/bye\nnever\n")
        self.assertEqual(done.stdout, 2 * done.stdout[: len(done.stdout) // 2])
        self.assertEqual(done.stderr.count(b"[stopped after --max-new-tokens 4]"), 2)
        self.assertIn(b"The last answer:", done.stderr)
        self.assertIn(b"next-token throughput:", done.stderr)
        # A message that does not fit is refused, and the chat goes on.
        done = self.run_program(*args, input=b"x" * 100 + b"\nhi\n")
        self.assertIn(b"room for", done.stderr)
        self.assertTrue(done.stdout)

    def stops(self, process, log, message, answers):
        """Whether Ctrl-C stops the answer: it may end by itself before, as greedy answers of random weights do."""
        process.stdin.write(b"/reset\n" + message + b"\n")
        process.stdin.flush()
        process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 20
        os.set_blocking(process.stdout.fileno(), False)
        while log.read_bytes().count(b"[stopped]") < answers:
            if process.poll() is not None or time.monotonic() > deadline:
                return False
            process.stdout.read()
            time.sleep(0.01)
        process.stdout.read()  # or the next Ctrl-C, after 20 bytes of this answer, comes before the next one begins
        os.set_blocking(process.stdout.fileno(), True)
        return True

    def test_ctrl_c_stops_the_answer_and_the_chat_goes_on(self):
        log = self.dir / "stderr"
        for message in (b"zz", b"the", b"b", b"once", b"hi", b"q"):
            with log.open("wb") as stderr:
                process = self.start("chat", *LONG_ANSWER, stderr=stderr)
            if all(self.stops(process, log, message, answers) for answers in (1, 2)):
                break
            process.kill()
            process.wait()
        else:
            self.fail("no answer was stopped twice")
        process.stdin.write(b"/bye\n")
        process.stdin.flush()
        self.assertEqual(process.wait(timeout=60), OK)


class BenchTest(ProgramTest):
    def test_rates_beside_the_machines(self):
        path = self.dir / "model.gguf"
        path.write_bytes(tiny_model(context=600, layers=1))
        args = ("bench", "--checkpoint", path, "--threads", 1)
        found = self.document(self.run_program(*args, "--json"))
        rows = [(row["phase"], row["context"]) for row in found["rows"]]
        # Contexts that the model does not have are left out.
        self.assertEqual(rows, [("prefill", 128), ("prefill", 512), ("decode", 128)])
        for row in found["rows"]:
            self.assertGreater(row["tokens_per_s"], 0)
            share = row["share_of_peak" if row["phase"] == "prefill" else "share_of_bandwidth"]
            self.assertTrue(0 < share < 1.2, row)
        path.write_bytes(tiny_model(context=200, layers=1))
        self.assertIn(b"of read bandwidth", self.run_program(*args, "--page-size", 0).stdout)


class EvalTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.text = self.dir / "text"
        self.text.write_bytes(b"Alice was beginning to get very tired of sitting by her sister.")

    def eval(self, *args, code=OK):
        return self.run_program("eval", self.text, "--window", 32, *args, code=code)

    def test_backends_and_pages_agree(self):
        expected = self.document(self.eval("--json", "--dtype", "f32"))
        self.assertEqual((expected["tokens"], expected["windows"]), (61, 2))
        self.assertAlmostEqual(expected["perplexity"], math.exp(expected["mean_loss"]), places=6)
        for backend in ("math", "flash_attention", "efficient_attention"):
            for page_size in (0, 16):
                args = ("--attention-backend", backend, "--page-size", page_size)
                found = self.document(self.eval("--json", "--dtype", "f32", *args))
                self.assertAlmostEqual(found["mean_loss"], expected["mean_loss"], delta=1e-5)
        self.assertIn(b"perplexity", self.eval().stdout)
        self.assertEqual(self.document(self.eval("--json", "--limit", 1))["windows"], 1)

    def test_formats_are_compared_with_f32(self):
        found = self.document(self.eval("--json", "--kv-cache", "int8", "--compare"))
        self.assertGreater(found["mean_divergence"], 0)
        self.assertNotIn("mean_divergence", self.document(self.eval("--json")))

    def test_texts_that_have_nothing_to_score(self):
        for data in (b"", b"a"):
            self.text.write_bytes(data)
            self.refused(["eval", self.text, "--window", 32])
        self.refused(["eval", self.dir / "absent", "--window", 32], "absent")
        self.refused(["eval", self.dir, "--window", 32], str(self.dir))

    def test_ctrl_c_prints_no_partial_perplexity(self):
        self.text.write_bytes(b"Alice was beginning to get very tired. " * 30000)
        process = self.start("eval", self.text, "--window", 4096)
        wait_for_handler(process)
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        out, err = process.communicate(timeout=60)
        self.assertEqual((process.returncode, out), (INTERRUPTED, b""))
        self.assertIn(b"interrupted", err)
        self.assertLess(time.monotonic() - sent, 10)

    def test_windows_that_do_not_fit(self):
        self.refused(["eval", self.text, "--window", 97], "--window", "97", "96")
        self.refused(["eval", self.text, "--window", 1], "--window", "1")


class ModelsTest(ProgramTest):
    def test_list_and_where(self):
        other = Path(self.models.name) / "another.gguf"
        other.write_bytes(b"")
        self.addCleanup(other.unlink)
        self.assertEqual(self.run_program("list").stdout, b"another.gguf\ntiny.gguf\n")
        for name in ("tiny", "tiny.gguf", self.model):
            self.assertEqual(self.run_program("where", name).stdout.decode(), f"{self.model}\n")
        self.refused(["where", "nothing"], "nothing", self.models.name)
        # The only file needs no name; of two one must be chosen.
        self.refused(["generate", "--prompt", "a"], "--checkpoint", "2 GGUF files")

    def test_a_directory_does_not_hide_a_model(self):
        (self.dir / "tiny").mkdir()
        done = self.run_program("where", "tiny", cwd=self.dir)
        self.assertEqual(done.stdout.decode(), f"{self.model}\n")

    def test_no_directory_of_models(self):
        self.env["REGARDLLM_MODELDIR"] = str(self.dir / "none")
        self.assertEqual(self.run_program("list").stdout, b"")
        self.refused(["generate", "--prompt", "a"], "--checkpoint")


if __name__ == "__main__":
    unittest.main()
