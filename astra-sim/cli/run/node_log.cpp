#include "cli/run/node_log.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <unordered_map>
#include <vector>

#include "cli/text_file.h"
#include "formats/chakra/protobuf/reader.h"

namespace astra_sim::cli {

namespace {

struct Line {
  std::int64_t tick;
  std::uint32_t npu;
  std::uint32_t node;  // of the report
  bool callback;
};

}  // namespace

std::vector<std::string> names_of(const Report& report, const std::string& prefix) {
  std::vector<std::string> names(report.nodes.size());
  for (std::uint32_t npu = 0; npu + 1 < report.first.size(); ++npu) {
    std::unordered_map<std::uint64_t, std::string> by_id;
    chakra::Reader reader(prefix + "." + std::to_string(npu) + ".et");
    for (chakra::Node node; reader.next(node);) by_id[node.id] = node.name;
    for (std::uint32_t at = report.first[npu]; at < report.first[npu + 1]; ++at) {
      names[at] = by_id[report.nodes[at].id];
      std::ranges::replace(names[at], '\n', ' ');
    }
  }
  return names;
}

void write_node_log(const std::string& folder, const Report& report, const std::string& prefix) {
  std::vector<Line> lines;
  for (std::uint32_t npu = 0; npu + 1 < report.first.size(); ++npu) {
    for (std::uint32_t at = report.first[npu]; at < report.first[npu + 1]; ++at) {
      const NodeRecord& node = report.nodes[at];
      if (node.issued >= 0) lines.push_back({node.issued, npu, at, false});
      if (node.done >= 0) lines.push_back({node.done, npu, at, true});
    }
  }
  std::stable_sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) {
    return a.tick != b.tick ? a.tick < b.tick : a.npu < b.npu;
  });
  const std::vector<std::string> names = names_of(report, prefix);
  std::error_code ignored;  // opening the file tells
  std::filesystem::create_directories(folder, ignored);
  TextFile file(folder + "/log.log");
  for (const Line& line : lines) {
    file.put(std::string(line.callback ? "callback" : "issue") + ",npu=" +
             std::to_string(line.npu) + ",cycle=" + std::to_string(report.as_ns(line.tick)) +
             ",node_id=" + std::to_string(report.nodes[line.node].id) +
             ",name=" + names[line.node] + "\n");
  }
  file.close();
}

}  // namespace astra_sim::cli
