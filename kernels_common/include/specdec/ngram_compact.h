// A compact n-gram index of one slot, for devices that insert and look up in parallel: 16 bytes a token of history for
// up to three n-gram sizes (16/3 for each size more). Results are those of the search.
//
// A row is a header, then an open-addressing hash table of 8-byte entries in buckets of eight. An entry holds three
// columns of the token after the n-gram (0: none): the latest, the first inside the prompt, the first inside the
// generated part. It also holds the n-gram's size, and the remaining bits of its hash, which distinguish most n-grams
// without reading the history. The tokens are the keys.
//
// An n-gram that occurred once represents all longer ones that end there; these get entries when it occurs again. Hence
// each position is the sole occurrence of at most one entry, s sizes need at most max(7/4, s/2) entries per token, and
// the table never fills up. The order of insertions only affects the position of entries. A cluster of more than
// kMaxProbes buckets (texts made to collide) overflows the index: `compact_insert` says so, and look-ups must search
// the history instead.
#pragma once

#include "specdec/integers.h"
#include "specdec/ngram.h"

namespace specdec {

// Number of the lowest set bit; some is set.
SPECDEC_HD int lowest_bit(uint32_t bits) { return 63 - count_leading_zeros(bits & (~bits + 1)); }

using Column = int32_t;  // a column of the token after an n-gram; histories have at most 2^20

struct CompactHeader {
  int32_t seen;  // tokens whose n-grams are entered, but those that end with the last one
  int32_t prompt_end;  // where the prompt ended; means nothing while seen is 0
  int32_t overflowed;  // not 0: look-ups must not use the table
  int32_t unused[13];
};

constexpr int kCompactBucket = 8;  // entries; a row is aligned to them
constexpr int kMaxProbes = 128;  // buckets

struct CompactLayout {
  uint32_t buckets;
  int column_bits, label_shift, tag_shift;
  int min_size, max_size;

  SPECDEC_HD CompactLayout(int64_t row_width, int smallest, int largest) : min_size(smallest), max_size(largest) {
    const int64_t sizes = largest - smallest + 1;
    const int64_t thirds = max64(2 * sizes, 6);  // entries for three tokens
    buckets = static_cast<uint32_t>(max64((row_width * thirds + 3 * kCompactBucket - 1) / (3 * kCompactBucket), 1));
    column_bits = bit_width(static_cast<uint64_t>(max64(row_width - 1, 1)));
    label_shift = 3 * column_bits;
    tag_shift = label_shift + bit_width(static_cast<uint64_t>(sizes));
  }

  SPECDEC_HD int64_t row_bytes() const {
    return static_cast<int64_t>(sizeof(CompactHeader)) +
           int64_t{buckets} * kCompactBucket * static_cast<int64_t>(sizeof(uint64_t));
  }

  // An entry's label as stored: the size, from 1 for the smallest, and as many bits of the hash as fit. It is not 0, so
  // a free entry matches no n-gram, except for the last of 16 sizes in histories of more than 2^19 tokens, where
  // look-ups also compare free entries.
  SPECDEC_HD uint64_t label(uint32_t tag, int size) const {
    const uint64_t high = tag_shift < 64 ? static_cast<uint64_t>(tag) << tag_shift : 0;
    return static_cast<uint64_t>(size - min_size + 1) << label_shift | high;
  }
  SPECDEC_HD bool alike(uint64_t entry, uint64_t label) const { return (entry ^ label) < uint64_t{1} << label_shift; }

