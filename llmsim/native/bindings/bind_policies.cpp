// Policies written in Python: queue orders, victims, evictions, admissions.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/python/python_router.h"
#include "scheduler/ranking/policies.h"

using namespace nanobind::literals;

namespace llmsim {

SharedObject share(nb::object object) {
  return SharedObject(new nb::object(std::move(object)), [](nb::object* held) {
    const nb::gil_scoped_acquire lock;
    delete held;
  });
}

namespace {

std::int64_t whole(const char* kind, const nb::object& answer) {
  std::int64_t number = 0;
  if (!nb::isinstance<nb::int_>(answer) || !nb::try_cast(answer, number))
    throw BadPolicy(std::string(kind) + " answered " + nb::repr(answer).c_str() +
                    "; a whole number of 64 bits is needed");
  return number;
}

class PythonEviction final : public Eviction {
 public:
  PythonEviction(nb::object freed, nb::object reused, nb::object evict)
      : freed_(share(std::move(freed))),
        reused_(share(std::move(reused))),
        evict_(share(std::move(evict))) {}

  void freed(std::span<const BlockId> blocks) override { tell(*freed_, blocks); }
  void reused(std::span<const BlockId> blocks) override { tell(*reused_, blocks); }
  void evict(std::int32_t count, std::vector<BlockId>& victims) override {
    const nb::gil_scoped_acquire lock;
    const nb::object answer = (*evict_)(count);
    if (!nb::try_cast(answer, victims))
      throw BadPolicy("cache eviction answered " + std::string(nb::repr(answer).c_str()) +
                      "; a list of blocks is needed");
  }

 private:
  static void tell(const nb::object& function, std::span<const BlockId> blocks) {
    const nb::gil_scoped_acquire lock;
    function(std::vector<BlockId>(blocks.begin(), blocks.end()));
  }

  SharedObject freed_, reused_, evict_;
};

// A request as a ranking in Python sees it.
struct Ranked {
  RequestId row;
  Standing standing;
  std::int32_t position, tokens, received, computed, left, blocks, preemptions, priority, session,
      round;
  Ps arrival;
};

// What a ranking in Python sees: a copy of all requests of its group, as columns.
struct RankColumns {
  std::vector<Ranked> requests;

  explicit RankColumns(const RankView& view) {
    requests.reserve(view.candidates.size());
    for (const Candidate& one : view.candidates) {
      const Sequence& s = view.sequences[one.row];
      const auto row = static_cast<std::size_t>(one.row);
      const bool named = view.sessions != nullptr;
      requests.push_back({.row = one.row,
                          .standing = one.standing,
                          .position = one.position,
                          .tokens = s.prompt_tokens,
                          .received = s.emitted(),
                          .computed = s.num_computed,
                          .left = s.num_tokens - s.num_computed,
                          .blocks = static_cast<std::int32_t>(s.blocks.size()),
                          .preemptions = static_cast<std::int32_t>(s.epoch),
                          .priority = s.priority,
                          .session = named ? view.sessions->session[row] : one.row,
                          .round = named ? view.sessions->round[row] : 0,
                          .arrival = s.arrival});
    }
  }

  template <typename T>
  Out<T> column(T Ranked::* member) const {
    std::vector<T> values;
    values.reserve(requests.size());
    for (const Ranked& one : requests) values.push_back(one.*member);
    return to_array(std::move(values));
  }
  Out<bool> stands(Standing standing) const {
    auto* values = new bool[requests.size() + 1];
    for (std::size_t i = 0; i < requests.size(); ++i) values[i] = requests[i].standing == standing;
    nb::capsule owner(values, [](void* p) noexcept { delete[] static_cast<bool*>(p); });
    return Out<bool>(values, {requests.size()}, owner);
  }
};

// A ranking in Python: called once per step with the columns, and for its events where it has such
// methods. `rank` gives the place of each candidate; llmsim/scheduling/ranking.py checks it.
class PythonRanking final : public Ranking, public RankEvents {
 public:
  PythonRanking(RankedLists lists, nb::object rank, nb::object added, nb::object scheduled,
                nb::object executed, nb::object left)
      : lists_(lists),
        hears_(!added.is_none() || !scheduled.is_none() || !executed.is_none() || !left.is_none()) {
    rank_ = share(std::move(rank));
    added_ = share(std::move(added));
    scheduled_ = share(std::move(scheduled));
    executed_ = share(std::move(executed));
    left_ = share(std::move(left));
  }

