"""Help, versions, usage errors, environment variables, colours: what holds for every verb."""

import json
import os
import pty
import re
import select
import subprocess
import unittest

from _cli import CLI, MINILM, NO_BACKEND, OK, SMALL, SOURCE, USAGE, CliTest, environment

VERBS = {
    "devices": [],
    "explain": [SMALL],
    "run": [MINILM],
    "bench": [SMALL, "--rounds", "1"],
    "check": [SMALL],
    "freeze": [SMALL],
    "env": [],
}


class Usage(CliTest):
    def test_version_is_that_of_the_headers(self):
        text = (SOURCE / "include" / "regard" / "version.h").read_text()
        parts = re.findall(r"#define REGARD_VERSION_\w+ (\d+)", text)
        self.assertEqual(self.cli("--version").stdout, f"regard {'.'.join(parts)}\n")

    def test_help_names_every_verb_and_exit_code(self):
        text = self.cli("--help").stdout
        for word in [*VERBS, "Exit codes", "--version"]:
            self.assertIn(word, text)
        for verb in VERBS:
            self.assertIn("--json", self.cli(verb, "--help").stdout)
        self.assertIn("softcap=X", self.cli("explain", "--help").stdout)

    def test_help_has_a_line_for_each_option(self):
        for verb in [*VERBS, "completion", "man"]:
            text = self.cli(verb, "--help").stdout
            rows = text.partition("Options:\n")[2].partition("\n\n")[0].splitlines()
            for row in rows:
                self.assertRegex(row, r"^  -[-\w, ]+( [A-Z]+)? {1,}\S.*$", verb)
                self.assertLessEqual(len(row), 100, row)
        text = self.cli("bench", "--help").stdout
        self.assertRegex(text, r"\n  --seconds X +.* \(default: 1\)\n")
        self.assertRegex(text, r"\n  --backend LIST +.* \(default: all\)\n")
        self.assertRegex(self.cli("run", "--help").stdout, r"\n  -o, --output FILE +Write")

    def test_bad_lines(self):
        self.refused(names=["subcommand"])
        self.refused("sing", names=["'sing'", "devices, explain, run, bench, tune, check, guide, freeze, diff, "
                                    "env, completion, man"])
        self.refused("explian", SMALL, names=["'explian'"])
        self.refused("--colour")
        self.refused("explain", names=["problem"])
        self.refused("explain", SMALL, "--bogus", names=["--bogus"])
        self.refused("devices", "--backend", "math")
        self.refused("run", names=["file"])
        self.refused("run", "a", "b", names=["b"])
        self.refused("check", names=["--random"])
        self.refused("check", SMALL, "--random", "3", names=["either"])
        self.refused("check", SMALL, "--seed", "3", names=["--seed"])

    def test_bad_lines_with_json_give_a_document(self):
        for line in (["explain"], ["sing"], ["devices", "--bogus"], []):
            found = self.document(*line, code=USAGE)
            self.assertEqual(found["error"]["code"], "usage")
            self.assertTrue(found["error"]["message"])

    def test_bad_flag_values(self):
        for flag, value in {
            "--backend": "fast",
            "--deny": "math,slow",
            "--prefer": "math,",
            "--max-error": "nan",
            "--max-workspace": "12X",
            "--require": "luck",
            "--on-fallback": "cry",
            "--threads": "0",
            "--isa": "avx3",
        }.items():
            with self.subTest(flag=flag):
                name = value.split(",")[-1]
                self.refused("explain", SMALL, flag, value, names=[name, flag])
        self.refused("explain", SMALL, "--threads", "1025", names=["1025", "1024"])
        self.refused("explain", SMALL, "--max-error", "-1", names=["-1"])
        self.refused("explain", SMALL, "--max-error", "1x", names=["1x"])
        self.refused("explain", SMALL, "--max-workspace", "99999999999G", names=["99999999999G"])
        self.refused("run", MINILM, "--repeat", "0", names=["--repeat", "0"])
        self.refused("check", "--random", "x", names=["--random", "x"])
        self.refused("check", "--random", "2", "--seed", "-1", names=["--seed", "-1"])
        self.refused("check", "--random", "2", "--max-error", "1", names=["--max-error"])

    def test_standard_output_that_cannot_be_written(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [CLI, "env"],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(),
                timeout=60,
                check=False,
            )
        self.assertEqual(done.returncode, 1)
        self.assertIn("standard output", done.stderr)


