#include "afd/wide/member_classes.h"

#include <algorithm>
#include <stdexcept>

namespace llmsim {

MemberKinds::MemberKinds(std::span<const Program* const> programs, std::int32_t attention_members) {
  for (std::size_t m = 0; m < programs.size(); ++m) {
    const bool serves = m >= at(attention_members);
    if (m == at(attention_members)) attention_kinds_ = members_.size();
    std::size_t kind = serves ? attention_kinds_ : 0;
    const auto differs = [&] { return programs_[kind] != programs[m] || programs[m]->draws(); };
    while (kind < members_.size() && differs()) ++kind;
    if (kind == members_.size()) {
      members_.emplace_back();
      programs_.push_back(programs[m]);
    }
    kind_of_.push_back(static_cast<std::int32_t>(kind));
    place_of_.push_back(static_cast<std::int32_t>(members_[kind].size()));
    members_[kind].push_back(static_cast<std::int32_t>(m));
  }
}

std::vector<MemberClass> classes_of(const MemberKinds& kinds, const std::vector<bool>& apart) {
  std::vector<MemberClass> classes;
  const auto add = [&](std::int32_t member) {
    classes.back().members.push_back(member);
    classes.back().places.push_back(kinds.place_of(at(member)));
  };
  if (std::ranges::all_of(apart, [](bool one) { return one; })) {
    for (std::size_t m = 0; m < apart.size(); ++m) {
      classes.push_back({kinds.kind_of(m), {}, {}});
      add(static_cast<std::int32_t>(m));
    }
    return classes;
  }
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    const auto& members = kinds.members(kind);
    const auto together = [&](std::int32_t member) { return !apart[at(member)]; };
    if (std::ranges::any_of(members, together)) {
      classes.push_back({kind, {}, {}});
      for (const std::int32_t member : members)
        if (together(member)) add(member);
    }
    for (const std::int32_t member : members) {
      if (together(member)) continue;
      classes.push_back({kind, {}, {}});
      add(member);
    }
  }
  return classes;
}

KindKeys::KindKeys(const StepGraph& graph, std::size_t kinds) : keys_(kinds), found_(kinds) {
  for (PriceKey key : graph.prices) {
    if (key.role == NodeRole::kMeet) continue;
    const auto kind = at(key.member);
    key.member = 0;
    const auto number = static_cast<std::int32_t>(keys_[kind].size());
    if (found_[kind].try_emplace(key, number).second) keys_[kind].push_back(key);
  }
}

std::int32_t KindKeys::find(std::size_t kind, PriceKey key) const {
  key.member = 0;
  const auto found = found_[kind].find(key);
  if (found == found_[kind].end())
    throw std::logic_error("a price that members of the kind do not have");
  return found->second;
}

}  // namespace llmsim
