def wg(n):
    r = n // 2
    names = ", ".join(f"%{i}" for i in range(r))
    ops = ", ".join(f'"+f"(d[{i}])' for i in range(r))
    return f'''template <> struct W<{n}> {{ static __device__ __forceinline__ void mma(float (&d)[{r}], uint64_t a, uint64_t b, int acc) {{
  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{r+2}, 0;\\nwgmma.mma_async.sync.aligned.m64n{n}k32.f32.e4m3.e4m3 {{{names}}}, %{r}, %{r+1}, p, 1, 1;\\n}}\\n" : {ops} : "l"(a), "l"(b), "r"(acc)); }} }};'''
print("#pragma once\n#include <cstdint>\ntemplate <int N> struct W;")
for n in (64, 72, 80, 88, 96, 104, 128, 144, 208): print(wg(n))
