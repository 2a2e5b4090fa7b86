"""The faults of mutations.py in self-checks, records and frozen decisions."""

from mutation import Mutation

SELF_CHECK = ("core", "SelfCheck.*")
RECORD = ("core", "Record.*")
FROZEN = ("core", "Frozen.*")

SELF_CHECK_MUTATIONS = [
    Mutation("errors beyond the tolerance pass", "src/core/execute/self_check.cc",
             "if (!(worst.share > 1.0)) return {};", "if (!(worst.share > 1e9)) return {};", (SELF_CHECK,)),
    Mutation("a denial counts for nothing", "src/core/plan/self_checks.cc",
             "denials_.store(denied_.size(), std::memory_order_release);", "", (SELF_CHECK,)),
    Mutation("calls that were written are counted again", "src/core/plan/recorder.cc",
             "if (status.ok()) clear();", "", (RECORD,)),
    Mutation("a file that is no record is read as one", "src/core/plan/recorder.cc",
             "if (!is_record(text)) {", "if (false) {", (RECORD,)),
    Mutation("a refused replay ends the former one", "src/core/plan/freeze.cc",
             "  set(before);\n", "", (FROZEN,)),
    Mutation("plans of the cache escape a replay", "src/core/plan/freeze.cc",
             "++settings.generations.replay;", "", (FROZEN,)),
]
