"""The arithmetic of bench/: cases, FLOPs, rounds, the reference, targets. Needs no other library."""

import array
import json
import math
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom
from unittest import mock

ROOT = pathlib.Path(os.environ["REGARD_DEV_SOURCE_DIR"])
sys.path.insert(0, str(ROOT / "bench"))
import padding  # noqa: E402
import regression  # noqa: E402
from harness import targets, grids, limits, plot, published, ratios, reference  # noqa: E402
from harness import report, results, tables, timing  # noqa: E402
from harness.cases import CaseError, parse_case  # noqa: E402


def machine(f32=100.0, bf16=None, gbps=20.0):
    return {"cpu_model": "a CPU", "isa_available": "avx512_bf16", "threads": 2,
            "f32_gflops": {"avx512_bf16": f32, "avx2": f32 / 2},
            "bf16_gflops": {"avx512_bf16": bf16} if bf16 else {}, "read_gbps": gbps}


def row_of(text, shares, peak=100.0, unit=None, **changes):
    """A row in which each entrant reaches the given share of the peak in three rounds."""
    case, entries = parse_case(text), {}
    for name, share in shares.items():
        entry = results.new_entry(grids.parse_entrant(name))
        backend = entry["backend"] or "flash"
        entry["ran"] = backend if case.backward else backend + "_avx2_f32"  # as libraries.py says it
        # The machine slows down from round to round, which no ratio may show.
        entry["limits"] = [machine(peak / drift) for drift in (1, 2, 4)]
        scale = 0.5 if entry["isa"] == "avx2" else 1
        own = results.case_of(case, entry)
        entry["seconds"] = [own.flops * drift / (share * peak * scale * 1e9)
                            for drift in (1, 2, 4)]
        entries[name] = entry | changes
    return results.summarise(case, entries, "a CPU", unit)


def timed_row(text, seconds, unit=None, gbps=20.0):
    """A row in which each entrant takes the given seconds in three rounds."""
    row = row_of(text, dict.fromkeys(seconds, 1.0), peak=1e6)
    for name, entry in row["entries"].items():
        entry["seconds"] = [seconds[name]] * 3
        entry["limits"] = [machine(1e6, gbps=gbps)] * 3
    return results.summarise(parse_case(text), row["entries"], "a CPU", unit)


