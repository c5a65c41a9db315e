// The memory that a trace's tensors take over time: `track-local-mem`.
#pragma once

#include <optional>
#include <string>

#include "cli/run/report.h"

namespace astra_sim::cli {

// Nodes name their tensors in the attributes `inputs` and `outputs`: name, bytes, name, bytes, ...
// A tensor is there from the issue of the first node that names it to the end of the last one.
// Writes trace events to `path` (with
// `.json` where it has no ending): per NPU a track of reads, one of writes, every tensor's life,
// and a counter of the bytes that are there; fills report.peak_bytes. A node without the attributes
// names none; with `strict` that is an error, as upstream. A file that cannot be written costs the
// events only: the sentence about it is returned. Throws model::InputError.
std::optional<std::string> write_tensors(const std::string& path, bool strict,
                                         const std::string& prefix, Report& report);

}  // namespace astra_sim::cli
