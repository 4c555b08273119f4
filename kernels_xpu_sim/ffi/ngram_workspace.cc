// Exports what backends/xpu_sim must know to allocate an n-gram index.
#include <tvm/ffi/function.h>

#include <cstdint>

#include "specdec/ngram_index.h"

namespace {

// Bytes of a row for histories of up to `row_width` tokens.
int64_t ngram_index_bytes(int64_t row_width, int64_t min_ngram_size, int64_t max_ngram_size) {
  return specdec::ngram_index_bytes(row_width, static_cast<int>(min_ngram_size), static_cast<int>(max_ngram_size));
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ngram_index_bytes, ngram_index_bytes)

}  // namespace