class Cases(unittest.TestCase):
    def test_defaults_are_those_of_the_library(self):
        case = parse_case("sq16 d8")
        self.assertEqual((case.batch, case.num_heads_q, case.num_heads_kv), (1, 1, 1))
        self.assertEqual((case.seqlen_kv, case.head_dim_v, case.dtype), (16, 8, "f32"))
        case = parse_case("b2 hq8 hkv2 sq3 skv5 d16 dv4 bf16 causal diag=br layout=bhsd")
        self.assertEqual((case.num_heads_kv, case.diagonal_offset, case.head_dim_v), (2, 2, 4))
        self.assertEqual((case.dtype, case.layout, case.causal), ("bf16", "bhsd", True))

    def test_a_wrong_word_is_named(self):
        for text, word in (("sq4 d8 softcap=3", "softcap=3"), ("d8", "sq"), ("sq4", "d"),
                           ("sq4 d8 diag=5", "diag=5"), ("sq0 d8", "sq0"),
                           ("hq3 hkv2 sq4 d8", "hkv2"), ("sq4 skv8 d8 causal", "diag")):
            with self.subTest(text=text), self.assertRaisesRegex(CaseError, word):
                parse_case(text)

    def test_flops(self):
        # 4 * B * Hq * Sq * Skv * D, half of it where a causal square hides half
        full = parse_case("b2 hq3 hkv1 sq5 skv7 d11 f32")
        self.assertEqual(full.flops, 4 * 2 * 3 * 5 * 7 * 11)
        self.assertEqual(parse_case("sq5 skv7 d11 dv13 f32").flops, 2 * 5 * 7 * (11 + 13))
        self.assertEqual(parse_case("sq8 d16 causal").flops, parse_case("sq8 d16").flops / 2)
        self.assertEqual(parse_case("sq8 d16 grad").flops, parse_case("sq8 d16").flops * 2.5)

    def test_pairs_under_a_diagonal(self):
        for sq, skv in ((4, 4), (3, 9), (9, 3), (1, 6)):
            for diagonal in ("tl", "br"):
                case = parse_case(f"sq{sq} skv{skv} d8 causal diag={diagonal}")
                step = 1e-3  # the same area, summed
                rows = [(i + 0.5) * step for i in range(round(sq / step))]
                area = sum(min(max(x + case.diagonal_offset, 0), skv) * step for x in rows)
                with self.subTest(case=case.text):
                    self.assertAlmostEqual(case.visible_pairs, area, places=2)

    def test_bytes(self):
        case = parse_case("b2 hq8 hkv2 sq1 skv100 d64 dv32 bf16")
        self.assertEqual(case.kv_bytes, 2 * 2 * 100 * (64 + 32) * 2)
        self.assertEqual(case.score_bytes, 2 * 8 * 100 * 2)

    def test_decode_is_few_queries_on_a_longer_cache(self):
        for text, decode in (("sq1 skv100 d8", True), ("sq16 skv4096 d8", True),
                             ("sq33 skv4096 d8", False), ("sq1 d8", False), ("sq16 d8", False)):
            self.assertEqual(parse_case(text).decode, decode, text)
        self.assertEqual(parse_case("hq2 sq16 skv64 d8 bf16").with_seqlen_q(1),
                         parse_case("hq2 sq1 skv64 d8 bf16"))

    def test_grids_parse_and_know_their_entrants(self):
        for name in grids.GRIDS:
            self.assertTrue(grids.grid_cases(name))
            self.assertTrue(grids.grid_entrants(name))
        names = [e.name for e in grids.grid_entrants("threads", ["flash", "math"])]
        self.assertEqual(names[0], "regard:flash@threads=1")
        self.assertEqual(len(names), 4)
        entrant = grids.parse_entrant("regard:math@threads=1+isa=avx2")
        self.assertEqual((entrant.backend, entrant.threads, entrant.isa), ("math", 1, "avx2"))
        self.assertTrue(entrant.own_process)
        fewer = grids.parse_entrant("regard@sq=1")
        self.assertEqual(fewer.case_of(parse_case("sq4 skv9 d8")).text, "sq1 skv9 d8")
        self.assertFalse(fewer.own_process)
        self.assertEqual(grids.parse_entrant("benchmark:BM_CachedCall").backend, "BM_CachedCall")
        for wrong in ("nobody", "torch:flash", "regard@colour=red", "torch@threads=1", "benchmark",
                      "regard@threads"):
            with self.subTest(wrong=wrong), self.assertRaises(ValueError):
                grids.parse_entrant(wrong)

    @unittest.skipUnless(os.environ.get("REGARD_DEV_CLI"), "needs the command line tool")
    def test_the_tool_takes_every_case(self):
        texts = {case.text for name in grids.GRIDS for case in grids.grid_cases(name)}
        for text in sorted(texts):
            done = subprocess.run([os.environ["REGARD_DEV_CLI"], "explain", text, "--json"],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, text + done.stderr)


