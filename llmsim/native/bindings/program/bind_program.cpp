// Step programs and configuration for Python.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "scheduler/impl/vllm_v1/vllm_v1.h"
#include "scheduler/registry.h"
#include "step/executors/expanded.h"

using namespace nanobind::literals;

namespace llmsim {

Batch batch_of(const Items& items, const std::vector<std::int32_t>& adapters) {
  Batch batch;
  for (const auto& given : items) {
    if (given.size() != 2 && given.size() != 3)
      throw std::invalid_argument("an item has tokens, computed ones before, and perhaps drafts");
    const std::int64_t drafts = given.size() == 3 ? given[2] : 0;
    batch.items.push_back({static_cast<RequestId>(batch.items.size()),
                           static_cast<std::int32_t>(given[0]), static_cast<std::int32_t>(given[1]),
                           0, static_cast<std::int32_t>(drafts), true});
    batch.features.add(batch.items.back());
  }
  if (items.empty()) batch.make_dummy();
  if (adapters.empty()) return batch;
  const bool encodes = adapters.size() == AdapterUse::kCounts + EncoderUse::kCounts;
  if (!encodes && adapters.size() != AdapterUse::kCounts)
    throw std::invalid_argument("a batch has the counts of AdapterUse, and perhaps of EncoderUse");
  batch.features.lora = {adapters[0], adapters[1], adapters[2],
                         adapters[3], adapters[4], adapters[5]};
  if (encodes) batch.features.encoder = {adapters[6], adapters[7]};
  return batch;
}

namespace {

template <std::size_t N>
Grid<N> make_grid(const std::vector<In<std::int64_t>>& axes, const In<std::int64_t>& ps,
                  const std::optional<In<std::uint8_t>>& provenance) {
  if (axes.size() != N)
    throw std::invalid_argument("a grid of " + std::to_string(N) + " axes is needed");
  std::size_t cells = 1;
  for (const auto& axis : axes) {
    if (axis.shape(0) == 0) throw std::invalid_argument("an axis is empty");
    for (std::size_t i = 1; i < axis.shape(0); ++i)
      if (axis.data()[i] <= axis.data()[i - 1])
        throw std::invalid_argument("an axis does not ascend");
    cells *= axis.shape(0);
  }
  if (cells != ps.shape(0)) throw std::invalid_argument("grid and axes differ in size");
  if (provenance && provenance->shape(0) != cells)
    throw std::invalid_argument("grid and provenance differ in size");
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    return Grid<N>({Axis(to_vector(axes[I]))...}, to_vector(ps),
                   provenance ? to_vector(*provenance) : std::vector<std::uint8_t>{});
  }(std::make_index_sequence<N>());
}

PromptGrid prompt_grid(const std::vector<In<std::int64_t>>& axes, const In<std::int64_t>& ps,
                       const std::optional<In<std::uint8_t>>& provenance,
                       const std::optional<In<std::int64_t>>& shared_ps) {
  std::optional<Grid<2>> shared;
  if (shared_ps) shared = make_grid<2>(axes, *shared_ps, std::nullopt);
  return PromptGrid(make_grid<2>(axes, ps, provenance), std::move(shared));
}

Sight sight_of(std::int64_t window, bool chunked) {
  if (window <= 0) return {};
  return {chunked ? Sight::Kind::kChunk : Sight::Kind::kWindow, window};
}

// Handed to Program, which takes it over: usable once.
struct AttentionHandle {
  std::unique_ptr<AttentionCost> cost;
};

AttentionHandle handle(std::unique_ptr<AttentionCost> cost, std::int64_t queries_per_kv_head) {
  cost->set_queries_per_kv_head(queries_per_kv_head);
  return {std::move(cost)};
}

void bind_attention(nb::module_& m) {
  nb::class_<AttentionHandle>(m, "Attention",
                              "Attention of one layer, priced by the batch; used by one Program.")
      .def_static(
          "mixed",
          [](const std::vector<In<std::int64_t>>& axes, const In<std::int64_t>& ps,
             std::int64_t skew_ps, const std::optional<In<std::uint8_t>>& provenance,
             std::int64_t window, bool chunked, std::int64_t queries_per_kv_head,
             bool prompts_apart) {
            return handle(
                std::make_unique<MixedGridAttention>(make_grid<4>(axes, ps, provenance), skew_ps,
                                                     sight_of(window, chunked), prompts_apart),
                queries_per_kv_head);
          },
          "axes"_a, "ps"_a, "skew_ps"_a, "provenance"_a = nb::none(), "window"_a = 0,
          "chunked"_a = false, "queries_per_kv_head"_a = 1, "prompts_apart"_a = false)
      .def_static(
          "split",
          [](const std::vector<In<std::int64_t>>& prefill_axes, const In<std::int64_t>& prefill_ps,
             const std::vector<In<std::int64_t>>& decode_axes, const In<std::int64_t>& decode_ps,
             std::int64_t mixed_ps, std::int64_t skew_ps,
             const std::optional<In<std::uint8_t>>& prefill_provenance,
             const std::optional<In<std::uint8_t>>& decode_provenance, std::int64_t window,
             bool chunked, std::int64_t queries_per_kv_head,
             const std::optional<In<std::int64_t>>& shared_ps,
             const std::optional<In<std::int64_t>>& latent_ps,
             const std::optional<In<std::uint8_t>>& latent_provenance,
             const std::optional<In<std::int64_t>>& latent_shared_ps,
             const std::array<std::int64_t, 3>& latent_rule) {
            PromptGrid plain = prompt_grid(prefill_axes, prefill_ps, prefill_provenance, shared_ps);
            PromptGrid on_latents = latent_ps ? prompt_grid(prefill_axes, *latent_ps,
                                                            latent_provenance, latent_shared_ps)
                                              : plain;
            const auto [new_tokens, cached_tokens, step_tokens] = latent_rule;
            return handle(std::make_unique<SplitGridAttention>(
                              std::array{std::move(plain), std::move(on_latents)},
                              LatentPrompts{new_tokens, cached_tokens, step_tokens},
                              make_grid<2>(decode_axes, decode_ps, decode_provenance), mixed_ps,
                              skew_ps, sight_of(window, chunked)),
                          queries_per_kv_head);
          },
          "prefill_axes"_a, "prefill_ps"_a, "decode_axes"_a, "decode_ps"_a, "mixed_ps"_a,
          "skew_ps"_a, "prefill_provenance"_a = nb::none(), "decode_provenance"_a = nb::none(),
          "window"_a = 0, "chunked"_a = false, "queries_per_kv_head"_a = 1,
          "shared_ps"_a = nb::none(), "latent_ps"_a = nb::none(),
          "latent_provenance"_a = nb::none(), "latent_shared_ps"_a = nb::none(),
          "latent_rule"_a = std::array<std::int64_t, 3>{});
}

void bind_operators(nb::module_& m) {
  nb::enum_<Feature>(m, "Feature")
      .value("TOKENS", Feature::kTokens)
      .value("SEQUENCES", Feature::kSequences)
      .value("GATHERED", Feature::kGathered)
      .value("DECODES", Feature::kDecodes)
      .value("PREFILLS", Feature::kPrefills)
      .value("ADAPTER_TOKENS", Feature::kAdapterTokens)
      .value("ADAPTER_ROWS", Feature::kAdapterRows)
      .value("ADAPTERS", Feature::kAdapters)
      .value("ADAPTER_EXPERTS", Feature::kAdapterExperts)
      .value("ADAPTER_LOADS", Feature::kAdapterLoads)
      .value("ADAPTER_READS", Feature::kAdapterReads)
      .value("ENCODER_TOKENS", Feature::kEncoderTokens)
      .value("ENCODER_PAIRS", Feature::kEncoderPairs);
  nb::enum_<NodeKind>(m, "NodeKind")
      .value("COMPUTE", NodeKind::kCompute)
      .value("ATTENTION", NodeKind::kAttention)
      .value("COLLECTIVE", NodeKind::kCollective)
      .value("STAGE_SEND", NodeKind::kStageSend);

  nb::class_<SampledCostTable>(
      m, "SampledCostTable",
      "Times sampled before the run: [layer][draw][token count]; a counter chooses the draw.")
      .def(
          "__init__",
          [](SampledCostTable* sampled, const In<std::int64_t>& tokens, std::int32_t layers,
             std::int32_t draws, const In<std::int64_t>& ps, std::uint64_t seed,
             std::uint8_t provenance, std::int32_t first_layer, bool in_order) {
            SampledCostTable made(Axis(to_vector(tokens)), layers, draws, to_vector(ps), seed,
                                  provenance, first_layer, in_order);
            if (!made.valid() || provenance >= kNumProvenances)
              throw std::invalid_argument("a ragged table of draws");
            new (sampled) SampledCostTable(std::move(made));
          },
          "tokens"_a, "layers"_a, "draws"_a, "ps"_a, "seed"_a, "provenance"_a, "first_layer"_a = 0,
          "in_order"_a = false);

  nb::class_<Operator>(m, "Operator")
      .def(
          "__init__",
          [](Operator* op, std::string name, NodeKind kind, Feature feature, std::int32_t part,
             std::int32_t repeat, const In<std::int64_t>& ps, const In<std::uint8_t>& provenance,
             std::int32_t stage, std::int32_t attention, std::shared_ptr<SampledCostTable> sampled,
             std::vector<std::int32_t> layers, bool caches) {
            new (op) Operator{std::move(name),
                              kind,
                              feature,
                              part,
                              repeat,
                              to_vector(ps),
                              to_vector(provenance),
                              stage,
                              attention,
                              std::move(sampled),
                              std::move(layers),
                              caches || kind == NodeKind::kAttention};
          },
          "name"_a, "kind"_a, "feature"_a, "part"_a, "repeat"_a, "ps"_a, "provenance"_a,
          "stage"_a = 0, "attention"_a = 0, "sampled"_a.none() = nb::none(),
          "layers"_a = std::vector<std::int32_t>{}, "caches"_a = false)
      .def_ro("name", &Operator::name);
}

void bind_rules(nb::module_& m) {
  nb::class_<LowerBound>(m, "LowerBound", "What peak_rates allows; zeros are not checked.")
      .def(nb::init<>())
      .def_rw("weight_bytes", &LowerBound::weight_bytes)
      .def_rw("kv_bytes_per_token", &LowerBound::kv_bytes_per_token)
      .def_rw("cached_kv_bytes", &LowerBound::cached_kv_bytes)
      .def_rw("bytes_per_s", &LowerBound::bytes_per_s)
      .def_rw("flops_per_token", &LowerBound::flops_per_token)
      .def_rw("flops_per_s", &LowerBound::flops_per_s);

  nb::enum_<GraphMode>(m, "GraphMode")
      .value("NONE", GraphMode::kNone)
      .value("PIECEWISE", GraphMode::kPiecewise)
      .value("FULL", GraphMode::kFull);
  nb::class_<GraphRules>(m, "GraphRules",
                         "Which graph a batch replays, and the host's time for each kind (ps).")
      .def(nb::init<>())
      .def_rw("query", &GraphRules::query)
      .def_rw("largest_decode", &GraphRules::largest_decode)
      .def_rw("largest_mixed", &GraphRules::largest_mixed)
      .def_rw("mixed_takes_decodes", &GraphRules::mixed_takes_decodes)
      .def_rw("mixed", &GraphRules::mixed)
      .def_rw("padded_decode", &GraphRules::padded_decode)
      .def_rw("host_ps", &GraphRules::host_ps)
      .def_rw("prepare_ps", &GraphRules::prepare_ps)
      .def_rw("prepare_sequence_ps", &GraphRules::prepare_sequence_ps)
      .def_rw("posts_reads", &GraphRules::posts_reads);
}

void bind_power(nb::module_& m) {
  nb::class_<PowerTables>(m, "PowerTables",
                          "What a step's operators do on a device whose power is limited: mW, pJ "
                          "and ps; a window of 0 is no limit.")
      .def(
          "__init__",
          [](PowerTables* power, std::int64_t limit_mw, std::int64_t idle_mw, Ps window_ps,
             std::int64_t stages) {
            new (power) PowerTables{.limit = {limit_mw, idle_mw, window_ps},
                                    .rows = std::vector<std::vector<DeviceWork>>(kNumFeatures),
                                    .attentions = {},
                                    .stages = stages};
          },
          "limit_mw"_a, "idle_mw"_a, "window_ps"_a, "stages"_a)
      .def(
          "add_operator",
          [](PowerTables& power, Feature feature, const In<std::int64_t>& switching_pj,
             const In<std::int64_t>& traffic_pj, const In<std::int64_t>& clocked_ps) {
            auto& rows = power.rows[static_cast<std::size_t>(feature)];
            const std::size_t size = switching_pj.shape(0);
            if (traffic_pj.shape(0) != size || clocked_ps.shape(0) != size ||
                (!rows.empty() && rows.size() != size))
              throw std::invalid_argument("tables of power of one feature are of one length");
            rows.resize(size);
            for (std::size_t i = 0; i < size; ++i)
              rows[i] += {switching_pj(i), traffic_pj(i), clocked_ps(i)};
          },
          "feature"_a, "switching_pj"_a, "traffic_pj"_a, "clocked_ps"_a,
          "Of all its executions in a step, by the rows of its feature.")
      .def(
          "add_attention",
          [](PowerTables& power, std::int64_t switching_pj_per_pair,
             std::int64_t traffic_pj_per_token, std::int64_t layers) {
            power.attentions.push_back({switching_pj_per_pair, traffic_pj_per_token, layers});
          },
          "switching_pj_per_pair"_a, "traffic_pj_per_token"_a, "layers"_a,
          "Of the next kind, by pair of a prompt's token and one that it sees, and by token of KV "
          "that is read.");
}

// The batch, if the program's tables reach as far.
Batch batch_for(const Program& program, const Items& items) {
  Batch batch = batch_of(items);
  const std::int64_t tokens = program.rank_features(batch).tokens;
  if (tokens > program.most_tokens())
    throw std::invalid_argument("a batch of " + std::to_string(tokens) +
                                " tokens; the program's tables end at " +
                                std::to_string(program.most_tokens()));
  return batch;
}

// What tests and graphs of single steps ask.
void bind_questions(nb::class_<Program>& program) {
  program
      .def(
          "step_ps",
          [](const Program& p, const Items& items) {
            const Batch batch = batch_for(p, items);
            auto usage = p.new_usage();
            const std::int64_t tokens = p.padded(p.rank_features(batch));
            const auto place = p.place(batch, tokens, tokens);
            const Ps busy = p.evaluate(batch, place, p.attention_layer(batch), usage, {}).ps;
            const Ps span = p.launched(busy, place.mode);
            return std::max<Ps>(1, span + p.host_gap(batch.features.sequences));
          },
          "items"_a, "Duration of a step of (tokens, computed before) items, ps.")
      .def(
          "attention_ps",
          [](const Program& p, const Items& items) {
            const Batch batch = batch_of(items);
            std::vector<Ps> layers;
            for (const AttentionPrice& price : p.attention_layer(batch)) layers.push_back(price.ps);
            return layers;
          },
          "items"_a,
          "One layer of each kind of attention, ps; 0 for kinds that the program does not have.")
      .def(
          "device_work",
          [](const Program& p, const Items& items) {
            const Batch batch = batch_for(p, items);
            const auto place = p.place(batch, p.padded(p.rank_features(batch)), 0);
            const DeviceWork work = p.limits_power()
                                        ? p.device_work(batch, place, p.attention_layer(batch))
                                        : DeviceWork{};
            return std::tuple(work.switching_pj, work.traffic_pj, work.clocked);
          },
          "items"_a,
          "Of a step on one device: pJ that its operations switch and that its bytes take, and ps "
          "that the clock limits; zeros without tables of power.")
      .def(
          "rank_graph",
          [](const Program& p, const Items& items) {
            const Features mine = p.rank_features(batch_for(p, items));
            return std::tuple(p.graph_mode(mine), mine.tokens, p.padded(mine));
          },
          "items"_a,
          "What a rank replays of a batch, its tokens, and the tokens that it computes, if it is "
          "alone.")
      .def(
          "padded",
          [](const Program& p, std::int64_t tokens, GraphMode mode) {
            return p.padded(tokens, mode);
          },
          "tokens"_a, "mode"_a,
          "What members of a domain compute whose largest batch has so many tokens.")
      .def(
          "place",
          [](const Program& p, const Items& items, std::int64_t padded, std::int64_t gathered,
             const std::vector<std::int32_t>& adapters) {
            return p.place(batch_of(items, adapters), padded, gathered).rows();
          },
          "items"_a, "padded"_a, "gathered"_a, "adapters"_a = std::vector<std::int32_t>{},
          "Of each feature, what a step of this batch has, padding included.");
}

}  // namespace

