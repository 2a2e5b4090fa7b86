#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/guide/answers.h"
#include "tools/guide/report.h"

namespace regard::guide {
namespace {

using Json = nlohmann::ordered_json;

Json cells_json(const std::vector<SupportCell>& cells) {
  Json list = Json::array();
  for (const SupportCell& cell : cells) {
    if (cell.kind == SupportCell::Kind::kNotApplicable) {
      list.push_back(nullptr);
    } else {
      const bool yes = cell.kind == SupportCell::Kind::kYes;
      list.push_back({{"supported", yes}, {yes ? "text" : "reason", cell.text}});
    }
  }
  return list;
}

Json rows_json(const std::vector<SupportRow>& rows) {
  Json list = Json::array();
  for (const SupportRow& row : rows) {
    list.push_back({{"name", row.name},
                    {"forward", cells_json(row.forward)},
                    {"gradients", cells_json(row.backward)}});
  }
  return list;
}

Json absent_json(const std::vector<AbsentBackend>& backends) {
  Json list = Json::array();
  for (const AbsentBackend& backend : backends) {
    list.push_back({{"backend", backend.name}, {"reason", backend.reason}});
  }
  return list;
}

Json support_json(const SupportMatrix& matrix) {
  Json limits = Json::object();
  for (const SupportLimit& limit : matrix.limits) limits[limit.name] = limit.values;
  return {{"backends", matrix.backends},
          {"types", rows_json(matrix.types)},
          {"features", rows_json(matrix.features)},
          {"sizes", rows_json(matrix.sizes)},
          {"limits", limits},
          {"absent", absent_json(matrix.absent)}};
}

Json row_json(const Measured& row) {
  Json json = {{"name", row.name}, {"peer", row.is_peer}};
  json["reason"] = row.reason.empty() ? Json(nullptr) : Json(row.reason);
  json["kernel"] = row.kernel;
  json["workspace_bytes"] = row.workspace_bytes < 0 ? Json(nullptr) : Json(row.workspace_bytes);
  json["seconds"] = row.seconds;
  return json;
}

Json sweep_json(const Sweep& sweep) {
  constexpr const char* kUnits[] = {"gflops", "gbps", "seconds", "bytes"};
  Json points = Json::array();
  for (const Point& point : sweep.points) {
    Json rows = Json::array();
    for (const Measured& row : point.rows) rows.push_back(row_json(row));
    points.push_back({{"x", point.x},
                      {"label", point.label},
                      {"case", point.problem},
                      {"operations", point.operations},
                      {"bytes", point.bytes},
                      {"rows", std::move(rows)}});
  }
  return {{"id", sweep.id},           {"title", sweep.title},
          {"x_title", sweep.x_title}, {"unit", kUnits[static_cast<int>(sweep.unit)]},
          {"limit", sweep.limit},     {"points", std::move(points)}};
}

Json errors_json(const std::vector<ErrorRow>& errors) {
  Json list = Json::array();
  for (const ErrorRow& row : errors) {
    Json json = {{"backend", row.backend}, {"types", row.types}, {"gradients", row.gradients}};
    json["error"] = row.reason.empty() ? Json(row.error) : Json(nullptr);
    json["bound"] = row.bound > 0.0 ? Json(row.bound) : Json(nullptr);
    json["reason"] = row.reason.empty() ? Json(nullptr) : Json(row.reason);
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace

std::string to_json(const Report& report) {
  Json answers_list = Json::array();
  for (const Answer& answer : answers(report)) {
    answers_list.push_back({{"question", answer.question}, {"sentences", answer.sentences}});
  }
  Json sweeps = Json::array();
  for (const Sweep& sweep : report.sweeps) sweeps.push_back(sweep_json(sweep));
  const Json json = {{"version", report.env.version},
                     {"cpu_model", report.env.cpu_model},
                     {"isa", to_string(report.env.isa)},
                     {"made", report.made},
                     {"quick", report.quick},
                     {"seconds", report.seconds},
                     {"rounds", report.rounds},
                     {"peer", report.peer.empty() ? Json(nullptr) : Json(report.peer)},
                     {"machine", Json::parse(regard::to_json(report.rates))},
                     {"one_thread", Json::parse(regard::to_json(report.one_thread))},
                     {"answers", std::move(answers_list)},
                     {"support", support_json(report.support)},
                     {"elsewhere", absent_json(report.elsewhere)},
                     {"errors", errors_json(report.errors)},
                     {"sweeps", std::move(sweeps)},
                     {"notes", report.notes}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace regard::guide
