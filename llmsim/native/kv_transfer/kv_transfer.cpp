#include "kv_transfer/kv_transfer.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace llmsim {

Handovers::Handovers(HandoverConfig config, Fabric& fabric, std::span<const std::unique_ptr<Group>> groups,
                     std::unique_ptr<Router> router, Side decode, Side prefill, std::function<void(std::int32_t)> wake)
    : config_(std::move(config)),
      fabric_(fabric),
      groups_(groups),
      router_(std::move(router)),
      decode_(decode),
      prefill_(prefill),
      wake_(std::move(wake)),
      handovers_(decode.sequences.size()) {
  if (config_.layerwise && !config_.push) throw std::invalid_argument("layer by layer, KV can only be pushed");
  if (config_.places.size() != groups_.size()) throw std::invalid_argument("places and groups differ in number");
  tables_.assign(groups_.size(), std::vector<std::int32_t>(groups_.size(), -1));
  all_but_last_.assign(groups_.size(), 0);
  for (const KvRoute& route : config_.routes) {
    if (static_cast<std::size_t>(route.table) >= config_.tables.size())  // a negative one becomes very large
      throw std::invalid_argument("a route names an unknown table");
    tables_.at(static_cast<std::size_t>(route.prefill_group)).at(static_cast<std::size_t>(route.decode_group)) =
        route.table;
    all_but_last_[static_cast<std::size_t>(route.prefill_group)] =
        config_.tables[static_cast<std::size_t>(route.table)].all_but_last;
  }
  for (const auto& group : groups_) {
    group->observe_kv_transfers(this);
    if (group->config().role != Role::kDecode) continue;
    const auto model = static_cast<std::size_t>(group->config().model);
    if (decoders_.size() <= model) decoders_.resize(model + 1);
    decoders_[model].push_back(group.get());
  }
}

const KvTable& Handovers::table_of(const Handover& handover) const {
  const std::int32_t table =
      tables_[static_cast<std::size_t>(handover.prefill_group)][static_cast<std::size_t>(handover.decode_group)];
  if (table < 0) {
    throw std::invalid_argument("no KV route leads from group " + std::to_string(handover.prefill_group) +
                                " to group " + std::to_string(handover.decode_group));
  }
  return config_.tables[static_cast<std::size_t>(table)];
}

bool Handovers::arrive(RequestId request, Group& prefill, Ps now) {
  Handover& handover = handovers_[static_cast<std::size_t>(request)];
  const auto model = static_cast<std::size_t>(prefill.config().model);
  const auto can_run = [request](const Group* group) { return group->can_ever_run(request); };
  const bool runs = model < decoders_.size() && std::any_of(decoders_[model].begin(), decoders_[model].end(), can_run);
  if (!runs || !prefill.can_ever_run(request)) {
    decode_.sequences[request].status = static_cast<std::uint8_t>(Status::kRejected);
    prefill.reject(request);
    return false;
  }
  handover.prefill_group = prefill.config().index;
  Sequence& prompt = prefill_.sequences[request];
  if (all_but_last_[static_cast<std::size_t>(handover.prefill_group)] != 0 && prompt.prompt_tokens > 1) {
    --prompt.prompt_tokens;
    --prompt.num_tokens;
  }
  handover.needed = prompt.prompt_tokens;
  if (!config_.push) {
    handover.at_prefill = true;
    prefill.receive(request, now);
    wake_(prefill.config().index);
    return true;
  }
  choose_decoder(request, now);
  return true;
}

// Among the decode groups that can ever run it; `arrive` has made sure that there is one.
bool Handovers::choose_decoder(RequestId request, Ps now) {
  Handover& handover = handovers_[static_cast<std::size_t>(request)];
  const Group& prefill = *groups_[static_cast<std::size_t>(handover.prefill_group)];
  candidates_.clear();
  for (Group* group : decoders_[static_cast<std::size_t>(prefill.config().model)])
    if (group->can_ever_run(request)) candidates_.push_back(group);
  Group* group = candidates_[candidates_.size() == 1 ? 0 : router_->route(request, now, candidates_)];
  handover.decode_group = group->config().index;
  decode_.sequences[request].remote_kv = true;
  group->receive(request, now);
  wake_(handover.decode_group);
  return true;
}

