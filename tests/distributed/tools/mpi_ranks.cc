// Attention over the ranks of mpirun against one rank: forward, backward and messages in chunks.
// Exit status 1 and a line where they differ. `mpi_ranks hang`: the last rank does not answer.
// `mpi_ranks late`, `mpi_ranks late_owned`: what becomes of messages that are given up.

#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "distributed/measure_network.h"
#include "distributed/mpi/mpi_communicator.h"
#include "ranks.h"

namespace regard {
namespace {

Status run_case(distributed::Communicator& communicator, const test::Problem& p,
                const distributed::Options& options) {
  const int rank = communicator.rank(), ranks = communicator.size();
  const auto at = static_cast<std::size_t>(rank);
  const test::Tensors whole = test::make_whole(p);
  check(test::run_alone(p, whole, true));
  const auto rows = distributed::make_layout(options.layout, p.sq, ranks).value();
  const std::int64_t own = distributed::rows_of(rows[at]);
  const test::Tensors x = test::allocate(p, own, own), expected = test::allocate(p, own, own);
  for (auto tensor :
       {&test::Tensors::q, &test::Tensors::k, &test::Tensors::v, &test::Tensors::d_out}) {
    test::copy_pieces((whole.*tensor).view(), (x.*tensor).view(), rows[at], true);
  }
  Context context;
  check(context.set_concurrency(1));
  AttentionGradRequest request = x.gradient_request(p, false);
  request.options.needs_grad = true;
  const auto plan = distributed::plan(context, communicator, request, options);
  if (!plan.ok()) return plan.status();
  distributed::CallRecord record;
  const Status forward = distributed::attention(context, communicator, *plan, request, &record);
  if (!forward.ok()) return forward;
  if (!(record.sent == plan->chosen().forward[at])) {
    return Status(StatusCode::kInternal, "messages are not those of the plan");
  }
  const Status backward = distributed::attention_backward(context, communicator, *plan, request);
  if (!backward.ok()) return backward;
  for (auto tensor :
       {&test::Tensors::out, &test::Tensors::d_q, &test::Tensors::d_k, &test::Tensors::d_v}) {
    test::copy_pieces((whole.*tensor).view(), (expected.*tensor).view(), rows[at], true);
    const double error = test::distance((expected.*tensor).view(), (x.*tensor).view());
    if (!(error <= 1e-11)) {
      return Status(StatusCode::kInternal, std::string("differs from one rank by ") +
                                               std::to_string(error) + " with " +
                                               to_string(options.algorithm));
    }
  }
  return {};
}

/// Seconds of waiting for 8 MiB from and to the neighbour, after `pause` in which nothing calls
/// MPI.
double seconds_of_exchange(distributed::Communicator& communicator,
                           std::chrono::milliseconds pause) {
  const int other = communicator.rank() ^ 1;
  std::vector<std::byte> sent(std::size_t{8} << 20), arrived(sent.size());
  distributed::Messages messages(communicator, {}, "exchange");
  check(messages.receive(other, 9, arrived, "exchange"));
  check(messages.send(other, 9, sent, "exchange"));
  std::this_thread::sleep_for(pause);
  const auto begin = distributed::Clock::now();
  check(messages.wait(9));
  return std::chrono::duration<double>(distributed::Clock::now() - begin).count();
}

/// Whether messages move while ranks compute: the wait after a pause is the shorter one.
bool messages_move_by_themselves(distributed::Communicator& communicator) {
  double at_once = 1e9, after_pause = 1e9;
  for (int turn = 0; turn < 5; ++turn) {
    at_once = std::min(at_once, seconds_of_exchange(communicator, {}));
    after_pause =
        std::min(after_pause, seconds_of_exchange(communicator, std::chrono::milliseconds(150)));
  }
  if (after_pause < at_once / 2) return true;
  std::printf("rank %d: waited %g s after a pause, %g s without\n", communicator.rank(),
              after_pause, at_once);
  return false;
}

/// Rank 0 gives a long message up, and uses its memory for something else; rank 1 receives only
/// afterwards, and rank 2 sends to memory that rank 0 uses again. Nobody may see the other
/// contents. `owned`: the memory has an owner, of which rank 0 lets go, so that it would be used
/// again.
int run_late(distributed::Communicator& communicator, bool owned) {
  constexpr std::size_t kBytes = std::size_t{8} << 20;
  const int rank = communicator.rank();
  distributed::MessageLimits limits;
  limits.timeout = std::chrono::milliseconds(rank == 0 ? 300 : 5000);
  using Bytes = std::vector<std::byte>;
  auto message = std::make_shared<Bytes>(kBytes, std::byte{7});
  Bytes& data = *message;
  distributed::Messages messages(communicator, limits, "late");
  if (rank == 0) {
    auto reply = std::make_shared<Bytes>(kBytes, std::byte{7});
    const auto owner = [&](const std::shared_ptr<Bytes>& x) {
      return owned ? distributed::MemoryOwner(x) : distributed::MemoryOwner();
    };
    check(messages.send(1, 9, data, "late", owner(message)));
    check(messages.receive(2, 9, *reply, "late", owner(reply)));
    const bool failed = !messages.wait().ok();
    if (owned) {
      message = std::make_shared<Bytes>(kBytes);
      reply = std::make_shared<Bytes>(kBytes);
    }
    Bytes& arrives = *reply;
    std::fill(message->begin(), message->end(), std::byte{1});
    std::fill(arrives.begin(), arrives.end(), std::byte{1});
    MPI_Barrier(MPI_COMM_WORLD);  // MPI goes on with what it has
    const bool is_kept = std::count(arrives.begin(), arrives.end(), std::byte{1}) ==
                         static_cast<std::ptrdiff_t>(kBytes);
    if (failed && is_kept) return 0;
    std::printf("rank 0: %s\n", failed ? "memory of a receive was written late" : "no time-out");
    return 1;
  }
  std::this_thread::sleep_for(std::chrono::seconds(1));
  if (rank == 1) {
    std::fill(data.begin(), data.end(), std::byte{});
    check(messages.receive(0, 9, data, "late"));
  } else {
    check(messages.send(0, 9, data, "late"));
  }
  const bool has_message = rank == 1 && messages.wait().ok();
  MPI_Barrier(MPI_COMM_WORLD);
  if (!has_message ||
      std::count(data.begin(), data.end(), std::byte{7}) == static_cast<std::ptrdiff_t>(kBytes)) {
    return 0;
  }
  std::printf("rank 1: a message that was given up has other contents\n");
  return 1;
}

int run(const std::string& mode) {
  auto made = distributed::make_mpi_communicator();
  check(made.status());
  distributed::Communicator& communicator = **made;
  if (mode == "late" || mode == "late_owned") return run_late(communicator, mode != "late");
  test::Problem p;
  p.hq = 8;
  p.hkv = 4;
  p.sq = p.skv = 203;
  p.options.is_causal = true;
  p.options.diagonal = Diagonal::kTopLeft;
  if (mode == "hang") {
    auto options = test::options_of(p);
    options.limits.timeout = std::chrono::milliseconds(500);
    if (communicator.rank() == communicator.size() - 1) {
      std::this_thread::sleep_for(std::chrono::seconds(3));
      return 0;
    }
    const Status s = run_case(communicator, p, options);
    std::printf("%s\n", s.to_string().c_str());
    std::fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, s.ok() ? 0 : 3);
  }
  int failures = messages_move_by_themselves(communicator) ? 0 : 1;
  const auto network = distributed::measure_network(communicator, {communicator.size() / 2, 2});
  const bool is_network = network.ok() && network->latency > 0.0 && network->latency < 1.0 &&
                          network->bandwidth > 1e5 && network->node_bandwidth > 1e5;
  if (!is_network) {
    std::printf("rank %d: no network: %s\n", communicator.rank(),
                network.status().to_string().c_str());
    ++failures;
  }
  for (const auto algorithm : {distributed::Algorithm::kP2p, distributed::Algorithm::kAllGather,
                               distributed::Algorithm::kA2a, distributed::Algorithm::kA2aP2p}) {
    auto options = test::options_of(p);
    options.algorithm = algorithm;
    if (network.ok()) options.network = *network;  // plans are refused where ranks differ
    options.layout = distributed::LayoutKind::kZigzag;
    options.limits.max_bytes = 1000;
    options.topology = {communicator.size() / 2, 2};
    if (algorithm == distributed::Algorithm::kA2aP2p && communicator.size() < 4) continue;
    if (const Status s = run_case(communicator, p, options); !s.ok()) {
      std::printf("rank %d: %s\n", communicator.rank(), s.to_string().c_str());
      ++failures;
    }
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace regard

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  const int result = regard::run(argc > 1 ? argv[1] : "");
  MPI_Finalize();
  return result;
}
