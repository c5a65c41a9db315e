#include "cli/run/output.h"

#include <cstdio>

#include "cli/run/statistics.h"
#include "formats/text/json.h"

namespace astra_sim::cli {

namespace {

std::string number_or_null(bool known, std::int64_t value) {
  return known ? std::to_string(value) : "null";
}

std::string json_of_npu(const Report& report, std::uint32_t npu,
                        const config::SystemConfig& system) {
  const Statistics one = statistics(report, npu, system);
  const bool finished = one.wall >= 0;
  std::string text =
      "{\"npu\": " + std::to_string(npu) + ", \"finished\": " + (finished ? "true" : "false") +
      ", \"finish_ns\": " + number_or_null(finished, report.as_ns(one.wall)) +
      ", \"exposed_comm_ns\": " + number_or_null(finished, report.as_ns(one.exposed_comm));
  if (report.ticks_per_ns != 1) {
    text += ", \"finish_ps\": " + number_or_null(finished, one.wall) +
            ", \"exposed_comm_ps\": " + number_or_null(finished, one.exposed_comm);
  }
  if (!report.peak_bytes.empty())
    text += ", \"peak_memory_bytes\": " + std::to_string(report.peak_bytes[npu]);
  text += ", \"statistics\": {";
  bool first = true;
  for (const auto& [label, value] : figures_of(report, one)) {
    text.append(first ? "\"" : ", \"").append(label).append("\": \"").append(value).append("\"");
    first = false;
  }
  return text + "}}";
}

std::string json_of_tiers(const Report& report) {
  std::string text;
  for (const TierRecord& tier : report.tiers) {
    text += (text.empty() ? "" : ", ") + ("{\"tier\": " + config::quoted(tier.name)) +
            ", \"instance\": " + std::to_string(tier.instance) +
            ", \"loads\": " + std::to_string(tier.loads) +
            ", \"stores\": " + std::to_string(tier.stores) +
            ", \"bytes\": " + std::to_string(tier.bytes) +
            ", \"busy_ps\": " + std::to_string(tier.busy_ps) +
            ", \"waiting_ps\": " + std::to_string(tier.waiting_ps) +
            ", \"peak_waiting\": " + std::to_string(tier.peak_waiting) + "}";
  }
  return text.empty() ? "" : ", \"memory\": [" + text + "]";
}

}  // namespace

std::string Report::as_micros(std::int64_t ticks) const {
  const std::int64_t per_us = ticks_per_ns * 1000;
  char text[64];
  std::snprintf(text, sizeof text, "%lld.%0*lld", static_cast<long long>(ticks / per_us),
                ticks_per_ns == 1 ? 3 : 6, static_cast<long long>(ticks % per_us));
  return text;
}

std::string as_lines(const Report& report, const config::SystemConfig& system) {
  std::string finished, figures;
  for (std::uint32_t npu = 0; npu < report.finish.size(); ++npu) {
    const Statistics one = statistics(report, npu, system);
    const std::string name = "sys[" + std::to_string(npu) + "]";
    if (one.wall < 0) continue;
    finished += "[workload] [info] " + name + " finished, " +
                std::to_string(report.as_ns(one.wall)) + " cycles, exposed communication " +
                std::to_string(report.as_ns(one.exposed_comm)) + " cycles.\n";
    for (const auto& [label, value] : figures_of(report, one))
      figures += "[statistics] [info] " + name + ", " + label + ": " + value + "\n";
  }
  for (std::size_t npu = 0; npu < report.peak_bytes.size(); ++npu) {
    figures += "[local memory] [info] sys[" + std::to_string(npu) +
               "], peak usage: " + std::to_string(report.peak_bytes[npu]) + " bytes\n";
  }
  return finished + figures;
}

std::string as_json(const Report& report, const config::SystemConfig& system) {
  std::string npus;
  for (std::uint32_t npu = 0; npu < report.finish.size(); ++npu) {
    npus += (npu == 0 ? "\n  " : ",\n  ") + json_of_npu(report, npu, system);
  }
  std::string waiting;
  for (const std::string& sentence : report.unfinished) {
    waiting.append(waiting.empty() ? "" : ", ").append(config::quoted(sentence));
  }
  return "{\"rules\": \"" + report.rules + "\", \"time_unit\": \"" + report.unit() +
         "\", \"events\": " + std::to_string(report.events) +
         (report.rate_quantum.empty() ? "" : ", \"rate_quantum\": " + report.rate_quantum) +
         json_of_tiers(report) +
         ", \"unfinished_nodes\": " + std::to_string(report.unfinished_nodes) + ", \"waiting\": [" +
         waiting + "],\n \"npus\": [" + npus + "]}\n";
}

std::string as_node_times(const Report& report) {
  const std::string unit = report.unit();
  std::string csv = "npu,node,issue_" + unit + ",done_" + unit + "\n";
  for (std::size_t npu = 0; npu + 1 < report.first.size(); ++npu) {
    for (std::uint32_t at = report.first[npu]; at < report.first[npu + 1]; ++at) {
      const NodeRecord& node = report.nodes[at];
      if (node.done < 0) continue;
      csv += std::to_string(npu) + ',' + std::to_string(node.id) + ',' +
             std::to_string(node.issued) + ',' + std::to_string(node.done) + '\n';
    }
  }
  return csv;
}

std::string as_link_table(const Report& report) {
  std::string csv = "from,to,bytes,messages,busy_ps,queue_ps,peak_queue_ps,peak_messages\n";
  for (const LinkRecord& link : report.links) {
    csv += std::to_string(link.from) + ',' + std::to_string(link.to);
    for (const std::int64_t value : {link.bytes, link.messages, link.busy_ps, link.queue_ps,
                                     link.peak_queue_ps, link.peak_messages}) {
      csv += ',' + std::to_string(value);
    }
    csv += '\n';
  }
  return csv;
}

}  // namespace astra_sim::cli
