// For mma_on_host.h, compiled with -fsanitize=thread: each CUDA thread is a thread to ThreadSanitizer, which then
// reports accesses to memory that no barrier, counter or mbarrier orders. Shuffles exchange values and order nothing.
#pragma once
#include <cstddef>

#ifdef __SANITIZE_THREAD__

extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void __tsan_write_range(void* address, unsigned long bytes);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}

// A function that touches no memory of the kernel's: to look at each of its accesses takes most of the time.
#define NOT_INSTRUMENTED __attribute__((no_sanitize_thread))
// What this thread reads and writes while such an object lives is the model's, not the kernel's.
struct Unseen {
  Unseen() { AnnotateIgnoreReadsBegin("", 0), AnnotateIgnoreWritesBegin("", 0); }
  ~Unseen() { AnnotateIgnoreWritesEnd("", 0), AnnotateIgnoreReadsEnd("", 0); }
  Unseen(const Unseen&) = delete;
};
// All that this thread has done is before what others do after they acquire.
inline void release(const void* address) { __tsan_release(const_cast<void*>(address)); }
inline void acquire(const void* address) { __tsan_acquire(const_cast<void*>(address)); }
// For writes that the compiler makes of memset, which it does not tell of.
inline void written(void* to, size_t bytes) { __tsan_write_range(to, bytes); }

#else

#define NOT_INSTRUMENTED
struct Unseen {
  Unseen() {}
  ~Unseen() {}
};
inline void release(const void*) {}
inline void acquire(const void*) {}
inline void written(void*, size_t) {}

#endif
