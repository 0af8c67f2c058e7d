// What torch asks of a device: guard, streams, events, hooks, and an allocator that keeps what was freed.
#include "simulation.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_map>

namespace simulation {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

struct Event {
  int device;
  int64_t stream;
  int64_t moment_ns;
  bool timed;
};

std::string where(int device, int64_t stream) { return std::to_string(device) + " " + std::to_string(stream); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr DeviceType static_type = DeviceType::PrivateUse1;
  Guard() = default;
  explicit Guard(DeviceType) {}

  DeviceType type() const override { return static_type; }
  Device exchangeDevice(Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return {static_type, static_cast<DeviceIndex>(current_device())}; }
  void setDevice(Device device) const override {
    if (device.has_index()) {
      set_current_device(device.index());
    }
  }
  void uncheckedSetDevice(Device device) const noexcept override { setDevice(device); }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }
  // No half precision: the host that computes for it may have none.
  c10::DeviceCapability getDeviceCapability(Device) const override {
    c10::DeviceCapability found;
    found.capability_data.supported_scalar_types.has_BFloat16 = 0;
    found.capability_data.supported_scalar_types.has_Half = 0;
    return found;
  }

  Stream stream(int device, int64_t id) const {
    return Stream(Stream::UNSAFE, Device(static_type, static_cast<DeviceIndex>(device)), id);
  }
  static int index_of(Device device) { return device.has_index() ? device.index() : current_device(); }
  Stream getStream(Device device) const override {
    return stream(index_of(device), current_stream(index_of(device)));
  }
  Stream getDefaultStream(Device device) const override { return stream(index_of(device), 0); }
  Stream getNewStream(Device device, int) const override {
    return stream(index_of(device), new_stream(index_of(device)));
  }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  Stream exchangeStream(Stream wanted) const override {
    const int device = wanted.device_index();
    return stream(device, exchange_current_stream(device, wanted.id()));
  }
  bool queryStream(const Stream& stream) const override {
    return stream_end_ns(stream.device_index(), stream.id()) <= host_now_ns();
  }
  void synchronizeStream(const Stream& stream) const override {
    note("synchronize_stream " + where(stream.device_index(), stream.id()));
    wait_until(stream_end_ns(stream.device_index(), stream.id()), "simStreamSynchronize");
  }
  void synchronizeDevice(const DeviceIndex device) const override {
    note("synchronize " + std::to_string(device));
    wait_until(device_end_ns(device), "simDeviceSynchronize");
  }

