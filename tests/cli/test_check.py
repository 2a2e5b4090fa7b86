"""`regard check`: one case, random cases."""

import unittest

from _cli import NO_BACKEND, SMALL, CliTest


class OneCase(CliTest):
    def test_every_usable_backend(self):
        found = self.document("check", SMALL + " causal diag=br window=3,0 softcap=20 lse")
        results = {r["backend"]: r for r in found["results"]}
        self.assertLessEqual({"math", "efficient"}, set(results))
        for name in ("math", "efficient"):
            self.assertEqual(results[name]["outcome"], "passed")
            self.assertLessEqual(results[name]["error_over_tolerance"], 1)
            self.assertLessEqual(results[name]["lse_error_over_tolerance"], 1)
            self.assertEqual(results[name]["rows"], 10)
        text = self.cli("check", SMALL).stdout
        self.assertRegex(text, r"math +ok ")
        self.assertRegex(text, r"efficient +ok ")
        self.assertNotIn("gradients", text)

    def test_gradients_have_columns(self):
        lines = self.cli("check", SMALL + " grad").stdout.splitlines()
        header = next(line for line in lines if line.startswith("backend"))
        self.assertRegex(header, r"lse / tolerance +gradients +error / tolerance +workspace")
        row = next(line for line in lines if line.startswith("math"))
        self.assertRegex(row, r"ok +\S+ +\d+ % +\d+ % +\d\.\d\de-\d\d +\d+ % +\d")

    def test_a_refusal_is_no_failure(self):
        found = self.document("check", SMALL.replace("f32", "f64"))
        outcomes = {r["backend"]: r["outcome"] for r in found["results"]}
        self.assertEqual(outcomes["math"], "passed")
        self.assertEqual(outcomes["efficient"], "refused")
        text = next(r["text"] for r in found["results"] if r["backend"] == "efficient")
        self.assertIn("f64", text)

    def test_only_one(self):
        found = self.document("check", SMALL, "--backend", "math")
        self.assertEqual([r["backend"] for r in found["results"]], ["math"])

    def test_poison_and_data(self):
        self.cli("check", SMALL + " lens=kv poison")
        for data in ("normal", "large", "outlier", "constant", "finfo_min"):
            self.cli("check", SMALL + f" data={data} bias=B,1,1,Skv")

    def test_nothing_can_run(self):
        self.cli("check", SMALL, "--backend", "cudnn", code=NO_BACKEND)
        found = self.document("check", SMALL + " grad", "--backend", "cudnn", code=NO_BACKEND)
        self.assertEqual(found["selection"]["chosen"], "error")
        self.cli("check", "--random", "3", "--backend", "cudnn", code=NO_BACKEND)

    def test_gradients_are_checked_without_a_word_for_what_is_saved(self):
        for words, printed in (("grad", "saved grad"), ("saved grad", "saved grad"),
                               ("grad lse", "lse grad")):
            found = self.document("check", f"{SMALL} {words}")
            self.assertTrue(found["case"].endswith(printed), found["case"])
            for result in found["results"]:
                self.assertGreater(result.get("grad_error", 1.0), 0.0, result)

    def test_another_machine_is_for_explain_alone(self):
        for device in ("cuda", "sm90"):
            self.refused("check", f"{SMALL} device={device}", names=["cuda", "only explain"])

    def test_limits(self):
        self.cli("check", SMALL, "--max-error", "1e-30", code=NO_BACKEND)
        found = self.document("check", SMALL, "--deny", "math")
        self.assertNotIn("math", [r["backend"] for r in found["results"]])


class Random(CliTest):
    def test_coverage_and_failures_are_reported(self):
        found = self.document("check", "--random", "60", "--seed", "5")
        self.assertEqual((found["cases"], found["seed"]), (60, 5))
        self.assertEqual(found["failures"], [])
        self.assertGreater(found["features"]["causal"], 5)
        text = self.cli("check", "--random", "60", "--seed", "5").stdout
        self.assertIn("coverage of 60 cases", text)
        self.assertRegex(text, r"ok 60 cases of seed 5")

    def test_the_same_seed_gives_the_same_cases(self):
        runs = [
            self.document("check", "--random", "20", "--seed", seed)["features"]
            for seed in ("7", "7", "8")
        ]
        self.assertEqual(runs[0], runs[1])
        self.assertNotEqual(runs[0], runs[2])

    def test_rare_pairs_fail_where_they_are_asked_for(self):
        found = self.document("check", "--random", "3", "--min-pairs", "1", code=1)
        self.assertEqual(found["error"]["code"], "too_rare")
        self.assertTrue(found["missing_pairs"])

    def test_only_one_backend(self):
        text = self.cli("check", "--random", "10", "--backend", "math").stdout
        self.assertIn("math", text)
        self.assertNotIn("efficient", text)
        text = self.cli("check", "--random", "10", env={"REGARD_DENY": "math"}).stdout
        self.assertNotIn("math ", text)


if __name__ == "__main__":
    unittest.main()
