#include "kernel_info.h"

#include <iterator>
#include <memory>
#include <mutex>

#include "forks.h"

namespace xpu_sim::rt {

namespace {

// The objects of a kernel are its static variables: _ZZ <the kernel, without _Z> E <name>.
void find_sm(const Symbol& kernel, KernelInfo* info) {
  const std::string& s = kernel.name;
  const std::string encoding = s.compare(0, 2, "_Z") == 0 ? s.substr(2) : std::to_string(s.size()) + s;
  const std::string prefix = "_ZZ" + encoding + "E";
  for (const Symbol& object : info->module->sm_objects) {
    if (object.name.compare(0, prefix.size(), prefix) != 0) continue;
    info->sm_objects.push_back(&object);
    info->sm_bytes += object.bytes;
  }
}

std::unique_ptr<KernelInfo> find_out(const void* kernel, const char* name) {
  auto info = std::make_unique<KernelInfo>();
  info->address = kernel;
  info->module = module_at(kernel);
  const Symbol* const symbol = info->module ? info->module->function_at(reinterpret_cast<uintptr_t>(kernel)) : nullptr;
  if (name) {
    info->name = name;
  } else {
    info->name = symbol ? readable(symbol->name) : "a kernel without a symbol";
  }
  if (symbol) find_sm(*symbol, info.get());
  return info;
}

}  // namespace

const KernelInfo* kernel_info(const void* kernel, const char* name, KernelCache* cache) {
  const KernelInfo*& slot = cache->recent[(reinterpret_cast<uintptr_t>(kernel) >> 4) % std::size(cache->recent)];
  if (slot && slot->address == kernel && (!name || slot->name == name)) return slot;

  const std::lock_guard<std::mutex> lock(lock_of(Shared::kernels));
  static auto* const all = new std::vector<std::unique_ptr<KernelInfo>>;
  for (const auto& known : *all) {
    if (known->address == kernel && (!name || known->name == name)) return slot = known.get();
  }
  all->push_back(find_out(kernel, name));
  return slot = all->back().get();
}

}  // namespace xpu_sim::rt
