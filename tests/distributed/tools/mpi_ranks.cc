// Attention over the ranks of mpirun against one rank: forward, backward and messages in chunks.
// Exit status 1 and a line where they differ. `mpi_ranks hang`: the last rank does not answer.

#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

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
  const auto plan = distributed::plan(communicator, request, options);
  if (!plan.ok()) return plan.status();
  distributed::Traffic sent;
  const Status forward = distributed::attention(context, communicator, *plan, request, &sent);
  if (!forward.ok()) return forward;
  if (!(sent == plan->chosen().forward[at])) {
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

int run(bool hangs) {
  auto made = distributed::make_mpi_communicator();
  check(made.status());
  distributed::Communicator& communicator = **made;
  test::Problem p;
  p.hq = 8;
  p.hkv = 4;
  p.sq = p.skv = 203;
  p.options.is_causal = true;
  p.options.diagonal = Diagonal::kTopLeft;
  if (hangs) {
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
  int failures = 0;
  for (const auto algorithm : {distributed::Algorithm::kP2p, distributed::Algorithm::kAllGather,
                               distributed::Algorithm::kA2a, distributed::Algorithm::kA2aP2p}) {
    auto options = test::options_of(p);
    options.algorithm = algorithm;
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
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  const int result = regard::run(argc > 1 && std::string(argv[1]) == "hang");
  MPI_Finalize();
  return result;
}
