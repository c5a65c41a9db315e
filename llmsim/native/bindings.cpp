// The Python face of the serving core: objects and arrays in, arrays out; every decision stays in the core.
#include "python/bindings.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "content_hasher.h"
#include "emissions.h"
#include "expanded.h"
#include "simulation.h"
#include "vllm_v1.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace llmsim {
namespace {

template <typename T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Out = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <typename T>
std::vector<T> to_vector(const In<T>& array) {
  return std::vector<T>(array.data(), array.data() + array.shape(0));
}

// Copies, so that what Python holds outlives the simulation.
template <typename T>
Out<T> to_array(const std::vector<T>& values) {
  T* data = new T[values.size()];
  std::copy(values.begin(), values.end(), data);
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return Out<T>(data, {values.size()}, owner);
}

void add_tokens(ContentHasher& hasher, const nb::list& ids) {
  for (const nb::handle id : ids) hasher.token(nb::cast<std::int64_t>(id));
}

void bind_content_hasher(nb::module_& m) {
  nb::class_<ContentHasher>(m, "ContentHasher", "Names the content of full token blocks by dense ids from 1.")
      .def(nb::init<std::int32_t>(), "granularity"_a)
      .def(
          "add",
          [](ContentHasher& h, const nb::list& input_ids, const nb::object& output_ids) {
            add_tokens(h, input_ids);
            if (!output_ids.is_none()) add_tokens(h, nb::cast<nb::list>(output_ids));
            h.end();
          },
          "input_ids"_a, "output_ids"_a.none() = nb::none(), "The next request, as lists of token ids.")
      .def("skip", &ContentHasher::end, "The next request has no token ids.")
      .def("offsets", [](const ContentHasher& h) { return to_array(h.offsets()); })
      .def("keys", [](const ContentHasher& h) { return to_array(h.keys()); });
}

template <std::size_t N>
Grid<N> make_grid(const std::vector<In<std::int64_t>>& axes, const In<std::int64_t>& ps) {
  if (axes.size() != N) throw std::invalid_argument("a grid of " + std::to_string(N) + " axes is needed");
  std::size_t cells = 1;
  for (const auto& axis : axes) {
    if (axis.shape(0) == 0) throw std::invalid_argument("an axis is empty");
    for (std::size_t i = 1; i < axis.shape(0); ++i)
      if (axis.data()[i] <= axis.data()[i - 1]) throw std::invalid_argument("an axis does not ascend");
    cells *= axis.shape(0);
  }
  if (cells != ps.shape(0)) throw std::invalid_argument("grid and axes differ in size");
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    return Grid<N>({Axis(to_vector(axes[I]))...}, to_vector(ps));
  }(std::make_index_sequence<N>());
}

// Handed to Program, which takes it over: usable once.
struct AttentionHandle {
  std::unique_ptr<AttentionCost> cost;
};

