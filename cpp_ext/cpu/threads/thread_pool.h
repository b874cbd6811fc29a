// A thread pool. OpenMP gives the places of threads, in a build with it.
//
// The threads are not OpenMP's own. An OpenMP region per op would end only after its last thread has had a
// core. That may take a scheduler slice of 8 ms if other threads keep the cores busy, as the threads of
// NumPy's BLAS do after each product. And if no more threads can be created, OpenMP's runtime ends the
// process. Here the calling thread starts the work at once, and waits only for threads that joined.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#endif

namespace cpu {

// Tells the core that its thread is waiting.
inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

class __attribute__((visibility("hidden"))) ThreadPool {
 public:
  // Never destroyed: its threads wait in it when the process ends.
  static ThreadPool& all() {
    static ThreadPool* const workers = new ThreadPool;
    return *workers;
  }

  // Calls work(0) in this thread, and work(1) to work(team - 1) in threads that join before it is over.
  // Returns when all threads that joined are done. `work` must not throw.
  template <class Work>
  void run(int team, const Work& work) {
    Job* const job = team > 1 ? free_job() : nullptr;
    if (!job) return work(0);
    start(team - 1);
    job->work = &work;
    job->call = [](const void* of, int me) { (*static_cast<const Work*>(of))(me); };
    job->left.store(0, std::memory_order_relaxed);
    job->places.store(team - 1, std::memory_order_release);
    wake(team - 1, job);
    work(0);
    const int came = team - 1 - job->places.exchange(0, std::memory_order_acq_rel);
    if (!came) nobody_came(job);
    for (int looks = 0; job->left.load(std::memory_order_acquire) < came; ++looks)
      looks < kLooks ? pause_briefly() : std::this_thread::yield();  // the thread may need this very core
    job->taken.store(false, std::memory_order_release);
  }

 private:
  struct alignas(64) Job {
    std::atomic<bool> taken{false};
    std::atomic<int> places{0};  // for threads that may still join
    std::atomic<int> left{0};    // threads that joined and are done
    void (*call)(const void* work, int me);
    const void* work;
  };

  struct Thread {
#ifdef __linux__
    pthread_t thread;
    bool bound;            // to one of OpenMP's places
    cpu_set_t first, now;  // the processors it may run on
#endif
  };

  static constexpr int kJobs = 16;  // concurrent callers
  static constexpr int kLooks = 1000;
  static constexpr std::chrono::microseconds kAwake{
      200};  // spinning after work: from one op to the next, no longer
  static constexpr std::chrono::seconds kUntilNextTry{1};  // to create threads, after a failure

  Job* free_job() {
    for (Job& job : jobs_)
      if (!job.taken.load(std::memory_order_relaxed) && !job.taken.exchange(true, std::memory_order_acquire))
        return &job;
    return nullptr;
  }

  // Creates as many threads as possible: an op also finishes without the others.
  void start(int threads) noexcept {
    if (started_.load(std::memory_order_relaxed) >= threads) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (now < next_try_) return;
    try {
      for (int number = started_ + 1; number <= threads; ++number) {
        std::thread made([this] { serve(); });
        [[maybe_unused]] const auto thread = made.native_handle();
        made.detach();
        started_.store(number, std::memory_order_relaxed);
#ifdef __linux__
        threads_.push_back(placed(thread, number, threads));
#endif
      }
    } catch (const std::exception&) {  // std::system_error, std::bad_alloc
      next_try_ = now + kUntilNextTry;
    }
  }

#ifdef __linux__
  // A thread's initial place: the one that OpenMP has for its number; the caller is number 0.
  static Thread placed(pthread_t thread, [[maybe_unused]] int number, [[maybe_unused]] int threads) {
    Thread made{};
    made.thread = thread;
#ifdef _OPENMP
    const int places = omp_get_num_places();
    made.bound = places > 0 && omp_get_proc_bind() != omp_proc_bind_false;
    if (made.bound) {
      const bool spread = omp_get_proc_bind() == omp_proc_bind_spread && threads < places;
      const cpu_set_t place = processors_of((spread ? number * places / (threads + 1) : number) % places);
      pthread_setaffinity_np(thread, sizeof place, &place);
    }
#endif
    pthread_getaffinity_np(thread, sizeof made.first, &made.first);
    made.now = made.first;
    return made;
  }

#ifdef _OPENMP
  static cpu_set_t processors_of(int place) {
    std::vector<int> processors(omp_get_place_num_procs(place));
    omp_get_place_proc_ids(place, processors.data());
    cpu_set_t found;
    CPU_ZERO(&found);
    for (const int processor : processors) CPU_SET(processor, &found);
    return found;
  }
#endif
#endif

  [[noreturn]] void serve() {
    for (;;) {
      const uint32_t posted = posted_.load();
      bool worked = false;
      for (Job& job : jobs_) worked |= work_on(job);
      if (!worked && !new_job_soon(posted)) sleep(posted);
    }
  }

  static bool work_on(Job& job) {
    int place = job.places.load(std::memory_order_acquire);
    while (place > 0 && !job.places.compare_exchange_weak(place, place - 1, std::memory_order_acq_rel)) {
    }
    if (place <= 0) return false;
    job.call(job.work, place);
    job.left.fetch_add(1, std::memory_order_acq_rel);
    return true;
  }

  bool new_job_soon(uint32_t posted) const {
    const auto until = std::chrono::steady_clock::now() + kAwake;
    do
      for (int looks = 0; looks < 64; ++looks, pause_briefly())
        if (posted_.load(std::memory_order_relaxed) != posted) return true;
    while (std::chrono::steady_clock::now() < until);
    return false;
  }

  void sleep(uint32_t posted) {
    std::unique_lock<std::mutex> lock(mutex_);
    ++sleeping_;
    wake_.wait(lock, [&] { return posted_.load() != posted; });
    --sleeping_;
  }

  void wake(int threads, const Job* job) {
    ++posted_;
    if (!sleeping_.load()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    keep_others_off(job);
    for (int i = std::min(threads, sleeping_.load()); i > 0; --i) wake_.notify_one();
  }

  // A thread that is awake may be waiting for this very core.
  void nobody_came(const Job* job) {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (lock) keep_others_off(job);
  }

  // Threads must not wait for the processor on which this one runs. The system may wake a thread on its
  // waker's processor, and leave it there for milliseconds though other processors are idle: it believes that
  // those of some virtual machines share no cache. Threads that the user has bound to a place are not moved,
  // nor are threads that work for another caller.
  void keep_others_off([[maybe_unused]] const Job* job) {
#ifdef __linux__
    cpu_set_t callers;
    const int here = sched_getcpu();
    if (here < 0 || sched_getaffinity(0, sizeof callers, &callers)) return;
    for (const Job& other : jobs_)
      if (&other != job && other.taken.load(std::memory_order_relaxed)) return;
    for (Thread& each : threads_) {
      if (each.bound) continue;
      // If the caller is bound to one processor, that says nothing about the others.
      cpu_set_t others = CPU_COUNT(&callers) > 1 ? callers : each.first;
      CPU_CLR(here, &others);
      if (!CPU_COUNT(&others) || CPU_EQUAL(&others, &each.now)) continue;
      if (!pthread_setaffinity_np(each.thread, sizeof others, &others)) each.now = others;
    }
#endif
  }

  Job jobs_[kJobs];
  std::atomic<uint32_t> posted_{0};
  std::atomic<int> started_{0}, sleeping_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Thread> threads_;
  std::chrono::steady_clock::time_point next_try_{};
};

}  // namespace cpu