class Environment(CliTest):
    NAMES = {
        "REGARD_BACKEND": "fast",
        "REGARD_DENY": "slow",
        "REGARD_MAX_ISA": "avx3",
        "REGARD_NUM_THREADS": "many",
        "REGARD_TUNING": "/no/such/table",
        "REGARD_REPLAY": "/no/such/decisions",
        "REGARD_RECORD": "/no/such/folder/calls.record",
        "REGARD_LOG": "chat",
    }

    def test_all_variables_are_listed(self):
        found = self.document("env")
        self.assertEqual({v["name"] for v in found["variables"]}, set(self.NAMES))
        for variable in found["variables"]:
            self.assertFalse(variable["set"])
            self.assertIsNone(variable["value"])
            self.assertTrue(variable["meaning"])
        text = self.cli("env", env={"REGARD_NUM_THREADS": "3"}).stdout
        self.assertRegex(text, r"REGARD_NUM_THREADS +3 ")
        self.assertRegex(text, r"REGARD_BACKEND +\(unset\)")

    def test_bad_values_are_refused_by_every_verb(self):
        for name, value in self.NAMES.items():
            for verb, args in VERBS.items():
                with self.subTest(name=name, verb=verb):
                    self.refused(verb, *args, env={name: value}, names=[name, value])
            found = self.document("env", env={name: value}, code=USAGE)
            errors = {v["name"]: v["error"] for v in found["variables"] if v["error"]}
            self.assertEqual(list(errors), [name])
            self.assertIn(value, found["error"]["message"])

    def test_hostile_values_reach_no_terminal(self):
        for value in ("\x1b[31m", "a\x07b", "x\ny"):
            for verb in ("env", "explain"):
                self.refused(verb, *VERBS[verb], env={"REGARD_BACKEND": value})

    def test_values_that_are_not_utf8(self):
        env = {os.fsencode(k): os.fsencode(v) for k, v in environment().items()}
        env[b"REGARD_BACKEND"] = b"\xff\xfe"
        done = subprocess.run([CLI, "env", "--json"], capture_output=True, env=env, check=False)
        self.assertEqual(done.returncode, USAGE)
        self.assertIn("\\xff", json.loads(done.stdout)["error"]["message"])

    def test_values_decide(self):
        found = self.document("explain", SMALL, env={"REGARD_BACKEND": "math"})
        self.assertEqual(found["chosen"], "math")
        self.assertIn("REGARD_BACKEND", found["decided_by"])
        self.assertEqual(found["environment"]["REGARD_BACKEND"], "math")
        found = self.document("devices", env={"REGARD_NUM_THREADS": "3"})
        self.assertEqual(found["machine"]["concurrency"], 3)

    def test_flags_overrule_variables(self):
        env = {"REGARD_NUM_THREADS": "3", "REGARD_BACKEND": "math"}
        found = self.document("explain", SMALL, "--backend", "efficient", env=env)
        self.assertEqual(found["chosen"], "efficient")
        self.assertTrue(any("overruled" in warning for warning in found["warnings"]))
        found = self.document("explain", "b8 hq8 sq64 d64", "--threads", "2", env=env)
        self.assertLessEqual(found["plan"]["workers"], 2)


def on_terminal(args, env, stderr_too=False):
    """What the program prints when standard output (or standard error) is a terminal."""
    leader, follower = pty.openpty()
    pipe = subprocess.DEVNULL
    process = subprocess.Popen(
        [CLI, *map(str, args)],
        stdin=pipe,
        stdout=pipe if stderr_too else follower,
        stderr=follower if stderr_too else pipe,
        env=env,
    )
    os.close(follower)
    text = b""
    while select.select([leader], [], [], 120)[0]:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # the other end was closed
            break
        if not piece:
            break
        text += piece
    os.close(leader)
    return process.wait(timeout=120), text.decode()


