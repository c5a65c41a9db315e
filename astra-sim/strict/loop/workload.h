// The nodes of every NPU and their slots: which node is issued when, under upstream's rules.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "strict/base/journal.h"
#include "strict/base/trace.h"
#include "strict/collectives/collectives.h"
#include "strict/collectives/custom.h"
#include "strict/loop/memory.h"
#include "strict/network/messages.h"

namespace astra_sim::strict {

class Workload : public NodeSink, public MessageSink {
 public:
  struct Parts {
    Clock& clock;
    Collectives& collectives;
    CustomCollectives& custom;
    Messages& messages;
    Memory& memory;
    Plans& plans;
  };
  Workload(Trace& trace, const config::SystemConfig& system) : trace_(trace), system_(system) {}
  void connect(const Parts& parts) { parts_.emplace(parts); }

  // Issues what is ready at time 0, NPU by NPU.
  void start();
  void node_done(std::uint32_t node) override;
  void message_done(std::uint32_t node) override;

  // When the NPU last had nothing ready and nothing running; -1 where that never was.
  Ns finish_ns(std::uint32_t npu) const { return npus_[npu].finish_ns; }
  // "NPU 3, node 7": for messages.
  std::string name(std::uint32_t node) const;
  // Throws model::InputError with both nodes.
  [[noreturn]] void fail(const CollectiveMismatch& mismatch) const;
  std::uint32_t npu_of(std::uint32_t node) const;
  Journal& journal() { return journal_; }

 private:
  enum Slot : std::uint8_t { cpu, compute, communication, unlimited, slots };
  struct Npu {
    std::array<std::vector<std::uint32_t>, slots> ready;  // heaps, the lowest index first
    std::array<bool, slots> busy{};
    std::uint32_t running = 0;
    bool in_pass = false;
    std::vector<std::uint32_t> late;  // became ready inside a pass
    Ns finish_ns = -1;
  };
  static Slot slot_of(const TraceNode& node);
  void make_ready(Npu& npu, std::uint32_t node);
  void pass(std::uint32_t npu);
  void issue(std::uint32_t npu, std::uint32_t node);
  bool issue_compute(std::uint32_t npu, std::uint32_t node);  // false: it has ended at once
  void issue_collective(std::uint32_t npu, std::uint32_t node);
  void issue_message(std::uint32_t npu, const TraceNode& node, std::uint32_t index);
  void complete(std::uint32_t npu, std::uint32_t node);
  void complete_at_once(std::uint32_t npu, std::uint32_t node);
  void note(Happening what, std::uint32_t index) {
    journal_.entries.push_back({parts().clock.now(), index, what});
  }
  // Upstream makes a ring when an NPU first needs one for a kind of collective in a group.
  void note_ring(std::uint32_t npu, std::uint32_t group, config::Collective kind);
  [[noreturn]] void fail(std::uint32_t node, const std::string& what) const;
  const Parts& parts() const { return *parts_; }

  Trace& trace_;
  const config::SystemConfig& system_;
  std::optional<Parts> parts_;  // once connected
  std::vector<Npu> npus_;
  Journal journal_;
  std::unordered_set<std::uint64_t> rings_;  // noted
};

}  // namespace astra_sim::strict
