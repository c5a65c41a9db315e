#include "kv_transfer/kv_transfer.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace llmsim {

KvTransfers::KvTransfers(KvTransferConfig config, SharedNetwork& network,
                         const std::vector<std::unique_ptr<Group>>& groups,
                         std::unique_ptr<Router> router, Side decode, Side prefill)
    : config_(std::move(config)),
      network_(network),
      groups_(groups),
      router_(std::move(router)),
      decode_(decode),
      prefill_(prefill),
      kv_transfers_(decode.sequences.size()) {
  if ((config_.layerwise || config_.chunked) && !config_.push)
    throw std::invalid_argument("in pieces, KV can only be pushed");
  if (config_.places.size() != groups_.size())
    throw std::invalid_argument("places and groups differ in number");
  tables_.assign(groups_.size(), std::vector<std::int32_t>(groups_.size(), -1));
  prefill_all_but_last_token_.assign(groups_.size(), 0);
  add_routes(config_.routes);
  for (const auto& group : groups_) connect(*group);
}

void KvTransfers::add_routes(std::span<const KvRoute> routes) {
  for (const KvRoute& route : routes) {
    const auto table = static_cast<std::size_t>(route.table);  // a negative one becomes very large
    if (table >= config_.tables.size())
      throw std::invalid_argument("a route names an unknown table");
    tables_.at(at(route.prefill_group)).at(at(route.decode_group)) = route.table;
    prefill_all_but_last_token_[at(route.prefill_group)] =
        config_.tables[table].prefill_all_but_last_token;
  }
}

void KvTransfers::connect(Group& group) {
  departing_.resize(std::max(departing_.size(), at(group.config().index) + 1));
  hears_layers_.resize(departing_.size(), 0);
  hears_layers_[at(group.config().index)] = hears_layers(group);
  if (group.config().role != Role::kBoth) group.observe(this);
  if (group.config().role != Role::kDecode) return;
  const std::size_t model = at(group.config().model);
  if (decoders_.size() <= model) decoders_.resize(model + 1);
  decoders_[model].push_back(&group);
}

void KvTransfers::add_group(Group& group, std::vector<NetworkNodeId> places) {
  config_.places.push_back(std::move(places));
  for (std::vector<std::int32_t>& row : tables_) row.push_back(-1);
  tables_.emplace_back(tables_.size() + 1, -1);
  prefill_all_but_last_token_.push_back(0);
  connect(group);
}

std::int32_t KvTransfers::add_tables(std::span<const KvTable> tables) {
  const auto first = static_cast<std::int32_t>(config_.tables.size());
  config_.tables.insert(config_.tables.end(), tables.begin(), tables.end());
  return first;
}

// Groups that follow their program need no report: its tables say when each layer ends.
bool KvTransfers::hears_layers(Group& prefill) const {
  return sends_layers(prefill) && !prefill.follows_program() && prefill.report_layers();
}

void KvTransfers::remove_candidate(const Group& group) {
  if (group.config().role != Role::kDecode) return;
  std::erase(decoders_[at(group.config().model)], &group);
  leaving_.push_back(groups_[at(group.config().index)].get());
}

const KvTable& KvTransfers::table_of(const KvTransfer& kv_transfer) const {
  const std::int32_t table = tables_[static_cast<std::size_t>(kv_transfer.prefill_group)]
                                    [static_cast<std::size_t>(kv_transfer.decode_group)];
  if (table < 0) {
    throw std::invalid_argument("no KV route leads from group " +
                                std::to_string(kv_transfer.prefill_group) + " to group " +
                                std::to_string(kv_transfer.decode_group));
  }
  return config_.tables[static_cast<std::size_t>(table)];
}

