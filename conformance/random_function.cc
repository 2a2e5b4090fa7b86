#include "conformance/random_function.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "conformance/captured.h"

namespace regard::conformance {
namespace {

using std::to_string;

constexpr double kLargestScore = 40.0;
constexpr double kLargestInt = 1e4;
constexpr int kMaxNodes = 60;  // about: what is begun is ended

/// A real expression, and a bound of its value where scores are within 20.
struct Real {
  std::string text;
  double bound;
};

struct Int {
  std::string text;
  double bound;
};

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", value);
  return text;
}

std::string in_brackets(const std::string& text) { return "(" + text + ")"; }

class Writer {
 public:
  Writer(const AttentionParams& params, Rng* rng) : p_(params), rng_(*rng) {}

  std::string score() {
    nodes_ = 0;
    if (rng_.chance(0.45)) return score_form();
    Real x = real(static_cast<int>(rng_.between(1, 5)));
    if (!reads_score(x.text)) x = {"score+" + in_brackets(x.text), x.bound + 20.0};
    if (x.bound > kLargestScore) x = held(x);
    if (rng_.chance(0.2)) return "where(" + mask_form() + "," + x.text + ",-inf)";
    return x.text;
  }

  std::string mask() {
    nodes_ = 0;
    if (rng_.chance(0.5)) {
      const std::string form = mask_form();
      return rng_.chance(0.3) ? in_brackets(form) + rng_.pick(kLogic) + mask_form() : form;
    }
    return truth(static_cast<int>(rng_.between(1, 4)), false);
  }

 private:
  static constexpr const char* kLogic[] = {"&", "|"};

  static bool reads_score(const std::string& text) {
    return text.find("score") != std::string::npos;
  }

  // ---- captured tensors: a number is of reals or of ints, and has one rank, in both functions

  /// A tensor of the type and the rank, or -1 where all numbers are taken by others.
  int slot(bool is_int, int rank) {
    const auto first = static_cast<int>(rng_.between(0, oracle::kCapturedCount - 1));
    const bool again = rng_.chance(0.5);  // the same tensor in several places
    int unused = -1;
    for (int n = 0; n < oracle::kCapturedCount; ++n) {
      const int at = (first + n) % oracle::kCapturedCount;
      const Slot& s = slots_[static_cast<std::size_t>(at)];
      if (again && s.rank == rank && s.is_int == is_int) return at;
      if (s.rank == 0 && unused < 0) unused = at;
    }
    if (unused >= 0) slots_[static_cast<std::size_t>(unused)] = {rank, is_int};
    return unused;
  }

  /// "[index,...]": each within the case's extents, or some tens.
  std::string indices(int rank) {
    std::string text = "[";
    for (int k = 0; k < rank; ++k) text += (k == 0 ? "" : ",") + index(rank);
    return text + "]";
  }

  std::string index(int rank) {
    const std::string c = to_string(rng_.between(1, 9));
    const bool is_small = rank > 2 || nodes_ > kMaxNodes;
    switch (rng_.between(0, is_small ? 5 : 9)) {
      case 0: return "h";
      case 1: return "b";
      case 2: return "kv_idx%" + c;
      case 3: return "min(q_idx," + c + ")";
      case 4: return "max(min(q_idx-kv_idx," + c + "),-" + c + ")+" + c;
      case 5: return "max(min(kv_idx-3," + c + "),0)";
      case 6: return "kv_idx";
      case 7: return "q_idx";
      case 8: return "abs(q_idx-kv_idx)";
      default: return gather(true, 1, "kv_idx//" + c).value_or("h");
    }
  }

  std::optional<std::string> gather(bool is_int, int rank, const std::string& at = "") {
    const int n = slot(is_int, rank);
    if (n < 0) return std::nullopt;
    nodes_ += 3 * rank;
    const std::string where = at.empty() ? indices(rank) : "[" + at + "]";
    return (is_int ? "i" : "r") + to_string(n) + where;
  }

  int rank() {
    constexpr int kRanks[] = {1, 1, 1, 2, 2, 3, 4};
    return rng_.pick(kRanks);
  }

  // ---- random expressions

  Real real_leaf() {
    switch (rng_.between(0, 9)) {
      case 0: {
        const double value = static_cast<double>(rng_.between(-3000, 3000)) * 1e-3;
        return {value < 0 ? in_brackets(number(value)) : number(value), 3.0};
      }
      case 1: {
        constexpr double kExact[] = {0.5, 1.0, 2.0, 0.25, 1.5};
        return {number(rng_.pick(kExact)), 2.0};
      }
      case 2: {
        const Int x = integer(1);
        const double scale = 4.0 / std::max(x.bound, 4.0);
        return {number(std::max(scale, 1e-3)) + "*" + in_brackets(x.text), 10.0};
      }
      case 3:
      case 4: {
        const auto element = gather(false, rank());
        return element ? Real{*element, 2.7} : Real{"score", 20.0};
      }
      default: return {"score", 20.0};
    }
  }

