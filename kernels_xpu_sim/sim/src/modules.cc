#include "modules.h"

#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>

#include "dwarf.h"
#include "forks.h"

// What the thread-local addresses in compiled code go through; it allocates the segment on first use.
extern "C" void* __tls_get_addr(void*);

namespace xpu_sim::rt {

namespace {

struct Search {
  uintptr_t address;
  Module* found;
};

int visit(dl_phdr_info* info, size_t, void* data) {
  Search* const search = static_cast<Search*>(data);
  const uintptr_t base = info->dlpi_addr;
  bool inside = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& p = info->dlpi_phdr[i];
    if (p.p_type == PT_LOAD && search->address - (base + p.p_vaddr) < p.p_memsz) inside = true;
  }
  if (!inside) return 0;
  Module& m = *search->found;
  m.base = base;
  m.path = info->dlpi_name && *info->dlpi_name ? info->dlpi_name : "/proc/self/exe";
  m.low = UINTPTR_MAX;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& p = info->dlpi_phdr[i];
    const uintptr_t begin = base + p.p_vaddr, end = begin + p.p_memsz;
    if (p.p_type == PT_LOAD) {
      m.low = std::min(m.low, begin);
      m.high = std::max(m.high, end);
      if (!(p.p_flags & PF_W)) m.read_only.emplace_back(begin, end);
    } else if (p.p_type == PT_TLS) {
      m.tls_id = info->dlpi_tls_modid;
      m.tls_bytes = p.p_memsz;
    } else if (p.p_type == PT_GNU_RELRO) {
      m.read_only.emplace_back(begin, end);
    }
  }
  return 1;
}

bool is_gap(const std::string& name) { return name.find("xpu_sim_gap_") != std::string::npos; }

// A static variable of a function, _ZZ <function> E <name>, except for the emulator's own.
bool is_static_local(const std::string& name) {
  return name.compare(0, 3, "_ZZ") == 0 && name.compare(0, 12, "_ZZN7xpu_sim") != 0;
}

void read_symbols(Module* m) {
  const ElfFile file(m->path);
  m->has_symbols = file.each_symbol([m](const char* name, const ElfW(Sym)& s) {
    Symbol symbol{s.st_value, s.st_size, name};
    const int type = ELF64_ST_TYPE(s.st_info);
    if (type == STT_FUNC && s.st_shndx != SHN_UNDEF) {
      m->functions.push_back(std::move(symbol));
    } else if (type == STT_TLS && symbol.name.compare(0, 5, "_ZGVZ") == 0) {
      m->sm_guards.push_back(std::move(symbol));
    } else if (type == STT_TLS && is_static_local(symbol.name)) {
      (is_gap(symbol.name) ? m->sm_gaps : m->sm_objects).push_back(std::move(symbol));
    }
  });
  const auto by_address = [](const Symbol& a, const Symbol& b) { return a.begin < b.begin; };
  std::sort(m->functions.begin(), m->functions.end(), by_address);
  std::sort(m->sm_objects.begin(), m->sm_objects.end(), by_address);
}

const Symbol* holder(const std::vector<Symbol>& symbols, uintptr_t at) {
  const auto after =
      std::upper_bound(symbols.begin(), symbols.end(), at, [](uintptr_t x, const Symbol& s) { return x < s.begin; });
  if (after == symbols.begin()) return nullptr;
  const Symbol& s = *(after - 1);
  return at - s.begin < s.bytes ? &s : nullptr;
}

std::vector<std::unique_ptr<Module>>& modules() {
  static auto* const all = new std::vector<std::unique_ptr<Module>>;
  return *all;
}

}  // namespace

const Symbol* Module::function_at(uintptr_t address) const { return holder(functions, address - base); }

const Symbol* Module::sm_object_at(size_t offset) const { return holder(sm_objects, offset); }

const Symbol* Module::sm_object_near(size_t offset) const {
  const Symbol* near = nullptr;
  for (const Symbol& s : sm_objects) {
    if (s.begin <= offset) near = &s;
  }
  return near;
}