void bind_program(nb::module_& m) {
  nb::class_<AttentionHandle>(m, "Attention", "Attention of one layer, priced by the batch; used by one Program.")
      .def_static(
          "mixed",
          [](const std::vector<In<std::int64_t>>& axes, const In<std::int64_t>& ps, std::int64_t skew_ps) {
            return AttentionHandle{std::make_unique<MixedGridAttention>(make_grid<4>(axes, ps), skew_ps)};
          },
          "axes"_a, "ps"_a, "skew_ps"_a)
      .def_static(
          "split",
          [](const std::vector<In<std::int64_t>>& prefill_axes, const In<std::int64_t>& prefill_ps,
             const std::vector<In<std::int64_t>>& decode_axes, const In<std::int64_t>& decode_ps, std::int64_t mixed_ps,
             std::int64_t skew_ps) {
            return AttentionHandle{std::make_unique<SplitGridAttention>(
                make_grid<2>(prefill_axes, prefill_ps), make_grid<2>(decode_axes, decode_ps), mixed_ps, skew_ps)};
          },
          "prefill_axes"_a, "prefill_ps"_a, "decode_axes"_a, "decode_ps"_a, "mixed_ps"_a, "skew_ps"_a);

  nb::enum_<Feature>(m, "Feature").value("TOKENS", Feature::kTokens).value("SEQUENCES", Feature::kSequences);
  nb::enum_<NodeKind>(m, "NodeKind")
      .value("COMPUTE", NodeKind::kCompute)
      .value("ATTENTION", NodeKind::kAttention)
      .value("COLLECTIVE", NodeKind::kCollective);

  nb::class_<Operator>(m, "Operator")
      .def(
          "__init__",
          [](Operator* op, std::string name, NodeKind kind, Feature feature, std::int32_t part, std::int32_t repeat,
             const In<std::int64_t>& ps, const In<std::uint8_t>& provenance) {
            new (op) Operator{std::move(name), kind, feature, part, repeat, to_vector(ps), to_vector(provenance)};
          },
          "name"_a, "kind"_a, "feature"_a, "part"_a, "repeat"_a, "ps"_a, "provenance"_a)
      .def_ro("name", &Operator::name);

  nb::class_<LightFloor>(m, "LightFloor", "What light allows; zeros are not checked.")
      .def(nb::init<>())
      .def_rw("weight_bytes", &LightFloor::weight_bytes)
      .def_rw("kv_bytes_per_token", &LightFloor::kv_bytes_per_token)
      .def_rw("cached_kv_bytes", &LightFloor::cached_kv_bytes)
      .def_rw("bytes_per_s", &LightFloor::bytes_per_s)
      .def_rw("flops_per_token", &LightFloor::flops_per_token)
      .def_rw("flops_per_s", &LightFloor::flops_per_s);

  nb::class_<Program>(m, "Program")
      .def(
          "__init__",
          [](Program* p, std::vector<Operator> operators, AttentionHandle& attention,
             const In<std::int32_t>& padded_tokens, const LightFloor& floor, Ps host_gap_ps) {
            if (!attention.cost) throw std::invalid_argument("this attention already belongs to a program");
            new (p)
                Program(std::move(operators), std::move(attention.cost), to_vector(padded_tokens), floor, host_gap_ps);
          },
          "operators"_a, "attention"_a, "padded_tokens"_a, "floor"_a, "host_gap_ps"_a)
      .def(
          "step_ps",
          [](const Program& p, const std::vector<std::pair<std::int64_t, std::int64_t>>& items) {
            Batch batch;
            for (const auto& [q, k] : items) {
              batch.items.push_back({0, static_cast<std::int32_t>(q), static_cast<std::int32_t>(k), 0, 0, true});
              batch.features.add(q, k);
            }
            auto usage = p.new_usage();
            return p.evaluate(batch, usage);
          },
          "items"_a, "Duration of a step of (tokens, computed before) items, ps.");
}

void bind_configs(nb::module_& m) {
  nb::enum_<QueueOrder>(m, "QueueOrder").value("FCFS", QueueOrder::kFcfs).value("PRIORITY", QueueOrder::kPriority);
  nb::enum_<FreeOrder>(m, "FreeOrder")
      .value("APPEND", FreeOrder::kAppend)
      .value("UNKEYED_FIRST", FreeOrder::kUnkeyedFirst);
  nb::class_<KvCacheConfig>(m, "KvCacheConfig")
      .def(nb::init<>())
      .def_rw("num_blocks", &KvCacheConfig::num_blocks)
      .def_rw("block_size", &KvCacheConfig::block_size)
      .def_rw("max_model_len", &KvCacheConfig::max_model_len)
      .def_rw("prefix_caching", &KvCacheConfig::prefix_caching)
      .def_rw("free_order", &KvCacheConfig::free_order);
  nb::class_<VllmV1Config>(m, "VllmV1Config")
      .def(nb::init<>())
      .def_rw("max_num_seqs", &VllmV1Config::max_num_seqs)
      .def_rw("max_num_scheduled_tokens", &VllmV1Config::max_num_scheduled_tokens)
      .def_rw("long_prefill_token_threshold", &VllmV1Config::long_prefill_token_threshold)
      .def_rw("chunked_prefill", &VllmV1Config::chunked_prefill)
      .def_rw("reserve_full_isl", &VllmV1Config::reserve_full_isl)
      .def_rw("async_scheduling", &VllmV1Config::async_scheduling)
      .def_rw("watermark_blocks", &VllmV1Config::watermark_blocks)
      .def_rw("order", &VllmV1Config::order)
      .def_rw("num_speculative_tokens", &VllmV1Config::num_speculative_tokens)
      .def_rw("num_lookahead_tokens", &VllmV1Config::num_lookahead_tokens)
      .def_rw("accepted_draft_tokens", &VllmV1Config::accepted_draft_tokens)
      .def_rw("kv", &VllmV1Config::kv);
  nb::class_<GroupConfig>(m, "GroupConfig")
      .def(nb::init<>())
      .def_rw("index", &GroupConfig::index)
      .def_rw("model", &GroupConfig::model)
      .def_rw("depth", &GroupConfig::depth)
      .def_rw("api_latency_ps", &GroupConfig::api_latency);
}

