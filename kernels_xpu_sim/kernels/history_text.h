// A slot's text in global memory: history row, then MTP drafts.
#pragma once

#include "tiles.h"

namespace specdec {

// Cells [low, high) of the text to `tile`; the first `end` cells are the history's.
static inline __device__ void load_text(const int64_t* history, int64_t end, const int64_t* drafts, int64_t low,
                                        int64_t high, int64_t* tile) {
  constexpr int64_t kCell = sizeof(int64_t);
  const int64_t split = clamp64(end, low, high);
  if (low < split) GM2LM_ASYNC(history + low, tile, (split - low) * kCell);
  if (split < high) GM2LM_ASYNC(drafts + (split - end), tile + (split - low), (high - split) * kCell);
  mfence_lm();
}

// Copies `count` cells to `to`, repeating the text's `period` cells from `first` on.
static SPECDEC_APART void repeat_text(const int64_t* history, int64_t end, const int64_t* drafts, int64_t first,
                                      int64_t period, int64_t* to, int64_t count) {
  constexpr int64_t kTile = 128;
  int64_t tile[kTile];
  for (int64_t done = 0; done < count;) {
    const int64_t phase = done % period, left = count - done;
    int64_t here = min64(min64(period - phase, left), kTile);
    load_text(history, end, drafts, first + phase, first + phase + here, tile);
    if (here == period) {
      for (const int64_t whole = min64(kTile / period * period, left); here < whole; ++here) {
        tile[here] = tile[here - period];
      }
      mfence_lm();
    }
    LM2GM(tile, to + done, here * static_cast<int64_t>(sizeof(int64_t)));
    done += here;
  }
}

// The text, indexed. Two tiles are kept, because comparisons alternate between two places.
class GmText {
 public:
  // `length` cells in all, the first `end` of them in the history.
  __device__ GmText(const int64_t* history, int64_t end, const int64_t* drafts, int64_t length)
      : history_(history), drafts_(drafts), end_(end), length_(length), recent_(0) {
    low_[0] = low_[1] = high_[0] = high_[1] = 0;
  }

  __device__ int64_t operator[](int64_t i) {
    if (i < low_[recent_] || i >= high_[recent_]) find(i);
    return tile_[recent_][i - low_[recent_]];
  }

 private:
  static constexpr int64_t kTile = 32;

  __device__ void find(int64_t i) {
    recent_ = 1 - recent_;
    if (i >= low_[recent_] && i < high_[recent_]) return;
    low_[recent_] = i / kTile * kTile;
    high_[recent_] = min64(low_[recent_] + kTile, length_);
    load_text(history_, end_, drafts_, low_[recent_], high_[recent_], tile_[recent_]);
  }

  const int64_t *history_, *drafts_;
  int64_t end_, length_;
  int recent_;
  int64_t low_[2], high_[2];
  int64_t tile_[2][kTile];
};

}  // namespace specdec
