#include "afd/afd_config.h"

#include <algorithm>

namespace llmsim {

namespace {

Program::Place one_row() {
  Program::Place place;
  place.tokens = place.sequences = place.gathered = place.decodes = 1;
  return place;
}

}  // namespace

// A port takes rows in while the other side's port sends them.
Ps AfdConfig::least_m2n() const {
  const Program::Place row = one_row();
  const auto moved = [&](const PortBytes& attention, const PortBytes& ffn) {
    return latency + std::max(transfer_time(attention.at(row), attention_bytes_per_s),
                              transfer_time(ffn.at(row), ffn_bytes_per_s));
  };
  Ps sum = 0;
  for (const AfdBand& band : bands) {
    for (const AfdLayer& layer : band.layers) {
      if (layer.ffn.empty()) continue;
      const M2nHop& hop = hops.at(at(layer.hop));
      const Ps there = moved(hop.attention_out, hop.ffn_in);
      const Ps back = moved(hop.attention_in, hop.ffn_out);
      sum += band.repeat * (there + back);
    }
  }
  return sum;
}

}  // namespace llmsim
