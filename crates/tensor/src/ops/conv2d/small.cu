// Correlations of small images, compiled for their geometry. Tensors are contiguous, [batch, channels, height, width].
//
// y[n, m, q] = b[m] + Σ_{c, k} x[n, c, q · stride − padding + k] · w[m, c, k]        `correlate_small`
// ẋ[n, c, p] = Σ_{m, k} ẏ[n, m, (p + padding − k) / stride] · w[m, c, k]             `correlate_small`, TRANSPOSED
// ẇ[m, c, k] = Σ_{n, q} ẏ[n, m, q] · x[n, c, q · stride − padding + k]               `weight_grad_small`
//
// q, p and k are pairs (row, column). Pixels outside the image are 0, and terms whose quotient is not an integer are
// left out. With RELU, negative y become 0. With a mask, ẏ counts as 0 where the mask is at most 0. The order of
// each sum depends on the geometry alone.
//
// `small.rs` defines these constants: CHANNELS of the source, ROWS (channels) of the result, SOURCE_H, SOURCE_W,
// RESULT_H, RESULT_W, KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, PADDING_H, PADDING_W, and those that a kernel lists
// below. Source and result are those of `correlate_small`; in `weight_grad_small` they are x and y.
//
// The time goes into latencies: of the launch, of one read of memory, and of instructions. So a block issues all its
// loads at once, keeps the images padded with zeros in shared memory, and computes with few instructions.

#define KERNEL (KERNEL_H * KERNEL_W)

INLINE constexpr int round_up(int n, int to) { return (n + to - 1) / to * to; }
INLINE constexpr int ceil_div(int n, int by) { return n > 0 ? (n + by - 1) / by : -(-n / by); }
// The number of elements that are read or written together: the largest power of two that divides n, at most 4.
INLINE constexpr int vector_of(int n) { return n % 4 == 0 ? 4 : n % 2 == 0 ? 2 : 1; }

// Loads COUNT adjacent elements of shared memory, aligned to V elements; up to V − 1 more are read.
template <int COUNT, int V> INLINE void load(R (&to)[(COUNT + V - 1) / V * V], const R* from) {
    #pragma unroll
    for (int i = 0; i < COUNT; i += V) {
        Pack<R, V> pack = *reinterpret_cast<const Pack<R, V>*>(from + i);
        #pragma unroll
        for (int v = 0; v < V; v++) to[i + v] = pack.at[v];
    }
}

// PLANES × ITEMS values that THREADS threads load before any of them is used. A thread takes the same items of
// several planes, so that it computes most of their offsets once. Loads are not in branches, which would serialize
// them: a thread without an item loads another thread's.
template <typename Value, int PLANES, int ITEMS, int THREADS> struct Batch {
    static constexpr int AT_ONCE = THREADS / ITEMS == 0 ? 1 : THREADS / ITEMS < PLANES ? THREADS / ITEMS : PLANES;
    static constexpr int PLANE_STEPS = (PLANES + AT_ONCE - 1) / AT_ONCE, ITEM_STEPS = (ITEMS + THREADS - 1) / THREADS;
    Value values[ITEM_STEPS][PLANE_STEPS];

    INLINE int first_plane() { return AT_ONCE == 1 ? 0 : threadIdx.x / ITEMS; }
    INLINE int item(int step) { return AT_ONCE == 1 ? threadIdx.x + step * THREADS : threadIdx.x % ITEMS; }

    template <typename From> __device__ __forceinline__ void fetch(From from) {
        #pragma unroll
        for (int j = 0; j < ITEM_STEPS; j++) {
            int here = (j + 1) * THREADS > ITEMS ? min(item(j), ITEMS - 1) : item(j);
            #pragma unroll
            for (int i = 0; i < PLANE_STEPS; i++) {
                int plane = first_plane() + i * AT_ONCE;
                values[j][i] = from((i + 1) * AT_ONCE >= PLANES ? min(plane, PLANES - 1) : plane, here);
            }
        }
    }
    template <typename Put> __device__ __forceinline__ void put(Put to) {
        if (AT_ONCE * ITEMS < THREADS && first_plane() >= AT_ONCE) return;
        #pragma unroll
        for (int j = 0; j < ITEM_STEPS; j++) {
            if ((j + 1) * THREADS > ITEMS && item(j) >= ITEMS) break;
            #pragma unroll
            for (int i = 0; i < PLANE_STEPS; i++) {
                int plane = first_plane() + i * AT_ONCE;
                if ((i + 1) * AT_ONCE <= PLANES || plane < PLANES) to(plane, item(j), values[j][i]);
            }
        }
    }
};

