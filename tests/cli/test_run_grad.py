"""`regard run --grad`: gradients of a file's problem on every backend that has a backward."""

import math
import struct
import unittest

from _cli import MINILM, NO_BACKEND, CliTest, floats, ints, qkv, read_tensors, tensor_file


def loss(tensors, d_out):
    """The sum of d_out * out of plain attention with one head and one sequence."""
    _, _, sq, dim = tensors["q"][1]
    skv = tensors["k"][1][2]
    values = {n: struct.unpack(f"<{len(tensors[n][2]) // 4}f", tensors[n][2]) for n in "qkv"}

    def row(name, i):
        return values[name][i * dim : (i + 1) * dim]

    total = 0.0
    for i in range(sq):
        scores = [sum(x * y for x, y in zip(row("q", i), row("k", j))) for j in range(skv)]
        weights = [math.exp(s / math.sqrt(dim)) for s in scores]
        for d in range(dim):
            out = sum(w * row("v", j)[d] for j, w in enumerate(weights)) / sum(weights)
            total += out * d_out[i * dim + d]
    return total


def changed(tensors, name, index, step):
    dtype, shape, data = tensors[name]
    values = list(struct.unpack(f"<{len(data) // 4}f", data))
    values[index] += step
    return {**tensors, name: (dtype, shape, struct.pack(f"<{len(values)}f", *values))}


