// bind_graph: what python/mpsgrad/graph compiles nodes into.
#include "core/arguments_py.hpp"
#include "core/waiting_py.hpp"
#include "graph/description.hpp"
#include "graph/steps.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;

// The callable is Python's, called with the GIL, which whoever encodes holds.
graph_steps::UpdateNow::Callback update_now(py::object callable) {
  return [held = share_python(std::move(callable))](
             const std::shared_ptr<CommandBuffer>& command_buffer, const StateBatch& states) {
    (*held)(command_buffer, states);
  };
}

// Raises a copy of an exception that is kept: what is raised gets the frames of whoever waits, and
// these may hold the work that keeps the exception.
[[noreturn]] void raise_copy(const py::object& kept) {
  py::object copy = kept;
  try {
    copy = py::module_::import("copy").attr("copy")(kept);
    copy.attr("__traceback__") = kept.attr("__traceback__");
    copy.attr("__context__") = kept.attr("__context__");
  } catch (const py::error_already_set&) {
    copy = kept;  // of a class that cannot be copied
  }
  PyErr_SetObject(py::type::handle_of(copy).ptr(), copy.ptr());
  throw py::error_already_set();
}

// Calls on whatever thread completes the work, with the GIL; what goes wrong is noted in the work.
template <class Call>
void call_on_completion(Work& work, const Call& call) {
  if (!may_call_python()) {
    return;
  }
  const py::gil_scoped_acquire locked;
  try {
    call();
  } catch (const py::error_already_set& error) {
    work.note_handler_failure([value = share_python(error.value())] {
      const py::gil_scoped_acquire again;
      raise_copy(*value);
    });
  } catch (...) {
    work.note_handler_failure(
        [failure = std::current_exception()] { std::rethrow_exception(failure); });
  }
}

GraphCompletion completion(py::object callable) {
  return [held = share_python(std::move(callable))](Work& work) {
    call_on_completion(work, [&] { (*held)(); });
  };
}

graph_steps::UpdateOnCompletion::Callback update_on_completion(py::object callable) {
  return [held = share_python(std::move(callable))](
             const std::shared_ptr<CommandBuffer>& command_buffer, const StateBatch& states) {
    return completion((*held)(command_buffer, states));
  };
}

template <class Step, class... Arguments>
void add(Graph& self, Arguments&&... arguments) {
  self.add_step(std::make_unique<Step>(std::forward<Arguments>(arguments)...));
}

// What a thread without the GIL calls of Python's.
template <class Call>
auto with_python(const Call& call) {
  require<std::runtime_error>(may_call_python(), "Graph: Python is not there any more");
  const py::gil_scoped_acquire locked;
  return call();
}

// `now` and `later` may be None.
GraphDataSource::Update update_of(const py::object& now, const py::object& later) {
  GraphDataSource::Update update;
  if (!now.is_none()) {
    update.now = [held = share_python(now)](const std::shared_ptr<CommandBuffer>& command_buffer,
                                            const StateBatch& states,
                                            const std::shared_ptr<State>& source) {
      return with_python([&] {
        const py::object result = (*held)(command_buffer, states, source);
        return result.is_none() ? nullptr : result.cast<std::shared_ptr<State>>();
      });
    };
  }
  if (!later.is_none()) {
    update.on_completion = [held = share_python(later)](Work& work, const StateBatch& states,
                                                        const std::shared_ptr<State>& source,
                                                        const std::function<void()>& read) {
      bool changed = false;
      call_on_completion(work, [&] {
        const py::object result = (*held)(states, source);
        const int truth = PyObject_IsTrue(result.ptr());
        if (truth < 0) {
          throw py::error_already_set();
        }
        if (truth != 0) {
          read();
          changed = true;
        }
      });
      return changed;
    };
  }
  return update;
}

// Calls with the GIL released.
void call_outside(const std::function<void()>& call) {
  std::exception_ptr thrown;
  PyThreadState* const thread = PyEval_SaveThread();  // by hand: see wait_interruptibly
  try {
    call();
  } catch (...) {
    thrown = std::current_exception();
  }
  PyEval_RestoreThread(thread);
  if (thrown) {
    std::rethrow_exception(thrown);
  }
}

