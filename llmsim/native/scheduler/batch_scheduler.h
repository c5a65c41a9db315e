// What the schedulers other than vLLM's share: queues, blocks, and the bookkeeping of one batch in
// flight.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "scheduler/config.h"
#include "scheduler/queue/parked_queue.h"
#include "scheduler/queue/pending_release.h"
#include "scheduler/registry.h"
#include "scheduler/scheduler.h"

namespace llmsim {

// A policy says in `form` what the next step runs, by the verbs below; everything that must stay
// consistent is here. Synchronous: a request is in one batch in flight at most. Only policies that
// skip those that are may have several.
class BatchScheduler : public Scheduler, public KvConnector, public TieredKv, public PrefixEvents {
 public:
  // What no scheduler of this kind can do.
  static constexpr Lack kCoreLacks[] = {
      {"async_scheduling", "only vLLM's scheduler is modelled ahead of the outputs of a step"},
      {"speculative_config", "only vLLM's scheduler is modelled with drafts"},
      {"ranked_running", "its rules fix the order of running requests and whom to restart"},
      {"kv_tier_recall", "only vLLM's scheduler is modelled with requests parked for a recall"},
      {"hybrid_kv_cache", "only vLLM's KV cache manager is modelled with several tables of blocks"},
  };

  BatchScheduler(const SchedulerConfig& config, SequenceTable& sequences, RequestLog& log);

  void add(RequestId request) override;
  bool has_requests() const override {
    return num_running() > 0 || !waiting_.empty() || !parked_.empty();
  }
  void schedule(Ps now, Batch& batch) final;
  void update(const Batch& batch, std::vector<RequestId>& finished) final;
  void abort(RequestId request) final;

  Gauges gauges() const override;
  const SchedulerCounters& counters() const final { return counters_; }
  Limits limits() const final {
    return {config_.kv.max_model_len, config_.kv.block_size, kv_.usable_blocks()};
  }
  std::int32_t max_depth() const override { return 1; }
  bool pool_consistent() const final { return kv_.pool().consistent(); }

  KvConnector* kv_connector() final { return this; }
  void take_reserved(std::vector<Reserved>& out) final;
  bool transferred(RequestId request) final;
  TieredKv* tiered_kv() final { return this; }
  void use_tiers(GroupTiers* tiers) final { kv_.use_tiers(*tiers); }
  bool may_park() const final { return false; }
  PrefixEvents* prefix_events() final { return this; }
  void log_keys(KeyLog* log) final { kv_.log_keys(log); }

 protected:
  // Fills the batch (empty at first).
  virtual void form(Ps now, Batch& batch) = 0;
  // `item` has been computed, and its token received if it emits; not called for what finishes with
  // it.
  virtual void served(const Item& item) { (void)item; }
  // A request that does not run has to leave the policy's lists.
  virtual void leave_queue(RequestId request) { waiting_.remove(request); }
  // A finished request has to leave the policy's lists (`running_` is taken care of); gives back
  // its blocks.
  virtual void leave(RequestId request) { kv_.release(request, /*preempted=*/false); }
  // After all of a batch's items have been received, and after a request was aborted.
  virtual void completed() {}

  std::int32_t num_running() const { return static_cast<std::int32_t>(running_.size()); }
  // Tokens between what is computed and what is known: the rest of a prompt, or 1.
  std::int32_t tokens_left(RequestId request) const {
    const Sequence& s = sequences_[request];
    return s.num_tokens - s.num_computed;
  }
  // Room that admission must find before a request starts.
  struct Room {
    std::int32_t tokens;     // of KV taken now; at least what is scheduled
    std::int32_t spare = 0;  // blocks that must stay free on top
  };
  // Cached and brought tokens of a request that does not run, those that tiers hold included; its
  // hits stay in `hits_` until the next call.
  std::int32_t find_cached(RequestId request);
  // Starts a request whose `find_cached` was `cached` with its first `tokens` tokens, if its room
  // is there. The caller has taken it from its queue, or takes it now.
  bool start(Ps now, RequestId request, std::int32_t cached, std::int32_t tokens, const Room& room,
             Batch& batch);
  // The request runs `tokens` more tokens, for which it holds the blocks.
  void run(RequestId request, std::int32_t tokens, Batch& batch);
  // Takes all blocks away; everything is computed again later. The caller moves the request between
  // its lists.
  void drop(RequestId request, Batch& batch);
  // The same with the last of `running_` that is in no batch in flight, of which there is one; it
  // goes to the front of the waiting queue.
  RequestId preempt_youngest(Batch& batch);
  bool in_flight(RequestId request) const { return sequences_[request].num_in_flight > 0; }
  // Decode groups: a waiting request whose prompt another group computes takes blocks for `slots`
  // tokens, or for its prompt if that is longer, and is parked until its KV has come. Requests are
  // taken in the order of the queue while `room_to_take_over` and while `spare` blocks stay free.
  void take_over(Ps now, std::int32_t slots = 0, std::int32_t spare = 0);
  // Whether more than the blocks of the request, whose hits are in `hits_`, must be free.
  virtual bool room_to_take_over(RequestId request) const {
    (void)request;
    return true;
  }
  // Requests whose KV has come begin to run, as many as may; of the whole prompt the last token is
  // computed again.
  void admit_arrived();

  // Whether blocks get keys when the step is formed that fills them; else the policy gives them.
  bool keys_when_scheduled_ = true;
  SchedulerConfig config_;
  SequenceTable& sequences_;
  RequestLog& log_;
  KvCache kv_;
  WaitingQueue waiting_;
  ParkedQueue parked_;
  std::vector<RequestId> running_;  // in order of admission
  std::vector<BlockId> hits_;       // of the last `find_cached`
  SchedulerCounters counters_;

 private:
  void park(RequestId request, std::int32_t slots);
  void rank(Ps now);
  void receive(const Item& item, std::vector<RequestId>& finished);

  std::int32_t recalled_ = 0;  // tokens that the tiers hold beyond the hits
  Ps now_ = 0;                 // of the build
  std::vector<Reserved> reserved_;
  PendingReleases leaving_;
  std::unique_ptr<Ranker> ranker_;     // null: no ranking
  RankEvents* rank_events_ = nullptr;  // of the ranking; null: it hears of nothing
};

}  // namespace llmsim
