// Moves a running mean and variance of n channels towards those of a batch: x = x + share · (s - x), computed in the
// wider type of both and rounded once. From a share of a half on, the formula is that of `lerp_`.   s: [3, n], of
// which the first row is for the mean and the last for the variance. blockIdx.y selects one of the two.

struct Settings { u64 n[6]; f64 share; };

INLINE void moved(T* x, const O* s, u64 n, f64 share) {
    typedef decltype(real(T()) + real(O())) Wide;
    Wide by = Wide(share);
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += u64(gridDim.x) * blockDim.x) {
        Wide from = real(x[i]), towards = real(s[i]);
        x[i] = to<T>(by < Wide(0.5) ? from + by * (towards - from) : towards + (by - Wide(1)) * (towards - from));
    }
}

extern "C" __global__ void move(T* mean, const O* s, T* variance, const O*, Settings settings) {
    begin();
    u64 n = settings.n[0];
    if (blockIdx.y == 0) moved(mean, s, n, settings.share);
    else moved(variance, s + 2 * n, n, settings.share);
}