bool KvTransfers::arrive(RequestId request, Group& prefill, Ps now) {
  KvTransfer& kv_transfer = kv_transfers_[static_cast<std::size_t>(request)];
  const auto model = static_cast<std::size_t>(prefill.config().model);
  const auto can_run = [request](const Group* group) { return group->can_ever_run(request); };
  const bool runs = model < decoders_.size() &&
                    std::any_of(decoders_[model].begin(), decoders_[model].end(), can_run);
  if (!runs || !prefill.can_ever_run(request)) {
    decode_.sequences[request].status = static_cast<std::uint8_t>(Status::kRejected);
    prefill.reject(request);
    return false;
  }
  Sequence& answer = decode_.sequences[request];
  if (answer.kv_brought > 0 && answer.kv_brought == answer.num_tokens - 1) {
    kv_transfer.brought = true;
    choose_decoder(request, prefill.config().model, now);
    return true;
  }
  kv_transfer.prefill_group = prefill.config().index;
  Sequence& prompt = prefill_.sequences[request];
  prompt.arrival = answer.arrival;
  prompt.kv_brought = std::exchange(answer.kv_brought, 0);
  if (prefill_all_but_last_token_[static_cast<std::size_t>(kv_transfer.prefill_group)] != 0 &&
      prompt.prompt_tokens > 1) {
    --prompt.prompt_tokens;
    --prompt.num_tokens;
  }
  kv_transfer.needed = prompt.prompt_tokens;
  answer.remote_kv = true;
  if (config_.push) {
    prefill.promise(1);
    choose_decoder(request, prefill.config().model, now);
    return true;
  }
  kv_transfer.at_prefill = true;
  prefill.receive(request, now);
  return true;
}

void KvTransfers::find_candidates(RequestId request, std::span<Group* const> groups) {
  for (Group* group : groups)
    if (group->can_ever_run(request)) candidates_.push_back(group);
}

// Among the decode groups that can ever run it; `arrive` has made sure that there is one, which may
// have been removed since.
void KvTransfers::choose_decoder(RequestId request, std::int32_t model, Ps now) {
  KvTransfer& kv_transfer = kv_transfers_[static_cast<std::size_t>(request)];
  candidates_.clear();
  find_candidates(request, decoders_[at(model)]);
  if (candidates_.empty()) {
    std::vector<Group*> left;
    std::ranges::copy_if(leaving_, std::back_inserter(left),
                         [model](const Group* group) { return group->config().model == model; });
    find_candidates(request, left);
  }
  Group& first = *candidates_.front();
  if (candidates_.size() > 1 && reads_first() && kv_transfer.read == kNever) {
    kv_transfer.read = now + first.latency_of(request);
    return reader_.read(request, kv_transfer.read);
  }
  if (kv_transfer.read != kNever) first.sees(request, now);
  Group* group =
      candidates_.size() == 1 ? &first : candidates_[router_->route(request, now, candidates_)];
  kv_transfer.decode_group = group->config().index;
  group->receive(request, now);
  group->wake_if_idle(now);
}

// A request that was displaced meanwhile is read anew.
void KvTransfers::has_read(RequestId request, Ps now) {
  const KvTransfer& kv_transfer = of(request);
  if (kv_transfer.read != now || kv_transfer.decode_group >= 0) return;
  choose_decoder(request, groups_[at(kv_transfer.prefill_group)]->config().model, now);
  if (kv_transfer.gave_up) groups_[at(kv_transfer.decode_group)]->abort_read(request, now);
}

void KvTransfers::forget_prompt(RequestId request, Ps now) {
  KvTransfer& kv_transfer = kv_transfers_[at(request)];
  kv_transfer.closed = true;
  prefill_.log.cancelled[request] = now;
  decode_.sequences[request].status = static_cast<std::uint8_t>(Status::kCancelled);
  release(request, kv_transfer.prefill_group, now, now);
}

void KvTransfers::abandon(Ps now) {
  for (RequestId request = 0; at(request) < kv_transfers_.size(); ++request) {
    KvTransfer& kv_transfer = kv_transfers_[at(request)];
    if (kv_transfer.prefill_group < 0 || kv_transfer.closed) continue;
    kv_transfer.closed = true;
    if (kv_transfer.prefilled != kNever) release_prefill(request, now);
    if (kv_transfer.reserved != kNever) release(request, kv_transfer.decode_group, now, now);
  }
  leaving_.clear();
}

void KvTransfers::displaced(const std::vector<RequestId>& requests, bool keep) {
  const std::vector<RequestId> none;
  prefill_.log.forget(keep ? none : requests);
  for (const RequestId request : requests) {
    KvTransfer& kv_transfer = kv_transfers_[at(request)];
    if (keep && kv_transfer.prefill_group >= 0) earlier_.push_back({request, kv_transfer});
    if (kv_transfer.promised()) groups_[at(kv_transfer.prefill_group)]->promise(-1);
    if (kv_transfer.prefilled != kNever)
      groups_[at(kv_transfer.prefill_group)]->writes_off_prompt(prefill_.sequences[request]);
    kv_transfer = {};
    Sequence& prompt = prefill_.sequences[request];
    prompt = prompt.renewed();
    prompt.prompt_tokens = prompt.num_tokens = decode_.sequences[request].num_tokens;
    if (keep) prefill_.log.will_resume(request);
  }
  if (keep) return;
  std::vector<bool> forgotten(kv_transfers_.size(), false);
  for (const RequestId request : requests) forgotten[at(request)] = true;
  std::erase_if(earlier_, [&](const Earlier& one) { return forgotten[at(one.request)]; });
}

