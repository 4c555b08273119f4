// Variables and their types, from DWARF's debugging information entries.
#include "debug_entries.h"

namespace xpu_sim::rt {

namespace {

uintptr_t begin_of(uint64_t base, int64_t offset, const StackFrame& frame) {
  const uintptr_t distance = static_cast<uintptr_t>(offset);
  switch (base) {
    case kOpFrameBase: return frame.frame_pointer + 16 + distance;  // the stack pointer before the function was called
    case kOpFramePointer: return frame.frame_pointer + distance;
    default: return frame.stack_pointer + distance;
  }
}

}  // namespace

std::string DebugInfo::variable(uintptr_t code, const StackFrame& frame, uintptr_t address, long long* offset) const {
  // Blocks one after the other share memory: the one whose code runs counts, and of those the outermost.
  std::string name;
  for (const Variable& v : function(code).variables) {
    const uintptr_t at = address - begin_of(v.base, v.offset, frame);
    if (v.name.empty() || at >= v.type->bytes || (!v.lives && !name.empty())) continue;
    *offset = static_cast<long long>(at);
    name = v.name;
    if (v.lives) break;
  }
  return name;
}

Scalar DebugInfo::scalar(uintptr_t code, const StackFrame& frame, uintptr_t address) const {
  Scalar found;
  found.described = function(code).found;
  const Scalar none = found;
  bool first = true;
  for (const Variable& v : function(code).variables) {
    const uintptr_t begin = begin_of(v.base, v.offset, frame);
    if (address - begin >= v.type->bytes) continue;
    Scalar s = scalar_in(v.type, address - begin);
    s.begin += begin;
    if (!first && (s.kind != found.kind || s.begin != found.begin || s.bytes != found.bytes)) return none;
    s.described = true;
    found = s;
    first = false;
  }
  return found;
}

Scalar DebugInfo::thread_local_scalar(uintptr_t offset) const {
  if (!has_thread_locals_) read_thread_locals();
  auto next = thread_locals_.upper_bound(offset);
  if (next == thread_locals_.begin()) return {};
  const auto& [begin, type] = *--next;
  if (offset - begin >= type->bytes) return {};
  Scalar s = scalar_in(type, offset - begin);
  s.begin += begin;
  return s;
}

// Those of the function at `code`, of its blocks and of what is inlined there.
const DebugInfo::Function& DebugInfo::function(uintptr_t code) const {
  const auto [entry, is_new] = functions_.try_emplace(code);
  Function& function = entry->second;
  if (!is_new) return function;
  each_top_entry(code, [&](DwarfReader* in, const Unit& unit, const Entry& top) {
    bool is_function = false;
    for (int depth = top.abbreviation->children ? 1 : 0; depth > 0 && !in->at_end() && !is_function;) {
      const Entry e = read_entry(in, unit);
      if (!e.abbreviation) {
        --depth;
        continue;
      }
      const bool has_code = e.has_low || e.has_ranges;
      is_function = e.abbreviation->tag == kTagSubprogram && has_code && covers(e, unit, code);
      if (!e.abbreviation->children) continue;
      if (is_function) {
        read_variables(in, unit, code, &function.variables);
      } else if (e.abbreviation->tag == kTagSubprogram) {
        skip_children(in, unit);
      } else {
        ++depth;
      }
    }
    function.found |= is_function;
    return is_function;
  });
  return function;
}

void DebugInfo::read_variables(DwarfReader* in, const Unit& unit, uintptr_t code, std::vector<Variable>* found) const {
  int elsewhere = 0;  // the depth of the outermost block that does not have the code; 0: there is none
  for (int depth = 1; depth > 0 && !in->at_end();) {
    const Entry e = read_entry(in, unit);
    if (!e.abbreviation) {
      --depth;
      if (depth < elsewhere) elsewhere = 0;
      continue;
    }
    if (e.abbreviation->children) {
      ++depth;
      if (!elsewhere && (e.has_low || e.has_ranges) && !covers(e, unit, code)) elsewhere = depth;
    }
    Variable v;
    v.lives = !elsewhere;
    if (e.abbreviation->tag != kTagVariable || !read_variable(e, unit, &v)) continue;
    const bool on_stack = v.base == kOpFrameBase || v.base == kOpFramePointer || v.base == kOpStackPointer;
    if (on_stack) found->push_back(std::move(v));
  }
}

// False: it is not in memory, or not in one place.
bool DebugInfo::read_variable(const Entry& e, const Unit& unit, Variable* v) const {
  if (e.location.empty()) return false;
  DwarfReader location(e.location);
  v->base = location.u8();
  if (v->base == kOpConstant) {
    v->offset = static_cast<int64_t>(location.u64());
    v->base = location.u8();
    if (v->base != kOpThreadLocal && v->base != kOpThreadLocalGnu) return false;
  } else {
    v->offset = location.sleb();
  }
  if (!location.at_end()) return false;
  uint64_t type = e.type;
  v->name = e.name;
  for (uint64_t from : {e.origin, e.specification}) {
    if (from < unit.first || from >= unit.end) continue;
    DwarfReader in(info_.substr(from, unit.end - from));
    const Entry declared = read_entry(&in, unit);
    type = type ? type : declared.type;
    if (v->name.empty()) v->name = declared.name;
  }
  v->type = type_at(type, unit);
  return true;
}

void DebugInfo::read_thread_locals() const {
  has_thread_locals_ = true;
  each_top_entry(0, [&](DwarfReader* in, const Unit& unit, const Entry&) {
    while (!in->at_end()) {
      const Entry e = read_entry(in, unit);
      // Elsewhere the first operation is of another kind.
      if (!e.abbreviation || e.abbreviation->tag != kTagVariable || e.location.size() != 10) continue;
      Variable v;
      const bool found = read_variable(e, unit, &v) && (v.base == kOpThreadLocal || v.base == kOpThreadLocalGnu);
      if (found) thread_locals_.emplace(static_cast<uintptr_t>(v.offset), v.type);
    }
    return false;
  });
}

const DebugInfo::Type* DebugInfo::type_at(uint64_t offset, const Unit& unit) const {
  static const Type unknown;
  if (offset < unit.first || offset >= unit.end) return &unknown;
  const auto [known, is_new] = types_.try_emplace(offset);
  Type& type = known->second;
  if (!is_new) return &type;
  DwarfReader in(info_.substr(offset, unit.end - offset));
  const Entry e = read_entry(&in, unit);
  if (!e.abbreviation) return &type;
  switch (e.abbreviation->tag) {
    case kTagTypedef:
    case kTagConst:
    case kTagVolatile:
    case kTagEnumeration: type = *type_at(e.type, unit); break;
    case kTagBase:
      type.kind = e.encoding == kSigned ? Scalar::integer : e.encoding == kUnsigned ? Scalar::natural : Scalar::other;
      break;
    case kTagPointer:
    case kTagReference: type.kind = Scalar::other; break;
    case kTagArray:
      type.element = type_at(e.type, unit);
      type.bytes = type.element->bytes;
      if (!e.abbreviation->children) break;
      for (Entry bound = read_entry(&in, unit); bound.abbreviation; bound = read_entry(&in, unit)) {
        if (bound.abbreviation->tag == kTagSubrange) type.bytes *= bound.has_upper_bound ? bound.upper_bound + 1 : 0;
      }
      break;
    case kTagStructure:
    case kTagClass:
      if (e.abbreviation->children) read_members(&in, unit, &type);
      break;
    default: break;  // a union among them: which member counts is not known
  }
  if (e.bytes) type.bytes = e.bytes;
  return &type;
}

void DebugInfo::read_members(DwarfReader* in, const Unit& unit, Type* type) const {
  while (!in->at_end()) {
    const Entry e = read_entry(in, unit);
    if (!e.abbreviation) return;
    const bool member = e.abbreviation->tag == kTagMember || e.abbreviation->tag == kTagInheritance;
    if (member && e.has_member_location && !e.is_bit_field) {
      type->members.emplace_back(e.member_location, type_at(e.type, unit));
    }
    if (e.abbreviation->children) skip_children(in, unit);
  }
}

Scalar DebugInfo::scalar_in(const Type* type, uintptr_t at) {
  uintptr_t begin = 0;
  while (type->kind == Scalar::none) {
    const Type* inner = nullptr;
    uintptr_t from = 0;
    if (type->element && type->element->bytes) {
      inner = type->element;
      from = at / inner->bytes * inner->bytes;
    }
    for (const auto& [offset, member] : type->members) {
      if (at - offset >= member->bytes) continue;
      inner = member;
      from = offset;
    }
    if (!inner) return {};
    begin += from;
    at -= from;
    type = inner;
  }
  return {type->kind, begin, type->bytes, false};
}

}  // namespace xpu_sim::rt
