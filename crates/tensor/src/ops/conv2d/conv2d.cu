// Correlations of images with small kernels, and their gradients. All tensors contiguous, [batch, channels, height, width].
//
// y[n, m, q] = b[m] + Σ_{c, k} x[n, c, q · stride − padding + k · dilation] · w[m, c, k]        `correlate`
// ẋ[n, c, p] = Σ_{m, k} ẏ[n, m, (p + padding − k · dilation) / stride] · w[m, c, k]             `correlate`, transposed
// ẇ[m, c, k] = Σ_{n, q} ẏ[n, m, q] · x[n, c, q · stride − padding + k · dilation]               `weight_grad`
//
// q, p and k are pairs (row, column). Pixels outside the image are 0, and terms whose quotient is not an integer are
// left out. Channels are those of one group. Halves are summed in f32; the order of each sum depends on the sizes
// alone.

#define ROWS 4 // result channels of a thread
#define TAPS 9 // pixels that a thread loads at once
#define THREADS 256

// Filled in by the host. In `correlate`, source and result are x and y, or ẏ and ẋ if transposed. In `weight_grad`
// they are x and y.
struct Conv {
    i64 first_image, end_image;
    i32 transposed, has_bias;
    i32 groups, channels, rows; // of a group: source channels, result channels
    i32 source[2], result[2], kernel[2], stride[2], padding[2], dilation[2];
    i32 row_stride, channel_stride; // of the weight
    i32 phases[2];                  // see `axis_of`
    i32 pixel_blocks;               // of a phase
};

// Source index of tap t for result pixel q: q · scale + first + t · step.
struct Axis {
    i32 count, scale, first, step;
    i32 taps, tap, tap_step;        // their count, the index of the first, the distance to the next
    i32 result_scale, result_first; // the index of result pixel q is q · result_scale + result_first
};

// ---- correlate ------------------------------------------------------------------------------------------------------
#ifdef KERNEL_correlate

#define CHUNK 288 // weights of a row that are in shared memory at once: a multiple of TAPS times any number of parts

// A transposed correlation with stride s is s interleaved correlations of stride 1, one for each phase p % s, each
// with the taps whose quotients are integers.
INLINE Axis axis_of(const Conv& g, int side, i32 phase) {
    i32 stride = g.stride[side], padding = g.padding[side], dilation = g.dilation[side], kernel = g.kernel[side];
    if (!g.transposed) return {g.result[side], stride, -padding, dilation, kernel, 0, 1, 1, 0};
    i32 tap = 0, tap_step = 1;
    if (stride > 1) {
        while (tap < kernel && (phase + padding - tap * dilation) % stride != 0) tap++;
        while (tap_step < kernel && tap_step * dilation % stride != 0) tap_step++;
    }
    i32 taps = tap < kernel ? (kernel - tap - 1) / tap_step + 1 : 0;
    i32 count = (g.result[side] - phase + stride - 1) / stride;
    return {count, 1, (phase + padding - tap * dilation) / stride, -(tap_step * dilation) / stride,
            taps, tap, tap_step, stride, phase};
}

// Steps through (channel, row of taps, tap).
struct Walker {
    i32 c, ty, tx;
    __device__ __forceinline__ void next(const Axis& y, const Axis& x) {
        if (++tx < x.taps) return;
        tx = 0;
        if (++ty < y.taps) return;
        ty = 0;
        c++;
    }
};