// What has been computed stays with the prefill group until all of it is with the other one.
std::pair<std::int32_t, std::int32_t> KvTransfers::holder(RequestId request) const {
  const KvTransfer& kv_transfer = of(request);
  const Sequence& answer = decode_.sequences[request];
  if (kv_transfer.brought) return {kv_transfer.decode_group, answer.num_computed};
  if (kv_transfer.prefilled == kNever)
    return {kv_transfer.prefill_group, prefill_.sequences[request].num_computed};
  if (kv_transfer.sent < kv_transfer.needed) return {kv_transfer.prefill_group, kv_transfer.needed};
  const bool parked = answer.status == static_cast<std::uint8_t>(Status::kParked);
  return {kv_transfer.decode_group, parked ? kv_transfer.needed : answer.num_computed};
}

void KvTransfers::prefilled(RequestId request, Ps now) {
  KvTransfer& kv_transfer = kv_transfers_[static_cast<std::size_t>(request)];
  kv_transfer.prefilled = now;
  kv_transfer.prefill_step = prefill_.log.run_first[request];
  if (!config_.push) {
    if (!kv_transfer.gave_up)
      return choose_decoder(request, groups_[at(kv_transfer.prefill_group)]->config().model, now);
    return forget_prompt(request, now);
  }
  if (kv_transfer.withdrawn) {
    kv_transfer.prefill_released = true;
    return groups_[at(kv_transfer.prefill_group)]->sends_nothing(request, now);
  }
  if (!config_.layerwise && !kv_transfer.gave_up && !holding_)
    send_all(request, kv_transfer.needed, now, now);
  end_if_done(request, now);
}

// SGLang sends whole pages, and what is left of them with the next chunk.
void KvTransfers::computed(const Item& item, Ps now) {
  KvTransfer& kv_transfer = kv_transfers_[at(item.request)];
  if (!config_.chunked || kv_transfer.brought || kv_transfer.prefill_dropped || holding_) return;
  const std::int32_t known = makes_known(item), page = table_of(kv_transfer).block_size;
  const std::int32_t to = known / page * page;
  if (to > kv_transfer.sent && to < kv_transfer.needed) send_all(item.request, to, now, now);
}

// Each engine goes on as before until it hears of it.
void KvTransfers::tell_both(RequestId request, Ps now) {
  const KvTransfer& kv_transfer = of(request);
  for (const std::int32_t index : {kv_transfer.prefill_group, kv_transfer.decode_group}) {
    if (index < 0) continue;
    groups_[at(index)]->abort(request, now);
    groups_[at(index)]->wake_if_idle(now);
  }
}

// A prompt that its engine has still to send is not sent to the end, and its memory is free with
// the end of the pass.
void KvTransfers::dropped_by_prefill(RequestId request, Ps now) {
  KvTransfer& kv_transfer = kv_transfers_[at(request)];
  if (kv_transfer.promised()) groups_[at(kv_transfer.prefill_group)]->promise(-1);
  kv_transfer.prefill_dropped = true;
  if (kv_transfer.prefilled != kNever) release_prefill(request, now);
}

void KvTransfers::release_prefill(RequestId request, Ps now) {
  KvTransfer& kv_transfer = kv_transfers_[at(request)];
  if (std::exchange(kv_transfer.prefill_released, true)) return;
  release(request, kv_transfer.prefill_group, now, now);
}

// What is on its way arrives, and nothing else leaves.
void KvTransfers::withdrawn(RequestId request, Ps now) {
  KvTransfer& kv_transfer = kv_transfers_[at(request)];
  kv_transfer.withdrawn = true;
  if (kv_transfer.prefilled != kNever) release_prefill(request, now);
  drain(request, now);
}

void KvTransfers::drain(RequestId request, Ps now) {
  const KvTransfer& kv_transfer = of(request);
  if (kv_transfer.in_flight == 0 && !kv_transfer.closed) send_message(request, Kind::kDrained, now);
}

void KvTransfers::drained(RequestId request, Ps now) {
  KvTransfer& kv_transfer = kv_transfers_[at(request)];
  if (std::exchange(kv_transfer.closed, true)) return;
  release(request, kv_transfer.decode_group, now, now);
}

