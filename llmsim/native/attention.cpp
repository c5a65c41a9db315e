#include "attention.h"

#include <algorithm>

namespace llmsim {

AttentionPrice MixedGridAttention::price(const Batch& batch) const {
  const Features& f = batch.features;
  const std::int64_t q = f.prefill_tokens, q2 = q * q;
  // Several prefills act like one of q tokens whose context gives the same causal area: k = area / 2q - q / 2. Where
  // they see less than one prompt of q tokens would, k is negative and the missing area is taken off instead.
  const bool one_prompt_sees_more = f.prefill_area < q2;
  const Place chunk = grid_.axis(0).locate(q);
  const Place context = q > 0 && !one_prompt_sees_more ? grid_.axis(1).locate(f.prefill_area - q2, 2 * q) : Place{};
  const Place count = grid_.axis(2).locate(f.decode_sequences);
  const Place length = f.decode_sequences > 0 ? grid_.axis(3).locate(f.decode_context, f.decode_sequences) : Place{};
  AttentionPrice price{grid_.at({chunk, context, count, length}) + skew(f),
                       chunk.outside || context.outside || count.outside || length.outside};
  if (q > 0 && one_prompt_sees_more) {
    const Ps whole = grid_.at({chunk, Place{}, Place{}, Place{}});
    const Ps floor = grid_.at({grid_.axis(0).locate(1), Place{}, Place{}, Place{}});
    const Ps unseen = round_div(static_cast<int128>(std::max<Ps>(0, whole - floor)) * (q2 - f.prefill_area), q2);
    price.ps = std::max<Ps>(0, price.ps - unseen);
  }
  return price;
}

AttentionPrice SplitGridAttention::price(const Batch& batch) const {
  const Features& f = batch.features;
  AttentionPrice price;
  if (f.prefill_sequences > 0) {
    for (const Item& item : batch.items) {
      if (item.tokens == 1) continue;
      const Place q = prefill_.axis(0).locate(item.tokens), k = prefill_.axis(1).locate(item.computed_before);
      price.ps += prefill_.at({q, k});
      price.extrapolated |= q.outside || k.outside;
    }
  }
  if (f.decode_sequences > 0) {
    const Place n = decode_.axis(0).locate(f.decode_sequences);
    const Place length = decode_.axis(1).locate(f.decode_context, f.decode_sequences);
    Ps decode = decode_.at({n, length});
    if (f.prefill_sequences > 0)
      decode = std::max(decode, round_div(static_cast<int128>(f.decode_context) * mixed_ps_, int128{1} << 20));
    price.ps += decode + skew(f);
    price.extrapolated |= n.outside || length.outside;
  }
  return price;
}

}  // namespace llmsim
