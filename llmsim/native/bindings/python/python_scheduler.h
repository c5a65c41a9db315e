// A scheduler written in Python behind the scheduler's contract.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "kv/kv_cache.h"
#include "scheduler/limits/lora_slots.h"
#include "scheduler/scheduler.h"

namespace llmsim {

// What a scheduler in Python sees of the pools of KV below its group, by the keys of a cache of our
// own that holds no blocks.
class PoolsBelow {
 public:
  // Throws std::invalid_argument for pools that are written when a block loses its content: only
  // the scheduler in Python knows of that.
  PoolsBelow(const KvCacheConfig& kv, SequenceTable& sequences, GroupTiers* tiers);

  // Tokens after the first `cached` ones that the pools hold, at most up to the last but one.
  std::int32_t find(RequestId request, std::int32_t cached) {
    return keys_.below().find(request, cached);
  }
  // The request, just admitted, takes `tokens` tokens behind the first `cached` ones from the
  // pools: its batch waits for them, or (`parks`) it is parked until they are there.
  void load(RequestId request, std::int32_t cached, std::int32_t tokens);
  bool parks() const { return tiers_->parks(); }
  std::int32_t chunk_tokens() const { return tiers_->chunk_tokens(); }
  // Requests that were parked so far.
  std::int32_t num_parked() const { return num_parked_; }
  // The KV of tokens from `before` to `after` has been computed.
  void computed(RequestId request, std::int32_t before, std::int32_t after) {
    keys_.below().computed(request, before, after);
  }

 private:
  KvCache keys_;
  GroupTiers* tiers_;
  std::int32_t num_parked_ = 0;
};

// What a scheduler in Python that decides by itself what is offloaded calls for its copies, whose
// jobs it numbers.
class CopiesBelow {
 public:
  explicit CopiesBelow(GroupCopies& copies) : copies_(copies) {}

  void load(std::int64_t job, RequestId request, std::int64_t tokens) {
    copies_.load(job, request, tokens);
    ++num_jobs_;
  }
  void store(std::int64_t job, RequestId request, std::int64_t tokens) {
    copies_.store(job, request, tokens);
    ++num_jobs_;
  }
  void load_in_step(std::int64_t job, RequestId request, std::int64_t tokens) {
    copies_.load_in_step(job, request, tokens);
    ++num_jobs_;
  }
  void flush(std::int64_t job) { copies_.flush(job); }
  // So far.
  std::int32_t num_jobs() const { return num_jobs_; }

 private:
  GroupCopies& copies_;
  std::int32_t num_jobs_ = 0;
};

// Calls an object with the methods of llmsim.scheduling.base.Scheduler, once per step and per
// arrival, holding the interpreter's lock only during the calls. Exceptions of the object end the
// run and reach the caller of run().
class PythonScheduler final : public Scheduler,
                              public KvConnector,
                              public TieredKv,
                              public OffloadedKv,
                              public EngineLoop {
 public:
  PythonScheduler(nanobind::object scheduler, const KvCacheConfig& kv,
                  SpeculationConfig speculation, const LoraSlotsConfig& lora,
                  SequenceTable& sequences, RequestLog& log);
  ~PythonScheduler() override;

  void add(RequestId request) override;
  bool has_requests() const override { return num_running_ + num_waiting_ > 0 || pending(); }
  void schedule(Ps now, Batch& batch) override;
  bool asks_again() const override;
  bool queues_empty_batches() const override { return queues_empty_batches_; }
  void abort(RequestId request) override;
  void update(const Batch& batch, std::vector<RequestId>& finished) override;

  Gauges gauges() const override {
    return {.running = num_running_,
            .waiting = num_waiting_,
            .parked = 0,
            .bound = num_bound_ + (below_ == nullptr ? 0 : below_->num_parked()) +
                     (copies_ == nullptr ? 0 : copies_->num_jobs()),
            .pool = {limits_.usable_blocks + 1, free_blocks_, 0}};
  }
  Limits limits() const override { return limits_; }
  const SchedulerCounters& counters() const override { return counters_; }

  KvConnector* kv_connector() override { return connects_ ? this : nullptr; }
  void take_reserved(std::vector<Reserved>& out) override;
  bool transferred(RequestId request) override;
  TieredKv* tiered_kv() override { return connects_ ? this : nullptr; }
  void use_tiers(GroupTiers* tiers) override;
  bool may_park() const override { return true; }
  OffloadedKv* offloaded_kv() override { return connects_ ? this : nullptr; }
  void use_copies(GroupCopies& copies) override;
  EngineLoop* engine_loop() override { return runs_loop_ ? this : nullptr; }
  EngineTurn turn() const override { return turn_; }
  bool has_work() const override;
  Ps taken_from() const override { return taken_from_; }
  void go_on() override;

 private:
  // Whether it is to be asked once more although nobody runs or waits.
  bool pending() const;
  // (requests running, requests waiting, free blocks)
  using Counts = std::tuple<std::int32_t, std::int32_t, std::int32_t>;
  Counts ask_gauges() const;
  void keep(const Counts& counts);
  // Where the loop of its engine stands now.
  void keep_turn();
  void finish(RequestId request, std::vector<RequestId>& finished);
  void note_scheduled(Ps now, const Item& item);
  // (request, tokens received, whether it is finished)
  using Emitted = std::tuple<RequestId, std::int32_t, bool>;
  void count_drafts(const Batch& batch, const std::vector<Emitted>& emitted);
  void store_computed(const Batch& batch);
  // Drafts of an item of the batch that completes that held.
  std::int32_t accepted(const Item& item) const;

  nanobind::object scheduler_;
  KvCacheConfig kv_;
  Limits limits_;
  SpeculationConfig speculation_;
  LoraSlots lora_slots_;
  SequenceTable& sequences_;
  RequestLog& log_;
  SchedulerCounters counters_;
  bool may_ask_again_;              // the scheduler has a method `asks_again`
  bool queues_empty_batches_;       // it has an attribute of that name
  bool connects_, keeps_finished_;  // attributes of these names
  bool runs_loop_;                  // it has a method `go_on`
  EngineTurn turn_ = EngineTurn::kLooks;
  Ps taken_from_ = 0;
  std::vector<RequestId> verified_;  // by the batch that completes, sorted
  std::int32_t num_running_ = 0, num_waiting_ = 0, free_blocks_ = 0;
  // Requests whose blocks other groups fill or read, less those parked for pools that have gone on.
  std::int32_t num_bound_ = 0;
  std::shared_ptr<PoolsBelow> below_;
  std::shared_ptr<CopiesBelow> copies_;
  // Tokens that were here of prompts that another group computes, until they run.
  std::unordered_map<RequestId, std::int32_t> elsewhere_;
};

}  // namespace llmsim