class Rounds(unittest.TestCase):
    def test_the_median_is_of_ratios_within_a_round(self):
        # The machine is ten times slower in the last round: the ratio of medians would say 2 / 3.
        self.assertEqual(ratios.median_ratio([2, 2, 30], [1, 1, 10]), 2)
        self.assertEqual(ratios.ratios([1, 2], [2, 0]), [0.5])
        self.assertIsNone(ratios.median_ratio([], []))

    def test_quartiles(self):
        self.assertEqual(ratios.quartiles([5, 1, 2, 4, 3]), (2, 4))
        self.assertEqual(ratios.quartiles([1, 2]), (1.25, 1.75))
        self.assertEqual(ratios.quartiles([7]), (7, 7))

    def test_a_drift_of_the_machine_does_not_show(self):
        row = row_of("hq2 sq64 d16", {"torch": 0.4, "openvino": 0.5, "regard": 0.8})
        self.assertAlmostEqual(row["entries"]["regard"]["share"], 0.8)
        self.assertEqual(row["best_peer"], "openvino")
        self.assertAlmostEqual(row["ratios"]["regard"], 1.6)

    def test_a_wrong_result_counts_for_nothing(self):
        row = row_of("hq2 sq64 d16", {"torch": 0.4, "openvino": 9.0, "regard": 0.8})
        case = parse_case(row["case"])
        entries = row["entries"]
        results.judge(case, entries["openvino"], 0.3)
        results.judge(case, entries["openvino"], 1e-7)  # right later on: still wrong
        results.judge(case, entries["torch"], 1e-7)
        row = results.summarise(case, entries, "a CPU")
        self.assertEqual(row["best_peer"], "torch")
        self.assertIn("openvino WRONG (3.0e-01)", report.line(row))
        self.assertIn("torch 20.0 (0.40)", report.line(row))
        results.judge(case, entries["torch"], math.nan)
        self.assertEqual(entries["torch"]["verdict"], "WRONG")

    def test_limits(self):
        f32, bf16 = map(parse_case, ("sq800 d8", "sq800 d8 bf16"))
        seconds = f32.flops / 100e9
        self.assertEqual(limits.limit_of(f32, machine(100, 200)), ("f32_gflops", seconds))
        self.assertEqual(limits.limit_of(parse_case("sq800 d8 f64"), machine(100)),
                         ("f64_gflops", seconds * 2))
        self.assertEqual(limits.limit_of(bf16, machine(100, 200)), ("bf16_gflops", seconds / 2))
        self.assertEqual(limits.limit_of(bf16, machine(100, 50)), ("f32_gflops", seconds))
        self.assertEqual(limits.limit_of(bf16, machine(100)), ("f32_gflops", seconds))
        self.assertEqual(limits.limit_of(bf16, machine(100, 200), "avx2"),
                         ("f32_gflops", seconds * 2))

    def test_short_sequences_have_two_limits(self):
        short, long = map(parse_case, ("b9000 hq4 hkv2 sq16 skv8 d8 dv4", "b9000 hq4 hkv2 sq201 d8 dv4"))
        few = parse_case("b9 hq4 hkv2 sq16 skv8 d8 dv4")
        # Q 4 heads of 16 x 8, the output of 16 x 4, read and written; K and V 2 heads of 8 x 12
        self.assertEqual(short.moved_bytes, 9000 * (4 * 16 * (8 + 2 * 4) + 2 * 8 * 12) * 4)
        self.assertEqual([case.short for case in (short, long, few)], [True, False, False])
        self.assertEqual(limits.limit_of(short, machine(100, gbps=1)), ("read_gbps", short.moved_bytes / 1e9))
        self.assertEqual(limits.limit_of(short, machine(1, gbps=100)), ("f32_gflops", short.flops / 1e9))
        self.assertEqual(limits.limit_of(long, machine(100, gbps=1))[0], "f32_gflops")

    def test_decode_has_two_limits(self):
        # 2 operations a byte of K and V for one query, 2 * 32 for 32 heads that share them
        one, many = map(parse_case, ("sq1 skv64 d8 bf16", "hq32 hkv1 sq1 skv64 d8 bf16"))
        self.assertEqual(limits.limit_of(one, machine(100, gbps=30)),
                         ("read_gbps", one.kv_bytes / 30e9))
        self.assertEqual(limits.limit_of(many, machine(100, gbps=30)),
                         ("f32_gflops", many.flops / 100e9))

    def test_short_calls_are_repeated_and_long_ones_are_not(self):
        for seconds, sets, runs in ((1e-5, 1, 100), (1e-5, 4, 25 * 4), (1.0, 1, 1), (1.0, 4, 4)):
            calls, now = [], [0.0]

            def call(i):
                calls.append(i)
                now[0] += seconds

            with (mock.patch.object(timing.time, "perf_counter", lambda: now[0]),
                  mock.patch.object(timing.time, "sleep")):
                self.assertAlmostEqual(timing.timed_turn(call, sets, 0, 0), seconds)
            warm = 2 if seconds < timing.MIN_RUN else 1
            least = 3 if sets == 1 else 1
            self.assertAlmostEqual(len(calls) - warm, runs * least, delta=4 * least)