class Colour(CliTest):
    def test_only_on_a_terminal_and_without_no_color(self):
        args = ["explain", SMALL]
        code, text = on_terminal(args, environment(TERM="xterm"))
        self.assertEqual(code, OK)
        self.assertIn("\x1b[32mchosen\x1b[0m", text)
        for env in (environment(NO_COLOR="1"), environment(NO_COLOR="0")):
            self.assertNotIn("\x1b", on_terminal(args, env)[1])
        self.assertNotIn("\x1b", on_terminal(args, environment(TERM="dumb"))[1])
        self.assertIn("\x1b", on_terminal(args, environment(NO_COLOR="", TERM="xterm"))[1])
        self.assertNotIn("\x1b", on_terminal([*args, "--json"], environment())[1])
        self.assertNotIn("\x1b", self.cli(*args).stdout)
        refused = on_terminal([*args, "--backend", "flash", "--max-workspace", "0"], environment())
        self.assertIn("\x1b[33mexcluded by policy\x1b[0m", refused[1])
        refused = on_terminal(["explain", "sq8 d640 f32", "--backend", "flash"], environment())
        self.assertIn("\x1b[31mcannot run\x1b[0m", refused[1])

    def test_progress_only_on_a_terminal_and_without_json(self):
        args = ["check", "--random", "30"]
        code, text = on_terminal(args, environment(), stderr_too=True)
        self.assertEqual(code, OK)
        self.assertRegex(text, r"\[[#.]{30}\] \d+/30 cases")
        self.assertTrue(text.endswith("\r\x1b[K"), "the bar is taken away")
        self.assertEqual(on_terminal([*args, "--json"], environment(), stderr_too=True)[1], "")
        self.assertEqual(self.cli(*args).stderr, "")

    def test_quiet(self):
        args = ["check", "--random", "30", "--quiet"]
        self.assertEqual(on_terminal(args, environment(), stderr_too=True)[1], "")
        noisy = {"REGARD_LOG": "trace", "REGARD_BAKEND": "x"}  # an unknown name: a warning
        for verb, words in VERBS.items():
            with self.subTest(verb=verb):
                done = self.cli(verb, *words, "--quiet", env=noisy)
                self.assertEqual(done.stderr, "")
                self.assertTrue(done.stdout)
        self.assertIn("REGARD_BAKEND", self.cli("explain", SMALL, env=noisy).stderr)
        self.refused("explain", "colour", "--quiet", names=["colour"])  # errors are printed


class Devices(CliTest):
    def test_document(self):
        found = self.document("devices")
        for key in ("isa", "cpu_model", "concurrency", "version", "l2_bytes"):
            self.assertIn(key, found["machine"])
        backends = {(b["device"], b["backend"]): b for b in found["backends"]}
        for name in ("math", "efficient"):
            self.assertTrue(backends["cpu", name]["built"])
            dtypes = {claim["q"] for claim in backends["cpu", name]["forward"]["dtypes"]}
            self.assertLessEqual({"f32", "bf16", "f16"}, dtypes)
        self.assertIn("cudnn", {name for _, name in backends})

    def test_table(self):
        text = self.cli("devices").stdout
        for word in ("isa", "caches", "math", "efficient", "flash", "cudnn", "determinism"):
            self.assertIn(word, text)
        # As a case says it: f8e4m3 alone writes bf16.
        self.assertIn(" f8e4m3 f8e4m3/f8e4m3/f16 ", text)
        self.assertIn(" f8e4m3/f8e4m3/f8e4m3 ", text)


