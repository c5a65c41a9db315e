#include "scheduler/impl/mlfq.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "scheduler/impl/vllm_v1/vllm_v1.h"

namespace llmsim {

static std::shared_ptr<Ranking> make_mlfq_ranking(const SchedulerConfig& config,
                                                  const ParamValues& values) {
  return std::make_shared<MlfqRanking>(config, values);
}

static std::unique_ptr<Scheduler> make_mlfq(const SchedulerConfig& config, SequenceTable& sequences,
                                            RequestLog& log) {
  if (config.queue.order != QueueOrder::kFcfs || config.ranking != nullptr)
    throw std::invalid_argument("the scheduler mlfq orders by its levels, not by a queue order");
  if (config.victim)
    throw std::invalid_argument("the scheduler mlfq preempts by its levels, not by a policy");
  SchedulerConfig core = config;
  core.ranking = make_mlfq_ranking(config, config.parameters);
  core.reserve_full_isl = false;  // a request without room takes the blocks of lower ones
  core.defer_block_free = false;
  core.watermark_blocks = 0;
  return std::make_unique<VllmV1>(core, sequences, log);
}

static const RegisterRanking kMlfqRanking({"mlfq", make_mlfq_ranking, MlfqRanking::kParams});
static const RegisterScheduler kMlfq({.name = "mlfq",
                                      .make = make_mlfq,
                                      .params = MlfqRanking::kParams,
                                      .defaults = MlfqRanking::kDefaults,
                                      .lacks = {std::begin(MlfqRanking::kLacks),
                                                std::end(MlfqRanking::kLacks)}});

MlfqRanking::MlfqRanking(const SchedulerConfig& config, const ParamValues& values)
    : levels_(static_cast<std::int32_t>(value_of(kLevels, values))),
      tokens_per_iteration_(value_of(kTokensPerIteration, values)),
      starvation_(value_of(kStarvation, values)),
      decode_only_(config.decode_only) {}

std::int64_t MlfqRanking::iterations(std::int32_t tokens) const {
  return ceil_div(std::int64_t{tokens}, tokens_per_iteration_);
}

void MlfqRanking::added(RequestId request, const Sequence& sequence, Ps seen) {
  const bool brings_kv = decode_only_ || sequence.remote_kv;
  const std::int64_t first = brings_kv ? 1 : iterations(sequence.prompt_tokens);
  std::int32_t level = 0;
  while (level + 1 < levels_ && (std::int64_t{1} << level) < first) ++level;
  jobs_[request] = {level, 0, next_place_++, seen, false};
  not_running_.insert({seen, request});
}

void MlfqRanking::rank(Ps now, const RankView& view, std::span<RankKey> keys) {
  promote_starved(now);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Job& job = jobs_.at(view.candidates[i].row);
    keys[i] = {job.level, job.place, 0, 0};
  }
}

void MlfqRanking::scheduled(Ps now, const Batch& batch) {
  for (const RequestId request : running_) jobs_.at(request).runs = false;
  for (const Item& item : batch.items) {
    Job& job = jobs_.at(item.request);
    job.runs = true;
    not_running_.erase({job.waits_since, item.request});
  }
  for (const RequestId request : running_) {
    Job& job = jobs_.at(request);
    if (job.runs) continue;
    job.waits_since = now;
    not_running_.insert({now, request});
  }
  running_.clear();
  for (const Item& item : batch.items) running_.push_back(item.request);
}

void MlfqRanking::promote_starved(Ps now) {
  while (!not_running_.empty() && not_running_.begin()->first + starvation_ <= now) {
    const RequestId request = not_running_.begin()->second;
    not_running_.erase(not_running_.begin());
    Job& job = jobs_.at(request);
    job.waits_since = now;
    not_running_.insert({now, request});
    move(job, 0);
  }
}

void MlfqRanking::move(Job& job, std::int32_t level) {
  job.level = level;
  job.used = 0;
  job.place = next_place_++;
}

void MlfqRanking::executed(const Batch& batch) {
  for (const Item& item : batch.items) {
    const auto found = jobs_.find(item.request);
    if (found == jobs_.end()) continue;  // it has ended
    Job& job = found->second;
    job.used += iterations(item.tokens);
    if (job.used >= (std::int64_t{1} << job.level)) move(job, std::min(job.level + 1, levels_ - 1));
  }
}

void MlfqRanking::left(RequestId request) {
  const auto found = jobs_.find(request);
  not_running_.erase({found->second.waits_since, request});
  jobs_.erase(found);
  std::erase(running_, request);
}

}  // namespace llmsim
