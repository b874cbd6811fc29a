# find_package(airllm) gives the target airllm::airllm: the backends of <airllm/backend/backends.h> and their
# kernels, a static library that the program's own build compiles once, when a target links it. CMake finds
# this file by -Dairllm_DIR=$(python -m airllm cpp-flags --cmake-dir).
#
# AIRLLM_COMPILE_OPTIONS: more options for that library, which win, such as -DAIRLLM_WITHOUT_AVX512, which
# halves the time it takes to compile.
cmake_policy(VERSION 3.14...3.31)
if(TARGET airllm::airllm)
  return()
endif()

set(_airllm_wanted "")
if(NOT CMAKE_CXX_COMPILER_LOADED)
  set(_airllm_wanted "airllm needs the language CXX: project(... LANGUAGES CXX)")
elseif(NOT CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  set(_airllm_wanted "airllm needs GCC or Clang, CMAKE_CXX_COMPILER is ${CMAKE_CXX_COMPILER_ID}")
endif()
if(_airllm_wanted)
  set(airllm_FOUND FALSE)
  set(airllm_NOT_FOUND_MESSAGE "${_airllm_wanted}")
  return()
endif()

include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_package(OpenMP QUIET COMPONENTS CXX) # without it OMP_PLACES is ignored

set(AIRLLM_COMPILE_OPTIONS "" CACHE STRING "More options to compile airllm's backends with")
get_filename_component(_airllm_sources "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
add_library(airllm_backends STATIC EXCLUDE_FROM_ALL "${_airllm_sources}/program/backends.cpp")
add_library(airllm::airllm ALIAS airllm_backends)
# What get_cpp_flags() in airllm/cpp_program.py says to those who compile by hand.
set_target_properties(airllm_backends PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
target_compile_features(airllm_backends PUBLIC cxx_std_17)
target_compile_options(airllm_backends PRIVATE -O3 ${AIRLLM_COMPILE_OPTIONS})
target_include_directories(airllm_backends SYSTEM INTERFACE "${_airllm_sources}/include")
target_include_directories(airllm_backends PRIVATE "${_airllm_sources}/include")
target_link_libraries(airllm_backends PUBLIC Threads::Threads)
if(OpenMP_CXX_FOUND)
  target_link_libraries(airllm_backends PRIVATE OpenMP::OpenMP_CXX)
endif()
