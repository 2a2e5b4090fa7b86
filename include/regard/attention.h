#pragma once

// Everything: describe, explain, plan, execute, attention, and the mask of dropout.
#include "regard/backend.h"
#include "regard/case.h"
#include "regard/context.h"
#include "regard/dropout.h"
#include "regard/dtype.h"
#include "regard/env.h"
#include "regard/features.h"
#include "regard/interrupt.h"
#include "regard/params.h"
#include "regard/plan.h"
#include "regard/policy.h"
#include "regard/request.h"
#include "regard/selection.h"
#include "regard/status.h"
#include "regard/tensor.h"
#include "regard/version.h"