void KvTransfers::give_up(RequestId request, Ps now) {
  KvTransfer& kv_transfer = kv_transfers_[static_cast<std::size_t>(request)];
  if (drains(kv_transfer)) return tell_both(request, now);
  if (kv_transfer.promised()) groups_[at(kv_transfer.prefill_group)]->promise(-1);
  kv_transfer.gave_up = true;
  const bool prefilling = kv_transfer.at_prefill && kv_transfer.prefilled == kNever;
  for (const std::int32_t index :
       {prefilling ? kv_transfer.prefill_group : -1, kv_transfer.decode_group}) {
    if (index < 0) continue;
    Group& group = *groups_[static_cast<std::size_t>(index)];
    group.abort(request, now);
    group.wake_if_idle(now);
  }
}

void KvTransfers::dropped(RequestId request, std::int32_t group, Dropped what, Ps now) {
  KvTransfer& kv_transfer = kv_transfers_[static_cast<std::size_t>(request)];
  if (kv_transfer.prefill_group < 0) return;  // of a group that does everything itself
  if (drains(kv_transfer)) {
    if (group == kv_transfer.prefill_group) return dropped_by_prefill(request, now);
    kv_transfer.decode_dropped = true;
    if (what == Dropped::kRequest) return;
    kv_transfer.closed = false;  // its KV may be there, unheard of
    return send_message(request, Kind::kWithdrawn, now);
  }
  if (group == kv_transfer.prefill_group) {
    kv_transfer.prefill_dropped = true;
    if (kv_transfer.decode_group < 0)
      decode_.sequences[request].status = static_cast<std::uint8_t>(Status::kCancelled);
  } else {
    kv_transfer.decode_dropped = true;
    // Nobody will read what the prefill group keeps, so it is told, as by vLLM's NIXL connector.
    if (!config_.push && kv_transfer.reserved == kNever && !kv_transfer.closed)
      send_message(request, Kind::kForget, now);
  }
  end_if_done(request, now);
}

Ps KvTransfers::cancelled(RequestId request) const {
  return std::max(decode_.log.cancelled[request], prefill_.log.cancelled[request]);
}

void KvTransfers::send_message(RequestId request, Kind kind, Ps now) {
  KvTransfer& kv_transfer = kv_transfers_[static_cast<std::size_t>(request)];
  ++kv_transfer.in_flight;
  NetworkNodeId from = place(kv_transfer.decode_group, 0), to = place(kv_transfer.prefill_group, 0);
  if (kind == Kind::kDrained) std::swap(from, to);
  network_.transfer_at(from, to, 0, now + network_.way_out(from, to), now, *this,
                       token(request, kind), Purpose::kKvHandover);
}

// Each piece moves as soon as it has been posted, so that posting holds up the hosts alone.
Ps KvTransfers::reserved(RequestId request, std::int32_t cached, Ps now) {
  KvTransfer& kv_transfer = kv_transfers_[static_cast<std::size_t>(request)];
  kv_transfer.reserved = now;
  kv_transfer.cached = cached;
  kv_transfer.sent = unmoved(kv_transfer);  // the state behind the last token moves in any case
  send_message(request, Kind::kTold, now);
  if (config_.push) return 0;
  const Ps posts = table_of(kv_transfer).posts(kv_transfer.sent, kv_transfer.needed);
  kv_transfer.posted = now + posts;
  return posts;
}

void KvTransfers::landed(TransferId, std::uint64_t token, Ps now) {
  const auto request = static_cast<RequestId>(token & 0xffffffffU);
  const auto kind = static_cast<Kind>(token >> 32);
  KvTransfer& kv_transfer = kv_transfers_[static_cast<std::size_t>(request)];
  --kv_transfer.in_flight;
  if (kind == Kind::kForget) {
    kv_transfer.closed = true;
    release(request, kv_transfer.prefill_group, now, now);
    return;
  }
  if (kind == Kind::kWithdrawn) return withdrawn(request, now);
  if (kind == Kind::kDrained) return drained(request, now);
  if (kind == Kind::kKv) kv_transfer.landed = std::max(now, kv_transfer.posted);
  if (kind == Kind::kTold) {
    kv_transfer.told = now;
    if (!config_.push && !kv_transfer.decode_dropped) {
      if (!holding_) send_all(request, kv_transfer.needed, now, now);
    } else if (config_.push && !kv_transfer.gave_up && !kv_transfer.prefill_dropped) {
      Group& prefill = *groups_[static_cast<std::size_t>(kv_transfer.prefill_group)];
      prefill.promise(-1);
      kv_transfer.at_prefill = true;
      prefill.receive(
          request, std::max(decode_.sequences[request].arrival, now - prefill.latency_of(request)));
      prefill.wake_if_idle(now);
    }
  }
  end_if_done(request, now);
}

