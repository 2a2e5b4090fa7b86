"""`regard run`: tensors and options out of files, results on every backend."""

import math
import re
import struct
import unittest

from _cli import (
    MINILM,
    NO_BACKEND,
    CliTest,
    entry,
    floats,
    ints,
    qkv,
    raw_file,
    read_tensors,
    tensor_file,
)


def attention(path):
    """Plain attention (no options) of a file's f32 q, k, v in Python: [B,H,S,D], flat."""
    tensors, _ = read_tensors(path)
    values = {
        name: struct.unpack(f"<{len(tensors[name][2]) // 4}f", tensors[name][2]) for name in "qkv"
    }
    batch, heads_q, sq, dim = tensors["q"][1]
    _, heads_kv, skv, _ = tensors["k"][1]

    def row(name, heads, length, b, h, i):
        begin = ((b * heads + h) * length + i) * dim
        return values[name][begin : begin + dim]

    out = []
    for b in range(batch):
        for h in range(heads_q):
            hkv = h * heads_kv // heads_q
            for i in range(sq):
                q = row("q", heads_q, sq, b, h, i)
                scores = [
                    sum(x * y for x, y in zip(q, row("k", heads_kv, skv, b, hkv, j)))
                    / math.sqrt(dim)
                    for j in range(skv)
                ]
                weights = [math.exp(s - max(scores)) for s in scores]
                rows = [row("v", heads_kv, skv, b, hkv, j) for j in range(skv)]
                for d in range(dim):
                    total = sum(w * r[d] for w, r in zip(weights, rows))
                    out.append(total / sum(weights))
    return out


