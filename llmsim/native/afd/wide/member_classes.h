// Attention and FFN members that are alike.
//
// Members of a kind run the same program on the same side: their steps have the same nodes, which
// differ in their prices alone. A class is some members of one kind that are timed together.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "afd/afd_graph.h"
#include "program/program.h"

namespace llmsim {

class MemberKinds {
 public:
  // The attention's members first. One that samples times has samples, and so a kind, of its own.
  MemberKinds(std::span<const Program* const> programs, std::int32_t attention_members);

  std::size_t size() const { return members_.size(); }
  std::size_t num_members() const { return kind_of_.size(); }
  // Kinds of the attention come first.
  std::size_t num_attention_kinds() const { return attention_kinds_; }
  const std::vector<std::int32_t>& members(std::size_t kind) const { return members_[kind]; }
  const Program& program(std::size_t kind) const { return *programs_[kind]; }
  std::size_t kind_of(std::size_t member) const { return at(kind_of_[member]); }
  // Among the members of its kind.
  std::int32_t place_of(std::size_t member) const { return place_of_[member]; }

 private:
  std::vector<std::vector<std::int32_t>> members_;  // by kind
  std::vector<const Program*> programs_;            // by kind
  std::vector<std::int32_t> kind_of_, place_of_;    // by member
  std::size_t attention_kinds_ = 0;
};

struct MemberClass {
  std::size_t kind = 0;
  std::vector<std::int32_t> members, places;  // and where these are among the kind's
};

// Members that are set in `apart` in a class of their own, the others of each kind in one. With all
// apart the classes are in the order of the members.
std::vector<MemberClass> classes_of(const MemberKinds& kinds, const std::vector<bool>& apart);

// What the nodes of kinds are priced by: of each kind the keys, without their member.
class KindKeys {
 public:
  // Of a graph with one class of each kind.
  KindKeys(const StepGraph& graph, std::size_t kinds);
  const std::vector<PriceKey>& of(std::size_t kind) const { return keys_[kind]; }
  // Where the key of a price is among those of the kind. Throws std::logic_error for an unknown
  // one.
  std::int32_t find(std::size_t kind, PriceKey key) const;

 private:
  std::vector<std::vector<PriceKey>> keys_;
  std::vector<std::map<PriceKey, std::int32_t>> found_;
};

// Of one step, by kind: key by key, member by member.
struct KindPrices {
  std::vector<Ps> ps;
  std::vector<std::int64_t> bytes;
};
struct AfdPrices {
  std::vector<KindPrices> kinds;
  std::vector<Ps> draws;
};

}  // namespace llmsim
