// A cluster of two CTAs on the host: threads as fibers, mbarriers, meetings of threads, asynchronous copies, and a
// record of who has touched which bytes of shared memory.
//
// The kernels are compiled with -fsanitize=thread, which calls __tsan_read4() and its like at each access; they are
// defined here instead of ThreadSanitizer, which knows of one proxy and of no copies. Every thread and every copy is an
// actor with two vector clocks: what happens before its next access, and how much of that the async proxy sees, which
// generic accesses enter by a proxy fence alone. An access is a race if it meets another one of the same bytes, one of
// them a write, that does not happen before it, whatever the order in this run. So one run finds a race whether or not
// it goes wrong in it; other seeds run the threads in other orders.
//
// Not modelled: global memory, PDL, counters between kernels; that a load is over when its value is used, not when it is
// issued (tests/kernels/test_released_in_flight.py looks for that in the machine code).
#include "hopper_machine.h"

#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace {

constexpr int kCtas = 2, kThreads = 384, kAgents = 6144;
constexpr int kGrain = 2;                            // bytes that share a record
constexpr int kExists = kSharedBytes / kGrain;       // the record of the CTA itself, which remote accesses need
constexpr size_t kStack = 128 << 10;

// ---- actors ----

int agents = 0;  // so far
unsigned now[kAgents];
std::string names[kAgents];
std::vector<int> free_agents;

struct Clocks {
  std::vector<unsigned> seen = std::vector<unsigned>(kAgents), fenced = std::vector<unsigned>(kAgents);
  void join(const Clocks& other) {
    for (int i = 0; i < agents; i++) {
      seen[i] = std::max(seen[i], other.seen[i]);
      fenced[i] = std::max(fenced[i], other.fenced[i]);
    }
  }
};

struct Actor {
  int agent = -1;
  Clocks clocks;
  void tick() { clocks.seen[agent] = ++now[agent]; }
};

int new_agent(const std::string& name, const Clocks* parent) {
  for (size_t i = 0; parent && i < free_agents.size(); i++) {
    const int agent = free_agents[i];
    if (parent->seen[agent] < now[agent]) continue;
    free_agents.erase(free_agents.begin() + i);  // who happens after an agent's last access may take its number
    names[agent] = name;
    return agent;
  }
  if (agents == kAgents) fault("too many copies in flight");
  names[agents] = name;
  return agents++;
}

// A copy that `parent` starts: all that it has done is before it.
Actor started_by(Actor& parent, const char* what) {
  Actor copy;
  copy.agent = new_agent(what + (" of " + names[parent.agent]), &parent.clocks);
  copy.clocks = parent.clocks;
  copy.tick();
  parent.tick();
  return copy;
}

// ---- threads ----

struct Meeting {
  int arrived = 0;
  Clocks clocks;
};
struct Thread {
  Actor actor;
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  std::function<bool()> wanted;  // what the thread waits for
  bool done = false;
  Actor copies;                                // its cp.asyncs, until they arrive at a barrier
  std::vector<std::shared_ptr<Actor>> stores;  // bulk stores that may still read
};
struct Warp {
  std::vector<std::shared_ptr<Actor>> products;  // that may still read
  int joined = 0;                                // lanes
};
struct Cta {
  std::vector<Thread> threads = std::vector<Thread>(kThreads);
  std::vector<Warp> warps = std::vector<Warp>(kThreads / kLanes);
  std::map<int, std::shared_ptr<Meeting>> meetings;
  Clocks ended;
  int running = kThreads;
  uint8_t* memory = nullptr;
};
Cta cluster[kCtas];
std::map<int, std::shared_ptr<Meeting>> cluster_meetings;
ucontext_t scheduler;
std::function<void()> kernel;
std::mt19937 order;
std::string left_out;
std::set<std::string> places;

Cta& cta() { return cluster[blockIdx.x]; }
Thread& thread() { return cta().threads[threadIdx.x]; }

