#include "offload/pim_channels.h"

#include <algorithm>
#include <stdexcept>

namespace llmsim {

namespace {

const PimConfig& checked(const PimConfig& config) {
  if (config.sets < 1 || config.context.empty() || config.context.size() != config.ps.size())
    throw std::invalid_argument("memory that computes needs channels, and a time for each context");
  return config;
}

}  // namespace

PimChannels::PimChannels(const PimConfig& config)
    : ps_({Axis(checked(config).context)}, config.ps),
      load_(static_cast<std::size_t>(config.sets), 0) {}

Ps PimChannels::attention(const Item& item) const {
  return ps_.at({ps_.axis(0).locate(std::int64_t{item.computed_before} + 1)});
}

void PimChannels::place(std::span<const Item> decodes) {
  load_.assign(load_.size(), 0);
  bool all_settled = true;
  for (const Item& item : decodes) {
    if (settled(item)) {
      load_[static_cast<std::size_t>(home_[static_cast<std::size_t>(item.request)].set)] +=
          attention(item);
    } else {
      all_settled = false;
    }
  }
  if (all_settled) return;
  for (const Item& item : decodes) {
    if (settled(item)) continue;
    const auto at = static_cast<std::size_t>(item.request);
    if (at >= home_.size()) home_.resize(at + 1);
    const auto least = std::min_element(load_.begin(), load_.end()) - load_.begin();
    home_[at] = {static_cast<std::int32_t>(least), item.epoch};
    load_[static_cast<std::size_t>(least)] += attention(item);
  }
}

PimChannels::Work PimChannels::work(std::span<const Item> decodes) {
  load_.assign(load_.size(), 0);
  Work work;
  for (const Item& item : decodes) {
    const Ps ps = attention(item);
    Ps& load = load_[static_cast<std::size_t>(home_[static_cast<std::size_t>(item.request)].set)];
    load += ps;
    work.sum += ps;
    work.longest = std::max(work.longest, load);
  }
  return work;
}

}  // namespace llmsim
