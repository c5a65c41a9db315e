// Prefill/decode disaggregation: the KV of each prompt on its way from the group that computed it
// to the one that decodes.
//
// Pull (vLLM's NIXL connector behind its proxy): a decode group is chosen and told when the prefill
// has ended. Its scheduler reserves the blocks of the whole prompt, parks the request, and its
// ranks read what they lack. Push (SGLang): both groups are chosen on arrival. The decode group
// reserves first, then the prompt is prefilled and its KV written as it becomes known: when the
// prefill has ended, or layer by layer while it runs. Nobody ever holds prefill blocks while
// waiting for decode blocks and the other way round, so neither way can deadlock. Either way one
// message without payload goes from the decode group to the prefill group before any KV moves, the
// prefill group keeps its blocks until the last byte has landed, and the decode group then computes
// the last token of the prompt again, whose step gives the first token; SGLang's gets that along
// with the KV.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "frontend/prompt_reader.h"
#include "group/group.h"
#include "group/observer.h"
#include "kv_transfer/kv_table.h"
#include "network/shared_network.h"
#include "router/router.h"

namespace llmsim {

// The shares of one pair of groups: `table` is an index into KvTransferConfig::tables.
struct KvRoute {
  std::int32_t prefill_group = 0, decode_group = 0, table = 0;
};

struct KvTransferConfig {
  bool push = false, layerwise = false;  // layerwise needs push
  bool chunked = false;  // whole pages of a chunk of the prompt move with its step; needs push
  std::vector<std::vector<NetworkNodeId>> places;  // by group and rank
  std::vector<KvTable> tables;
  std::vector<KvRoute> routes;
};

// One request's hand-over; times are ps, kNever until they come.
struct KvTransfer {
  std::int32_t prefill_group = -1, decode_group = -1;
  std::int32_t prefill_step = -1;  // whose output ended the prompt
  std::int32_t needed = 0;         // tokens of the prompt that the prefill group computes
  std::int32_t cached = 0;         // tokens of the prompt that the decode group had
  std::int32_t sent = 0;           // leading tokens that are under way, there, or need not go
  std::int32_t in_flight = 0;
  bool at_prefill = false;  // its engine has been sent the request
  bool brought = false;     // a switch of layouts moves its KV to the decode group: no prefill
  bool prefill_dropped = false,
       decode_dropped = false;           // its client has gone, and that engine has heard of it
  bool gave_up = false, closed = false;  // closed: nothing more moves for it
  // Where engines drain KV: the prefill group has been told that nobody takes it any more, and its
  // memory is free, or will be without another word.
  bool withdrawn = false, prefill_released = false;
  std::int64_t bytes = 0;
  Ps prefilled = kNever, reserved = kNever, told = kNever, landed = kNever;
  Ps posted = kNever;  // all reads; the last of them lands no sooner
  Ps read = kNever;    // when the decode groups' API server has read it, before one is chosen

  // Everything that the decode group lacked has landed.
  bool complete() const { return closed && sent >= needed; }
  // Its prefill group is to get it when a decode group has memory for it.
  bool promised() const {
    return prefill_group >= 0 && !at_prefill && !brought && !gave_up && !prefill_dropped;
  }
  // A prefill group has it, or will, and its prompt is not computed.
  bool prefilling() const { return !brought && prefilled == kNever; }
};

class KvTransfers final : public TransferOwner, public GroupObserver {
 public:
  // One side's progress of all requests.
  struct Side {
    SequenceTable& sequences;
    RequestLog& log;
  };
  // `router` chooses decode groups. Throws std::invalid_argument for a configuration that does not
  // fit the groups.
  KvTransfers(KvTransferConfig config, SharedNetwork& network,
              const std::vector<std::unique_ptr<Group>>& groups, std::unique_ptr<Router> router,
              Side decode, Side prefill);

  // A group has been added, with the nodes of its ranks; groups come in the order of their indices.
  // Throws std::invalid_argument as the constructor.
  void add_group(Group& group, std::vector<NetworkNodeId> places);
  void add_routes(std::span<const KvRoute> routes);
  // Returns the number of the first of them.
  std::int32_t add_tables(std::span<const KvTable> tables);
  // It gets no new requests. What is under way for it goes on: its KV is read and written to the
  // end.
  void remove_candidate(const Group& group);

