// Controllers in Python: what adds and removes groups while a run goes on.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bindings/bindings.h"
#include "kv/tiers/kv_tiers.h"

using namespace nanobind::literals;

namespace llmsim {
namespace {

// What a controller in Python may do during a call of it.
struct MembershipView {
  Membership* membership = nullptr;  // null: the call is over

  Membership& open() const {
    if (membership == nullptr)
      throw std::runtime_error("a membership is open only during the call of its controller");
    return *membership;
  }
};

// Calls act(membership, now_ps) at given times.
class PythonController final : public Controller {
 public:
  PythonController(std::vector<Ps> times, SharedObject act)
      : times_(std::move(times)), act_(std::move(act)) {}

  void begin(Membership& membership) override {
    membership_ = &membership;
    for (const Ps time : times_) post(time, Phase::kControl);
  }
  void on_event(Ps now, Phase, std::uint32_t) override {
    const nb::gil_scoped_acquire lock;
    auto view = std::make_shared<MembershipView>(MembershipView{membership_});
    struct Close {
      MembershipView& view;
      ~Close() { view.membership = nullptr; }
    } const close{*view};
    (*act_)(view, now);
  }

 private:
  std::vector<Ps> times_;
  SharedObject act_;
  Membership* membership_ = nullptr;
};

using RouteTuple = std::tuple<std::int32_t, std::int32_t, std::int32_t>;

void add_group(const MembershipView& view, const GroupSpec& spec,
               std::vector<NetworkNodeId> kv_nodes, const std::vector<RouteTuple>& kv_routes) {
  GroupAddition addition{spec, std::move(kv_nodes), {}};
  for (const auto& [prefill, decode, table] : kv_routes)
    addition.kv_routes.push_back({prefill, decode, table});
  view.open().add_group(addition);
}

LayoutDecision decision_of(nb::object callable) {
  if (callable.is_none()) return nullptr;
  return [shared = share(std::move(callable))](
             Ps now, const std::vector<std::pair<std::int32_t, std::int32_t>>& groups) {
    const nb::gil_scoped_acquire locked;
    return nb::cast<std::int32_t>((*shared)(now, groups));
  };
}

void bind_layouts(nb::module_& m) {
  nb::enum_<TriggerKind>(m, "TriggerKind", "What a switch of layouts waits for.")
      .value("AT", TriggerKind::kAt)
      .value("OPEN_SHARE_BELOW", TriggerKind::kOpenShareBelow)
      .value("ENDED_SHARE_ABOVE", TriggerKind::kEndedShareAbove)
      .value("WAITING_BELOW", TriggerKind::kWaitingBelow);
  nb::enum_<KvOnSwitch>(m, "KvOnSwitch", "What becomes of KV when layouts are switched.")
      .value("MOVE", KvOnSwitch::kMove)
      .value("RECOMPUTE", KvOnSwitch::kRecompute)
      .value("DROP", KvOnSwitch::kDrop);
  nb::class_<LayoutTrigger>(m, "LayoutTrigger", "A switch of layouts, and what it waits for.")
      .def(
          "__init__",
          [](LayoutTrigger* trigger, std::int32_t to, TriggerKind kind, std::int64_t value) {
            new (trigger) LayoutTrigger{to, kind, value};
          },
          "to"_a, "kind"_a, "value"_a,
          "value: ps (AT), millionths (a share), or requests (WAITING_BELOW).");
  nb::class_<LayoutSpec>(m, "LayoutSpec", "Groups that serve together.")
      .def(
          "__init__",
          [](LayoutSpec* spec, std::string name, std::vector<GroupSpec> groups,
             std::vector<LockstepSpec> lockstep, std::vector<ContentionSpec> contention,
             const KvTransferConfig* kv_transfer, const KvTiersConfig* kv_tiers,
             std::vector<std::int64_t> kv_bytes_per_token, std::vector<std::int64_t> devices,
             std::vector<std::int32_t> kinds, std::vector<GroupCopiesConfig> kv_offloading) {
            new (spec) LayoutSpec{std::move(name),
                                  std::move(groups),
                                  std::move(lockstep),
                                  std::move(contention),
                                  kv_transfer == nullptr ? KvTransferConfig{} : *kv_transfer,
                                  {},
                                  std::move(kv_offloading),
                                  std::move(kv_bytes_per_token),
                                  std::move(devices),
                                  std::move(kinds)};
            if (kv_tiers != nullptr) spec->tiers = kv_tiers->groups;
          },
          "name"_a, "groups"_a, "lockstep"_a, "contention"_a, "kv_transfer"_a.none(),
          "kv_tiers"_a.none(), "kv_bytes_per_token"_a, "devices"_a, "kinds"_a,
          "kv_offloading"_a = nb::list(),
          "Groups are numbered from the layout's first one. kv_transfer: the places of all ranks, "
          "and routes. kv_tiers: whose groups are these. kv_bytes_per_token: of each device of a "
          "group. devices: of a group. kinds: of groups between which KV moves alike. "
          "kv_offloading: how the KV of each group comes to host memory.");
  nb::class_<LayoutsConfig>(m, "LayoutsConfig", "Layouts of the same devices, and when to switch.")
      .def(
          "__init__",
          [](LayoutsConfig* config, std::vector<LayoutSpec> layouts, std::int32_t initial,
             std::vector<LayoutTrigger> triggers, std::vector<std::vector<Ps>> weights_ps,
             Ps process_ps, KvOnSwitch kv, nb::object decide) {
            new (config) LayoutsConfig{std::move(layouts),
                                       initial,
                                       std::move(triggers),
                                       decision_of(std::move(decide)),
                                       std::move(weights_ps),
                                       process_ps,
                                       kv,
                                       {},
                                       {},
                                       {}};
          },
          "layouts"_a, "initial"_a, "triggers"_a, "weights_ps"_a, "process_ps"_a, "kv"_a,
          "decide"_a = nb::none(),
          "weights_ps: [from][to]. decide: a function of (now_ps, [(running, waiting), ...]) that "
          "returns a layout, or -1.")
      .def(
          "move_kv",
          [](LayoutsConfig& config, const NetworkConfig& network, const KvTransferConfig& tables,
             std::vector<std::vector<std::int32_t>> table_of) {
            config.network = network;
            config.moves = tables.tables;
            config.move_of = std::move(table_of);
          },
          "network"_a, "tables"_a, "table_of"_a,
          "KV moves over this network. table_of: [from][to] kind of group.");
}

}  // namespace

void bind_membership(nb::module_& m) {
  bind_layouts(m);
  nb::enum_<Removal>(m, "Removal", "What becomes of the requests of a group that is removed.")
      .value("DRAIN", Removal::kDrain)
      .value("HAND_BACK", Removal::kHandBack);
  nb::class_<MembershipView>(m, "Membership", "The groups of a running simulation.")
      .def("add_group", &add_group, "spec"_a, "kv_nodes"_a = std::vector<NetworkNodeId>{},
           "kv_routes"_a = std::vector<RouteTuple>{},
           "The group's index is the next one. kv_nodes, kv_routes (prefill group, decode group, "
           "table): of a group that computes prompts or answers alone.")
      .def(
          "remove_group",
          [](const MembershipView& view, std::int32_t index, Removal removal) {
            view.open().remove_group(index, removal);
          },
          "index"_a, "removal"_a, "The group gets no new requests.")
      .def(
          "outstanding",
          [](const MembershipView& view) {
            std::vector<std::int32_t> requests;
            for (const auto& group : view.open().groups()) requests.push_back(group->outstanding());
            return requests;
          },
          "Requests of each group that it has received and not finished.");
  nb::class_<ControllerMaker>(m, "ControllerMaker", "Makes a controller of a simulation.");
  m.def(
      "python_controller",
      [](std::vector<Ps> times_ps, nb::object act) {
        return ControllerMaker([times = std::move(times_ps), act = share(std::move(act))] {
          return std::make_unique<PythonController>(times, act);
        });
      },
      "times_ps"_a, "act"_a,
      "A function act(membership, now_ps) that is called at these times, before their arrivals.");
}

}  // namespace llmsim
