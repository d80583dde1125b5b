// Padding policies (MPSNNPadding, MPSNNDefaultPadding): how a creating encode sizes its result and
// places its window.
#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "device/image.hpp"
#include "device/state.hpp"

namespace mpsgrad {

class KernelBase;
class UnaryKernel;

// Bits of MPSNNPaddingMethod.
namespace padding_method {
inline constexpr Index kAlignMask = 0x3, kAlignCentered = 0x0, kAlignTopLeft = 0x1,
                       kAlignBottomRight = 0x2;
inline constexpr Index kRemainderRight = 0x4, kRemainderBottom = 0x8;
inline constexpr Index kSizeMask = 0x7F0, kSizeValidOnly = 0x0, kSizeSame = 0x10, kSizeFull = 0x20;
inline constexpr Index kAllowForNodeFusion = 0x2000, kCustom = 0x4000, kExcludeEdges = 0x8000;
inline constexpr Index kReserved = 0x1800;
void check(Index method, const char* who);  // throws on reserved values
int size_style(Index method);               // -1 valid only, 0 same, +1 full
}  // namespace padding_method

// One axis of a forward filter: destination length and the offset of the first window's centre.
struct AxisPlacement {
  Index size = 0;
  Index offset = 0;
};
AxisPlacement place_forward(Index source, Index kernel, Index stride, Index dilation, Index method,
                            bool remainder_far);
// One axis of a reverse filter (strides count destination pixels): the destination length.
Index reverse_size(Index source, Index kernel, Index stride, Index dilation, Index method);

class Padding {
 public:
  virtual ~Padding() = default;
  virtual Index method() const = 0;
  virtual std::string label() const { return {}; }
  virtual std::shared_ptr<Padding> inverse() const { return nullptr; }
  // Runs last if method() has the Custom bit; may edit the kernel, persistently, and the
  // descriptor.
  virtual ImageDescriptor customize(const ImageBatch::Images& sources, const StateBatch& states,
                                    KernelBase& kernel, const ImageDescriptor& suggested) const;
};
// As messages name it: a label is put together, or asked of Python, only for those.
inline std::ostream& operator<<(std::ostream& out, const Padding& padding) {
  return out << padding.label();
}

class DefaultPadding final : public Padding {
 public:
  explicit DefaultPadding(Index method);
  static std::shared_ptr<DefaultPadding> tensorflow_average_pooling();  // 0x401C, clamps edges
  static std::shared_ptr<DefaultPadding>
  tensorflow_average_pooling_valid_only();  // 0x400C, clamps edges

  Index method() const override { return method_; }
  std::string label() const override;
  std::shared_ptr<Padding> inverse() const override;
  ImageDescriptor customize(const ImageBatch::Images& sources, const StateBatch& states,
                            KernelBase& kernel, const ImageDescriptor& suggested) const override;

 private:
  Index method_;
};

// Pixels of padding on each side, as other frameworks write them: added to the source, of a
// transposed convolution cut off the result. There right and bottom may be negative, and add to it.
class ExplicitPadding final : public Padding {
 public:
  ExplicitPadding(Index left, Index right, Index top, Index bottom);
  Index method() const override { return padding_method::kCustom; }
  std::string label() const override;
  ImageDescriptor customize(const ImageBatch::Images& sources, const StateBatch& states,
                            KernelBase& kernel, const ImageDescriptor& suggested) const override;

  const Index left, right, top, bottom;

 private:
  ImageDescriptor cut(UnaryKernel& kernel, const ImageDescriptor& source,
                      const ImageDescriptor& suggested) const;
};

}  // namespace mpsgrad
