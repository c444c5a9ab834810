"""hopper_fused's two grouped GEMMs as a model: who touches which bytes of shared memory, and what
orders it.

Both CTAs of one cluster, for a list of tiles. A model thread is a warp, whose lanes __syncwarp()
orders; of gemm2's loading warp the first lane and the others are two. wgmma, TMA, bulk copies,
cp.async and st.async are operations beside the threads. Bytes are those of GemmSmem, in words of
four. Each step names the function that it follows, and SYNC holds the order of its waits and
arrivals in the sources. What is not modelled: global memory, the initialisation of barriers, PDL,
and how far a release by mbarrier.arrive reaches: it orders what the thread did before, for the
cluster.
"""

from dataclasses import dataclass

import numpy as np
from happens_before import Barrier, Fault, Machine

CTAS, WARPS = 2, 8  # of a cluster; consumer warps of a CTA
W_TILE, A_TILE = 256 * 128, 128 * 128  # bytes of a tile's weights and rows in a stage
W_SCALE_BLOCKS = 4

# What a step of the model leaves out to show that it is needed; see `gone`.
OF_BOTH = ("producer waits for empty", "consumers wait for full", "release after the last wgmma")
OF_BOTH += ("release to both CTAs", "scales are used before the release", "CTAs end together")
OF_BOTH += ("producer: proxy fence",)
OF_GEMM1 = (
    "a: proxy fence",
    "a counts at full",
    "d is read before it is overwritten",
    "d: proxy fence",
)
OF_GEMM1 += ("normal: d is free", "normal: d is complete")
SWAP_AB = (
    "d is free",
    "maxima are complete",
    "inverses are complete",
    "inverses are read",
    "d is complete",
)
OF_GEMM1 += tuple(f"swap-AB: {step}" for step in SWAP_AB)
OF_GEMM2 = (
    "tile_full is waited for",
    "a tile's entry has several buffers",
    "d is free",
    "d is complete",
)
MUTATIONS = {"gemm1": OF_BOTH + OF_GEMM1, "gemm2": OF_BOTH + OF_GEMM2}
# file:function -> synchronisation, copies and products, in the order of the source
SYNC = {
    "grouped_gemm.cuh:cluster_consumer_release": "release_stage_to_cluster",
    "grouped_gemm1.cu:load_gemm1": "fence_proxy_async_global mbar_wait fence_proxy_async_shared "
    "mbar_arrive_expect_tx tma_load_5d_multicast tma_load_5d bulk_load __syncwarp "
    "cp_async_w_scales cp_async_16 cp_async_mbar_arrive",
    "grouped_gemm1.cu:grouped_gemm1": "pdl_wait __syncwarp cluster_sync",
    "gemm1_tile.cuh:gemm1_normal": "bulk_wait_read named_barrier_sync fence_proxy_async_shared named_barrier_sync "
    "bulk_store bulk_commit",
    "gemm1_tile.cuh:swiglu_quant_swap_ab": "bulk_wait_read named_barrier_sync named_barrier_sync named_barrier_sync "
    "named_barrier_sync fence_proxy_async_shared named_barrier_sync bulk_store bulk_commit",
    "normal_mainloop.cuh:normal_mainloop": "mbar_wait fence_proxy_async_shared normal_issue normal_wait normal_issue "
    "normal_wait cluster_consumer_release mbar_wait fence_proxy_async_shared",
    "swap_ab_mainloop.cuh:swap_ab_mainloop": "mbar_wait fence_proxy_async_shared warpgroup_arrive mma_k_block "
    "warpgroup_commit_batch warpgroup_wait cluster_consumer_release",
    "tile_scheduler.cuh:get_tile": "mbar_wait",
    "tile_scheduler.cuh:publish": "mbar_arrive_expect_tx st_async_cluster st_async_cluster",
    "grouped_gemm2.cu:load_gemm2": "mbar_expect_tx tma_load_2d_multicast tma_load_2d load_weights pdl_wait "
    "counter_wait fence_proxy_async_global mbar_wait fence_proxy_async_shared load_weights "
    "mbar_arrive_expect_tx bulk_load bulk_load publish __syncwarp",
    "grouped_gemm2.cu:grouped_gemm2": "pdl_wait pdl_wait __syncwarp cluster_sync",
    "gemm2_tile.cuh:gemm2_normal": "named_barrier_sync stmatrix named_barrier_sync store_rows",
    "gemm2_tile.cuh:store_swap_ab": "named_barrier_sync stmatrix named_barrier_sync store_rows",
}


