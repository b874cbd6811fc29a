// Compares names of backends and formats that a user gives; the case of letters does not matter.
#pragma once
#include <algorithm>
#include <string_view>

namespace cpu {

inline char fold_case(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

inline bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return fold_case(x) == fold_case(y); });
}

}  // namespace cpu
