// What requests look for in storage behind the host cache (SGLang's scheduler.py:
// _prefetch_kvcache, _prefetch_after_device_hit_loss, _process_storage_prefetch_retries).
#include <utility>

#include "scheduler/impl/sglang/sglang.h"

namespace llmsim {

void Sglang::prefetch(RequestId request, std::int32_t stored_end) {
  SglangHeld& held = held_[at(request)];
  held.prefix = held.kept = memory_.match(request, known(request) - 1, held);
  held.filled = known(request);
  const std::int32_t cached = held.prefix + held.on_host;
  held.looked_behind = cached;
  // What lies behind pages that the host lacks is not there, either.
  if (held.last != RadixTree::kRoot && !memory_.tree().on_host(held.last)) return;
  const auto page = static_cast<std::int32_t>(memory_.page_size());
  SglangStorage::Asked asked{request, held.last, cached / page, {}};
  asked.stored_end = stored_end;
  const PageKeys::Of keys = memory_.keys().of(request);
  const std::int32_t end = memory_.keys().whole_pages(known(request) - 1);
  for (std::int32_t i = asked.first; i < end; ++i) asked.keys.push_back(keys[i]);
  memory_.storage()->prefetch(std::move(asked), memory_.host()->now());
}

void Sglang::prefetch_again(RequestId request, std::int32_t stored_end) {
  ++held_[at(request)].retries;
  prefetch(request, stored_end);
}

bool Sglang::has_prefetched(RequestId request) {
  if (!memory_.storage()->ready(request)) return false;
  return !looks_again_for_lost(request);
}

bool Sglang::looks_again_for_lost(RequestId request) {
  SglangHeld& held = held_[at(request)];
  held.prefix = held.kept = memory_.match(request, known(request) - 1, held);
  held.filled = known(request);
  const std::int32_t cached = held.prefix + held.on_host;
  if (held.looked_behind <= 0 || cached >= held.looked_behind) return false;
  if (held.retries >= memory_.storage()->most_retries()) {
    held.looked_behind = cached;
    return false;
  }
  prefetch_again(request, SglangStorage::kUnknown);
  memory_.storage()->leave_out();
  return true;
}

void Sglang::retry_prefetches() {
  const auto attempts = [this](RequestId request) { return held_[at(request)].retries; };
  for (const SglangStorage::Retry& retry : memory_.storage()->retries(waiting_, attempts))
    prefetch_again(retry.request, retry.stored_end);
}

}  // namespace llmsim
