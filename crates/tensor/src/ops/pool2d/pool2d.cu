// Pooling over contiguous planes: y[p, i, j] = the largest or the mean of window (i, j) of x[p].
//
// `largest`, `place_of_largest`, `mean`: LANES neighboring threads (a power of two, at most a warp) per window. They
// share its pixels and then combine their results, in an order that depends only on the sizes of planes and windows.
// `spread` is the transpose of `mean`: one thread per pixel, which adds up its shares of all windows that contain it.
// `cuda.rs` defines these constants: KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, PADDING_H, PADDING_W of sliding windows (a
// kernel of 0 means adaptive windows, which cover the plane and overlap where they must); AREA, the divisor of means,
// or 0 if that is the number of pixels in each window; WHOLE, whether the only window of a plane is the plane itself;
// LANES; and WIDE, whether numbers need more than 31 bits.

struct Divisor { u32 magic, shift; }; // i / divisor = (mulhi(i, magic) + i) >> shift for i < 2^31
INLINE u32 divide(u32 i, Divisor by) { return (__umulhi(i, by.magic) + i) >> by.shift; }

// A plane of x or of y.
struct Plane { i32 height, width, pixels; Divisor by_pixels, by_width; }; // fewer than 2^31 pixels
struct Planes { Plane in, out; };

#if WIDE
typedef u64 INDEX;
INLINE u64 plane_of(u64 i, const Plane& plane) { return i / plane.pixels; }
#else
typedef u32 INDEX;
INLINE u32 plane_of(u32 i, const Plane& plane) { return divide(i, plane.by_pixels); }
#endif
INLINE INDEX number() { return INDEX(blockIdx.x) * blockDim.x + threadIdx.x; }

struct Side { i32 in, out, kernel, stride, padding; };
INLINE Side vertical(const Planes& p) { return {p.in.height, p.out.height, KERNEL_H, STRIDE_H, PADDING_H}; }
INLINE Side horizontal(const Planes& p) { return {p.in.width, p.out.width, KERNEL_W, STRIDE_W, PADDING_W}; }

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
template <typename Visit>
INLINE INDEX visit_window(const T* x, INDEX results, const Planes& planes, Visit visit) {
    INDEX result = min(number() / LANES, results - 1);
#if WHOLE
    u32 pixels = planes.in.pixels;
    x += result * pixels;
    for (u32 k = threadIdx.x % LANES; k < pixels; k += LANES) visit(real(x[k]), k, pixels);
#else
    INDEX plane = plane_of(result, planes.out);
    u32 rest = result - plane * planes.out.pixels;
    i32 i = divide(rest, planes.out.by_width), j = rest - i * planes.out.width;
    i32 height = planes.in.height, width = planes.in.width;
    x += plane * planes.in.pixels;
#if LANES == 1 && KERNEL_H > 0 && KERNEL_H * KERNEL_W <= 64
    i32 top = i * STRIDE_H - PADDING_H, left = j * STRIDE_W - PADDING_W;
    #pragma unroll
    for (i32 k = 0; k < KERNEL_H * KERNEL_W; k++) {
        i32 row = top + k / KERNEL_W, column = left + k % KERNEL_W, at = row * width + column;
        if (u32(row) < u32(height) && u32(column) < u32(width)) visit(real(x[at]), at, KERNEL_H * KERNEL_W);
    }
#else
    Range rows = window(vertical(planes), i), columns = window(horizontal(planes), j);
    u32 across = columns.end - columns.start, pixels = (rows.end - rows.start) * across;
    for (u32 k = threadIdx.x % LANES; k < pixels; k += LANES) {
        i32 at = (rows.start + k / across) * width + columns.start + k % across;
        visit(real(x[at]), at, pixels);
    }
#endif
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
template <typename Write>
INLINE void write_largest(const T* x, INDEX results, const Planes& planes, Write write) {
    Largest best = {R(-INFINITY), 0x7fffffff};
    INDEX result = visit_window(x, results, planes, [&](R value, i32 at, u32) {
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
extern "C" __global__ void largest(T* y, const T* x, INDEX results, Planes planes) {
    begin();
    write_largest(x, results, planes, [&](INDEX result, const Largest& best) { y[result] = to<T>(best.value); });
}
#endif
#ifdef KERNEL_place_of_largest
extern "C" __global__ void place_of_largest(i64* y, const T* x, INDEX results, Planes planes) {
    begin();
    write_largest(x, results, planes, [&](INDEX result, const Largest& best) { y[result] = best.at; });
}

#endif
#ifdef KERNEL_mean
extern "C" __global__ void mean(T* y, const T* x, INDEX results, Planes planes) {
    begin();
    R sum = 0;
    u32 area = AREA;
    INDEX result = visit_window(x, results, planes, [&](R value, i32, u32 pixels) {
        sum += value;
        area = AREA > 0 ? AREA : pixels;
    });
    for (u32 other = LANES / 2; other > 0; other /= 2) sum += __shfl_xor_sync(EVERYONE, sum, other);
    if (is_first_lane(results)) y[result] = to<T>(sum / R(area));
}

#endif
#ifdef KERNEL_spread
// x[p, r, c] = Σ y[p, i, j] / area of (i, j), over the windows (i, j) that contain pixel (r, c).
extern "C" __global__ void spread(T* x, const T* y, INDEX results, Planes planes) {
    begin();
    INDEX pixel = number();
    if (pixel >= results) return;
    INDEX plane = plane_of(pixel, planes.in);
    R sum = 0;
#if WHOLE
    sum += real(y[plane]) / R(AREA > 0 ? AREA : planes.in.pixels);
#else
    u32 rest = pixel - plane * planes.in.pixels;
    i32 row = divide(rest, planes.in.by_width), column = rest - row * planes.in.width;
    Side down = vertical(planes), across = horizontal(planes);
    Range rows = windows(down, row), columns = windows(across, column);
    y += plane * planes.out.pixels;
    for (i32 i = rows.start; i < rows.end; i++) {
        R of_row = 0;
        Range height = window(down, i);
        for (i32 j = columns.start; j < columns.end; j++) {
            Range width = window(across, j);
            u32 area = AREA > 0 ? AREA : (height.end - height.start) * (width.end - width.start);
            of_row += real(y[i * planes.out.width + j]) / R(area);
        }
        sum += of_row;
    }
#endif
    x[pixel] = to<T>(sum);
}
#endif
