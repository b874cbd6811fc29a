// Attention, in double precision from its definition and by each set's kernels. Included by test_kernels.cpp.

// One key-value head: a result in double precision from the definition.
Reals attention(const cpu::Attention& all, const Reals& q, const Reals& k, const Reals& v, const Reals& mask,
                const Reals& sinks) {
  Reals out;
  for (int64_t h = 0; h < all.heads; ++h)
    for (int64_t i = 0; i < all.t; ++i) {
      Reals row(all.e), p(all.s, -INFINITY);
      double top = -INFINITY, sum = 0;
      for (int64_t j = std::max<int64_t>(0, i + all.low); j < std::min(all.s, i + all.high + 1); ++j) {
        double score = dot(&q[(h * all.t + i) * all.d], &k[j * all.d], all.d) * all.scale;
        if (all.softcap) score = all.softcap * std::tanh(score / all.softcap);
        p[j] = score + (mask.empty() ? 0 : mask[i * all.s + j]);
        top = std::max(top, p[j]);
      }
      if (!sinks.empty()) {
        top = std::max(top, sinks[h]);
        sum = std::exp(sinks[h] - top);
      }
      for (double& each : p) sum += each = std::isinf(top) ? 0 : std::exp(each - top);
      for (int64_t j = 0; j < all.s && sum > 0; ++j) add_row(row.data(), &v[j * all.e], p[j] / sum, all.e);
      out.insert(out.end(), row.begin(), row.end());
    }
  return out;
}

struct AttentionCase {
  int64_t heads, t, s, d, e;
  bool causal;
  int64_t window;  // 0: none
  float softcap;
  bool masked;
  bool has_sinks = false;
};

// One for each head, below the scores of a head, near them and above.
Reals sinks_of(const AttentionCase& c) {
  Reals sinks(c.has_sinks ? c.heads : 0);
  for (size_t h = 0; h < sinks.size(); ++h) sinks[h] = 3. * double(h) - 2;
  return sinks;
}

template <class T>
cpu::Attention members(const AttentionCase& c) {
  cpu::Attention all{};
  all.heads = c.heads;
  all.t = c.t;
  all.s = c.s;
  all.d = c.d;
  all.e = c.e;
  all.q_head = c.t * c.d;
  all.q_row = all.k_row = c.d;
  all.out_head = c.t * c.e;
  all.out_row = all.v_row = c.e;
  all.mask_row = c.s;
  all.mask_key = 1;
  all.q_type = all.mask_type = Type<T>::dtype;
  all.kv_format = static_cast<cpu::Format>(Type<T>::dtype);
  all.scale = 0.1f;
  all.softcap = c.softcap;
  all.high = c.causal ? c.s - c.t : c.s;
  all.low = c.window ? c.s - c.t - c.window + 1 : -c.t;
  return all;
}

void run(const cpu::Kernels& kernels, const cpu::Attention& all, const cpu::AttentionHead& head) {
  const cpu::AttentionParts parts(kernels.attention, all, 1);
  float* const memory =
      static_cast<float*>(cpu::allocate_aligned(64, (parts.floats() * sizeof(float) + 63) / 64 * 64));
  parts.run([&](int64_t) { return head; }, memory);
  cpu::free_aligned(memory);
}

template <class T>
char* bytes(const Block<T>& block) {
  return reinterpret_cast<char*>(block.data.get());
}

template <class T>
void check_attention(const cpu::Kernels& kernels, const AttentionCase& c) {
  const cpu::Attention all = members<T>(c);
  const Block<T> q = sample<T>(c.heads * c.t * c.d), k = sample<T>(c.s * c.d), v = sample<T>(c.s * c.e),
                 mask = sample<T>(c.t * c.s);
  Block<T> out(c.heads * c.t * c.e);
  const Reals sinks = sinks_of(c);
  const std::vector<float> floats(sinks.begin(), sinks.end());
  run(kernels, all,
      {bytes(q), bytes(k), bytes(v), c.masked ? bytes(mask) : nullptr, bytes(out),
       c.has_sinks ? floats.data() : nullptr});
  compare(kernels.isa, "attention", out,
          attention(all, q.values(), k.values(), v.values(), c.masked ? mask.values() : Reals(), sinks));
}

// Rows of blocks of Q8_0, and their values.
struct Rows8 {
  Block<char> blocks;
  Reals values;
  Rows8(const cpu::Kernels& kernels, int64_t n) : blocks(n / 32 * 34), values(n) {
    const Block<float> x = sample<float>(n);
    kernels.stored.quantize(cpu::kQ8_0, blocks.data.get(), x.data.get(), n);
    for (int64_t i = 0; i < n; ++i) {
      const char* const block = blocks.data.get() + i / 32 * 34;
      Float16 scale;
      std::memcpy(&scale, block, 2);
      values[i] = value(scale) * static_cast<signed char>(block[2 + i % 32]);
    }
  }
};

