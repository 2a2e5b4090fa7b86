"""The faults of mutations.py in measurements and in what reads tensor files."""

from mutation import Mutation

MEASURING = ("core", "Work.*:Measure.*:Benchmark.*:MachineRates.*")
READER = ("unit", "*Safetensors*")

MEASURE_MUTATIONS = [
    # ---- measuring ----
    Mutation("a causal call computes all pairs", "src/core/measure/work.cc",
             "if (band.window_left < 0 && band.window_right < 0) {",
             "if (band.window_left < 0 || band.window_right < 0) {", (MEASURING,)),
    Mutation("keys that no query sees are moved", "src/core/measure/work.cc",
             "if (!is_empty(keys)) visible.keys += static_cast<double>(keys.hi - keys.lo);",
             "visible.keys += static_cast<double>(sequence.band.len_kv);", (MEASURING,)),
    Mutation("threads that spin are not waited for", "src/core/measure/measure.cc",
             "idle = count_running_threads() == 0 ? idle + 1 : 0;", "++idle;", (MEASURING,)),
    Mutation("every row measures the chosen backend", "src/core/measure/benchmark.cc",
             "narrowed.only = std::vector<BackendRef>{backend};", "", (MEASURING,)),
    Mutation("an interrupt is not heard", "src/core/measure/measure.cc",
             "if (options.poll != nullptr && options.poll(options.poll_state)) return false;", "",
             (MEASURING,)),
    Mutation("rates are measured anew for each call", "src/cpu/rates/machine_rates.cc",
             "if (known.isa == isa && known.threads == threads) return known;", "", (MEASURING,)),
    Mutation("a row computes no key that it does not see", "src/core/measure/predict_time.cc",
             "return 0.5 * (static_cast<double>(lanes_of(rates.isa))",
             "return 0.0 * (static_cast<double>(lanes_of(rates.isa))",
             (("core", "CostCounts.*"),)),
    Mutation("last vectors cost the same for any rows", "src/core/measure/predict_time.cc",
             "(tail.key + tail.row * rows)", "(tail.key + 0.0 * rows)", (("core", "CostCounts.*"),)),
    Mutation("sequences are all as long as the mean", "src/core/measure/predict_time.cc",
             "if (batch < 2 || q.length == 0 || kv.length == 0) return 1.0;", "return 1.0;",
             (("core", "CostCounts.*"),)),
    # ---- the reader ----
    Mutation("header longer than the file", "tools/regard/safetensors.cc",
             "if (length > file.size() - kLengthBytes) {", "if (false) {", (READER,)),
    Mutation("overlapping tensors accepted", "tools/regard/safetensors.cc",
             "if (entry->begin != next) {", "if (entry->begin > next) {", (READER,)),
    Mutation("offsets past the end accepted", "tools/regard/safetensors.cc",
             "if (entry.begin > entry.end || entry.end > total) {",
             "if (entry.begin > entry.end) {", (READER,)),
]
