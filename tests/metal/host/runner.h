// Runs launches of compiled kernels: requests on standard input, results on standard output.
#pragma once

#include "metal.h"

namespace host {

struct Launch {
  uint3 grid, threadgroup;
  Order order;
  uint64_t seed;
  std::vector<Buffer> buffers;

  template <class T>
  Pointer<Buffer, T> device(size_t i) {
    return {&buffers[i], reinterpret_cast<T*>(buffers[i].bytes.get())};
  }
  template <class T>
  const T* constant(size_t i) const {
    return reinterpret_cast<const T*>(buffers[i].bytes.get());
  }
};

// The values of Metal's attributes for one thread.
struct Thread {
  uint3 threadgroup_position_in_grid, threadgroups_per_grid, thread_position_in_grid;
  uint thread_index_in_threadgroup, thread_index_in_simdgroup, simdgroup_index_in_threadgroup;
};

using Kernel = void (*)(Launch&, const Thread&);

struct Runner {
  static void run(Launch& launch, Kernel kernel) {
    uint3 size = launch.threadgroup, grid = launch.grid;
    if (grid.x % size.x || grid.y % size.y || grid.z % size.z)
      trap("a grid that is no multiple of its threadgroup", 0);
    uint3 groups = {grid.x / size.x, grid.y / size.y, grid.z / size.z};
    Threadgroup threadgroup;
    for (uint z = 0; z < groups.z; ++z)
      for (uint y = 0; y < groups.y; ++y)
        for (uint x = 0; x < groups.x; ++x) {
          for (Shared* array : Shared::arrays()) array->forget();
          auto body = [&](unsigned i) {
            uint3 at = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
            uint3 position = {x * size.x + at.x, y * size.y + at.y, z * size.z + at.z};
            kernel(launch, {{x, y, z}, groups, position, i, i % kLanes, i / kLanes});
          };
          threadgroup.run(size.x * size.y * size.z, launch.order, launch.seed++, body);
        }
  }

  static size_t shared_bytes() {
    size_t sum = 0;
    for (Shared* array : Shared::arrays()) sum += array->size;
    return sum;
  }
};

template <class T>
T receive() {
  T value;
  if (std::fread(&value, sizeof(T), 1, stdin) != 1) trap("the request is cut short", 0);
  return value;
}

inline void send(const void* data, size_t size) { std::fwrite(data, 1, size, stdout); }

inline int serve(const std::vector<Kernel>& kernels) {
  Kernel kernel = kernels.at(receive<uint32_t>());
  Launch launch;
  launch.grid = receive<uint3>();
  launch.threadgroup = receive<uint3>();
  launch.order = Order(receive<uint32_t>());
  launch.seed = receive<uint32_t>();
  auto count = receive<uint32_t>(), inputs = receive<uint32_t>();
  for (uint32_t i = 0; i < count; ++i) {
    auto size = receive<uint64_t>();
    launch.buffers.emplace_back(size);
    if (i < inputs && size && std::fread(launch.buffers[i].bytes.get(), size, 1, stdin) != 1)
      trap("the request is cut short", 0);
  }
  Runner::run(launch, kernel);
  uint64_t shared = Runner::shared_bytes();
  if (shared > kThreadgroupBytes) trap("more than 32 KB of threadgroup memory", 0);
  send(&shared, sizeof(shared));
  for (uint32_t i = 0; i < count; ++i) {
    Buffer& buffer = launch.buffers[i];
    if (i >= inputs) send(buffer.bytes.get(), buffer.writes.size());
    auto& counts = i < inputs ? buffer.reads : buffer.writes;
    send(counts.data(), counts.size() * sizeof(uint16_t));
  }
  return 0;
}

}  // namespace host