  SPECDEC_HD Column column(uint64_t entry, int field) const {
    return static_cast<Column>(static_cast<uint32_t>(entry >> (field * column_bits)) & ((1u << column_bits) - 1));
  }
  SPECDEC_HD Column latest(uint64_t entry) const { return column(entry, 0); }
  SPECDEC_HD Column in_prompt(uint64_t entry) const { return column(entry, 1); }
  SPECDEC_HD Column in_generated(uint64_t entry) const { return column(entry, 2); }
  // A single occurrence: all columns are equal, which is impossible for two.
  SPECDEC_HD bool single(uint64_t entry) const {
    return latest(entry) == in_prompt(entry) && latest(entry) == in_generated(entry);
  }
  SPECDEC_HD uint64_t entry(uint64_t label, Column latest, Column in_prompt, Column in_generated) const {
    return label | static_cast<uint64_t>(latest) | static_cast<uint64_t>(in_prompt) << column_bits |
           static_cast<uint64_t>(in_generated) << (2 * column_bits);
  }
  SPECDEC_HD uint64_t single_entry(uint64_t label, Column column) const { return entry(label, column, column, column); }

  // The entry when the n-gram occurs at `after` as well.
  SPECDEC_HD uint64_t merged(uint64_t old, Column after, int size, Column prompt_end) const {
    const Column last = latest(old);
    Column prompt = in_prompt(old), generated = in_generated(old);
    if (last == prompt && last == generated) {
      if (last == after) return old;
      prompt = generated = 0;
      enter(last, size, prompt_end, &prompt, &generated);
    }
    enter(after, size, prompt_end, &prompt, &generated);
    return entry(old >> label_shift << label_shift, last > after ? last : after, prompt, generated);
  }

 private:
  // Bits of x > 0.
  static SPECDEC_HD int bit_width(uint64_t x) { return 64 - count_leading_zeros(x); }
  static SPECDEC_HD void enter(Column after, int size, Column prompt_end, Column* prompt, Column* generated) {
    if (after < prompt_end && (*prompt == 0 || after < *prompt)) *prompt = after;
    if (after - size >= prompt_end && (*generated == 0 || after < *generated)) *generated = after;
  }
};

// Hash of the tokens before a column, from the last one backwards.
struct CompactHash {
  uint32_t state = 0x243F6A88u;

  // token(j): the last but j.
  template <typename Token>
  SPECDEC_HD void take_all(int size, Token&& token) {
    constexpr int kAtOnce = 4;
    SPECDEC_ROLLED
    for (int first = 0; first < size; first += kAtOnce) {
      int64_t some[kAtOnce];
      SPECDEC_UNROLL
      for (int i = 0; i < kAtOnce; ++i) some[i] = first + i < size ? token(first + i) : 0;
      SPECDEC_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i < size) take(some[i]);
      }
    }
  }
  SPECDEC_HD void take(int64_t token) {
    const uint32_t low = static_cast<uint32_t>(token), high = static_cast<uint32_t>(static_cast<uint64_t>(token) >> 32);
    state = (state ^ low ^ high * 0x27D4EB2Fu) * 0x9E3779B1u;
    state ^= state >> 15;
  }
  SPECDEC_HD uint32_t of_size(int size) const {
    const uint32_t hash = (state + static_cast<uint32_t>(size)) * 0x85EBCA77u;
    return (hash ^ hash >> 13) * 0xC2B2AE3Du;
  }
};

// Where an n-gram's search starts, and its label.
struct CompactKey {
  uint32_t bucket;
  uint64_t label;

  SPECDEC_HD CompactKey(const CompactLayout& layout, uint32_t hash, int size)
      : bucket(static_cast<uint32_t>(static_cast<uint64_t>(hash) * layout.buckets >> 32)),
        // The low bits, which have the least to do with the bucket.
        label(layout.label(hash * 0x165667B1u ^ hash << 16, size)) {}
};

template <typename Text>
SPECDEC_HD CompactKey compact_key(const CompactLayout& layout, Text& text, Column after, int size) {
  CompactHash hash;
  hash.take_all(size, [&](int j) { return text[after - 1 - j]; });
  return CompactKey(layout, hash.of_size(size), size);
}

