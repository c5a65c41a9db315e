#include "program/attention_cost.h"

#include <algorithm>

namespace llmsim {

namespace {

// Sum of min(k + i, size) over i in (0, q].
std::int64_t window_contexts(std::int64_t q, std::int64_t k, std::int64_t size) {
  const std::int64_t growing =
      std::clamp<std::int64_t>(size - k, 0, q);  // tokens whose context still grows
  return growing * k + growing * (growing + 1) / 2 + (q - growing) * size;
}

}  // namespace

std::int64_t Sight::area(std::int64_t q, std::int64_t k) const {
  if (kind == Kind::kAll) return q * (2 * k + q);
  if (kind == Kind::kWindow) return 2 * window_contexts(q, k, size) - q;
  std::int64_t area = 0;
  k %= size;
  const std::int64_t first = std::min(q, size - k);
  area += first * (2 * k + first);
  q -= first;
  area += q / size * size * size;
  q %= size;
  return area + q * q;
}

Features Sight::features(const Batch& batch) const {
  Features seen = batch.features;
  seen.prefill_area = seen.decode_context = seen.decode_max_context = 0;
  for (const Item& item : batch.items) {
    if (item.decodes()) {
      const std::int64_t visible = context(item.computed_before + item.tokens - 1);
      seen.decode_context += visible;
      seen.decode_max_context = std::max(seen.decode_max_context, visible);
    } else {
      seen.prefill_area += area(item.tokens, item.computed_before);
    }
  }
  return seen;
}

// Decode kernels stream a sequence's KV once for each tile of 64 rows (FlashAttention with packed
// query heads: FA3's PackGQA, FA2's seqlenq_ngroups_swapped). So a sequence that verifies its
// drafts counts as one decode as long as all its queries fit the tiles of one, and as several
// beyond.
AttentionPrice AttentionCost::price_verified(const Batch& batch) const {
  constexpr std::int64_t kTile = 64;
  Features seen = this->seen(batch);
  const std::int64_t alone = ceil_div(queries_per_kv_head_, kTile);
  for (const Item& item : batch.items) {
    if (item.drafts == 0) continue;
    const std::int64_t more = ceil_div(item.tokens * queries_per_kv_head_, kTile * alone) - 1;
    seen.decode_sequences += more;
    seen.decode_context += more * sight_.context(item.computed_before + item.tokens - 1);
  }
  return price(batch, seen);
}

// Several prefills act like one of q tokens whose context gives the same causal area: k = area / 2q
// - q / 2. Where they see less than one prompt of q tokens would, k is negative and the missing
// area is taken off instead.
Cell MixedGridAttention::as_one(std::int64_t q, std::int64_t area, const Place& count,
                                const Place& length) const {
  const std::int64_t q2 = q * q;
  const bool one_prompt_sees_more = area < q2;
  const Place chunk = grid_.axis(0).locate(q);
  const Place context =
      q > 0 && !one_prompt_sees_more ? grid_.axis(1).locate(area - q2, 2 * q) : Place{};
  Cell cell = grid_.cell({chunk, context, count, length});
  if (q > 0 && one_prompt_sees_more) {
    const Ps whole = grid_.at({chunk, Place{}, Place{}, Place{}});
    const Ps unseen =
        round_div(static_cast<int128>(std::max<Ps>(0, whole - shortest())) * (q2 - area), q2);
    cell.ps = std::max<Ps>(0, cell.ps - unseen);
    cell.provenance = std::max(cell.provenance, Provenance::kInterpolated);
  }
  return cell;
}

Ps MixedGridAttention::shortest() const {
  return grid_.at({grid_.axis(0).locate(1), Place{}, Place{}, Place{}});
}

// What prompts looked up apart, sharing the time of the shortest call, take beyond one with their
// tokens and area.
Cell MixedGridAttention::apart(const Batch& batch, const Features& f) const {
  Cell more = as_one(f.prefill_tokens, f.prefill_area, Place{}, Place{});
  const Ps floor = shortest();
  more.ps = floor - more.ps;
  for (const Item& item : batch.items) {
    if (item.decodes()) continue;
    const Cell own =
        as_one(item.tokens, sight().area(item.tokens, item.computed_before), Place{}, Place{});
    more.ps += std::max<Ps>(0, own.ps - floor);
    more.provenance = std::max(more.provenance, own.provenance);
    more.beyond_permille = std::max(more.beyond_permille, own.beyond_permille);
  }
  return more;
}

AttentionPrice MixedGridAttention::price(const Batch& batch, const Features& f) const {
  const Place count = grid_.axis(2).locate(f.decode_sequences);
  const Place length =
      f.decode_sequences > 0 ? grid_.axis(3).locate(f.decode_context, f.decode_sequences) : Place{};
  Cell cell = as_one(f.prefill_tokens, f.prefill_area, count, length);
  cell.ps += skew(f);
  if (prompts_apart_ && f.prefill_sequences > 1) {
    const Cell more = apart(batch, f);
    cell.ps = std::max<Ps>(0, cell.ps + more.ps);
    cell.provenance = std::max({cell.provenance, more.provenance, Provenance::kInterpolated});
    cell.beyond_permille = std::max(cell.beyond_permille, more.beyond_permille);
  }
  AttentionPrice price;
  price.add(cell);
  return price;
}

PromptGrid::Alone PromptGrid::alone(const Item& item, const Sight& sight) const {
  const std::int64_t q = item.tokens, q2 = q * q, area = sight.area(q, item.computed_before);
  const bool one_prompt_sees_more = area < q2;
  const Place tokens = whole_.axis(0).locate(q);
  const Place context = whole_.axis(1).locate(one_prompt_sees_more ? 0 : area - q2, 2 * q);
  Alone found{whole_.cell({tokens, context})};
  if (one_prompt_sees_more) {
    // The missing share of what exceeds the shortest call is taken off.
    Cell& whole = found.cell;
    const Ps floor = whole_.at({whole_.axis(0).locate(1), whole_.axis(1).locate(0)});
    whole.ps -= round_div(static_cast<int128>(std::max<Ps>(0, whole.ps - floor)) * (q2 - area), q2);
    whole.provenance = std::max(whole.provenance, Provenance::kInterpolated);
  }
  if (shared_) found.shared = std::min(found.cell.ps, shared_->at({tokens, context}));
  return found;
}

void SplitGridAttention::add_prefills(AttentionPrice& price, const Batch& batch) const {
  std::array<PromptGrid::Alone, 2> longest;
  for (const Item& item : batch.items) {
    if (item.decodes()) continue;
    const std::size_t kernel = rule_.hold(item, batch.features);
    const PromptGrid::Alone prompt = prompts_[kernel].alone(item, sight());
    price.add(prompt.cell.ps - prompt.shared, prompt.cell);
    if (prompt.shared > longest[kernel].shared) longest[kernel] = prompt;
  }
  for (const PromptGrid::Alone& one : longest) price.add(one.shared, one.cell);
}

AttentionPrice SplitGridAttention::price(const Batch& batch, const Features& f) const {
  AttentionPrice price;
  if (f.prefill_sequences > 0) add_prefills(price, batch);
  price.prompts_ps = price.ps;
  if (f.decode_sequences > 0) {
    Cell cell = decode_.cell({decode_.axis(0).locate(f.decode_sequences),
                              decode_.axis(1).locate(f.decode_context, f.decode_sequences)});
    if (f.prefill_sequences > 0)
      cell.ps = std::max(
          cell.ps, round_div(static_cast<int128>(f.decode_context) * mixed_ps_, int128{1} << 20));
    cell.ps += skew(f);
    price.add(cell);
  }
  return price;
}

}  // namespace llmsim
