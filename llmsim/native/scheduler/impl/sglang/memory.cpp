#include "scheduler/impl/sglang/memory.h"

namespace llmsim {

// The node that ends with the prompt is a node of its own, so that the answer can go without it.
void SglangMemory::checkpoint(RequestId request, SglangHeld& held, std::int32_t up_to) {
  if (!caching_) return;
  const auto page = static_cast<std::int32_t>(page_);
  const std::int32_t pages = keys_.whole_pages(up_to);
  std::int32_t copies = 0, none = 0;
  const RadixTree::Match end =
      tree_.insert(request, pages, held.kept / page, copies, held.inserted / page);
  free_ += copies;
  held.inserted = std::max(held.inserted, pages * page);
  const std::int32_t prompt = keys_.whole_pages(sequences_[request].prompt_tokens);
  if (prompt > 0 && prompt < pages) tree_.insert(request, prompt, prompt, none, prompt);
  tree_.unlock(held.locked);
  tree_.lock(end.node);
  held.locked = end.node;
  held.kept = pages * page;
}

bool SglangMemory::load_back(SglangHeld& held) {
  tree_.lock(held.last);
  const RadixTree::HostPin pin = host_->pin(held.last);
  const std::int32_t pages = host_->load_back(held.last);
  free_ -= pages;
  tree_.unlock(held.last);
  host_->unpin(pin);
  return pages > 0;
}

void SglangMemory::release(SglangHeld& held) {
  free_ += (held.paged - held.kept) / page_;
  tree_.unlock(held.locked);
  held.locked = RadixTree::kRoot;
  held.row = false;
  held.slots = held.paged = held.kept = held.prefix = held.end = held.inserted = 0;
  held.committed = held.ahead = held.verifying = 0;
  ++rows_;
}

}  // namespace llmsim
