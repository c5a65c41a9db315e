// Policies written in Python: queue orders, victims, evictions, admissions.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/python_router.h"
#include "scheduler/policies.h"

using namespace nanobind::literals;

namespace llmsim {
namespace {

// A Python object that may be copied and dropped without the interpreter's lock.
using Shared = std::shared_ptr<nb::object>;

Shared share(nb::object object) {
  return Shared(new nb::object(std::move(object)), [](nb::object* held) {
    const nb::gil_scoped_acquire lock;
    delete held;
  });
}

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

  Shared freed_, reused_, evict_;
};

// One question of an admission policy; its views are refused afterwards.
struct PythonAdmission {
  std::shared_ptr<RouteCall> call;
  Shared admit;

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
          "freed"_a, "reused"_a, "evict"_a);
}

void bind_set_admission(nb::class_<Simulation>& simulation) {
  simulation
      .def(
          "limit_queues",
          [](Simulation& s, std::int32_t most) {
            s.set_admission(
                [most](RequestId, Ps, const Group& group) { return group.num_waiting() < most; });
          },
          "most"_a, "Requests that would find so many waiting in their group are turned away.")
      .def(
          "set_python_admission",
          [](Simulation& s, nb::object admit, nb::object session_names, nb::object model_names) {
            auto call = std::shared_ptr<RouteCall>(new RouteCall(), [](RouteCall* held) {
              const nb::gil_scoped_acquire lock;
              delete held;
            });
            call->context = s.router_context();
            call->session_names = std::move(session_names);
            call->model_names = std::move(model_names);
            s.set_admission(PythonAdmission{std::move(call), share(std::move(admit))});
          },
          "admit"_a, "session_names"_a.none(), "model_names"_a,
          "A function admit(request, group) -> bool (llmsim.scheduling.base.Admission).");
}

}  // namespace llmsim
