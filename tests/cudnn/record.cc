// What cuDNN refuses, asked of cuDNN itself: makes and validates the graphs of src/backends/cudnn
// for each recorded architecture, without a device.
//
//   regard_cudnn_record          fails when the committed record or its page differ; 77: another
//   cuDNN regard_cudnn_record --write  writes both, relative to the repository's root

#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "backends/cudnn/record.h"
#include "platform/cudnn_library.h"

namespace regard::cudnn {
namespace {

constexpr std::int32_t kArchitectures[] = {80, 90, 100};
constexpr Node kNodes[] = {Node::kSdpa, Node::kSdpaBackward, Node::kSdpaF8};
constexpr int kSkip = 77;

struct Refused {
  Traits traits;
  std::string words;
};
struct Range {
  std::int64_t qk_min, qk_max, v_min, v_max;
  std::string words;
};
struct Answers {
  std::vector<Refused> traits;
  std::vector<Range> head_dims;
};

AttentionParams plain(Node node, std::int64_t head_dim_qk, std::int64_t head_dim_v) {
  AttentionParams p;
  p.device.type = DeviceType::kCuda;
  p.dtype_q = node == Node::kSdpaF8 ? Dtype::kF8E4M3 : Dtype::kBf16;
  p.dtype_k = p.dtype_v = p.dtype_out = p.dtype_q;
  p.batch = 2;
  p.num_heads_q = p.num_heads_kv = 4;
  p.seqlen_q = 128;
  p.seqlen_kv = 256;
  p.head_dim_qk = head_dim_qk;
  p.head_dim_v = head_dim_v;
  p.softmax_scale = 0.125;
  return p;
}

// A problem with these traits, or false where none has all of them.
bool with_traits(Node node, Traits traits, AttentionParams* p) {
  *p = plain(node, 64, 64);
  const auto has = [&](Traits trait) { return (traits & trait) != 0; };
  const bool measured = has(kCausal | kWindowLeft | kWindowRight);
  if ((has(kCausal) && has(kWindowRight)) || (has(kBottomRight) && !measured)) return false;
  if (has(kRowsExceedKeys) && has(kOneRow)) return false;
  if (has(kWideOut)) p->dtype_out = Dtype::kBf16;
  if (has(kCausal)) p->window_right = 0;
  if (has(kWindowRight)) p->window_right = 7;
  if (has(kWindowLeft)) p->window_left = 31;
  if (measured) p->diagonal = has(kBottomRight) ? Diagonal::kBottomRight : Diagonal::kTopLeft;
  if (has(kGroups)) p->num_heads_kv = 2;
  if (has(kOneRow)) p->seqlen_q = 1;
  if (has(kRowsExceedKeys)) p->seqlen_kv = 64;
  if (has(kOneKey)) p->seqlen_kv = 1;
  p->features.set(Feature::kLse, has(kLse));
  canonicalize(*p);
  return traits_of(*p) == traits;
}

std::string ask(const AttentionParams& params, Node node, std::int32_t sm) {
  return validate_graph(params, node, dense_strides(params), sm);
}

// The smallest refused sets of traits. A larger set must then be refused too, or this form of
// record cannot say what cuDNN says.
std::vector<Refused> ask_traits(Node node, std::int32_t sm) {
  std::vector<Refused> refused;
  std::vector<Traits> sets;
  for (int count = 0; count <= kTraitCount; ++count) {
    for (Traits set = 0; set < (1u << kTraitCount); ++set) {
      if (__builtin_popcount(set) == count) sets.push_back(set);
    }
  }
  for (const Traits set : sets) {
    AttentionParams params;
    if (!with_traits(node, set, &params)) continue;
    const std::string words = ask(params, node, sm);
    bool covered = false;
    for (const Refused& r : refused) covered |= (r.traits & set) == r.traits;
    if (covered && words.empty()) {
      std::cerr << "sm" << sm << ": a set of traits runs, a part of it is refused\n";
      std::exit(1);
    }
    if (!covered && !words.empty()) refused.push_back({set, words});
  }
  return refused;
}

// The refused head dims as few rectangles: runs over v for each qk, runs that repeat merged.
std::vector<Range> ask_head_dims(Node node, std::int32_t sm) {
  const std::int64_t step = node == Node::kSdpaF8 ? kHeadDimStepF8 : kHeadDimStep;
  std::vector<Range> done, open;
  for (std::int64_t qk = step; qk <= kMaxHeadDim; qk += step) {
    std::vector<Range> runs;
    for (std::int64_t v = step; v <= kMaxHeadDim; v += step) {
      const std::string words = ask(plain(node, qk, v), node, sm);
      if (words.empty()) continue;
      if (!runs.empty() && runs.back().v_max == v - step && runs.back().words == words) {
        runs.back().v_max = v;
      } else {
        runs.push_back({qk, qk, v, v, words});
      }
    }
    std::vector<Range> still_open;
    for (Range& run : runs) {
      for (const Range& before : open) {
        if (before.v_min == run.v_min && before.v_max == run.v_max && before.words == run.words) {
          run.qk_min = before.qk_min;
        }
      }
      still_open.push_back(run);
    }
    for (const Range& before : open) {
      bool goes_on = false;
      for (const Range& run : still_open)
        goes_on |=
            run.qk_min == before.qk_min && run.v_min == before.v_min && run.v_max == before.v_max;
      if (!goes_on) done.push_back(before);
    }
    open = std::move(still_open);
  }
  done.insert(done.end(), open.begin(), open.end());
  return done;
}

std::map<std::pair<std::int32_t, Node>, Answers> ask_all() {
  std::map<std::pair<std::int32_t, Node>, Answers> all;
  for (const std::int32_t sm : kArchitectures) {
    for (const Node node : kNodes) {
      Answers& answers = all[{sm, node}];
      answers.traits = ask_traits(node, sm);
      const bool refuses_all = !answers.traits.empty() && answers.traits.front().traits == 0;
      if (!refuses_all) answers.head_dims = ask_head_dims(node, sm);
    }
  }
  return all;
}

std::string names_of(Traits traits) {
  std::string out;
  for (int bit = 0; bit < kTraitCount; ++bit) {
    if ((traits >> bit & 1u) == 0) continue;
    out += (out.empty() ? "" : ", ") + std::string(trait_name(bit));
  }
  return out.empty() ? "every problem" : out;
}

std::string quoted(const std::string& words) {
  std::string out = "\"";
  for (const char c : words) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + "\"";
}

const char* name_of(Node node) {
  constexpr const char* kNames[] = {"forward", "backward", "forward of f8e4m3"};
  return kNames[static_cast<int>(node)];
}
const char* enumerator_of(Node node) {
  constexpr const char* kNames[] = {"kSdpa", "kSdpaBackward", "kSdpaF8"};
  return kNames[static_cast<int>(node)];
}

using All = std::map<std::pair<std::int32_t, Node>, Answers>;

std::string header_text(const All& all, std::int32_t version) {
  std::ostringstream out;
  out << "#pragma once\n\n#include \"backends/cudnn/record.h\"\n\n"
      << "// Generated by regard_cudnn_record --write, from cuDNN's own answers. Not to be "
         "edited.\n"
      << "// clang-format off\n\nnamespace regard::cudnn {\n\n"
      << "inline constexpr TraitRefusal kTraits" << version << "[] = {\n";
  const auto where = [](const auto& key) {
    return "    {" + std::to_string(key.first) + ", Node::" + enumerator_of(key.second) + ", ";
  };
  for (const auto& [key, answers] : all) {
    for (const Refused& r : answers.traits) {
      out << where(key) << "0x" << std::hex << r.traits << std::dec << ",  // "
          << names_of(r.traits) << "\n     " << quoted(r.words) << "},\n";
    }
  }
  out << "};\n\ninline constexpr HeadDimRefusal kHeadDims" << version << "[] = {\n";
  for (const auto& [key, answers] : all) {
    for (const Range& r : answers.head_dims) {
      out << where(key) << r.qk_min << ", " << r.qk_max << ", " << r.v_min << ", " << r.v_max
          << ",\n     " << quoted(r.words) << "},\n";
    }
  }
  out << "};\n\n}  // namespace regard::cudnn\n";
  return out.str();
}

std::string range_text(std::int64_t min, std::int64_t max) {
  return min == max ? std::to_string(min) : std::to_string(min) + " to " + std::to_string(max);
}

std::string page_text(const All& all, std::int32_t version) {
  std::ostringstream out;
  out << "# What cuDNN runs\n\n"
      << "Generated by `regard_cudnn_record --write` (tests/cudnn): do not edit. The graphs that "
         "the\n"
      << "CUDNN backend would run were made and validated by cuDNN " << version / 10000 << "."
      << version / 100 % 100 << "." << version % 100
      << " for each architecture, without a\ndevice; what an engine refuses beyond that is learned"
      << " where a plan is made (docs/selection.md). Not run\non a device.\n\n"
      << "The backend offers f16 and bf16, head dims from " << kMinHeadDim << " to " << kMaxHeadDim
      << " that are multiples of " << kHeadDimStep << ", aligned to 16 bytes,\nand of the features "
      << "`causal`, `window_left`, `window_right`, `diagonal_bottom_right`, `lse`, `gqa`,\n"
      << "`head_dims_differ` and `seqlen_q_greater_kv`; in the forward also f8e4m3 with an output "
         "of "
         "f8e4m3, f16\nor bf16, head dims that are multiples of "
      << kHeadDimStepF8 << ", and `descales`. Of these cuDNN refuses:\n";
  for (const auto& [key, answers] : all) {
    out << "\n## sm" << key.first << ", " << name_of(key.second) << "\n\n";
    if (answers.traits.empty() && answers.head_dims.empty()) {
      out << "Nothing.\n";
      continue;
    }
    out << "| refused | in cuDNN's words |\n|---|---|\n";
    for (const Refused& r : answers.traits) {
      out << "| " << names_of(r.traits) << " | " << r.words << " |\n";
    }
    for (const Range& r : answers.head_dims) {
      out << "| head_dim_qk " << range_text(r.qk_min, r.qk_max) << " with head_dim_v "
          << range_text(r.v_min, r.v_max) << " | " << r.words << " |\n";
    }
  }
  out << "\n## Versions that are never used\n\n| cuDNN | where | why |\n|---|---|---|\n";
  for (const Denied& d : denied()) {
    out << "| " << range_text(d.first, d.last) << " | " << names_of(d.traits) << " | " << d.reason
        << " |\n";
  }
  return out.str();
}

bool is_same(const std::string& file, const std::string& text) {
  std::ifstream in(file, std::ios::binary);
  std::stringstream found;
  found << in.rdbuf();
  if (in && found.str() == text) return true;
  std::cerr << file << " is stale: run regard_cudnn_record --write\n";
  return false;
}

int run(bool writes) {
  const std::int32_t version = cudnn_library().version;
  if (version == 0) {
    std::cerr << "libcudnn.so.9 cannot be loaded\n";
    return kSkip;
  }
  if (!writes && (find_record(version) == nullptr || find_record(version)->version != version)) {
    std::cerr << "no record of cuDNN " << version << "\n";
    return kSkip;
  }
  const All all = ask_all();
  const std::string header = "src/backends/cudnn/record_" + std::to_string(version) + ".h";
  const std::string page = "docs/dev/cudnn_support.md";
  if (writes) {
    std::ofstream(header) << header_text(all, version);
    std::ofstream(page) << page_text(all, version);
    return 0;
  }
  const bool header_same = is_same(header, header_text(all, version));
  return is_same(page, page_text(all, version)) && header_same ? 0 : 1;
}

}  // namespace
}  // namespace regard::cudnn

int main(int argc, char** argv) {
  return regard::cudnn::run(argc > 1 && std::strcmp(argv[1], "--write") == 0);
}
