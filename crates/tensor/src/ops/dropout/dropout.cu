// y[i] = x[i] · (u[i] ≥ p ? scale : 0), with u from `uniform` of `random.cu` in f32.   x, y: contiguous.
//
// One thread per counter, which gives four numbers. Elements are loaded before these are computed.

extern "C" __global__ void dropout(
    T* y, const T* x, u64 n, u64 seed, u64 position, const u64* shift, u64 stream, f32 p, u64 scale
) {
    begin();
    u64 counter = wide_thread_number();
    u64 at = counter / LANES * (LANES * 4) + counter % LANES;
    T found[4];
    #pragma unroll
    for (int row = 0; row < 4; row++)
        if (at + row * LANES < n) found[row] = x[at + row * LANES];
    f32 u[4];
    units(philox(seed, shifted(position, shift) + counter, stream), u);
    #pragma unroll
    for (int row = 0; row < 4; row++)
        if (at + row * LANES < n) y[at + row * LANES] = to<T>(real(found[row]) * (u[row] >= p ? constant(scale) : R(0)));
}
