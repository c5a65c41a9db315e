// Totals of a run: a row per group, and a row per pool of KV below the devices.
#pragma once

#include <cstdint>
#include <vector>

#include "loop/simulation.h"

namespace llmsim {

// One column of totals; llmsim/columns.py has its unit and meaning.
struct TotalsColumn {
  const char* name;
  std::vector<std::int64_t> values;
};

// One value per group in every column.
std::vector<TotalsColumn> group_totals(const Simulation& simulation);
// One value per pool in every column; no values where there are no pools.
std::vector<TotalsColumn> kv_tier_totals(const Simulation& simulation);

// The names alone.
std::vector<const char*> group_total_names();
std::vector<const char*> kv_tier_total_names();

}  // namespace llmsim