// A block computes ROWS channels of blockDim.x pixels of one phase; the pixels may lie in several images. Its blockDim.y
// parts share the taps. Grid, in x alone, fastest first: blocks of pixels, blocks of rows, groups, phases in x, phases in y.
extern "C" __global__ void __launch_bounds__(THREADS) correlate(O* y, const T* x, const T* w, const T* b, Conv g) {
    begin();
    __shared__ Pack<R, ROWS> weights[CHUNK];
    __shared__ R parts[ROWS][THREADS];

    u32 rest = blockIdx.x;
    u32 pixel = rest % g.pixel_blocks * blockDim.x + threadIdx.x;
    rest /= g.pixel_blocks;
    i32 row_blocks = (g.rows - 1) / ROWS + 1, row = rest % row_blocks * ROWS;
    rest /= row_blocks;
    i32 group = rest % g.groups;
    rest /= g.groups;
    Axis ay = axis_of(g, 0, rest / g.phases[1]), ax = axis_of(g, 1, rest % g.phases[1]);

    i32 qx = pixel % ax.count, qy = pixel / ax.count % ay.count;
    i64 n = g.first_image + pixel / ax.count / ay.count;
    bool is_pixel = n < g.end_image;
    i32 source_y = qy * ay.scale + ay.first, source_x = qx * ax.scale + ax.first;
    i64 plane = i64(g.source[0]) * g.source[1];
    i64 kernel = i64(g.kernel[0]) * g.kernel[1];
    x += (n * g.groups + group) * g.channels * plane;
    w += i64(group) * g.rows * g.channels * kernel + i64(row) * g.row_stride;

    i32 of_channel = ay.taps * ax.taps, len = g.channels * of_channel;
    u32 thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
    R sums[ROWS] = {};
    for (i32 start = 0; start < len; start += CHUNK) {
        i32 share = min(len - start, CHUNK);
        share = (share + blockDim.y * TAPS - 1) / (blockDim.y * TAPS) * TAPS;
        i32 chunk = share * blockDim.y;
        __syncthreads();
        for (i32 i = thread; i < ROWS * chunk; i += threads) {
            i32 m = i / chunk, k = start + i % chunk;
            i32 tap = k % of_channel;
            i64 at = i64(m) * g.row_stride + i64(k / of_channel) * g.channel_stride
                + (ay.tap + tap / ax.taps * ay.tap_step) * g.kernel[1] + ax.tap + tap % ax.taps * ax.tap_step;
            weights[i % chunk].at[m] = k < len && row + m < g.rows ? real(w[at]) : R(0);
        }
        __syncthreads();

        i32 own = threadIdx.y * share;
        Walker at = {(start + own) / of_channel, (start + own) % of_channel / ax.taps, (start + own) % ax.taps};
        for (i32 k = own; k < own + share; k += TAPS) {
            R pixels[TAPS];
            #pragma unroll
            for (int i = 0; i < TAPS; i++, at.next(ay, ax)) {
                i32 py = source_y + at.ty * ay.step, px = source_x + at.tx * ax.step;
                bool inside = is_pixel && at.c < g.channels && u32(py) < u32(g.source[0]) && u32(px) < u32(g.source[1]);
                pixels[i] = inside ? real(x[at.c * plane + i64(py) * g.source[1] + px]) : R(0);
            }
            #pragma unroll
            for (int i = 0; i < TAPS; i++) {
                Pack<R, ROWS> weight = weights[k + i];
                for (int m = 0; m < ROWS; m++) sums[m] = multiply_add(pixels[i], weight.at[m], sums[m]);
            }
        }
    }

    for (int m = 0; m < ROWS; m++) parts[m][thread] = sums[m];
    __syncthreads();
    if (!is_pixel) return;
    i64 py = qy * ay.result_scale + ay.result_first, px = qx * ax.result_scale + ax.result_first;
    for (i32 m = threadIdx.y; m < ROWS && row + m < g.rows; m += blockDim.y) {
        i64 channel = i64(group) * g.rows + row + m;
        R sum = g.has_bias ? real(b[channel]) : R(0);
        for (u32 part = 0; part < blockDim.y; part++) sum += parts[m][part * blockDim.x + threadIdx.x];
        y[((n * g.groups * g.rows + channel) * g.result[0] + py) * g.result[1] + px] = to<O>(sum);
    }
}

#endif
// ---- weight_grad ----------------------------------------------------------------------------------------------------
#if defined KERNEL_weight_grad || defined KERNEL_weight_grad_cluster

// The number of tap blocks, and the step from a thread's pixel to its next one as (images, rows, columns).
struct WeightGrad { Conv conv; i32 tap_blocks, step[3]; };

// A block computes ROWS result channels × TAPS taps of one source channel; its threads share the pixels of all images.
struct Tile { i32 row, tap, channel, group; };
INLINE Tile tile_of(const WeightGrad& s) {
    u32 row = blockIdx.y, tap = 0, channel = blockIdx.z, group = 0;
    if (s.tap_blocks > 1) row = blockIdx.y / s.tap_blocks, tap = blockIdx.y % s.tap_blocks;
    if (s.conv.groups > 1) group = blockIdx.z / s.conv.channels, channel = blockIdx.z % s.conv.channels;
    return {i32(row * ROWS), i32(tap * TAPS), i32(channel), i32(group)};
}

