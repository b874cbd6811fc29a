// out (m, n) = a (m, k) @ b (k, n), row-major. Included by kernels.inl once per instruction set.
//
// Many rows, as in BLIS (Van Zee and van de Geijn, 2015): a block of b and a block of a are unpacked to
// float32 in the order in which the innermost kernel reads them; that kernel keeps a tile of kTileRows by
// kTileVecs vectors of the result in registers.

constexpr int kTileVecs = 2;
constexpr int kTileColumns = kTileVecs * LANES;
constexpr int kTileRows = VECTORS == 32 ? 12 : VECTORS == 16 && LANES > 4 ? 6 : 4;
constexpr int64_t kDepth = 256;                                   // of k at a time: a strip of b stays in L1
constexpr int64_t kColumns = 1024 / kTileColumns * kTileColumns;  // of b at a time: the block stays in L2
constexpr int64_t kRows = 16 * kTileRows;                         // of a at a time
constexpr int64_t kResultRows = 4 * kRows;                        // whose sums wait in float32
constexpr size_t kMatmulWorkspace =
    sizeof(float) * (kDepth * kColumns + kRows * kDepth + kResultRows * kColumns);

// Where panels of b come from: columns [j, j + n) of rows [p, p + depth) of it, as strips of kTileColumns
// columns, the last one filled with zeros.
struct Panels {
  void (*unpack)(float* to, const Panels& from, int64_t p, int64_t depth, int64_t j, int64_t n);
  const void* b;
  int64_t stride;                                                       // of its rows, or of a weight's
  void (*floats)(float* to, const char* row, int64_t from, int64_t n);  // of a weight's row
};

// of b (k, n) as it lies
template <class T>
void unpack_b(float* to, const Panels& from_, int64_t p0, int64_t depth, int64_t j0, int64_t n) {
  const int64_t stride = from_.stride;
  const T* const b = static_cast<const T*>(from_.b) + p0 * stride + j0;
  for (int64_t j = 0; j < n; j += kTileColumns) {
    const int64_t width = n - j < kTileColumns ? n - j : kTileColumns;
    for (int64_t p = 0; p < depth; ++p, to += kTileColumns) {
      const T* from = b + p * stride + j;
      if (width == kTileColumns) {
        for (int v = 0; v < kTileVecs; ++v) store(to + v * LANES, load(from + v * LANES));
      } else {
        for (int v = 0; v < kTileVecs; ++v) store(to + v * LANES, Vec{});
        map(to, width, Same{}, from);
      }
    }
  }
}

// of a weight (n, k) whose rows are the columns of b
inline void unpack_weight(float* to, const Panels& from, int64_t p, int64_t depth, int64_t j, int64_t n) {
  alignas(64) float rows[LANES][kDepth];
  const char* row = static_cast<const char*>(from.b) + j * from.stride;
  for (int64_t i = 0; i < n; i += kTileColumns, to += kTileColumns * depth)
    for (int v = 0; v < kTileVecs; ++v) {
      for (int64_t r = 0; r < LANES; ++r, row += from.stride)
        if (i + v * LANES + r < n)
          from.floats(rows[r], row, p, depth);
        else
          __builtin_memset(rows[r], 0, sizeof rows[r]);
      for (int64_t q = 0; q < depth; q += LANES) {
        Vec square[LANES];
        for (int r = 0; r < LANES; ++r) square[r] = load(rows[r] + q);
        transpose<LANES>(square);
        for (int64_t d = 0; d < LANES && q + d < depth; ++d)
          store(to + (q + d) * kTileColumns + v * LANES, square[d]);
      }
    }
}

// rows [0, m) of a, `depth` columns -> strips of kTileRows rows, the last one filled with zeros
template <class T>
inline void unpack_a(float* to, const T* a, int64_t stride, int64_t m, int64_t depth) {
  float row[kDepth];
  for (int64_t i = 0; i < m; i += kTileRows, to += kTileRows * depth)
    for (int r = 0; r < kTileRows; ++r) {
      if (i + r < m) {
        map(row, depth, Same{}, a + (i + r) * stride);
        for (int64_t p = 0; p < depth; ++p) to[p * kTileRows + r] = row[p];
      } else {
        for (int64_t p = 0; p < depth; ++p) to[p * kTileRows + r] = 0.f;
      }
    }
}

inline void tile(float* result, int64_t stride, const float* a, const float* b, int64_t depth) {
  Vec sum[kTileRows][kTileVecs] = {};
  for (int64_t p = 0; p < depth; ++p, a += kTileRows, b += kTileColumns) {
    Vec column[kTileVecs];
    for (int v = 0; v < kTileVecs; ++v) column[v] = load(b + v * LANES);
    for (int r = 0; r < kTileRows; ++r)
      for (int v = 0; v < kTileVecs; ++v) sum[r][v] += a[r] * column[v];
  }
  for (int r = 0; r < kTileRows; ++r)
    for (int v = 0; v < kTileVecs; ++v) {
      float* const to = result + r * stride + v * LANES;
      store(to, load(to) + sum[r][v]);
    }
}

