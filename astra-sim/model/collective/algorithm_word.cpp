#include "model/collective/algorithm_word.h"

#include <cctype>
#include <charconv>

namespace astra_sim::model {

namespace {

std::string flat_word(const AlgorithmEntry& entry) {
  std::string word = entry.word;
  word[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(word[0])));
  return "one" + word;
}

}  // namespace

std::optional<AlgorithmChoice> parse_algorithm(std::string_view word) {
  const std::size_t letters = word.find_last_not_of("0123456789") + 1;
  const std::string_view name = word.substr(0, letters);
  const std::string_view digits = word.substr(letters);
  for (const AlgorithmEntry& entry : kAlgorithms) {
    if (entry.lay == nullptr) continue;
    const bool flat = entry.flat && name == flat_word(entry);
    if (!flat && name != entry.word) continue;
    AlgorithmChoice choice{entry.algorithm, flat, 0};
    if (digits.empty()) return choice;
    const char* end = digits.data() + digits.size();
    const auto result = std::from_chars(digits.data(), end, choice.window);
    const bool counts = result.ec == std::errc() && choice.window > 0;
    if (entry.windows && counts) return choice;
  }
  return std::nullopt;
}

std::vector<std::string> algorithm_words() {
  std::vector<std::string> words;
  for (const AlgorithmEntry& entry : kAlgorithms)
    if (entry.lay != nullptr) words.emplace_back(entry.word);
  for (const AlgorithmEntry& entry : kAlgorithms)
    if (entry.flat) words.push_back(flat_word(entry));
  return words;
}

std::string expected_algorithms() {
  std::string upstream;
  std::string flat;
  std::string others;
  for (const AlgorithmEntry& entry : kAlgorithms) {
    if (entry.lay == nullptr) continue;
    (entry.upstream ? upstream : others) += std::string(entry.upstream ? "" : ", ") + entry.word;
    if (!entry.upstream) continue;
    upstream += ", ";
    if (entry.windows) upstream += std::string(entry.word) + "W (W messages in flight), ";
    if (!entry.flat) continue;
    flat += (flat.empty() ? "" : ", ") + flat_word(entry);
    if (entry.windows) flat += ", " + flat_word(entry) + "W";
  }
  return upstream + flat + " or (default rules) " + others.substr(2);
}

}  // namespace astra_sim::model
