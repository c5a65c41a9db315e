// The pools of KV below a group as what its KV cache finds below.
#pragma once

#include <functional>
#include <utility>

#include "kv/kv_below.h"
#include "kv/tiers/kv_tiers.h"
#include "request/sequence_table.h"

namespace llmsim {

class TiersBelow final : public KvBelow {
 public:
  // The key of a chunk of a request's tokens.
  using KeyOf = std::function<Key(RequestId request, std::int32_t chunk)>;

  TiersBelow(GroupTiers& tiers, const SequenceTable& sequences, KeyOf key_of)
      : tiers_(tiers),
        sequences_(sequences),
        key_of_(std::move(key_of)),
        chunk_tokens_(tiers.chunk_tokens()) {}

  bool parks() const override { return tiers_.parks(); }
  std::int32_t chunk_tokens() const override { return chunk_tokens_; }
  // At most up to the last but one token.
  std::int32_t find(RequestId request, std::int32_t cached) override;
  void recall(RequestId request, std::int32_t hit, std::int32_t recalled) override;
  void begin_load(RequestId request, std::int32_t hit, std::int32_t recalled) override;
  void end_load(RequestId, std::int32_t, std::int32_t) override { tiers_.close_load(); }
  void computed(RequestId request, std::int32_t before, std::int32_t after) override;

 private:
  void store(RequestId request, std::int32_t before, std::int32_t after);

  GroupTiers& tiers_;
  const SequenceTable& sequences_;
  KeyOf key_of_;
  std::int32_t chunk_tokens_;
};

}  // namespace llmsim