nb::dict schedule_columns(const ScheduleRecorder& r) {
  nb::dict d;
  d["time_ps"] = to_array(r.time_ps);
  d["end_ps"] = to_array(r.end_ps);
  d["running"] = to_array(r.running);
  d["waiting"] = to_array(r.waiting);
  d["free_blocks"] = to_array(r.free_blocks);
  d["free_blocks_after"] = to_array(r.free_blocks_after);
  d["item_offsets"] = to_array(r.item_offsets);
  d["item_request"] = to_array(r.item_request);
  d["item_tokens"] = to_array(r.item_tokens);
  d["item_computed"] = to_array(r.item_computed);
  d["item_drafts"] = to_array(r.item_drafts);
  d["finished_step"] = to_array(r.finished_step);
  d["finished_request"] = to_array(r.finished_request);
  d["preempted_step"] = to_array(r.preempted_step);
  d["preempted_request"] = to_array(r.preempted_request);
  return d;
}

template <typename T>
void append(std::vector<T>& all, const std::vector<T>& part) {
  all.insert(all.end(), part.begin(), part.end());
}

// Steps of all groups, group by group.
nb::dict step_columns(const Simulation& s) {
  StepRecorder all;
  for (const auto& group : s.groups()) {
    if (!group->steps) continue;
    const StepRecorder& r = *group->steps;
    append(all.group, r.group);
    append(all.schedule_ps, r.schedule_ps);
    append(all.start_ps, r.start_ps);
    append(all.end_ps, r.end_ps);
    append(all.tokens, r.tokens);
    append(all.padded_tokens, r.padded_tokens);
    append(all.prefill_tokens, r.prefill_tokens);
    append(all.sequences, r.sequences);
    append(all.decode_sequences, r.decode_sequences);
    append(all.running, r.running);
    append(all.waiting, r.waiting);
    append(all.free_blocks, r.free_blocks);
    append(all.preempted, r.preempted);
  }
  nb::dict d;
  d["group"] = to_array(all.group);
  d["schedule_ps"] = to_array(all.schedule_ps);
  d["start_ps"] = to_array(all.start_ps);
  d["end_ps"] = to_array(all.end_ps);
  d["tokens"] = to_array(all.tokens);
  d["padded_tokens"] = to_array(all.padded_tokens);
  d["prefill_tokens"] = to_array(all.prefill_tokens);
  d["sequences"] = to_array(all.sequences);
  d["decode_sequences"] = to_array(all.decode_sequences);
  d["running"] = to_array(all.running);
  d["waiting"] = to_array(all.waiting);
  d["free_blocks"] = to_array(all.free_blocks);
  d["preempted"] = to_array(all.preempted);
  return d;
}

// Rows from `first` on, so that heartbeats can be printed while the run goes on.
nb::dict series_columns(const Simulation& s, std::size_t first) {
  const Series& r = s.series();
  const auto tail = [first](const auto& column) {
    using Column = std::decay_t<decltype(column)>;
    return to_array(Column(column.begin() + static_cast<std::ptrdiff_t>(std::min(first, column.size())), column.end()));
  };
  nb::dict d;
  d["time_ps"] = tail(r.time_ps);
  d["group"] = tail(r.group);
  d["running"] = tail(r.running);
  d["waiting"] = tail(r.waiting);
  d["kv_blocks_used"] = tail(r.kv_blocks_used);
  d["kv_blocks_cached"] = tail(r.kv_blocks_cached);
  d["prompt_tokens"] = tail(r.prompt_tokens);
  d["generation_tokens"] = tail(r.generation_tokens);
  d["hit_tokens"] = tail(r.hit_tokens);
  d["queried_tokens"] = tail(r.queried_tokens);
  d["preemptions"] = tail(r.preemptions);
  return d;
}

