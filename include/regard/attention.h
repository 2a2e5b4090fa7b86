#pragma once

// Everything: describe, explain, plan, execute, attention, the mask of dropout, and what a call and
// this machine can do.
#include "regard/backend.h"
#include "regard/benchmark.h"
#include "regard/case.h"
#include "regard/context.h"
#include "regard/dropout.h"
#include "regard/dtype.h"
#include "regard/env.h"
#include "regard/features.h"
#include "regard/interrupt.h"
#include "regard/machine_rates.h"
#include "regard/params.h"
#include "regard/plan.h"
#include "regard/policy.h"
#include "regard/request.h"
#include "regard/selection.h"
#include "regard/status.h"
#include "regard/tensor.h"
#include "regard/tensors.h"
#include "regard/version.h"
#include "regard/work.h"