class Explain(CliTest):
    def test_document_has_the_keys(self):
        found = self.document("explain", "b2 hq8 hkv2 sq128 skv1024 d64 bf16 causal diag=br lens")
        for key in ("case", "chosen", "decided_by", "candidates", "environment", "warnings"):
            self.assertIn(key, found)
        self.assertEqual(sum(c["chosen"] for c in found["candidates"]), 1)
        refusals = 0
        for candidate in found["candidates"]:
            self.assertLessEqual(
                {
                    "backend",
                    "device",
                    "status",
                    "built",
                    "enabled",
                    "usable",
                    "chosen",
                    "workspace_bytes",
                    "error_bound",
                    "determinism",
                    "refusals",
                },
                set(candidate),
            )
            for refusal in candidate["refusals"]:
                refusals += 1
                self.assertEqual(set(refusal), {"code", "message", "limit", "actual", "in_backward", "fix"})
        self.assertGreater(refusals, 0)
        self.assertEqual(
            found["plan"]["workspace_bytes"],
            next(c["workspace_bytes"] for c in found["candidates"] if c["chosen"]),
        )

    def test_gradients_show_both_directions(self):
        found = self.document("explain", SMALL + " grad")
        self.assertEqual(found["chosen"], "flash")
        chosen = next(c for c in found["candidates"] if c["chosen"])
        for name, key in (("plan", "workspace_bytes"), ("backward", "backward_workspace_bytes")):
            self.assertEqual(found[name]["workspace_bytes"], chosen[key])
        self.assertNotIn("backward", self.document("explain", SMALL))

    def test_words_in_any_order_and_number_of_arguments(self):
        one = self.document("explain", "sq5 skv9 d8 f32 b1 hq2 hkv1")
        many = self.document("explain", *SMALL.split())
        self.assertEqual(one, many)

    def test_flags_before_the_case(self):
        after = self.document("explain", SMALL, "--backend", "math", "--deny", "flash")
        before = self.document("explain", "--backend", "math", "--deny", "flash", *SMALL.split())
        self.assertEqual(before, after)

    def test_the_case_it_prints_is_the_case(self):
        found = self.document("explain", "sq5 d8 causal diag=-2 softcap=30 window=4,0")
        again = self.document("explain", found["case"])
        self.assertEqual(found, again)

    def test_bad_words(self):
        for word, named in {
            "hq3 hkv2": ["3", "2", "divide"],
            "color=red": ["color"],
            "f33": ["f33"],
            "scale=nan": ["nan"],
            "window=-2,0": ["window_left", "-2"],
            "dropout=1": ["dropout", "1"],
            "dropout=0.000001": ["dropout_p", "1e-06"],
            "mask=2,H,Sq,Skv": ["2,H,Sq,Skv"],
            "diag=up": ["up"],
            "sq99999999999999999999": ["sq99999999999999999999"],
            "sq-1": ["sq-1"],
            "seed=x": ["seed=x"],
            "lens=k": ["lens=k"],
            "isa=avx3": ["avx3"],
            "b2 b3": ["b3", "once"],
        }.items():
            with self.subTest(word=word):
                rest = [w for w in ("sq4", "diag=tl") if w[:2] not in word]
                self.refused("explain", "d8 alibi", *rest, word, names=named)
        self.refused("explain", "b1 sq4 skv6 d8 causal", names=["diagonal"])

    def test_nothing_can_run(self):
        done = self.cli("explain", SMALL, "--backend", "cudnn", code=NO_BACKEND)
        self.assertIn("cudnn", done.stdout)
        found = self.document("explain", SMALL, "--backend", "cudnn", code=NO_BACKEND)
        self.assertEqual(found["chosen"], "error")
        self.assertNotIn("plan", found)
        codes = {c["backend"]: [r["code"] for r in c["refusals"]] for c in found["candidates"]}
        self.assertIn("not_in_only", codes["math"])

    def test_policy_flags(self):
        def chosen(*flags):
            return self.document("explain", SMALL, *flags)["chosen"]

        self.assertEqual(chosen("--backend", "math"), "math")
        self.assertEqual(chosen("--backend", "SDPBackend.MATH"), "math")
        self.assertEqual(chosen("--backend", "MEMORY_EFFICIENT,math"), "efficient")
        self.assertEqual(chosen("--prefer", "math"), "math")
        self.assertEqual(chosen("--deny", "math", "--deny", "flash"), "efficient")
        self.assertEqual(chosen("--require", "batch_invariant", "--deny", "flash,efficient"), "math")
        self.refused("explain", SMALL, "--max-error", "1e-30", code=NO_BACKEND)
        self.refused("explain", SMALL, "--max-workspace", "0", "--backend", "math", code=NO_BACKEND)
        self.assertEqual(chosen("--max-workspace", "1G", "--backend", "math"), "math")
        self.refused(
            "explain", SMALL, "--prefer", "cudnn", "--on-fallback", "error", code=NO_BACKEND
        )

    def test_a_limit_without_an_end(self):
        found = self.cli("explain", "sq8 d0 dv8", code=NO_BACKEND).stdout
        self.assertIn("  - supports head_dim_qk 1 or more, got 0; set it to 1\n", found)
        self.assertIn("  - supports head_dim_qk 1 to 576, got 0; set it to 1\n", found)

    def test_status_and_sentences(self):
        args = ["explain", "b1 hq8 sq128 d64 f32 scores=probs", "--backend", "flash"]
        text = self.cli(*args, code=NO_BACKEND).stdout
        self.assertIn("\nchange   remove scores_out to run flash, or allow math\n", text)
        self.assertRegex(text, r"\nflash +cannot run +- +- +- +batch_invariant\n"
                               r"  - does not support scores_out; remove it, or use math\n")
        self.assertRegex(text, r"\nmath +excluded by policy ")
        found = self.document(*args, code=NO_BACKEND)
        for candidate in found["candidates"]:
            for refusal in candidate["refusals"]:
                if candidate["device"] == "cpu":
                    self.assertIn("  - " + refusal["message"] + "\n", text)

    def test_verbose_shows_every_backend_and_fact(self):
        text = self.cli("explain", SMALL).stdout
        self.assertIn("cudnn needs a CUDA device; verbose shows it\n", text)
        self.assertNotRegex(text, r"\nbackend .* enabled ")
        verbose = self.cli("explain", SMALL, "--verbose").stdout
        self.assertRegex(verbose, r"\nbackend +status +built +enabled +usable +chosen ")
        self.assertRegex(verbose, r"\ncudnn +(not built|cannot run) ")
        self.assertNotIn("verbose", verbose)
        self.assertEqual(self.document("explain", SMALL),
                         self.document("explain", SMALL, "--verbose"))

    def test_another_machine(self):
        found = self.document("explain", SMALL + " device=sm60", code=NO_BACKEND)
        self.assertEqual(found["chosen"], "error")
        self.document("explain", SMALL, "--isa", "avx512_bf16")


if __name__ == "__main__":
    unittest.main()
