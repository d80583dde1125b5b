// Methods that programs call for every kernel and every batch. pybind11 makes a string of each
// parameter's name at each call that has keywords, which takes as long as half of an encode. Here
// the names are made once, and found by identity; whatever else may be in a call (other names, too
// many arguments, arguments of other classes) is left to the same method as pybind11 binds it,
// whose documentation and messages are therefore the method's.
#pragma once

#include <pybind11/pybind11.h>

#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/arguments_py.hpp"

namespace mpsgrad {

// What is known of a method's parameters, `self` among them.
template <std::size_t kCount>
struct Parameters {
  std::array<py::str, kCount> names;
  std::array<py::object, kCount> defaults;  // null: to be given
  std::size_t known = 1;                    // so far, of the names
  std::size_t positional = kCount;          // the others are given by name alone

  template <class Extra>
  void note(const Extra& extra) {
    if constexpr (std::is_base_of_v<py::arg, Extra>) {
      names.at(known) = py::reinterpret_steal<py::str>(PyUnicode_InternFromString(extra.name));
      if constexpr (std::is_base_of_v<py::arg_v, Extra>) {
        defaults.at(known) = extra.value;
      }
      ++known;
    } else if constexpr (std::is_same_v<py::kw_only, Extra>) {
      positional = known;
    }
  }
};

// Takes what an argument is given, if it is exactly that.
template <std::derived_from<py::object> Object>
bool take(const py::handle& given, Object& argument) {
  argument = py::reinterpret_borrow<Object>(given);
  return true;
}
inline bool take(const py::handle& given, bool& argument) {
  argument = given.ptr() == Py_True;
  return argument || given.ptr() == Py_False;
}
template <class Class>
bool take(const py::handle& given, std::shared_ptr<Class>& argument) {
  argument = object_of<Class>(given);
  return argument != nullptr;
}

template <class Result, class Self, class... Arguments>
class OftenCalled {
  static constexpr std::size_t kCount = 1 + sizeof...(Arguments);

 public:
  using Function = Result (*)(Self&, Arguments...);

  template <class... Extra>
  OftenCalled(const char* name, Function function, py::object bound, const Extra&... extra)
      : function_(function),
        bound_(std::move(bound)),
        documentation_(bound_.attr("__doc__").template cast<std::string>()),
        definition_{name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call)),
                    METH_FASTCALL | METH_KEYWORDS, documentation_.c_str()} {
    (parameters_.note(extra), ...);
  }

  // A function that keeps `method`, for a class to have.
  static py::object make_function(std::unique_ptr<OftenCalled> method) {
    OftenCalled& kept = *method;
    const py::capsule owner(method.release(),
                            [](void* held) { delete static_cast<OftenCalled*>(held); });
    const py::object module = kept.bound_.attr("__module__");
    const auto function = py::reinterpret_steal<py::object>(
        PyCFunction_NewEx(&kept.definition_, owner.ptr(), module.ptr()));
    return py::reinterpret_steal<py::object>(PyInstanceMethod_New(function.ptr()));
  }

 private:
  using Given = std::array<py::handle, kCount>;

  static PyObject* call(PyObject* owner, PyObject* const* arguments, Py_ssize_t count,
                        PyObject* keywords) {
    const auto& method = *static_cast<const OftenCalled*>(PyCapsule_GetPointer(owner, nullptr));
    const auto given_count = static_cast<std::size_t>(count);
    try {
      Given given;
      if (method.sort(arguments, given_count, keywords, given)) {
        std::tuple<std::remove_cvref_t<Arguments>...> taken;
        const auto self = object_of<Self>(given[0]);
        if (self != nullptr && take_all(given, taken, std::index_sequence_for<Arguments...>())) {
          const auto run = [&](const auto&... each) -> py::object {
            if constexpr (std::is_void_v<Result>) {
              method.function_(*self, each...);
              return py::none();
            } else {
              return py::detail::object_or_cast(method.function_(*self, each...));
            }
          };
          return std::apply(run, taken).release().ptr();
        }
      }
    } catch (py::error_already_set& error) {
      error.restore();
      return nullptr;
#if defined(__GLIBCXX__)
    } catch (abi::__forced_unwind&) {  // the interpreter is ending, and with it this thread
      throw;
#endif
    } catch (...) {
      py::detail::try_translate_exceptions();
      return nullptr;
    }
    return PyObject_Vectorcall(method.bound_.ptr(), arguments, given_count, keywords);
  }

  // Gives each parameter its argument. False: the call is not one that this can do.
  bool sort(PyObject* const* arguments, std::size_t count, PyObject* keywords, Given& given) const {
    if (count > parameters_.positional) {
      return false;
    }
    std::copy_n(arguments, count, given.begin());
    const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
    for (Py_ssize_t i = 0; i < named; ++i) {
      const PyObject* name = PyTuple_GET_ITEM(keywords, i);
      std::size_t at = count;
      while (at < kCount && parameters_.names[at].ptr() != name) {
        ++at;
      }
      if (at == kCount || given[at]) {
        return false;
      }
      given[at] = arguments[count + static_cast<std::size_t>(i)];
    }
    for (std::size_t at = count; at < kCount; ++at) {
      if (!given[at]) {
        given[at] = parameters_.defaults[at];
      }
      if (!given[at]) {
        return false;
      }
    }
    return true;
  }

  template <class Taken, std::size_t... kAt>
  static bool take_all(const Given& given, Taken& taken, std::index_sequence<kAt...> /*all*/) {
    return (take(given[1 + kAt], std::get<kAt>(taken)) && ...);
  }

  Function function_;
  py::object bound_;
  std::string documentation_;
  PyMethodDef definition_;
  Parameters<kCount> parameters_;
};

// As py::class_::def, for a method with names for all of its parameters.
template <class Class, class Result, class Self, class... Arguments, class... Extra>
void def_often_called(Class& c, const char* name, Result (*function)(Self&, Arguments...),
                      const Extra&... extra) {
  using Method = OftenCalled<Result, Self, Arguments...>;
  c.def(name, function, extra...);
  c.attr(name) =
      Method::make_function(std::make_unique<Method>(name, function, c.attr(name), extra...));
}

}  // namespace mpsgrad
