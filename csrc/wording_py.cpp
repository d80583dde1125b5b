// word_errors: what pybind11 says of values of a wrong type, in words that name class and argument;
// python/mpsgrad/_wording.py finds them.
#include <string>

#include "core/arguments_py.hpp"

namespace mpsgrad {
namespace {

// Calls what pybind11 has bound. If its complaint begins so, and `words` finds better ones, those
// are raised.
template <class Call, class Words>
void in_words(const char* complaint, const Call& call, const Words& words) {
  try {
    call();
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError) ||
        !py::str(error.value()).cast<std::string>().starts_with(complaint)) {
      throw;
    }
    const py::object better = words(py::module_::import("mpsgrad._wording"));
    if (better.is_none()) {
      throw;
    }
    fail<TypeError>(better.cast<std::string>());
  }
}

py::object name_of_class(const py::object& self) { return py::type::of(self).attr("__name__"); }

void word_setters(const py::object& cls) {
  const py::object property = py::module_::import("builtins").attr("property");
  for (const auto& [name, member] : py::dict(cls.attr("__dict__"))) {
    if (!py::type::handle_of(member).is(property) || member.attr("fset").is_none()) {
      continue;
    }
    const py::object set = member.attr("fset"), signature = set.attr("__doc__");
    const auto assign = [set, signature, name = py::reinterpret_borrow<py::object>(name)](
                            const py::object& self, const py::object& value) {
      in_words(
          "(): incompatible", [&] { set(self, value); },
          [&](const py::object& wording) {
            return wording.attr("wrong_value")(name_of_class(self), name, signature, value);
          });
    };
    cls.attr(name) = property(member.attr("fget"),
                              py::cpp_function(assign, signature.cast<std::string>().c_str()),
                              py::none(), member.attr("__doc__"));
  }
}

// Constructors with one signature.
void word_constructor(const py::object& cls) {
  const py::object construct = cls.attr("__dict__")["__init__"], doc = construct.attr("__doc__");
  const auto signature = doc.cast<std::string>();
  if (!signature.starts_with("__init__(self: ")) {
    return;
  }
  const auto init = [construct, doc](const py::object& self, const py::args& args,
                                     const py::kwargs& kwargs) {
    in_words(
        "__init__(): incompatible", [&] { construct(self, *args, **kwargs); },
        [&](const py::object& wording) {
          return wording.attr("wrong_argument")(name_of_class(self), doc, args, kwargs);
        });
  };
  cls.attr("__init__") =
      py::cpp_function(init, py::name("__init__"), py::is_method(cls), signature.c_str());
}

}  // namespace

void word_errors(py::module_& m) {
  py::options options;
  options.disable_function_signatures();  // those of what is wrapped stay the docstrings
  for (const auto& [name, member] : py::dict(m.attr("__dict__"))) {
    if (py::isinstance<py::type>(member)) {
      const auto cls = py::reinterpret_borrow<py::object>(member);
      word_setters(cls);
      if (cls.attr("__dict__").contains("__init__")) {
        word_constructor(cls);
      }
    }
  }
}

}  // namespace mpsgrad
