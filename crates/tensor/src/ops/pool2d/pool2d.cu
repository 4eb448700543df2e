// Pooling over contiguous planes: y[p, i, j] = the largest or the mean of window (i, j) of x[p].
//
// `largest`, `place_of_largest`, `mean`: LANES neighboring threads (a power of two, at most a warp) per window. They
// share its pixels and then combine their results, in an order that depends only on the sizes of planes and windows.
// `spread` is the transpose of `mean`: one thread per pixel, which adds up its shares of all windows that contain it.
// `cuda.rs` defines these constants: IN_H and IN_W, the size of a plane; OUT_H and OUT_W, the numbers of its windows;
// KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, PADDING_H, PADDING_W of sliding windows (a kernel of 0 means adaptive
// windows, which cover the plane and overlap where they must); AREA, the divisor of means, or 0 if that is the number
// of pixels in each window; LANES; and WIDE, whether the numbers of threads need more than 32 bits.

#if WIDE
typedef u64 INDEX;
#else
typedef u32 INDEX;
#endif

struct Side { i32 in, out, kernel, stride, padding; }; // planes have fewer than 2^31 pixels
INLINE constexpr Side vertical() { return {IN_H, OUT_H, KERNEL_H, STRIDE_H, PADDING_H}; }
INLINE constexpr Side horizontal() { return {IN_W, OUT_W, KERNEL_W, STRIDE_W, PADDING_W}; }
INLINE INDEX number() { return INDEX(blockIdx.x) * blockDim.x + threadIdx.x; }

struct Range { i32 start, end; };

// The pixels of window `i` that lie inside the plane.
INLINE Range window(Side s, i32 i) {
    if (s.kernel == 0) return {i32(i64(i) * s.in / s.out), i32((i64(i + 1) * s.in + s.out - 1) / s.out)};
    i32 start = i * s.stride - s.padding;
    return {max(start, 0), min(start + s.kernel, s.in)};
}
// The windows that contain pixel `p`.
INLINE Range windows(Side s, i32 p) {
    if (s.kernel == 0) return {i32(i64(p) * s.out / s.in), i32((i64(p + 1) * s.out + s.in - 1) / s.in)};
    i32 first = p + s.padding - s.kernel + 1;
    return {first > 0 ? (first + s.stride - 1) / s.stride : 0, min((p + s.padding) / s.stride + 1, s.out)};
}

// Calls `visit(pixel, place in the plane, pixels of the window)` for this thread's share of the window, and returns
// the number of the result. Threads behind the last result repeat its work, so that all lanes take part in shuffles.
// A single thread for a small sliding window can read all of its pixels at once.
template <typename Visit> INLINE INDEX visit_window(const T* x, INDEX results, Visit visit) {
    INDEX result = min(number() / LANES, results - 1), plane = result / (OUT_H * OUT_W);
    u32 rest = result - plane * (OUT_H * OUT_W);
    i32 i = rest / OUT_W, j = rest % OUT_W;
    x += plane * (IN_H * IN_W);
#if LANES == 1 && KERNEL_H > 0 && KERNEL_H * KERNEL_W <= 64
    i32 top = i * STRIDE_H - PADDING_H, left = j * STRIDE_W - PADDING_W;
    #pragma unroll
    for (i32 k = 0; k < KERNEL_H * KERNEL_W; k++) {
        i32 row = top + k / KERNEL_W, column = left + k % KERNEL_W, at = row * IN_W + column;
        if (u32(row) < IN_H && u32(column) < IN_W) visit(real(x[at]), at, KERNEL_H * KERNEL_W);
    }
#else
    Range rows = window(vertical(), i), columns = window(horizontal(), j);
    u32 width = columns.end - columns.start, pixels = (rows.end - rows.start) * width;
    for (u32 k = threadIdx.x % LANES; k < pixels; k += LANES) {
        i32 at = (rows.start + k / width) * IN_W + columns.start + k % width;
        visit(real(x[at]), at, pixels);
    }
#endif
    return result;
}
INLINE bool is_first_lane(INDEX results) { return threadIdx.x % LANES == 0 && number() / LANES < results; }

#define EVERYONE 0xffffffffu

struct Largest { R value; i32 at; };
// NaN is larger than all numbers. Of equal numbers the first counts, of several NaN the last.
INLINE bool is_larger(const Largest& a, const Largest& b) {
    bool a_nan = is_nan(a.value), b_nan = is_nan(b.value);
    if (a_nan || b_nan) return a_nan && (!b_nan || a.at > b.at);
    return a.value > b.value || (a.value == b.value && a.at < b.at);
}
template <typename Write> INLINE void write_largest(const T* x, INDEX results, Write write) {
    Largest best = {R(-INFINITY), 0x7fffffff};
    INDEX result = visit_window(x, results, [&](R value, i32 at, u32) {
        Largest here = {value, at};
        if (is_larger(here, best)) best = here;
    });
    for (u32 other = LANES / 2; other > 0; other /= 2) {
        Largest there = {__shfl_xor_sync(EVERYONE, best.value, other), __shfl_xor_sync(EVERYONE, best.at, other)};
        if (is_larger(there, best)) best = there;
    }
    if (is_first_lane(results)) write(result, best);
}
#ifdef KERNEL_largest
extern "C" __global__ void largest(T* y, const T* x, INDEX results) {
    begin();
    write_largest(x, results, [&](INDEX result, const Largest& best) { y[result] = to<T>(best.value); });
}
#endif
#ifdef KERNEL_place_of_largest
extern "C" __global__ void place_of_largest(i64* y, const T* x, INDEX results) {
    begin();
    write_largest(x, results, [&](INDEX result, const Largest& best) { y[result] = best.at; });
}

#endif
#ifdef KERNEL_mean
extern "C" __global__ void mean(T* y, const T* x, INDEX results) {
    begin();
    R sum = 0;
    u32 area = AREA;
    INDEX result = visit_window(x, results, [&](R value, i32, u32 pixels) {
        sum += value;
        area = AREA > 0 ? AREA : pixels;
    });
    for (u32 other = LANES / 2; other > 0; other /= 2) sum += __shfl_xor_sync(EVERYONE, sum, other);
    if (is_first_lane(results)) y[result] = to<T>(sum / R(area));
}

#endif
#ifdef KERNEL_spread
// x[p, r, c] = Σ y[p, i, j] / area of (i, j), over the windows (i, j) that contain pixel (r, c).
extern "C" __global__ void spread(T* x, const T* y, INDEX results) {
    begin();
    INDEX pixel = number();
    if (pixel >= results) return;
    INDEX plane = pixel / (IN_H * IN_W);
    u32 rest = pixel - plane * (IN_H * IN_W);
    Range rows = windows(vertical(), rest / IN_W), columns = windows(horizontal(), rest % IN_W);
    y += plane * (OUT_H * OUT_W);
    R sum = 0;
    for (i32 i = rows.start; i < rows.end; i++) {
        R of_row = 0;
        Range height = window(vertical(), i);
        for (i32 j = columns.start; j < columns.end; j++) {
            Range width = window(horizontal(), j);
            u32 area = AREA > 0 ? AREA : (height.end - height.start) * (width.end - width.start);
            of_row += real(y[i * OUT_W + j]) / R(area);
        }
        sum += of_row;
    }
    x[pixel] = to<T>(sum);
}
#endif
