// y[i] = first + i * step. Floats are computed in f64; integers wrap around in i64. first and step are given as bits.
#ifdef KERNEL_range
struct Range {
    u64 first, step, n;
};

extern "C" __global__ void range(O* y, Range r) {
    begin();
    u64 i = wide_thread_number();
    if (i >= r.n) return;
    y[i] = IS_FLOAT ? to<O>(__longlong_as_double(r.first) + f64(i) * __longlong_as_double(r.step)) : to<O>(i64(r.first + i * r.step));
}
#endif

// n numbers from first to last, both included, or base to the power of them. The second half counts from the last.
#ifdef KERNEL_spaced
struct Spaced {
    f64 first, last, step, base;
    u64 n;
};

extern "C" __global__ void spaced(O* y, Spaced s) {
    begin();
    u64 i = wide_thread_number();
    if (i >= s.n) return;
    f64 number = i < s.n / 2 || s.n == 1 ? s.first + f64(i) * s.step : s.last - f64(s.n - 1 - i) * s.step;
    y[i] = to<O>(IS_POWER ? pow(s.base, number) : number);
}
#endif