// For devices with graphs of their own.
void bind_description(py::class_<Graph, KernelBase, py::smart_holder>& c) {
  c.def_property_readonly("_wants_description", &Graph::wants_description);
  c.def("_add_data_source",
        [](Graph& self, std::shared_ptr<KernelBase> kernel, const py::object& now,
           const py::object& later, const py::object& statistics_now,
           const py::object& statistics_later) {
          return self.add_data_source({std::move(kernel), update_of(now, later),
                                       update_of(statistics_now, statistics_later)});
        });
  c.def(
      "_add_node",
      [](Graph& self, std::string kind, std::string name, std::string label,
         std::shared_ptr<KernelBase> kernel, std::vector<int> sources, int result, int state,
         int forward, int position, int labels, int undone, int data_source, int training_style,
         std::shared_ptr<Padding> padding, int flags, const std::array<Index, 3>& shape) {
        GraphNode node;
        node.kind = std::move(kind);
        node.name = std::move(name);
        node.label = std::move(label);
        node.kernel = std::move(kernel);
        node.sources = std::move(sources);
        node.result = result;
        node.state = state;
        node.forward = forward;
        node.position = position;
        node.labels = labels;
        node.undone = undone;
        node.data_source = data_source;
        node.training_style = static_cast<TrainingStyle>(training_style);
        node.padding = std::move(padding);
        node.flags = flags;
        node.shape = {shape[0], shape[1], shape[2]};
        self.add_node(std::move(node));
      },
      py::kw_only(), "kind"_a, "name"_a, "label"_a, "kernel"_a.none(true), "sources"_a, "result"_a,
      "state"_a, "forward"_a, "position"_a, "labels"_a, "undone"_a, "data_source"_a,
      "training_style"_a, "padding"_a.none(true), "flags"_a, "shape"_a);
  c.def("_make_runner", [](Graph& self) {
    self.outside = call_outside;
    self.make_runner();
  });
  c.def_property_readonly("_has_runner", &Graph::has_runner);
  c.def_property_readonly("_why_no_runner", &Graph::why_no_runner);
  c.def("_reload_runner", &Graph::reload_runner);
}

// One method a kind of step.
void bind_steps(py::class_<Graph, KernelBase, py::smart_holder>& c) {
  namespace s = graph_steps;
  using Name = const std::string&;
  c.def("_add_unary", [](Graph& self, Name node, std::shared_ptr<UnaryKernel> kernel,
                         std::shared_ptr<UnaryKernel> stand_in, int source, int result, int state) {
    add<s::Unary>(self, node, std::move(kernel), std::move(stand_in), source, result, state);
  });
  c.def("_add_reshape", [](Graph& self, Name node, std::shared_ptr<Reshape> kernel, Index width,
                           Index height, Index channels, int source, int result, int state) {
    add<s::Reshaped>(self, node, std::move(kernel), Reshape::Shape{width, height, channels}, source,
                     result, state);
  });
  c.def("_add_transpose", [](Graph& self, Name node, const std::shared_ptr<UnaryKernel>& kernel,
                             int source, int convolution_state, int result, int state) {
    add<s::Transpose>(self, node, std::dynamic_pointer_cast<ConvolutionTranspose>(kernel), source,
                      convolution_state, result, state);
  });
  c.def("_add_binary", [](Graph& self, Name node, std::shared_ptr<ForwardBinaryKernel> kernel,
                          int primary, int secondary, int result, int state) {
    add<s::Binary>(self, node, std::move(kernel), primary, secondary, result, state);
  });
  c.def("_add_gradient", [](Graph& self, Name node, std::shared_ptr<GradientKernel> kernel,
                            int gradient, int source, int state, int result) {
    add<s::Gradient>(self, node, std::move(kernel), gradient, source, state, result);
  });
  c.def("_add_batch_normalization",
        [](Graph& self, Name node, std::shared_ptr<BatchNormalization> kernel,
           std::shared_ptr<BatchNormalizationStatistics> statistics, int source, int result,
           int state) {
          add<s::BatchNormalizationTraining>(self, node, std::move(kernel), std::move(statistics),
                                             source, result, state);
        });
  c.def("_add_batch_normalization_gradient",
        [](Graph& self, Name node, std::shared_ptr<BatchNormalizationStatisticsGradient> statistics,
           std::shared_ptr<BatchNormalizationGradient> kernel, int gradient, int source, int state,
           int result) {
          add<s::BatchNormalizationBackward>(self, node, std::move(statistics), std::move(kernel),
                                             gradient, source, state, result);
        });
  c.def("_add_concatenation",
        [](Graph& self, Name node, std::vector<std::shared_ptr<UnaryKernel>> copies,
           std::vector<int> sources, int result, int state) {
          add<s::Concatenation>(self, node, std::move(copies), std::move(sources), result, state);
        });
  c.def("_add_concatenation_gradient",
        [](Graph& self, Name node, std::shared_ptr<UnaryKernel> copy, int gradient, int source,
           std::size_t position, int state, int result) {
          add<s::ConcatenationBackward>(self, node, std::move(copy), gradient, source, position,
                                        state, result);
        });
  c.def("_add_spatial_mean", [](Graph& self, Name node, int source, int result, int state) {
    add<s::SpatialMean>(self, node, source, result, state);
  });
  c.def("_add_spatial_mean_gradient",
        [](Graph& self, Name node, int gradient, int source, int state, int result) {
          add<s::SpatialMeanBackward>(self, node, gradient, source, state, result);
        });
  c.def("_add_loss", [](Graph& self, Name node, const std::shared_ptr<UnaryKernel>& kernel,
                        int source, int labels, int result) {
    add<s::LossAndGradient>(self, node, std::dynamic_pointer_cast<LabelledLoss>(kernel), source,
                            labels, result);
  });
  c.def("_add_forward_loss", [](Graph& self, Name node, std::shared_ptr<ForwardLoss> kernel,
                                int source, int labels, int weights, int result, int state) {
    add<s::LossForward>(self, node, std::move(kernel), source, labels, weights, result, state);
  });
  c.def("_add_loss_gradient",
        [](Graph& self, Name node, std::shared_ptr<LossGradient> kernel, int gradient, int source,
           int labels, int weights, int state, int result) {
          add<s::LossBackward>(self, node, std::move(kernel), gradient, source, labels, weights,
                               state, result);
        });
  c.def("_add_update_now", [](Graph& self, Name node, int state, py::object callable) {
    add<s::UpdateNow>(self, node, state, update_now(std::move(callable)));
  });
  c.def("_add_update_on_completion", [](Graph& self, Name node, int state, py::object callable) {
    add<s::UpdateOnCompletion>(self, node, state, update_on_completion(std::move(callable)));
  });
}

