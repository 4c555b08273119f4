// Splitting work over cores. Only headers that are named for it bring it: kernels without them have a partition
// of their own.
#pragma once

#include "xpu_sim/kernel.h"

// The part [*start, *end) of [0, len) that is `tid`'s, of `nthreads`: contiguous blocks of `align`, the remainder to
// the low ids.
template <class TID>
inline void partition(int tid, int nthreads, TID len, int align, TID* start, TID* end) {
  const TID blocks = roundup_div(len, static_cast<TID>(align)), each = blocks / nthreads, more = blocks % nthreads;
  const TID first = tid * each + (tid < more ? static_cast<TID>(tid) : more);
  const TID last = first + each + (tid < more ? 1 : 0);
  *start = min(first * align, len);
  *end = min(last * align, len);
}

// The rectangle of an m x n matrix that is `tid`'s. Of the ways to arrange the threads in a grid it takes the one with
// the least to move by the busiest thread: `reuse` weighs the rows' own data, a transfer costs at least `burst` bytes.
template <class TID>
inline void partition2d(int tid, int nthreads, TID m, TID n, TID* m_start, TID* m_end, TID* n_start, TID* n_end,
                        float reuse = 0.0f, float burst = 512.0f) {
  int rows = nthreads;
  float best = -1.0f;
  for (int r = nthreads; r >= 1; --r) {
    if (nthreads % r != 0) continue;
    const float height = static_cast<float>(roundup_div(m, static_cast<TID>(r)));
    const float width = static_cast<float>(roundup_div(n, static_cast<TID>(nthreads / r))) * sizeof(float);
    const float cost = height * max(width, burst) + reuse * (height + width);
    if (best < 0.0f || cost < best) {
      best = cost;
      rows = r;
    }
  }
  const int columns = nthreads / rows;
  partition(tid / columns, rows, m, 1, m_start, m_end);
  partition(tid % columns, columns, n, 1, n_start, n_end);
}

// How many elements of a one-dimensional tile each of `nthreads` should take: all of them busy, whole vectors of 64, at
// most `most`.
template <class TID>
inline int get_1d_buflen(TID len, int nthreads, int most, int align = 64) {
  const TID each = roundup(roundup_div(len, static_cast<TID>(nthreads)), static_cast<TID>(align));
  return static_cast<int>(min(each, static_cast<TID>(most)));
}