class Reference(unittest.TestCase):
    def test_rows_that_one_can_compute_by_hand(self):
        keys, values = [[0.0, 0.0], [math.sqrt(2) * math.log(3), 0.0]], [[1.0, 0.0], [0.0, 2.0]]
        # scores 0 and log 3: probabilities 1/4 and 3/4
        row = reference.attention_row([1.0, 5.0], keys, values, 2)
        self.assertAlmostEqual(row[0], 0.25, places=15)
        self.assertAlmostEqual(row[1], 1.5, places=15)
        self.assertEqual(reference.attention_row([1.0, 5.0], keys, values, 1), [1.0, 0.0])
        self.assertEqual(reference.attention_row([1.0, 5.0], keys, values, 0), [0.0, 0.0])

    def test_large_scores_do_not_overflow(self):
        row = reference.attention_row([1e3], [[1e3], [-1e3]], [[7.0], [9.0]], 2)
        self.assertEqual(row, [7.0])

    def test_what_a_row_sees(self):
        seen = [[reference.visible_keys(parse_case(text), row) for row in (0, 2)]
                for text in ("sq3 skv5 d8", "sq3 d8 causal", "sq3 skv5 d8 causal diag=tl",
                             "sq3 skv5 d8 causal diag=br", "sq3 skv2 d8 causal diag=br")]
        self.assertEqual(seen, [[5, 5], [1, 3], [1, 3], [3, 5], [0, 2]])

    def test_errors(self):
        self.assertEqual(reference.normwise_error([[2.0, -4.0]], [[2.0, -3.0]]), 0.25)
        self.assertEqual(reference.normwise_error([[2.0]], [[math.nan]]), math.inf)
        self.assertEqual(reference.normwise_error([[0.0]], [[0.0]]), 0.0)


