// What each router's file offers to the registry.
#pragma once

#include "router/registry.h"

namespace llmsim {

RouterKind round_robin();
RouterKind uniformly_random();
RouterKind least_loaded();
RouterKind least_outstanding();
RouterKind power_of_two();
RouterKind session_affinity();
RouterKind vllm_data_parallel();
RouterKind prefix_aware();
RouterKind weighted();

}  // namespace llmsim