  // While it is held, no KV begins to move; what moves goes on, and the layers of steps in flight.
  void hold(bool on) { holding_ = on; }
  // Nothing moves, and nothing will: hand-overs that have not ended never do, and whoever keeps
  // blocks for one gets them back.
  void abandon(Ps now);
  // These requests leave the groups that they are in, none of which hears of them again. With
  // `keep` what had been handed over is remembered.
  void displaced(const std::vector<RequestId>& requests, bool keep);
  // Hand-overs of requests that were displaced later, in order of time.
  struct Earlier {
    RequestId request;
    KvTransfer kv_transfer;
  };
  const std::vector<Earlier>& earlier() const { return earlier_; }
  // Whether the request is computed by groups of prefill and decode.
  bool has(RequestId request) const {
    return of(request).prefill_group >= 0 || of(request).decode_group >= 0;
  }
  // The group that has KV of such a request, and of how many tokens.
  std::pair<std::int32_t, std::int32_t> holder(RequestId request) const;

  // A request was routed to a prefill group. False: no decode group can ever run it, or the prefill
  // group cannot; it is then marked as rejected.
  bool arrive(RequestId request, Group& prefill, Ps now);
  // Its client has gone: both engines learn it as any other. What has begun to move arrives, and
  // then the blocks at both ends are free, as in vLLM; what has not begun does not move any more.
  void give_up(RequestId request, Ps now);
  void dropped(RequestId request, std::int32_t group, Dropped what, Ps now) override;
  // The prefill group has ended the request.
  void prefilled(RequestId request, Ps now);
  // It has computed that of a prompt which goes on.
  void computed(const Item& item, Ps now);
  Ps reserved(RequestId request, std::int32_t cached, Ps now) override;
  void begins(const Group& prefill, const Batch& batch, std::int64_t step, Ps now) override;
  void passed(const Group& prefill, const Progress& progress, Ps now) override;
  void attended(const Group& prefill, std::int32_t behind, std::int32_t layer, Ps at,
                Ps now) override;
  // Layer by layer, the KV of the batch begins to move, or what has not done so while it ran. Where
  // nobody knows when its layers end, all of it moves when the step has ended.
  void launched(const Group& prefill, const Batch& batch, const StepTimes& times, Ps now) override;
  void landed(TransferId transfer, std::uint64_t token, Ps now) override;
  // When both engines had dropped it; kNever: none did.
  Ps cancelled(RequestId request) const;

  // What has to move for it, by both layouts and what the decode group had; 0 until blocks are
  // reserved.
  std::int64_t due_bytes(RequestId request) const;

  // Nothing has happened to these requests.
  void forget(const std::vector<RequestId>& requests) {
    for (const RequestId request : requests) kv_transfers_[at(request)] = {};
  }

  Router& router() { return *router_; }
  PromptReader& reader() { return reader_; }
  // Whether the decode groups' API server reads the requests before its router chooses.
  bool reads_first() const { return !config_.push && router_->in_api_server(); }
  bool pushes() const { return config_.push; }
  const KvTransfer& of(RequestId request) const {
    return kv_transfers_[static_cast<std::size_t>(request)];
  }