@dataclass
class Tile:
    """What a cluster computes at a time: rows of the tile of each CTA, and whether they have one
    n_block.
    """

    m_rows: tuple[int, int]
    multicast_w: bool


class Cluster:
    """Shared memory and barriers of two CTAs; sets of words by key."""

    def __init__(self, gemm, h_split, tiles, k_blocks, seed, without):
        self.gemm, self.tiles, self.k_blocks = gemm, tiles, k_blocks
        self.parts = 1 if gemm == "gemm1" else h_split  # x has one part
        self.h_split = h_split
        self.stages = 4 if self.parts == 1 else 3  # grouped_gemm.cuh:GemmSmem
        self.entries = 4 if k_blocks > 1 else 8  # tile_scheduler.cuh:kSchedulerStages
        self.without = without
        parts = {
            "w": (self.stages, W_TILE),
            "a": (self.stages * self.parts, A_TILE),
            "d": (2, A_TILE),
            "a_scale": (self.stages, 4 * 128),
            "w_scale": (self.stages, 4 * 2 * W_SCALE_BLOCKS),
            "tile_entry": (self.entries, 8),
            "exists": (1, 4),  # not in memory: the CTA itself, which remote accesses need
        }
        self.begin, end = {}, 0
        for name, (count, size) in parts.items():
            self.begin[name] = end, size
            end += count * size // 4
        self.cta_words = end
        self.machine = Machine(CTAS * end, seed)
        full_arrivals = 1 + 128 if gemm == "gemm1" else 1  # init_gemm
        both = range(CTAS)
        self.full = [[Barrier(full_arrivals) for _ in range(self.stages)] for _ in both]
        self.empty = [[Barrier(CTAS * WARPS) for _ in range(self.stages)] for _ in both]
        self.tile_full = [[Barrier(1) for _ in range(self.entries)] for _ in both]

    def gone(self, what):
        """Whether this step is left out."""
        assert what in MUTATIONS[self.gemm], what
        return what == self.without

    def at(self, cta, member, number, byte_offsets):
        """Key of a set of words: byte_offsets (first, end) or an array of them, in array `number`
        of a member.
        """
        begin, size = self.begin[member]
        if isinstance(byte_offsets, tuple):
            key = cta, member, number, byte_offsets
            words = np.arange(byte_offsets[0] // 4, byte_offsets[1] // 4)
        else:
            key = cta, member, number, byte_offsets.tobytes()
            words = np.unique(byte_offsets // 4)
        assert words.size and words.max() < size // 4 * (2 if member == "d" else 1), (
            member,
            number,
        )
        self.machine.words.setdefault(
            key, cta * self.cta_words + begin + number * size // 4 + words
        )
        return key


class Pipe:
    """pipeline.cuh:PipelineState."""

    def __init__(self, stages):
        self.stages, self.stage, self.phase = stages, 0, 0

    def advance(self):
        self.stage += 1
        if self.stage == self.stages:
            self.stage, self.phase = 0, self.phase ^ 1


def swizzled(row, byte):
    """wgmma.cuh:swizzle_128b in atoms of 8 rows."""
    return row // 8 * 1024 + row % 8 * 128 + ((byte // 16 ^ row % 8) * 16) + byte % 16


# ---- copies ----


def copy(c, actor, name, keys, barriers, count):
    """TMA or bulk copy by the async proxy: writes the keys and counts `count` bytes at each
    barrier.
    """

    def act(operation):
        for key in keys:
            c.machine.write(operation, key, async_proxy=True)
        for barrier in barriers:
            c.machine.complete(operation, barrier, count)

    c.machine.start(actor, name, act)


def load_weights(c, actor, cta, tile, stage):
    """grouped_gemm1.cu:load_gemm1 and the lambda in grouped_gemm2.cu:load_gemm2, without what they
    expect.
    """
    if tile.multicast_w:  # half of the weights, to both CTAs
        half = (cta * W_TILE // 2, (cta + 1) * W_TILE // 2)
        keys = [c.at(to, "w", stage, half) for to in range(CTAS)]
        keys.append(c.at(1 - cta, "exists", 0, (0, 4)))
        copy_multicast(c, actor, keys, [c.full[to][stage] for to in range(CTAS)])
        return
    for half in range(2):
        key = c.at(cta, "w", stage, (half * W_TILE // 2, (half + 1) * W_TILE // 2))
        copy(c, actor, "TMA of weights", [key], [c.full[cta][stage]], W_TILE // 2)


def copy_multicast(c, actor, keys, barriers):
    def act(operation):
        for key in keys[:-1]:
            c.machine.write(operation, key, async_proxy=True)
        c.machine.read(operation, keys[-1])
        for barrier in barriers:
            c.machine.complete(operation, barrier, W_TILE // 2)

    c.machine.start(actor, "multicast TMA of weights", act)


# ---- consumers, main loops ----


def release(c, actor, cta, stage):
    """grouped_gemm.cuh:cluster_consumer_release: cluster.cuh:release_stage_to_cluster."""
    for to in range(CTAS):
        if to != cta and c.gone("release to both CTAs"):
            continue
        if to != cta:
            c.machine.read(actor, c.at(to, "exists", 0, (0, 4)))
        c.machine.arrive(actor, c.empty[to][stage])


def wgmma(c, actor, cta, stage, weights, rows):
    """wgmmas of one batch: they read while the warp goes on. weights, rows: bytes in the stage."""
    keys = [c.at(cta, "w", stage, weights)]
    keys += [c.at(cta, "a", stage * c.parts + part, rows) for part in range(c.parts)]

    def act(operation):
        for key in keys:
            c.machine.read(operation, key, async_proxy=True)

    return c.machine.start(actor, "wgmma", act)


def read_scales(c, actor, cta, stage, floats, k):
    keys = [c.at(cta, "a_scale", stage, floats)]
    if c.gemm == "gemm1":  # of both halves of W13
        at = 4 * (k % W_SCALE_BLOCKS)
        keys += [
            c.at(cta, "w_scale", stage, (half * 16 + at, half * 16 + at + 4)) for half in range(2)
        ]
    for key in keys:
        c.machine.read(actor, key)
    return keys


def use_scales(c, actor, keys):
    """A load is over when its value is used, not when it is issued:
    barrier.cuh, release.
    """
    for key in keys:
        c.machine.read(actor, key)


def fence_scales(c, actor):
    """A stage's scales are read by the generic proxy and written by the async proxy."""
    if not c.gone("producer: proxy fence"):
        c.machine.fence_proxy(actor)


def wait_full(c, cta, pipe):
    if not c.gone("consumers wait for full"):
        yield c.machine.passed(c.full[cta][pipe.stage], pipe.phase)


def fence_a(c, actor):
    """Rows of gemm1 arrive by cp.async, which is not in the async proxy."""
    if c.gemm == "gemm1" and not c.gone("a: proxy fence"):
        c.machine.fence_proxy(actor)


def multiply(c, actor, cta, stage, operands, scales):
    """A K block: two products, (weights, rows) each, and the release. scales() is called behind the
    first's issue.
    """
    for nth, (weights, rows) in enumerate(operands):
        issued = wgmma(c, actor, cta, stage, weights, rows)
        if nth == 0:
            found = scales()
        if nth == 1 and c.gone("release after the last wgmma"):
            release(c, actor, cta, stage)
        yield issued
        if nth == 0 and not c.gone("scales are used before the release"):
            use_scales(c, actor, found)
    if not c.gone("release after the last wgmma"):
        release(c, actor, cta, stage)
    if c.gone("scales are used before the release"):
        yield None
        use_scales(c, actor, found)


def normal_mainloop(c, actor, cta, warp, pipe):
    """normal_mainloop.cuh:normal_mainloop; read() is gemm1_tile.cuh:gemm1_normal_mainloop's or
    gemm2_tile.cuh's.
    """
    group = warp // 4
    floats = (4 * (group * 64 + warp % 4 * 16), 4 * (group * 64 + warp % 4 * 16 + 16))
    rows = (group * 64 * 128, (group + 1) * 64 * 128)
    operands = [((half * 128 * 128, (half + 1) * 128 * 128), rows) for half in range(2)]
    yield from wait_full(c, cta, pipe)
    fence_a(c, actor)
    scales = None
    for k in range(c.k_blocks):
        now = (
            (lambda now=scales: now)
            if k
            else (lambda: read_scales(c, actor, cta, pipe.stage, floats, 0))
        )
        yield from multiply(c, actor, cta, pipe.stage, operands, now)
        pipe.advance()
        if k + 1 < c.k_blocks:
            yield from wait_full(c, cta, pipe)
            fence_a(c, actor)
            scales = read_scales(c, actor, cta, pipe.stage, floats, k + 1)


def swap_ab_mainloop(c, actor, cta, warp, pipe, n):
    """swap_ab_mainloop.cuh:swap_ab_mainloop."""
    first = warp // 4 * 2 * 64 * 128
    operands = [
        ((first + m * 64 * 128, first + (m + 1) * 64 * 128), (0, n * 128)) for m in range(2)
    ]
    for k in range(c.k_blocks):
        yield from wait_full(c, cta, pipe)
        fence_a(c, actor)
        scales = read_scales(c, actor, cta, pipe.stage, (0, 4 * n), k)
        yield from multiply(c, actor, cta, pipe.stage, operands, lambda scales=scales: scales)
        pipe.advance()


# ---- gemm1 ----


def gemm1_producer(c, cta, warp):
    """grouped_gemm1.cu:load_gemm1, of one of four warps. The first one's first lane is thread 0 of
    the producers.
    """

    def body(actor):
        pipe = Pipe(c.stages)
        for tile in c.tiles:
            n = tile.m_rows[cta]
            for _ in range(c.k_blocks):
                stage, full = pipe.stage, c.full[cta][pipe.stage]
                if not c.gone("producer waits for empty"):
                    yield c.machine.passed(c.empty[cta][stage], pipe.phase ^ 1)
                if warp == 0:
                    fence_scales(c, actor)
                    c.machine.arrive(actor, full, expected=W_TILE + 4 * n)
                    load_weights(c, actor, cta, tile, stage)
                    copy(
                        c,
                        actor,
                        "bulk copy of scales",
                        [c.at(cta, "a_scale", stage, (0, 4 * n))],
                        [full],
                        4 * n,
                    )
                offsets = [np.arange(512) + 512 * warp + i * 2048 for i in range(8) if i * 16 < n]
                keys = [c.at(cta, "a", stage, np.concatenate(offsets))]
                if warp == 0:
                    keys.append(c.at(cta, "w_scale", stage, (0, 32)))
                if c.gone("a counts at full"):
                    c.machine.arrive(actor, full, 32)
                    c.machine.start(
                        actor,
                        "cp.async",
                        lambda it, keys=keys: [c.machine.write(it, k) for k in keys],
                    )
                else:

                    def act(operation, keys=keys, full=full):
                        for key in keys:
                            c.machine.write(operation, key)
                        c.machine.arrive(operation, full, 32)  # cp_async_mbar_arrive: one of 128

                    c.machine.start(actor, "cp.async", act)
                pipe.advance()
        yield from finish(c, actor, cta)

    return body


def store_h(c, actor, key):
    """bulk_store and bulk_commit; what bulk_wait_read waits for."""
    return c.machine.start(
        actor, "bulk store of h", lambda it: c.machine.read(it, key, async_proxy=True)
    )


def gemm1_normal(c, actor, cta, warp, n, stores):
    """gemm1_tile.cuh:gemm1_normal, behind its main loop."""
    group, own = warp // 4, min(64, n - warp // 4 * 64)
    barrier = cta, "kBarGemm1Warpgroup", group
    if warp % 4 == 0 and not c.gone("d is read before it is overwritten"):
        while stores:
            yield stores.pop()
    if not c.gone("normal: d is free"):
        yield c.machine.together(actor, barrier, 4)
    for part in range(c.h_split):
        first = part * 64 * 128 + warp % 4 * 16 * 128
        c.machine.write(actor, c.at(cta, "d", group, (first, first + 16 * 128)))
    if not c.gone("d: proxy fence"):
        c.machine.fence_proxy(actor)
    if not c.gone("normal: d is complete"):
        yield c.machine.together(actor, barrier, 4)
    if warp % 4 == 0 and own > 0:
        for part in range(c.h_split):
            key = c.at(cta, "d", group, (part * 64 * 128, part * 64 * 128 + own * 128))
            stores.append(store_h(c, actor, key))


def gemm1_swap_ab(c, actor, cta, warp, n, stores):
    """gemm1_tile.cuh:swiglu_quant_swap_ab."""
    group, barrier = warp // 4, (cta, "kBarGemm1Consumers")
    inverse = 4 * 64 * WARPS
    if warp % 4 == 0 and not c.gone("d is read before it is overwritten"):
        while stores:
            yield stores.pop()
    if not c.gone("swap-AB: d is free"):
        yield c.machine.together(actor, barrier, WARPS)
    c.machine.write(actor, c.at(cta, "d", 0, (4 * 64 * warp, 4 * (64 * warp + n))))
    if not c.gone("swap-AB: maxima are complete"):
        yield c.machine.together(actor, barrier, WARPS)
    mine = (32 * warp, min(n, 32 * warp + 32))  # rows of this warp's threads
    if mine[0] < mine[1]:
        for other in range(WARPS):
            c.machine.read(actor, c.at(cta, "d", 0, tuple(4 * (64 * other + row) for row in mine)))
        c.machine.write(actor, c.at(cta, "d", 0, tuple(inverse + 4 * row for row in mine)))
    if not c.gone("swap-AB: inverses are complete"):
        yield c.machine.together(actor, barrier, WARPS)
    c.machine.read(actor, c.at(cta, "d", 0, (inverse, inverse + 4 * n)))
    if not c.gone("swap-AB: inverses are read"):
        yield c.machine.together(actor, barrier, WARPS)
    lane = np.arange(32)
    in_row = 2 * (lane % 4) + lane // 4 % 2
    column = group * 64 + lane // 8 % 2 * 32 + warp % 4 * 8 + lane // 16 * 4
    words = np.concatenate([j * 1024 + swizzled(in_row, column) for j in range(n // 8)])
    for part in range(c.h_split):
        c.machine.write(actor, c.at(cta, "d", part, words))
    if not c.gone("d: proxy fence"):
        c.machine.fence_proxy(actor)
    if not c.gone("swap-AB: d is complete"):
        yield c.machine.together(actor, barrier, WARPS)
    if warp % 4 == 0 and group < c.h_split:
        stores.append(store_h(c, actor, c.at(cta, "d", group, (0, n * 128))))


def gemm1_consumer(c, cta, warp):
    """grouped_gemm1.cu:grouped_gemm1, of a consumer warp."""

    def body(actor):
        pipe, stores = Pipe(c.stages), []
        for tile in c.tiles:
            n = tile.m_rows[cta]
            if n > 64:  # tile_scheduler.cuh:unpack_tile
                yield from normal_mainloop(c, actor, cta, warp, pipe)
                yield from gemm1_normal(c, actor, cta, warp, n, stores)
            else:
                yield from swap_ab_mainloop(c, actor, cta, warp, pipe, n)
                yield from gemm1_swap_ab(c, actor, cta, warp, n, stores)
        while stores:  # grouped_gemm1.cu:signal_h_ready
            yield stores.pop()
        yield from finish(c, actor, cta)

    return body


# ---- gemm2 ----


def get_tile(c, actor, cta, nth):
    """tile_scheduler.cuh:DynamicTileScheduler::get_tile."""
    if nth == 0:
        return
    at = (nth - 1) % buffers(c)
    if not c.gone("tile_full is waited for"):
        yield c.machine.passed(c.tile_full[cta][at], (nth - 1) // buffers(c) % 2)
    c.machine.read(actor, c.at(cta, "tile_entry", at, (0, 8)))


def buffers(c):
    return 1 if c.gone("a tile's entry has several buffers") else c.entries


def publish(c, actor, cta, nth):
    """tile_scheduler.cuh:DynamicTileScheduler::publish."""
    at = nth % buffers(c)
    c.machine.arrive(actor, c.tile_full[cta][at], expected=8)
    if cta != 0:
        return
    for to in range(CTAS):
        for word in range(2):

            def act(operation, to=to, word=word):
                c.machine.write(operation, c.at(to, "tile_entry", at, (4 * word, 4 * word + 4)))
                c.machine.read(operation, c.at(to, "exists", 0, (0, 4)))
                c.machine.complete(operation, c.tile_full[to][at], 4)

            c.machine.start(actor, "st.async", act)


def gemm2_producer(c, cta, copies):
    """grouped_gemm2.cu:load_gemm2, of the lane that copies or of the others of its warp."""

    def body(actor):
        pipe, prefetched_k = Pipe(c.stages), min(c.stages, c.k_blocks)
        for nth in range(len(c.tiles) + 1):
            yield from get_tile(c, actor, cta, nth)
            if nth == len(c.tiles):
                break
            tile = c.tiles[nth]
            n = tile.m_rows[cta]
            if copies:
                for k in range(prefetched_k):
                    c.machine.expect(actor, c.full[cta][k], W_TILE)
                    load_weights(c, actor, cta, tile, k)
                for k in range(c.k_blocks):
                    if k == c.k_blocks - 1:
                        publish(c, actor, cta, nth)
                    stage, full = pipe.stage, c.full[cta][pipe.stage]
                    if not c.gone("producer waits for empty"):
                        yield c.machine.passed(c.empty[cta][stage], pipe.phase ^ 1)
                    fence_scales(c, actor)
                    if k >= prefetched_k:
                        c.machine.expect(actor, full, W_TILE)
                        load_weights(c, actor, cta, tile, stage)
                    c.machine.arrive(actor, full, expected=n * (c.parts * 128 + 4))
                    for part in range(c.parts):
                        rows = c.at(cta, "a", stage * c.parts + part, (0, n * 128))
                        copy(c, actor, "bulk copy of h", [rows], [full], n * 128)
                    copy(
                        c,
                        actor,
                        "bulk copy of scales",
                        [c.at(cta, "a_scale", stage, (0, 4 * n))],
                        [full],
                        4 * n,
                    )
                    pipe.advance()
            yield c.machine.together(actor, (cta, "__syncwarp of warp 8", nth), 2)
            prefetched_k = 0
        yield from finish(c, actor, cta)

    return body


def gemm2_epilogue(c, actor, cta, warp, n):
    """gemm2_tile.cuh:gemm2_normal and gemm2_tile.cuh:store_swap_ab, for a half or an m64 of the
    columns.
    """
    group, lane = warp // 4, np.arange(32)
    barrier = cta, "kBarGemm2Warpgroup", group
    if not c.gone("d is free"):
        yield c.machine.together(actor, barrier, 4)
    if n > 64:  # each warp 16 rows, of two times 64 columns
        written = np.concatenate(
            [np.arange(2048) + half * 8192 + warp % 4 * 2048 for half in range(2)]
        )
        halves, most = 2, min(64, n - group * 64)
    else:  # stmatrix: lanes of 16 bytes, rows of the tile by 16 of its 64 columns
        rows = np.concatenate([8 * (j + lane // 16) + lane % 8 for j in range(0, n // 8, 2)])
        byte = np.tile((2 * (warp % 4) + lane // 8 % 2) * 16, n // 16)
        written = (swizzled(rows, byte)[:, None] + np.arange(0, 16, 4)).ravel()
        halves, most = 1, n
    c.machine.write(actor, c.at(cta, "d", group, written))
    if not c.gone("d is complete"):
        yield c.machine.together(actor, barrier, 4)
    thread = warp % 4 * 32 + lane  # gemm2_tile.cuh:store_rows
    for half in range(halves):
        rows = np.concatenate([16 * i + thread // 8 for i in range(4)])
        byte = np.tile(thread % 8 * 16, 4)
        inside = rows < most
        if inside.any():
            read = half * 8192 + swizzled(rows[inside], byte[inside])[:, None] + np.arange(0, 16, 4)
            c.machine.read(actor, c.at(cta, "d", group, read.ravel()))


def gemm2_consumer(c, cta, warp):
    """grouped_gemm2.cu:grouped_gemm2, of a consumer warp."""

    def body(actor):
        pipe = Pipe(c.stages)
        for nth in range(len(c.tiles) + 1):
            yield from get_tile(c, actor, cta, nth)
            if nth == len(c.tiles):
                break
            n = c.tiles[nth].m_rows[cta]
            if n > 64:
                yield from normal_mainloop(c, actor, cta, warp, pipe)
            else:
                yield from swap_ab_mainloop(c, actor, cta, warp, pipe, n)
            for _ in range(2):
                yield from gemm2_epilogue(c, actor, cta, warp, n)
        yield from finish(c, actor, cta)

    return body


# ---- both ----


def finish(c, actor, cta):
    """cluster_sync at the kernels' end; then the CTA's shared memory is gone, and nobody may reach
    for it.
    """
    threads = CTAS * (WARPS + (4 if c.gemm == "gemm1" else 2))
    if not c.gone("CTAs end together"):
        yield c.machine.together(actor, "cluster_sync", threads)
    yield c.machine.together(actor, (cta, "end"), threads // CTAS)
    c.machine.read(actor, c.at(cta, "exists", 0, (0, 4)))
    yield c.machine.together(actor, (cta, "ended"), threads // CTAS)
    if actor.name.startswith("consumer 0 "):
        c.machine.write(actor, c.at(cta, "exists", 0, (0, 4)))


def first_fault(gemm, h_split, tiles, k_blocks, seed=0, without=None):
    """What the model finds wrong in one order of events; None if nothing. without: the step that is
    left out.
    """
    c = Cluster(gemm, h_split, tiles, k_blocks, seed, without)
    for cta in range(CTAS):
        consumer = gemm1_consumer if gemm == "gemm1" else gemm2_consumer
        for warp in range(WARPS):
            c.machine.thread(f"consumer {warp} of CTA {cta}", consumer(c, cta, warp))
        if gemm == "gemm1":
            for warp in range(4):
                c.machine.thread(f"producer {warp} of CTA {cta}", gemm1_producer(c, cta, warp))
        else:
            for copies in (True, False):
                c.machine.thread(
                    f"producer of CTA {cta}, copies: {copies}", gemm2_producer(c, cta, copies)
                )
    try:
        c.machine.run()
    except Fault as fault:
        return str(fault)
    return None
