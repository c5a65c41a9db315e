// The nodes of one trace and what each depends on: found by number, put in order, and checked.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/chakra/node.h"

namespace astra_sim::chakra {

// Nodes are indexed in the order of the file. `add` them all, then `resolve`.
class Dependencies {
 public:
  static constexpr std::uint32_t kAbsent = 0xffffffffU;

  void add(const Node& node);
  // Finds every parent; repeated ones collapse.
  void resolve();

  std::uint32_t size() const { return static_cast<std::uint32_t>(ids_.size()); }
  std::uint64_t count() const { return named_.size(); }
  std::uint64_t id(std::uint32_t node) const { return ids_[node]; }
  // Indexes, kAbsent where the number is not in the file.
  std::span<const std::uint32_t> parents(std::uint32_t node) const {
    return {parents_.data() + begin_[node], parents_.data() + begin_[node + 1]};
  }
  // One sentence per problem, at most `most`: repeated numbers, absent parents, and one cycle.
  std::vector<std::string> problems(std::size_t most) const;
  // Parents before children, the lowest number first among those that are free. Needs problems() to
  // be empty, or leaves nodes of cycles and their children out.
  std::vector<std::uint32_t> order() const;

 private:
  std::string cycle(const std::vector<std::uint32_t>& ordered) const;

  std::vector<std::uint64_t> ids_;
  std::vector<std::uint64_t> named_;  // parents as written
  std::vector<std::uint32_t> begin_{0};
  std::vector<std::uint32_t> parents_;  // parallel to named_
  std::vector<std::uint32_t> by_id_;    // sorted; of equal numbers in the order of the file
};

}  // namespace astra_sim::chakra