  /// Within about 30.
  Real held(const Real& x) {
    switch (rng_.between(0, 2)) {
      case 0: return {"max(min(" + x.text + ",25.0),-25.0)", 25.0};
      case 1: return {"20.0*tanh(" + in_brackets(x.text) + "/20.0)", 20.0};
      default: return {in_brackets(x.text) + "*" + number(30.0 / x.bound), 30.5};
    }
  }

  Real real(int depth) {
    if (depth <= 0 || ++nodes_ > kMaxNodes) return real_leaf();
    const Real x = rng_.chance(0.1) ? of_int(depth - 1) : real(depth - 1);
    Real y = of_one(x, depth);
    return y.bound > 1e3 ? held(y) : y;
  }

  Real of_int(int depth) {
    const Int x = integer(depth);
    return {in_brackets(x.text) + "/" + number(std::max(x.bound / 4.0, 2.0)), 8.0};
  }

  Real of_one(const Real& x, int depth) {
    const std::string text = in_brackets(x.text);
    switch (rng_.between(0, 15)) {
      case 0: return {"-" + text, x.bound};
      case 1: return {"abs" + text, x.bound};
      case 2: return {"exp(min(" + x.text + ",2.0))", 7.5};
      case 3: return {"log(abs" + text + "+0.5)", 1.0 + std::log(1.0 + x.bound)};
      case 4: return {"sqrt(abs" + text + "+0.25)", std::sqrt(x.bound + 0.25)};
      case 5: return {"tanh" + text, 1.0};
      case 6: return {"sigmoid" + text, 1.0};
      case 7: return {text + "/" + number(0.5 + 4.0 * rng_.uniform()), 2.0 * x.bound};
      default: return of_two(x, real(depth - 1), depth);
    }
  }

  Real of_two(const Real& x, const Real& y, int depth) {
    const std::string a = in_brackets(x.text), b = in_brackets(y.text);
    switch (rng_.between(0, 8)) {
      case 0:
      case 1: return {a + "+" + b, x.bound + y.bound};
      case 2: return {a + "-" + b, x.bound + y.bound};
      case 3: return {a + "*" + b, x.bound * y.bound};
      case 4: return {a + "/(abs" + b + "+0.5)", 2.0 * x.bound};
      case 5: return {"min(" + x.text + "," + y.text + ")", std::max(x.bound, y.bound)};
      case 6: return {"max(" + x.text + "," + y.text + ")", std::max(x.bound, y.bound)};
      default:
        return {"where(" + truth(depth - 2, true) + "," + x.text + "," + y.text + ")",
                std::max(x.bound, y.bound)};
    }
  }

  Int int_leaf() {
    const double seqlen = static_cast<double>(std::max(p_.seqlen_q, p_.seqlen_kv)) + 1.0;
    switch (rng_.between(0, 10)) {
      case 0: return {to_string(rng_.between(0, 20)), 20.0};
      case 1: return {"b", 8.0};
      case 2: return {"h", 32.0};
      case 3: return {"q_pos", 2.0 * seqlen};
      case 4: return {"q_len", seqlen};
      case 5: return {"kv_len", seqlen};
      case 6: {
        const auto element = gather(true, rank());
        return element ? Int{*element, 16.0} : Int{"h", 32.0};
      }
      case 7:
      case 8: return {"q_idx", seqlen};
      default: return {"kv_idx", seqlen};
    }
  }

  Int integer(int depth) {
    if (depth <= 0 || ++nodes_ > kMaxNodes) return int_leaf();
    const Int x = integer(depth - 1);
    const std::string a = in_brackets(x.text), c = to_string(rng_.between(1, 12));
    const Int made = [&]() -> Int {
      switch (rng_.between(0, 11)) {
        case 0: return {a + "//" + (rng_.chance(0.2) ? "-" : "") + c, x.bound};
        case 1: return {a + "%" + (rng_.chance(0.2) ? "-" : "") + c, 12.0};
        case 2: return {a + "*" + c, 12.0 * x.bound};
        case 3: return {"-" + a, x.bound};
        case 4: return {"abs" + a, x.bound};
        case 5: return {"int(" + a + "*0.5)", x.bound};
        case 6: return {a + "*" + to_string(rng_.between(1, 2147483647)), 4e9};  // wraps
        default: return of_two_ints(x, integer(depth - 1), depth);
      }
    }();
    if (made.bound <= kLargestInt) return made;
    return {in_brackets(made.text) + "%17", 17.0};
  }

  Int of_two_ints(const Int& x, const Int& y, int depth) {
    const std::string a = in_brackets(x.text), b = in_brackets(y.text);
    switch (rng_.between(0, 7)) {
      case 0: return {a + "+" + b, x.bound + y.bound};
      case 1:
      case 2: return {a + "-" + b, x.bound + y.bound};
      case 3: return {"min(" + x.text + "," + y.text + ")", std::max(x.bound, y.bound)};
      case 4: return {"max(" + x.text + "," + y.text + ")", std::max(x.bound, y.bound)};
      case 5: return {a + "//" + b, x.bound};  // 0 where y is
      case 6: return {a + "%" + b, y.bound};
      default:
        return {"where(" + truth(depth - 2, false) + "," + x.text + "," + y.text + ")",
                std::max(x.bound, y.bound)};
    }
  }

