// bind_reduction: kernels of the reduction family; their documentation is in
// python/mpsgrad/reduction.py.
#include "core/arguments_py.hpp"
#include "kernels/reduction/reduction.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;
using Axis = ReductionAxis;
using Kind = ReductionKind;

void bind_unary_base(py::module_& m) {
  py::class_<ReduceUnary, UnaryKernel, py::smart_holder> c(
      m, "ReduceUnary",
      R"(One value made of many of a source (``MPSNNReduceUnary``); never made directly.

There are no gradient kernels, and no states. `offset` is ignored but for its z, which selects an image.
)");
  c.def_property("clip_rect_source", &ReduceUnary::source_clip, &ReduceUnary::set_source_clip,
                 "Pixels of the source that are read, as far as it has them: a `Region`, at first "
                 "`NO_CLIP`.");
}

template <Axis kAxis, Kind kKind>
void bind_unary(py::module_& m) {
  using Kernel = Reduce<kAxis, kKind>;
  py::class_<Kernel, ReduceUnary, py::smart_holder>(m, reduction_name(kAxis, kKind))
      .def(py::init<std::shared_ptr<Device>>(), "device"_a.none(false));
}

template <Axis kAxis>
void bind_axis(py::module_& m) {
  bind_unary<kAxis, Kind::Min>(m);
  bind_unary<kAxis, Kind::Max>(m);
  bind_unary<kAxis, Kind::Mean>(m);
}

void bind_binary(py::module_& m) {
  py::class_<ReduceBinary, ForwardBinaryKernel, py::smart_holder> c(
      m, "ReduceBinary",
      R"(Sums over the feature channels of two sources (``MPSNNReduceBinary``); never made directly.

There are no gradient kernels, and no states. Offsets are ignored but for their z, which select images.
)");
  for (const bool secondary : {false, true}) {
    c.def_property(
        secondary ? "secondary_source_clip_rect" : "primary_source_clip_rect",
        [=](const ReduceBinary& k) { return k.source_clip(secondary); },
        [=](ReduceBinary& k, const Region& clip) { k.set_source_clip(secondary, clip); },
        "Pixels of this source that are read, as far as it has them: a `Region`, at first "
        "`NO_CLIP`.");
  }
  using Mean = ReduceFeatureChannelsAndWeightsMean;
  py::class_<Mean, ReduceBinary, py::smart_holder>(m, "ReduceFeatureChannelsAndWeightsMean")
      .def(py::init<std::shared_ptr<Device>>(), "device"_a.none(false));
  using Sum = ReduceFeatureChannelsAndWeightsSum;
  py::class_<Sum, ReduceBinary, py::smart_holder>(m, "ReduceFeatureChannelsAndWeightsSum")
      .def(py::init<std::shared_ptr<Device>, bool>(), "device"_a.none(false),
           "do_weighted_sum_by_non_zero_weights"_a)
      .def_property_readonly("do_weighted_sum_by_non_zero_weights", &Sum::by_non_zero_weights,
                             "Whether sums are divided by the number of weights that are not 0.");
}

void bind_correlation(py::module_& m) {
  using Kernel = LocalCorrelation;
  py::class_<Kernel, ReduceBinary, py::smart_holder> c(m, "LocalCorrelation");
  c.def(py::init([](const std::shared_ptr<Device>& device, Index window_x, Index window_y,
                    Index stride_x, Index stride_y) {
          return std::make_shared<Kernel>(
              device, CorrelationWindow{window_x, window_y, stride_x, stride_y});
        }),
        "device"_a.none(false), "window_in_x"_a, "window_in_y"_a, "stride_in_x"_a, "stride_in_y"_a);
  for (const bool vertical : {false, true}) {
    c.def_property(
        vertical ? "window_in_y" : "window_in_x",
        [=](const Kernel& k) {
          const CorrelationWindow window = k.correlation_window();
          return vertical ? window.window_y : window.window_x;
        },
        [=](Kernel& k, Index value) { k.set_window(vertical, value); },
        "Shifts to either side of each pixel.");
    c.def_property(
        vertical ? "stride_in_y" : "stride_in_x",
        [=](const Kernel& k) {
          const CorrelationWindow window = k.correlation_window();
          return vertical ? window.stride_y : window.stride_x;
        },
        [=](Kernel& k, Index value) { k.set_stride_between(vertical, value); },
        "Pixels from one shift to the next.");
  }
}

}  // namespace

void bind_reduction(py::module_& m) {
  bind_unary_base(m);
  bind_axis<Axis::Row>(m);
  bind_axis<Axis::Column>(m);
  bind_axis<Axis::FeatureChannels>(m);
  bind_unary<Axis::Row, Kind::Sum>(m);
  bind_unary<Axis::Column, Kind::Sum>(m);
  bind_unary<Axis::FeatureChannels, Kind::ArgumentMin>(m);
  bind_unary<Axis::FeatureChannels, Kind::ArgumentMax>(m);
  py::class_<ReduceFeatureChannelsSum, ReduceUnary, py::smart_holder>(m, "ReduceFeatureChannelsSum")
      .def(py::init<std::shared_ptr<Device>>(), "device"_a.none(false))
      .def_property("weight", &ReduceFeatureChannelsSum::weight,
                    &ReduceFeatureChannelsSum::set_weight,
                    "What each sum is multiplied by, float32; at first 1.");
  bind_binary(m);
  bind_correlation(m);
}

}  // namespace mpsgrad
