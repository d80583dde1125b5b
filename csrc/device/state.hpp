// State and ResourceList (MPSState, MPSStateResourceList): what travels between kernels besides
// images.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "device/buffer.hpp"
#include "device/device.hpp"
#include "device/read_count.hpp"

namespace mpsgrad {

class Image;
class KernelBase;

struct TextureInfo {  // MPSStateTextureInfo
  Index width = 0, height = 0, depth = 0, array_length = 0, pixel_format = 0, texture_type = 0,
        usage = 0;
  Index bytes() const;  // of its texels, unaligned; 0 for a pixel format nobody here uses
};

enum class StateResourceType : int { None = 0, Buffer = 1, Texture = 2 };

// Which resources a state shall have. All textures precede all buffers, whatever the order they
// were appended in.
class ResourceList {
 public:
  void append_texture(const TextureInfo& info) { textures_.push_back(info); }
  void append_buffer(Index size);
  const std::vector<TextureInfo>& textures() const { return textures_; }
  const std::vector<Index>& buffers() const { return buffers_; }

 private:
  std::vector<TextureInfo> textures_;
  std::vector<Index> buffers_;
};

class State : public std::enable_shared_from_this<State> {
 public:
  State(std::shared_ptr<Device> device, const ResourceList& resources);
  State(const std::shared_ptr<CommandBuffer>& command_buffer,
        const ResourceList& resources);  // temporary
  // Temporary if there is a command buffer, else ordinary.
  State(std::shared_ptr<Device> device, const std::shared_ptr<CommandBuffer>& temporary,
        const ResourceList& resources);
  // Wraps a buffer that exists.
  State(std::shared_ptr<Device> device, std::shared_ptr<Buffer> buffer);
  virtual ~State();

  const std::shared_ptr<Device>& device() const { return device_; }
  virtual const char* class_name() const { return "State"; }
  // A temporary state without resources is not temporary, whatever made it.
  virtual bool is_temporary() const {
    return count_.has_value() && (counts_without_resources_ || !resources_.empty());
  }
  Index read_count() const { return count_ ? count_->value() : 0; }
  void set_read_count(Index value);
  void add_read_count(Index amount);
  ReadCount* count() { return count_ ? &*count_ : nullptr; }
  void require_usable(const char* who, const CommandBuffer& command_buffer) const;
  // One encode has read this state.
  void spend_read();
  void discard() { discarded_ = true; }  // it never reached the user: no warning when it goes

  Index resource_count() const { return static_cast<Index>(resources_.size()); }
  StateResourceType resource_type_at(Index index) const;
  Index buffer_size_at(Index index) const;
  TextureInfo texture_info_at(Index index) const;
  // Null if the storage does not exist yet and `allocate` is false.
  std::shared_ptr<Buffer> resource_at(Index index, bool allocate);
  virtual Index resource_size() const;
  virtual void synchronize(CommandBuffer& command_buffer);

  std::string label;

 protected:
  virtual void release_contents();                    // the read count reached 0
  void add_resource(std::shared_ptr<Buffer> buffer);  // one that a subclass has made
  // For classes whose objects carry more than resources.
  void count_without_resources() { counts_without_resources_ = true; }

 private:
  struct Resource {
    std::variant<Index, TextureInfo> what;  // a buffer's bytes, or a texture
    std::shared_ptr<Buffer> storage;
  };
  Index bytes_of(const Resource& resource) const;
  const Resource& at(Index index) const;

  std::shared_ptr<Device> device_;
  std::optional<ReadCount> count_;
  std::vector<Resource> resources_;
  bool counts_without_resources_ = false;
  bool discarded_ = false;
};

using StateBatch = std::vector<std::shared_ptr<State>>;

// The functions of MPSState.h over arrays, each once per distinct object.
Index increment_read_count(const StateBatch& states, Index amount);
Index resource_size(const StateBatch& states);
void synchronize(const StateBatch& states, CommandBuffer& command_buffer);

}  // namespace mpsgrad