// The number of elements of a row of `width` that are read together.
INLINE constexpr int together(int width) { return ALIGNED ? vector_of(width) : 1; }

template <int V> INLINE Pack<T, V> neighbors(const T* from) { return *reinterpret_cast<const Pack<T, V>*>(from); }

// Adjacent elements. With a mask, those whose mask is at most zero count as 0.
template <int V> struct Masked {
    Pack<T, V> x, mask;
    INLINE Masked of(const T* x, const T* mask) {
        if constexpr (HAS_MASK) return {neighbors<V>(x), neighbors<V>(mask)};
        else return {neighbors<V>(x)};
    }
    __device__ __forceinline__ R operator[](int v) const {
        return HAS_MASK && real(mask.at[v]) <= R(0) ? R(0) : real(x.at[v]);
    }
};

// Writes zeros around the pixels of COUNT planes in shared memory. A plane has HEIGHT × WIDTH elements; SOURCE_H ×
// SOURCE_W of them are pixels, from (TOP, LEFT) on. `at(plane, y)` is the offset of a row.
template <int COUNT, int HEIGHT, int WIDTH, int TOP, int LEFT, int THREADS, typename At>
INLINE void surround(R* to, At at) {
    #pragma unroll 1
    for (int i = threadIdx.x; i < COUNT * HEIGHT; i += THREADS) {
        int y = i % HEIGHT;
        R* row = to + at(i / HEIGHT, y);
        bool is_outside = u32(y - TOP) >= u32(SOURCE_H);
        #pragma unroll 1
        for (int x = 0; x < (is_outside ? WIDTH : LEFT); x++) row[x] = R(0);
        #pragma unroll 1
        for (int x = is_outside ? WIDTH : LEFT + SOURCE_W; x < WIDTH; x++) row[x] = R(0);
    }
}

// ---- correlate_small ------------------------------------------------------------------------------------------------
#ifdef KERNEL_correlate_small

// Further constants: TRANSPOSED, HAS_BIAS, RELU, HAS_MASK (of x). A thread computes PIXELS × TILE_ROWS results, times
// STRIDE_H × STRIDE_W if transposed; a block computes BLOCK_ROWS result channels; PARTS threads, a power of two,
// share a result.

// One axis. Result p = q · CELL + a reads source q · SCALE + o for each tap, where o goes from LOW to HIGH. Without
// TRANSPOSED, CELL is 1, SCALE is the stride and o = tap − padding. A transposed correlation with stride s has CELL =
// s, SCALE = 1 and o · s = a + padding − tap.
template <int STRIDE, int PADDING, int TAPS, int SOURCE, int RESULT, int AT_ONCE> struct Axis {
    static constexpr int CELL = TRANSPOSED ? STRIDE : 1;
    static constexpr int SCALE = TRANSPOSED ? 1 : STRIDE;
    static constexpr int LOW = TRANSPOSED ? ceil_div(PADDING - TAPS + 1, STRIDE) : -PADDING;
    static constexpr int HIGH = TRANSPOSED ? (STRIDE - 1 + PADDING) / STRIDE : TAPS - 1 - PADDING;
    static constexpr int STRIPS = ceil_div(ceil_div(RESULT, CELL), AT_ONCE); // of AT_ONCE cells
    static constexpr int SPAN = (AT_ONCE - 1) * SCALE + HIGH - LOW + 1;      // source elements of a strip
    static constexpr int PLACES = (STRIPS * AT_ONCE - 1) * SCALE + HIGH - LOW + 1; // of all strips; the first is LOW
    INLINE constexpr int tap(int a, int o) { return TRANSPOSED ? a + PADDING - o * STRIDE : o + PADDING; }
};
typedef Axis<STRIDE_H, PADDING_H, KERNEL_H, SOURCE_H, RESULT_H, 1> Y;
typedef Axis<STRIDE_W, PADDING_W, KERNEL_W, SOURCE_W, RESULT_W, PIXELS> X;

