"""The committed real input, examples/data/minilm.safetensors, is what its README says.

Making it again needs a network: examples/data/make_minilm.py --check does that.
"""

import array
import json
import math
import subprocess
import sys
import unittest
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "examples" / "data"
FILE = DATA / "minilm.safetensors"
HEADS, HEAD_DIM = 12, 32
CLS, SEP, PAD, VOCABULARY = 101, 102, 0, 30522
TYPE_CODES = {"F32": "f", "I32": "i"}


class MinilmData(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.data = FILE.read_bytes()
        cls.start = 8 + int.from_bytes(cls.data[:8], "little")
        cls.header = json.loads(cls.data[8 : cls.start], object_pairs_hook=cls.unique)
        cls.metadata = cls.header.pop("__metadata__")

    @staticmethod
    def unique(pairs):
        names = [name for name, _ in pairs]
        assert len(set(names)) == len(names), f"a name comes twice: {names}"
        return dict(pairs)

    def values(self, name):
        entry = self.header[name]
        begin, end = (self.start + offset for offset in entry["data_offsets"])
        result = array.array(TYPE_CODES[entry["dtype"]])
        result.frombytes(self.data[begin:end])
        if sys.byteorder == "big":
            result.byteswap()
        return result

    def rows(self):
        batch, tokens = self.header["token_ids"]["shape"]
        ids = self.values("token_ids")
        return [ids[i * tokens : (i + 1) * tokens] for i in range(batch)]

    def test_size(self):
        self.assertLessEqual(len(self.data), 2_000_000)

    def test_layout_is_aligned_and_without_gaps(self):
        self.assertEqual(self.start % 8, 0)
        end = 0
        for name, entry in self.header.items():
            begin, next_end = entry["data_offsets"]
            self.assertEqual(begin, end, name)
            self.assertEqual(next_end - begin, 4 * math.prod(entry["shape"]), name)
            end = next_end
        self.assertEqual(self.start + end, len(self.data))

    def test_shapes_and_types(self):
        batch, tokens = self.header["token_ids"]["shape"]
        whole = [batch, HEADS, tokens, HEAD_DIM]
        expected = {name: ("F32", whole) for name in "qkv"}
        expected |= {name: ("I32", [batch]) for name in ("seqlens_q", "seqlens_kv")}
        expected["token_ids"] = ("I32", [batch, tokens])
        found = {name: (entry["dtype"], entry["shape"]) for name, entry in self.header.items()}
        self.assertEqual(found, expected)

    def test_lengths_differ_and_the_first_is_the_longest(self):
        lengths = list(self.values("seqlens_q"))
        tokens = self.header["q"]["shape"][2]
        self.assertEqual(lengths, list(self.values("seqlens_kv")))
        self.assertEqual(lengths[0], tokens)
        self.assertEqual(len(set(lengths)), len(lengths))
        self.assertTrue(all(2 < n <= tokens for n in lengths), lengths)

    def test_token_ids_agree_with_lengths(self):
        for row, length in zip(self.rows(), self.values("seqlens_q")):
            self.assertEqual(sum(token != PAD for token in row), length)
            self.assertEqual((row[0], row[length - 1]), (CLS, SEP))
            self.assertTrue(all(0 < token < VOCABULARY for token in row[:length]))
            self.assertTrue(all(token == PAD for token in row[length:]))

    def test_values_are_finite_and_vary(self):
        for name in "qkv":
            values = self.values(name)
            self.assertTrue(all(map(math.isfinite, values)), name)
            self.assertGreater(len(set(values)), 0.9 * len(values), name)
            self.assertTrue(1 < max(map(abs, values)) < 100, name)

    def test_metadata(self):
        for name in ("regard.options", "source", "sentences", "model", "layer", "license"):
            self.assertIsInstance(self.metadata.get(name), str, name)
        self.assertEqual(self.metadata["regard.options"].split(), ["lens", "lse"])
        self.assertEqual(self.metadata["license"], "Apache-2.0")
        self.assertTrue(0 <= int(self.metadata["layer"]) < 6)
        sentences = json.loads(self.metadata["sentences"])
        self.assertEqual(len(sentences), self.header["q"]["shape"][0])
        for sentence, length in zip(sentences, self.values("seqlens_q")):
            # every word gives at least one token, [CLS] and [SEP] come on top
            self.assertLessEqual(len(sentence.split()) + 2, length, sentence)

    def test_readme_states_the_shapes(self):
        text = (DATA / "README.md").read_text(encoding="utf-8")
        self.assertIn(str(self.header["q"]["shape"]), text)
        self.assertIn(" ".join(map(str, self.values("seqlens_q"))), text)

    def test_the_script_explains_itself_and_refuses_unknown_options(self):
        script = [sys.executable, str(DATA / "make_minilm.py")]
        done = subprocess.run([*script, "--help"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--model-dir", done.stdout)
        done = subprocess.run([*script, "--bogus"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--bogus", done.stderr)


if __name__ == "__main__":
    unittest.main()
