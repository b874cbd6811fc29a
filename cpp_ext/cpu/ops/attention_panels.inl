// Attention with many rows per key-value head. Rows are spread across the lanes, from the transposed queries
// to the transposed result. Row maxima and sums need no steps across lanes, and keys and values are read as
// stored, one broadcast element at a time.
#ifndef AIRLLM_ATTENTION_PANELS_INL
#define AIRLLM_ATTENTION_PANELS_INL
#include "../simd/transpose.inl"
#include "attention_few_rows.inl"

namespace cpu::ISA {
namespace {

constexpr int kPanelVecs = 3;
constexpr int64_t kPanelRows = kPanelVecs * LANES;
constexpr int kSteps = VECTORS == 32 ? 8 : 4;  // kSteps * kPanelVecs sums stay in registers
constexpr int64_t kAliased = 1024;             // rows this many floats apart share a place in the cache

// to[i][r] = from[r][i] for LANES rows and n columns, rounded up to whole vectors
inline void transpose_rows(float* to, int64_t to_stride, const float* from, int64_t from_stride, int64_t n) {
  for (int64_t i = 0; i < n; i += LANES) {
    Vec v[LANES];
    for (int r = 0; r < LANES; ++r) v[r] = load(from + r * from_stride + i);
    transpose<LANES>(v);
    for (int64_t j = 0; j < smaller(LANES, n - i); ++j) store(to + (i + j) * to_stride, v[j]);
  }
}

// sum[i][x] = a[i] b[x] summed over depth. a is kSteps rows or columns of memory, b is vectors of a panel.
template <int kVecs>
INLINE void products(Vec (&sum)[kSteps][kVecs], const float* a, int64_t between_rows, int64_t between_terms,
                     const float* b, int64_t depth) {
  for (int i = 0; i < kSteps; ++i)
    for (int x = 0; x < kVecs; ++x) sum[i][x] = Vec{};
  for (int64_t n = 0; n < depth; ++n, a += between_terms, b += kVecs * LANES) {
    Vec column[kVecs];
    for (int x = 0; x < kVecs; ++x) column[x] = once(load(b + x * LANES));
    for (int i = 0; i < kSteps; ++i)
      for (int x = 0; x < kVecs; ++x) sum[i][x] += a[i * between_rows] * column[x];
  }
}

// Keys or values of a block in float32, dense, padded with zeros to whole steps.
struct Dense {
  const float* data;
  int64_t stride;
};
inline Dense dense(float* to, const char* from, Format format, int64_t stride, int64_t rows, int64_t columns,
                   int64_t all_rows, int64_t all_columns) {
  const bool whole = rows == all_rows && columns == all_columns;
  if (format == kF32 && whole && stride == columns && stride % kAliased != 0)
    return {reinterpret_cast<const float*>(from), stride};
  const int64_t to_stride = round_up(all_columns, LANES) + LANES;
  for (int64_t j = 0; j < all_rows; ++j, to += to_stride) {
    for (int64_t i = j < rows ? columns : 0; i < all_columns; ++i) to[i] = 0.f;
    if (j < rows) kWidenRow[format](to, from + j * stride * kBlocks[format].bytes, columns);
  }
  return {to - all_rows * to_stride, to_stride};
}

struct PanelMemory {
  int64_t q, p, acc, k, v, mask, rows, total;
  INLINE explicit PanelMemory(const Attention& all) {
    const int64_t d = round_up(all.d, LANES) + LANES, e = round_up(all.e, LANES) + LANES;
    q = 0;
    p = q + d * kPanelRows;
    acc = p + kKeys * kPanelRows;
    k = acc + e * kPanelRows;
    v = k + kKeys * d;
    mask = v + kKeys * e;
    rows = mask + kKeys * kPanelRows;
    total = rows + LANES * larger(larger(d, e), kKeys);
  }
};

template <int kVecs>
struct Panel {
  static constexpr int64_t kWidth = kVecs * LANES;
  const Attention& all;
  const AttentionHead& head;
  const AttentionPart& part;
  const PanelMemory at;
  float* memory;
  Vec top[kVecs], sum[kVecs];

