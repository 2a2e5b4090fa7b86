"""What the scripts of regard_gpu_check's phases share: the words of cases, and how results are reported.

A script takes cases from its standard input, a JSON line each, and prints for the i-th of them
"begin i" and then its result as a JSON line; or "missing WHY" and ends (tools/gpu_check/child.h).
"""

import argparse
import json
import os
import re
import sys

LOST_DEVICE = 9  # the exit status after a kernel's fault, which is every later call's error
MAX_ROWS = 64  # in a rehearsal, as regard_gpu_check cuts its own


def parse(words):
    """The extents and options of a case, or None where PyTorch has no such call."""
    values = {"hq": 1, "hkv": None, "sq": 1, "skv": None, "causal": False, "grad": False, "mask": False}
    for word in words.split():
        if word in ("f32", "f16", "bf16"):
            values["dtype"] = word
        elif word in ("causal", "grad"):
            values[word] = True
        elif word == "mask=B,1,Sq,Skv":
            values["mask"] = True
        elif match := re.fullmatch(r"(b|hq|hkv|sq|skv|d)(\d+)", word):
            values[match[1]] = int(match[2])
        elif word not in ("lse", "diag=tl"):
            return None
    values["hkv"] = values["hkv"] or values["hq"]
    values["skv"] = values["skv"] or values["sq"]
    return values if {"b", "d", "dtype"} <= values.keys() else None


class Missing(Exception):
    """Ends the phase with the result "not present"."""


def torch_and_device(rehearse):
    """PyTorch and the name of the device: "cuda", or "cpu" in a rehearsal."""
    try:
        import torch
    except ModuleNotFoundError:
        raise Missing("PyTorch is not installed") from None
    except (ImportError, OSError) as error:  # its libraries do not load
        raise Missing("PyTorch cannot be used: " + str(error).split("\n")[0]) from None
    if not rehearse and not torch.cuda.is_available():
        raise Missing("PyTorch sees no CUDA device")
    return torch, "cpu" if rehearse else "cuda"


def serve(make_runner, description):
    """Runs every case by make_runner(rehearse), a function from a case's line to its result."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rehearse", action="store_true", help="on CPU tensors")
    rehearse = parser.parse_args().rehearse
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else prints
    try:
        items = [json.loads(line) for line in sys.stdin]
        run = make_runner(rehearse)
        for index, item in enumerate(items):
            print("begin", index, file=out)
            try:
                result = run(item)
            except Missing:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this case's result
                text = f"{type(error).__name__}: {error}".strip()
                result = {"result": "failed", "detail": text[:1500]}
            print(json.dumps(result), file=out)
            if result["result"] == "failed" and "CUDA error" in result.get("detail", ""):
                sys.exit(LOST_DEVICE)
    except Missing as why:
        print("missing", why, file=out)
