// An order of requests that is decided anew before each step.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/types.h"
#include "program/batch.h"
#include "request/sequence_table.h"
#include "request/sessions.h"

namespace llmsim {

// Where a request stands before a step. A parked one holds blocks and waits for its KV.
enum class Standing : std::uint8_t { kWaiting, kRunning, kParked };

// A request that a ranking sees.
struct Candidate {
  RequestId row;
  Standing standing;
  // Its place among those of its standing. Waiting requests stand in the order in which they came
  // to the engine, preempted ones in front; running ones in the order in which they run.
  std::int32_t position;
};

// All requests of a group before a step.
struct RankView {
  std::span<const Candidate> candidates;
  const SequenceTable& sequences;
  const Sessions* sessions;  // null: every request is a session of its own
};

// A lower key is first, compared from the left; the row breaks ties.
using RankKey = std::array<std::int64_t, 4>;

// What a ranking decides; the scheduler decides the rest as without a ranking.
struct RankedLists {
  bool waiting = false;  // which waiting request starts next
  bool running = false;  // in which order running requests take the token budget
  bool victims = false;  // which running request loses its blocks: the last one
  // Waiting and running requests take turns in one order: a running request beyond max_num_seqs or
  // the token budget pauses and keeps its KV. Needs the other three.
  bool pauses = false;
};

// Hears what becomes of the requests that a ranking orders.
class RankEvents {
 public:
  // The engine sees the request, since `seen` (ps).
  virtual void added(RequestId request, const Sequence& sequence, Ps seen) = 0;
  // The step that was ranked at `now` is decided; it may be empty.
  virtual void scheduled(Ps now, const Batch& batch) = 0;
  // A step has ended; requests that ended with it have left.
  virtual void executed(const Batch& batch) = 0;
  // The request has finished, or its client has gone.
  virtual void left(RequestId request) = 0;

 protected:
  ~RankEvents() = default;
};

class Ranking {
 public:
  virtual ~Ranking() = default;
  virtual RankedLists lists() const = 0;
  // Fills in the key of each candidate.
  virtual void rank(Ps now, const RankView& view, std::span<RankKey> keys) = 0;
  // Null: it needs no events.
  virtual RankEvents* events() { return nullptr; }
};

// Ranks the requests of one group, and remembers the order until the next step.
class Ranker {
 public:
  Ranker(std::shared_ptr<Ranking> ranking, std::shared_ptr<const Sessions> sessions,
         const SequenceTable& sequences);

  const RankedLists& lists() const { return lists_; }
  RankEvents* events() const { return events_; }
  // Begins a step; `add` then gives the candidates of each list in its order, and `rank` orders
  // them all.
  void begin() { candidates_.clear(); }
  void add(Standing standing, RequestId request, std::int32_t position) {
    candidates_.push_back({request, standing, position});
  }
  void rank(Ps now);
  // All requests of the step, the first one first.
  const std::vector<RequestId>& order() const { return order_; }
  // The place of a request in `order`.
  std::int32_t place(RequestId request) const { return places_[static_cast<std::size_t>(request)]; }
  bool before(RequestId a, RequestId b) const { return place(a) < place(b); }

 private:
  std::shared_ptr<Ranking> ranking_;
  std::shared_ptr<const Sessions> sessions_;
  const SequenceTable& sequences_;
  RankedLists lists_;
  RankEvents* events_;
  std::vector<Candidate> candidates_;
  std::vector<RankKey> keys_;
  std::vector<std::uint32_t> sorted_;  // scratch: indices of candidates
  std::vector<RequestId> order_;
  std::vector<std::int32_t> places_;  // by row
};

}  // namespace llmsim
