// One layout of devices that several layouts share, as groups are made of it whenever it opens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv/offloading/copies.h"
#include "kv/tiers/kv_tiers.h"
#include "loop/group_spec.h"

namespace llmsim {

// Its groups, and what they do together; groups are numbered from the layout's first one.
struct LayoutSpec {
  std::string name;
  std::vector<GroupSpec> groups;
  std::vector<LockstepSpec> lockstep;
  std::vector<ContentionSpec> contention;
  // Its places are those of all groups' ranks; routes lead between those that compute prompts and
  // those that answer.
  KvTransferConfig kv_transfer;
  std::vector<GroupTiersConfig> tiers;        // by group; none: there are no tiers
  std::vector<GroupCopiesConfig> offloading;  // by group; none: no group of any layout offloads KV
  // By group: bytes of KV that each of its devices holds per token, how many devices there are, and
  // the kind of group between which KV moves alike.
  std::vector<std::int64_t> kv_bytes_per_token, devices;
  std::vector<std::int32_t> kinds;
};

}  // namespace llmsim
