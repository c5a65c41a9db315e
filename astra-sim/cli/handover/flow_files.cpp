#include "cli/handover/flow_files.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "formats/text/json.h"
#include "model/base/input_error.h"

namespace astra_sim::cli {

namespace {

using engine::SentMessage;
using model::InputError;

std::string as_table(const std::vector<SentMessage>& sent) {
  std::string text = "from,to,number,bytes,start_ps\n";
  for (const SentMessage& one : sent) {
    text += std::to_string(one.key.from) + "," + std::to_string(one.key.to) + "," +
            std::to_string(one.key.number) + "," + std::to_string(one.bytes) + "," +
            std::to_string(one.at) + "\n";
  }
  return text;
}

// Starts are picoseconds there too.
std::string as_connections(const std::vector<SentMessage>& sent, std::uint32_t npus) {
  std::string text =
      "Nodes " + std::to_string(npus) + "\nConnections " + std::to_string(sent.size()) + "\n";
  std::size_t number = 0;
  for (const SentMessage& one : sent) {
    text += std::to_string(one.key.from) + "->" + std::to_string(one.key.to) + " id " +
            std::to_string(++number) + " start " + std::to_string(one.at) + " size " +
            std::to_string(one.bytes) + "\n";
  }
  return text;
}

// Source, destination, priority group, port, bytes, start in seconds.
std::string as_hpcc(const std::vector<SentMessage>& sent) {
  std::string text = std::to_string(sent.size()) + "\n";
  for (const SentMessage& one : sent) {
    char start[40];
    constexpr std::int64_t kSecond = 1'000'000'000'000;
    std::snprintf(start, sizeof start, "%lld.%012lld", static_cast<long long>(one.at / kSecond),
                  static_cast<long long>(one.at % kSecond));
    text += std::to_string(one.key.from) + " " + std::to_string(one.key.to) + " 3 100 " +
            std::to_string(one.bytes) + " " + start + "\n";
  }
  return text;
}

// GOAL (LogGOPSim, ATLAHS): a schedule of each rank. Calculations of nanoseconds, one after the
// other, bring it to the starts of its sends; the tag of a message is its place in the table.
std::string as_goal(const std::vector<SentMessage>& sent, std::uint32_t npus) {
  struct Rank {
    std::string text;
    std::int64_t now_ns = 0;
    std::size_t labels = 0;
    std::string waited;  // the label of the last calculation
  };
  std::vector<Rank> ranks(npus);
  std::vector<std::size_t> order(sent.size());
  for (std::size_t tag = 0; tag < order.size(); ++tag) order[tag] = tag;
  std::ranges::stable_sort(order, {}, [&](std::size_t tag) { return sent[tag].at; });
  const auto label = [](Rank& rank) { return "l" + std::to_string(++rank.labels); };
  for (const std::size_t tag : order) {
    const SentMessage& one = sent[tag];
    Rank& from = ranks.at(one.key.from);
    const std::int64_t start_ns = one.at / 1000;
    if (start_ns > from.now_ns) {
      const std::string wait = label(from);
      from.text += wait + ": calc " + std::to_string(start_ns - from.now_ns) + "\n";
      if (!from.waited.empty()) from.text += wait + " requires " + from.waited + "\n";
      from.waited = wait;
      from.now_ns = start_ns;
    }
    const std::string size = std::to_string(one.bytes) + "b ", number = std::to_string(tag);
    const std::string send = label(from);
    from.text +=
        send + ": send " + size + "to " + std::to_string(one.key.to) + " tag " + number + "\n";
    if (!from.waited.empty()) from.text += send + " requires " + from.waited + "\n";
    Rank& to = ranks.at(one.key.to);
    to.text += label(to) + ": recv " + size + "from " + std::to_string(one.key.from) + " tag " +
               number + "\n";
  }
  std::string text = "num_ranks " + std::to_string(npus) + "\n";
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    text += "rank " + std::to_string(rank) + " {\n" + ranks[rank].text + "}\n";
  return text;
}

std::vector<std::string_view> cells_of(std::string_view line) {
  std::vector<std::string_view> cells;
  for (std::size_t begin = 0; begin <= line.size();) {
    const std::size_t end = std::min(line.find(',', begin), line.size());
    cells.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return cells;
}

// Reads the lines of a table by the names of its columns.
class Table {
 public:
  static constexpr std::array<std::string_view, 4> kColumns = {"from", "to", "number",
                                                               "duration_ps"};

  Table(const std::string& path, std::string_view header) : path_(path) {
    const auto names = cells_of(header);
    for (std::size_t column = 0; column < kColumns.size(); ++column) {
      const auto found = std::find(names.begin(), names.end(), kColumns[column]);
      if (found == names.end()) {
        throw InputError(path + ":1 has no column \"" + std::string(kColumns[column]) +
                         "\"; from, to, number and duration_ps are needed");
      }
      place_[column] = static_cast<std::size_t>(found - names.begin());
    }
  }

  std::array<std::int64_t, 4> row(std::string_view line, std::size_t number) const {
    const auto cells = cells_of(line);
    std::array<std::int64_t, 4> values{};
    for (std::size_t column = 0; column < kColumns.size(); ++column) {
      const std::string_view text =
          place_[column] < cells.size() ? cells[place_[column]] : std::string_view{};
      const std::int64_t most = column == 3 ? model::kMaxSpan : std::int64_t{1} << 32;
      std::int64_t& value = values[column];
      const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
      if (result.ec != std::errc() || result.ptr != text.data() + text.size() || value < 0 ||
          value > most) {
        throw InputError(path_ + ":" + std::to_string(number) + ": " +
                         std::string(kColumns[column]) + " is \"" + std::string(text) +
                         "\"; a whole number of 0 or more was expected");
      }
    }
    return values;
  }

 private:
  std::string path_;
  std::array<std::size_t, 4> place_{};
};

}  // namespace

void check_flow_file(const std::string& path) {
  constexpr std::array<std::string_view, 4> kEndings = {".csv", ".cm", ".txt", ".goal"};
  const auto ends = [&path](std::string_view ending) { return path.ends_with(ending); };
  if (path.empty() || std::ranges::any_of(kEndings, ends)) return;
  throw InputError("--flows is \"" + path +
                   "\"; a name that ends in .csv, .cm (HTSim), .txt (ns-3) or .goal was expected");
}

std::string as_flows(const std::string& path, const std::vector<SentMessage>& sent,
                     std::uint32_t npus) {
  if (path.ends_with(".cm")) return as_connections(sent, npus);
  if (path.ends_with(".goal")) return as_goal(sent, npus);
  return path.ends_with(".txt") ? as_hpcc(sent) : as_table(sent);
}

std::shared_ptr<const engine::MessageTimes> read_flow_times(const std::string& path) {
  const std::string text = config::read_text(path, "a CSV of message times");
  auto times = std::make_shared<engine::MessageTimes>();
  times->source = path;
  const std::string_view all = text;
  const auto line_at = [&](std::size_t begin) {
    std::string_view line = all.substr(begin, all.find('\n', begin) - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
  };
  const Table table(path, line_at(0));
  std::size_t number = 1;
  for (std::size_t end = all.find('\n'); end != std::string_view::npos;
       end = all.find('\n', end + 1)) {
    const std::string_view line = line_at(end + 1);
    ++number;
    if (line.empty()) continue;
    const auto [from, to, index, duration] = table.row(line, number);
    const engine::MessageKey key{static_cast<std::uint32_t>(from), static_cast<std::uint32_t>(to),
                                 static_cast<std::uint32_t>(index)};
    if (!times->duration_ps.emplace(key, duration).second) {
      throw InputError(path + ":" + std::to_string(number) + ": message " + std::to_string(index) +
                       " from NPU " + std::to_string(from) + " to NPU " + std::to_string(to) +
                       " has a time already");
    }
  }
  return times;
}

}  // namespace astra_sim::cli
