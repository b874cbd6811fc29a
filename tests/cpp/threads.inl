// The thread pool: who does which part of the work, and where. Part of test_kernels.cpp.

// Every item once, by however many threads.
void check_threads() {
  for (int64_t n : {0, 1, 7, 1000, 100000}) {
    std::vector<std::atomic<int>> seen(n);
    cpu::parallel(n, 16, cpu::parts(n, 100, 16), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++seen[i];
    });
    ++checks;
    for (const auto& count : seen)
      if (count != 1) {
        ++failures;
        return void(std::printf("WRONG: parallel over %lld items\n", static_cast<long long>(n)));
      }
  }
}

// A long product of many rows is taken in more pieces than there are threads: a thread that loses its core to
// another program delays the others by a piece, not by half of the product. Each thread has one workspace.
void check_products_of_many_rows_are_in_pieces() {
  static std::mutex mutex;
  static int64_t products, columns;
  static std::set<const char*> workspaces;
  cpu::PrefillKernels kernels{};
  kernels.rows = kernels.columns = 16;
  kernels.strip_bytes = kernels.workspace_bytes = [](cpu::Format, int64_t) -> int64_t { return 1; };
  kernels.quantize[cpu::kFloat32] = [](cpu::Format, char*, const void*, int64_t, int64_t, int64_t, int64_t) {
  };
  kernels.product = [](cpu::Format, void*, DType, const char*, const char*, const cpu::PrefillPart& part,
                       char* workspace) {
    const std::lock_guard<std::mutex> lock(mutex);
    ++products;
    columns += part.n1 - part.n0;
    workspaces.insert(workspace);
  };
  cpu::own_threads() = 2;
  cpu::threaded::prefill_by_bytes(
      kernels, {cpu::kFloat32, nullptr, nullptr, cpu::kQ8_0, nullptr, nullptr, 512, 2048, 4096});
  cpu::own_threads() = 0;
  expect(products >= 8 && columns == 2048 && workspaces.size() <= 2, "products of many rows in pieces");
}

// Work is done though no thread comes to help, and more callers than there are jobs have theirs done.
void check_workers() {
  std::atomic<bool> go_on{false};
  std::atomic<int> held{0};
  std::thread busy([&] {  // it and every worker wait here
    cpu::on_team(3, [&](int, int) {
      ++held;
      while (!go_on) std::this_thread::yield();
    });
  });
  while (!held) std::this_thread::yield();
  std::atomic<int64_t> sum{0};
  const auto add = [&](int64_t begin, int64_t end) { sum += end - begin; };
  cpu::parallel(1000, 1, 3, add);
  expect(sum == 1000, "parallel, all workers being busy");
  go_on = true;
  busy.join();
  std::vector<std::thread> callers;
  for (int i = 0; i < 40; ++i)
    callers.emplace_back([&] {
      for (int j = 0; j < 25; ++j) cpu::parallel(1000, 1, 4, add);
    });
  for (std::thread& caller : callers) caller.join();
  expect(sum == 1001000, "parallel of many callers");
}

#ifdef __linux__
// Whether a worker comes to run where it should, after some jobs for which it has slept.
template <class Should>
bool comes_to_run(const Should& should) {
  std::atomic<bool> does{false};
  for (int tries = 0; tries < 500 && !does; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<bool> came{false};
    cpu::on_team(2, [&](int me, int) {
      cpu_set_t its;
      if (me) {
        does = !sched_getaffinity(0, sizeof its, &its) && should(its);
        came = true;
      }
      for (int looks = 0; !me && !came && looks < 100; ++looks) std::this_thread::yield();
    });
  }
  return does;
}
#endif

// A thread that was asleep is not woken behind its caller, on the same processor.
void check_where_workers_run() {
#ifdef __linux__
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof mine, &mine) || CPU_COUNT(&mine) == 1) return;
  const auto others = [&](const cpu_set_t& its) { return CPU_COUNT(&its) == CPU_COUNT(&mine) - 1; };
  expect(comes_to_run(others), "a worker is kept off its caller's processor");
  for (int here = 0, seen = 0; here < CPU_SETSIZE && seen < 2; ++here) {
    if (!CPU_ISSET(here, &mine)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(here, &one);
    if (sched_setaffinity(0, sizeof one, &one)) return;
    ++seen;
    const auto elsewhere = [&](const cpu_set_t& its) { return !CPU_ISSET(here, &its); };
    expect(comes_to_run(elsewhere), "a worker leaves the processor to which its caller is bound");
  }
  sched_setaffinity(0, sizeof mine, &mine);
  expect(comes_to_run(others), "a worker follows a caller that is bound no longer");
#endif
}

// The size of each share of a kind of step.
Reals sizes_of_shares(cpu::Balance& balance, int team, int kind) {
  std::vector<float> begins(cpu::Balance::values(team));
  balance.shares(begins.data(), team);
  Reals sizes;
  for (int i = 0, at = kind * (team + 1); i < team; ++i) sizes.push_back(begins[at + i + 1] - begins[at + i]);
  return sizes;
}

// Calls whose shares take as long as they are large, times `costs`; other kinds take all alike.
Reals sizes_after(cpu::Balance& balance, const Reals& costs, int calls, int layers = 30) {
  constexpr int kKind = 2;
  const int team = static_cast<int>(costs.size());
  std::vector<cpu::ShareTicks> took(costs.size());
  for (int call = 0; call < calls; ++call) {
    const Reals sizes = sizes_of_shares(balance, team, kKind);
    for (int i = 0; i < team; ++i) took[i] = {{1000, 1000}}, took[i].of[kKind] = 1e6 * sizes[i] * costs[i];
    balance.learn(took.data(), team, layers);
  }
  return sizes_of_shares(balance, team, kKind);
}

bool near(const Reals& found, const Reals& expected, double tolerance) {
  for (size_t i = 0; i < expected.size(); ++i)
    if (!(std::fabs(found[i] - expected[i]) <= tolerance)) return false;
  return found.size() == expected.size();
}

void check_balance() {
  cpu::Balance balance;
  const Reals thirds(3, 1. / 3);
  expect(near(sizes_of_shares(balance, 3, 2), thirds, 1e-6), "balance, nothing known");
  expect(near(sizes_after(balance, {1, 1, 1000}, 1, 1), thirds, 1e-3), "balance, a call of one layer");
  expect(near(sizes_after(balance, {1, 1, 1000}, 1), thirds, 1. / 3 / 20), "balance, one call");
  expect(near(sizes_after(balance, {2, 1, 1}, 300), {.2, .4, .4}, 1e-3), "balance, a slow core");
  for (int other : {0, 1, 3, cpu::kStepKinds - 1})
    expect(near(sizes_of_shares(balance, 3, other), thirds, 1e-6), "balance, other kinds of steps");
  expect(near(sizes_after(balance, {1, 1, 2}, 300), {.4, .4, .2}, 1e-3), "balance, another slow core");
  const double least = .25 / 3;
  expect(sizes_after(balance, {1, 1, 1e6}, 300)[2] > .9 * least, "balance, a core that is nearly still");
  expect(near(sizes_of_shares(balance, 2, 2), {.5, .5}, 1e-6), "balance, another team");
  expect(near(sizes_after(balance, {5}, 10), {1}, 0), "balance, one thread");
}
