#pragma once

#include <string>

#include "tools/guide/report.h"
#include "tools/guide/svg_chart.h"

namespace regard::guide {

/// The whole page: one file that reads nothing else.
std::string to_page(const Report& report);

/// The chart of a sweep, as the page has it.
Chart chart_of(const Sweep& sweep);

}  // namespace regard::guide
