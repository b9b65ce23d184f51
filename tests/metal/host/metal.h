// The part of the Metal Shading Language that the kernels use, as C++ for clang.
#pragma once

#include <cmath>

#include "memory.h"

using uint = unsigned int;
using ushort = unsigned short;
using uchar = unsigned char;
using ulong = uint64_t;
using half = _Float16;
using float16_t = half;
using bfloat16_t = __bf16;
using half4 = half __attribute__((ext_vector_type(4)));

struct float2 {
  float x, y;
  float2(float both) : x(both), y(both) {}
  float2(float x, float y) : x(x), y(y) {}
};

struct uint3 {
  uint x, y, z;
};

enum class mem_flags { mem_none, mem_device, mem_threadgroup };

inline void meet(host::Meeting meeting, int line) {
  host::Threadgroup::active->meet(meeting, line);
}

inline void threadgroup_barrier(mem_flags flags, int line = __builtin_LINE()) {
  meet(host::Meeting::threadgroup, line);
  if (flags == mem_flags::mem_threadgroup) ++host::Threadgroup::active->self().now.group_epoch;
}

inline void simdgroup_barrier(mem_flags flags, int line = __builtin_LINE()) {
  meet(host::Meeting::simdgroup, line);
  if (flags == mem_flags::mem_threadgroup) ++host::Threadgroup::active->self().now.simd_epoch;
}

// Offer a value to the simdgroup, and read what the lanes offered.
template <class T>
struct Exchange {
  Exchange(T value, int line) {
    static_assert(sizeof(T) <= 16);
    host::Fiber& self = host::Threadgroup::active->self();
    turn = self.exchanges++ & 1;
    std::memcpy(self.offered[turn], &value, sizeof(T));
    meet(host::Meeting::simdgroup, line);
  }
  T of(uint lane) const {
    if (lane >= host::kLanes)
      host::trap("a shuffle from no lane", host::Threadgroup::active->self().now.thread);
    T value;
    std::memcpy(&value, host::Threadgroup::active->lane(lane).offered[turn], sizeof(T));
    return value;
  }
  unsigned turn;
};

inline uint this_lane() { return host::Threadgroup::active->self().now.thread % host::kLanes; }

template <class T>
T simd_shuffle(T value, uint lane, int line = __builtin_LINE()) {
  return Exchange<T>(value, line).of(lane);
}
template <class T>
T simd_broadcast(T value, uint lane, int line = __builtin_LINE()) {
  return Exchange<T>(value, line).of(lane);
}
template <class T>
T simd_shuffle_xor(T value, uint mask, int line = __builtin_LINE()) {
  return Exchange<T>(value, line).of(this_lane() ^ mask);
}
template <class T>
T simd_sum(T value, int line = __builtin_LINE()) {
  Exchange<T> lanes(value, line);
  T sum = lanes.of(0);
  for (uint i = 1; i < host::kLanes; ++i) sum += lanes.of(i);
  return sum;
}
template <class T>
T simd_max(T value, int line = __builtin_LINE()) {
  Exchange<T> lanes(value, line);
  T top = lanes.of(0);
  for (uint i = 1; i < host::kLanes; ++i) top = std::max(top, lanes.of(i));
  return top;
}

namespace metal {
template <class T>
constexpr T max(T a, std::type_identity_t<T> b) {
  return a > b ? a : b;
}
template <class T>
constexpr T min(T a, std::type_identity_t<T> b) {
  return a < b ? a : b;
}
template <class T>
constexpr T clamp(T x, std::type_identity_t<T> low, std::type_identity_t<T> high) {
  return min(max(x, low), high);
}
inline float exp(float x) { return std::exp(x); }
inline float rint(float x) { return std::rint(x); }
inline float sincos(float x, float& cosine) {
  cosine = std::cos(x);
  return std::sin(x);
}
}  // namespace metal