 private:
  // Messages to the prefill group: memory is reserved; the KV will not be read; nobody takes it any
  // more. From there: nothing of it is under way.
  enum class Kind : std::uint8_t { kTold, kKv, kForget, kWithdrawn, kDrained };
  static constexpr std::uint64_t token(RequestId request, Kind kind) {
    return (static_cast<std::uint64_t>(kind) << 32) | static_cast<std::uint32_t>(request);
  }
  const KvTable& table_of(const KvTransfer& kv_transfer) const;
  NetworkNodeId place(std::int32_t group, std::int32_t rank) const {
    return config_.places[static_cast<std::size_t>(group)][static_cast<std::size_t>(rank)];
  }
  void connect(Group& group);
  // Decode groups among `groups` that can ever run the request.
  void find_candidates(RequestId request, std::span<Group* const> groups);
  void choose_decoder(RequestId request, std::int32_t model, Ps now);
  // The API server in front of the decode groups has read it.
  void has_read(RequestId request, Ps now);
  // Nobody will read what a prefill group has computed: its engine forgets it before it hears that
  // the client has gone.
  void forget_prompt(RequestId request, Ps now);
  // KV of a batch that runs, which leaves when the operators have come so far; kEndOfTime: when the
  // step has ended.
  struct Due {
    Ps after = 0;  // of the operators' time alone; where layers are reported, the layer
    RequestId request = 0;
    const KvShare* share = nullptr;
    std::int64_t bytes = 0;
  };
  // Due of one batch, in the order of `after`.
  struct Departing {
    std::vector<Due> due;
    std::size_t next = 0;
  };
  void send(RequestId request, const KvShare& share, std::int64_t bytes, Ps at, Ps now);
  // It counts as under way, and leaves later.
  void expect(RequestId request, std::int64_t bytes);
  void leave(const Due& due, Ps at, Ps now);
  // Whether it hears of each layer's end in the group's steps.
  bool hears_layers(Group& prefill) const;
  bool sends_layers(const Group& prefill) const {
    return config_.layerwise && prefill.config().role == Role::kPrefill;
  }
  // The tokens that a batch's item makes known; none: the decode group has them, or they have gone.
  std::int32_t makes_known(const Item& item) const;
  // By number of a layer, when its KV is there.
  void find_layer_ends(const Group& prefill, const Batch& batch, std::int64_t step);
  // The leading tokens that need not move.
  static std::int32_t unmoved(const KvTransfer& kv_transfer) {
    return std::min(kv_transfer.cached, kv_transfer.needed - 1);
  }
  // Everything of the tokens [kv_transfer.sent, to) of every layer.
  void send_all(RequestId request, std::int32_t to, Ps at, Ps now);
  void send_layers(RequestId request, std::int32_t to, const StepTimes& times, Ps now);
  // Calls `move` with each share of each layer that moves for the tokens up to `to`: bytes, and
  // when the layer's attention has run.
  template <typename Move>
  void each_layer(RequestId request, std::int32_t to, Move move);
  void send_message(RequestId request, Kind kind, Ps now);
  // Whether both engines hear on their own that the client has gone.
  bool drains(const KvTransfer& kv_transfer) const {
    return config_.push && kv_transfer.decode_group >= 0 &&
           groups_[at(kv_transfer.decode_group)]->drains_kv();
  }
  void tell_both(RequestId request, Ps now);
  void dropped_by_prefill(RequestId request, Ps now);
  void release_prefill(RequestId request, Ps now);
  void withdrawn(RequestId request, Ps now);
  void drain(RequestId request, Ps now);
  void drained(RequestId request, Ps now);
  void end_if_done(RequestId request, Ps now);
  // The group hears that nothing moves from `at` on.
  void release(RequestId request, std::int32_t group, Ps at, Ps now);

  KvTransferConfig config_;
  SharedNetwork& network_;
  const std::vector<std::unique_ptr<Group>>& groups_;
  std::unique_ptr<Router> router_;  // of decode groups
  PromptReader reader_{[this](RequestId request, Ps now) { has_read(request, now); }};
  Side decode_, prefill_;
  std::vector<std::vector<Group*>> decoders_;  // by model
  std::vector<Group*> leaving_;                // decode groups that have been removed
  std::vector<std::vector<std::int32_t>>
      tables_;                                    // by prefill group and decode group; -1: no route
  std::vector<char> prefill_all_but_last_token_;  // by prefill group
  std::vector<char> hears_layers_;                // by group
  std::vector<KvTransfer> kv_transfers_;
  std::vector<Earlier> earlier_;
  bool holding_ = false;
  std::vector<Group*> candidates_;                // scratch
  std::vector<Ps> layer_ends_;                    // scratch
  std::vector<std::deque<Departing>> departing_;  // by group: of batches whose times are not known
};

}  // namespace llmsim
