// The columns of the requests of a run, and how those of two groups that serve a request are
// joined.
#pragma once

#include <cstdint>
#include <span>
#include <tuple>
#include <type_traits>
#include <vector>

#include "base/columns.h"
#include "base/types.h"

namespace llmsim {

// Which group's log says what a client sees of a request whose prompt and answer are computed by
// two groups.
enum class SaidBy : std::uint8_t { kAnswer, kPrompt, kEarlier, kLater, kSum };

// One row per request. A column is a member and a row of columns(); llmsim/columns.py has its unit
// and meaning.
struct RequestProgress {
  template <typename T>
  struct Column {
    const char* name;
    std::vector<T> RequestProgress::* values;
    std::type_identity_t<T> initial;
    SaidBy said_by;
  };
  // Deduces the type of a column's values (an aggregate of this class has no deduction in Clang).
  template <typename T>
  static constexpr Column<T> column(const char* name, std::vector<T> RequestProgress::* values,
                                    std::type_identity_t<T> initial, SaidBy said_by) {
    return {name, values, initial, said_by};
  }

  std::vector<std::int16_t> group;
  std::vector<Ps> queued, scheduled, first_token, finish;
  std::vector<Ps> cancelled;  // when its engine dropped it
  std::vector<std::int32_t> emitted_tokens, cached_tokens, preemptions;

  static constexpr auto columns() {
    using R = RequestProgress;
    return std::tuple{
        column("group", &R::group, -1, SaidBy::kAnswer),
        column("queued_ps", &R::queued, kNever, SaidBy::kEarlier),
        column("scheduled_ps", &R::scheduled, kNever, SaidBy::kPrompt),
        column("first_token_ps", &R::first_token, kNever, SaidBy::kAnswer),
        column("finish_ps", &R::finish, kNever, SaidBy::kAnswer),
        column("cancelled_ps", &R::cancelled, kNever, SaidBy::kLater),
        column("emitted_tokens", &R::emitted_tokens, 0, SaidBy::kAnswer),
        column("cached_tokens", &R::cached_tokens, 0, SaidBy::kPrompt),
        column("preemptions", &R::preemptions, 0, SaidBy::kSum),
    };
  }

  explicit RequestProgress(std::size_t n);
  // Nothing has happened to the request.
  void forget(RequestId request) {
    const auto reset = [&](const auto& column) {
      (this->*column.values)[request] = column.initial;
    };
    std::apply([&](const auto&... one) { (reset(one), ...); }, columns());
  }
  // Whether its engine has seen the request, or has heard before that its client has gone.
  bool knows(RequestId request) const {
    return queued[at(request)] != kNever || cancelled[at(request)] != kNever;
  }
  // The rows of these requests.
  RequestProgress picked(std::span<const RequestId> requests) const;
  // Makes the row of a request whose prompt another group computed that which its client sees.
  void begin_with(const RequestProgress& prompts, RequestId request);
};

}  // namespace llmsim
