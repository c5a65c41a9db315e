// Copies of KV between the devices and host memory of real engines, whose schedulers number them.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "kv/offloading/copies.h"

namespace llmsim {

// OffloadingCopies without its groups: who calls it says when batches are formed, and when those
// that were launched end.
class OutsideCopies {
 public:
  struct Ended {
    std::int32_t group;
    GroupCopies::JobId job;
  };

  // Throws std::invalid_argument as OffloadingCopies::add_group.
  OutsideCopies(const std::vector<GroupCopiesConfig>& groups, NetworkConfig network);
  OutsideCopies(const OutsideCopies&) = delete;  // its copies refer to it

  // What a group's workers are asked to copy together with the batch that is formed next. Throws
  // std::out_of_range for a group that offloads nothing.
  void load(std::int32_t group, GroupCopies::JobId job, std::int64_t tokens);
  void store(std::int32_t group, GroupCopies::JobId job, std::int64_t tokens);
  void load_in_step(std::int32_t group, GroupCopies::JobId job, std::int64_t tokens);
  void flush(std::int32_t group, GroupCopies::JobId job);
  // A batch is formed (`runs`: it is not empty): what was asked for is submitted.
  void formed(std::int32_t group, bool runs, Ps now);
  // A batch was launched, and will end then; those of a group end in order.
  void launched(std::int32_t group, Ps end);

  // Whether all that the group's batch waits for is there.
  bool open(std::int32_t group) { return at(group).copies->open(); }
  // When something may end; kEndOfTime: nothing is under way.
  Ps next_event() const;
  // Time passes; returns the copies that have ended since it was called, in that order.
  std::vector<Ended> advance(Ps now);

 private:
  struct Group {
    GroupCopies* copies;    // null: it offloads nothing
    std::deque<Ps> ends{};  // of its batches in flight
  };
  Group& at(std::int32_t group);
  void end_steps(Ps now);
  void pass_until(Ps now);

  SharedNetwork network_;
  OffloadingCopies copies_;
  std::vector<Group> groups_;
  std::vector<Ended> ended_;
};

}  // namespace llmsim