class Reports(unittest.TestCase):
    def verdict(self, rows, what):
        (found,) = [v for v in targets.verdicts(rows) if what in v.what]
        return found

    def test_targets(self):
        text = "b1 hq8 sq2048 d64 f32 causal"
        row = row_of(text, {"torch": 0.6, "regard": 0.82})
        share = self.verdict([row], "share of f32")
        self.assertTrue(share.met)
        self.assertAlmostEqual(share.measured, 0.82)
        self.assertTrue(str(share).startswith("met "))
        speed = self.verdict([row], "speed over torch")
        self.assertTrue(speed.met)
        missed = self.verdict([row_of(text, {"torch": 0.7, "regard": 0.85})], "speed over torch")
        self.assertFalse(missed.met)
        self.assertIn("NOT MET", str(missed))
        lines = report.target_lines([row_of(text, {"torch": 0.7, "regard": 0.85})])
        self.assertEqual(lines[-1], "1 of 2 targets met")
        self.assertNotIn(text, targets.missing([row]))

    def test_targets_of_the_backward(self):
        text = "b1 hq8 sq2048 d64 bf16 grad"
        row = row_of(text, {"torch": 0.4, "torch_math": 0.1, "regard": 0.7})
        for name, error in (("torch", 9e-3), ("torch_math", 2e-3), ("regard", 3e-3)):
            results.judge(parse_case(text), row["entries"][name], error)
        share, speed, exact = targets.verdicts([row])
        self.assertEqual([v.met for v in (share, speed, exact)], [False, True, False])
        self.assertAlmostEqual(exact.measured, 1.5)
        self.assertEqual(len(targets.missing([row])), len(targets.BACKWARD) - 1)

    def test_targets_of_decode(self):
        text = grids.texts(grids.DECODE_BHSD)[0]
        least = parse_case(text).kv_bytes / 20e9
        rows = [timed_row(text, {"onnxruntime": 3 * least, "regard": least / 0.8})]
        share, speed = targets.verdicts(rows)
        self.assertEqual((share.what, speed.what), ("share of read_gbps", "speed over onnxruntime"))
        self.assertAlmostEqual(share.measured, 0.8)
        self.assertAlmostEqual(speed.measured, 2.4)
        self.assertTrue(share.met)
        self.assertEqual(len(targets.missing(rows)), len(targets.DECODE) - 1)
        self.assertIn("regard 16.0 (0.80)", report.line(rows[0]))

    def test_targets_of_speculative_queries(self):
        text = grids.texts(grids.SPECULATIVE)[0]
        for seconds, word in ((1.2, "met "), (1.4, "NOT MET")):
            row = timed_row(text, {"torch": 2.0, "regard@sq=1": 1.0, "regard": seconds})
            (verdict,) = targets.verdicts([row])
            self.assertAlmostEqual(verdict.measured, seconds)
            self.assertTrue(str(verdict).startswith(word), verdict)
            self.assertEqual(list(row["ratios"]), ["regard"])  # the other one had less to do
            self.assertIn(f"{seconds:.2f}x the time of sq1", report.line(row))

    def test_targets_of_times(self):
        row = timed_row(grids.texts(grids.SMALL)[0], {"torch": 55e-6, "regard": 10e-6}, "us")
        (small,) = targets.verdicts([row])
        self.assertTrue(str(small).startswith("met "))
        self.assertIn("regard 10.0 us", report.line(row))
        row = timed_row(grids.OVERHEAD, {"torch": 5e-6, "benchmark:BM_CachedCall": 2e-6,
                                         "regard": 2e-6}, "us")
        self.assertEqual([v.met for v in targets.verdicts([row])], [False, True])
        self.assertEqual(row["best_peer"], "torch")

    def test_targets_of_f16_isa_threads_and_backends(self):
        rows = [row_of("hq8 sq64 d64 f32", {"regard": 0.8}),
                row_of("hq8 sq64 d64 f16", {"torch": 0.3, "openvino": 0.5, "regard": 0.6})]
        self.assertAlmostEqual(self.verdict(rows, "f16's rate").measured, 0.75)
        self.assertAlmostEqual(self.verdict(rows, "speed over torch").measured, 2.0)
        isa = self.verdict([row_of("hq8 sq64 d64", {"regard@isa=avx2": 0.83})], "AVX2")
        self.assertAlmostEqual(isa.measured, 0.83)
        pair = row_of("hq8 sq2048 d64", {"regard@threads=1": 0.4, "regard@threads=2": 0.76})
        self.assertAlmostEqual(pair["speedup"], 1.9)
        self.assertAlmostEqual(pair["peak_speedup"], 1.0)
        both = row_of("hq8 sq64 d64", {"torch_math": 0.2, "regard:flash": 0.8,
                                       "regard:efficient": 0.3, "regard:math": 0.3})
        self.assertAlmostEqual(self.verdict([both], "efficient's rate").measured, 0.375)
        self.assertAlmostEqual(self.verdict([both], "math's speed").measured, 1.5)



def run_of(*rows, grid="forward", cpu="AMD EPYC (family 25 model 17)"):
    """What compare.py --json writes."""
    return {"schema_version": 1, "cpu": cpu, "threads": 2, "grid": grid, "date": "2026-01-31",
            "versions": {"torch": "9.8"}, "rows": list(rows)}