#define VECTOR vector_of(PIXELS * X::SCALE)
#define PITCH round_up(X::PLACES, 4)
// Neighboring threads read the same element of neighboring channels, so channels start in different banks.
#define PLANE (round_up(Y::PLACES * PITCH, 8) + 4)
#define WEIGHTS_OF_CHANNEL (round_up(KERNEL * BLOCK_ROWS, 8) + 4)
#define ITEMS (Y::STRIPS * X::STRIPS * (BLOCK_ROWS / TILE_ROWS))
#define THREADS round_up(ITEMS * PARTS, 32)
#define ACROSS (PIXELS * X::CELL)
#define RESULTS (TILE_ROWS * Y::CELL * ACROSS)

// Sums COUNT values over LANES neighboring threads. Each keeps an equal share of the sums and returns the index of
// its first one. If they cannot be shared equally, all threads have them, and all but one return −1.
template <int COUNT, int LANES, int STEP = 1> INLINE int share_sums(R* x, u32 lane) {
    if constexpr (STEP == LANES) {
        return 0;
    } else if constexpr (COUNT % 2 == 0) {
        bool upper = lane & STEP;
        #pragma unroll
        for (int i = 0; i < COUNT / 2; i++) {
            R low = x[i], high = x[COUNT / 2 + i];
            x[i] = (upper ? high : low) + from_lane(upper ? low : high, STEP);
        }
        int first = share_sums<COUNT / 2, LANES, 2 * STEP>(x, lane);
        return first < 0 ? first : first + (upper ? COUNT / 2 : 0);
    } else {
        #pragma unroll
        for (int step = STEP; step < LANES; step *= 2)
            for (int i = 0; i < COUNT; i++) x[i] += from_lane(x[i], step);
        return lane % LANES < STEP ? 0 : -1;
    }
}
INLINE constexpr int share(int count, int lanes) {
    return lanes == 1 || count % 2 ? count : share(count / 2, lanes / 2);
}

#define OWN share(RESULTS, PARTS)
#define STORED together(OWN | ACROSS | RESULT_W)