void bind_program(nb::module_& m) {
  bind_attention(m);
  bind_operators(m);
  bind_rules(m);
  bind_power(m);
  nb::class_<Program> program(m, "Program");
  program
      .def(
          "__init__",
          [](Program* p, std::vector<Operator> operators, AttentionHandle& attention,
             const In<std::int32_t>& padded_tokens, const LowerBound& floor, Ps host_gap_ps,
             std::int64_t largest_graph, const std::vector<AttentionHandle*>& others,
             std::int32_t context_ranks) {
            std::vector<std::unique_ptr<AttentionCost>> attentions;
            const auto take = [&](AttentionHandle& handle) {
              if (!handle.cost)
                throw std::invalid_argument("this attention already belongs to a program");
              attentions.push_back(std::move(handle.cost));
            };
            take(attention);
            for (AttentionHandle* other : others) take(*other);
            new (p) Program(std::move(operators), std::move(attentions), to_vector(padded_tokens),
                            floor, host_gap_ps, largest_graph, context_ranks);
          },
          "operators"_a, "attention"_a, "padded_tokens"_a, "floor"_a, "host_gap_ps"_a,
          "largest_graph"_a = 0, "other_attentions"_a = std::vector<AttentionHandle*>{},
          "context_ranks"_a = 1)
      .def("set_graphs", &Program::set_graphs, "rules"_a)
      .def_prop_ro("num_stages", &Program::num_stages)
      .def("set_host_sequence", &Program::set_host_sequence, "each_ps"_a)
      .def(
          "graph",
          [](const Program& p, const std::vector<std::int64_t>& tokens) {
            Features features;
            for (const std::int64_t q : tokens) features.add(q, 0);
            return std::pair(p.graph_mode(features), p.padded(features));
          },
          "tokens"_a,
          "What a batch of sequences with so many tokens replays, and the tokens that it computes.")
      .def("set_power", &Program::set_power, "tables"_a,
           "Devices lower their clock where their mean power reaches the limit.")
      .def("give_drafts_rows", &Program::give_drafts_rows,
           "Verified drafts count as sequences in the tables.");
  bind_questions(program);
}

}  // namespace llmsim
