// bind_prober: what `mpsgrad probe` asks the framework itself.
#include <pybind11/stl.h>

#include "base/errors.hpp"
#include "core/arguments_py.hpp"
#include "device/prober.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;

const Prober& prober_of(const Device& device) {
  const Prober* prober = find_prober(device);
  require<UnsupportedError>(prober != nullptr, "Device: '", device.kind(),
                            "' has no framework to ask");
  return *prober;
}

py::tuple tuple_of(const ProbedDescriptor& probed) {
  return py::make_tuple(probed.kernel, probed.result.width, probed.result.height,
                        probed.result.feature_channels, probed.result.channel_format,
                        py::make_tuple(probed.offset.x, probed.offset.y, probed.offset.z));
}

}  // namespace

void bind_prober(py::module_& m) {
  m.def(
      "_probe_pooling_descriptor",
      [](Device& device, Index width, Index kernel, Index stride, Index padding_method) {
        return tuple_of(
            prober_of(device).pooling_descriptor(device, width, kernel, stride, padding_method));
      },
      "device"_a.none(false), "width"_a, "kernel"_a, "stride"_a, "padding_method"_a);
  m.def(
      "_probe_descriptors",
      [](Device& device, ChannelFormat format, Index destination_channel_offset) {
        py::list result;
        for (const ProbedDescriptor& probed :
             prober_of(device).descriptors(device, format, destination_channel_offset)) {
          result.append(tuple_of(probed));
        }
        return result;
      },
      "device"_a.none(false), "channel_format"_a, "destination_feature_channel_offset"_a);
  m.def(
      "_probe_reads_of_shared_source",
      [](Device& device) { return prober_of(device).reads_of_shared_source(device); },
      "device"_a.none(false));
  m.def(
      "_probe_steps_of_state_encode",
      [](Device& device) { return prober_of(device).steps_of_state_encode(device); },
      "device"_a.none(false));
  m.def(
      "_probe_archived_properties",
      [](Device& device) { return prober_of(device).archived_properties(device); },
      "device"_a.none(false));
}

}  // namespace mpsgrad
