#include "program/drafter.h"

#include <algorithm>

namespace llmsim {

namespace {

void add(Batch& batch, const Item& item) {
  batch.items.push_back(item);
  batch.features.add(item);
}

}  // namespace

// Each sequence samples one token in a pass: the logits of drafts in the input are not computed.
void Drafter::each_pass(const Batch& batch,
                        const std::function<void(const Batch& pass, bool first)>& run) const {
  const std::int32_t drafts = batch.drafts_after;
  if (drafts == 0 || batch.empty()) return;
  Batch pass;
  for (Item item : batch.items) {
    const std::int32_t more = slots_ + (parallel_ ? drafts - 1 : 0);
    item.tokens += more;
    if (item.decodes() || item.tokens == 1 + more)
      item.drafts += more;  // still attends like a decode
    add(pass, item);
  }
  pass.features.drafts = 0;
  run(pass, true);
  for (std::int32_t draft = 1; draft < drafts && !parallel_; ++draft) {
    pass.clear();
    for (const Item& item : batch.items)
      add(pass, {item.request, branches_, item.computed_before + item.tokens + draft - 1,
                 item.epoch, branches_ - 1, true});
    run(pass, false);
  }
}

Program::StepPrice Drafter::price(const Batch& batch, Usage& usage, PassTimer* timer) const {
  Program::StepPrice sum{0, 0};
  each_pass(batch, [&](const Batch& pass, bool first) {
    const Program::StepPrice price =
        first ? first_->evaluate_pass(pass, usage.first) : next_->evaluate_pass(pass, usage.next);
    sum.ps += timer == nullptr ? price.ps : timer->took(pass, first);
    sum.communication_ps += price.communication_ps;
  });
  return sum;
}

}  // namespace llmsim
