// out = x × y along dimension 1 (cross product).   x, y, out: [outer, 3, inner], contiguous.   One thread per vector.
struct Sizes { u64 vectors, inner; };

extern "C" __global__ void cross(T* out, const T* x, const T* y, Sizes sizes) {
    begin();
    u64 i = wide_thread_number(), inner = sizes.inner;
    if (i >= sizes.vectors) return;
    u64 at = i / inner * 3 * inner + i % inner;
    R a = real(x[at]), b = real(x[at + inner]), c = real(x[at + 2 * inner]);
    R d = real(y[at]), e = real(y[at + inner]), f = real(y[at + 2 * inner]);
    out[at] = to<T>(minus(times(b, f), times(c, e)));
    out[at + inner] = to<T>(minus(times(c, d), times(a, f)));
    out[at + 2 * inner] = to<T>(minus(times(a, e), times(b, d)));
}
