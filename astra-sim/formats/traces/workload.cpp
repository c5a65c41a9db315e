#include "formats/traces/workload.h"

#include <algorithm>

#include "formats/chakra/dependencies.h"
#include "formats/chakra/protobuf/reader.h"
#include "model/base/input_error.h"

namespace astra_sim::traces {

using model::InputError;

std::uint32_t Workload::npu_of(std::uint32_t node) const {
  return static_cast<std::uint32_t>(std::upper_bound(first.begin(), first.end(), node) -
                                    first.begin()) -
         1;
}

std::string Workload::name(std::uint32_t node) const {
  return "NPU " + std::to_string(npu_of(node)) + ", node " + std::to_string(nodes[node].id);
}

void load_file(const std::string& path, std::uint32_t rank, const chakra::FieldRules& rules,
               Workload& workload) {
  constexpr std::size_t kMost = std::size_t{1} << 31;
  chakra::Reader reader(path);
  chakra::Dependencies dependencies;
  std::vector<chakra::NodeFields> fields;
  chakra::Node node;
  while (reader.next(node)) {
    fields.push_back(chakra::read_fields(node, path, rank, rules));
    dependencies.add(node);
  }
  dependencies.resolve();
  if (const auto problems = dependencies.problems(1); !problems.empty()) {
    throw InputError(path + ": " + problems.front());
  }
  const std::uint32_t base = workload.first.back();
  if (base + fields.size() >= kMost)
    throw InputError(path + ": more than 2^31 nodes in all are too many");
  const std::vector<std::uint32_t> order = dependencies.order();
  std::vector<std::uint32_t> place(order.size());
  for (std::uint32_t at = 0; at < order.size(); ++at) place[order[at]] = base + at;
  for (const std::uint32_t from : order) {
    workload.nodes.push_back(fields[from]);
    for (const std::uint32_t parent : dependencies.parents(from))
      workload.parents.push_back(place[parent]);
    workload.parent_begin.push_back(static_cast<std::uint32_t>(workload.parents.size()));
  }
  workload.first.push_back(static_cast<std::uint32_t>(workload.nodes.size()));
}

Workload load_workload(const std::string& prefix, const chakra::FieldRules& rules) {
  Workload workload;
  for (std::uint32_t npu = 0; npu < rules.npus; ++npu) {
    load_file(prefix + "." + std::to_string(npu) + ".et", npu, rules, workload);
  }
  return workload;
}

}  // namespace astra_sim::traces
