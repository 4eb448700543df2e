// y[…, rank of x[…, i, …], …] = i for ranks below k.   x: [outer, n, inner], y: [outer, k, inner] of i64, both contiguous.
//
// One thread per element, which counts those before it: they are smaller (with descending: larger), or equal and come first.
// NaN is larger than all numbers.

extern "C" __global__ void argsort(O* y, const T* x, u64 elements, u64 n, u64 inner, u64 k, u64 descending) {
    begin();
    u64 at = wide_thread_number();
    if (at >= elements) return;
    u64 outer = at / (n * inner), i = at / inner % n, column = at % inner;
    const T* line = x + outer * n * inner + column;
    R mine = real(x[at]);
    u64 rank = 0;
    for (u64 j = 0; j < n; j++) {
        R other = real(line[j * inner]);
        bool is_above = is_better(other, mine), is_below = is_better(mine, other);
        rank += (descending ? is_above : is_below) || (!is_above && !is_below && j < i);
    }
    if (rank < k) y[outer * k * inner + rank * inner + column] = to<O>(i64(i));
}
