"""regard guide: the page, its data, and what becomes of it when something is in the way."""

import resource
import signal
import stat
import subprocess
import sys
import time
import unittest

from _cli import CLI, FAILED, SMALL, CliTest, environment

SHORT = ["--quick", "--seconds", "0.5"]  # ends after the first problems


class Guide(CliTest):
    def setUp(self):
        super().setUp()
        self.page = self.dir / "page.html"

    def left_behind(self):
        return sorted(path.name for path in self.dir.iterdir())

    def test_page_and_data(self):
        found = self.document("guide", *SHORT, "-o", self.page, SMALL, "--threads", "1")
        self.assertEqual(found["output"], str(self.page))
        report = found["report"]
        self.assertEqual(report["support"]["backends"], ["flash", "efficient", "math"])
        self.assertEqual(report["machine"]["threads"], 1)
        self.assertEqual([row["types"] for row in report["errors"] if row["gradients"]],
                         ["f32"] * 3 + ["bf16"] * 3)
        for row in report["errors"]:
            if row["error"] is not None:
                self.assertLessEqual(row["error"], row["bound"], row)
        sweeps = {sweep["id"]: sweep for sweep in report["sweeps"]}
        own = sweeps["problems"]["points"][0]
        self.assertEqual(own["case"], SMALL)
        self.assertEqual([row["name"] for row in own["rows"]], ["flash", "efficient", "math"])
        for row in own["rows"]:
            self.assertGreater(min(row["seconds"]), 0)
        self.assertEqual(report["rounds"], 1)
        self.assertLess(report["seconds"], 60)
        text = self.page.read_text()
        self.assertTrue(text.startswith("<!DOCTYPE html>"))
        self.assertTrue(text.endswith("</html>\n"))
        for answer in report["answers"]:
            self.assertIn(f"<h3>{answer['question']}", text)
        # What the time did not allow is left out, and the page states it.
        self.assertTrue(any("the time was over" in note for note in report["notes"]), report["notes"])
        self.assertIn("the time was over", text)
        self.assertEqual(len(sweeps["memory"]["points"]), 6)  # planned, not measured
        self.assertEqual(self.left_behind(), ["page.html"])

    def test_text_has_the_answers(self):
        done = self.cli("guide", *SHORT, "-o", self.page)
        self.assertIn("What runs here?\n  flash, efficient and math run on this machine", done.stdout)
        self.assertIn(f"written to {self.page}", done.stdout)
        self.assertNotIn("\r", done.stderr)

    def test_bad_input(self):
        self.refused("guide", "-o", self.dir, names=["directory"])
        self.refused("guide", "-o", self.dir / "no" / "page.html", names=["No such file"])
        self.refused("guide", "-o", "", names=["--output"])
        self.refused("guide", "--seconds", "0", names=["--seconds"])
        self.refused("guide", "-o", self.page, "sq8", names=["d"])
        self.refused("guide", "-o", self.page, "./file.safetensors", names=["not a file"])
        self.refused("guide", "-o", self.page, "sq8 d8 device=cuda", names=["cuda"])
        self.assertEqual(self.left_behind(), [])

    def test_peer_that_is_none(self):
        begin = time.monotonic()
        self.refused("guide", *SHORT, "-o", self.page, "--peer", self.dir / "none", code=FAILED,
                     names=["none", "No such file"])
        self.refused("guide", *SHORT, "-o", self.page, "--peer", "/bin/false", code=FAILED,
                     names=["/bin/false"])
        self.assertLess(time.monotonic() - begin, 60)  # half of what a peer that is silent is given
        self.assertEqual(self.left_behind(), [])

    def test_peer(self):
        """A program that speaks as PyTorch's would."""
        peer = self.dir / "peer"
        peer.write_text(f"#!{sys.executable}\n" + """
import sys
print('{"version": "torch <9>"}', flush=True)
for line in sys.stdin:
    print('{"seconds": 0.25}' if '"bf16"' not in line else '{"error": "no <bf16>"}', flush=True)
""")
        peer.chmod(peer.stat().st_mode | stat.S_IXUSR)
        report = self.document("guide", *SHORT, "-o", self.page, "--peer", peer, SMALL,
                               "b1 sq4 d8 bf16")["report"]
        self.assertEqual(report["peer"], "torch <9>")
        first, second = (point["rows"][-1] for point in report["sweeps"][0]["points"])
        self.assertEqual((first["name"], first["peer"], first["seconds"]), ("torch", True, [0.25]))
        self.assertEqual((second["seconds"], second["reason"]), ([], '"no <bf16>"'))
        self.assertNotIn("<9>", self.page.read_text())

    def test_full_disk(self):
        self.page.write_text("old")

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

        done = self.cli("guide", *SHORT, "-o", self.page, code=FAILED, preexec_fn=limit)
        self.assertIn("File too large", done.stderr)
        self.assertEqual(self.page.read_text(), "old")
        self.assertEqual(self.left_behind(), ["page.html"])

    def test_interrupt_leaves_no_file(self):
        process = subprocess.Popen([CLI, "guide", "--seconds", "100", "-o", self.page],
                                   env=environment(), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertIn("interrupted", err)
        self.assertEqual(self.left_behind(), [])


if __name__ == "__main__":
    unittest.main()
