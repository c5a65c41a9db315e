#include "program/drafter.h"

#include <algorithm>

namespace llmsim {

namespace {

void add(Batch& batch, const Item& item) {
  batch.items.push_back(item);
  batch.features.add(item);
}

// Each sequence samples one token in a pass: the logits of drafts in the input are not computed.
Program::StepPrice priced(const Program& program, Batch& batch, Program::Usage& usage) {
  batch.features.drafts = 0;
  return program.evaluate(batch, usage);
}

}  // namespace

Program::StepPrice Drafter::price(const Batch& batch, Usage& usage, PassTimer* timer) const {
  Program::StepPrice sum{0, 0};
  const std::int32_t drafts = batch.drafts_after;
  if (drafts == 0 || batch.empty()) return sum;
  Batch pass;
  for (Item item : batch.items) {
    const std::int32_t more = slots_ + (parallel_ ? drafts - 1 : 0);
    item.tokens += more;
    if (item.decodes() || item.tokens == 1 + more)
      item.drafts += more;  // still attends like a decode
    add(pass, item);
  }
  const auto take = [&sum, &pass, timer](const Program::StepPrice& price, bool first) {
    sum.ps += timer == nullptr ? price.ps : timer->took(pass, first);
    sum.communication_ps += price.communication_ps;
  };
  take(priced(*first_, pass, usage.first), true);
  for (std::int32_t draft = 1; draft < drafts && !parallel_; ++draft) {
    pass.clear();
    for (const Item& item : batch.items)
      add(pass,
          {item.request, 1, item.computed_before + item.tokens + draft - 1, item.epoch, 0, true});
    take(priced(*next_, pass, usage.next), false);
  }
  return sum;
}

}  // namespace llmsim