class Published(unittest.TestCase):
    """Medians in bench/results, and what is made of them."""

    def test_a_run_replaces_its_grid_and_leaves_the_others(self):
        row = row_of("hq2 sq64 d16", {"torch": 0.4, "openvino": 0.1, "regard": 0.8})
        results.judge(parse_case(row["case"]), row["entries"]["openvino"], 0.3)
        row = results.summarise(parse_case(row["case"]), row["entries"], "a CPU")
        file = published.merge({"grids": {}}, run_of(row, grid="small"))
        file = published.merge(file, run_of(row))
        self.assertEqual((file["machine"], file["setup"]), ("Zen 4", "2 threads"))
        self.assertEqual(list(file["grids"]), ["small", "forward"])
        (found,) = file["grids"]["forward"]["rows"]
        self.assertEqual(found["entries"]["regard"],
                         {"rate": 40.0, "share": 0.8, "limit": "f32_gflops"})
        self.assertEqual(found["entries"]["openvino"], {"verdict": "WRONG"})
        self.assertEqual(found["over"], {"regard": {"torch": 2.0}})
        self.assertEqual(json.loads(published.text_of(file)), file)
        again = published.merge(file, run_of(), "a quiet machine")
        self.assertEqual(again["grids"]["forward"]["rows"], [])
        self.assertEqual(again["setup"], "a quiet machine")

    def test_a_run_of_another_machine_is_refused(self):
        file = published.merge({"grids": {}}, run_of())
        with self.assertRaisesRegex(ValueError, "family 26 model 2"):
            published.merge(file, run_of(cpu="AMD EPYC (family 26 model 2)"))

    def test_a_table_has_a_row_for_each_case_and_machine(self):
        files = []
        for share, cpu in ((0.8, "AMD EPYC (family 26 model 2)"), (0.6, "another CPU")):
            row = row_of("hq2 sq64 d16", {"torch": 0.4, "regard": share})
            small = timed_row("sq16 d16", {"torch": 30e-6, "regard": 10e-6}, "us")
            file = published.merge({"grids": {}}, run_of(row, cpu=cpu))
            files.append(published.merge(file, run_of(small, cpu=cpu, grid="small")))
        self.assertEqual(tables.markdown(files, "forward"), """\
| case | machine | regard, GFLOP/s | over PyTorch |
|---|---|---|---|
| `hq2 sq64 d16` | Zen 5 | 40.0 (0.80) | 2.00 |
|  | another CPU | 30.0 (0.60) | 1.50 |
""")
        self.assertIn("| `sq16 d16` | Zen 5 | 10.0 | 3.00 |", tables.markdown(files, "small"))

    def test_the_ratio_is_of_the_plain_entrant(self):
        row = row_of("hq2 sq64 d16 grad", {"torch": 0.4, "torch_math": 0.1, "regard": 0.8,
                                           grids.EXACT: 0.6})
        text = tables.markdown([published.merge({"grids": {}}, run_of(row))], "forward")
        self.assertIn("40.0 (0.80) | 30.0 (0.60) | 2.00 | 8.00 |", text)

    def test_a_drawing_has_a_bar_for_each_rate(self):
        case = next(iter(grids.TITLES))
        row = row_of(case, {"torch": 0.4, "onnxruntime": 0.5, "regard": 0.8})
        results.judge(parse_case(case), row["entries"]["onnxruntime"], 0.3)
        file = published.merge({"grids": {}}, run_of(row))
        for drawing in plot.headline(file).values():
            document = xml.dom.minidom.parseString(drawing)
            bars = document.getElementsByTagName("rect")
            self.assertEqual(len(bars), 4 + 2)  # the legend, and who has a right result
            widths = [float(bar.getAttribute("width")) for bar in bars[4:]]
            self.assertAlmostEqual(widths[1], 2 * widths[0])
            words = [node.firstChild.data for node in document.getElementsByTagName("text")]
            for expected in (grids.TITLES[case], "wrong result", "not measured"):
                self.assertIn(expected, words)
            self.assertTrue(any("PyTorch 9.8" in w for w in words))

    def test_a_whole_grid_can_be_drawn(self):
        row = row_of("hq2 sq64 d16", {"torch": 0.4, "regard:flash": 0.8, "regard:math": 0.4})
        file = published.merge({"grids": {}}, run_of(row, grid="cases"))
        for drawing in plot.whole_grid(file, "cases").values():
            document = xml.dom.minidom.parseString(drawing)
            self.assertEqual(len(document.getElementsByTagName("rect")), 3 + 3)

    def test_the_documents_show_what_was_measured(self):
        """Tables of docs/performance.md, and the plot of the README, are made from bench/results.
        With UPDATE_DOCS set the tables are written into the document instead."""
        paths = sorted((ROOT / "bench/results").glob("*.json"), reverse=True)
        files = [published.read(path) for path in paths]
        for path, file in zip(paths, files):
            self.assertEqual(path.read_text(), published.text_of(file), path.name)
        drawings = [{theme: (ROOT / f"docs/plots/headline-{theme}.svg").read_text()
                     for theme in plot.THEMES}]
        self.assertTrue(any(plot.headline(file) in drawings for file in files),
                        "draw it again: compare.py --from bench/results/NAME.json --plot docs/plots/headline")
        page = ROOT / "docs/performance.md"
        text = page.read_text()
        blocks = re.findall(r"<!-- bench: (\w+) -->\n(.*?)<!-- /bench -->", text, flags=re.S)
        self.assertGreaterEqual(len(blocks), 6)
        for grid, block in blocks:
            expected = "\n" + tables.markdown(files, grid) + "\n"
            if "UPDATE_DOCS" in os.environ:
                text = text.replace(f"<!-- bench: {grid} -->\n{block}", f"<!-- bench: {grid} -->\n{expected}")
                page.write_text(text)
                continue
            with self.subTest(grid):
                self.assertEqual(block, expected)


