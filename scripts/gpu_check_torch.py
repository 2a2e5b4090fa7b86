#!/usr/bin/env python3
"""PyTorch's efficient backend beside regard's, on the cases that a run of regard_gpu_check measured.

usage: gpu_check_torch.py PREFIX [--seconds N] [--dry-run]

Reads PREFIX.json, adds "torch" to it and a table to PREFIX.md; both say so where PyTorch or its CUDA
is not there. --dry-run takes stand-ins in PyTorch's place: it checks this program without a device.
"""

import argparse
import json
import pathlib
import re
import time

RUNS, RUN_MS = 7, 50.0  # as regard_gpu_check measures
BARRED = "efficient"  # regard's backend that is held to PyTorch's


def parse(words):
    """The extents and options of a case, or None where PyTorch's backend has no such call."""
    values = {"hq": 1, "hkv": None, "sq": 1, "skv": None, "causal": False, "grad": False}
    for word in words.split():
        if word in ("f32", "f16", "bf16"):
            values["dtype"] = word
        elif word in ("causal", "grad"):
            values[word] = True
        elif match := re.fullmatch(r"(b|hq|hkv|sq|skv|d)(\d+)", word):
            values[match[1]] = int(match[2])
        elif word not in ("lse", "diag=tl"):
            return None
    values["hkv"] = values["hkv"] or values["hq"]
    values["skv"] = values["skv"] or values["sq"]
    return values if {"b", "d", "dtype"} <= values.keys() else None


class Device:
    """PyTorch's efficient backend on its device."""

    def __init__(self):
        import torch

        if not torch.cuda.is_available():
            raise ImportError("it sees no CUDA device")
        self._torch = torch
        self.version = torch.__version__

    def measure(self, case, seconds):
        """Milliseconds of a call: the median of runs, as many as the time allows."""
        torch = self._torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[case["dtype"]]
        # The backend wants as many heads of keys as of queries: a caller repeats them, outside the
        # measurement.
        q, k, v = (torch.randn(case["b"], case["hq"], rows, case["d"], dtype=dtype, device="cuda",
                               requires_grad=case["grad"])
                   for rows in (case["sq"], case["skv"], case["skv"]))
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            def forward():
                return scaled_dot_product_attention(q, k, v, is_causal=case["causal"])

            out = forward()
            d_out = torch.randn_like(out)
            call = forward if not case["grad"] else (
                lambda: torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True))
            self._run(call, 2)
            count = int(min(max(RUN_MS / max(self._run(call, 1), 1e-3), 1), 2000))
            end, runs = time.monotonic() + seconds, []
            while len(runs) < RUNS and (not runs or time.monotonic() < end):
                runs.append(self._run(call, count) / count)
        return sorted(runs)[len(runs) // 2]

    def _run(self, call, count):
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)


class StandIn:
    """Takes a millisecond for every call."""

    version = "stand-ins of a dry run"

    def measure(self, case, seconds):
        return 1.0


def measured(rows, device, seconds):
    """What PyTorch takes for each case of regard's backend that both have."""
    end = time.monotonic() + seconds
    found = []
    for row in rows:
        case = parse(row["case"])
        if case is None or row["backend"] != BARRED or row["error"]:
            continue
        left = end - time.monotonic()
        if left <= 0:
            break
        entry = {"case": row["case"], "regard_ms": row["ms"], "torch_ms": 0.0, "error": ""}
        try:
            entry["torch_ms"] = device.measure(case, left)
        except RuntimeError as error:  # no kernel for it, no memory
            entry["error"] = str(error).strip().split("\n")[0]
        found.append(entry)
    return found


def table(torch):
    """The section of the report."""
    lines = ["", "## EFFICIENT beside PyTorch's efficient backend (bar: no slower)", ""]
    if "missing" in torch:
        return "\n".join([*lines, f"{torch['missing']}.", ""])
    lines += [f"PyTorch {torch['version']}.", "",
              "| case | regard, ms | PyTorch, ms | ratio | |", "|---|---|---|---|---|"]
    for row in torch["rows"]:
        if row["error"]:
            lines.append(f"| `{row['case']}` | {row['regard_ms']:.4f} | {row['error']} | | |")
            continue
        ratio = row["regard_ms"] / row["torch_ms"]
        lines.append(f"| `{row['case']}` | {row['regard_ms']:.4f} | {row['torch_ms']:.4f} | "
                     f"{ratio:.3f} | {'held' if ratio <= 1 else 'missed'} |")
    return "\n".join([*lines, ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("prefix")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    document = pathlib.Path(arguments.prefix + ".json")
    report = pathlib.Path(arguments.prefix + ".md")
    data = json.loads(document.read_text())
    try:
        device = StandIn() if arguments.dry_run else Device()
        rows = measured(data["benchmarks"], device, arguments.seconds)
        data["torch"] = {"version": device.version, "rows": rows}
    except ModuleNotFoundError:
        data["torch"] = {"missing": "PyTorch not installed"}
    except (ImportError, OSError) as error:  # a torch whose libraries do not load
        data["torch"] = {"missing": "PyTorch cannot be used: " + str(error).split("\n")[0]}
    document.write_text(json.dumps(data, indent=1) + "\n")
    with report.open("a") as file:
        file.write(table(data["torch"]))


if __name__ == "__main__":
    main()
