// Packed rows in slot order and in the device's order: iteration over slots in placement order, and moving rows by a
// table of sources.
#pragma once

#include "specdec/contract.h"
#include "specdec/step_index.h"
#include "tiles.h"

namespace specdec {

// A slot's rows in slot order, and the token_row of the first of them.
struct PlacedSlot {
  RowRange rows;
  int64_t token_row;
};

class PlacementWalk {
 public:
  // Of the arguments of an op that moves rows.
  template <class Args>
  __device__ explicit PlacementWalk(const Args& a)
      : start_(a.cu_seqlens_q, a.B + 1),
        slt_(a.seq_lens_this_time, a.B),
        enc_(a.seq_lens_encoder, a.B),
        slots_(a.B),
        capacity_(a.T_cap),
        prefill_first_(a.token_order == TokenOrder::kPrefillFirst) {
    restart();
  }

  __device__ void restart() {
    pass_ = 0;
    next_ = 0;
    token_row_ = 0;
  }

  // The next slot that has rows and a token_row for at least the first of them; false at the end. Rows without a
  // token_row are left out.
  __device__ bool next(PlacedSlot* slot) {
    for (;; ++next_) {
      if (next_ >= slots_) {
        if (++pass_ >= placement_passes(prefill_first_)) return false;
        next_ = 0;
        if (slots_ == 0) return false;
      }
      if (token_row_ >= capacity_) return false;
      if (!placed_in_pass(prefill_first_, pass_, enc_[next_])) continue;
      const RowRange rows = rows_of(next_);
      if (rows.size() <= 0) continue;
      slot->rows = {rows.start, min64(rows.stop, rows.start + capacity_ - token_row_)};
      slot->token_row = token_row_;
      token_row_ += rows.size();
      ++next_;
      return true;
    }
  }

  __device__ RowRange rows_of(int64_t b) { return slot_rows(start_[b], slt_[b], capacity_); }
  __device__ int32_t encoder(int64_t b) { return enc_[b]; }

 private:
  GmReader<int32_t, 32> start_, slt_, enc_;
  const int64_t slots_, capacity_;
  const bool prefill_first_;
  int pass_;
  int64_t next_, token_row_;
};

constexpr int kRowTile = 64;

// Rows first, first + 1, ... of `out` from the rows of x in `source`; -1: zeros. Neighbours move together.
static __device__ void move_rows(const char* x, char* out, int64_t row_bytes, int64_t first, const int64_t* source,
                                 int count) {
  for (int k = 0, run; k < count; k += run) {
    for (run = 1; k + run < count; ++run) {
      if (source[k + run] != (source[k] < 0 ? -1 : source[k] + run)) break;
    }
    char* to = out + (first + k) * row_bytes;
    if (source[k] < 0) {
      gm_fill<char>(to, run * row_bytes, 0);
    } else {
      gm_copy(x + source[k] * row_bytes, to, run * row_bytes);
    }
  }
}

}  // namespace specdec
