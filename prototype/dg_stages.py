"""dg_stages.py: forms of deepgemm's combine and SwiGLU for many tokens, us alone with a cold L2, checked against torch.

T tokens, top 8 of 256 experts of which 32 are here, rows 128-padded by expert: as the layer has them."""
import statistics, sys
import torch, triton
import triton.language as tl

H, I, K = 7168, 2048, 8


@triton.jit
def combine_masked(y_ptr, weight_ptr, row_ptr, out_ptr, H: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < H
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(K):
        row, weight = tl.load(row_ptr + token * K + k), tl.load(weight_ptr + token * K + k)
        local = inside & (row >= 0)
        y = tl.load(y_ptr + row.to(tl.int64) * H + column, mask=local, other=0.0)
        total += tl.where(local, y.to(tl.float32) * weight, 0.0)
    tl.store(out_ptr + token.to(tl.int64) * H + column, total.to(tl.bfloat16), mask=inside)


@triton.jit
def combine_branch(y_ptr, weight_ptr, row_ptr, out_ptr, H: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < H
    slot = tl.arange(0, K)
    rows, weights = tl.load(row_ptr + token * K + slot), tl.load(weight_ptr + token * K + slot)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(K):
        row = tl.max(tl.where(slot == k, rows, -1), 0)
        if row >= 0:
            weight = tl.sum(tl.where(slot == k, weights, 0.0), 0)
            total += tl.load(y_ptr + row.to(tl.int64) * H + column, mask=inside, other=0.0).to(tl.float32) * weight
    tl.store(out_ptr + token.to(tl.int64) * H + column, total.to(tl.bfloat16), mask=inside)


@triton.jit
def swiglu_scan(g_ptr, h_ptr, scale_ptr, row_ptr, num_pairs, room, I: tl.constexpr, GROUPS: tl.constexpr, PAIRS: tl.constexpr, VECTOR: tl.constexpr):
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * 128 + tl.arange(0, 128)[None, :]
    slot = tl.arange(0, PAIRS)
    for first in range(tl.program_id(0) * PAIRS, num_pairs, tl.num_programs(0) * PAIRS):
        rows = tl.load(row_ptr + first + slot)
        for at in range(PAIRS):
            row = tl.max(tl.where(slot == at, rows, -1), 0) if VECTOR else tl.load(row_ptr + first + at)
            if row >= 0:
                g_row = g_ptr + row.to(tl.int64) * (2 * I)
                up, gate = tl.load(g_row + column).to(tl.float32), tl.load(g_row + I + column).to(tl.float32)
                h = gate / (1.0 + tl.exp(-gate)) * up
                amax = tl.max(tl.abs(h), 1)
                scale = tl.where(amax > 0, amax / 448.0, 1.0)
                tl.store(h_ptr + row.to(tl.int64) * I + column, (h / scale[:, None]).to(tl.float8e4nv))
                block = (row // room) * (I // 128) + group
                tl.store(scale_ptr + block.to(tl.int64) * room + row % room, scale)


def us(call, flush, rounds=15):
    found = []
    for _ in range(rounds):
        flush.zero_(); a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(100000); a.record(); call(); b.record(); b.synchronize(); found.append(a.elapsed_time(b) * 1e3)
    return statistics.median(found)


def main(counts):
    g, flush = torch.Generator("cuda").manual_seed(0), torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    for T in counts:
        expert = torch.rand(T, 256, generator=g, device="cuda").topk(K).indices
        row, first = torch.full((T, K), -1, dtype=torch.int32, device="cuda"), 0
        for e in range(32):
            where = (expert == e).nonzero(as_tuple=True)
            row[where] = torch.arange(first, first + len(where[0]), dtype=torch.int32, device="cuda"); first += -(-len(where[0]) // 128) * 128
        weight = torch.rand(T, K, generator=g, device="cuda")
        y, out = torch.randn(first, H, generator=g, device="cuda").bfloat16(), torch.empty(T, H, dtype=torch.bfloat16, device="cuda")
        want = sum(torch.where(row[:, k, None] >= 0, y[row[:, k].clamp(min=0).long()].float() * weight[:, k, None], 0.0) for k in range(K)).bfloat16()
        print(f"T={T}: {int((row >= 0).sum())} rows", flush=True)
        masked, branch = combine_masked, combine_branch
        for kernel, block, warps in ((masked, 512, 1), (masked, 1024, 1), (masked, 2048, 2), (masked, 2048, 4), (masked, 8192, 8), (branch, 1024, 1), (branch, 2048, 2), (branch, 2048, 4), (branch, 4096, 4), (branch, 8192, 8)):
            call = lambda: kernel[(T, -(-H // block))](y, weight, row, out, H=H, K=K, BLOCK=block, num_warps=warps)
            out.fill_(float("nan")); call()
            print(f"  {kernel.__name__ if hasattr(kernel, '__name__') else kernel.fn.__name__} {block} {warps}: {us(call, flush):.1f} us {'' if torch.equal(out, want) or (out - want).abs().max() < 0.05 else 'WRONG'}", flush=True)
        gates, h = torch.randn(first, 2 * I, generator=g, device="cuda").bfloat16(), torch.empty(first, I, dtype=torch.float8_e4m3fn, device="cuda")
        scale = torch.empty(I // 128, first, device="cuda")
        pairs = 8
        for vector, per_sm, groups, warps in ((False, 8, 8, 4), (False, 16, 8, 4), (True, 8, 8, 4), (True, 16, 8, 4), (True, 32, 8, 4), (True, 16, 16, 8), (True, 16, 8, 2)):
            grid = (min(T * K // pairs, per_sm * sms), I // (groups * 128))
            call = lambda: swiglu_scan[grid](gates, h, scale, row, T * K, first, I=I, GROUPS=groups, PAIRS=pairs, VECTOR=vector, num_warps=warps)
            call(); print(f"  swiglu vector={vector} {per_sm} a SM, {groups} groups, {warps} warps: {us(call, flush, 9):.1f} us", flush=True)


if __name__ == "__main__": main([int(t) for t in sys.argv[1:]] or [1500, 4096, 14107])
