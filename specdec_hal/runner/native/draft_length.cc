// The choice of draft lengths after a step: see ../draft_length.py, which measures costs and owns the arrays.
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace {

// Acceptance of the first draft, and of one after an accepted one: that of n-gram look-ups in code and prose. The
// second of each is for steps after a fully accepted one.
constexpr double kFirst[] = {0.6, 0.9}, kLater[] = {0.85, 0.92};
// What a prior weighs, as a number of observations: those above; all requests' acceptance in a new one's; that of all
// later positions at each of them.
constexpr double kFirstStrength = 4, kLaterStrength = 20, kPooledStrength = 8, kSharedStrength = 24;
// Decay of observations per step: of one request (some fifty count), and of all requests together.
constexpr double kRequestDecay = 0.98, kPooledDecay = 0.99;

// A request; Python's DraftLengths.requests.
struct Request {
  int64_t kind, limit, pause, next_pause;
};

// Seconds of a step: `start` and `slope` by its drafts, `plain` without; and of a host proposer, by the longest draft.
struct Costs {
  double start, slope, plain, asking_start, asking_slope;
};

double estimate(double accepted, double verified, double prior, double strength) {
  return (accepted + strength * prior) / (verified + strength);
}

// Decayed counts [2 K + 4]: steps with drafts allowed, and found; drafts verified, and accepted, at all positions but
// the first; and those by position.
class Counts {
 public:
  Counts(double* values, int64_t k) : values_(values), k_(k) {}

  double found() const { return estimate(values_[1], values_[0], 1, kPooledStrength); }
  double later(double prior, double strength) const { return estimate(values_[3], values_[2], prior, strength); }
  double at(int64_t position, double prior, double strength) const {
    return estimate(values_[4 + k_ + position], values_[4 + position], prior, strength);
  }

  // Positions after a rejected draft carry no information.
  void add(int64_t drafted, int64_t accepted, double decay) {
    for (int64_t i = 0; i < 2 * k_ + 4; ++i) values_[i] *= decay;
    const int64_t verified = std::min(accepted + 1, drafted);
    values_[0] += 1;
    values_[1] += drafted > 0 ? 1 : 0;
    values_[2] += static_cast<double>(std::max<int64_t>(verified - 1, 0));
    values_[3] += static_cast<double>(std::max<int64_t>(accepted - 1, 0));
    for (int64_t i = 0; i < verified; ++i) values_[4 + i] += 1;
    for (int64_t i = 0; i < accepted; ++i) values_[4 + k_ + i] += 1;
  }

 private:
  double* values_;
  int64_t k_;
};

// A request that may draft: its counts in steps of its kind.
struct Drafting {
  Counts seen;
  int64_t kind;
};

// The numbers of drafts that maximise tokens per second, of `slots` requests with these counts.
std::vector<int64_t> best(const std::vector<Drafting>& requests, double* pooled, int64_t k, int64_t slots,
                          const Costs& costs) {
  const auto count = static_cast<int64_t>(requests.size());
  std::vector<double> found(requests.size()), gains(static_cast<size_t>(count * k));
  for (int64_t i = 0; i < count; ++i) {
    const auto& [seen, kind] = requests[static_cast<size_t>(i)];
    const Counts all(pooled + kind * (2 * k + 4), k);
    const double usual = all.later(kLater[kind], kLaterStrength), here = seen.later(usual, kPooledStrength);
    double* gain = gains.data() + i * k;
    found[static_cast<size_t>(i)] = seen.found();
    gain[0] = seen.found() * seen.at(0, all.at(0, kFirst[kind], kFirstStrength), kPooledStrength);
    for (int64_t j = 1; j < k; ++j) {
      gain[j] = gain[j - 1] * seen.at(j, (all.at(j, usual, kSharedStrength) + here) / 2, kSharedStrength);
    }
  }
  std::vector<int64_t> order(gains.size()), lengths(requests.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {  // those of a request stay in their order
    return gains[static_cast<size_t>(a)] > gains[static_cast<size_t>(b)];
  });
  double tokens = static_cast<double>(slots), drafts = 0, fastest = tokens / costs.plain;
  int64_t longest = 0;
  size_t taken = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    tokens += gains[static_cast<size_t>(order[i])];
    drafts += found[static_cast<size_t>(order[i] / k)];
    longest = std::max(longest, order[i] % k + 1);
    const double seconds =
        costs.start + costs.slope * drafts + costs.asking_start + costs.asking_slope * static_cast<double>(longest);
    if (tokens / seconds > fastest) {
      fastest = tokens / seconds;
      taken = i + 1;
    }
  }
  for (size_t i = 0; i < taken; ++i) ++lengths[static_cast<size_t>(order[i] / k)];
  return lengths;
}

