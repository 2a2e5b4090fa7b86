#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "distributed/arrangement.h"

namespace regard::distributed {

struct PlanImpl {
  Whole whole;
  Arrangement arrangement;  // of the chosen algorithm
  std::vector<Estimate> estimates;
  std::size_t chosen = 0;

  static Plan wrap(std::shared_ptr<const PlanImpl> impl) {
    Plan plan;
    plan.impl_ = std::move(impl);
    return plan;
  }
  static const PlanImpl* of(const Plan& plan) { return plan.impl_.get(); }
};

}  // namespace regard::distributed
