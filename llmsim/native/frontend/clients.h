// Client behaviour: arrivals, sessions, timeouts, and closed loops with a fixed number of clients.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "events/entity.h"
#include "request/sequence_table.h"

namespace llmsim {

class Frontend;
class LiveRequests;

// Columns have one entry per request, or none where no client does such a thing.
struct ClientsConfig {
  std::vector<Ps> timeout;  // from a request's arrival until its client gives up; kNever: never
  std::vector<std::int32_t> cancel_after_tokens;  // it leaves with that many tokens; 0: never
  // Clients of a closed loop: one that has nothing asked takes the next row (or session) of the
  // workload, at its arrival or later, and thinks for `think[r]` after the answer to its last
  // request r. 0: an open loop.
  std::int32_t count = 0;
  std::vector<Ps> think;
};

// The workload, one entry per request. Row i arrives at arrival_ps[i], or, where that is -1,
// tool_delay_ps[p] after the last token of its predecessor p (next_call[p] == i). Rows with a time
// are sorted by it.
struct Source {
  std::vector<Ps> arrival_ps;
  std::vector<std::int32_t> input_tokens, output_tokens;
  std::vector<std::int32_t> priority;  // may be empty
  std::vector<std::int32_t> adapter;   // Sequence::adapter; may be empty
  std::vector<std::int16_t> model;
  std::vector<std::int32_t> next_call;
  std::vector<Ps> tool_delay_ps;
  ContentKeys content;
  ClientsConfig clients;
};

// Events have a row as their argument, so that those of one time come in the order of rows.
class Clients final : public Entity {
 public:
  // Fills in the arrivals of later calls as they become known.
  Clients(std::shared_ptr<const Source> source, SequenceTable& sequences, Frontend& frontend);

  // Rows are asked while the simulation runs, and `live` hears what becomes of them.
  void use_live(LiveRequests& live) { live_ = &live; }
  // Posts the first arrival.
  void begin() { post_next_arrival(); }
  // A live request arrives at that time; its client goes at that time, if it still waits then.
  void ask(RequestId request, Ps arrival) { post_row(arrival, Phase::kArrival, request); }
  void leave(RequestId request, Ps time) { post_row(time, Phase::kGiveUp, request); }
  // Nothing has happened to these rows.
  void forget(const std::vector<RequestId>& requests);
  Outlook outlook(const Event& event) const override;
  void on_event(Ps now, Phase phase, std::uint32_t row) override;

  bool gave_up(RequestId request) const { return !gave_up_.empty() && gave_up_[at(request)]; }
  bool count_tokens() const { return !config_.cancel_after_tokens.empty(); }
  // The group that had these requests has handed them back: they are sent as if they were new.
  void send_again(std::span<const RequestId> requests, Ps now);
  // They have the last tokens of these requests: sessions go on, or end.
  void answered(std::span<const RequestId> finished, Ps now);
  // Its engine has ended it with an error.
  void failed(RequestId request, Ps now);
  // Requests that have neither been answered nor given up, those that are still to arrive included.
  std::int64_t num_open() const { return num_open_; }
  // The client has so many tokens, which may be all that it wants.
  void received(RequestId request, std::int32_t tokens, Ps now);

 private:
  bool closed_loop() const { return config_.count > 0; }
  // Whether somebody is there to ask; takes that client.
  bool take_client();
  void arrive(RequestId request, Ps now);
  // Whether the request has been delivered; else its session has ended.
  bool send(RequestId request, Ps now);
  void give_up(RequestId request, Ps now);
  bool awaited(RequestId request) const;
  void post_next_arrival();
  void post_row(Ps time, Phase phase, RequestId request) {
    post(time, phase, static_cast<std::uint32_t>(request));
  }
  // The client will ask for nothing more in this session; later calls of it get this status.
  void end_session(RequestId request, Status rest, Ps now);

  std::shared_ptr<const Source> source_;
  const ClientsConfig& config_;
  SequenceTable& sequences_;
  Frontend& frontend_;
  std::vector<bool> gave_up_;     // empty: nobody ever does
  std::vector<RequestId> timed_;  // rows whose arrival the workload gives, in order of arrival
  std::size_t next_timed_ = 0;
  bool arrival_pending_ = false;  // of a row of `timed_`
  std::int32_t free_;             // of a closed loop
  std::int64_t num_open_;
  LiveRequests* live_ = nullptr;  // null: the workload is known
};

}  // namespace llmsim
