// bind_graph: what python/mpsgrad/graph compiles nodes into.
#include "core/arguments_py.hpp"
#include "core/waiting_py.hpp"
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

// Runs on whatever thread completes the work.
GraphCompletion completion(py::object callable) {
  return [held = share_python(std::move(callable))](Work& work) {
    if (!may_call_python()) {
      return;
    }
    const py::gil_scoped_acquire locked;
    try {
      (*held)();
    } catch (const py::error_already_set& error) {
      work.note_handler_failure([value = share_python(error.value())] {
        const py::gil_scoped_acquire again;
        PyErr_SetObject(py::type::handle_of(*value).ptr(), value->ptr());
        throw py::error_already_set();
      });
    }
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

// The turn of one encode, and nobody's update still to come.
class TurnGuard {
 public:
  TurnGuard(Graph& graph, const CommandBuffer& command_buffer) : graph_(graph) {
    wait_interruptibly([&](auto limit) { return graph_.begin_turn(limit); });
    try {
      if (const auto work = graph_.pending_updates(&command_buffer)) {
        wait_interruptibly([&](auto limit) { return work->wait_finished(limit); });
        graph_.pending_updates(&command_buffer);
      }
    } catch (...) {
      graph_.end_turn();
      throw;
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
    images.push_back(image_argument(batch, "source_images").images());
  }
  std::vector<StateBatch> states;
  states.reserve(py::len(source_states));
  for (const auto& batch : source_states) {
    states.push_back(state_argument(batch, "source_states"));
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
        "device"_a);
  c.def("_add_image", [](Graph& self, std::string name, ChannelFormat format,
                         const py::object& allocator, bool synchronize) {
    GraphImage image;
    image.name = std::move(name);
    image.format = format;
    image.allocator = allocator_argument(allocator);
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
  c.def("_set_inputs", &Graph::set_inputs);
  c.def("_set_results", &Graph::set_results);
  c.def("_encode", &encode);
  c.def("_wait_for_outstanding", &wait_for_outstanding);
  c.def("_last_descriptor", &Graph::last_descriptor);
  c.def_property("format", &Graph::format, &Graph::set_format,
                 "`ChannelFormat` of images whose nodes have none, and whose sources have none.");
  c.def_property(
      "destination_image_allocator",
      [](const Graph& self) { return allocator_object(self.allocator()); },
      [](Graph& self, const py::object& value) { self.set_allocator(allocator_argument(value)); },
      "How the first result is made; overrides that of its node.");
  c.def_readwrite("output_state_is_temporary", &Graph::output_state_is_temporary,
                  "Whether exported states are temporary.");
  c.def("read_count_for_source_image", &Graph::read_count_for_source_image, "index"_a,
        "Return how many reads of a temporary source image one encode spends.");
  c.def("read_count_for_source_state", &Graph::read_count_for_source_state, "index"_a,
        "Return how many reads of a source state one encode spends.");
}

}  // namespace mpsgrad