class Gradients(CliTest):
    def run_file(self, tensors, *args, options=None, code=0):
        path = self.put("in.safetensors", tensor_file(tensors, options))
        return self.document("run", path, "--grad", "--repeat", "1", *args, code=code)

    def test_on_real_tensors(self):
        found = self.document("run", MINILM, "--grad", "--all-backends", "--repeat", "2")
        self.assertEqual(found["d_out"], "made")
        self.assertRegex(found["case"], r"\bsaved\b.*\bgrad\b")
        self.assertIn("math", [r["backend"] for r in found["results"]])
        for result in found["results"]:
            back = result["backward"]
            self.assertTrue(result["ok"] and back["within_tolerance"])
            self.assertEqual([g["name"] for g in back["gradients"]], ["d_q", "d_k", "d_v"])
            for gradient in back["gradients"]:
                self.assertTrue(0 < gradient["error"] < 1e-5)
                self.assertLessEqual(gradient["error_over_tolerance"], 1)
            self.assertEqual(back["runs"], 2)
            self.assertGreater(back["seconds"], 0)
            self.assertGreater(back["gflops"], 0)
            self.assertIn("backward", back["kernel"])
            self.assertGreaterEqual(back["workspace_bytes"], 0)
        plain = self.document("run", MINILM, "--repeat", "1")
        self.assertNotIn("backward", plain["results"][0])
        self.assertNotIn("d_out", plain)

    def test_the_text_for_people(self):
        text = self.cli("run", MINILM, "--grad", "--repeat", "1").stdout
        for word in ("backward", "d_q", "d_k", "d_v", "d_sinks", "within tolerance"):
            self.assertIn(word, text)
        unchecked = self.cli("run", MINILM, "--grad", "--repeat", "1", "--no-check").stdout
        self.assertIn("not checked", unchecked.splitlines()[-1])

    def test_gradients_are_slopes(self):
        tensors = qkv(batch=1, heads_q=1)
        d_out = floats(12, 2)
        numbers = struct.unpack("<12f", d_out)
        out = self.dir / "out.safetensors"
        found = self.run_file({**tensors, "d_out": ("F32", [1, 1, 3, 4], d_out)}, "-o", out)
        self.assertEqual(found["d_out"], "file")
        written, _ = read_tensors(out)
        self.assertEqual(set(written), {"out", "lse", "saved_stats", "d_q", "d_k", "d_v"})
        for name in "qkv":
            self.assertEqual(written["d_" + name][:2], tensors[name][:2])
            count = len(tensors[name][2]) // 4
            gradient = struct.unpack(f"<{count}f", written["d_" + name][2])
            for i in range(count):
                rise = loss(changed(tensors, name, i, 1 / 64), numbers)
                rise -= loss(changed(tensors, name, i, -1 / 64), numbers)
                self.assertAlmostEqual(gradient[i], 32 * rise, delta=1e-3)

    def test_every_edit_has_a_backward(self):
        more = {
            "attn_bias": ("F32", [2, 1, 1, 5], floats(10)),
            "sinks": ("F32", [2], floats(2)),
            "seqlens_q": ("I32", [2], ints(3, 2)),
            "seqlens_kv": ("I32", [2], ints(5, 3)),
            "d_lse": ("F32", [2, 2, 3], floats(12)),
        }
        out = self.dir / "out.safetensors"
        options = "causal diag=br softcap=3 dropout=0.25 seed=4"
        found = self.run_file({**qkv(), **more}, "-o", out, options=options)
        names = [g["name"] for g in found["results"][0]["backward"]["gradients"]]
        self.assertEqual(names, ["d_q", "d_k", "d_v", "d_bias", "d_sinks"])
        written, _ = read_tensors(out)
        self.assertEqual(written["d_bias"][:2], ("F32", [2, 1, 1, 5]))
        self.assertEqual(written["d_sinks"][:2], ("F32", [2]))
        self.assertEqual(written["saved_stats"][:2], ("F32", [2, 2, 3, 2]))

    def test_d_lse_of_the_file_counts(self):
        outs = []
        for more in ({}, {"d_lse": ("F32", [2, 2, 3], floats(12, 1))}):
            out = self.dir / "out.safetensors"
            self.run_file({**qkv(), **more}, "-o", out)
            outs.append(read_tensors(out)[0])
        self.assertNotEqual(outs[0]["d_q"], outs[1]["d_q"])
        self.assertEqual(outs[0]["d_v"], outs[1]["d_v"])  # lse does not depend on v

    def test_a_made_d_out_is_the_same_in_every_run(self):
        outs = []
        for threads in (1, 2):
            out = self.dir / "out.safetensors"
            self.run_file(qkv(), "--threads", threads, "-o", out)
            outs.append(read_tensors(out)[0])
        self.assertEqual(outs[0], outs[1])

    def test_layout_says_how_gradients_are_stored(self):
        def exchanged(values):  # [1,2,3,4] -> [1,3,2,4]
            rows = [values[16 * i : 16 * i + 16] for i in range(6)]
            return b"".join(rows[3 * h + s] for s in range(3) for h in range(2))

        plain = {n: ("F32", [1, 2, 3, 4], floats(24, i)) for i, n in enumerate(["q", "k", "v"])}
        plain["d_out"] = ("F32", [1, 2, 3, 4], floats(24, 7))
        stored = {n: ("F32", [1, 3, 2, 4], exchanged(v)) for n, (_, _, v) in plain.items()}
        outs = []
        for tensors, options in ((plain, ""), (stored, "layout=bshd")):
            out = self.dir / "out.safetensors"
            self.run_file(tensors, "--backend", "math", "-o", out, options=options)
            outs.append(read_tensors(out)[0])
        for name in ("d_q", "d_k", "d_v"):
            self.assertEqual(outs[1][name][1], [1, 3, 2, 4])
            self.assertEqual(exchanged(outs[0][name][2]), outs[1][name][2])

    def test_types(self):
        for dtype, code in (("F64", "d"), ("F16", "e")):
            data = struct.pack("<24" + code, *(i / 8 - 1 for i in range(24)))
            found = self.run_file({name: (dtype, [1, 2, 3, 4], data) for name in "qkv"})
            self.assertTrue(found["results"][0]["backward"]["within_tolerance"], dtype)

    def test_what_is_wrong_is_named(self):
        def refused(tensors, *names, args=()):
            path = self.put("in.safetensors", tensor_file({**qkv(), **tensors}))
            self.refused("run", path, "--grad", *args, names=names)

        refused({"d_out": ("F32", [2, 2, 3, 5], floats(60))}, "d_out", "shape of")
        refused({"d_out": ("F32", [4, 3, 4], floats(48))}, "'d_out'", "rank 4")
        refused({"d_lse": ("F32", [2, 2, 4], floats(16))}, "d_lse")
        refused({}, "grad", args=("--option", "grad=none"))
        self.run_file(qkv(), "--backend", "cudnn", code=NO_BACKEND)


if __name__ == "__main__":
    unittest.main()
