"""Counts the GoogleTest tests of a run by their XML reports and says why some were skipped.

usage: count_tests.py FOLDER
"""

import collections
import pathlib
import sys
import xml.etree.ElementTree as ET


def main(folder):
    reports = sorted(pathlib.Path(folder).glob("*.xml"))
    if not reports:
        sys.exit(f"count_tests.py: {folder} has no reports")
    passed, failed, skipped = 0, 0, collections.defaultdict(list)
    for report in reports:
        for case in ET.parse(report).iter("testcase"):
            name = f"{report.stem.split('.')[0]}.{case.get('classname')}.{case.get('name')}"
            if case.find("failure") is not None:
                failed += 1
            elif (skip := case.find("skipped")) is not None:
                skipped[(skip.get("message") or "no reason").splitlines()[-1]].append(name)
            elif case.get("status") == "run":
                passed += 1
    count = sum(map(len, skipped.values()))
    print(f"{len(reports)} suites: {passed} tests passed, {failed} failed, {count} skipped")
    for reason, names in sorted(skipped.items()):
        print(f"  {len(names)} skipped ({reason}): {names[0]}{', ...' if len(names) > 1 else ''}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
