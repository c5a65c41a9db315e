#include "scheduler/ranking/ranking.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace llmsim {

Ranker::Ranker(std::shared_ptr<Ranking> ranking, std::shared_ptr<const Sessions> sessions,
               const SequenceTable& sequences)
    : ranking_(std::move(ranking)),
      sessions_(std::move(sessions)),
      sequences_(sequences),
      lists_(ranking_->lists()),
      events_(ranking_->events()),
      places_(sequences.size(), 0) {
  const bool all = lists_.waiting && lists_.running && lists_.victims;
  if (lists_.pauses && !all)
    throw std::invalid_argument("a ranking that pauses orders waiting, running and victims, too");
}

void Ranker::rank(Ps now) {
  keys_.assign(candidates_.size(), RankKey{});
  ranking_->rank(now, {candidates_, sequences_, sessions_.get()}, keys_);
  sorted_.resize(candidates_.size());
  std::iota(sorted_.begin(), sorted_.end(), 0U);
  std::sort(sorted_.begin(), sorted_.end(), [this](std::uint32_t a, std::uint32_t b) {
    return std::pair(keys_[a], candidates_[a].row) < std::pair(keys_[b], candidates_[b].row);
  });
  order_.clear();
  for (const std::uint32_t index : sorted_) {
    const RequestId row = candidates_[index].row;
    places_[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(order_.size());
    order_.push_back(row);
  }
}

}  // namespace llmsim
