// The joint iteration of a domain whose members or stages talk over the cluster's shared links.
//
// A collective, between members or inside a stage, and a hand-over between stages, is one flow for
// each pair of devices on the network, so that it meets KV on its way on the same links. Alone on
// them it takes exactly what its table says: the flows carry the bytes that a ring sends, and what
// the table has beyond that (the other messages' latencies) follows; where its flows share links
// and would take longer than the table, they carry less. Others on the links stretch the flows by
// their fair shares. Operators that do not use shared links are priced as ever.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "network/shared_network.h"
#include "step/expanded.h"
#include "step/lockstep_step.h"

namespace llmsim {

struct ContendedLinks {
  std::vector<NetworkNodeId> places;        // device t + tp * (stage + stages * member)
  std::vector<CollectiveSpec> collectives;  // those on shared links, hand-overs too; bytes of each
};

class ContendedRound final : public StepExecutor, private TransferOwner {
 public:
  // Throws std::invalid_argument where the links do not fit the program.
  ContendedRound(std::vector<GroupCosts*> members, ContendedLinks links, SharedNetwork& network);

  void begin(std::span<const Batch* const> batches, Ps now, StepSink& sink) override;

 private:
  void landed(TransferId transfer, std::uint64_t token, Ps now) override;
  // What a stage does next: operators that each member runs for itself, or that all run at the same
  // time after they have met, or one collective.
  struct Item {
    enum class Kind : std::uint8_t { kOwn, kTogether, kCollective, kInside } kind = Kind::kOwn;
    std::int32_t layer = 0;
    std::vector<std::int32_t> ops;
  };
  struct Stage {
    std::vector<Item> items;
    std::int32_t kv_transfer = -1;  // operator; -1: the last stage
  };
  // One member in one stage of an iteration.
  struct Cursor {
    Ps at = kNever;  // when its input is there, then how far it has come
    std::size_t item = 0;
    bool running = false;
  };
  struct Run {
    std::vector<MemberStep> members;
    std::vector<StepCosts> costs;
    std::vector<Ps> draws;
    std::vector<Ps> start;
    std::vector<Cursor> cursors;        // by place
    std::vector<std::int32_t> waiting;  // by stage: members at its next meeting
    std::size_t ended = 0;              // members
  };
  // A device of a (member, stage), and its link to the next stage.
  struct Device {
    std::int64_t next_run = 0;  // the first that it has not ended
    Ps free = 0, link_free = 0;
    std::int64_t next_sent = 0;  // the first whose hidden states have not left
    bool sending = false;
    std::deque<Ps> to_send;  // when they may
  };
  // Flows of one collective or hand-over.
  struct Exchange {
    std::int64_t run = 0;
    std::int32_t stage = 0, member = -1, left = 0;  // member -1: a collective of all
    bool inside = false;        // a collective of that member's, not a hand-over
    std::array<Ps, 2> extra{};  // after the last flow of each part
    Ps at = 0;                  // when it ends, as far as is known
  };
  // How many bytes each flow of an exchange carries, and what follows; -1: even the latency is too
  // long.
  struct Fit {
    std::int64_t bytes = 0;
    Ps extra = 0;
  };
  // Flows alone on the links.
  struct Alone final : TransferOwner {
    Ps last = 0;
    void landed(TransferId, std::uint64_t, Ps now) override { last = now; }
  };

  void add_items(Stage& stage, std::size_t first, std::size_t last);
  Run& run_of(std::int64_t run) { return runs_[static_cast<std::size_t>(run - first_run_)]; }
  std::size_t place(std::size_t member, std::size_t stage) const {
    return member * stages_.size() + stage;
  }
  NetworkNodeId device(std::size_t member, std::size_t stage, std::size_t rank) const {
    return links_.places[rank + tp_ * place(member, stage)];
  }
  Ps price(const Run& run, const MemberStep& member, const Item& item) const;
  std::int64_t bytes_of(const Run& run, std::size_t member, std::int32_t op,
                        std::size_t ranks) const;
  void try_begin(std::size_t member, std::size_t stage, Ps now);
  void advance(std::int64_t run, std::size_t member, std::size_t stage, Ps now);
  void meet(std::int64_t run, std::size_t stage, Ps now);
  void leave(std::int64_t run, std::size_t member, std::size_t stage, Ps now);
  void send_next(std::size_t member, std::size_t stage, Ps now);
  void arrive(std::int64_t run, std::size_t member, std::size_t stage, Ps at, Ps now);
  void end_step(std::int64_t run, std::size_t member, Ps at, Ps now);
  struct Flow {
    NetworkNodeId from, to;
  };
  // What flows of an exchange join: its devices as a ring, or the ranks of all members as one; rows
  // on near or far ports.
  enum class Shape : std::uint8_t { kRing, kEveryone, kNear, kFar };
  // Flows of equal bytes; parts of an exchange use different links.
  struct Part {
    Shape shape = Shape::kRing;
    std::int64_t bytes = 0;
    std::vector<Flow> flows;
  };
  void flows_between(const Run& run, std::size_t stage, std::int32_t op);
  void rows_of(const CollectiveSpec& spec, std::int64_t units, std::size_t stage);
  // Starts the flows of what takes `ps` alone; false when it is too short for its links' latency,
  // so that none start.
  bool exchange(Exchange exchange, Ps ps, Ps at, Ps now);
  Part& only_part(Shape shape, std::int64_t bytes);
  Ps alone(std::span<const Flow> flows, std::int64_t bytes);
  const Fit& fit(const Exchange& exchange, const Part& part, Ps ps);
  bool inside(std::int64_t run, std::size_t member, std::size_t stage, Ps now);

  std::vector<GroupCosts*> members_;
  LockstepExecutor features_;
  ContendedLinks links_;
  SharedNetwork& network_;
  StepSink* sink_ = nullptr;  // of all steps
  const Program& program_;
  std::size_t tp_;
  std::vector<Stage> stages_;
  std::vector<const CollectiveSpec*> specs_;  // by operator
  std::vector<Device> devices_;               // by place
  std::deque<Run> runs_;                      // begun and not ended
  std::int64_t first_run_ = 0, num_runs_ = 0;
  std::vector<Exchange> exchanges_;
  std::vector<std::size_t> free_exchanges_;
  std::array<Part, 2> parts_;  // of the exchange that is being started
  std::size_t num_parts_ = 0;
  std::vector<NetworkLinkId> crossed_;    // scratch
  std::unique_ptr<SharedNetwork> probe_;  // a network without anybody else, made when first needed
  Ps probed_ = 0;
  // By stage, member, whether it is inside, shape, bytes and time.
  std::map<std::tuple<std::int32_t, std::int32_t, bool, Shape, std::int64_t, Ps>, Fit> fits_;
};

}  // namespace llmsim