void KvTransfers::send(RequestId request, const KvShare& share, std::int64_t bytes, Ps at, Ps now) {
  expect(request, bytes);
  leave({0, request, &share, bytes}, at, now);
}

void KvTransfers::expect(RequestId request, std::int64_t bytes) {
  KvTransfer& kv_transfer = kv_transfers_[static_cast<std::size_t>(request)];
  ++kv_transfer.in_flight;
  kv_transfer.bytes += bytes;
}

void KvTransfers::leave(const Due& due, Ps at, Ps now) {
  const KvTransfer& kv_transfer = of(due.request);
  const NetworkNodeId from = place(kv_transfer.prefill_group, due.share->from_rank);
  const NetworkNodeId to = place(kv_transfer.decode_group, due.share->to_rank);
  network_.transfer_at(from, to, due.bytes, at + network_.way_out(from, to), now, *this,
                       token(due.request, Kind::kKv), Purpose::kKvHandover);
}

std::int64_t KvTransfers::due_bytes(RequestId request) const {
  const KvTransfer& kv_transfer = of(request);
  if (kv_transfer.reserved == kNever) return 0;
  const KvTable& table = table_of(kv_transfer);
  const std::int32_t from = unmoved(kv_transfer), needed = kv_transfer.needed;
  std::int64_t bytes = 0;
  for (const KvShare& share : table.shares)
    bytes += table.bytes_of(share, {from, from, needed, needed});
  return bytes;
}

void KvTransfers::send_all(RequestId request, std::int32_t to, Ps at, Ps now) {
  KvTransfer& kv_transfer = kv_transfers_[static_cast<std::size_t>(request)];
  const KvTable& table = table_of(kv_transfer);
  const KvTable::Piece piece{unmoved(kv_transfer), kv_transfer.sent, to, kv_transfer.needed};
  for (const KvShare& share : table.shares)
    send(request, share,
         config_.chunked ? table.bytes_of_chunk(share, piece) : table.bytes_of(share, piece), at,
         now);
  kv_transfer.sent = std::max(kv_transfer.sent, to);
}

// Each layer of the tokens that become known in this step begins to move when its attention has
// run. What the prefill group found in its own cache goes with the first step.
void KvTransfers::launched(const Group& prefill, const Batch& batch, const StepTimes& times,
                           Ps now) {
  if (!sends_layers(prefill)) return;
  auto& departing = departing_[at(prefill.config().index)];
  if (!departing.empty()) {
    Departing& ended = departing.front();
    for (; ended.next < ended.due.size(); ++ended.next)
      leave(ended.due[ended.next], times.end, now);
    departing.pop_front();
    return;
  }
  layer_ends_.clear();
  for (const Item& item : batch.items) {
    const std::int32_t known = makes_known(item);
    if (known == 0) continue;
    if (layer_ends_.empty() && prefill.follows_program())
      find_layer_ends(prefill, batch, prefill.costs().usage().steps);
    send_layers(item.request, known, times, now);
  }
}

std::int32_t KvTransfers::makes_known(const Item& item) const {
  const KvTransfer& kv_transfer = of(item.request);
  if (kv_transfer.gave_up || kv_transfer.withdrawn) return 0;
  const std::int32_t known = std::min(item.computed_before + item.tokens, kv_transfer.needed);
  return known > kv_transfer.sent ? known : 0;  // else there, or sent before a preemption
}

void KvTransfers::find_layer_ends(const Group& prefill, const Batch& batch, std::int64_t step) {
  prefill.costs().program().cached_at(batch, step, layer_ends_);
}

