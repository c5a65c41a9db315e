#include "kv/tiers/tiers_below.h"

#include <algorithm>

namespace llmsim {

std::int32_t TiersBelow::find(RequestId request, std::int32_t cached) {
  std::int32_t chunk = cached / chunk_tokens_;
  while ((chunk + 1) * chunk_tokens_ < sequences_[request].num_tokens &&
         tiers_.holds(key_of_(request, chunk)))
    ++chunk;
  return std::max(0, chunk * chunk_tokens_ - cached);
}

void TiersBelow::recall(RequestId request, std::int32_t hit, std::int32_t recalled) {
  if (tiers_.write() == TierWrite::kSelective) store(request, 0, hit);
  for (std::int32_t from = hit; from < hit + recalled;) {
    const std::int32_t chunk = from / chunk_tokens_, end = (chunk + 1) * chunk_tokens_;
    tiers_.recall({key_of_(request, chunk), 0, chunk}, end - from);
    from = end;
  }
  const std::int32_t next = (hit + recalled) / chunk_tokens_ + 1;
  if (next * chunk_tokens_ < sequences_[request].num_tokens) tiers_.missed();
}

void TiersBelow::begin_load(RequestId request, std::int32_t hit, std::int32_t recalled) {
  tiers_.open_load(request);
  recall(request, hit, recalled);
}

void TiersBelow::computed(RequestId request, std::int32_t before, std::int32_t after) {
  if (tiers_.write() == TierWrite::kThrough) store(request, before, after);
}

void TiersBelow::store(RequestId request, std::int32_t before, std::int32_t after) {
  for (std::int32_t chunk = before / chunk_tokens_; (chunk + 1) * chunk_tokens_ <= after; ++chunk)
    tiers_.store(key_of_(request, chunk), chunk, /*gate=*/false);
}

}  // namespace llmsim
