"""A clock that is set while a program measures changes no time: durations come from monotonic clocks."""

import os
import pathlib
import re
import unittest

ROOT = pathlib.Path(os.environ["REGARD_DEV_SOURCE_DIR"])
FOLDERS = ("src", "include", "distributed", "tools", "bench", "oracle", "conformance", "python/regard", "python/src")
WALL_CLOCK = re.compile(r"system_clock|high_resolution_clock|gettimeofday|CLOCK_REALTIME|std::time\(|\btime\.time\(|"
                        r"\bdatetime\.(now|utcnow|today)\(")
DATES = {"tools/gpu_check/report.cc", "tools/guide/measure.cc"}  # the day on which a report was made


def wall_clock_lines(root):
    found = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".cc", ".h", ".inl", ".cu", ".cuh", ".py"):
                continue
            name = path.relative_to(root).as_posix()
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if WALL_CLOCK.search(line):
                    found.append((name, number))
    return found


class Clocks(unittest.TestCase):
    def test_only_dates_come_from_the_wall_clock(self):
        self.assertEqual({name for name, _ in wall_clock_lines(ROOT)}, DATES)

    def test_what_is_found(self):
        for line in ("std::chrono::system_clock::now()", "std::time(nullptr)", "start = time.time()",
                     "clock_gettime(CLOCK_REALTIME, &now)", "datetime.now()"):
            self.assertTrue(WALL_CLOCK.search(line), line)
        for line in ("std::chrono::steady_clock::now()", "time.perf_counter()", "CLOCK_THREAD_CPUTIME_ID",
                     "runtime.time_left()"):
            self.assertFalse(WALL_CLOCK.search(line), line)


if __name__ == "__main__":
    unittest.main()