// A block computes BLOCK_ROWS channels of one image. Grid: images; rows.
extern "C" __global__ void __launch_bounds__(THREADS)
correlate_small(O* y, const T* x, const T* w, const T* b, const T* mask) {
    begin();
    __shared__ __align__(32) R source[CHANNELS * PLANE];
    __shared__ __align__(32) R weights[CHANNELS * WEIGHTS_OF_CHANNEL];
    constexpr int OF_IMAGE = CHANNELS * SOURCE_H * SOURCE_W;
    constexpr int ROW_STRIDE = TRANSPOSED ? KERNEL : CHANNELS * KERNEL;
    constexpr int CHANNEL_STRIDE = TRANSPOSED ? ROWS * KERNEL : KERNEL;
    i32 first_row = blockIdx.y * BLOCK_ROWS;
    x += i64(blockIdx.x) * OF_IMAGE, mask += i64(blockIdx.x) * OF_IMAGE;

    constexpr int V = together(SOURCE_W), OF_ROW = SOURCE_W / V;
    Batch<Masked<V>, CHANNELS, SOURCE_H * OF_ROW, THREADS> pixels;
    Batch<Pack<R, TILE_ROWS>, BLOCK_ROWS / TILE_ROWS, CHANNELS * KERNEL, THREADS> taps;
    pixels.fetch([&](int c, int i) {
        int at = c * (SOURCE_H * SOURCE_W) + i * V;
        return Masked<V>::of(x + at, mask + at);
    });
    taps.fetch([&](int tile, int i) {
        Pack<R, TILE_ROWS> weight;
        for (int j = 0; j < TILE_ROWS; j++) {
            i32 row = first_row + tile * TILE_ROWS + j;
            if (ROWS % BLOCK_ROWS != 0) row = min(row, ROWS - 1);
            weight.at[j] = real(w[row * ROW_STRIDE + i / KERNEL * CHANNEL_STRIDE + i % KERNEL]);
        }
        return weight;
    });
    surround<CHANNELS, Y::PLACES, X::PLACES, -Y::LOW, -X::LOW, THREADS>(source, [](int c, int y) {
        return c * PLANE + y * PITCH;
    });
    pixels.put([&](int c, int i, const Masked<V>& pack) {
        int y = i / OF_ROW - Y::LOW, column = i % OF_ROW * V - X::LOW;
        R* to = source + c * PLANE + y * PITCH + column;
        if (SOURCE_H - Y::LOW > Y::PLACES && y >= Y::PLACES) return;
        for (int v = 0; v < V; v++)
            if (SOURCE_W - X::LOW <= X::PLACES || column + v < X::PLACES) to[v] = pack[v];
    });
    taps.put([&](int tile, int i, Pack<R, TILE_ROWS> weight) {
        R* to = weights + i / KERNEL * WEIGHTS_OF_CHANNEL + i % KERNEL * BLOCK_ROWS + tile * TILE_ROWS;
        *reinterpret_cast<Pack<R, TILE_ROWS>*>(to) = weight;
    });
    __syncthreads();

    u32 part = threadIdx.x % PARTS, item = threadIdx.x / PARTS;
    bool is_item = THREADS == ITEMS * PARTS || item < ITEMS;
    if (!is_item) item = ITEMS - 1;
    u32 strip = item % X::STRIPS, qy = item / X::STRIPS % Y::STRIPS, m = item / X::STRIPS / Y::STRIPS * TILE_ROWS;
    const R* from = source + part * PLANE + qy * Y::SCALE * PITCH + strip * PIXELS * X::SCALE;
    const R* weight = weights + part * WEIGHTS_OF_CHANNEL + m;
    R sums[RESULTS] = {};
    #pragma unroll 1
    for (int c = part; c < CHANNELS; c += PARTS, from += PARTS * PLANE, weight += PARTS * WEIGHTS_OF_CHANNEL) {
        #pragma unroll
        for (int oy = Y::LOW; oy <= Y::HIGH; oy++) {
            R pixels[(X::SPAN + VECTOR - 1) / VECTOR * VECTOR];
            load<X::SPAN, VECTOR>(pixels, from + (oy - Y::LOW) * PITCH);
            #pragma unroll
            for (int taps = 0; taps < Y::CELL * X::CELL * (X::HIGH - X::LOW + 1); taps++) {
                int a = taps % Y::CELL, b = taps / Y::CELL % X::CELL, ox = X::LOW + taps / Y::CELL / X::CELL;
                int ky = Y::tap(a, oy), kx = X::tap(b, ox);
                if (ky < 0 || ky >= KERNEL_H || kx < 0 || kx >= KERNEL_W) continue;
                const R* of_tap = weight + (ky * KERNEL_W + kx) * BLOCK_ROWS;
                Pack<R, TILE_ROWS> tap = *reinterpret_cast<const Pack<R, TILE_ROWS>*>(of_tap);
                #pragma unroll
                for (int i = 0; i < TILE_ROWS * PIXELS; i++) {
                    int j = i % PIXELS, row = i / PIXELS;
                    R& sum = sums[(row * Y::CELL + a) * ACROSS + j * X::CELL + b];
                    sum = multiply_add(pixels[j * X::SCALE + ox - X::LOW], tap.at[row], sum);
                }
            }
        }
    }

    int first = share_sums<RESULTS, PARTS>(sums, part);
    if (first < 0 || !is_item) return;
    y += i64(blockIdx.x) * (ROWS * RESULT_H * RESULT_W);
    #pragma unroll
    for (int i = 0; i < OWN; i += STORED) {
        u32 at = first + i, row = first_row + m + at / (Y::CELL * ACROSS);
        u32 py = qy * Y::CELL + at / ACROSS % Y::CELL, px = strip * ACROSS + at % ACROSS;
        if (row >= ROWS || py >= RESULT_H || px >= RESULT_W) continue;
        R bias = HAS_BIAS ? real(b[row]) : R(0);
        Pack<O, STORED> results;
        for (int v = 0; v < STORED; v++) {
            R sum = sums[i + v] + bias;
            results.at[v] = to<O>(RELU && sum < R(0) ? R(0) : sum);
        }
        *reinterpret_cast<Pack<O, STORED>*>(&y[(row * RESULT_H + py) * RESULT_W + px]) = results;
    }
}