// The number of equal leading tokens a(j) and b(j), up to `most`. Eight are read at once without branches, to hide
// memory latency.
template <typename A, typename B>
SPECDEC_HD int common_tokens(int most, A&& a, B&& b) {
  constexpr int kAtOnce = 8;
  SPECDEC_ROLLED
  for (int first = 0; first < most; first += kAtOnce) {
    int64_t x[kAtOnce], y[kAtOnce];
    SPECDEC_UNROLL
    for (int i = 0; i < kAtOnce; ++i) x[i] = first + i < most ? a(first + i) : 0;
    SPECDEC_UNROLL
    for (int i = 0; i < kAtOnce; ++i) y[i] = first + i < most ? b(first + i) : 0;
    uint32_t differ = 0;
    SPECDEC_UNROLL
    for (int i = 0; i < kAtOnce; ++i) differ |= static_cast<uint32_t>(x[i] != y[i]) << i;
    if (differ != 0) return first + lowest_bit(differ);
  }
  return most;
}

// Whether the `size` tokens before the columns a and b are equal; false if `a`, from an index, is out of range.
template <typename Text>
SPECDEC_HD bool same_ngram(Text& text, Column length, Column a, Column b, int size) {
  if (a < size || a >= length) return false;
  return common_tokens(size, [&](int j) { return text[a - 1 - j]; }, [&](int j) { return text[b - 1 - j]; }) == size;
}

// Entries of a bucket: bit i stands for entry i.
struct CompactBits {
  uint32_t free, alike;  // alike: of the same label

  SPECDEC_HD CompactBits(const CompactLayout& layout, const uint64_t (&words)[kCompactBucket], uint64_t label)
      : free(0), alike(0) {
    SPECDEC_UNROLL
    for (int i = 0; i < kCompactBucket; ++i) {
      free |= static_cast<uint32_t>(words[i] == 0) << i;
      alike |= static_cast<uint32_t>(layout.alike(words[i], label)) << i;
    }
  }

  // words[i], without an address.
  static SPECDEC_HD uint64_t pick(const uint64_t (&words)[kCompactBucket], int i) {
    uint64_t word = 0;
    SPECDEC_UNROLL
    for (int j = 0; j < kCompactBucket; ++j) word = j == i ? words[j] : word;
    return word;
  }
};

struct CompactFound {
  int64_t at;  // entry number; negative: neither found nor room
  uint64_t entry;  // 0: free
  uint32_t free;  // of the entry's bucket, as in CompactBits; where the entry is free
};

// The entry of the n-gram with this key, or the free one where it belongs. `table.load(bucket, words)` reads the
// entries of a bucket; `same(column)` says whether the n-gram of the key's size before a column is the one meant.
template <typename Table, typename Same>
SPECDEC_HD CompactFound compact_find(const CompactLayout& layout, Table& table, const CompactKey& key, Same&& same) {
  uint32_t bucket = key.bucket;
  for (int probe = 0; probe < kMaxProbes; ++probe) {
    uint64_t words[kCompactBucket];
    table.load(bucket, words);
    CompactBits bits(layout, words, key.label);
    const int64_t first = int64_t{bucket} * kCompactBucket;
    for (; bits.alike != 0; bits.alike &= bits.alike - 1) {
      const int i = lowest_bit(bits.alike);
      const uint64_t entry = CompactBits::pick(words, i);
      if (same(layout.latest(entry))) return {first + i, entry, 0};
    }
    if (bits.free != 0) return {first + lowest_bit(bits.free), 0, bits.free};
    bucket = bucket + 1 < layout.buckets ? bucket + 1 : 0;
  }
  return {-1, 0, 0};
}

