#pragma once

namespace regard::guide {

/// The style sheet of the page and its charts.
const char* style_sheet();

}  // namespace regard::guide
