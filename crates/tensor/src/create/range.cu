// y[i] = first + i * step. Floats are computed in f64; integers wrap around in i64. first and step are given as bits.

extern "C" __global__ void range(O* y, u64 first, u64 step, u64 n) {
    begin();
    u64 i = wide_thread_number();
    if (i >= n) return;
    y[i] = IS_FLOAT ? to<O>(__longlong_as_double(first) + f64(i) * __longlong_as_double(step)) : to<O>(i64(first + i * step));
}
