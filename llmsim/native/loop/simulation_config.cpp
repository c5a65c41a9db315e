#include "loop/simulation_config.h"

#include <algorithm>
#include <limits>
#include <string>

namespace llmsim {

namespace {

std::string entry(const char* list, std::size_t index) {
  return std::string(list) + "[" + std::to_string(index) + "]";
}

void refuse(const std::string& field, const std::string& problem) {
  throw std::invalid_argument(field + ": " + problem);
}

void check_length(const char* field, std::size_t length, std::size_t rows) {
  if (length != rows)
    refuse(field, std::to_string(length) + " entries for " + std::to_string(rows) +
                      " requests; columns differ in length");
}

void check_optional_length(const char* field, std::size_t length, std::size_t rows) {
  if (length > 0) check_length(field, length, rows);
}

void check_content(const ContentKeys& content, std::size_t rows) {
  if (content.granularity < 1) refuse("source.granularity", "content keys name at least one token");
  if (content.offsets.empty()) return;
  const bool whole = content.offsets.size() == rows + 1 && content.offsets.front() == 0 &&
                     content.offsets.back() == static_cast<std::int64_t>(content.keys.size());
  if (!whole || !std::ranges::is_sorted(content.offsets))
    refuse("source.key_offsets", "content keys and their offsets do not fit the requests");
}

// One entry per request, and rows that exist: what the loop reads without asking again.
void check_source(const Source& source) {
  const std::size_t rows = source.output_tokens.size();
  check_length("source.arrival_ps", source.arrival_ps.size(), rows);
  check_length("source.input_tokens", source.input_tokens.size(), rows);
  check_length("source.model", source.model.size(), rows);
  check_length("source.next_call", source.next_call.size(), rows);
  check_length("source.tool_delay_ps", source.tool_delay_ps.size(), rows);
  check_optional_length("source.priority", source.priority.size(), rows);
  check_optional_length("source.clients.timeout_ps", source.clients.timeout.size(), rows);
  check_optional_length("source.clients.cancel_after_tokens",
                        source.clients.cancel_after_tokens.size(), rows);
  check_optional_length("source.clients.think_ps", source.clients.think.size(), rows);
  if (source.clients.count < 0)
    refuse("source.clients.count", "a closed loop needs at least one client");
  const auto in_range = [rows](std::int32_t next) {
    return next < static_cast<std::int64_t>(rows);
  };
  const auto wrong = std::ranges::find_if_not(source.next_call, in_range);
  if (wrong != source.next_call.end())
    refuse(entry("source.next_call", static_cast<std::size_t>(wrong - source.next_call.begin())),
           "row " + std::to_string(*wrong) + " does not exist");
  check_content(source.content, rows);
}

// Every request's model has a group that takes requests.
void check_models(const SimulationConfig& config) {
  std::vector<bool> served;
  for (const GroupSpec& group : config.groups) {
    const auto model = static_cast<std::size_t>(group.config.model);
    if (served.size() <= model) served.resize(model + 1);
    const Role role = group.config.role;
    if (role == Role::kBoth || role == Role::kPrefill) served[model] = true;
  }
  if (!config.source) return;
  const std::vector<std::int16_t>& models = config.source->model;
  for (std::size_t row = 0; row < models.size(); ++row) {
    const auto model = static_cast<std::size_t>(models[row]);  // a negative one becomes very large
    if (model >= served.size() || !served[model])
      refuse(entry("source.model", row), "no group serves model " + std::to_string(models[row]));
  }
}

void check_members(const std::string& field, const std::vector<std::size_t>& members,
                   std::size_t num_groups) {
  if (members.empty()) refuse(field, "at least one group is needed");
  for (const std::size_t member : members)
    if (member >= num_groups)
      refuse(field, "group " + std::to_string(member) + " does not exist; there are " +
                        std::to_string(num_groups));
}

void check_lockstep(const SimulationConfig& config) {
  std::vector<bool> taken(config.groups.size(), false);
  for (std::size_t i = 0; i < config.lockstep.size(); ++i) {
    const LockstepSpec& lockstep = config.lockstep[i];
    const std::string field = entry("lockstep", i);
    check_members(field + ".groups", lockstep.groups, config.groups.size());
    if (lockstep.sync_interval < 0)
      refuse(field + ".sync_interval", "rounds are needed, or none where nobody agrees");
    for (const std::size_t member : lockstep.groups) {
      if (taken[member])
        refuse(field + ".groups",
               "group " + std::to_string(member) + " is a member of two lock-step groups");
      taken[member] = true;
    }
  }
}

void check_contention(const SimulationConfig& config) {
  for (std::size_t i = 0; i < config.contention.size(); ++i) {
    const std::vector<std::size_t>& groups = config.contention[i].groups;
    const std::string field = entry("contention", i) + ".groups";
    check_members(field, groups, config.groups.size());
    const auto holds_first = [&](const LockstepSpec& lockstep) {
      return std::ranges::find(lockstep.groups, groups.front()) != lockstep.groups.end();
    };
    const auto lockstep = std::ranges::find_if(config.lockstep, holds_first);
    const bool alone = lockstep == config.lockstep.end();
    if (alone ? groups.size() != 1 : lockstep->groups != groups)
      refuse(
          field,
          "links are shared by one group, or by all members of a lock-step group in their order");
  }
}

void check_network(const SimulationConfig& config) {
  if (config.network) return;
  if (!config.contention.empty()) refuse("contention", "shared links need the network");
  if (config.kv_tiers) refuse("kv_tiers", "KV tiers need the network");
  if (!config.kv_offloading.empty()) refuse("kv_offloading", "KV offloading needs the network");
  if (config.kv_transfer) refuse("kv_transfer", "KV transfers need the network");
}

}  // namespace

void check(const GroupSpec& group, std::size_t index, bool any_kv_transfer) {
  const GroupConfig& config = group.config;
  const std::string field = entry("groups", index) + ".config";
  if (config.index != static_cast<std::int32_t>(index))
    refuse(field + ".index",
           "group " + std::to_string(config.index) + " is number " + std::to_string(index));
  if (index > std::numeric_limits<std::int16_t>::max())
    refuse(field + ".index", "a simulation has at most 2^15 groups");
  if (config.model < 0) refuse(field + ".model", std::to_string(config.model) + " is no model");
  if (config.depth < 1) refuse(field + ".depth", "at least one batch is in flight");
  const bool hands_over = config.role == Role::kPrefill || config.role == Role::kDecode;
  if (hands_over && !any_kv_transfer)
    refuse(field + ".role", "groups of prefill or decode alone need kv_transfer");
}

void check(const SimulationConfig& config) {
  if (config.source == nullptr && !config.live) refuse("source", "a workload is needed");
  if (config.source != nullptr && config.live)
    refuse("live", "requests are those of a workload, or they come while the simulation runs");
  if (config.source) check_source(*config.source);
  for (std::size_t i = 0; i < config.groups.size(); ++i)
    check(config.groups[i], i, config.kv_transfer.has_value());
  check_models(config);
  check_lockstep(config);
  check_contention(config);
  check_network(config);
  if (config.kv_tiers && config.kv_tiers->groups.size() != config.groups.size())
    refuse("kv_tiers.groups", "an entry for every group is needed");
  if (!config.kv_offloading.empty() && config.kv_offloading.size() != config.groups.size())
    refuse("kv_offloading", "an entry for every group is needed");
  if (!config.kv_offloading.empty() && config.kv_tiers)
    refuse("kv_offloading", "KV offloading does not go with KV tiers");
  if (config.observers.series_interval < 0)
    refuse("observers.series_interval_ps", "an interval is at least 0 ps");
}

}  // namespace llmsim
