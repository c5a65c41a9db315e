#include "step/round_runner.h"

#include <stdexcept>
#include <string>

namespace llmsim {

RoundRunner::RoundRunner(std::vector<GroupCosts> costs, const ExecutorMaker& make_executor,
                         std::shared_ptr<OutsideNetwork> network)
    : costs_(std::move(costs)), network_(std::move(network)) {
  std::vector<GroupCosts*> members;
  for (GroupCosts& one : costs_) members.push_back(&one);
  executor_ = make_executor(std::move(members));
  if (network_) executor_->start(&network_->shared(), 0);
}

void RoundRunner::begin(std::span<const Batch> batches, Ps now, Ps ready) {
  if (batches.size() != costs_.size())
    throw std::invalid_argument("a round has a batch of each of its " +
                                std::to_string(costs_.size()) + " members, and not " +
                                std::to_string(batches.size()));
  std::vector<const Batch*> members;
  for (const Batch& batch : batches) members.push_back(&batch);
  executor_->begin(members, {now, std::max(now, ready)}, *this);
  if (network_) network_->settle(now);
}

}  // namespace llmsim
