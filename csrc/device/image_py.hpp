// What the bindings of images and of their batches share.
#pragma once

#include <memory>

#include "core/numbers_py.hpp"
#include "device/image.hpp"

namespace mpsgrad {

using ImageClass = py::class_<Image, py::smart_holder>;
using ImageBatchClass = py::class_<ImageBatch, py::smart_holder>;

// Images over an array (N, H, W, C) or, if it is not for a batch, one over an array (H, W, C).
std::shared_ptr<ImageBatch> images_over(const std::shared_ptr<Device>& device,
                                        const GivenArray& given, bool batch);

void bind_image_batch(py::module_& m, ImageBatchClass& c);

}  // namespace mpsgrad
