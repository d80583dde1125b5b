// How Python arguments become images and states: one object or any sequence of them, one call
// whatever the length; and what signatures say of them.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include "base/errors.hpp"
#include "core/kernel.hpp"
#include "core/unary_kernel.hpp"

namespace mpsgrad {

namespace py = pybind11;

inline bool is_anything(PyObject* /*object*/) { return true; }

// An object of which signatures, and type checkers, say that it is of one of these classes.
// Anything arrives: what is none of them is for the function to refuse, by name.
template <class... Classes>
class OneOf : public py::object {
  PYBIND11_OBJECT_DEFAULT(OneOf, py::object, is_anything)
};

}  // namespace mpsgrad

template <class... Classes>
struct pybind11::detail::handle_type_name<mpsgrad::OneOf<Classes...>> {
  static constexpr auto name = union_concat(make_caster<Classes>::name...);
};

namespace mpsgrad {

using Integer = OneOf<Index>;
using Integers = OneOf<std::vector<Index>>;
using IntegerOrNone = OneOf<Index, py::none>;
using ImagesGiven = OneOf<Image, ImageBatch, ImageBatch::Images>;
using ImagesOrNone = OneOf<Image, ImageBatch, ImageBatch::Images, py::none>;
using BatchGiven = OneOf<ImageBatch, ImageBatch::Images>;
using BatchOrNone = OneOf<ImageBatch, ImageBatch::Images, py::none>;
using StatesGiven = OneOf<State, StateBatch>;
using StatesOrNone = OneOf<State, StateBatch, py::none>;
// Of one encode, and as a property.
using AllocatorGiven = OneOf<ImageAllocator, ImageBatch, py::function, py::none>;
using AllocatorKept = OneOf<ImageAllocator, py::function, py::none>;

// Refers to the images of an ImageBatch, and holds those of a list, or one.
struct ImageArgument {
  std::shared_ptr<const ImageBatch> shared;  // null if `own` holds them
  ImageBatch::Images own;
  bool batch = false;

  const ImageBatch::Images& images() const { return shared ? shared->images() : own; }
};

// The name of an object's class, asked for only where a message is put together.
struct TypeName {
  py::handle object;