void wait_until(std::function<bool()> wanted) {
  if (wanted()) return;
  thread().wanted = std::move(wanted);
  swapcontext(&thread().context, &scheduler);
}

// ---- memory ----

struct Access {
  int agent = -1;
  unsigned when = 0;
  bool generic = false;
};
struct Record {
  Access written;
  std::vector<Access> read;  // since then, the last one of each actor
};
std::vector<Record> records[kCtas];

std::string place_of(int cta, int record) {
  if (record == kExists) return "CTA " + std::to_string(cta);
  return "byte " + std::to_string(record * kGrain) + " of CTA " + std::to_string(cta);
}

void check(const Actor& actor, const Access& before, const char* verb, int cta, int record, bool async_proxy) {
  if (before.agent < 0 || before.agent == actor.agent) return;
  const bool ordered = actor.clocks.seen[before.agent] >= before.when;
  const bool needs_fence = async_proxy && before.generic;
  if (ordered && (!needs_fence || actor.clocks.fenced[before.agent] >= before.when)) return;
  fault((ordered ? "no proxy fence: " : "race: ") + names[actor.agent] + " " + verb + " " + place_of(cta, record) +
        " after " + names[before.agent]);
}

void read_record(const Actor& actor, int cta, int record, bool async_proxy) {
  Record& at = records[cta][record];
  check(actor, at.written, "reads", cta, record, async_proxy);
  const Access access = {actor.agent, actor.clocks.seen[actor.agent], !async_proxy};
  for (Access& read : at.read) {
    if (read.agent == actor.agent) {
      read = access;
      return;
    }
  }
  at.read.push_back(access);
}

void write_record(const Actor& actor, int cta, int record, bool async_proxy) {
  Record& at = records[cta][record];
  check(actor, at.written, "overwrites", cta, record, async_proxy);
  for (const Access& read : at.read) check(actor, read, "overwrites what is read:", cta, record, async_proxy);
  at.written = {actor.agent, actor.clocks.seen[actor.agent], !async_proxy};
  at.read.clear();
}

template <class Touch>
void for_records(int offset, int bytes, Touch touch) {
  for (int record = offset / kGrain; record <= (offset + bytes - 1) / kGrain; record++) touch(record);
}

// An access by the kernel itself, of any memory; global memory is not looked at.
void accessed(const void* address, int bytes, bool writes) {
  if (!cta().memory) return;
  const ptrdiff_t offset = static_cast<const uint8_t*>(address) - cta().memory;
  if (offset < 0 || offset >= kSharedBytes) return;
  for_records(offset, bytes, [&](int record) {
    if (writes) write_record(thread().actor, blockIdx.x, record, false);
    else read_record(thread().actor, blockIdx.x, record, false);
  });
}

// ---- mbarriers ----

struct MBarrier {
  int arrivals, pending, bytes = 0;
  unsigned phase = 0;
  Clocks signals, ended;  // of this phase, of the one before
};
std::map<std::pair<int, int>, MBarrier> mbarriers;  // by CTA and offset

MBarrier& mbarrier(const Actor& actor, const uint64_t* bar, int cta, bool async_proxy) {
  const int offset = smem_addr(bar);
  check(actor, records[cta][offset / kGrain].written, "uses the mbarrier at", cta, offset / kGrain, async_proxy);
  const auto at = mbarriers.find({cta, offset});
  if (at == mbarriers.end()) fault("an mbarrier is used before it is initialised");
  return at->second;
}

void signal(const Actor& actor, MBarrier& barrier, int arrivals, int bytes) {
  barrier.signals.join(actor.clocks);
  barrier.pending -= arrivals;
  barrier.bytes += bytes;
  if (barrier.pending < 0) fault(names[actor.agent] + " arrives once too often");
  if (barrier.pending > 0 || barrier.bytes != 0) return;
  barrier.phase++;
  barrier.pending = barrier.arrivals;
  barrier.ended = barrier.signals;
  barrier.signals = Clocks();
}

void over(Actor& copy) { free_agents.push_back(copy.agent); }

// ---- scheduler ----

