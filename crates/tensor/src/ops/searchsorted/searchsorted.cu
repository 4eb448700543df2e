// y[row, j] = how many elements of a sorted row are less than x[row, j] or, with RIGHT, not greater.   y, x: [rows, m], sorted: [rows, n]
// or, where the step from row to row is 0, one row for all. All are contiguous.

extern "C" __global__ void search(i64* y, const T* sorted, const T* x, u64 n, u64 m, u64 total, u64 step) {
    begin();
    u64 i = wide_thread_number();
    if (i >= total) return;
    sorted += i / m * step;
    R value = real(x[i]);
    // All elements are before NaN. Without RIGHT, elements that are NaN are behind all numbers.
    auto is_behind = [&](u64 k) {
        R element = real(sorted[k]);
        return RIGHT ? element > value : value == value && !(element < value);
    };
    u64 place = 0, rest = n;
    while (rest > 1) {
        u64 half = rest / 2;
        if (!is_behind(place + half - 1)) place += half;
        rest -= half;
    }
    y[i] = place + (is_behind(place) ? 0 : 1);
}
