// pdl: programmatic dependent launch, from inside the kernels; launch.cuh launches them.
#pragma once

// A kernel may start as soon as all CTAs of the previous kernel in the stream have called pdl_launch_dependents() or
// ended. It must not touch what the previous kernel reads or writes before pdl_wait(), which waits for that kernel's
// end and flush. A kernel that calls pdl_launch_dependents() after its own pdl_wait() lets its successor start only
// when all earlier kernels are over.
__device__ __forceinline__ void pdl_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