void check_attention_to_blocks(const cpu::Kernels& kernels, const AttentionCase& c) {
  cpu::Attention all = members<float>(c);
  all.kv_format = cpu::kQ8_0;
  all.k_row = c.d / 32;
  all.v_row = c.e / 32;
  const Block<float> q = sample<float>(c.heads * c.t * c.d);
  const Rows8 k(kernels, c.s * c.d), v(kernels, c.s * c.e);
  Block<float> out(c.heads * c.t * c.e);
  const Reals sinks = sinks_of(c);
  const std::vector<float> floats(sinks.begin(), sinks.end());
  run(kernels, all,
      {bytes(q), bytes(k.blocks), bytes(v.blocks), nullptr, bytes(out),
       c.has_sinks ? floats.data() : nullptr});
  compare(kernels.isa, "attention to blocks", out, attention(all, q.values(), k.values, v.values, {}, sinks));
}

void check_attentions_to_blocks(const cpu::Kernels& kernels) {
  for (const AttentionCase& c : {AttentionCase{1, 1, 1, 32, 32, true, 0, 0, false},
                                 {3, 1, 130, 64, 64, true, 0, 0, false},
                                 {4, 2, 15, 96, 32, true, 0, 5, false},
                                 {7, 1, 257, 128, 96, true, 100, 0, false},
                                 {3, 50, 129, 64, 96, true, 0, 0, false},
                                 {2, 1, 1000, 64, 64, true, 0, 0, false},
                                 {3, 1, 1000, 64, 32, true, 0, 0, false, true},
                                 {3, 40, 129, 32, 64, true, 50, 0, false, true}})
    check_attention_to_blocks(kernels, c);
}

// The two halves, with weights and queries in float32.
template <class T>
void check_halves(const cpu::Kernels& kernels, int64_t rows, int64_t d) {
  const Block<float> query = sample<float>(d), weights = sample<float>(rows);
  const Block<T> matrix = sample<T>(rows * d);
  const Reals qv = query.values(), wv = weights.values(), mv = matrix.values();
  Reals scores(rows), sums(d);
  for (int64_t i = 0; i < rows * d; ++i) {
    scores[i / d] += mv[i] * qv[i % d];
    sums[i % d] += mv[i] * wv[i / d];
  }
  Block<float> out(rows);
  const cpu::AttentionKernels& halves = kernels.attention;
  halves.scores[Type<T>::dtype](out.data.get(), query.data.get(), matrix.data.get(), d, rows, d);
  compare(kernels.isa, "attention_scores", out, scores);
  Block<float> wide((d + 15) / 16 * 16), sum(d);
  std::fill_n(wide.data.get(), wide.n, 0.f);
  halves.add_rows[Type<T>::dtype](wide.data.get(), weights.data.get(), matrix.data.get(), d, rows, d);
  std::copy_n(wide.data.get(), d, sum.data.get());
  compare(kernels.isa, "weighted_sum_rows", sum, sums);
}

template <class T>
void check_attentions(const cpu::Kernels& kernels) {
  for (const AttentionCase& c : {AttentionCase{1, 1, 1, 1, 1, false, 0, 0, false},
                                 {3, 1, 130, 64, 64, true, 0, 0, false},
                                 {4, 2, 37, 20, 17, true, 0, 5, true},
                                 {1, 5, 15, 33, 3, false, 4, 0, true},
                                 {7, 5, 300, 16, 70, true, 100, 0, false},
                                 {1, 33, 33, 8, 8, true, 0, 0, false},
                                 {3, 50, 129, 17, 21, true, 0, 0, true},
                                 {2, 60, 40, 64, 16, true, 7, 3, true},
                                 {5, 40, 256, 32, 32, false, 0, 0, false},
                                 {1, 3, 3000, 64, 64, false, 0, 0, false},
                                 {4, 1, 33, 16, 9, true, 0, 0, false, true},
                                 {4, 1, 3000, 16, 16, true, 0, 2, true, true},
                                 {3, 50, 129, 17, 21, true, 9, 0, true, true}})
    check_attention<T>(kernels, c);
  for (const auto& [rows, d] : {std::pair(1, 1), std::pair(17, 33), std::pair(300, 64), std::pair(5, 100)})
    check_halves<T>(kernels, rows, d);
}