char* Module::tls_block() const {
  if (tls_bytes == 0) return nullptr;
  struct {
    unsigned long module, offset;
  } index = {tls_id, 0};
  return static_cast<char*>(__tls_get_addr(&index));
}

const Module* module_at(const void* address) {
  const uintptr_t a = reinterpret_cast<uintptr_t>(address);
  const std::lock_guard<std::mutex> lock(lock_of(Shared::modules));
  std::vector<std::unique_ptr<Module>>& known = modules();
  for (const auto& m : known) {
    if (a - m->low < m->high - m->low) return m.get();
  }
  auto fresh = std::make_unique<Module>();
  Search search{a, fresh.get()};
  if (dl_iterate_phdr(visit, &search) == 0) return nullptr;
  read_symbols(fresh.get());
  known.push_back(std::move(fresh));
  return known.back().get();
}

namespace {

// What f(debug information, address in it) gives of the module's; nothing: there is no module.
template <class F>
auto with_debug(const Module* module, const void* pc, F f) -> decltype(f(*module->debug, uintptr_t{})) {
  if (!module) return {};
  // Findings are few: one at a time.
  const std::lock_guard<std::mutex> lock(lock_of(Shared::source_lines));
  std::shared_ptr<DebugInfo>& debug = const_cast<Module*>(module)->debug;
  if (!debug) debug = std::make_shared<DebugInfo>(module->path);
  return f(*debug, reinterpret_cast<uintptr_t>(pc) - module->base);
}

}  // namespace

Location locate(const void* pc) {
  const std::vector<Location> chain = locate_inlined(pc);
  return chain.empty() ? Location() : chain[0];
}

std::vector<Location> locate_inlined(const void* pc) {
  const Module* const m = module_at(pc);
  return with_debug(m, pc, [&](DebugInfo& debug, uintptr_t code) {
    const Symbol* const symbol = m->function_at(reinterpret_cast<uintptr_t>(pc));
    return debug.places(code, symbol ? readable(symbol->name) : "");
  });
}

std::string local_variable(const void* pc, const StackFrame& frame, const void* address, long long* offset) {
  return with_debug(module_at(pc), pc, [&](DebugInfo& debug, uintptr_t code) {
    return debug.variable(code, frame, reinterpret_cast<uintptr_t>(address), offset);
  });
}

Scalar local_scalar(const void* pc, const StackFrame& frame, const void* address) {
  return with_debug(module_at(pc), pc, [&](DebugInfo& debug, uintptr_t code) {
    return debug.scalar(code, frame, reinterpret_cast<uintptr_t>(address));
  });
}

Scalar sm_scalar(const Module& module, size_t offset) {
  return with_debug(&module, nullptr, [&](DebugInfo& debug, uintptr_t) { return debug.thread_local_scalar(offset); });
}

std::string demangled(const std::string& symbol) {
  int status = 0;
  char* const text = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  const std::string name = status == 0 && text ? text : "";
  std::free(text);
  return name;
}

std::string readable(const std::string& symbol) {
  const std::string name = demangled(symbol);
  if (name.empty()) return symbol;
  // Drop the parameters, then a return type: both are the text outside of <> and () around the name.
  size_t depth = 0, start = 0, end = name.size();
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (c == '(' && depth == 0 && name.compare(i, 11, "(anonymous ") != 0) {
      end = i;
      break;
    }
    if (c == '<' || c == '(') ++depth;
    if ((c == '>' || c == ')') && depth > 0) --depth;
    if (c == ' ' && depth == 0) start = i + 1;
  }
  return name.substr(start, end - start);
}

std::string variable_of(const std::string& symbol) {
  const std::string name = demangled(symbol);
  if (name.empty()) return symbol;
  const size_t at = name.rfind("::");
  return at == std::string::npos ? name : name.substr(at + 2);
}

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
