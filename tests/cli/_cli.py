"""What the tests of the command line share: running it, and writing safetensors files."""

import json
import os
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

CLI = os.environ["REGARD_DEV_CLI"]
SOURCE = Path(os.environ["REGARD_DEV_SOURCE_DIR"])
MINILM = SOURCE / "examples" / "data" / "minilm.safetensors"

OK, FAILED, USAGE, NO_BACKEND, INTERRUPTED = 0, 1, 2, 3, 130
SMALL = "b1 hq2 hkv1 sq5 skv9 d8 f32"


def environment(**changes):
    """This process's environment without REGARD_ variables and NO_COLOR, with changes."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("REGARD_") and k != "NO_COLOR"}
    env.update(changes)
    return env


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def raw_file(header, data=b"", align=8):
    """The bytes of a file; `header` is a dict, a string or bytes."""
    if isinstance(header, dict):
        header = json.dumps(header, separators=(",", ":"))
    if isinstance(header, str):
        header = header.encode()
    header += b" " * (-len(header) % align)
    return struct.pack("<Q", len(header)) + header + data


def tensor_file(tensors, options=None):
    """The bytes of a file of {name: (dtype, shape, bytes)}; bytes come last, so all is aligned."""
    header, data = {}, b""
    if options is not None:
        header["__metadata__"] = {"regard.options": options}
    for name, (dtype, shape, values) in sorted(
        tensors.items(), key=lambda item: item[1][0] in ("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2")
    ):
        header[name] = entry(dtype, shape, len(data), len(data) + len(values))
        data += values
    return raw_file(header, data)


def floats(count, first=0.0):
    """`count` f32 values that vary, as bytes."""
    return struct.pack(f"<{count}f", *(((first + 7 * i) % 11 - 5) / 4 for i in range(count)))


def ints(*values):
    return struct.pack(f"<{len(values)}i", *values)


def qkv(batch=2, heads_q=2, heads_kv=1, sq=3, skv=5, dim=4):
    """q, k and v of f32."""
    return {
        "q": ("F32", [batch, heads_q, sq, dim], floats(batch * heads_q * sq * dim)),
        "k": ("F32", [batch, heads_kv, skv, dim], floats(batch * heads_kv * skv * dim, 3)),
        "v": ("F32", [batch, heads_kv, skv, dim], floats(batch * heads_kv * skv * dim, 5)),
    }


def read_tensors(path):
    """{name: (dtype, shape, bytes)} and the metadata of a file."""
    data = Path(path).read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, info in header.items():
        begin, end = info["data_offsets"]
        tensors[name] = (info["dtype"], info["shape"], data[start + begin : start + end])
    return tensors, metadata


class CliTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="regard-cli-")
        self.addCleanup(directory.cleanup)
        self.dir = Path(directory.name)

    def cli(self, *args, code=OK, env=None, timeout=300, **kwargs):
        """Runs the program; its exit code must be `code`, or one of them."""
        done = subprocess.run(
            [CLI, *map(str, args)],
            capture_output=True,
            text=True,
            env=environment(**(env or {})),
            timeout=timeout,
            check=False,
            **kwargs,
        )
        codes = code if isinstance(code, tuple) else (code,)
        self.assertIn(done.returncode, codes, f"{args}\n{done.stdout}\n{done.stderr}")
        self.assertNotIn("\x1b", done.stdout + done.stderr)
        return done

    def document(self, *args, code=OK, env=None):
        """The one JSON document that --json prints."""
        done = self.cli(*args, "--json", code=code, env=env)
        found = json.loads(done.stdout, object_pairs_hook=self.unique)
        self.assertEqual(found["schema_version"], 1)
        self.assertEqual(found["exit_code"], done.returncode)
        return found

    def unique(self, pairs):
        names = [name for name, _ in pairs]
        self.assertEqual(len(names), len(set(names)), f"a key comes twice: {names}")
        return dict(pairs)

    def refused(self, *args, names=(), code=USAGE, env=None):
        """The program refuses, and its complaint names each of `names`."""
        done = self.cli(*args, code=code, env=env)
        for name in names:
            self.assertIn(name, done.stderr)
        return done

    def put(self, name, data):
        path = self.dir / name
        path.write_bytes(data)
        return path

    def names(self):
        """What lies in the directory: a temporary file that was left would show."""
        return sorted(path.name for path in self.dir.iterdir())