  RankedLists lists() const override { return lists_; }
  RankEvents* events() override { return hears_ ? this : nullptr; }

  void rank(Ps now, const RankView& view, std::span<RankKey> keys) override {
    if (keys.empty()) return;
    const nb::gil_scoped_acquire lock;
    const auto places = nb::cast<In<std::int64_t>>((*rank_)(RankColumns(view), now));
    if (places.shape(0) != keys.size()) throw BadPolicy("ranking gave keys of other requests");
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = {places.data()[i], 0, 0, 0};
  }
  void added(RequestId request, const Sequence&, Ps seen) override {
    const nb::gil_scoped_acquire lock;
    if (!added_->is_none()) (*added_)(request, seen);
  }
  void scheduled(Ps now, const Batch& batch) override {
    const nb::gil_scoped_acquire lock;
    if (scheduled_->is_none()) return;
    (*scheduled_)(column(batch, &Item::request), column(batch, &Item::tokens),
                  column(batch, &Item::computed_before), now);
  }
  void executed(const Batch& batch) override {
    const nb::gil_scoped_acquire lock;
    if (executed_->is_none()) return;
    (*executed_)(column(batch, &Item::request), column(batch, &Item::tokens));
  }
  void left(RequestId request) override {
    const nb::gil_scoped_acquire lock;
    if (!left_->is_none()) (*left_)(request);
  }

 private:
  static Out<std::int32_t> column(const Batch& batch, std::int32_t Item::* member) {
    std::vector<std::int32_t> values;
    values.reserve(batch.items.size());
    for (const Item& item : batch.items) values.push_back(item.*member);
    return to_array(std::move(values));
  }

  RankedLists lists_;
  bool hears_;
  SharedObject rank_, added_, scheduled_, executed_, left_;
};

// One question of an admission policy; its views are refused afterwards.
struct PythonAdmission {
  std::shared_ptr<RouteCall> call;
  SharedObject admit;

