// Callers that share work among the threads that all ops have, under ThreadSanitizer: what the shares write
// is read by their caller, and both would be a race if one did not wait for the other.
#include <cstdio>
#include <cstdlib>

#include "../../cpp_ext/cpu/threads/parallel.h"

int main() {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 10; ++caller)
    callers.emplace_back([caller] {
      std::vector<int> items(1000);
      for (int round = 1; round <= 300; ++round) {
        cpu::parallel(1000, 1, 2 + (caller + round) % 4, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++items[i];
        });
        for (const int count : items)
          if (count != round) std::abort();
        if (round % 50 == 0)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));  // until workers sleep
      }
    });
  for (std::thread& caller : callers) caller.join();
  std::puts("done");
}
