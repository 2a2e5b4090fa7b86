#include <gtest/gtest.h>

#include <string>

#include "tests/cuda/protocol_search.h"
#include "tests/cuda/schedules.h"

// In every order that the barriers of wgmma's kernels allow, nobody waits for ever, and no tile is
// read before it is there or overwritten before it is read. The events are those of the kernels'
// source, as the host runs it.

namespace regard::cuda_test {
namespace {

class WgmmaProtocol : public Schedules {
 protected:
  /// What block 0 does, which has all tasks: two or three blocks of rows.
  Trace trace_of(const HostBackend& backend, const std::string& text) {
    Trace trace;
    schedule().max_blocks = 1;
    schedule().trace = &trace;
    conformance::Problem problem = problem_of(text);
    run(backend, problem.request());
    schedule() = {};
    return trace;
  }
};

TEST_F(WgmmaProtocol, HoldsInEveryOrder) {
  const std::vector<HostBackend> backends = make_wgmma_backends();
  const auto expect_holds = [&](std::size_t schedule, const std::string& text) {
    SCOPED_TRACE(name_of(backends[schedule]) + " " + text);
    const Trace trace = trace_of(backends[schedule], text);
    ASSERT_GE(trace.events.size(), 3U);
    const SearchResult result = search_protocol(trace);
    EXPECT_EQ(result.fault, "");
    EXPECT_GT(result.states, 1000);
    RecordProperty("states", std::to_string(result.states));
  };
  // Two blocks of rows one after the other, and each stage used three times.
  for (std::size_t schedule = 0; schedule < 3; ++schedule) {
    expect_holds(schedule, "b1 hq1 sq200 skv400 d128 bf16");
  }
  expect_holds(0, "b1 hq1 sq100 skv600 d128 bf16");
  expect_holds(0, "b1 hq1 sq130 skv170 d256 bf16");
  expect_holds(3, "b1 hq2 sq60 skv130 d128 bf16");
}

TEST_F(WgmmaProtocol, SchedulesHaveTheSameBits) {
  conformance::Problem problem =
      problem_of("b1 hq2 hkv1 sq200 skv300 d128 bf16 causal diag=br saved");
  std::vector<std::vector<unsigned char>> all;
  for (const HostBackend& backend : make_wgmma_backends()) {
    problem.reset_outputs();
    run(backend, problem.request());
    all.push_back(problem.output_bytes());
    EXPECT_TRUE(all.back() == all.front()) << name_of(backend);
  }
}

using Kind = Event::Kind;

/// The n-th event of a kind at a barrier; -1: at any.
std::vector<Event>::iterator find_event(std::vector<Event>& events, Kind kind, int at, int n) {
  for (auto event = events.begin(); event != events.end(); ++event) {
    if (event->kind == kind && (at < 0 || event->at == at) && n-- == 0) return event;
  }
  throw HostError("no such event");
}

TEST_F(WgmmaProtocol, FaultsAreFound) {
  using Shape = cuda_flash::WgmmaShape<128, cuda_flash::Schedule::kTurns>;
  const HostBackend backend = make_wgmma_backends()[1];
  const Trace good = trace_of(backend, "b1 hq1 sq100 skv600 d128 bf16");
  const auto fault_of = [&](auto change) {
    Trace trace = good;
    change(trace);
    return search_protocol(trace).fault;
  };
  const int full = Shape::full(0, 0), empty = Shape::empty(1, 1);
  EXPECT_EQ(fault_of([](Trace&) {}), "");
  // A warpgroup does not say that it has read a tile.
  EXPECT_NE(fault_of([&](Trace& t) {
              t.events[2].erase(find_event(t.events[2], Kind::kArrive, empty, 0));
            }),
            "");
  // It says so before its products are over.
  EXPECT_NE(fault_of([&](Trace& t) {
              auto& events = t.events[1];
              const auto arrival = find_event(events, Kind::kArrive, Shape::empty(1, 0), 0);
              std::rotate(arrival - 1, arrival, arrival + 1);
            }),
            "");
  // It does not wait for a tile; or for the other parity.
  EXPECT_NE(
      fault_of([&](Trace& t) { t.events[1].erase(find_event(t.events[1], Kind::kWait, full, 1)); }),
      "");
  EXPECT_NE(fault_of([&](Trace& t) { find_event(t.events[1], Kind::kWait, full, 1)->value ^= 1; }),
            "");
  // The copying thread does not wait for an empty stage; or for the other parity; or states too few
  // bytes.
  EXPECT_NE(fault_of([&](Trace& t) {
              t.events[0].erase(find_event(t.events[0], Kind::kWait, empty, 1));
            }),
            "");
  EXPECT_NE(fault_of([&](Trace& t) { find_event(t.events[0], Kind::kWait, empty, 1)->value ^= 1; }),
            "");
  EXPECT_NE(
      fault_of([&](Trace& t) { find_event(t.events[0], Kind::kExpect, full, 1)->bytes -= 128; }),
      "");
  // A barrier is made for one warp too many.
  EXPECT_NE(fault_of([&](Trace& t) { t.arrivals[empty] += 1; }), "");
  // A turn is not handed on, or taken twice.
  EXPECT_NE(fault_of([&](Trace& t) {
              t.events[1].erase(find_event(t.events[1], Kind::kArrivePart, -1, 1));
            }),
            "");
  EXPECT_NE(fault_of([&](Trace& t) {
              const auto turn = find_event(t.events[2], Kind::kArrivePart, -1, 0);
              t.events[2].insert(turn, *turn);
            }),
            "");
}

}  // namespace
}  // namespace regard::cuda_test