// Enter the n-grams that end before `after`, 1 <= after < length, from `size` up. `table.swap(at, old, next)` stores
// `next` if the entry still is `old`, and says whether it did. False if the index is overflowed.
template <typename Table, typename Text>
SPECDEC_HD bool compact_insert(const CompactLayout& layout, Table& table, Text& text, Column prompt_end, Column length,
                               Column after, int size) {
  // Pending n-grams: each step removes one and adds at most two of the next size.
  Column columns[kMaxNgramSize + 1];
  int8_t sizes[kMaxNgramSize + 1];
  int waiting = 1;
  columns[0] = after;
  sizes[0] = static_cast<int8_t>(size);
  while (waiting > 0) {
    --waiting;
    const Column column = columns[waiting];
    const int n = sizes[waiting];
    if (n > layout.max_size || n > column) continue;
    for (;;) {
      const CompactKey key = compact_key(layout, text, column, n);
      const CompactFound found =
          compact_find(layout, table, key, [&](Column known) { return same_ngram(text, length, known, column, n); });
      if (found.at < 0) return false;
      const bool alone = layout.single(found.entry);
      const uint64_t next =
          found.entry == 0 ? layout.single_entry(key.label, column) : layout.merged(found.entry, column, n, prompt_end);
      const bool changed = next != found.entry;
      if (changed && !table.swap(found.at, found.entry, next)) continue;
      if (found.entry == 0 || (alone && !changed)) break;  // the only one of its kind
      if (alone) {
        columns[waiting] = layout.latest(found.entry);
        sizes[waiting++] = static_cast<int8_t>(n + 1);
      }
      columns[waiting] = column;
      sizes[waiting++] = static_cast<int8_t>(n + 1);
      break;
    }
  }
  return true;
}

// The policy's preferred column of an entry; outside its haystacks if there is none inside.
SPECDEC_HD Column compact_column(const CompactLayout& layout, uint64_t entry, MatchPolicy policy) {
  const Column latest = layout.latest(entry);
  if (policy == MatchPolicy::kLatest || layout.single(entry)) return latest;
  if (layout.in_prompt(entry) != 0) return layout.in_prompt(entry);
  return layout.in_generated(entry) != 0 ? layout.in_generated(entry) : latest;
}

// A match of the text's last tokens by an entry, and whether the entry is theirs (of its size).
struct CompactMatch {
  NgramMatch match;
  bool same;
};

template <typename Text, typename Query>
SPECDEC_HD CompactMatch compact_match(const CompactLayout& layout, uint64_t entry, Text& text, const Query& query,
                                      Column length, int size) {
  const Column after = compact_column(layout, entry, query.policy);
  if (after < size || after >= length) return {no_match(), false};
  const int most = query.most < after ? query.most : after;
  const int common =
      common_tokens(most, [&](int j) { return text[after - 1 - j]; }, [&](int j) { return query.suffix[j]; });
  const int inside = static_cast<int>(min64(common, after - query.haystack_start(after)));
  return {inside >= query.least ? NgramMatch{inside, after} : no_match(), common >= size};
}

// The key of the text's last `size` tokens.
template <typename Query>
SPECDEC_HD CompactKey compact_query_key(const CompactLayout& layout, const Query& query, int size) {
  CompactHash hash;
  hash.take_all(size, [&](int j) { return query.suffix[j]; });
  return CompactKey(layout, hash.of_size(size), size);
}

// Look up the text's last `size` tokens with this key; `words` and `bits` are of the key's bucket. The first `length`
// tokens of the text are indexed.
template <typename Table, typename Text, typename Query>
SPECDEC_HD NgramMatch compact_look_up(const CompactLayout& layout, Table& table, Text& text, const Query& query,
                                      Column length, int size, const CompactKey& key, uint64_t (&words)[kCompactBucket],
                                      CompactBits bits) {
  uint32_t bucket = key.bucket;
  for (int probe = 1;; ++probe) {
    for (; bits.alike != 0; bits.alike &= bits.alike - 1) {
      const uint64_t entry = CompactBits::pick(words, lowest_bit(bits.alike));
      const CompactMatch found = compact_match(layout, entry, text, query, length, size);
      if (found.same) return found.match;
    }
    if (bits.free != 0 || probe == kMaxProbes) return no_match();
    bucket = bucket + 1 < layout.buckets ? bucket + 1 : 0;
    table.load(bucket, words);
    bits = CompactBits(layout, words, key.label);
  }
}

}  // namespace specdec