  INLINE int64_t row(int64_t lane) const {  // lanes without a row repeat the last one
    return part.row + smaller(lane, part.rows - 1);
  }

  void fill_queries() {
    const int64_t stride = round_up(all.d, LANES);
    float* const rows = memory + at.rows;
    for (int x = 0; x < kVecs; ++x) {
      for (int r = 0; r < LANES; ++r) widen_query(rows + r * stride, all, head, row(x * LANES + r));
      transpose_rows(memory + at.q + x * LANES, kWidth, rows, stride, all.d);
    }
  }

  void fill_mask(int64_t key, int64_t keys) {
    float* const rows = memory + at.rows;
    for (int x = 0; x < kVecs; ++x) {
      for (int r = 0; r < LANES; ++r) widen_mask(rows + r * kKeys, all, head, row(x * LANES + r), key, keys);
      transpose_rows(memory + at.mask + x * LANES, kWidth, rows, kKeys, keys);
    }
  }

  // Computes the scores of a block and updates the maximum of each row.
  INLINE void scores(const Dense& k, int64_t keys, Vec (&largest)[kVecs]) {
    for (int x = 0; x < kVecs; ++x) largest[x] = top[x];
    float* to = memory + at.p;
    for (int64_t j = 0; j < keys; j += kSteps) {
      Vec score[kSteps][kVecs];
      products(score, k.data + j * k.stride, k.stride, 1, memory + at.q, all.d);
      for (int i = 0; i < kSteps; ++i)
        for (int x = 0; x < kVecs; ++x, to += LANES) {
          store(to, score[i][x]);
          largest[x] = Max{}(score[i][x], largest[x]);
        }
    }
  }

  // Applies the soft-cap and the mask, and hides the keys that a row does not see, and those after `keys`.
  INLINE void restrict_scores(int64_t key, int64_t keys, int64_t steps, Vec (&largest)[kVecs]) {
    int32_t first[kWidth], last[kWidth];
    for (int64_t lane = 0; lane < kWidth; ++lane) {
      const int64_t query = row(lane) / all.heads;
      first[lane] = static_cast<int32_t>(smaller(kKeys, larger(0, query + all.low - key)));
      last[lane] = static_cast<int32_t>(larger(-1, smaller(keys - 1, query + all.high - key)));
    }
    if (head.mask) fill_mask(key, keys);
    for (int x = 0; x < kVecs; ++x) {
      const Int from = (Int)load(reinterpret_cast<const float*>(first) + x * LANES);
      const Int to = (Int)load(reinterpret_cast<const float*>(last) + x * LANES);
      largest[x] = top[x];
      for (int64_t j = 0; j < steps; ++j) {
        float* const at_key = memory + at.p + j * kWidth + x * LANES;
        Vec score = load(at_key);
        if (all.softcap != 0.f) score = Capped{all.softcap}(score);
        if (head.mask) score = Masked{}(score, load(memory + at.mask + j * kWidth + x * LANES));
        const Int here = Int{} + static_cast<int32_t>(j);
        score = ((here >= from) & (here <= to)) ? score : set(kHidden);
        store(at_key, score);
        largest[x] = Max{}(score, largest[x]);
      }
    }
  }

  INLINE void exponentials(int64_t keys, const Vec (&largest)[kVecs], Vec (&shrink)[kVecs]) {
    Vec added[kVecs] = {};
    float* p = memory + at.p;
    for (int64_t j = 0; j < keys; ++j)
      for (int x = 0; x < kVecs; ++x, p += LANES) {
        const Vec e = exp2_of_negative((load(p) - largest[x]) * kLog2E);
        store(p, e);
        added[x] += e;
      }
    for (int x = 0; x < kVecs; ++x) {
      shrink[x] = exp2_of_negative((top[x] - largest[x]) * kLog2E);
      sum[x] = sum[x] * shrink[x] + added[x];
      top[x] = largest[x];
    }
  }

