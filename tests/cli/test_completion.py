"""Completions and the manual page, which are made from the options that the program has."""

import re
import shutil
import subprocess
import unittest

from _cli import USAGE, CliTest

VERBS = ["devices", "explain", "run", "bench", "tune", "check", "guide", "freeze", "diff", "env", "completion", "man"]


class Bash(CliTest):
    def complete(self, line):
        """What bash offers for the last word of `line`."""
        script = self.put("regard.bash", self.cli("completion", "bash").stdout.encode())
        words = line.split(" ")
        quoted = " ".join(f"'{word}'" for word in words)
        program = (f"set -u; source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
                   "complete -p regard >/dev/null && _regard regard; printf '%s\\n' \"${COMPREPLY[@]}\"")
        done = subprocess.run(["bash", "--norc", "-c", program], capture_output=True, text=True,
                              cwd=self.dir, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_syntax(self):
        script = self.put("regard.bash", self.cli("completion", "bash").stdout.encode())
        subprocess.run(["bash", "-n", script], check=True)

    def test_verbs(self):
        self.assertEqual(self.complete("regard ex"), ["explain"])
        self.assertEqual(set(VERBS) - set(self.complete("regard ")), set())
        self.assertIn("--version", self.complete("regard --"))

    def test_options_of_each_verb_are_those_of_its_help(self):
        for verb in VERBS:
            options = set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", options_part(self.cli(verb, "--help").stdout)))
            self.assertEqual(set(self.complete(f"regard {verb} -")), options, verb)

    def test_values(self):
        self.assertEqual(self.complete("regard explain --on-fallback e"), ["error"])
        self.assertEqual(self.complete("regard run --isa avx512_"), ["avx512_bf16"])
        self.assertEqual(self.complete("regard bench --backend flash,ef"), ["flash,efficient"])
        self.assertEqual(self.complete("regard completion f"), ["fish"])
        self.assertEqual(self.complete("regard explain --threads "), [])

    def test_words_and_files(self):
        self.assertEqual(self.complete("regard explain cau"), ["causal"])
        self.assertEqual(self.complete("regard explain causal dia"), ["diag="])
        self.assertIn("hkv", self.complete("regard bench h"))
        self.put("file.safetensors", b"")
        self.put("file.text", b"")
        self.assertEqual(self.complete("regard explain fil"), ["file.safetensors"])
        self.assertEqual(set(self.complete("regard run fil")), {"file.safetensors", "file.text"})


def options_part(text):
    """The first column of the options."""
    rows = text.partition("Options:\n")[2].partition("\n\n")[0].splitlines()
    return "\n".join(re.split(r"  +", row.strip())[0] for row in rows)


class Others(CliTest):
    def test_every_option_is_there(self):
        for shell in ("zsh", "fish"):
            script = self.cli("completion", shell).stdout
            for verb in VERBS:
                self.assertIn(verb, script)
            for name in ("assume-finite", "on-fallback", "rounds", "all-backends"):
                self.assertIn(name, script, shell)

    def check_syntax(self, shell):
        if shutil.which(shell) is None:
            self.skipTest(f"{shell} is not installed")
        script = self.put("script", self.cli("completion", shell).stdout.encode())
        subprocess.run([shell, "-n", script], check=True)

    def test_zsh(self):
        self.check_syntax("zsh")

    def test_fish(self):
        self.check_syntax("fish")

    def test_another_shell(self):
        self.refused("completion", "tcsh", names=["tcsh", "bash, zsh or fish"])
        self.refused("completion", names=["shell"])
        self.assertEqual(self.cli("completion", code=USAGE).stdout, "")


class Manual(CliTest):
    def test_it_has_every_option_and_variable(self):
        page = self.cli("man").stdout.replace("\\-", "-")
        for verb in VERBS:
            self.assertIn(f".SS {verb}\n", page)
            for option in re.findall(r"--[a-z-]+", options_part(self.cli(verb, "--help").stdout)):
                self.assertIn(option, page)
        for variable in self.document("env")["variables"]:
            self.assertIn(variable["name"], page)
        for word in ("softcap=X", "EXIT STATUS", "(default: 1)"):
            self.assertIn(word, page)

    def test_troff(self):
        page = self.cli("man").stdout
        self.assertTrue(page.startswith(".TH REGARD 1 "))
        requests = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
        self.assertLessEqual(requests, {".TH", ".SH", ".SS", ".TP", ".B", ".I", ".PP", ".nf", ".fi"})
        if shutil.which("groff") is None:
            self.skipTest("groff is not installed")
        done = subprocess.run(["groff", "-man", "-ww", "-Tutf8"], input=page, capture_output=True,
                              text=True, check=True)
        self.assertEqual(done.stderr, "")
        self.assertTrue("regard explain [OPTION...] CASE|FILE..." in re.sub(".\x08", "", done.stdout))


if __name__ == "__main__":
    unittest.main()
