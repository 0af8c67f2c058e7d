// Kernels of the simulated device in torch's traces, through Kineto's seam for devices outside its source tree.
#define USE_KINETO
#define FMT_HEADER_ONLY
#include "simulation.h"

#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

namespace simulation {
namespace {

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    started_ns_ = host_now_ns();
    trace(true);
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    trace(false);
    ended_ns_ = host_now_ns();
    status_ = libkineto::TraceStatus::PROCESSING;
  }
  std::vector<std::string> errors() override { return {}; }
  void processTrace(libkineto::ActivityLogger& logger) override {
    process(logger, [](int32_t) -> const libkineto::ITraceActivity* { return nullptr; });
  }
  void processTrace(
      libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t, int64_t) override {
    process(logger, linked);
  }
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }
  void pushCorrelationId(uint64_t id) override { push_correlation(id); }
  void popCorrelationId() override { pop_correlation(); }

 private:
  void process(libkineto::ActivityLogger& logger, const libkineto::getLinkedActivityCallback& linked) {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(started_ns_, ended_ns_, "simulated device");
    const auto found = traced();
    for (const auto& call : found.calls) {
      auto& activity = add(libkineto::ActivityType::PRIVATEUSE1_RUNTIME, call.name, call.start_ns, call.end_ns);
      activity.device = libkineto::processId();
      activity.resource = libkineto::systemThreadId();
      finish(activity, call.number, linked(static_cast<int32_t>(call.operation)), logger);
    }
    for (const auto& kernel : found.kernels) {
      const bool copy = kernel.name.rfind("copy_", 0) == 0;
      auto& activity = add(
          copy ? libkineto::ActivityType::GPU_MEMCPY : libkineto::ActivityType::CONCURRENT_KERNEL, kernel.name,
          kernel.start_ns, kernel.end_ns);
      activity.device = kernel.device;
      activity.resource = static_cast<int32_t>(kernel.stream);
      activity.addMetadata("device", kernel.device);
      activity.addMetadata("stream", kernel.stream);
      finish(activity, kernel.call, linked(static_cast<int32_t>(found.calls.at(kernel.call - 1).operation)), logger);
    }
  }

  libkineto::GenericTraceActivity& add(
      libkineto::ActivityType type, const std::string& name, int64_t start_ns, int64_t end_ns) {
    buffer_->emplace_activity(buffer_->span, type, name);
    auto& activity = *buffer_->activities.back();
    activity.startTime = start_ns;
    activity.endTime = end_ns;
    return activity;
  }

  static void finish(
      libkineto::GenericTraceActivity& activity, int32_t call, const libkineto::ITraceActivity* operation,
      libkineto::ActivityLogger& logger) {
    activity.id = call;
    activity.linked = operation;
    activity.addMetadata("correlation", call);
    if (operation != nullptr) {
      activity.addMetadata("External id", operation->correlationId());
    }
    activity.log(logger);
  }

  int64_t started_ns_ = 0, ended_ns_ = 0;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<libkineto::ActivityType>& availableActivities() const override { return types_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<libkineto::ActivityType>& wanted, const libkineto::Config&) override {
    // A profiler of the host alone must not get the device's kernels.
    return wanted.count(libkineto::ActivityType::CONCURRENT_KERNEL) ? std::make_unique<Session>() : nullptr;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<libkineto::ActivityType>& wanted, const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  std::string name_ = "simulated device";
  std::set<libkineto::ActivityType> types_{
      libkineto::ActivityType::CONCURRENT_KERNEL, libkineto::ActivityType::GPU_MEMCPY,
      libkineto::ActivityType::PRIVATEUSE1_RUNTIME};
};

REGISTER_PRIVATEUSE1_PROFILER(Profiler);

}  // namespace
}  // namespace simulation