nb::dict request_columns(const Simulation& s) {
  const RequestLog& log = s.log();
  const SequenceTable& sequences = s.sequences();
  std::vector<std::uint8_t> status(sequences.size());
  for (std::size_t i = 0; i < sequences.size(); ++i) status[i] = sequences[static_cast<RequestId>(i)].status;
  nb::dict d;
  d["group"] = to_array(log.group);
  d["status"] = to_array(status);
  d["arrival_ps"] = to_array(s.arrivals().arrival_ps);
  d["queued_ps"] = to_array(log.queued);
  d["scheduled_ps"] = to_array(log.scheduled);
  d["first_token_ps"] = to_array(log.first_token);
  d["finish_ps"] = to_array(log.finish);
  d["emitted_tokens"] = to_array(log.emitted_tokens);
  d["cached_tokens"] = to_array(log.cached_tokens);
  d["preemptions"] = to_array(log.preemptions);
  return d;
}

// One value per group and counter.
nb::dict counter_columns(const Simulation& s) {
  nb::dict d;
  const auto column = [&](const char* name, auto&& value) {
    std::vector<std::int64_t> values;
    for (const auto& group : s.groups()) values.push_back(value(*group));
    d[name] = to_array(values);
  };
  column("steps", [](const Group& g) { return static_cast<std::int64_t>(g.evaluator().usage().steps); });
  column("steps_below_light", [](const Group& g) { return g.evaluator().usage().steps_below_light; });
  column("scheduled_tokens", [](const Group& g) { return g.scheduled_tokens(); });
  column("prompt_tokens", [](const Group& g) { return g.builder().counters().prompt_tokens; });
  column("generation_tokens", [](const Group& g) { return g.builder().counters().generation_tokens; });
  column("preemptions", [](const Group& g) { return g.builder().counters().preemptions; });
  column("recomputed_tokens", [](const Group& g) { return g.builder().counters().recomputed_tokens; });
  column("prefix_queried_tokens", [](const Group& g) { return g.builder().counters().prefix_queried_tokens; });
  column("prefix_hit_tokens", [](const Group& g) { return g.builder().counters().prefix_hit_tokens; });
  column("busy_ps", [](const Group& g) { return g.busy(); });
  column("peak_blocks_used", [](const Group& g) { return std::int64_t{g.builder().counters().peak_blocks_used}; });
  column("total_blocks", [](const Group& g) { return std::int64_t{g.builder().kv_cache().config().num_blocks}; });
  column("free_blocks", [](const Group& g) { return std::int64_t{g.builder().kv_cache().pool().num_free()}; });
  column("pool_consistent", [](const Group& g) { return std::int64_t{g.builder().kv_cache().pool().consistent()}; });
  column("running", [](const Group& g) { return std::int64_t{g.num_running()}; });
  column("waiting", [](const Group& g) { return std::int64_t{g.num_waiting()}; });
  column("idle_with_work", [](const Group& g) { return g.idle_with_work(); });
  column("finished", [](const Group& g) { return g.builder().counters().finished; });
  column("rejected", [](const Group& g) { return static_cast<std::int64_t>(g.rejected().size()); });
  return d;
}

nb::list busy_time(const Simulation& s) {
  nb::list rows;
  for (const auto& group : s.groups()) {
    const Program& program = group->evaluator().program();
    for (const OperatorTime& time : program.busy_time(group->evaluator().usage())) {
      nb::list ps;
      for (const std::int64_t value : time.ps) ps.append(value);
      rows.append(nb::make_tuple(group->config().index, time.op, nb::tuple(ps)));
    }
  }
  return rows;
}

void add_group(Simulation& s, const GroupConfig& config, const VllmV1Config& scheduler,
               const std::shared_ptr<Program>& program, const ExpandedConfig* expanded, bool record_steps,
               bool record_schedule) {
  if (config.depth < 1) throw std::invalid_argument("depth must be at least 1");
  if (scheduler.kv.num_blocks < 2) throw std::invalid_argument("a pool needs at least 2 blocks");
  std::unique_ptr<Evaluator> evaluator;
  if (expanded != nullptr) {
    evaluator = std::make_unique<ExpandedEvaluator>(program, *expanded);
  } else {
    evaluator = std::make_unique<FoldedEvaluator>(program);
  }
  auto group = std::make_unique<Group>(config, std::make_unique<VllmV1>(scheduler, s.sequences(), s.log()),
                                       std::move(evaluator), s.sequences(), s.log());
  if (record_steps) group->steps = std::make_unique<StepRecorder>();
  if (record_schedule) group->schedule = std::make_unique<ScheduleRecorder>();
  s.add_group(std::move(group));
}