  std::string comparison() {
    constexpr const char* kAll[] = {"<", "<=", ">", ">=", "<", ">=", "==", "!="};
    return rng_.pick(kAll);
  }

  /// Of scores, too: a kernel's roundings decide of few.
  std::string truth(int depth, bool may_read_score) {
    nodes_ += 3;
    if (depth > 0 && nodes_ < kMaxNodes && rng_.chance(0.5)) {
      const std::string a = in_brackets(truth(depth - 1, may_read_score));
      switch (rng_.between(0, 3)) {
        case 0: return "!" + a;
        case 1:
          return "where(" + truth(depth - 2, may_read_score) + "," + a + "," +
                 truth(depth - 1, may_read_score) + ")";
        default: return a + rng_.pick(kLogic) + in_brackets(truth(depth - 1, may_read_score));
      }
    }
    if (rng_.chance(0.03)) return rng_.chance(0.5) ? "true" : "false";
    if (may_read_score && rng_.chance(0.25)) {
      return "score" + std::string(rng_.chance(0.5) ? "<" : ">=") +
             number(4.0 * rng_.uniform() - 2.0);
    }
    if (const auto element = rng_.chance(0.15) ? gather(false, rank()) : std::nullopt) {
      return *element + (rng_.chance(0.5) ? "<=" : ">") + number(rng_.uniform() - 0.5);
    }
    return integer(std::min(depth + 1, 3)).text + comparison() + in_brackets(integer(1).text);
  }

  // ---- forms that people write

  std::string window() {
    return to_string(rng_.between(0, std::max<std::int64_t>(p_.seqlen_kv, 1)));
  }
  std::string query() { return rng_.chance(0.5) ? "q_pos" : "q_idx"; }

  std::string score_form() {
    const std::string q = query();
    switch (rng_.between(0, 8)) {
      case 0: return "where(" + mask_form() + ",score,-inf)";
      case 1: return "score-0.0625*abs(" + q + "-kv_idx)";
      case 2: return "score+(" + gather(false, 1, "h").value_or("0.5") + "*(kv_idx-" + q + "))*0.1";
      case 3: return "20.0*tanh(score/20.0)";
      case 4: {
        const std::string c = to_string(rng_.between(1, 40));
        return "score+" + gather(false, 2, "h,max(min(q_idx-kv_idx," + c + "),-" + c + ")+" + c)
                              .value_or("0.25");
      }
      case 5: return "score+" + gather(false, 2, "b,kv_idx").value_or("0.25");
      case 6: return "score*" + gather(false, 1, "h").value_or("0.5");
      case 7: return "where(" + mask_form() + ",30.0*tanh(score/30.0),-inf)";
      default:
        return "where(" + mask_form() + ",score-" + number(0.01 + 0.2 * rng_.uniform()) + "*abs(" +
               q + "-kv_idx),-inf)";
    }
  }

  std::string mask_form() {
    const std::string q = query();
    const std::string causal = "kv_idx<=" + q;
    switch (rng_.between(0, 9)) {
      case 0: return causal;
      case 1: return q + ">=kv_idx";
      case 2: return q + "-kv_idx<" + window() + "&" + causal;
      case 3: return "abs(" + q + "-kv_idx)<=" + window();
      case 4: return "kv_idx<" + window() + "|" + causal;
      case 5: return "(" + q + "-kv_idx)%" + to_string(rng_.between(1, 5)) + "==0";
      case 6: return q + "//" + to_string(rng_.between(1, 70)) + "==kv_idx//64&" + causal;
      case 7: {
        const auto length = gather(true, 1, "b");
        return length ? "kv_idx<8*" + *length : causal;
      }
      default: {
        const int n = slot(true, 2);
        if (n < 0) return causal;
        const std::string of = "i" + to_string(n) + "[b,";
        const std::string documents = of + "q_idx]==" + of + "kv_idx]";
        return rng_.chance(0.5) ? documents : documents + "&" + causal;
      }
    }
  }

  struct Slot {
    int rank = 0;  // 0: not used yet
    bool is_int = false;
  };

  const AttentionParams& p_;
  Rng& rng_;
  int nodes_ = 0;
  std::array<Slot, oracle::kCapturedCount> slots_;
};

}  // namespace

RandomFunctions random_functions(const AttentionParams& params, bool has_score, bool has_mask,
                                 Rng* rng) {
  Writer writer(params, rng);
  RandomFunctions made;
  if (has_score) made.score = writer.score();
  if (has_mask) made.mask = writer.mask();
  return made;
}

}  // namespace regard::conformance