  friend std::ostream& operator<<(std::ostream& out, const TypeName& name) {
    return out << std::string(py::str(py::type::handle_of(name.object).attr("__name__")));
  }
};
inline TypeName type_name(const py::handle& object) { return {object}; }

// An integer from Python: TypeError for anything else, ValueError if it needs more than 64 bits.
// Messages begin with the parts of its name.
template <class... Name>
Index integer(const py::handle& object, const Name&... name) {
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
  if (!number) {
    PyErr_Clear();
    fail<TypeError>(name..., " must be an integer, got ", type_name(object));
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  require(overflow == 0, name..., " is out of range: ", std::string(py::str(number)));
  return value;
}

template <class... Name>
Index integer_or(const py::handle& object, Index otherwise, const Name&... name) {
  return object.is_none() ? otherwise : integer(object, name...);
}

// Lists first: to find that an object is of none of our classes takes long.
inline bool is_sequence(const py::handle& object) {
  return py::isinstance<py::list>(object) || py::isinstance<py::tuple>(object);
}

// What an object of one bound class holds; null before that is made.
inline void* held_by(const py::handle& object) {
  return reinterpret_cast<py::detail::instance*>(object.ptr())->get_value_and_holder().value_ptr();
}

// Whether an object is of a bound class itself, not of one derived from it.
template <class Class>
bool is_exactly(const py::handle& object) {
  static const PyObject* const type = py::type::of<Class>().ptr();
  return reinterpret_cast<const PyObject*>(Py_TYPE(object.ptr())) == type;
}

// What `object` is as a Class, or null. Asking for the type and casting would look it up twice; but
// to find that an object is of none of our classes takes much longer than to ask.
template <class Class>
std::shared_ptr<Class> object_of(const py::handle& object) {
  if (is_exactly<Class>(object)) {
    if (auto* const held = static_cast<Class*>(held_by(object))) {
      return std::static_pointer_cast<Class>(held->shared_from_this());
    }
  }
  py::detail::make_caster<std::shared_ptr<Class>> caster;
  return caster.load(object, false)
             ? std::move(py::detail::cast_op<std::shared_ptr<Class>&>(caster))
             : nullptr;
}

// The same for many objects: what has been found of a Python class serves all others of it.
template <class Class>
class ObjectsOf {
 public:
  std::shared_ptr<Class> operator()(const py::handle& object) {
    if (Py_TYPE(object.ptr()) == known_) {
      if (auto* const held = static_cast<Class*>(held_by(object))) {
        return std::static_pointer_cast<Class>(held->shared_from_this());
      }
    }
    auto found = object_of<Class>(object);
    // Neither of several bound classes, nor with a Class that is not its beginning.
    const bool plain = found && py::detail::all_type_info(Py_TYPE(object.ptr())).size() == 1 &&
                       held_by(object) == found.get();
    known_ = plain ? Py_TYPE(object.ptr()) : nullptr;
    return found;
  }

 private:
  const PyTypeObject* known_ = nullptr;
};

// What came in place of an image, and what may have been meant.
struct NoImage {
  py::handle object;

  friend std::ostream& operator<<(std::ostream& out, const NoImage& came) {
    out << type_name(came.object);
    if (py::isinstance<ImageBatch>(came.object)) {
      return out << "; a batch goes by itself, not in a list";
    }
    const auto type = py::type::handle_of(came.object);
    const bool array = py::hasattr(type, "__array_interface__") || py::hasattr(type, "__dlpack__");
    return out << (array ? "; ImageBatch.from_array() makes images of an array" : "");
  }
};

// `who` is the class, or the function, whose argument it is.
inline ImageArgument image_argument(const py::handle& object, const char* name, const char* who) {
  if (is_sequence(object)) {
    ImageBatch::Images images;
    images.reserve(py::len(object));
    ObjectsOf<Image> image_of;
    for (const auto& item : object) {
      images.push_back(image_of(item));
      require<TypeError>(images.back() != nullptr, who, ": ", name, " must hold images, got ",
                         NoImage{item});
    }
    return {nullptr, std::move(images), true};
  }
  if (is_exactly<ImageBatch>(object) || py::isinstance<ImageBatch>(object)) {
    return {object_of<ImageBatch>(object), {}, true};
  }
  auto image = object_of<Image>(object);
  require<TypeError>(image != nullptr, who, ": ", name,
                     " must be an Image, an ImageBatch or a list of images, got ", NoImage{object});
  return {nullptr, {std::move(image)}, false};
}

// The same for a call that has no form for a single image.
inline ImageArgument batch_argument(const py::handle& object, const char* name, const char* who) {
  ImageArgument argument = image_argument(object, name, who);
  require<TypeError>(argument.batch, who, ": ", name,
                     " must be an ImageBatch or a list of images, got ", type_name(object));
  return argument;
}

// None is an empty batch; one state stands for itself.
inline StateBatch state_argument(const py::handle& object, const char* name, const char* who) {
  if (object.is_none()) {
    return {};
  }
  ObjectsOf<State> state_of;
  const auto state = [&](const py::handle& item, const char* wanted) {
    auto found = state_of(item);
    require<TypeError>(found != nullptr, who, ": ", name, wanted, type_name(item));
    return found;
  };
  if (!is_sequence(object)) {
    return {state(object, " must be a State or a list of states, got ")};
  }
  StateBatch result;
  result.reserve(py::len(object));
  py::handle previous;
  for (const auto& item : object) {  // often one and the same
    result.push_back(item.is(previous) ? result.back() : state(item, " must hold states, got "));
    previous = item;
  }
  return result;
}

inline py::object image_result(const std::shared_ptr<ImageBatch>& images, bool batch) {
  return batch ? py::cast(images) : py::cast((*images)[0]);
}

inline py::object state_result(const StateBatch& states, bool batch) {
  if (batch) {
    return states.empty() ? py::object(py::none()) : py::object(py::cast(states));
  }
  return states.empty() ? py::object(py::none()) : py::cast(states.front());
}

// False once the interpreter is shutting down and this thread is not the one that does it: asking
// for the GIL would end the thread.
inline bool may_call_python() {
#if PY_VERSION_HEX >= 0x030D0000
  const bool finalizing = Py_IsFinalizing() != 0;
#else
  const bool finalizing = _Py_IsFinalizing() != 0;
#endif
  if (!finalizing) {
    return Py_IsInitialized() != 0;
  }
  // The check alone says yes to everybody once the interpreter is gone.
  return PyGILState_Check() != 0 && py::detail::get_thread_state_unchecked() != nullptr;
}

// A Python object that C++ may drop on any thread.
inline std::shared_ptr<py::object> share_python(py::object object) {
  return {new py::object(std::move(object)), [](py::object* held) {
            if (may_call_python()) {
              const py::gil_scoped_acquire locked;
              delete held;
            }
          }};
}

// What native_enum makes enumerations from.
inline constexpr const char* kEnumeration = "mpsgrad.enums.Enumeration";

// Calls visit(cls) for every class that is bound in the module so far.
template <class Visit>
void for_bound_classes(const py::module_& m, const Visit& visit) {
  for (const auto& [name, object] : py::dict(m.attr("__dict__"))) {
    if (py::isinstance<py::type>(object) &&
        py::detail::get_type_info(reinterpret_cast<PyTypeObject*>(object.ptr())) != nullptr) {
      visit(py::reinterpret_borrow<py::object>(object));
    }
  }
}

// For classes whose objects only kernels make.
template <class Class>
void forbid_construction(Class& cls) {
  static constexpr const char* kHint =
      " is made by a kernel; use kernel.result_state(source, destination)";
  cls.attr("__init__") =
      py::cpp_function([](const py::object& self, const py::args&,
                          const py::kwargs&) { fail<TypeError>(type_name(self), kHint); },
                       py::is_method(cls));
  const auto name = cls.attr("__name__").template cast<std::string>();
  py::options options;
  options.disable_function_signatures();  // documentation would take its stars for emphasis
  cls.attr("temporary") = py::staticmethod(
      py::cpp_function([name](const py::args&, const py::kwargs&) { fail<TypeError>(name, kHint); },
                       "Not offered: a kernel makes it."));
}

// None: the kernel's own allocator; else one of ours, any callable (command_buffer, descriptor,
// kernel) -> Image, or an ImageBatch that is the result's place itself.
std::shared_ptr<ImageAllocator> allocator_argument(const py::handle& object);
// The same for a property: a batch serves one encode, so it is none.
std::shared_ptr<ImageAllocator> allocator_property(const py::handle& object);
// What either was given.
AllocatorKept allocator_object(const std::shared_ptr<ImageAllocator>& allocator);

}  // namespace mpsgrad
