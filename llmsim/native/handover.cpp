#include "handover.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace llmsim {

Handovers::Handovers(HandoverConfig config, Fabric& fabric, std::span<const std::unique_ptr<Group>> groups,
                     std::unique_ptr<Router> router, SequenceTable& sequences, RequestLog& log, RequestLog& prompts,
                     std::function<void(std::int32_t)> wake)
    : config_(std::move(config)),
      fabric_(fabric),
      groups_(groups),
      router_(std::move(router)),
      sequences_(sequences),
      log_(log),
      prompts_(prompts),
      wake_(std::move(wake)),
      handovers_(sequences.size()) {
  if (config_.layerwise && !config_.push) throw std::invalid_argument("layer by layer, KV can only be pushed");
  if (config_.places.size() != groups_.size()) throw std::invalid_argument("places and groups differ in number");
  tables_.assign(groups_.size(), std::vector<std::int32_t>(groups_.size(), -1));
  for (const KvRoute& route : config_.routes) {
    if (route.table < 0 || static_cast<std::size_t>(route.table) >= config_.tables.size())
      throw std::invalid_argument("a route names an unknown table");
    tables_.at(static_cast<std::size_t>(route.prefill_group)).at(static_cast<std::size_t>(route.decode_group)) =
        route.table;
  }
  for (const auto& group : groups_) {
    group->hand_over_by(this);
    if (group->config().role != Role::kDecode) continue;
    const auto model = static_cast<std::size_t>(group->config().model);
    if (decoders_.size() <= model) decoders_.resize(model + 1);
    decoders_[model].push_back(group.get());
  }
}

const std::vector<KvShare>& Handovers::shares_of(const Handover& handover) const {
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
    sequences_[request].status = static_cast<std::uint8_t>(Status::kRejected);
    prefill.reject(request);
    return false;
  }
  handover.prefill_group = prefill.config().index;
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
  sequences_[request].remote_kv = true;
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
    prompts_.cancelled[request] = now;
    sequences_[request].status = static_cast<std::uint8_t>(Status::kCancelled);
    release(request, handover.prefill_group, now);
    return;
  }
  if (!config_.layerwise && !handover.gave_up) send_whole(request, now);
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
    if (handover.decode_group < 0) sequences_[request].status = static_cast<std::uint8_t>(Status::kCancelled);
  } else {
    handover.decode_dropped = true;
    // Nobody will read what the prefill group keeps, so it is told, as by vLLM's NIXL connector.
    if (!config_.push && handover.reserved == kNever) send_message(request, Kind::kForget, now);
  }
  end_if_done(request, now);
}

Ps Handovers::cancelled(RequestId request) const {
  return std::max(log_.cancelled[request], prompts_.cancelled[request]);
}

void Handovers::send_message(RequestId request, Kind kind, Ps now) {
  Handover& handover = handovers_[static_cast<std::size_t>(request)];
  ++handover.in_flight;
  fabric_.transfer(place(handover.decode_group, 0), place(handover.prefill_group, 0), 0, now, *this,
                   token(request, kind), Purpose::kKvHandover);
}

void Handovers::reserved(RequestId request, std::int32_t cached, Ps now) {
  Handover& handover = handovers_[static_cast<std::size_t>(request)];
  handover.reserved = now;
  handover.cached = handover.sent = cached;
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
      send_whole(request, now);
    } else if (config_.push && !handover.gave_up) {
      Group& prefill = *groups_[static_cast<std::size_t>(handover.prefill_group)];
      handover.at_prefill = true;
      prefill.receive(request, std::max(sequences_[request].arrival, now - prefill.latency_of(request)));
      wake_(handover.prefill_group);
    }
  }
  end_if_done(request, now);
}

void Handovers::send(RequestId request, const KvShare& share, std::int64_t bytes, Ps at, Ps now) {
  Handover& handover = handovers_[static_cast<std::size_t>(request)];
  ++handover.in_flight;
  handover.bytes += bytes;
  fabric_.transfer_at(place(handover.prefill_group, share.from_rank), place(handover.decode_group, share.to_rank),
                      bytes, at, now, *this, token(request, Kind::kKv), Purpose::kKvHandover);
}

void Handovers::send_whole(RequestId request, Ps now) {
  Handover& handover = handovers_[static_cast<std::size_t>(request)];
  const std::int64_t tokens = sequences_[request].prompt_tokens - handover.sent;
  handover.sent = sequences_[request].prompt_tokens;
  for (const KvShare& share : shares_of(handover))
    send(request, share, tokens * share.bytes_per_token_and_layer * (share.end_layer - share.first_layer), now, now);
}

// Each layer of the tokens that become known in this step begins to move when its attention has run. What the prefill
// group found in its own cache goes with the first step.
void Handovers::launched(const Group& prefill, const Batch& batch, const StepTimes& times, Ps now) {
  if (!config_.layerwise) return;
  layer_ends_.clear();
  for (const Item& item : batch.items) {
    Handover& handover = handovers_[static_cast<std::size_t>(item.request)];
    if (handover.gave_up) continue;
    const std::int32_t known = std::min(item.computed_before + item.tokens, sequences_[item.request].prompt_tokens);
    const std::int32_t tokens = known - handover.sent;
    if (tokens <= 0) continue;  // the decode group had them, or they went before a preemption
    handover.sent = known;
    if (layer_ends_.empty() && prefill.wave() == nullptr && prefill.evaluator().follows_program())
      prefill.evaluator().program().attention_ends(batch, prefill.evaluator().usage().steps, layer_ends_);
    send_layers(item.request, tokens, times, now);
  }
}

void Handovers::send_layers(RequestId request, std::int32_t tokens, const StepTimes& times, Ps now) {
  const Handover& handover = handovers_[static_cast<std::size_t>(request)];
  for (const KvShare& share : shares_of(handover)) {
    const std::int64_t bytes = tokens * share.bytes_per_token_and_layer;
    if (layer_ends_.empty()) send(request, share, bytes * (share.end_layer - share.first_layer), times.end, now);
  }
  for (std::size_t layer = 0; layer < layer_ends_.size(); ++layer) {
    const auto number = static_cast<std::int32_t>(layer);
    for (const KvShare& share : shares_of(handover)) {
      if (number < share.first_layer || number >= share.end_layer) continue;
      send(request, share, tokens * share.bytes_per_token_and_layer, times.start + layer_ends_[layer], now);
    }
  }
}

// The decode group hears of it when the prefill has ended, too, though the last layer may be there before. A client
// that has gone may have left KV that will never be sent: then the decode group has to have dropped the request.
void Handovers::end_if_done(RequestId request, Ps now) {
  Handover& handover = handovers_[static_cast<std::size_t>(request)];
  if (handover.closed || handover.in_flight > 0 || handover.reserved == kNever) return;
  const bool prefilled = handover.prefilled != kNever;
  const bool prefill_out = prefilled || handover.prefill_dropped || (handover.gave_up && !handover.at_prefill);
  const bool complete = prefilled && handover.sent >= sequences_[request].prompt_tokens;
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
