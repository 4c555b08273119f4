#include "sm_objects.h"

#include <algorithm>
#include <cstring>

#include "lm_shadow.h"

namespace xpu_sim::rt::strict {

void SmObjects::launch_begins(const KernelInfo* kernel, char* sm) {
  sm_ = sm;
  kernel_ = kernel;
  if (kernel->module != module_) {
    module_ = kernel->module;
    number_.clear();
    known_.clear();
    widths_.assign(module_ ? module_->tls_bytes + kLine : 0, 0);
    used_.assign(module_ ? module_->tls_bytes / kLine / 64 + 1 : 0, ~uint64_t{0});
    if (module_ && module_->has_symbols) {
      number_.assign(module_->tls_bytes + 1, 0);
      uint16_t number = 0;
      for (const Symbol& object : module_->sm_objects) {
        ++number;
        std::fill_n(number_.begin() + static_cast<std::ptrdiff_t>(object.begin), object.bytes, number);
      }
      for (const Symbol& guard : module_->sm_guards) {
        std::fill_n(number_.begin() + static_cast<std::ptrdiff_t>(guard.begin), guard.bytes, kGuard);
      }
    }
  }
  filled_ = filled_of(kernel);
}

std::vector<uint16_t>& SmObjects::filled_of(const KernelInfo* kernel) {
  for (auto& [known, objects] : known_) {
    if (known == kernel) return objects;
  }
  std::vector<uint16_t> own;
  for (const Symbol* object : kernel->sm_objects) {
    own.push_back(static_cast<uint16_t>(object - module_->sm_objects.data() + 1));
  }
  known_.emplace_back(kernel, std::move(own));
  return known_.back().second;
}

void SmObjects::cluster_begins() {
  // The pattern lies by address, so that a part of it is recognised.
  constexpr uint64_t kFilling[] = {kUnused, kUnused, kUnused, kUnused, kUnused, kUnused, kUnused, kUnused};
  static_assert(sizeof kFilling == kLine);
  for (const uint16_t number : filled_) {
    const Symbol& object = module_->sm_objects[number - 1u];
    const size_t end = object.begin + object.bytes;
    for (size_t line = object.begin / kLine; line * kLine < end;) {
      const uint64_t rest = used_[line / 64] >> line % 64;
      if (rest == 0) {
        line = (line / 64 + 1) * 64;
        continue;
      }
      line += static_cast<size_t>(__builtin_ctzll(rest));
      if (line * kLine >= end) break;
      std::memcpy(sm_ + line * kLine, kFilling, std::min(kLine, end - line * kLine));
      std::memset(&widths_[line * kLine], 0, kLine);
      used_[line / 64] &= ~(uint64_t{1} << line % 64);
      ++line;
    }
  }
}

bool SmObjects::unwritten(size_t offset, size_t bytes) {
  if (number_.empty()) return false;
  const uint16_t number = number_[offset];
  if (number == 0) return false;
  if (std::find(filled_.begin(), filled_.end(), number) == filled_.end()) {
    std::vector<uint16_t>& known = filled_of(kernel_);
    if (std::find(known.begin(), known.end(), number) == known.end()) known.push_back(number);
    return false;
  }
  for (size_t i = 0; i < bytes; ++i) {
    const char* const at = sm_ + offset + i;
    if (*at != reinterpret_cast<const char*>(&kUnused)[reinterpret_cast<uintptr_t>(at) & 7]) return false;
  }
  return true;
}

}  // namespace xpu_sim::rt::strict
