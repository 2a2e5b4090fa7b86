#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "distributed/communicator.h"
#include "regard/context.h"

// What ranks compare before they compute, of plans in C++ and of calls in Python.

namespace regard::distributed {

/// The policy of a call that this thread made now, as text: Context, environment and open scopes.
/// What chooses the backend, or bits of its result; where self-checks write files is left out.
std::string policy_text(Context& context);

/// What one rank has and the others need, such as its number of rows.
using RankNumbers = std::array<std::int64_t, 4>;

/// The numbers of every rank, where all ranks state the same text. Where they do not, or one
/// states an error, every rank returns an error that has both texts. One message to each other
/// rank; a second one where texts differ.
Expected<std::vector<RankNumbers>> agree(Communicator& communicator, const MessageLimits& limits,
                                         const std::string& text, const RankNumbers& numbers,
                                         const char* where);

constexpr int kAgreementTag = 2;

}  // namespace regard::distributed