// One block of the result: rows m <= kResultRows, columns n <= kColumns, all of k.
template <class T>
inline void block(float* result, const T* a, const Panels& b, const MatmulPart& all, int64_t m, int64_t j0,
                  int64_t n, float* workspace) {
  float* unpacked_b = workspace;
  float* unpacked_a = unpacked_b + kDepth * kColumns;
  const int64_t tiled_rows = (m + kTileRows - 1) / kTileRows * kTileRows;
  for (int64_t i = 0; i < tiled_rows; ++i)
    for (int64_t j = 0; j < n; j += kTileColumns)
      for (int v = 0; v < kTileVecs; ++v) store(result + i * kColumns + j + v * LANES, Vec{});
  for (int64_t p = 0; p < all.k; p += kDepth) {
    const int64_t depth = all.k - p < kDepth ? all.k - p : kDepth;
    b.unpack(unpacked_b, b, p, depth, j0, n);
    for (int64_t i = 0; i < m; i += kRows) {
      const int64_t rows = m - i < kRows ? m - i : kRows;
      unpack_a(unpacked_a, a + i * all.k + p, all.k, rows, depth);
      for (int64_t j = 0; j < n; j += kTileColumns)
        for (int64_t r = 0; r < rows; r += kTileRows)
          tile(result + (i + r) * kColumns + j, kColumns, unpacked_a + r * depth, unpacked_b + j * depth,
               depth);
    }
  }
}

template <class T>
void multiply(void* out, const void* a, const Panels& b, const MatmulPart& part, float* workspace) {
  float* result = workspace + kDepth * kColumns + kRows * kDepth;
  for (int64_t j = part.n0; j < part.n1; j += kColumns)
    for (int64_t i = part.m0; i < part.m1; i += kResultRows) {
      const int64_t n = part.n1 - j < kColumns ? part.n1 - j : kColumns;
      const int64_t m = part.m1 - i < kResultRows ? part.m1 - i : kResultRows;
      block(result, static_cast<const T*>(a) + i * part.k, b, part, m, j, n, workspace);
      for (int64_t r = 0; r < m; ++r)
        map(static_cast<T*>(out) + (i + r) * part.n + j, n, Same{}, result + r * kColumns);
    }
}

template <class T>
void matmul(void* out, const void* a, const void* b, const MatmulPart& part, float* workspace) {
  multiply<T>(out, a, {unpack_b<T>, b, part.n, nullptr}, part, workspace);
}

struct AddRows {  // y + a0 b0 + a1 b1 + ...
  const float* a;
  template <class... B>
  INLINE Vec operator()(Vec y, B... b) const {
    const float* factor = a;
    ((y += *factor++ * b), ...);
    return y;
  }
};
struct AddRow {
  float a;
  INLINE Vec operator()(Vec y, Vec b) const { return y + a * b; }
};

struct Add {
  INLINE Vec operator()(Vec a, Vec b) const { return a + b; }
};

// Few rows of a: rows of b are read in the order of memory, eight streams at a time, and added to pieces
// of the result that stay in cache. Sums over kDepthOfSums of k are added up apart, so that a long sum
// loses no more digits than a short one.
constexpr int64_t kFewRows = 8;
constexpr int64_t kPiece = 2048;
constexpr int64_t kDepthOfSums = 512;
constexpr size_t kMatvecWorkspace = sizeof(float) * 2 * kFewRows * kPiece;

// sums (m, n) += a (m, rows) @ b (rows, n), rows <= 8; `stride_a` and `stride_b` are those of their rows
template <class T>
INLINE void add_rows(float* sums, const T* a, int64_t stride_a, const T* b, int64_t stride_b, int64_t m,
                     int64_t rows, int64_t n) {
  for (int64_t i = 0; i < m; ++i, sums += kPiece) {
    float factors[8];
    map(factors, rows, Same{}, a + i * stride_a);
    const auto add = [&](auto row) {
      map(sums, n, AddRows{factors}, sums, row, row + stride_b, row + 2 * stride_b, row + 3 * stride_b,
          row + 4 * stride_b, row + 5 * stride_b, row + 6 * stride_b, row + 7 * stride_b);
    };
    if (rows < 8)
      for (int64_t r = 0; r < rows; ++r) map(sums, n, AddRow{factors[r]}, sums, b + r * stride_b);
    else if (i == 0)
      add(Ahead<T>{b, 8 * stride_b});
    else
      add(b);
  }
}

template <class T>
void matvec(void* out, const void* a_, const void* b_, const MatmulPart& part, float* workspace) {
  const T* a = static_cast<const T*>(a_) + part.m0 * part.k;
  const int64_t m = part.m1 - part.m0;
  float *const sums = workspace, *const totals = workspace + kFewRows * kPiece;
  for (int64_t j = part.n0; j < part.n1; j += kPiece) {
    const int64_t n = part.n1 - j < kPiece ? part.n1 - j : kPiece;
    const T* b = static_cast<const T*>(b_) + j;
    for (int64_t i = 0; i < m * kPiece; i += LANES) store(totals + i, Vec{});
    for (int64_t q = 0; q < part.k; q += kDepthOfSums) {
      const int64_t end = part.k - q < kDepthOfSums ? part.k : q + kDepthOfSums;
      for (int64_t i = 0; i < m * kPiece; i += LANES) store(sums + i, Vec{});
      for (int64_t p = q; p < end; p += 8)
        add_rows(sums, a + p, part.k, b + p * part.n, part.n, m, end - p < 8 ? end - p : 8, n);
      map(totals, m * kPiece, Add{}, totals, sums);
    }
    for (int64_t i = 0; i < m; ++i)
      map(static_cast<T*>(out) + (part.m0 + i) * part.n + j, n, Same{}, totals + i * kPiece);
  }
}