#endif
// ---- weight_grad_small ----------------------------------------------------------------------------------------------
#ifdef KERNEL_weight_grad_small

// Further constants: HAS_MASK (of ẏ); HAS_BIAS: ẇ is followed by ḃ[m] = Σ_{n, q} ẏ[n, m, q]; IMAGES in shared memory
// at once; a block computes BLOCK_ROWS × BLOCK_CHANNELS results with all taps, a warp TILE_ROWS of them, a thread
// PIXELS at once; SPLITS warps share the pixels, and CLUSTER blocks the images. Each block of a cluster adds up a
// part of all sums.

#define STRIPS ceil_div(RESULT_W, PIXELS)
#define COMBINATIONS (BLOCK_ROWS / TILE_ROWS * BLOCK_CHANNELS)
#define THREADS (COMBINATIONS * SPLITS * WARP)
#define SPAN ((PIXELS - 1) * STRIDE_W + KERNEL_W)
// Neighboring threads read neighboring strips, which start in different banks where possible: source rows with the same
// remainder by the stride are adjacent.
#define GRAD_PITCH (STRIPS * PIXELS + (PIXELS % 4 == 2))
#define GRAD_PLANE (RESULT_H * GRAD_PITCH)
#define GRAD_VECTOR (PIXELS % 4 == 0 ? 4 : 1)
#define GRAD_IMAGE (BLOCK_ROWS * GRAD_PLANE + (GRAD_PLANE - BLOCK_ROWS * GRAD_PLANE) % 32 + 32)
#define PLACES_W ((STRIPS * PIXELS - 1) * STRIDE_W + KERNEL_W)
#define PLACES_H ((RESULT_H - 1) * STRIDE_H + KERNEL_H)
#define PITCH (PLACES_W | 1)
#define PLANE (ceil_div(PLACES_H, STRIDE_H) * STRIDE_H * PITCH)
#define IMAGE (BLOCK_CHANNELS * PLANE + (RESULT_H * PITCH - BLOCK_CHANNELS * PLANE) % 32 + 32)
INLINE constexpr int place_of_row(int y) {
    return (y % STRIDE_H * ceil_div(PLACES_H, STRIDE_H) + y / STRIDE_H) * PITCH;
}

#define SUMS (TILE_ROWS * (KERNEL + HAS_BIAS))

// The sums of COUNT values over a warp. For each, one thread calls `put(index, sum)`.
template <int COUNT, int DONE = 0, typename Put> INLINE void add_up_warp(R* x, u32 lane, Put put) {
    constexpr int REST = COUNT - DONE;
    if constexpr (REST > 0) {
        constexpr int NOW = REST >= 32 ? 32 : REST >= 16 ? 16 : REST >= 8 ? 8 : REST >= 4 ? 4 : REST >= 2 ? 2 : 1;
        R sum = sums_of_values<NOW>(x + DONE, lane);
        if (lane < NOW) put(DONE + value_of_lane<NOW>(lane), sum);
        add_up_warp<COUNT, DONE + NOW>(x, lane, put);
    }
}

// The blocks of a cluster exchange sums through shared memory. The sender writes into the receiver's memory, and the
// receiver's barrier (an mbarrier) completes when the expected number of bytes has arrived. This needs no fence, which would
// wait for all memory operations.
struct Barrier { u64 state; };
INLINE u32 address(const void* shared) { return u32(__cvta_generic_to_shared(shared)); }
INLINE u32 of_block(u32 address, u32 block) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    return there;
}
// Called by one thread. Blocks send only after `all_blocks_are_ready`, which all threads of the cluster call after
// `announce`.
INLINE void expect(Barrier* barrier, u32 bytes) {
    u32 at = address(barrier);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(at) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory");
}
INLINE void announce() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
INLINE void all_blocks_are_ready() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
INLINE void send(f32 x, u32 to, u32 barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                 :: "r"(to), "r"(__float_as_uint(x)), "r"(barrier) : "memory");
}
INLINE void send(f64 x, u32 to, u32 barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];"
                 :: "r"(to), "l"(__double_as_longlong(x)), "r"(barrier) : "memory");
}
INLINE void wait_for(Barrier* barrier) {
    u32 is_complete = 0;
    while (!is_complete)
        asm volatile("{ .reg .pred complete; mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], 0;"
                     "  selp.u32 %0, 1, 0, complete; }"
                     : "=r"(is_complete) : "r"(address(barrier)) : "memory");
}