void thread_main() {
  kernel();
  Thread& self = thread();
  cta().ended.join(self.actor.clocks);
  self.done = true;
  if (--cta().running == 0) {
    Actor end;
    end.agent = self.actor.agent;
    end.clocks = cta().ended;
    write_record(end, blockIdx.x, kExists, false);
  }
  swapcontext(&self.context, &scheduler);
}

// Runs each thread that can go on, in some order. Whether there was one.
bool run_all_once(std::vector<int>& numbers) {
  bool any = false;
  std::shuffle(numbers.begin(), numbers.end(), order);
  for (const int number : numbers) {
    blockIdx.x = number / kThreads;
    threadIdx.x = number % kThreads;
    Thread& next = thread();
    if (next.done || (next.wanted && !next.wanted())) continue;
    next.wanted = nullptr;
    any = true;
    swapcontext(&scheduler, &next.context);
  }
  return any;
}

}  // namespace

Index threadIdx, blockIdx, gridDim;

void fault(const std::string& text) {
  printf("%s\n", text.c_str());
  fflush(stdout);
  _Exit(1);
}

void run_cluster(std::function<void()> body, unsigned seed, const char* without) {
  kernel = std::move(body);
  order.seed(seed);
  left_out = without;
  gridDim.x = kCtas;
  std::vector<int> numbers;
  for (int number = 0; number < kCtas * kThreads; number++) {
    blockIdx.x = number / kThreads;
    threadIdx.x = number % kThreads;
    Thread& next = thread();
    next.actor.agent =
        new_agent("thread " + std::to_string(threadIdx.x) + " of CTA " + std::to_string(blockIdx.x), nullptr);
    next.actor.tick();
    next.stack.reset(new char[kStack]);
    getcontext(&next.context);
    next.context.uc_stack.ss_sp = next.stack.get();
    next.context.uc_stack.ss_size = kStack;
    makecontext(&next.context, thread_main, 0);
    numbers.push_back(number);
  }
  for (int c = 0; c < kCtas; c++) {
    cluster[c].memory = static_cast<uint8_t*>(aligned_alloc(1024, kSharedBytes));
    memset(cluster[c].memory, 0, kSharedBytes);
    records[c].resize(kExists + 1);
  }

  while (run_all_once(numbers)) {
  }
  for (Cta& each : cluster)
    if (each.running > 0) fault("deadlock");
  for (const std::string& place : places) printf("%s\n", place.c_str());
}

// ---- what kernels call ----

bool synchronises(const char* function, Place place) {
  const char* name = strrchr(place.file, '/');
  std::string text = name ? name + 1 : place.file;
  text += ":" + std::to_string(place.line) + " " + function;
  places.insert(text);
  return text != left_out;
}

uint8_t* shared_memory() { return cta().memory; }

void meet(int id, int threads, bool orders) {
  auto& meetings = id == kCluster ? cluster_meetings : cta().meetings;
  std::shared_ptr<Meeting>& current = meetings[id];
  if (!current) current = std::make_shared<Meeting>();
  const std::shared_ptr<Meeting> meeting = current;
  Actor& actor = thread().actor;
  if (orders) {
    meeting->clocks.join(actor.clocks);
    actor.tick();
  }
  if (++meeting->arrived == threads) current = nullptr;
  wait_until([meeting, threads] { return meeting->arrived == threads; });
  if (orders) actor.clocks.join(meeting->clocks);
}

void mbar_start(uint64_t* bar, int arrivals) {
  for_records(smem_addr(bar), 8, [](int record) { write_record(thread().actor, blockIdx.x, record, false); });
  MBarrier& barrier = mbarriers[{blockIdx.x, smem_addr(bar)}];
  barrier.arrivals = barrier.pending = arrivals;
}

void mbar_signal(uint64_t* bar, int cta, int arrivals, int bytes) {
  Actor& actor = thread().actor;
  read_record(actor, cta, kExists, false);
  MBarrier& barrier = mbarrier(actor, bar, cta, false);
  if (arrivals == 0) {
    barrier.bytes += bytes;  // relaxed: it releases nothing
    return;
  }
  signal(actor, barrier, arrivals, bytes);
  actor.tick();
}