  bool operator()(RequestId request, Ps now, const Group& group) const {
    const nb::gil_scoped_acquire lock;
    call->request = request;
    call->now = now;
    call->model = group.config().model;
    call->open = true;
    struct Close {
      RouteCall& call;
      ~Close() { call.open = false; }
    } const close{*call};
    const nb::object answer = (*admit)(RequestView{call}, GroupView{call, &group});
    bool yes = false;
    if (!nb::try_cast(answer, yes, false))
      throw BadPolicy("admission answered " + std::string(nb::repr(answer).c_str()) +
                      "; True or False is needed");
    return yes;
  }
};

template <std::int32_t Ranked::* member>
Out<std::int32_t> column_of(const RankColumns& columns) {
  return columns.column(member);
}

void bind_rank_columns(nb::module_& m) {
  constexpr auto kCopied = nb::rv_policy::automatic;  // columns do not refer to the view
  nb::class_<RankColumns>(m, "RankView",
                          "All requests of a group (llmsim.scheduling.base.RankView).")
      .def("__len__", [](const RankColumns& view) { return view.requests.size(); })
      .def_prop_ro("row", &column_of<&Ranked::row>, kCopied)
      .def_prop_ro(
          "running", [](const RankColumns& v) { return v.stands(Standing::kRunning); }, kCopied)
      .def_prop_ro(
          "parked", [](const RankColumns& v) { return v.stands(Standing::kParked); }, kCopied)
      .def_prop_ro("position", &column_of<&Ranked::position>, kCopied)
      .def_prop_ro("tokens", &column_of<&Ranked::tokens>, kCopied)
      .def_prop_ro("received", &column_of<&Ranked::received>, kCopied)
      .def_prop_ro("computed", &column_of<&Ranked::computed>, kCopied)
      .def_prop_ro("left", &column_of<&Ranked::left>, kCopied)
      .def_prop_ro("blocks", &column_of<&Ranked::blocks>, kCopied)
      .def_prop_ro("preemptions", &column_of<&Ranked::preemptions>, kCopied)
      .def_prop_ro("priority", &column_of<&Ranked::priority>, kCopied)
      .def_prop_ro("session", &column_of<&Ranked::session>, kCopied)
      .def_prop_ro("round", &column_of<&Ranked::round>, kCopied)
      .def_prop_ro(
          "arrival_ps", [](const RankColumns& v) { return v.column(&Ranked::arrival); }, kCopied);
}

void bind_admissions(nb::module_& m) {
  nb::class_<AdmissionMaker>(m, "AdmissionMaker", "Makes the admission policy of a simulation.");
  m.def(
      "queue_limit",
      [](std::int32_t most) {
        return AdmissionMaker([most](const RouterContext&) -> Admission {
          return [most](RequestId, Ps, const Group& group) { return group.num_waiting() < most; };
        });
      },
      "most"_a, "Turns requests away that would find that many waiting in their group.");
  m.def(
      "python_admission",
      [](nb::object admit, nb::object session_names, nb::object model_names) {
        return AdmissionMaker(
            [admit = share(std::move(admit)), session_names = share(std::move(session_names)),
             model_names =
                 share(std::move(model_names))](const RouterContext& context) -> Admission {
              const nb::gil_scoped_acquire lock;
              auto call = std::shared_ptr<RouteCall>(new RouteCall(), [](RouteCall* held) {
                const nb::gil_scoped_acquire held_lock;
                delete held;
              });
              call->context = context;
              call->session_names = *session_names;
              call->model_names = *model_names;
              return PythonAdmission{std::move(call), admit};
            });
      },
      "admit"_a, "session_names"_a.none(), "model_names"_a,
      "A function admit(request, group) -> bool (llmsim.scheduling.base.Admission).");
}

}  // namespace

void bind_policies(nb::module_& m) {
  nb::exception<BadPolicy>(m, "BadPolicy", PyExc_RuntimeError);
  nb::class_<SequenceView>(m, "SequenceView",
                           "A request of a group (llmsim.scheduling.base.SequenceView).")
      .def_ro("row", &SequenceView::row)
      .def_ro("tokens", &SequenceView::tokens)
      .def_ro("received", &SequenceView::received)
      .def_ro("computed", &SequenceView::computed)
      .def_ro("blocks", &SequenceView::blocks)
      .def_ro("priority", &SequenceView::priority)
      .def_ro("arrival_ps", &SequenceView::arrival);
  nb::class_<Policies>(m, "Policies",
                       "Decisions of one group's scheduler that Python objects take.")
      .def(nb::init<>())
      .def(
          "set_queue_order",
          [](Policies& p, nb::object key, bool preempted_first) {
            p.queue_key = [function = share(std::move(key))](const SequenceView& view) {
              const nb::gil_scoped_acquire lock;
              return whole("queue order", (*function)(view));
            };
            p.preempted_first = preempted_first;
          },
          "key"_a, "preempted_first"_a)
      .def(
          "set_victim",
          [](Policies& p, nb::object choose) {
            p.victim = [function = share(std::move(choose))](std::span<const SequenceView> running,
                                                             const SequenceView& needy) {
              const nb::gil_scoped_acquire lock;
              nb::list views;
              for (const SequenceView& view : running) views.append(view);
              return whole("preemption victim", (*function)(views, needy));
            };
          },
          "choose"_a)
      .def(
          "set_eviction",
          [](Policies& p, nb::object freed, nb::object reused, nb::object evict) {
            p.eviction = std::make_shared<PythonEviction>(std::move(freed), std::move(reused),
                                                          std::move(evict));
          },
          "freed"_a, "reused"_a, "evict"_a)
      .def(
          "set_ranking",
          [](Policies& p, bool waiting, bool running, bool victims, bool pauses, nb::object rank,
             nb::object added, nb::object scheduled, nb::object executed, nb::object left) {
            p.ranking = std::make_shared<PythonRanking>(
                RankedLists{waiting, running, victims, pauses}, std::move(rank), std::move(added),
                std::move(scheduled), std::move(executed), std::move(left));
          },
          "waiting"_a, "running"_a, "victims"_a, "pauses"_a, "rank"_a, "added"_a.none(),
          "scheduled"_a.none(), "executed"_a.none(), "left"_a.none());
  bind_rank_columns(m);
  bind_admissions(m);
}

}  // namespace llmsim