// Layers leave when the operators have come to them, however long others on the links make that.
void KvTransfers::begins(const Group& prefill, const Batch& batch, std::int64_t step, Ps) {
  if (!sends_layers(prefill)) return;
  Departing& departing = departing_[at(prefill.config().index)].emplace_back();
  layer_ends_.clear();
  const bool by_layer = hears_layers_[at(prefill.config().index)] != 0;
  if (by_layer) {
    layer_ends_.resize(at(prefill.costs().program().cached_layers()));
    std::iota(layer_ends_.begin(), layer_ends_.end(), Ps{0});
  }
  for (const Item& item : batch.items) {
    const std::int32_t known = makes_known(item);
    if (known == 0) continue;
    if (layer_ends_.empty()) find_layer_ends(prefill, batch, step);
    each_layer(item.request, known, [&](const KvShare& share, std::int64_t bytes, Ps after) {
      expect(item.request, bytes);
      departing.due.push_back({after, item.request, &share, bytes});
    });
  }
  std::ranges::stable_sort(departing.due, {}, &Due::after);
}

void KvTransfers::passed(const Group& prefill, const Progress& progress, Ps now) {
  if (!sends_layers(prefill)) return;
  Departing& running = departing_[at(prefill.config().index)].front();
  for (; running.next < running.due.size(); ++running.next) {
    const Due& due = running.due[running.next];
    const Ps later = due.after - progress.from;
    if (due.after == kEndOfTime || later >= progress.alone) break;
    leave(due, progress.at + later, now);
  }
}

void KvTransfers::attended(const Group& prefill, std::int32_t behind, std::int32_t layer, Ps at,
                           Ps now) {
  if (!sends_layers(prefill)) return;
  Departing& running = departing_[llmsim::at(prefill.config().index)][llmsim::at(behind)];
  for (; running.next < running.due.size(); ++running.next) {
    const Due& due = running.due[running.next];
    if (due.after > layer) break;
    leave(due, std::max(at, now), now);
  }
}

// Layers behind the program's are a drafter's, which runs at the end of the step.
template <typename Move>
void KvTransfers::each_layer(RequestId request, std::int32_t to, Move move) {
  KvTransfer& kv_transfer = kv_transfers_[static_cast<std::size_t>(request)];
  const KvTable& table = table_of(kv_transfer);
  const auto number = static_cast<std::int32_t>(layer_ends_.size());
  for (const KvShare& share : table.shares) {
    for (const KvPart& part : share.parts) {
      const std::int64_t bytes = moved_bytes(table, part, kv_transfer.needed, kv_transfer.sent, to);
      for (const std::int32_t layer : part.layers)
        if (bytes > 0) move(share, bytes, layer < number ? layer_ends_[at(layer)] : kEndOfTime);
    }
  }
  kv_transfer.sent = to;
}

void KvTransfers::send_layers(RequestId request, std::int32_t to, const StepTimes& times, Ps now) {
  if (layer_ends_.empty()) {
    send_all(request, to, times.end, now);
    return;
  }
  each_layer(request, to, [&](const KvShare& share, std::int64_t bytes, Ps after) {
    send(request, share, bytes, after == kEndOfTime ? times.end : times.start + after, now);
  });
}

// The decode group hears of it when the prefill has ended, too, though the last layer may be there
// before. A client that has gone may have left KV that will never be sent: then the decode group
// has to have dropped the request.
void KvTransfers::end_if_done(RequestId request, Ps now) {
  KvTransfer& kv_transfer = kv_transfers_[static_cast<std::size_t>(request)];
  if (kv_transfer.closed || kv_transfer.in_flight > 0 || kv_transfer.reserved == kNever) return;
  if (kv_transfer.withdrawn) return drain(request, now);
  const bool prefilled = kv_transfer.prefilled != kNever;
  const bool prefill_out =
      prefilled || kv_transfer.prefill_dropped || (kv_transfer.gave_up && !kv_transfer.at_prefill);
  const bool complete = prefilled && kv_transfer.sent >= kv_transfer.needed;
  if (!prefill_out || (!complete && !kv_transfer.decode_dropped)) return;
  const Ps over = std::max(now, kv_transfer.posted);
  if (drains(kv_transfer) && kv_transfer.decode_dropped) {  // who waits for it hears of it later
    if (complete && !std::exchange(kv_transfer.prefill_released, true))
      release(request, kv_transfer.prefill_group, over, now);
    return;
  }
  kv_transfer.closed = true;
  if (prefilled && !std::exchange(kv_transfer.prefill_released, true))
    release(request, kv_transfer.prefill_group, over, now);
  release(request, kv_transfer.decode_group, over, now);
}

void KvTransfers::release(RequestId request, std::int32_t group, Ps at, Ps now) {
  Group& holder = *groups_[static_cast<std::size_t>(group)];
  holder.transferred(request, at);
  holder.wake_if_idle(now);
}

}  // namespace llmsim