void mbar_await(uint64_t* bar, int phase) {
  MBarrier& barrier = mbarrier(thread().actor, bar, blockIdx.x, false);
  wait_until([&barrier, phase] { return (int)(barrier.phase % 2) != phase; });
  thread().actor.clocks.join(barrier.ended);
}

void fence_proxy() {
  Clocks& clocks = thread().actor.clocks;
  for (int i = 0; i < agents; i++) clocks.fenced[i] = std::max(clocks.fenced[i], clocks.seen[i]);
}

void copy_to_shared(void* to, int bytes, uint64_t* bar, unsigned ctas, bool async_proxy) {
  Actor copy = started_by(thread().actor, "copy");
  const int offset = smem_addr(to);
  for (int c = 0; c < kCtas; c++) {
    if (!(ctas >> c & 1)) continue;
    read_record(copy, c, kExists, false);
    for_records(offset, bytes, [&](int record) { write_record(copy, c, record, async_proxy); });
  }
  for (int c = 0; c < kCtas; c++) {
    if (ctas >> c & 1) signal(copy, mbarrier(copy, bar, c, async_proxy), 0, -bytes);
  }
  over(copy);
}

void store_in_cluster(int* word, int value, uint64_t* bar, int cta) {
  memcpy(cluster[cta].memory + smem_addr(word), &value, sizeof(value));
  copy_to_shared(word, sizeof(value), bar, 1u << cta, false);
}

void copy_of_thread(void* to, int bytes) {
  Thread& self = thread();
  if (self.copies.agent < 0) self.copies = started_by(self.actor, "cp.async");
  for_records(smem_addr(to), bytes, [&](int record) { write_record(self.copies, blockIdx.x, record, false); });
}

void arrive_after_copies(uint64_t* bar) {
  Thread& self = thread();
  if (self.copies.agent < 0) self.copies = started_by(self.actor, "cp.async");
  signal(self.copies, mbarrier(self.copies, bar, blockIdx.x, false), 1, 0);
  over(self.copies);
  self.copies = Actor();
}

void read_shared(const void* from, int bytes, bool by_product) {
  auto reader = std::make_shared<Actor>(started_by(thread().actor, by_product ? "wgmma" : "bulk store"));
  read_record(*reader, blockIdx.x, kExists, false);
  for_records(smem_addr(from), bytes, [&](int record) { read_record(*reader, blockIdx.x, record, true); });
  auto& readers = by_product ? cta().warps[threadIdx.x / kLanes].products : thread().stores;
  readers.push_back(reader);
}

void await_stores(int pending) {
  auto& stores = thread().stores;
  while ((int)stores.size() > pending) {
    thread().actor.clocks.join(stores.front()->clocks);
    over(*stores.front());
    stores.erase(stores.begin());
  }
}

void await_products() {
  Warp& warp = cta().warps[threadIdx.x / kLanes];
  converge();  // the products are there
  for (const auto& product : warp.products) thread().actor.clocks.join(product->clocks);
  if (++warp.joined == kLanes) {
    for (const auto& product : warp.products) over(*product);
    warp.products.clear();
    warp.joined = 0;
  }
  converge();  // all lanes have joined
}

// ---- what the compiler calls ----

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
#define ACCESS(BYTES)                                                       \
  void __tsan_read##BYTES(void* at) { accessed(at, BYTES, false); }         \
  void __tsan_write##BYTES(void* at) { accessed(at, BYTES, true); }         \
  void __tsan_unaligned_read##BYTES(void* at) { accessed(at, BYTES, false); } \
  void __tsan_unaligned_write##BYTES(void* at) { accessed(at, BYTES, true); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(void* at, size_t bytes) { accessed(at, bytes, false); }
void __tsan_write_range(void* at, size_t bytes) { accessed(at, bytes, true); }
}
