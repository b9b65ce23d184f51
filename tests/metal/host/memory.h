// Device memory that counts what is read and written, and threadgroup memory that knows who
// touched it last and traps on a race, whatever the order the threads ran in.
#pragma once

#include <type_traits>

#include "fibers.h"

namespace host {

constexpr size_t kThreadgroupBytes = 32 << 10;

// A buffer of device memory, of its exact size so that AddressSanitizer sees every step outside.
struct Buffer {
  explicit Buffer(size_t size) : bytes(new unsigned char[size]), reads(size), writes(size) {}

  std::unique_ptr<unsigned char[]> bytes;
  std::vector<uint16_t> reads, writes;  // of each byte

  void read(const void* at, size_t size) { count(reads, at, size); }
  void write(const void* at, size_t size) { count(writes, at, size); }

 private:
  void count(std::vector<uint16_t>& counts, const void* at, size_t size) {
    size_t offset = static_cast<const unsigned char*>(at) - bytes.get();
    for (size_t i = offset; i < offset + size && i < counts.size(); ++i) ++counts[i];
  }
};

// An array of threadgroup memory. Reads and writes of two threads must have a barrier between.
struct Shared {
  Shared(unsigned char* bytes, size_t size) : bytes(bytes), size(size), touched(size) {
    arrays().push_back(this);
  }
  Shared(const Shared&) = delete;

  void read(const void* at, size_t) {
    Touched& cell = touched[offset(at)];
    Moment now = Threadgroup::active->self().now;
    if (!cell.written.happened()) trap("threadgroup memory read before it is written", now.thread);
    if (!cell.written.before(now)) trap("a race: read of another thread's write", now.thread);
    if (cell.read.thread != now.thread) cell.read_before = cell.read;
    cell.read = now;
  }

  void write(const void* at, size_t) {
    Touched& cell = touched[offset(at)];
    Moment now = Threadgroup::active->self().now;
    if (raced(cell.written, now)) trap("a race: two threads write", now.thread);
    if (raced(cell.read, now) || raced(cell.read_before, now))
      trap("a race: write under another thread's read", now.thread);
    cell = {.written = now};
  }

  // Every threadgroup finds what Metal promises: nothing.
  void forget() {
    std::memset(bytes, 0xff, size);
    std::fill(touched.begin(), touched.end(), Touched{});
  }

  static std::vector<Shared*>& arrays() {
    static std::vector<Shared*> all;
    return all;
  }

 private:
  struct Touched {
    Moment written, read, read_before;
  };

  static bool raced(const Moment& then, const Moment& now) {
    return then.happened() && !then.before(now);
  }
  size_t offset(const void* at) const { return static_cast<const unsigned char*>(at) - bytes; }

  unsigned char* bytes;
  size_t size;
  std::vector<Touched> touched;  // by the first byte of each number
  friend struct Runner;
};

template <class Space, class T>
struct Pointer;

template <class Space, class T>
class Reference {
 public:
  explicit Reference(Pointer<Space, T> to) : to_(to) {}
  operator T() const { return to_.load(); }
  Reference& operator=(T value) {
    to_.space->write(to_.at, sizeof(T));
    *to_.at = value;
    return *this;
  }
  Reference& operator=(const Reference& other) { return *this = T(other); }
  Reference& operator+=(T value) { return *this = T(*this) + value; }
  Reference& operator|=(T value) { return *this = T(*this) | value; }

 private:
  Pointer<Space, T> to_;
};

template <class Space, class T>
struct Pointer {
  Space* space;
  T* at;

  Pointer(Space* space, T* at) : space(space), at(at) {}
  // Adding const is implicit, every other change of type a cast.
  template <class U>
  explicit(!std::is_same_v<const U, T>) Pointer(Pointer<Space, U> other)
      : space(other.space), at((T*)other.at) {}

  std::remove_const_t<T> load() const {
    space->read(at, sizeof(T));
    return *at;
  }
  auto operator*() const {
    if constexpr (std::is_const_v<T>) return load();
    else return Reference<Space, T>(*this);
  }
  auto operator[](int64_t i) const { return *(*this + i); }
  Pointer operator+(int64_t i) const { return Pointer(space, at + i); }
  Pointer& operator+=(int64_t i) {
    at += i;
    return *this;
  }
};

template <class T, size_t N>
struct SharedArray {
  alignas(16) T numbers[N];
  Shared space{reinterpret_cast<unsigned char*>(numbers), sizeof(numbers)};

  operator Pointer<Shared, T>() { return {&space, numbers}; }
  operator Pointer<Shared, const T>() { return {&space, numbers}; }
  auto operator[](int64_t i) {
    if (i < 0 || size_t(i) >= N) trap("outside of threadgroup memory", unsigned(i));
    return Pointer<Shared, T>(&space, numbers)[i];
  }
  Pointer<Shared, T> operator+(int64_t i) { return {&space, numbers + i}; }
};

}  // namespace host

template <class T>
using DevicePointer = host::Pointer<host::Buffer, T>;
template <class T>
using SharedPointer = host::Pointer<host::Shared, T>;
