// A function that routes each call to the kernel of one of several backends, by measured speed.
#pragma once
#include <structmember.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../arguments.h"

namespace [[gnu::visibility("hidden")]] ops {

namespace py = pybind11;
using namespace arguments;

constexpr int kOctaves = 48;  // sizes are classified by their bit lengths

// For one dtype: the index in `kernels` of the winner, for each bit length of one array's size or of two.
struct Winners {
  std::vector<py::object> kernels;
  std::string places;
};

struct Routes {
  py::object usual;
  Py_ssize_t arrays;              // the first one or two arrays, whose sizes decide
  Winners winners[cpu::kDTypes];  // no kernels: not measured
};

struct Route {
  PyObject_HEAD vectorcallfunc call;
  Routes* routes;
};

inline int octave(PyObject* array) {
  const auto* fields = py::detail::array_proxy(array);
  uint64_t size = 1;
  for (int i = 0; i < fields->nd; ++i) size *= static_cast<uint64_t>(fields->dimensions[i]);
  return size ? std::min(64 - __builtin_clzll(size), kOctaves - 1) : 0;
}

// Routes only arrays of one measured dtype. Integer arrays, such as indices, may be among them.
inline PyObject* kernel_of(const Routes& routes, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs < routes.arrays) return routes.usual.ptr();
  size_t at = 0;
  int dtype = -1;
  for (Py_ssize_t i = 0; i < routes.arrays; ++i) {
    if (!is_array(args[i])) return routes.usual.ptr();
    at = at * kOctaves + octave(args[i]);
    DType own;
    const char kind = py::detail::array_descriptor_proxy(py::detail::array_proxy(args[i])->descr)->kind;
    if (kind == 'i' || kind == 'u') continue;
    if (!dtype_of(args[i], &own) || own == cpu::kBool || (dtype >= 0 && dtype != own))
      return routes.usual.ptr();
    dtype = own;
  }
  if (dtype < 0 || routes.winners[dtype].kernels.empty()) return routes.usual.ptr();
  const Winners& winners = routes.winners[dtype];
  return winners.kernels[static_cast<uint8_t>(winners.places[at])].ptr();
}

inline PyObject* call_route(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
  const Routes& routes = *reinterpret_cast<Route*>(self)->routes;
  return PyObject_Vectorcall(kernel_of(routes, args, PyVectorcall_NARGS(flags)), args, flags, keywords);
}

inline void free_route(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<Route*>(self)->routes;
  type->tp_free(self);
  Py_DECREF(type);
}

inline PyTypeObject* route_type() {
  static PyMemberDef members[] = {
      {const_cast<char*>("__vectorcalloffset__"), T_PYSSIZET, offsetof(Route, call), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(free_route)},
                                {Py_tp_members, members},
                                {0, nullptr}};
  static PyType_Spec spec = {
      "tensor_ops_cpp.Route", sizeof(Route), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  static PyTypeObject* const type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (!type) throw py::error_already_set();
  return type;
}

inline void check(const Winners& winners, int arrays) {
  const size_t expected = arrays == 1 ? kOctaves : kOctaves * kOctaves, kernels = winners.kernels.size();
  const auto outside = [&](char place) { return static_cast<uint8_t>(place) >= kernels; };
  if (winners.places.size() != expected)
    throw py::value_error("route: tables has " + std::to_string(winners.places.size()) +
                          " places, expected " + std::to_string(expected));
  if (std::any_of(winners.places.begin(), winners.places.end(), outside))
    throw py::value_error("route: tables has a place beyond its " + std::to_string(kernels) + " kernels");
}

inline DType find_dtype(const std::string& name) {
  for (const DType dtype : {cpu::kFloat32, cpu::kFloat16, cpu::kBFloat16})
    if (name == dtype_name(dtype)) return dtype;
  throw py::value_error("route: tables has dtype '" + name + "', expected float32, float16 or bfloat16");
}

inline py::object route(py::object usual, int arrays, const py::dict& tables) {
  if (arrays < 1 || arrays > 2)
    throw py::value_error("route: arrays has value " + std::to_string(arrays) + ", expected 1 or 2");
  auto routes = std::make_unique<Routes>();
  routes->usual = std::move(usual);
  routes->arrays = arrays;
  for (const auto& [name, table] : tables) {
    auto [kernels, places] = table.cast<std::pair<std::vector<py::object>, std::string>>();
    Winners& winners = routes->winners[find_dtype(name.cast<std::string>())];
    winners = {std::move(kernels), std::move(places)};
    check(winners, arrays);
  }
  auto route = py::reinterpret_steal<py::object>(route_type()->tp_alloc(route_type(), 0));
  if (!route) throw py::error_already_set();
  auto* fields = reinterpret_cast<Route*>(route.ptr());
  fields->call = call_route;
  fields->routes = routes.release();
  return route;
}

}  // namespace ops