void Handovers::prefilled(RequestId request, Ps now) {
  Handover& handover = handovers_[static_cast<std::size_t>(request)];
  handover.prefilled = now;
  if (!config_.push) {
    if (!handover.gave_up) {
      choose_decoder(request, now);
      return;
    }
    // Nobody will read it: the engine forgets it before it hears that the client has gone.
    handover.closed = true;
    prefill_.log.cancelled[request] = now;
    decode_.sequences[request].status = static_cast<std::uint8_t>(Status::kCancelled);
    release(request, handover.prefill_group, now);
    return;
  }
  if (!config_.layerwise && !handover.gave_up) send_all(request, handover.needed, now, now);
  end_if_done(request, now);
}

void Handovers::give_up(RequestId request, Ps now) {
  Handover& handover = handovers_[static_cast<std::size_t>(request)];
  handover.gave_up = true;
  const bool prefilling = handover.at_prefill && handover.prefilled == kNever;
  for (const std::int32_t index : {prefilling ? handover.prefill_group : -1, handover.decode_group}) {
    if (index < 0) continue;
    Group& group = *groups_[static_cast<std::size_t>(index)];
    group.abort(request, now);
    wake_(index);
  }
}

void Handovers::dropped(RequestId request, std::int32_t group, Ps now) {
  Handover& handover = handovers_[static_cast<std::size_t>(request)];
  if (handover.prefill_group < 0) return;  // of a group that does everything itself
  if (group == handover.prefill_group) {
    handover.prefill_dropped = true;
    if (handover.decode_group < 0) decode_.sequences[request].status = static_cast<std::uint8_t>(Status::kCancelled);
  } else {
    handover.decode_dropped = true;
    // Nobody will read what the prefill group keeps, so it is told, as by vLLM's NIXL connector.
    if (!config_.push && handover.reserved == kNever) send_message(request, Kind::kForget, now);
  }
  end_if_done(request, now);
}

Ps Handovers::cancelled(RequestId request) const {
  return std::max(decode_.log.cancelled[request], prefill_.log.cancelled[request]);
}

void Handovers::send_message(RequestId request, Kind kind, Ps now) {
  Handover& handover = handovers_[static_cast<std::size_t>(request)];
  ++handover.in_flight;
  const PlaceId from = place(handover.decode_group, 0), to = place(handover.prefill_group, 0);
  fabric_.transfer_at(from, to, 0, now + fabric_.way_out(from, to), now, *this, token(request, kind),
                      Purpose::kKvHandover);
}

void Handovers::reserved(RequestId request, std::int32_t cached, Ps now) {
  Handover& handover = handovers_[static_cast<std::size_t>(request)];
  handover.reserved = now;
  handover.cached = cached;
  handover.sent = std::min(cached, handover.needed - 1);  // the state behind the last token moves in any case
  send_message(request, Kind::kTold, now);
}

void Handovers::landed(TransferId, std::uint64_t token, Ps now) {
  const auto request = static_cast<RequestId>(token & 0xffffffffU);
  const auto kind = static_cast<Kind>(token >> 32);
  Handover& handover = handovers_[static_cast<std::size_t>(request)];
  --handover.in_flight;
  if (kind == Kind::kForget) {
    handover.closed = true;
    release(request, handover.prefill_group, now);
    return;
  }
  if (kind == Kind::kKv) handover.landed = now;
  if (kind == Kind::kTold) {
    handover.told = now;
    if (!config_.push && !handover.decode_dropped) {
      send_all(request, handover.needed, now, now);
    } else if (config_.push && !handover.gave_up) {
      Group& prefill = *groups_[static_cast<std::size_t>(handover.prefill_group)];
      handover.at_prefill = true;
      prefill.receive(request, std::max(decode_.sequences[request].arrival, now - prefill.latency_of(request)));
      wake_(handover.prefill_group);
    }
  }
  end_if_done(request, now);
}

void Handovers::send(RequestId request, const KvShare& share, std::int64_t bytes, Ps at, Ps now) {
  Handover& handover = handovers_[static_cast<std::size_t>(request)];
  ++handover.in_flight;
  handover.bytes += bytes;
  const PlaceId from = place(handover.prefill_group, share.from_rank);
  const PlaceId to = place(handover.decode_group, share.to_rank);
  fabric_.transfer_at(from, to, bytes, at + fabric_.way_out(from, to), now, *this, token(request, Kind::kKv),
                      Purpose::kKvHandover);
}