  void record(void** event, const Stream& stream, const DeviceIndex device, const c10::EventFlag flag) const override {
    TORCH_CHECK(
        device == -1 || device == stream.device_index(), "an event of simulated device ", device,
        " cannot be recorded on a stream of device ", stream.device_index());
    auto* made = static_cast<Event*>(*event);
    if (made == nullptr) {
      *event = made = new Event{};
    }
    *made = {
        stream.device_index(), stream.id(), stream_end_ns(stream.device_index(), stream.id()),
        flag == c10::EventFlag::BACKEND_DEFAULT};
    note(std::string(made->timed ? "record_timed " : "record ") + where(made->device, made->stream));
  }
  void block(void* event, const Stream& stream) const override {
    if (event != nullptr) {
      delay_stream(stream.device_index(), stream.id(), static_cast<Event*>(event)->moment_ns);
    }
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<Event*>(event)->moment_ns <= host_now_ns();
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      const auto& one = *static_cast<Event*>(event);
      note("synchronize_event " + where(one.device, one.stream));
      wait_until(one.moment_ns, "simEventSynchronize");
    }
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    const auto &from = *static_cast<Event*>(first), &to = *static_cast<Event*>(second);
    TORCH_CHECK(from.timed && to.timed, "both events must be made with timing");
    TORCH_CHECK(from.device == to.device, "the events are of two devices, ", from.device, " and ", to.device);
    TORCH_CHECK(queryEvent(first) && queryEvent(second), "both events must be completed before their time is read");
    return static_cast<double>(to.moment_ns - from.moment_ns) / 1e6;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Generator final : at::CPUGeneratorImpl {
  explicit Generator(DeviceIndex device) {
    device_ = Device(DeviceType::PrivateUse1, device);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(DeviceIndex device) const override { set_current_device(device); }
  DeviceIndex getCurrentDevice() const override { return static_cast<DeviceIndex>(current_device()); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    const auto before = getCurrentDevice();
    set_current_device(device);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return device < 0 ? getCurrentDevice() : exchangeDevice(device);
  }
  // Every page of the host can be copied to without the host, as pinned pages of a real one.
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(DeviceType::CPU); }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override {
    static std::array<at::Generator, kDevices> made{
        at::make_generator<Generator>(0), at::make_generator<Generator>(1)};
    return made.at(device < 0 ? current_device() : device);
  }
  at::Generator getNewGenerator(DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? current_device() : device);
  }
};

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t wanted) override {
    const int device = current_device();
    const Device place(DeviceType::PrivateUse1, static_cast<DeviceIndex>(device));
    const size_t size = (wanted + kBlock - 1) / kBlock * kBlock;
    if (size == 0) {
      return {nullptr, nullptr, &Allocator::release, place};
    }
    std::lock_guard lock(mutex_);
    auto& memory = devices_.at(device);
    void* pointer = nullptr;
    if (auto kept = memory.kept.find(size); kept != memory.kept.end()) {
      pointer = kept->second;
      memory.kept.erase(kept);
    } else {
      if (memory.stats.reserved_bytes[0].current + static_cast<int64_t>(size) > total_bytes_) {
        drop_kept(memory);
      }
      const auto reserved = memory.stats.reserved_bytes[0].current;
      TORCH_CHECK_WITH(
          OutOfMemoryError, reserved + static_cast<int64_t>(size) <= total_bytes_, "the simulated device ", device,
          " is out of memory. Tried to allocate ", size, " bytes. It has a total capacity of ", total_bytes_,
          " bytes of which ", total_bytes_ - reserved, " bytes are free.");
      pointer = std::aligned_alloc(kBlock, size);
      memory.stats.reserved_bytes[0].increase(size);
    }
    memory.stats.allocated_bytes[0].increase(size);
    memory.stats.allocation[0].increase(1);
    sizes_[pointer] = {device, size};
    report(pointer, static_cast<int64_t>(size), memory, place);
    return {pointer, pointer, &Allocator::release, place};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Allocator::release; }
  void copy_data(void* target, const void* source, size_t count) const override {
    default_copy_data(target, source, count);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    std::lock_guard lock(mutex_);
    note("empty_cache");
    for (auto& memory : devices_) {
      drop_kept(memory);
    }
  }
  void recordStream(const c10::DataPtr&, Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    return devices_.at(device).stats;
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    devices_.at(device).stats.allocated_bytes[0].reset_accumulated();
    devices_.at(device).stats.reserved_bytes[0].reset_accumulated();
  }
  void resetPeakStats(DeviceIndex device) override {
    devices_.at(device).stats.allocated_bytes[0].reset_peak();
    devices_.at(device).stats.reserved_bytes[0].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    return {total_bytes_ - devices_.at(device).stats.reserved_bytes[0].current, total_bytes_};
  }
  void set_total_bytes(int64_t total) { total_bytes_ = total; }

 private:
  static constexpr size_t kBlock = 512;
  struct Memory {
    c10::CachingDeviceAllocator::DeviceStats stats;
    std::multimap<size_t, void*> kept;
  };

  static void release(void* pointer);
  void free_block(void* pointer) {
    std::lock_guard lock(mutex_);
    const auto [device, size] = sizes_.at(pointer);
    sizes_.erase(pointer);
    auto& memory = devices_.at(device);
    memory.stats.allocated_bytes[0].decrease(size);
    memory.kept.emplace(size, pointer);
    report(pointer, -static_cast<int64_t>(size), memory,
           Device(DeviceType::PrivateUse1, static_cast<DeviceIndex>(device)));
  }
  static void drop_kept(Memory& memory) {
    for (auto& [size, pointer] : memory.kept) {
      std::free(pointer);
      memory.stats.reserved_bytes[0].decrease(size);
    }
    memory.kept.clear();
  }
  static void report(void* pointer, int64_t size, const Memory& memory, Device place) {
    c10::reportMemoryUsageToProfiler(
        pointer, size, memory.stats.allocated_bytes[0].current, memory.stats.reserved_bytes[0].current, place);
  }

  std::mutex mutex_;
  std::array<Memory, kDevices> devices_;
  std::unordered_map<void*, std::pair<int, size_t>> sizes_;
  int64_t total_bytes_ = int64_t{4} << 30;
};

Allocator& allocator() {
  static auto* value = new Allocator();
  return *value;
}

void Allocator::release(void* pointer) {
  if (pointer != nullptr) {
    allocator().free_block(pointer);
  }
}

const bool registered = [] {
  c10::SetAllocator(DeviceType::PrivateUse1, &allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

}  // namespace
}  // namespace simulation

extern "C" void simulated_total_bytes(int64_t total) { simulation::allocator().set_total_bytes(total); }