// Grid: CLUSTER; row blocks; channel blocks.
extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(THREADS)
weight_grad_small(O* y, const T* x, const T* grad, const T* mask, u64 batch) {
    begin();
    __shared__ __align__(32) R grads[IMAGES * GRAD_IMAGE];
    __shared__ R source[IMAGES * IMAGE];
    __shared__ R received[(COMBINATIONS * SUMS + CLUSTER - 1) / CLUSTER][SPLITS * CLUSTER + 1];
    __shared__ Barrier barrier;
    u32 n_own = (COMBINATIONS * SUMS - blockIdx.x + CLUSTER - 1) / CLUSTER;
    if (threadIdx.x == 0) expect(&barrier, n_own * SPLITS * CLUSTER * sizeof(R));
    announce();
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 combination = warp % COMBINATIONS, split = warp / COMBINATIONS;
    u32 channel = combination % BLOCK_CHANNELS, row = combination / BLOCK_CHANNELS * TILE_ROWS;
    i32 first_row = blockIdx.y * BLOCK_ROWS, first_channel = blockIdx.z * BLOCK_CHANNELS;
    u64 of_block_images = (batch + CLUSTER - 1) / CLUSTER;
    u64 image = blockIdx.x * of_block_images, end = min(image + of_block_images, batch);

    // Rows without gaps between them are read as one.
    constexpr bool WITHOUT_GAPS = GRAD_PITCH == RESULT_W && ROWS % BLOCK_ROWS == 0;
    constexpr int V = together(SOURCE_W), OF_ROW = SOURCE_W / V;
    constexpr int GV = together(WITHOUT_GAPS ? BLOCK_ROWS * RESULT_H * RESULT_W : RESULT_W);
    R sums[SUMS] = {};
    #pragma unroll 1
    for (; image < end; image += IMAGES) {
        int images = min(u64(IMAGES), end - image);
        __syncthreads();
        Batch<Pack<T, V>, IMAGES, BLOCK_CHANNELS * SOURCE_H * OF_ROW, THREADS> pixels;
        Batch<Masked<GV>, IMAGES, BLOCK_ROWS * RESULT_H * RESULT_W / GV, THREADS> of_results;
        const T* xs = x + (image * CHANNELS + first_channel) * (SOURCE_H * SOURCE_W);
        i64 first = (image * ROWS + first_row) * (RESULT_H * RESULT_W);
        pixels.fetch([&](int i, int item) {
            if (CHANNELS % BLOCK_CHANNELS != 0) item = min(item, (CHANNELS - first_channel) * (SOURCE_H * OF_ROW) - 1);
            return neighbors<V>(xs + min(i, images - 1) * (CHANNELS * SOURCE_H * SOURCE_W) + item * V);
        });
        of_results.fetch([&](int i, int item) {
            if (ROWS % BLOCK_ROWS != 0) item = min(item, (ROWS - first_row) * (RESULT_H * RESULT_W / GV) - 1);
            i64 at = first + min(i, images - 1) * (ROWS * RESULT_H * RESULT_W) + item * GV;
            return Masked<GV>::of(grad + at, mask + at);
        });
        surround<IMAGES * BLOCK_CHANNELS, PLACES_H, PLACES_W, PADDING_H, PADDING_W, THREADS>(source, [](int c, int y) {
            return c / BLOCK_CHANNELS * IMAGE + c % BLOCK_CHANNELS * PLANE + place_of_row(y);
        });
        if (GRAD_PITCH > RESULT_W) {
            for (int i = threadIdx.x; i < IMAGES * BLOCK_ROWS * RESULT_H; i += THREADS) {
                R* to = grads + i / (BLOCK_ROWS * RESULT_H) * GRAD_IMAGE + i % (BLOCK_ROWS * RESULT_H) * GRAD_PITCH;
                for (int column = RESULT_W; column < GRAD_PITCH; column++) to[column] = R(0);
            }
        }
        pixels.put([&](int i, int item, Pack<T, V> pack) {
            int row = item / OF_ROW, y = row % SOURCE_H + PADDING_H, column = item % OF_ROW * V + PADDING_W;
            R* to = source + i * IMAGE + row / SOURCE_H * PLANE + place_of_row(y) + column;
            if (SOURCE_H + PADDING_H > PLACES_H && y >= PLACES_H) return;
            for (int v = 0; v < V; v++)
                if (SOURCE_W + PADDING_W <= PLACES_W || column + v < PLACES_W) to[v] = real(pack.at[v]);
        });
        of_results.put([&](int i, int item, const Masked<GV>& pack) {
            R* to = grads + i * GRAD_IMAGE + item * GV / RESULT_W * GRAD_PITCH + item * GV % RESULT_W;
            for (int v = 0; v < GV; v++) to[v] = pack[v];
        });
        __syncthreads();

        #pragma unroll 1
        for (int position = split * WARP + lane; position < images * RESULT_H * STRIPS; position += SPLITS * WARP) {
            int strip = position % STRIPS, qy = position / STRIPS % RESULT_H, i = position / STRIPS / RESULT_H;
            const R* left = grads + i * GRAD_IMAGE + row * GRAD_PLANE + qy * GRAD_PITCH + strip * PIXELS;
            const R* right = source + i * IMAGE + channel * PLANE + qy * PITCH + strip * PIXELS * STRIDE_W;
            R of_rows[TILE_ROWS][PIXELS];
            #pragma unroll
            for (int m = 0; m < TILE_ROWS; m++) load<PIXELS, GRAD_VECTOR>(of_rows[m], left + m * GRAD_PLANE);
            #pragma unroll
            for (int ky = 0; ky < KERNEL_H; ky++) {
                R pixels[SPAN];
                load<SPAN, 1>(pixels, right + place_of_row(ky));
                #pragma unroll
                for (int i = 0; i < TILE_ROWS * KERNEL_W * PIXELS; i++) {
                    int j = i / KERNEL_W / TILE_ROWS, m = i / KERNEL_W % TILE_ROWS, kx = i % KERNEL_W;
                    R& sum = sums[m * KERNEL + ky * KERNEL_W + kx];
                    sum = multiply_add(of_rows[m][j], pixels[j * STRIDE_W + kx], sum);
                }
            }
            if (HAS_BIAS && channel == 0) {
                #pragma unroll
                for (int i = 0; i < TILE_ROWS * PIXELS; i++)
                    sums[TILE_ROWS * KERNEL + i / PIXELS] += of_rows[i / PIXELS][i % PIXELS];
            }
        }
    }
    all_blocks_are_ready();
    add_up_warp<SUMS>(sums, lane, [&](u32 number, R sum) {
        u32 i = combination * SUMS + number, owner = i % CLUSTER;
        const R* to = &received[i / CLUSTER][split * CLUSTER + blockIdx.x];
        send(sum, of_block(address(to), owner), of_block(address(&barrier), owner));
    });

    wait_for(&barrier); // also keeps blocks from exiting before all their sums have arrived
    for (u32 own = threadIdx.x; own < n_own; own += THREADS) {
        u32 i = own * CLUSTER + blockIdx.x, at = i % SUMS, c = first_channel + i / SUMS % BLOCK_CHANNELS;
        u32 m = first_row + i / SUMS / BLOCK_CHANNELS * TILE_ROWS;
        bool is_bias = at >= TILE_ROWS * KERNEL;
        m += is_bias ? at - TILE_ROWS * KERNEL : at / KERNEL;
        if (m >= ROWS || c >= CHANNELS || (is_bias && c > 0)) continue;
        R sum = 0;
        for (int sender = 0; sender < SPLITS * CLUSTER; sender++) sum += received[own][sender];
        y[is_bias ? ROWS * CHANNELS * KERNEL + m : (m * CHANNELS + c) * KERNEL + at % KERNEL] = to<O>(sum);
    }
}

#endif