// Layers with a window keep its blocks and one more, as it need not begin with a block (vLLM: blocks_per_sw).
std::int64_t Handovers::bytes_of(const KvTable& table, const KvPart& part, const Handover& handover, std::int32_t from,
                                 std::int32_t to) const {
  std::int32_t first = from;
  if (part.tail_blocks > 0) {
    const auto blocks = static_cast<std::int32_t>(ceil_div(handover.needed, table.block_size));
    first = std::max(from, (blocks - part.tail_blocks) * table.block_size);
  }
  const std::int64_t state = to == handover.needed ? part.state_bytes : 0;
  return std::max(0, to - first) * part.bytes_per_token + state;
}

std::int64_t Handovers::due_bytes(RequestId request) const {
  const Handover& handover = of(request);
  if (handover.reserved == kNever) return 0;
  const KvTable& table = table_of(handover);
  const std::int32_t from = std::min(handover.cached, handover.needed - 1);
  std::int64_t bytes = 0;
  for (const KvShare& share : table.shares)
    for (const KvPart& part : share.parts)
      bytes += bytes_of(table, part, handover, from, handover.needed) * static_cast<std::int64_t>(part.layers.size());
  return bytes;
}

void Handovers::send_all(RequestId request, std::int32_t to, Ps at, Ps now) {
  Handover& handover = handovers_[static_cast<std::size_t>(request)];
  const KvTable& table = table_of(handover);
  for (const KvShare& share : table.shares) {
    std::int64_t bytes = 0;
    for (const KvPart& part : share.parts)
      bytes += bytes_of(table, part, handover, handover.sent, to) * static_cast<std::int64_t>(part.layers.size());
    send(request, share, bytes, at, now);
  }
  handover.sent = std::max(handover.sent, to);
}

// Each layer of the tokens that become known in this step begins to move when its attention has run. What the prefill
// group found in its own cache goes with the first step.
void Handovers::launched(const Group& prefill, const Batch& batch, const StepTimes& times, Ps now) {
  if (!config_.layerwise) return;
  layer_ends_.clear();
  for (const Item& item : batch.items) {
    Handover& handover = handovers_[static_cast<std::size_t>(item.request)];
    if (handover.gave_up) continue;
    const std::int32_t known = std::min(item.computed_before + item.tokens, handover.needed);
    if (known <= handover.sent) continue;  // the decode group had them, or they went before a preemption
    if (layer_ends_.empty() && prefill.wave() == nullptr && prefill.evaluator().follows_program())
      prefill.evaluator().program().attention_ends(batch, prefill.evaluator().usage().steps, layer_ends_,
                                                   table_of(handover).even_layers);
    send_layers(item.request, known, times, now);
  }
}

void Handovers::send_layers(RequestId request, std::int32_t to, const StepTimes& times, Ps now) {
  Handover& handover = handovers_[static_cast<std::size_t>(request)];
  if (layer_ends_.empty()) {
    send_all(request, to, times.end, now);
    return;
  }
  // Layers behind the program's are a drafter's, which runs at the end of the step.
  const auto number = static_cast<std::int32_t>(layer_ends_.size());
  for (const KvShare& share : table_of(handover).shares) {
    for (const KvPart& part : share.parts) {
      const std::int64_t bytes = bytes_of(table_of(handover), part, handover, handover.sent, to);
      for (const std::int32_t layer : part.layers) {
        const Ps at = layer < number ? times.start + layer_ends_[static_cast<std::size_t>(layer)] : times.end;
        if (bytes > 0) send(request, share, bytes, at, now);
      }
    }
  }
  handover.sent = to;
}

// The decode group hears of it when the prefill has ended, too, though the last layer may be there before. A client
// that has gone may have left KV that will never be sent: then the decode group has to have dropped the request.
void Handovers::end_if_done(RequestId request, Ps now) {
  Handover& handover = handovers_[static_cast<std::size_t>(request)];
  if (handover.closed || handover.in_flight > 0 || handover.reserved == kNever) return;
  const bool prefilled = handover.prefilled != kNever;
  const bool prefill_out = prefilled || handover.prefill_dropped || (handover.gave_up && !handover.at_prefill);
  const bool complete = prefilled && handover.sent >= handover.needed;
  if (!prefill_out || (!complete && !handover.decode_dropped)) return;
  handover.closed = true;
  if (prefilled) release(request, handover.prefill_group, now);
  release(request, handover.decode_group, now);
}

void Handovers::release(RequestId request, std::int32_t group, Ps now) {
  groups_[static_cast<std::size_t>(group)]->transferred(request, now);
  wake_(group);
}

}  // namespace llmsim
