"""A Google Benchmark of regard_bench as an entrant: what a call costs from C++ and C."""

import json
import subprocess

from .libraries import Refused

SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


class Benchmark:
    """An entrant that is a program; it checks its own calls and has no output to hold to a
    reference."""

    workspace_bytes = None

    def __init__(self, program, name):
        self._program, self._name = program, name
        self.ran = name
        if not program.is_file():
            raise Refused(f"{program} is missing")
        if name not in self._run("--benchmark_list_tests").split():
            raise Refused(f"{program.name} has no benchmark {name}")

    def _run(self, *options):
        command = [str(self._program), f"--benchmark_filter=^{self._name}$", *options]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def turn(self, _pause, min_seconds):
        """Seconds of a call in the best of three runs; a process of its own has no threads of
        others to wait for."""
        found = json.loads(self._run("--benchmark_format=json", "--benchmark_repetitions=3",
                                     f"--benchmark_min_time={min_seconds / 3}"))
        runs = [run for run in found["benchmarks"] if run["run_type"] == "iteration"]
        for run in runs:
            if run.get("error_occurred"):
                raise RuntimeError(f"{self._name}: {run['error_message']}")
        return min(run["real_time"] * SECONDS[run["time_unit"]] for run in runs)

    def error(self):
        return None

    def close(self):
        pass