  INLINE void add_values(const Dense& v, int64_t keys, const Vec (&shrink)[kVecs]) {
    float* acc = memory + at.acc;
    for (int64_t i = 0; i < all.e; i += kSteps) {
      Vec added[kSteps][kVecs];
      products(added, v.data + i, 1, v.stride, memory + at.p, keys);
      for (int n = 0; n < kSteps; ++n)
        for (int x = 0; x < kVecs; ++x, acc += LANES) store(acc, load(acc) * shrink[x] + added[n][x]);
    }
  }

  // Whether all rows see all keys of a block and their scores need no change.
  INLINE bool open(int64_t key, int64_t keys) const {
    const int64_t first = row(0) / all.heads, last = row(part.rows - 1) / all.heads;
    return !head.mask && all.softcap == 0.f && keys % kSteps == 0 && last + all.low <= key &&
           first + all.high >= key + keys - 1;
  }

  void add_block(int64_t key, int64_t keys) {
    const int64_t steps = round_up(keys, kSteps);
    const int64_t size = kBlocks[all.kv_format].bytes;
    Vec largest[kVecs], shrink[kVecs];
    scores(dense(memory + at.k, head.k + key * all.k_row * size, all.kv_format, all.k_row, keys, all.d, steps,
                 all.d),
           steps, largest);
    if (!open(key, keys)) restrict_scores(key, keys, steps, largest);
    exponentials(steps, largest, shrink);
    add_values(dense(memory + at.v, head.v + key * all.v_row * size, all.kv_format, all.v_row, keys, all.e,
                     keys, round_up(all.e, kSteps)),
               keys, shrink);
  }

  void write() {
    const int64_t stride = round_up(all.e, LANES);
    float *const rows = memory + at.rows, *const acc = memory + at.acc;
    for (int x = 0; x < kVecs; ++x) {
      for (int64_t i = 0; i < stride; i += LANES) {
        Vec v[LANES];
        for (int j = 0; j < LANES; ++j) v[j] = load(acc + (i + j) * kWidth + x * LANES);
        transpose<LANES>(v);
        for (int r = 0; r < LANES; ++r) store(rows + r * stride + i, v[r]);
      }
      for (int64_t r = 0; r < smaller(LANES, part.rows - x * LANES); ++r)
        finish_row(all, head, part, part.row + x * LANES + r, rows + r * stride, top[x][r], sum[x][r]);
    }
  }

  void run() {
    for (int x = 0; x < kVecs; ++x) {
      top[x] = set(kLowest);
      sum[x] = Vec{};
    }
    for (int64_t i = 0; i < round_up(all.e, LANES) * kWidth; i += LANES) store(memory + at.acc + i, Vec{});
    fill_queries();
    for (int64_t key = part.key, keys; key < part.key_end; key += keys)
      add_block(key, keys = keys_of_block(key, part.key_end));
    write();
  }
};

template <int kVecs>
void panel(const Attention& all, const AttentionHead& head, const AttentionPart& part, float* memory) {
  Panel<kVecs>{all, head, part, PanelMemory(all), memory, {}, {}}.run();
}

void panel_rows(const Attention& all, const AttentionHead& head, const AttentionPart& part, float* memory) {
  constexpr AttentionKernel* kPanels[] = {panel<1>, panel<2>, panel<3>};
  kPanels[(part.rows - 1) / LANES](all, head, part, memory);
}

int64_t attention_workspace(const Attention& all) {
  const int64_t scales = round_up(larger(all.d, all.e), 32) / 32 * kKeys;
  const int64_t few = kFewQueryRows * (round_up(all.d, LANES) + kKeys + round_up(all.e, LANES)) + scales;
  return larger(few, PanelMemory(all).total);
}

}  // namespace
}  // namespace cpu::ISA

#endif
