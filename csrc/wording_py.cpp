// word_errors: what pybind11 says of arguments of a wrong type, in words that name class and
// argument; python/mpsgrad/_wording.py finds them.
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/arguments_py.hpp"

namespace mpsgrad {
namespace {

// A function that does what another does, and finds words for its complaint. It hands over the
// arguments as they came, so a call that succeeds hardly takes longer.
class Worded {
 public:
  // `cls`: the class whose object comes first among the arguments, or None. `who`: what messages
  // begin with, after the name of that object's class.
  static py::object make(const py::object& function, const py::object& cls, std::string who) {
    auto worded = std::make_unique<Worded>(function, cls, std::move(who));
    Worded& kept = *worded;
    const py::object module = kept.function_.attr("__module__");
    const py::capsule owner(worded.release(),
                            [](void* held) { delete static_cast<Worded*>(held); });
    return py::reinterpret_steal<py::object>(
        PyCFunction_NewEx(&kept.definition_, owner.ptr(), module.ptr()));
  }

  Worded(const py::object& function, py::object cls, std::string who)
      : function_(py::reinterpret_borrow<py::object>(py::detail::get_function(function))),
        cls_(std::move(cls)),
        who_(std::move(who)),
        name_(py::str(function.attr("__name__"))),
        documentation_(py::str(function.attr("__doc__"))),
        definition_{name_.c_str(),
                    reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call)),
                    METH_FASTCALL | METH_KEYWORDS, documentation_.c_str()} {}

 private:
  static PyObject* call(PyObject* owner, PyObject* const* arguments, Py_ssize_t count,
                        PyObject* keywords) {
    const auto& worded = *static_cast<const Worded*>(PyCapsule_GetPointer(owner, nullptr));
    PyObject* const result = PyObject_Vectorcall(worded.function_.ptr(), arguments,
                                                 static_cast<std::size_t>(count), keywords);
    if (result == nullptr && PyErr_ExceptionMatches(PyExc_TypeError) != 0) {
      worded.reword(arguments, count, keywords);
    }
    return result;
  }

  // Whether pybind11 says it, and not the code that was called. That may say what is no UTF-8, or
  // fail to say anything.
  bool is_of_arguments(const py::error_already_set& raised) const {
    const auto complaint = py::reinterpret_steal<py::object>(PyObject_Str(raised.value().ptr()));
    Py_ssize_t size = 0;
    const char* const words = complaint ? PyUnicode_AsUTF8AndSize(complaint.ptr(), &size) : nullptr;
    if (words == nullptr) {
      PyErr_Clear();
      return false;
    }
    return std::string_view(words, static_cast<std::size_t>(size))
        .starts_with(name_ + "(): incompatible ");
  }

  void reword(PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) const {
    py::error_already_set raised;
    try {
      const bool of_object = !cls_.is_none();
      if (!is_of_arguments(raised) ||
          (of_object && (count == 0 || !py::isinstance(arguments[0], cls_)))) {
        raised.restore();
        return;
      }
      py::list given;
      for (Py_ssize_t i = 0; i < count; ++i) {
        given.append(py::handle(arguments[i]));
      }
      py::dict named;
      for (Py_ssize_t i = 0; keywords != nullptr && i < PyTuple_GET_SIZE(keywords); ++i) {
        named[PyTuple_GET_ITEM(keywords, i)] = py::handle(arguments[count + i]);
      }
      const std::string who = of_object ? text(type_name(arguments[0]), who_) : who_;
      const py::object error =
          py::module_::import("mpsgrad._wording")
              .attr("wrong_call")(who, documentation_, of_object, given, named);
      if (error.is_none()) {
        raised.restore();
      } else {
        PyErr_SetObject(py::type::handle_of(error).ptr(), error.ptr());
      }
    } catch (py::error_already_set& error) {
      error.restore();
    } catch (const std::exception&) {  // no words were found: what was said stands
      raised.restore();
    }
  }

  py::object function_, cls_;
  std::string who_, name_, documentation_;
  PyMethodDef definition_;
};

void word_class(const py::object& cls) {
  const py::object builtins = py::module_::import("builtins");
  const py::object property = builtins.attr("property");
  const py::object static_method = builtins.attr("staticmethod");
  for (const auto& [key, member] : py::dict(cls.attr("__dict__"))) {
    const auto name = key.cast<std::string>();
    const py::handle type = py::type::handle_of(member);
    if (PyInstanceMethod_Check(member.ptr()) != 0) {
      const py::object worded = Worded::make(py::reinterpret_borrow<py::object>(member), cls,
                                             name.starts_with('_') ? std::string() : "." + name);
      cls.attr(key) = py::reinterpret_steal<py::object>(PyInstanceMethod_New(worded.ptr()));
    } else if (type.is(static_method)) {
      const std::string who = text(std::string(py::str(cls.attr("__name__"))), ".", name);
      cls.attr(key) = static_method(Worded::make(member.attr("__func__"), py::none(), who));
    } else if (type.is(property) && !member.attr("fset").is_none()) {
      cls.attr(key) =
          property(member.attr("fget"), Worded::make(member.attr("fset"), cls, "." + name),
                   py::none(), member.attr("__doc__"));
    }
  }
}

}  // namespace

void word_errors(py::module_& m) {
  for_bound_classes(m, word_class);
  for (const auto& [name, member] : py::dict(m.attr("__dict__"))) {
    if (PyCFunction_Check(member.ptr()) != 0) {
      m.attr(name) = Worded::make(py::reinterpret_borrow<py::object>(member), py::none(),
                                  name.cast<std::string>());
    }
  }
}

}  // namespace mpsgrad
