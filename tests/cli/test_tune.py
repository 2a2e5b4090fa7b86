"""`regard tune`: the table, what is kept between runs, what is refused, and what interrupts it."""

import json
import resource
import signal
import subprocess
import time
import unittest

from _cli import CLI, FAILED, INTERRUPTED, OK, CliTest, environment

CASES = "# two of them\nb1 hq2 sq8 d8 f32\nb1 hq2 sq9 d8 f32 grad\n\n"


class Tune(CliTest):
    def setUp(self):
        super().setUp()
        self.cases = self.put("cases.txt", CASES.encode())
        self.cache = {"XDG_CACHE_HOME": str(self.dir / "cache")}

    def tune(self, *args, code=0, **env):
        return self.document("tune", "--quick", "--threads", "1", "--cases", self.cases, *args, code=code,
                             env={**self.cache, **env})

    def tune_until(self, is_done):
        """A problem is not kept where the machine's speed changed while it was measured: again."""
        for _ in range(20):
            if is_done(self.document("tune", "--quick", "--threads", "1", "--cases", self.cases,
                                     code=(OK, FAILED), env=self.cache)):
                return
        self.fail("the machine's speed changes all the time")

    def tune_until_kept(self):
        self.tune_until(lambda found: found["measured"] == 0)

    def entries(self):
        return sorted((self.dir / "cache" / "regard" / "tuning").glob("*/*/*.entry"))

    def test_a_table_that_explain_takes(self):
        found = self.tune()
        self.assertEqual([found[key] for key in ("problems", "measured", "reused", "out_of_time")],
                         [2, 2, 0, False])
        [table] = (self.dir / "cache" / "regard" / "tuning").glob("*/table.txt")
        self.assertEqual(found["table"], str(table))
        lines = table.read_text().splitlines()
        self.assertEqual(lines[:2], ["regard-tuning 1", f"lines {len(lines) - 2}"])
        self.assertEqual(sum(line.startswith("cost ") for line in lines), 54)
        self.assertEqual(sum(line.startswith("rates ") for line in lines), 1)
        explained = self.document("explain", "b1 hq2 sq8 d8 f32", "--threads", "1",
                                  env={"REGARD_TUNING": str(table)})
        self.assertEqual(explained["cost_source"], f"tuning table {table}")
        self.assertEqual(explained["warnings"], [])
        other = self.document("explain", "b1 hq2 sq8 d8 f32", "--threads", "2",
                              env={"REGARD_TUNING": str(table)})
        self.assertEqual(other["cost_source"], "default rates")
        self.assertIn("it was made for concurrency 1, not 2", other["warnings"][0])

    def test_the_table_is_found_without_a_variable(self):
        case = ["explain", "b1 hq2 sq8 d8 f32", "--threads"]
        table = self.tune()["table"]
        taken = f"tuning table {table}"
        self.assertEqual(self.document(*case, "1", env=self.cache)["cost_source"], taken)
        # Another number of threads is another environment, which has a table of its own.
        for threads, env in (("2", self.cache), ("1", {**self.cache, "REGARD_TUNING": "none"}),
                             ("1", {"XDG_CACHE_HOME": str(self.dir / "other")})):
            with self.subTest(threads=threads, env=env):
                found = self.document(*case, threads, env=env)
                self.assertEqual((found["cost_source"], found["warnings"]), ("default rates", []))

    def test_a_found_table_that_is_damaged_is_a_warning(self):
        path = self.tune()["table"]
        with open(path, "r+", encoding="utf-8") as file:
            file.truncate(200)
        done = self.cli("explain", "b1 hq2 sq8 d8 f32", "--threads", "1", env=self.cache)
        self.assertIn(f"tuning table {path} is skipped: ", done.stdout + done.stderr)
        self.assertIn("default rates", done.stdout)

    def test_what_was_measured_is_kept(self):
        self.tune_until_kept()
        self.assertEqual(len(self.entries()), 2)
        found = self.tune("-o", self.dir / "again.txt")
        self.assertEqual((found["measured"], found["reused"]), (0, 2))
        # Another number of threads is another environment, another number of rounds another condition.
        found = self.document("tune", "--threads", "1", "--cases", self.cases, env=self.cache)
        self.assertEqual((found["measured"], found["reused"]), (2, 0))
        self.assertEqual(len({entry.parent for entry in self.entries()}), 2)
        self.assertNotIn(".tmp", " ".join(str(p) for p in self.dir.rglob("*")))

    def test_damaged_and_foreign_entries_are_measured_again_and_reported(self):
        self.tune_until_kept()
        one, two = self.entries()
        texts = {entry: entry.read_text() for entry in (one, two)}
        for damages in ((lambda text: text[:-1], lambda text: text[: len(text) // 2]),
                        (lambda text: "", lambda text: "garbage"),
                        (lambda text: "regard-tuning 1\n", lambda text: text.replace("version ", "version 9")),
                        (lambda text: texts[two], lambda text: text.replace("concurrency 1", "concurrency 7")),
                        (lambda text: "\0" * 100, lambda text: texts[one])):
            damaged = [damage(text) for damage, text in zip(damages, texts.values())]
            with self.subTest(damaged=[text[:40] for text in damaged]):
                for entry, text in zip(texts, damaged):
                    entry.write_text(text)
                found = self.tune()
                self.assertEqual((found["measured"], found["reused"]), (2, 0))
                self.assertEqual(len(found["notes"]), 2)
                for entry in texts:
                    self.assertTrue(any(entry.name in note for note in found["notes"]))
                    if not entry.exists():
                        self.tune_until_kept()
                    self.assertNotEqual(entry.read_text().split(" : ")[1:2], [])
        one.unlink()
        one.mkdir()
        self.tune_until(lambda found: found["exit_code"] == FAILED)

    def test_text(self):
        text = self.cli("tune", "--quick", "--threads", "1", "--cases", self.cases, "-o",
                        self.dir / "t.txt", env=self.cache).stdout
        self.assertIn("2 of 2 problems, 0 of them from an earlier run\n", text)
        self.assertIn(f"export REGARD_TUNING={self.dir / 't.txt'}\n", text)

    def test_variants_are_measured_and_a_table_names_one(self):
        self.cases = self.put("long.txt", b"b1 hq1 sq600 d8 f32\n")
        table = self.dir / "t.txt"
        found = self.tune("-o", table)
        self.assertEqual(found["measured"], 1)
        self.assertIn("variants", found)
        self.tune_until_kept()
        [entry] = self.entries()
        times = [line.split()[1] for line in entry.read_text().splitlines() if line.startswith("time ")]
        self.assertIn("flash", times)
        self.assertIn("flash/row_blocks_2", times)
        lines = table.read_text().splitlines()
        named = [line for line in lines if not line.startswith(("lines ", "variant "))]
        table.write_text("\n".join([*named, "variant sq>=256 : flash/row_blocks_2", ""]))
        explain = ["explain", "b1 hq1 sq600 d8 f32", "--threads", "1"]
        plan = self.document(*explain, env={"REGARD_TUNING": str(table)})["plan"]
        self.assertEqual((plan["variant"], plan["variant_source"]),
                         ("row_blocks_2", f"tuning table {table}"))
        plan = self.document(*explain, env={"REGARD_TUNING": "none"})["plan"]
        self.assertEqual((plan["variant"], plan["variant_source"]), ("default", "default"))

    def test_cases_of_a_record(self):
        record = self.dir / "calls.record"
        self.cli("bench", "b1 hq2 hkv2 sq8 skv8 d8 f32", "--rounds", "2", env={"REGARD_RECORD": str(record)})
        found = self.document("tune", "--quick", "--threads", "1", "--cases", record, env=self.cache)
        self.assertEqual((found["problems"], found["measured"]), (1, 1))
        damaged = self.put("a.record", record.read_bytes().replace(b" forward ", b" sideways "))
        self.refused("tune", "--cases", damaged, names=["a.record", "sideways"], env=self.cache)

    def test_out_of_time(self):
        found = self.tune("--seconds", "1e-9")
        self.assertEqual((found["out_of_time"], found["measured"]), (True, 0))

    def test_refusals(self):
        bad = self.put("bad.txt", b"b1 hq2 sq8 d8 f32\nb1 hq2 sq8 d8 f33\n")
        self.refused("tune", "--cases", bad, names=["line 2", "f33"], env=self.cache)
        self.refused("tune", "--cases", self.put("none.txt", b"# nothing\n"), names=["no case"], env=self.cache)
        self.refused("tune", "--cases", self.put("gpu.txt", b"sq8 d8 f16 device=cuda\n"), names=["line 1"],
                     env=self.cache)
        self.refused("tune", "--cases", self.dir / "absent", names=["absent"], env=self.cache)
        self.refused("tune", "--seconds", "0", names=["--seconds"], env=self.cache)
        self.refused("tune", "--cases", self.cases, names=["XDG_CACHE_HOME"],
                     env={"HOME": "", "XDG_CACHE_HOME": ""})

    def test_a_disk_that_is_full(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        done = self.cli("tune", "--quick", "--threads", "1", "--cases", self.cases, code=FAILED,
                        env=self.cache, preexec_fn=limit)
        self.assertIn("cannot write", done.stderr)
        self.assertEqual([p for p in self.dir.rglob("*") if p.suffix in (".tmp", ".entry")], [])

    def test_two_at_once(self):
        args = [CLI, "tune", "--quick", "--threads", "1", "--cases", str(self.cases), "--json"]
        programs = [subprocess.Popen(args, env=environment(**self.cache), stdout=subprocess.PIPE)
                    for _ in range(2)]
        for program in programs:
            found = json.loads(program.communicate(timeout=300)[0])
            self.assertEqual(found["exit_code"], 0)
            self.assertEqual(found["measured"] + found["reused"], 2)
        self.tune_until_kept()

    def test_an_interrupt_keeps_what_is_measured(self):
        many = self.put("many.txt", "".join(f"b1 hq8 sq{n} d64 f32\n" for n in range(300, 360)).encode())
        args = [CLI, "tune", "--quick", "--threads", "1", "--cases", str(many)]
        program = subprocess.Popen(args, env=environment(**self.cache), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        end = time.time() + 120
        while not self.entries() and time.time() < end:
            time.sleep(0.05)
        program.send_signal(signal.SIGINT)
        out, _ = program.communicate(timeout=60)
        self.assertEqual(program.returncode, INTERRUPTED)
        self.assertIn("run it again to go on", out)
        kept = len(self.entries())
        self.assertGreater(kept, 0)
        self.assertLess(kept, 60)
        self.assertEqual(list((self.dir / "cache" / "regard" / "tuning").glob("*/table.txt")), [])
        # Any that is kept: of a machine that changes its speed the first need not be.
        words = self.entries()[0].read_text().rsplit(" : ", 1)[1]
        short = self.put("short.txt", words.encode())
        found = self.document("tune", "--quick", "--threads", "1", "--cases", short, env=self.cache)
        self.assertEqual((found["measured"], found["reused"]), (0, 1))


if __name__ == "__main__":
    unittest.main()
