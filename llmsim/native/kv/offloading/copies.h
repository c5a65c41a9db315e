// Copies between a group's devices and host memory, in the order in which vLLM's worker submits
// them (vLLM 0.33: kv_connector/v1/offloading/worker.py, v1/kv_offload/cpu/gpu_worker.py).
//
// Each direction is one queue, and loads for which a step waits have their own: a copy starts when
// the one before has ended, and when the steps have ended that were launched before it was
// submitted. What a step loads is submitted behind the step's kernels, and what it stores in front
// of the next step's; so both start when it has ended. A step that takes the blocks of a store
// waits for it (`flush`), and a step may wait for loads
// (`load_in_step`): these only follow the steps before, as do all loads of such a step, which are
// submitted in front of its kernels. A copy moves each rank's share over the network at once.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/types.h"
#include "kv/tiers/group_moves.h"
#include "network/shared_network.h"

namespace llmsim {

struct GroupCopiesConfig {
  std::vector<NetworkNodeId> ranks;           // its devices; none: it offloads nothing
  std::vector<NetworkNodeId> hosts;           // of each rank, the memory of the node that it is on
  std::vector<std::int64_t> bytes_per_token;  // of each rank, to its device
  std::vector<std::int64_t> bytes_stored_per_token;  // of each rank, to the host
};

class OffloadingCopies;

class GroupCopies final : public GroupMoves {
 public:
  using JobId = std::int64_t;

  GroupCopies(OffloadingCopies& copies, std::int32_t group, GroupCopiesConfig config)
      : copies_(copies), group_(group), config_(std::move(config)) {}

  // Asks for a copy of so many tokens; jobs of a direction have ever larger numbers.
  void load(JobId job, RequestId request, std::int64_t tokens);
  void store(JobId job, RequestId request, std::int64_t tokens);
  // A load for which the batch that is formed waits.
  void load_in_step(JobId job, RequestId request, std::int64_t tokens);
  // The batch that is formed waits for the store, unless it has ended.
  void flush(JobId job);

  std::size_t num_ranks() const { return config_.ranks.size(); }

  void formed(Ps now, std::int32_t in_flight, bool runs) override;
  void step_ended(Ps now) override;
  bool open() const override { return gates_ == 0; }
  bool consistent() const override;
  const std::vector<std::pair<std::int32_t, std::int64_t>>& moved() const override {
    return moved_;
  }

 private:
  friend class OffloadingCopies;
  struct Copy {
    JobId job;
    RequestId request;
    std::int64_t tokens;
    std::int64_t after = 0;  // so many steps have ended, of all since the beginning
    bool gate = false;
  };
  struct Queue {
    std::vector<Copy> asked;
    std::deque<Copy> submitted;  // the first one may be under way
    std::int32_t transfers = 0;  // of it
  };
  static constexpr std::size_t kLoads = 0, kStores = 1, kLoadsInStep = 2, kQueues = 3;

  void begin(std::size_t queue, Ps now);
  void landed(std::size_t queue, Ps now);

  OffloadingCopies& copies_;
  std::int32_t group_;
  GroupCopiesConfig config_;
  std::array<Queue, kQueues> queues_;
  std::int64_t ended_ = 0;  // steps
  std::int32_t gates_ = 0;
  std::vector<std::pair<std::int32_t, std::int64_t>> moved_{{0, 0}};  // there is one pool
};

class OffloadingCopies final : public TransferOwner {
 public:
  struct Callbacks {
    std::function<void(std::int32_t group)> opened;  // its batch may start
    // A request's oldest copy has ended; `load`: the request is parked for it.
    std::function<void(std::int32_t group, RequestId request, bool load)> ended;
  };
  OffloadingCopies(SharedNetwork& network, Callbacks callbacks)
      : network_(network), callbacks_(std::move(callbacks)) {}

  // Groups come in the order of their indices. Throws std::invalid_argument for numbers out of
  // range.
  void add_group(const GroupCopiesConfig& config);
  // Null for a group that offloads nothing.
  GroupCopies* of(std::int32_t group) { return groups_[at(group)].get(); }
  void landed(TransferId transfer, std::uint64_t token, Ps now) override;

 private:
  friend class GroupCopies;
  SharedNetwork& network_;
  Callbacks callbacks_;
  std::vector<std::unique_ptr<GroupCopies>> groups_;
};

}  // namespace llmsim