// The turn of one encode, and nobody's update still to come. What updates is waited for out of
// turn: its handlers may encode this graph themselves.
class TurnGuard {
 public:
  TurnGuard(Graph& graph, const CommandBuffer& command_buffer) : graph_(graph) {
    for (;;) {
      wait_interruptibly([&](auto limit) { return graph_.begin_turn(limit); });
      std::shared_ptr<Work> work;
      try {
        work = graph_.pending_updates(&command_buffer);
      } catch (...) {
        graph_.end_turn();
        throw;
      }
      if (!work) {
        return;
      }
      graph_.end_turn();
      wait_interruptibly([&](auto limit) {
        command_buffer.queue()->help_at_exit(*work);
        return work->wait_finished(limit);
      });
    }
  }
  ~TurnGuard() { graph_.end_turn(); }
  TurnGuard(const TurnGuard&) = delete;
  TurnGuard& operator=(const TurnGuard&) = delete;

 private:
  Graph& graph_;
};

py::tuple encode(Graph& self, const std::shared_ptr<CommandBuffer>& command_buffer,
                 const py::sequence& source_images, const py::sequence& source_states) {
  std::vector<ImageBatch::Images> images;
  images.reserve(py::len(source_images));
  for (const auto& batch : source_images) {
    images.push_back(image_argument(batch, "source_images", "Graph").images());
  }
  std::vector<StateBatch> states;
  states.reserve(py::len(source_states));
  for (const auto& batch : source_states) {
    states.push_back(state_argument(batch, "source_states", "Graph"));
  }
  command_buffer->require_encodable("Graph");
  const TurnGuard turn(self, *command_buffer);
  const GraphResult result = self.encode(command_buffer, images, states);
  return py::make_tuple(result.result, result.intermediates, result.states);
}

void wait_for_outstanding(Graph& self) {
  while (const auto work = self.outstanding_work()) {
    wait_interruptibly([&](auto limit) { return work->wait_finished(limit); });
  }
}

}  // namespace

void bind_graph(py::module_& m) {
  py::class_<Graph, KernelBase, py::smart_holder> c(
      m, "Graph", "What a graph of nodes is compiled to; `mpsgrad.graph.Graph` is its face.");
  c.def(py::init(
            [](const std::shared_ptr<Device>& device) { return std::make_shared<Graph>(device); }),
        "device"_a.none(false));
  c.def("_add_image", [](Graph& self, std::string name, ChannelFormat format,
                         const py::object& allocator, bool synchronize) {
    GraphImage image;
    image.name = std::move(name);
    image.format = format;
    image.allocator = allocator_property(allocator);
    image.synchronize = synchronize;
    return self.add_image(std::move(image));
  });
  c.def("_add_state", [](Graph& self, std::string name, bool temporary, bool synchronize) {
    GraphState state;
    state.name = std::move(name);
    state.temporary = temporary;
    state.synchronize = synchronize;
    return self.add_state(std::move(state));
  });
  bind_steps(c);
  bind_description(c);
  c.def("_set_inputs", &Graph::set_inputs);
  c.def("_set_results", &Graph::set_results);
  c.def("_encode", &encode, "command_buffer"_a.none(false), "source_images"_a, "source_states"_a);
  c.def("_wait_for_outstanding", &wait_for_outstanding);
  c.def("_last_descriptor", &Graph::last_descriptor);
  c.def_property("format", &Graph::format, &Graph::set_format,
                 "`ChannelFormat` of images whose nodes have none, and whose sources have none.");
  c.def_property(
      "destination_image_allocator",
      [](const Graph& self) { return allocator_object(self.allocator()); },
      [](Graph& self, const AllocatorKept& value) {
        self.set_allocator(allocator_property(value));
      },
      "How the first result is made; overrides that of its node.");
  c.def_readwrite("output_state_is_temporary", &Graph::output_state_is_temporary,
                  "Whether exported states are temporary.");
  c.def("read_count_for_source_image", &Graph::read_count_for_source_image, "index"_a,
        "Return how many reads of a temporary source image one encode spends.");
  c.def("read_count_for_source_state", &Graph::read_count_for_source_state, "index"_a,
        "Return how many reads of a source state one encode spends.");
}

}  // namespace mpsgrad