class Regression(unittest.TestCase):
    def test_slower_only_beyond_the_noise(self):
        steady = [1.0, 1.01, 0.99, 1.0, 1.0]
        self.assertEqual(regression.judge(steady, [1.1 * x for x in steady], 0.02)[2], "slower")
        self.assertEqual(regression.judge(steady, [0.9 * x for x in steady], 0.02)[2], "faster")
        self.assertEqual(regression.judge(steady, [1.01 * x for x in steady], 0.02)[2], "")
        noisy = [1.0, 1.5, 0.8, 1.4, 0.9]
        self.assertEqual(regression.judge(noisy, [1.1 * x for x in noisy], 0.02)[2], "")

    def test_tensor_file(self):
        with tempfile.TemporaryDirectory() as folder:
            with mock.patch.object(regression, "PLACE", pathlib.Path(folder)):
                for dtype, code in (("f32", "f"), ("f16", "e"), ("f64", "d"), ("bf16", "H")):
                    case = parse_case(f"b2 hq4 hkv2 sq3 skv5 d8 dv4 {dtype} causal diag=br")
                    data = regression.tensor_file(case).read_bytes()
                    (size,) = struct.unpack("<Q", data[:8])
                    self.assertIn(b'"regard.options":"causal diag=br"', data[8:8 + size])
                    count = 2 * 4 * 3 * 8 + 2 * 2 * 5 * (8 + 4)
                    self.assertEqual(len(data) - 8 - size, count * struct.calcsize(code))
                    if dtype == "bf16":
                        bits = array.array("H", data[8 + size:8 + size + 64])
                        first = struct.unpack("<f", struct.pack("<I", bits[0] << 16))[0]
                        self.assertLess(abs(first), 6)


class Padding(unittest.TestCase):
    """padding.py: winners, ties, and what passes."""

    @staticmethod
    def run_of(padded, packed, auto):
        drift = (1.0, 1.5, 2.0, 1.2)
        return {"padded": [padded * d for d in drift], "packed": [packed * d for d in drift],
                "auto": [auto * d for d in drift]}

    def test_a_winner_wins_in_both_runs_by_more_than_the_spread(self):
        self.assertEqual(padding.winner(self.run_of(2, 1, 1)), "packed")
        self.assertEqual(padding.winner(self.run_of(1, 2, 1)), "padded")
        noisy = {"padded": [1, 2, 1, 2], "packed": [2, 1, 2, 1]}
        self.assertEqual(padding.winner(noisy), "tie")
        agreed, _, passes = padding.judge([self.run_of(2, 1, 2), self.run_of(1, 2, 2)])
        self.assertEqual((agreed, passes), ("tie", True))

    def test_auto_passes_within_five_percent_of_the_better(self):
        for auto, expected in ((1.0, True), (1.04, True), (1.06, False), (2.0, False)):
            agreed, ratio, passes = padding.judge([self.run_of(2, 1, auto)] * 2)
            self.assertEqual((agreed, passes), ("packed", expected))
            self.assertAlmostEqual(ratio, auto)


if __name__ == "__main__":
    unittest.main()
