// A router written in Python behind the router's contract.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "router/router.h"

namespace llmsim {

// A Python router answered something that is not one of the groups; the text goes on after the
// router's name.
class BadRoute : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline constexpr const char* kClosed =
    "a view of a request or a group lives only during the call of route()";

// What the views of a call read; they are refused once the call is over.
struct RouteCall {
  RouterContext context;
  nanobind::object session_names;  // list of names by row, or None
  nanobind::object model_names;    // of the deployment
  RequestId request = -1;
  std::int32_t model = 0;
  Ps now = 0;
  bool open = false;

  void check() const {
    if (!open) throw std::runtime_error(kClosed);
  }
};

struct RequestView {
  std::shared_ptr<const RouteCall> call;
};

struct GroupView {
  std::shared_ptr<const RouteCall> call;
  const Group* group;
};

// Calls `route(request, groups)` of an object like llmsim.routing.base.Router once per arrival,
// holding the interpreter's lock only during the call. The views are made once and shown at every
// call.
class PythonRouter final : public Router {
 public:
  PythonRouter(nanobind::object route, RouterContext context, nanobind::object session_names,
               nanobind::object model_names);
  ~PythonRouter() override;

  std::size_t route(RequestId request, Ps now, std::span<Group* const> candidates) override;

 private:
  // What a call about some model was shown last: mostly, the next one is shown the same.
  struct Shown {
    std::vector<Group*> groups;
    nanobind::object views;  // a tuple
  };
  const nanobind::object& views_of(std::span<Group* const> candidates);
  const nanobind::object& view_of(const Group& group);

  std::shared_ptr<RouteCall> call_;
  nanobind::object route_, request_view_;
  std::vector<Shown> shown_;             // per model
  std::vector<nanobind::object> views_;  // by group, when first shown
};

void bind_python_router(nanobind::module_& m);

}  // namespace llmsim
