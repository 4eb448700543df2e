// Pooling over contiguous planes: y[p, i, j] = the largest or the mean of window (i, j) of x[p].
//
// `largest`, `place_of_largest`, `mean`: `lanes` neighboring threads (a power of two, at most a warp) per window, which
// share its pixels and then combine what they have, in an order that the sizes decide.
// `spread` is the transpose of `mean`: one thread per pixel, which adds up its parts of the windows that have it.

// One side of the planes, which have fewer than 2^31 pixels. Sliding windows have a kernel; those without one cover the plane and overlap where they must.
struct Side { i32 in, out, kernel, stride, padding; };
struct Pool {
    i64 results;    // of all planes
    i64 area;       // pixels by which means are divided; 0: those that the window has
    Side side[2];
    u32 lanes, pad;
};

struct Range { i32 start, end; };

// The pixels of window `i` that lie inside the plane.
INLINE Range window(const Side& s, i32 i) {
    if (s.kernel == 0) return {i32(i64(i) * s.in / s.out), i32((i64(i + 1) * s.in + s.out - 1) / s.out)};
    i32 start = i * s.stride - s.padding;
    return {max(start, 0), min(start + s.kernel, s.in)};
}
// The windows that have pixel `p`.
INLINE Range windows(const Side& s, i32 p) {
    if (s.kernel == 0) return {i32(i64(p) * s.out / s.in), i32((i64(p + 1) * s.out + s.in - 1) / s.in)};
    i32 first = p + s.padding - s.kernel + 1;
    return {first > 0 ? (first + s.stride - 1) / s.stride : 0, min((p + s.padding) / s.stride + 1, s.out)};
}

// Calls `visit(pixel, place in the plane, pixels of the window)` for this thread's share of the window, and gives the
// number of the result. Threads behind the last result do its work again, so that all lanes can talk.
template <typename Visit> INLINE i64 visit_window(const T* x, const Pool& g, Visit visit) {
    i64 result = min(i64(wide_thread_number() / g.lanes), g.results - 1);
    const Side &sy = g.side[0], &sx = g.side[1];
    u32 per_plane = sy.out * sx.out;
    i64 plane = result < 0x80000000ll ? u32(result) / per_plane : result / per_plane;
    u32 rest = result - plane * per_plane;
    Range rows = window(sy, rest / sx.out), columns = window(sx, rest % sx.out);
    x += plane * (sy.in * sx.in);
    u32 width = columns.end - columns.start, pixels = (rows.end - rows.start) * width;
    for (u32 i = threadIdx.x % g.lanes; i < pixels; i += g.lanes) {
        i32 at = (rows.start + i / width) * sx.in + columns.start + i % width;
        visit(real(x[at]), at, pixels);
    }
    return result;
}
INLINE bool is_first_lane(const Pool& g) {
    return threadIdx.x % g.lanes == 0 && i64(wide_thread_number() / g.lanes) < g.results;
}

#define EVERYONE 0xffffffffu

struct Largest { R value; i32 at; };
// NaN is larger than all numbers; the first of equals counts.
INLINE bool is_larger(const Largest& a, const Largest& b) {
    bool a_nan = is_nan(a.value), b_nan = is_nan(b.value);
    if (a_nan || b_nan) return a_nan && (!b_nan || a.at < b.at);
    return a.value > b.value || (a.value == b.value && a.at < b.at);
}
template <typename Write> INLINE void write_largest(const T* x, const Pool& g, Write write) {
    Largest best = {R(-INFINITY), 0x7fffffff};
    i64 result = visit_window(x, g, [&](R value, i32 at, u32) {
        Largest here = {value, at};
        if (is_larger(here, best)) best = here;
    });
    for (u32 other = g.lanes / 2; other > 0; other /= 2) {
        Largest there = {__shfl_xor_sync(EVERYONE, best.value, other), __shfl_xor_sync(EVERYONE, best.at, other)};
        if (is_larger(there, best)) best = there;
    }
    if (is_first_lane(g)) write(result, best);
}
#ifdef KERNEL_largest
extern "C" __global__ void largest(T* y, const T* x, Pool g) {
    write_largest(x, g, [&](i64 result, const Largest& best) { y[result] = to<T>(best.value); });
}
#endif
#ifdef KERNEL_place_of_largest
extern "C" __global__ void place_of_largest(i64* y, const T* x, Pool g) {
    write_largest(x, g, [&](i64 result, const Largest& best) { y[result] = best.at; });
}

#endif
#ifdef KERNEL_mean
extern "C" __global__ void mean(T* y, const T* x, Pool g) {
    R sum = 0;
    i64 area = g.area;
    i64 result = visit_window(x, g, [&](R value, i32, u32 pixels) {
        sum += value;
        area = g.area > 0 ? g.area : pixels;
    });
    for (u32 other = g.lanes / 2; other > 0; other /= 2) sum += __shfl_xor_sync(EVERYONE, sum, other);
    if (is_first_lane(g)) y[result] = to<T>(sum / R(area));
}

#endif
#ifdef KERNEL_spread
// x[p, r, c] = Σ y[p, i, j] / area of (i, j), over the windows (i, j) that have pixel (r, c).
extern "C" __global__ void spread(T* x, const T* y, Pool g) {
    i64 pixel = wide_thread_number();
    if (pixel >= g.results) return;
    const Side &sy = g.side[0], &sx = g.side[1];
    u32 per_plane = sy.in * sx.in;
    i64 plane = pixel < 0x80000000ll ? u32(pixel) / per_plane : pixel / per_plane;
    u32 rest = pixel - plane * per_plane;
    Range rows = windows(sy, rest / sx.in), columns = windows(sx, rest % sx.in);
    y += plane * (sy.out * sx.out);
    R sum = 0;
    for (i32 i = rows.start; i < rows.end; i++) {
        R of_row = 0;
        Range height = window(sy, i);
        for (i32 j = columns.start; j < columns.end; j++) {
            Range width = window(sx, j);
            i64 area = g.area > 0 ? g.area : i64(height.end - height.start) * (width.end - width.start);
            of_row += real(y[i * sx.out + j]) / R(area);
        }
        sum += of_row;
    }
    x[pixel] = to<T>(sum);
}
#endif
