#include "tests/cuda/protocol_search.h"

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace regard::cuda_test {
namespace {

using Kind = Event::Kind;

/// Bytes that are always copied together, and whose copies one barrier counts.
struct Region {
  int begin, end, barrier;
};

/// A step of a warpgroup.
struct Step {
  Kind kind;
  int barrier = -1;  // index
  int value = 0;     // parity, threads or groups
  int bytes = 0;     // expected, or copied
  int region = -1;
  int version = 0;  // of a copy or a product: the how many-th copy into the region
  int phase = 0;    // of a wait: phases that must be over, neither fewer nor more
};

struct Barrier {
  int pending = 0, bytes = 0, phase = 0;
};

struct State {
  std::vector<int> at;     // the next step of each warpgroup
  std::vector<int> waits;  // 1: it has arrived at the barrier of threads it waits at
  std::vector<Barrier> barriers;
  std::vector<int> parts;           // threads that have arrived
  std::vector<int> issued, landed;  // copies of each region

  std::string key() const {
    std::string text;
    const auto add = [&](int value) { text.append(reinterpret_cast<const char*>(&value), 2); };
    for (const int value : at) add(value);
    for (const int value : waits) add(value);
    for (const Barrier& barrier : barriers) {
      add(barrier.pending);
      add(barrier.bytes / 1024);
      add(barrier.phase);
    }
    for (const int value : parts) add(value);
    for (const int value : issued) add(value);
    for (const int value : landed) add(value);
    return text;
  }
};

class Search {
 public:
  explicit Search(const Trace& trace) : arrivals_(trace.arrivals) {
    for (const auto& [at, count] : arrivals_) index_.emplace(at, static_cast<int>(index_.size()));
    find_regions(trace);
    for (std::size_t role = 0; role < trace.events.size(); ++role) add_role(trace.events[role]);
    find_last_reads();
  }

  SearchResult run() {
    SearchResult result;
    State first;
    first.at.assign(roles_.size(), 0);
    first.waits.assign(roles_.size(), 0);
    for (const auto& [at, count] : arrivals_) first.barriers.push_back({count, 0, 0});
    first.parts.assign(kParts, 0);
    first.issued.assign(regions_.size(), 0);
    first.landed.assign(regions_.size(), 0);
    std::unordered_set<std::string> seen{first.key()};
    std::vector<State> open{first};
    while (!open.empty() && fault_.empty()) {
      const State state = std::move(open.back());
      open.pop_back();
      ++result.states;
      bool moves = false;
      const auto add = [&](State next) {
        moves = true;
        if (seen.insert(next.key()).second) open.push_back(std::move(next));
      };
      for (std::size_t role = 0; role < roles_.size(); ++role) {
        State next = state;
        if (take_step(role, &next)) add(std::move(next));
      }
      for (std::size_t region = 0; region < regions_.size(); ++region) {
        if (state.landed[region] == state.issued[region]) continue;
        State next = state;
        land(region, &next);
        add(std::move(next));
      }
      if (!moves && fault_.empty()) check_end(state);
    }
    result.fault = fault_;
    return result;
  }

 private:
  static constexpr int kParts = 16;
  static constexpr int kGroupThreads = 128, kGroupWarps = 4;

  /// Boxes that one thread copies one after the other for one barrier are one region.
  void find_regions(const Trace& trace) {
    for (const auto& events : trace.events) {
      for (std::size_t n = 0; n < events.size(); ++n) {
        if (events[n].kind != Kind::kCopy) continue;
        Region region{events[n].to, events[n].to + events[n].bytes, events[n].at};
        for (; n + 1 < events.size() && events[n + 1].kind == Kind::kCopy; ++n) {
          region.end = std::max(region.end, events[n + 1].to + events[n + 1].bytes);
        }
        const bool is_new =
            std::none_of(regions_.begin(), regions_.end(), [&](const Region& other) {
              return other.begin == region.begin && other.end == region.end;
            });
        if (is_new) regions_.push_back(region);
      }
    }
    for (const Region& one : regions_) {
      for (const Region& other : regions_) {
        if (&one != &other && one.begin < other.end && other.begin < one.end) {
          fault_ = "copies overlap in part";
        }
      }
    }
  }

  int region_of(int begin, int end) {
    for (std::size_t n = 0; n < regions_.size(); ++n) {
      if (begin >= regions_[n].begin && end <= regions_[n].end) return static_cast<int>(n);
    }
    fault_ = "a product reads what no copy writes";
    return 0;
  }

  /// The events of a warpgroup as steps: products of one region in a row are one.
  void add_role(const std::vector<Event>& events) {
    std::vector<Step> steps;
    std::map<int, int> waits, copies;  // so far, of a barrier or region
    for (std::size_t n = 0; n < events.size(); ++n) {
      const Event& event = events[n];
      Step step{event.kind};
      step.value = event.value;
      step.bytes = event.bytes;
      if (index_.count(event.at) != 0) step.barrier = index_.at(event.at);
      if (event.kind == Kind::kWait) {
        const int so_far = waits[step.barrier]++;
        step.phase = event.value == so_far % 2 ? so_far + 1 : so_far;
      } else if (event.kind == Kind::kCopy) {
        step.region = region_of(event.to, event.to + event.bytes);
        while (n + 1 < events.size() && events[n + 1].kind == Kind::kCopy) {
          step.bytes += events[++n].bytes;
        }
        step.version = ++copies[step.region];
      } else if (event.kind == Kind::kProduct) {
        step.region = region_of(event.to, event.to + event.bytes);
        step.version = waits[index_.at(regions_[static_cast<std::size_t>(step.region)].barrier)];
        const Step* const last = find_product(steps, step.region);
        if (last != nullptr && last->version == step.version) continue;
      } else if (event.kind == Kind::kSyncPart || event.kind == Kind::kArrivePart) {
        step.barrier = event.at;
      }
      steps.push_back(step);
    }
    roles_.push_back(std::move(steps));
  }

  /// A product of the region among those since the last commit.
  static const Step* find_product(const std::vector<Step>& steps, int region) {
    for (auto step = steps.rbegin(); step != steps.rend() && step->kind == Kind::kProduct; ++step) {
      if (step->region == region) return &*step;
    }
    return nullptr;
  }

  /// last_reads_[role][{region, version}]: the step behind which the role's products of it are
  /// over.
  void find_last_reads() {
    last_reads_.resize(roles_.size());
    for (std::size_t role = 0; role < roles_.size(); ++role) {
      std::vector<std::vector<const Step*>> groups{1};
      const std::vector<Step>& steps = roles_[role];
      for (std::size_t n = 0; n < steps.size(); ++n) {
        const Step& step = steps[n];
        if (step.kind == Kind::kProduct) {
          groups.back().push_back(&step);
          // Until a wait says otherwise, never.
          last_reads_[role][{step.region, step.version}] = static_cast<int>(steps.size()) + 1;
        }
        if (step.kind == Kind::kCommit) groups.emplace_back();
        if (step.kind != Kind::kWaitProducts) continue;
        while (static_cast<int>(groups.size()) - 1 > step.value) {
          for (const Step* product : groups.front()) {
            last_reads_[role][{product->region, product->version}] = static_cast<int>(n) + 1;
          }
          groups.erase(groups.begin());
        }
      }
    }
  }

  void complete(Barrier* barrier, int index) const {
    if (barrier->pending != 0 || barrier->bytes != 0) return;
    barrier->pending = std::next(arrivals_.begin(), index)->second;
    ++barrier->phase;
  }

  void land(std::size_t region, State* state) const {
    ++state->landed[region];
    const int index = index_.at(regions_[region].barrier);
    Barrier& barrier = state->barriers[static_cast<std::size_t>(index)];
    barrier.bytes -= regions_[region].end - regions_[region].begin;
    complete(&barrier, index);
  }

  /// False where the role is at its end or has to wait.
  bool take_step(std::size_t role, State* state) {
    const std::vector<Step>& steps = roles_[role];
    int& at = state->at[role];
    if (at == static_cast<int>(steps.size())) return false;
    const Step& step = steps[static_cast<std::size_t>(at)];
    switch (step.kind) {
      case Kind::kWait: {
        const Barrier& barrier = state->barriers[static_cast<std::size_t>(step.barrier)];
        if ((barrier.phase & 1) == step.value) return false;
        if (barrier.phase != step.phase) fault_ = "a wait ends with another phase than its own";
        break;
      }
      case Kind::kArrive:
      case Kind::kExpect: {
        Barrier& barrier = state->barriers[static_cast<std::size_t>(step.barrier)];
        barrier.pending -= role == 0 ? 1 : kGroupWarps;
        barrier.bytes += step.kind == Kind::kExpect ? step.bytes : 0;
        if (barrier.pending < 0) fault_ = "an arrival too many";
        complete(&barrier, step.barrier);
        break;
      }
      case Kind::kCopy: copy(step, state); break;
      case Kind::kProduct: {
        const auto region = static_cast<std::size_t>(step.region);
        if (state->landed[region] != step.version || state->issued[region] != step.version) {
          fault_ = "a product reads a tile that is not there";
        }
        break;
      }
      case Kind::kSyncPart:
      case Kind::kArrivePart: return pass_part(role, step, state);
      case Kind::kCommit:
      case Kind::kWaitProducts: break;
    }
    ++at;
    return true;
  }

  void copy(const Step& step, State* state) {
    const auto region = static_cast<std::size_t>(step.region);
    for (std::size_t role = 0; role < roles_.size(); ++role) {
      for (int version = 0; version < step.version; ++version) {
        const auto read = last_reads_[role].find({step.region, version});
        if (read != last_reads_[role].end() && state->at[role] < read->second) {
          fault_ = "a copy into what is still to be read";
        }
      }
    }
    if (step.bytes != regions_[region].end - regions_[region].begin) fault_ = "a copy of a part";
    if (state->landed[region] != state->issued[region]) fault_ = "two copies into one place";
    ++state->issued[region];
  }

  bool pass_part(std::size_t role, const Step& step, State* state) {
    if (state->waits[role] != 0) return false;  // until the last one comes
    int& arrived = state->parts[static_cast<std::size_t>(step.barrier)];
    arrived += kGroupThreads;
    if (step.kind == Kind::kArrivePart) ++state->at[role];
    if (step.kind == Kind::kSyncPart) state->waits[role] = 1;
    if (arrived > step.value) fault_ = "too many threads at a barrier";
    if (arrived < step.value) return true;
    arrived = 0;
    for (std::size_t other = 0; other < roles_.size(); ++other) {
      const auto at = static_cast<std::size_t>(state->at[other]);
      if (state->waits[other] == 0 || roles_[other][at].barrier != step.barrier) continue;
      state->waits[other] = 0;
      ++state->at[other];
    }
    return true;
  }

  void check_end(const State& state) {
    for (std::size_t role = 0; role < roles_.size(); ++role) {
      if (state.at[role] != static_cast<int>(roles_[role].size())) {
        fault_ = "warpgroup " + std::to_string(role) + " waits for ever";
        return;
      }
    }
    for (const int arrived : state.parts) {
      if (arrived != 0) fault_ = "a barrier is left half passed";
    }
    for (const Barrier& barrier : state.barriers) {
      if (barrier.bytes != 0) fault_ = "bytes are expected that nobody copies";
    }
  }

  std::map<int, int> arrivals_, index_;  // of barriers, by their place
  std::vector<Region> regions_;
  std::vector<std::vector<Step>> roles_;
  std::vector<std::map<std::pair<int, int>, int>> last_reads_;
  std::string fault_;
};

}  // namespace

SearchResult search_protocol(const Trace& trace) { return Search(trace).run(); }

}  // namespace regard::cuda_test