void bind_expanded(nb::module_& m) {
  nb::class_<CollectiveSpec>(m, "CollectiveSpec", "How one collective operator runs; 0 bytes: by its own table.")
      .def(
          "__init__",
          [](CollectiveSpec* spec, std::int32_t op, astra_sim::model::CollectiveKind kind,
             std::int64_t bytes_per_unit) { new (spec) CollectiveSpec{op, kind, bytes_per_unit}; },
          "op"_a, "kind"_a, "bytes_per_unit"_a);
  nb::class_<ExpandedConfig>(m, "ExpandedConfig", "A group's own links and the collectives that run on them.")
      .def(
          "__init__",
          [](ExpandedConfig* config, std::shared_ptr<astra_sim::model::Topology> topology,
             astra_sim::engine::NetworkKind network, std::vector<CollectiveSpec> collectives) {
            new (config) ExpandedConfig{std::move(topology), network, std::move(collectives)};
          },
          "topology"_a, "network"_a, "collectives"_a);
}

void bind_simulation(nb::module_& m) {
  nb::exception<Stalled>(m, "Stalled", PyExc_RuntimeError);
  nb::class_<Simulation>(m, "Simulation")
      .def(
          "__init__",
          [](Simulation* s, const In<std::int64_t>& arrival_ps, const In<std::int32_t>& input_tokens,
             const In<std::int32_t>& output_tokens, const In<std::int16_t>& model, const In<std::int32_t>& next_call,
             const In<std::int64_t>& tool_delay_ps, const In<std::int32_t>& priority,
             const In<std::int64_t>& key_offsets, const In<std::uint64_t>& keys, std::int32_t granularity,
             Ps series_interval_ps) {
            new (s) Simulation(Arrivals{to_vector(arrival_ps), to_vector(input_tokens), to_vector(priority),
                                        to_vector(model), to_vector(next_call), to_vector(tool_delay_ps)},
                               to_vector(output_tokens),
                               ContentKeys{to_vector(key_offsets), to_vector(keys), granularity}, series_interval_ps);
          },
          "arrival_ps"_a, "input_tokens"_a, "output_tokens"_a, "model"_a, "next_call"_a, "tool_delay_ps"_a,
          "priority"_a, "key_offsets"_a, "keys"_a, "granularity"_a, "series_interval_ps"_a)
      .def("add_group", &add_group, "config"_a, "scheduler"_a, "program"_a, "expanded"_a.none() = nb::none(),
           "record_steps"_a = false, "record_schedule"_a = false,
           "With `expanded`, every rank's nodes run in the engine instead of the folded program.")
      .def(
          "set_router",
          [](Simulation& s, const std::string& name, std::uint64_t seed, std::size_t num_models) {
            s.set_router(make_router(name, seed, num_models));
          },
          "name"_a, "seed"_a, "num_models"_a)
      .def("run", &Simulation::run, "max_events"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Handles up to max_events events; True when nothing is left.")
      .def_prop_ro("now_ps", &Simulation::now)
      .def_prop_ro("num_finished", &Simulation::num_finished)
      .def_prop_ro("num_rejected", &Simulation::num_rejected)
      .def("requests", &request_columns)
      .def("steps", &step_columns)
      .def("series", &series_columns, "first"_a = 0)
      .def("counters", &counter_columns)
      .def("busy_time", &busy_time)
      .def("schedule",
           [](const Simulation& s, std::size_t group) { return schedule_columns(*s.groups().at(group)->schedule); });

  nb::class_<Emissions>(m, "Emissions")
      .def(nb::init<const Simulation&>(), "simulation"_a, nb::keep_alive<1, 2>())
      .def("inter_token_latencies",
           [](const Emissions& e) {
             const WeightedValues w = e.inter_token_latencies();
             return nb::make_tuple(to_array(w.value), to_array(w.count));
           })
      .def("inter_token_latencies_of",
           [](const Emissions& e, RequestId request) { return to_array(e.inter_token_latencies_of(request)); });
}

}  // namespace
}  // namespace llmsim

NB_MODULE(_native, m) {
  m.doc() = "llmsim's serving core: scheduler, KV cache, step programs and the event loop.";
  nb::module_ engine = m.def_submodule("engine", "The network and execution-graph engine (astra-sim/).");
  astra_sim::python::bind_engine(engine);
  llmsim::bind_content_hasher(m);
  llmsim::bind_program(m);
  llmsim::bind_configs(m);
  llmsim::bind_expanded(m);
  llmsim::bind_simulation(m);
}
