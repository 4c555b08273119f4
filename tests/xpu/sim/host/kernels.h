#pragma once

#include <cstdint>

struct Pair {
  int64_t first;
  double second;
};

void nothing();
void add_ids(const int* in, int* out);
template <class T>
void scale_add(const T* x, T* y, int64_t n, float a);
void cluster_sums(const int* in, int* out, int n);
void core_order(int* out);
void leave_early(int* out);
void leave_in_turns(int n);
void read_gm(const int* in, int* out);
void read_all(const int* in, int* out, int n);
void null_store(int* p);
void spin();
void throw_something();
void launch_inside(int* out);
void many_arguments(const int8_t* a, int64_t b, float c, bool d, Pair e, const void* f, uint16_t g, int* out);
void outside_of_bounds_by_store(int* out, int at);
void large_tile(const int* in, int* out, int n);
void copy_rows(const int* in, int* out, const int* ends, int rows);
void wait_among_arrays(int* flags);
void wait_and_read(int* flags, const int* in, int* out, int n);
