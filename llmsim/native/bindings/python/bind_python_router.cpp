#include <nanobind/stl/string.h>

#include <algorithm>

#include "bindings/python/python_router.h"

namespace nb = nanobind;

namespace llmsim {

namespace {

// Closes the views whichever way the call ends.
struct Opened {
  explicit Opened(RouteCall& c) : call(c) { call.open = true; }
  ~Opened() { call.open = false; }
  RouteCall& call;
};

std::string indices_of(std::span<Group* const> candidates) {
  std::string text;
  for (const Group* group : candidates) {
    if (text.size() > 60) return text + ", ...";
    text += (text.empty() ? "" : ", ") + std::to_string(group->config().index);
  }
  return text;
}

nb::object session_of(const RouteCall& call) {
  if (call.session_names.is_none()) return nb::none();
  const nb::object name = call.session_names[static_cast<std::size_t>(call.request)];
  return nb::len(name) == 0 ? nb::none() : name;
}

std::int32_t index_of(const Group& group) { return group.config().index; }
std::int32_t running_of(const Group& group) { return group.num_running(); }
std::int32_t waiting_of(const Group& group) { return group.num_waiting(); }
std::int32_t free_blocks_of(const Group& group) { return group.scheduler().pool().free; }
std::int32_t total_blocks_of(const Group& group) { return group.scheduler().pool().total - 1; }

template <std::int32_t (*attribute)(const Group&)>
PyObject* read(PyObject* self, void*) {
  const GroupView& view = *nb::inst_ptr<GroupView>(self);
  if (view.call->open) return PyLong_FromLong(attribute(*view.group));
  PyErr_SetString(PyExc_RuntimeError, kClosed);
  return nullptr;
}

}  // namespace

PythonRouter::PythonRouter(nb::object route, RouterContext context, nb::object session_names,
                           nb::object model_names)
    : call_(std::make_shared<RouteCall>()), route_(std::move(route)) {
  call_->context = std::move(context);
  call_->session_names = std::move(session_names);
  call_->model_names = std::move(model_names);
  request_view_ = nb::cast(RequestView{call_});
}

PythonRouter::~PythonRouter() {
  const nb::gil_scoped_acquire lock;
  shown_.clear();
  views_.clear();
  request_view_.reset();
  route_.reset();
  // A router may have kept views: they keep the call, but nothing of Python's.
  call_->session_names.reset();
  call_->model_names.reset();
}

const nb::object& PythonRouter::view_of(const Group& group) {
  const auto index = static_cast<std::size_t>(group.config().index);
  if (index >= views_.size()) views_.resize(index + 1);
  if (!views_[index].is_valid()) views_[index] = nb::cast(GroupView{call_, &group});
  return views_[index];
}

// On the decode side, who can be chosen depends on the request: not every group can run it.
const nb::object& PythonRouter::views_of(std::span<Group* const> candidates) {
  const auto model = static_cast<std::size_t>(candidates[0]->config().model);
  if (model >= shown_.size()) shown_.resize(model + 1);
  Shown& shown = shown_[model];
  if (std::ranges::equal(shown.groups, candidates)) return shown.views;
  nb::list views;
  for (const Group* group : candidates) views.append(view_of(*group));
  shown = {{candidates.begin(), candidates.end()}, nb::tuple(views)};
  return shown.views;
}

std::size_t PythonRouter::route(RequestId request, Ps now, std::span<Group* const> candidates) {
  const nb::gil_scoped_acquire lock;
  call_->request = request;
  call_->now = now;
  call_->model = candidates[0]->config().model;
  const Opened opened(*call_);
  const nb::object answer = route_(request_view_, views_of(candidates));
  std::int64_t index = -1;
  const bool is_index = nb::try_cast(answer, index);
  for (std::size_t i = 0; is_index && i < candidates.size(); ++i)
    if (candidates[i]->config().index == index) return i;
  throw BadRoute("answered " + std::string(nb::repr(answer).c_str()) + " for request " +
                 std::to_string(request) +
                 "; the index of one of the groups is needed: " + indices_of(candidates));
}

void bind_python_router(nb::module_& m) {
  nb::exception<BadRoute>(m, "BadRoute", PyExc_RuntimeError);
  nb::class_<RequestView>(m, "RequestView",
                          "A request at its arrival (llmsim.routing.base.RequestView).")
      .def_prop_ro("row", [](const RequestView& v) { return v.call->check(), v.call->request; })
      .def_prop_ro("tokens",
                   [](const RequestView& v) {
                     return v.call->check(), v.call->context.input_tokens[v.call->request];
                   })
      .def_prop_ro("session",
                   [](const RequestView& v) { return v.call->check(), session_of(*v.call); })
      .def_prop_ro(
          "model",
          [](const RequestView& v) {
            return v.call->check(),
                   nb::object(v.call->model_names[static_cast<std::size_t>(v.call->model)]);
          })
      .def_prop_ro("now_ps", [](const RequestView& v) { return v.call->check(), v.call->now; });
  // Attributes of groups are read hundreds of times per arrival: these getters skip nanobind's
  // dispatch.
  static PyGetSetDef attributes[] = {
      {"index", read<index_of>, nullptr, nullptr, nullptr},
      {"running", read<running_of>, nullptr, nullptr, nullptr},
      {"waiting", read<waiting_of>, nullptr, nullptr, nullptr},
      {"free_blocks", read<free_blocks_of>, nullptr, nullptr, nullptr},
      {"total_blocks", read<total_blocks_of>, nullptr, nullptr, nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyType_Slot slots[] = {{Py_tp_getset, attributes}, {0, nullptr}};
  nb::class_<GroupView>(m, "GroupView", nb::type_slots(slots),
                        "A group at an arrival (llmsim.routing.base.GroupView).");
}

}  // namespace llmsim
