// The threads of one threadgroup as fibers: each runs until it meets a barrier or a simdgroup
// operation, and goes on when all threads that must meet there have arrived.
#pragma once

#include <sanitizer/common_interface_defs.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

namespace host {

constexpr unsigned kLanes = 32;
constexpr unsigned kMaxThreads = 1024;
constexpr size_t kStack = 256 << 10;

[[noreturn]] inline void trap(const char* what, unsigned thread) {
  std::fprintf(stderr, "trap: %s (thread %u)\n", what, thread);
  std::fflush(stderr);
  std::_Exit(86);
}

enum class Meeting { none, simdgroup, threadgroup, end };
enum class Order { forward, reversed, shuffled };

// When something happened, for telling whether two accesses of threadgroup memory are ordered.
struct Moment {
  unsigned thread = ~0u;
  unsigned group_epoch = 0;
  unsigned simd_epoch = 0;

  bool happened() const { return thread != ~0u; }
  bool before(const Moment& now) const {
    return thread == now.thread || group_epoch != now.group_epoch ||
        (thread / kLanes == now.thread / kLanes && simd_epoch != now.simd_epoch);
  }
};

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStack]};
  void* fake_stack = nullptr;
  Meeting meets = Meeting::none;
  int line = 0;
  Moment now;
  unsigned exchanges = 0;
  // Two places in turn: a lane is at most one exchange ahead of the slowest.
  alignas(16) unsigned char offered[2][16];
};

class Threadgroup {
 public:
  void run(unsigned threads, Order order, uint64_t seed, const std::function<void(unsigned)>& body) {
    if (threads > kMaxThreads) trap("more than 1024 threads in a threadgroup", threads);
    if (threads % kLanes) trap("a threadgroup that is no multiple of 32 threads", threads);
    while (fibers_.size() < threads) fibers_.push_back(std::make_unique<Fiber>());
    body_ = &body;
    threads_ = threads;
    for (unsigned i = 0; i < threads; ++i) start(i);
    std::vector<unsigned> turn(threads);
    std::iota(turn.begin(), turn.end(), 0);
    if (order == Order::reversed) std::reverse(turn.begin(), turn.end());
    std::mt19937_64 random(seed);
    do {
      if (order == Order::shuffled) std::shuffle(turn.begin(), turn.end(), random);
      for (unsigned i : turn) resume(i);
    } while (release());
    active = nullptr;
  }

  // Wait until all threads that share a simdgroup, or the threadgroup, stand at the same line.
  void meet(Meeting meeting, int line) {
    Fiber& self = *fibers_[current_];
    self.meets = meeting;
    self.line = line;
    leave(self);
  }

  Fiber& self() { return *fibers_[current_]; }
  Fiber& lane(unsigned lane) { return *fibers_[current_ / kLanes * kLanes + lane]; }

  static Threadgroup* active;

 private:
  void start(unsigned i) {
    Fiber& fiber = *fibers_[i];
    fiber.meets = Meeting::none;
    fiber.now = {i, 0, 0};
    fiber.exchanges = 0;
    getcontext(&fiber.context);
    fiber.context.uc_stack = {fiber.stack.get(), 0, kStack};
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &Threadgroup::enter, 0);
  }

  static void enter() {
    Threadgroup& group = *active;
    __sanitizer_finish_switch_fiber(nullptr, &group.main_bottom_, &group.main_size_);
    (*group.body_)(group.current_);
    Fiber& self = group.self();
    self.meets = Meeting::end;
    __sanitizer_start_switch_fiber(nullptr, group.main_bottom_, group.main_size_);
    swapcontext(&self.context, &group.main_);
  }

  void leave(Fiber& self) {
    __sanitizer_start_switch_fiber(&self.fake_stack, main_bottom_, main_size_);
    swapcontext(&self.context, &main_);
    __sanitizer_finish_switch_fiber(self.fake_stack, &main_bottom_, &main_size_);
  }

  void resume(unsigned i) {
    Fiber& fiber = *fibers_[i];
    if (fiber.meets != Meeting::none) return;
    active = this;
    current_ = i;
    void* fake_stack;
    __sanitizer_start_switch_fiber(&fake_stack, fiber.stack.get(), kStack);
    swapcontext(&main_, &fiber.context);
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
  }

  // Let go those who are all met. False when every thread has ended; traps when none can go on.
  bool release() {
    bool released = false;
    for (unsigned i = 0; i < threads_; i += kLanes)
      released |= let_go(i, kLanes, Meeting::simdgroup);
    if (released) return true;
    if (let_go(0, threads_, Meeting::threadgroup)) return true;
    for (unsigned i = 0; i < threads_; ++i)
      if (fibers_[i]->meets != Meeting::end) trap("a barrier not reached by all threads", i);
    return false;
  }

  bool let_go(unsigned first, unsigned count, Meeting meeting) {
    Fiber& leader = *fibers_[first];
    for (unsigned i = first; i < first + count; ++i)
      if (fibers_[i]->meets != meeting || fibers_[i]->line != leader.line) return false;
    for (unsigned i = first; i < first + count; ++i) fibers_[i]->meets = Meeting::none;
    return true;
  }

  std::vector<std::unique_ptr<Fiber>> fibers_;
  const std::function<void(unsigned)>* body_ = nullptr;
  unsigned threads_ = 0, current_ = 0;
  ucontext_t main_;
  const void* main_bottom_ = nullptr;
  size_t main_size_ = 0;
};

inline Threadgroup* Threadgroup::active = nullptr;

}  // namespace host