// Adds the products of every step-th pixel of all images, from pixel `first` on.
INLINE void add_up(R (&sums)[ROWS * TAPS], const T* x, const T* grad, const WeightGrad& s, const Tile& tile, i32 first) {
    const Conv& g = s.conv;
    i32 height = g.result[0], width = g.result[1];
    i64 plane = i64(g.source[0]) * g.source[1], image = plane * g.channels * g.groups;
    i64 grad_plane = i64(height) * width, grad_image = grad_plane * g.rows * g.groups;
    x += i64(blockIdx.z) * plane;
    grad += (i64(tile.group) * g.rows + tile.row) * grad_plane;

    i32 tap_y[TAPS], tap_x[TAPS];
    i32 ky = tile.tap / g.kernel[1], kx = tile.tap - ky * g.kernel[1];
    #pragma unroll
    for (int j = 0; j < TAPS; j++) {
        tap_y[j] = ky * g.dilation[0] - g.padding[0], tap_x[j] = kx * g.dilation[1] - g.padding[1];
        if (++kx == g.kernel[1]) kx = 0, ky++; // taps beyond the last are summed, but not written
    }
    i32 rest = first / width, qx = first - rest * width, n = rest / height, qy = rest - n * height;
    #pragma unroll 1
    while (n < g.end_image) {
        const T* from = x + n * image;
        const T* to = grad + n * grad_image + i64(qy) * width + qx;
        i32 y0 = qy * g.stride[0], x0 = qx * g.stride[1];
        R left[ROWS], right[TAPS];
        #pragma unroll
        for (int i = 0; i < ROWS; i++) left[i] = tile.row + i < g.rows ? real(to[i * grad_plane]) : R(0);
        #pragma unroll
        for (int j = 0; j < TAPS; j++) {
            i32 py = y0 + tap_y[j], px = x0 + tap_x[j];
            bool inside = u32(py) < u32(g.source[0]) && u32(px) < u32(g.source[1]);
            right[j] = inside ? real(from[i64(py) * g.source[1] + px]) : R(0);
        }
        #pragma unroll
        for (int i = 0; i < ROWS * TAPS; i++) sums[i] = multiply_add(left[i / TAPS], right[i % TAPS], sums[i]);
        qx += s.step[2], qy += s.step[1], n += s.step[0];
        if (qx >= width) qx -= width, qy++;
        if (qy >= height) qy -= height, n++;
    }
}

INLINE void write_tile(O* y, const WeightGrad& s, const Tile& tile, i32 i, R sum) {
    const Conv& g = s.conv;
    i32 kernel = g.kernel[0] * g.kernel[1], m = tile.row + i / TAPS, tap = tile.tap + i % TAPS;
    if (m < g.rows && tap < kernel)
        y[((i64(tile.group) * g.rows + m) * g.channels + tile.channel) * kernel + tap] = to<O>(sum);
}

#endif
#ifdef KERNEL_weight_grad

// Grid: 1; row block and tap block; source channel.
extern "C" __global__ void __launch_bounds__(THREADS) weight_grad(O* y, const T* x, const T* grad, WeightGrad s) {
    begin();
    Tile tile = tile_of(s);
    R sums[ROWS * TAPS] = {};
    __shared__ R results[ROWS * TAPS];
    add_up(sums, x, grad, s, tile, threadIdx.x);
    sums_of_block(sums, results);
    for (i32 i = threadIdx.x; i < ROWS * TAPS; i += blockDim.x) write_tile(y, s, tile, i, results[i]);
}

#endif
#ifdef KERNEL_weight_grad_cluster

#define CLUSTER 8

// An element of the shared memory of another block of the cluster.
INLINE f32 of_block(const f32* shared, u32 block) {
    f32 value;
    asm volatile("{ .reg .u32 there; mapa.shared::cluster.u32 there, %1, %2; ld.shared::cluster.f32 %0, [there]; }"
                 : "=f"(value) : "r"(u32(__cvta_generic_to_shared(shared))), "r"(block) : "memory");
    return value;
}
INLINE f64 of_block(const f64* shared, u32 block) {
    f64 value;
    asm volatile("{ .reg .u32 there; mapa.shared::cluster.u32 there, %1, %2; ld.shared::cluster.f64 %0, [there]; }"
                 : "=d"(value) : "r"(u32(__cvta_generic_to_shared(shared))), "r"(block) : "memory");
    return value;
}
INLINE void wait_for_cluster() {
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}

// The same for few results from many pixels: the blocks of a cluster share the pixels, and block 0 adds up all sums.
// Grid: CLUSTER; row block and tap block; source channel.
extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(THREADS)
weight_grad_cluster(O* y, const T* x, const T* grad, WeightGrad s) {
    begin();
    Tile tile = tile_of(s);
    R sums[ROWS * TAPS] = {};
    __shared__ R results[ROWS * TAPS];
    add_up(sums, x, grad, s, tile, blockIdx.x * blockDim.x + threadIdx.x);
    sums_of_block(sums, results);
    wait_for_cluster();
    if (blockIdx.x == 0) {
        for (i32 i = threadIdx.x; i < ROWS * TAPS; i += blockDim.x) {
            R sum = results[i];
            for (u32 block = 1; block < CLUSTER; block++) sum += of_block(&results[i], block);
            write_tile(y, s, tile, i, sum);
        }
    }
    wait_for_cluster(); // no block may exit before its shared memory is read
}

#endif