template <typename T>
T* pointer(int64_t address) {
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr)
}

// Counts a step of `n` requests, and chooses the limits of those that might draft in it. `step` int64 [3, n]: rows,
// drafts and accepted drafts. Addresses are of `requests` [R], `seen` float64 [2 R, 2 K + 4] and `pooled` [2, 2 K + 4].
// `due`: a request may draft after its pause even if no other does. `narrow`: the step had no room for drafts.
// `changed`: it had another number of requests than the last. Returns whether a request might draft in it.
bool choose_draft_lengths(int64_t requests, int64_t seen, int64_t pooled, int64_t step, int64_t n, int64_t k, bool due,
                          bool narrow, bool changed, int64_t probe, int64_t first_pause, int64_t longest_pause,
                          double start, double slope, double plain, double asking_start, double asking_slope) {
  auto* const known = pointer<Request>(requests);
  auto *const own = pointer<double>(seen), *const all = pointer<double>(pooled);
  const auto* const rows = pointer<const int64_t>(step);
  const int64_t size = 2 * k + 4;
  std::vector<int64_t> asked;
  for (int64_t i = 0; i < n; ++i) {
    if (known[rows[i]].limit > 0) asked.push_back(i);
  }
  const bool drafting = !asked.empty();
  for (int64_t i = 0; i < n; ++i) {
    Request& one = known[rows[i]];
    if (one.limit == 0 && --one.pause <= 0 && (due || drafting)) one.limit = probe;
  }
  if (!drafting || narrow) return drafting;  // narrow: it was launched before they might draft
  bool same = !changed;
  std::vector<Drafting> counted;
  for (const int64_t i : asked) {
    Request& one = known[rows[i]];
    const int64_t drafted = std::min(rows[n + i], k), accepted = std::min(rows[2 * n + i], drafted);
    double* const mine = own + 2 * rows[i] * size;
    Counts(mine + one.kind * size, k).add(drafted, accepted, kRequestDecay);
    Counts(all + one.kind * size, k).add(drafted, accepted, kPooledDecay);
    const int64_t kind = drafted > 0 && drafted == accepted ? 1 : 0;
    same = same && drafted == 0 && kind == one.kind;
    one.kind = kind;
    counted.push_back({Counts(mine + kind * size, k), kind});
  }
  if (same) return true;  // it would choose the same
  const auto lengths = best(counted, all, k, n, {start, slope, plain, asking_start, asking_slope});
  for (size_t j = 0; j < asked.size(); ++j) {
    Request& one = known[rows[asked[j]]];
    const int64_t pause = one.next_pause;
    one.limit = lengths[j];
    if (one.limit == 0) one.pause = pause;
    if (rows[n + asked[j]] > 0) {
      one.next_pause = std::clamp(one.limit == 0 ? 2 * pause : pause / 2, first_pause, longest_pause);
    }
  }
  return true;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(choose_draft_lengths, choose_draft_lengths)

// The limit of a new request, were all `slots` new.
int64_t draft_length_of_new(int64_t pooled, int64_t slots, int64_t k, double start, double slope, double plain,
                            double asking_start, double asking_slope) {
  std::vector<double> none(static_cast<size_t>(2 * k + 4));
  const std::vector<Drafting> requests(static_cast<size_t>(slots), {Counts(none.data(), k), 0});
  return best(requests, pointer<double>(pooled), k, slots, {start, slope, plain, asking_start, asking_slope})[0];
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(draft_length_of_new, draft_length_of_new)

}  // namespace