class RealInput(CliTest):
    def test_every_backend_on_real_tensors(self):
        found = self.document("run", MINILM, "--all-backends", "--repeat", "2")
        names = [r["backend"] for r in found["results"]]
        self.assertLessEqual({"math", "efficient"}, set(names))
        self.assertEqual(names[0], found["selection"]["chosen"])
        self.assertRegex(found["case"], r"\bb6 hq12 .*\blens\b.*\blse\b")
        for result in found["results"]:
            self.assertTrue(result["ok"] and result["within_tolerance"])
            self.assertLess(result["error"], 1e-5)
            self.assertLessEqual(result["error_over_tolerance"], 1)
            self.assertEqual(result["padding_rows"], 12 * (6 * 47 - (47 + 29 + 23 + 14 + 11 + 5)))
            self.assertTrue(result["padding_exactly_zero"])
            self.assertEqual(result["runs"], 2)
            self.assertGreater(result["seconds"], 0)
            self.assertGreater(result["gflops"], 0)
            self.assertGreaterEqual(result["workspace_bytes"], 0)
        pairs = {frozenset((a["a"], a["b"])) for a in found["agreement"]}
        self.assertEqual(len(pairs), len(names) * (len(names) - 1) // 2)
        self.assertTrue(all(a["max_difference"] < 1e-5 for a in found["agreement"]))
        self.assertIsNone(found["output"])

    def test_the_text_for_people(self):
        text = self.cli("run", MINILM, "--all-backends", "--repeat", "1").stdout
        for word in (
            "chosen",
            "within tolerance",
            "GFLOP/s",
            "workspace",
            "exactly zero",
            "agreement",
            "math",
            "efficient",
        ):
            self.assertIn(word, text)

    def test_flags_change_options_word_by_word(self):
        found = self.document(
            "run", "--option", "causal", "--option", "diag=br softcap=20", MINILM, "--repeat", "1"
        )
        self.assertRegex(found["case"], r"causal diag=br softcap=20 .*lens=both")
        again = self.document("run", MINILM, "--backend", "math", "--threads", "1", "--no-check")
        self.assertEqual([r["backend"] for r in again["results"]], ["math"])
        self.assertIsNone(again["results"][0]["within_tolerance"])
        self.assertNotIn("error", again["results"][0])


class Profiles(CliTest):
    def profile(self, *args):
        found = self.document("run", MINILM, "--no-check", "--repeat", "5", "--profile", *args)
        (result,) = found["results"]
        return result, result["profile"]

    def test_stages_and_workers(self):
        result, profile = self.profile("--threads", "2")
        stages = {stage["stage"]: stage for stage in profile["stages"]}
        self.assertEqual(list(stages), ["describe", "plan", "prepare", "execute"])
        for stage in stages.values():
            self.assertGreaterEqual(stage["seconds"], 0)
            share = stage["seconds"] / profile["call_seconds"]
            self.assertAlmostEqual(stage["share"], share)
        # Attention on 12 heads takes longer than checking five tensors, however busy the machine.
        self.assertGreater(stages["execute"]["seconds"], stages["describe"]["seconds"])
        self.assertEqual(profile["calls"], 5)
        self.assertEqual(len(profile["worker_seconds"]), result["workers"])
        self.assertGreater(sum(profile["worker_seconds"]), 0)
        self.assertIn(profile["threads"], (1, 2))
        self.assertTrue(1 <= profile["imbalance"] <= 2)
        self.assertTrue(0 < profile["busy"] <= 1)

    def test_rates(self):
        result, profile = self.profile()
        keys = 47 + 29 + 23 + 14 + 11 + 5
        gigabytes = 12 * keys * 2 * 32 * 4 * 1e-9
        rate = gigabytes / profile["call_seconds"]
        self.assertAlmostEqual(profile["kv_gigabytes_per_second"] / rate, 1)
        operations = result["gflops"] * result["seconds"]
        self.assertAlmostEqual(profile["gflops"] * profile["call_seconds"] / operations, 1)

    def test_one_worker_needs_no_executor(self):
        _, profile = self.profile("--threads", "1")
        names = [stage["stage"] for stage in profile["stages"]]
        self.assertEqual(names, ["describe", "plan", "execute"])
        self.assertEqual((profile["worker_seconds"], profile["threads"]), ([], 1))

    def test_the_text_for_people(self):
        text = self.cli("run", MINILM, "--repeat", "3", "--profile", "--threads", "2").stdout
        for word in ("profile", "describe", "plan", "prepare", "execute", "workers ", "GB/s of K"):
            self.assertIn(word, text)
        plain = self.document("run", MINILM, "--repeat", "3")
        self.assertNotIn("profile", plain["results"][0])


class Tensors(CliTest):
    def run_file(self, tensors, *args, options=None, code=0):
        path = self.put("in.safetensors", tensor_file(tensors, options))
        return self.document("run", path, "--all-backends", "--repeat", "1", *args, code=code)

    def test_result_is_attention(self):
        path = self.put("in.safetensors", tensor_file(qkv()))
        out = self.dir / "out.safetensors"
        self.cli("run", path, "-o", out)
        tensors, metadata = read_tensors(out)
        self.assertEqual(set(tensors), {"out", "lse"})
        dtype, shape, values = tensors["out"]
        self.assertEqual((dtype, shape), ("F32", [2, 2, 3, 4]))
        self.assertEqual(tensors["lse"][:2], ("F32", [2, 2, 3]))
        for got, expected in zip(struct.unpack("<48f", values), attention(path), strict=True):
            self.assertAlmostEqual(got, expected, places=5)
        self.assertIn(metadata["regard.backend"], ("math", "efficient", "flash"))
        self.assertIn("hq2 hkv1", metadata["regard.case"])

    def test_every_optional_tensor(self):
        more = {
            "attn_mask": ("BOOL", [1, 1, 3, 5], bytes([1, 0, 1, 1, 0] * 3)),
            "attn_bias": ("F32", [2, 1, 1, 5], floats(10)),
            "seqlens_q": ("I32", [2], ints(3, 2)),
            "seqlens_kv": ("I32", [2], ints(5, 0)),
            "alibi_slopes": ("F32", [2], floats(2)),
            "sinks": ("F32", [2], floats(2)),
            "segment_ids_q": ("I32", [2, 3], ints(0, 0, 1, 0, 1, 1)),
            "segment_ids_kv": ("I32", [2, 5], ints(0, 0, 1, 1, 2, 0, 0, 0, 1, 1)),
        }
        words = {
            "attn_mask": "mask=1,1,Sq,Skv",
            "attn_bias": "bias=B,1,1,Skv",
            "seqlens_q": "lens=q",
            "seqlens_kv": "lens=kv",
            "alibi_slopes": "alibi",
            "sinks": "sinks",
        }
        for name, tensor in more.items():
            if name.startswith("segment"):
                continue
            with self.subTest(name=name):
                options = "diag=tl" if name == "alibi_slopes" else None
                found = self.run_file({**qkv(), name: tensor}, options=options)
                self.assertIn(words[name], found["case"].split())
                self.assertTrue(all(r["ok"] for r in found["results"]))
        found = self.run_file({**qkv(), **more}, options="diag=br causal window=3,0")
        self.assertIn("segments", found["case"].split())
        self.assertTrue(all(r["ok"] for r in found["results"]))

    def test_offsets_of_each_sequence(self):
        offsets = ("I64", [2], struct.pack("<2q", 2, -1))
        found = self.run_file({"diagonal_offsets": offsets, **qkv()}, options="causal diag=seq")
        self.assertIn("diag=seq", found["case"].split())
        self.assertTrue(all(r["ok"] for r in found["results"]))

    def test_dtypes(self):
        for dtype, code, count in (("F64", "d", 8), ("F16", "e", 2)):
            q = struct.pack("<24" + code, *(i / 8 for i in range(24)))
            tensors = {name: (dtype, [1, 2, 3, 4], q) for name in "qkv"}
            found = self.run_file(tensors)
            self.assertTrue(all(r["ok"] for r in found["results"]))
            self.assertEqual(len(q), 24 * count)

    def test_floats_of_8_bits_and_their_descales(self):
        one, two, six = 0x38, 0x40, 0x4C  # of e4m3
        tensors = {
            "q": ("F8_E4M3", [1, 1, 1, 1], bytes([0])),  # equal scores
            "k": ("F8_E4M3", [1, 1, 2, 1], bytes([one, two])),
            "v": ("F8_E4M3", [1, 1, 2, 1], bytes([two, six])),
            "descale_v": ("F32", [1], struct.pack("<f", 0.5)),
        }
        path = self.put("in.safetensors", tensor_file(tensors))
        out = self.dir / "out.safetensors"
        found = self.document("run", path, "-o", out)
        self.assertIn("f8e4m3 descales=all", found["case"])
        self.assertEqual(read_tensors(out)[0]["out"], ("BF16", [1, 1, 1, 1], b"\x00\x40"))  # 2
        self.cli("run", path, "-o", out, "--option", "out=f8e4m3")
        self.assertEqual(read_tensors(out)[0]["out"], ("F8_E4M3", [1, 1, 1, 1], bytes([two])))

    def test_layout_says_how_the_file_is_stored(self):
        def exchanged(values):  # [1,2,3,4] -> [1,3,2,4]
            rows = [values[16 * i : 16 * i + 16] for i in range(6)]
            return b"".join(rows[3 * h + s] for s in range(3) for h in range(2))

        plain = {name: ("F32", [1, 2, 3, 4], floats(24, i)) for i, name in enumerate("qkv")}
        stored = {n: ("F32", [1, 3, 2, 4], exchanged(v)) for n, (_, _, v) in plain.items()}
        outs = []
        for tensors, options in ((plain, ""), (stored, "layout=bshd")):
            path = self.put("in.safetensors", tensor_file(tensors, options))
            self.cli("run", path, "--backend", "math", "-o", self.dir / "out.safetensors")
            outs.append(read_tensors(self.dir / "out.safetensors")[0])
        self.assertEqual(outs[1]["out"][1], [1, 3, 2, 4])
        self.assertEqual(exchanged(outs[0]["out"][2]), outs[1]["out"][2])
        self.assertEqual(outs[0]["lse"], outs[1]["lse"])

    def test_scores_and_other_output_types(self):
        path = self.put("in.safetensors", tensor_file(qkv(), "scores=probs"))
        out = self.dir / "out.safetensors"
        self.cli("run", path, "-o", out)
        tensors, _ = read_tensors(out)
        self.assertEqual(tensors["scores_out"][:2], ("F32", [2, 2, 3, 5]))
        probs = struct.unpack("<60f", tensors["scores_out"][2])
        for row in range(12):
            self.assertAlmostEqual(sum(probs[5 * row : 5 * row + 5]), 1, places=5)

    def test_empty_sizes(self):
        for shape in ({"batch": 0}, {"sq": 0}, {"skv": 0}):
            with self.subTest(shape=shape):
                found = self.run_file(qkv(**shape))
                self.assertTrue(all(r["ok"] for r in found["results"]))

    def test_what_nothing_can_run(self):
        found = self.run_file(qkv(), "--backend", "cudnn", code=NO_BACKEND)
        self.assertEqual(found["selection"]["chosen"], "error")
        self.assertEqual(found["error"]["code"], "no_backend")
        quantised = {name: ("I32", [1, 1, 2, 4], bytes(32)) for name in "qkv"}
        self.run_file(quantised, code=NO_BACKEND)
        self.run_file(qkv(), "--backend", "cudnn", options="grad", code=NO_BACKEND)


class BadInput(CliTest):
    def refused_file(self, data, *names, args=()):
        """run, explain and bench refuse the file alike."""
        path = self.put("in.safetensors", data)
        done = self.refused("run", path, *args, names=names)
        explained = self.refused("explain", path, *args, names=names)
        function = re.compile(r"\[\w+\] ")  # explain runs no execute()
        self.assertEqual(function.sub("", explained.stderr), function.sub("", done.stderr))
        self.refused("bench", path, *args, names=names)

    def test_files(self):
        for verb in ("run", "explain", "bench"):
            self.refused(verb, self.dir / "missing", names=["missing", "No such file"])
            self.refused(verb, self.dir, names=["not a regular file"])
            self.refused(verb, "/dev/null", names=["not a regular file"])
        good = tensor_file(qkv())
        for size in (0, 5, 8, 60, len(good) - 1):
            with self.subTest(size=size):
                self.refused_file(good[:size], "expected")
        self.refused_file(good + b"x", "the end of the file")
        self.refused_file(struct.pack("<Q", 2**63) + b"{}", str(2**63), "100000000")

    def test_headers(self):
        x = {"q": entry("F32", [2], 0, 8)}
        self.refused_file(raw_file(x, b"1234"), "[0,8]", "<= 4")
        self.refused_file(raw_file({"q": entry("F32", [2], 4, 12)}, b"0" * 12), "hole")
        self.refused_file(raw_file(x | {"k": entry("F32", [2], 4, 12)}, b"0" * 12), "overlaps")
        self.refused_file(raw_file(x | {"k": entry("F64", [1], 8, 16)}, b"0" * 16, align=57), "")
        self.refused_file(raw_file('{"q":{},"q":{}}'), "expected dtype")
        twice = '{"q":%s,"q":%s}' % ((2 * ('{"dtype":"U8","shape":[0],"data_offsets":[0,0]}',)))
        self.refused_file(raw_file(twice), "'q' comes twice")
        self.refused_file(raw_file('{"q":' + "[" * 100000), "'['")
        self.refused_file(raw_file({"q": entry("F32", [2**62], 0, 8)}, b"0" * 8), "2^63")
        self.refused_file(raw_file({"q": entry("C64", [1], 0, 8)}, b"0" * 8), "'C64'")
        self.refused_file(raw_file('{"\\u001b[31m":1}'), "expected")

    def test_tensors(self):
        good = qkv()
        self.refused_file(tensor_file({}), "'q'")
        self.refused_file(tensor_file({"q": good["q"], "v": good["v"]}), "'k'")
        flat = ("F32", [6, 2, 4], good["q"][2])
        self.refused_file(tensor_file({**good, "q": flat}), "rank 4", "6,2,4")
        five = ("F32", [1, 2, 2, 3, 4], good["q"][2])
        self.refused_file(tensor_file({**good, "q": five}), "rank 5")
        self.refused_file(tensor_file({**good, "sinks": ("F32", [], floats(1))}), "rank 0")
        self.refused_file(tensor_file(qkv() | qkv(batch=1) | {"q": good["q"]}), "batch", "1", "2")
        self.refused_file(tensor_file({**good, "k": qkv(dim=5)["k"]}), "head_dim", "5", "4")
        self.refused_file(tensor_file(qkv(heads_q=3, heads_kv=2)), "num_heads", "3", "2")
        mask = ("BOOL", [1, 1, 2, 5], bytes(10))
        self.refused_file(tensor_file({**good, "attn_mask": mask}), "attn_mask", "2")
        ids = ("I32", [2, 3], ints(*range(6)))
        self.refused_file(tensor_file({**good, "segment_ids_q": ids}), "segment_ids_kv")
        lengths = ("I32", [2], ints(5, 6))
        self.refused_file(tensor_file({**good, "seqlens_kv": lengths}), "seqlens_kv", "6", "5")
        lengths = ("I32", [2], ints(-1, 2))
        self.refused_file(tensor_file({**good, "seqlens_q": lengths}), "seqlens_q", "-1")
        wide = ("I64", [2], struct.pack("<2q", 1, 2))
        self.refused_file(tensor_file({**good, "seqlens_q": wide}), "seqlens_q", "i64")

    def test_options(self):
        for options, names in {
            "colour=red": ["colour", "regard.options"],
            "scale=nan": ["nan"],
            "hq4": ["num_heads_q", "4", "2"],
            "bf16": ["dtype", "bf16"],
            "kv=int32": ["i32"],
            "alibi diag=tl": ["alibi"],
            "lens": ["seqlens"],
            "lens_kv=1,2": ["seqlens_kv"],
            "mask": ["attn_mask"],
            "causal": ["diagonal"],
            "causal diag=seq": ["diagonal"],
            "poison": ["poison"],
            "data=large": ["data"],
            "layout=strided": ["layout"],
            "saved": ["saved_stats"],
            "device=sm90": ["device"],
            "packed": ["packed"],
        }.items():
            with self.subTest(options=options):
                self.refused_file(tensor_file(qkv(), options), *names)
                names = [name for name in names if name != "regard.options"]
                self.refused_file(tensor_file(qkv()), *names, args=("--option", options))
        self.refused_file(tensor_file(qkv()), "--option", args=("--option", "colour=red"))
        removed = tensor_file({**qkv(), "sinks": ("F32", [2], floats(2))})
        self.refused_file(removed, "sinks", args=("--option", "sinks=none"))

    def test_isa_beyond_this_machine(self):
        path = self.put("in.safetensors", tensor_file(qkv()))
        available = self.document("devices")["machine"]["isa_available"]
        order = ["scalar", "avx2", "avx512", "avx512_bf16", "amx_bf16"]
        for isa in order:
            beyond = order.index(isa) > order.index(available)
            self.cli("run", path, "--isa", isa, "--repeat", "1", code=2 if beyond else 0)


if __name__ == "__main__":
    unittest.main()
