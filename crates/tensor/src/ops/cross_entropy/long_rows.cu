// What `cross_entropy.cu` computes, for rows of many classes: the threads of a block share a row. Read `rows.cu` first.

// The lowest finite number. −∞ would not do, since −∞ − (−∞) is NaN.
#define LOWEST_FINITE R(sizeof(R) == 8 ? -1.7976931348623157e308 : -3.4028234663852886e38)

// The largest element of a row, and Σ exp(x − largest), which is NaN if an element is.
struct Scale { R largest, sum; };
INLINE Scale scale_of(Row<T>& row, u32 n) {
    R largest = -INFINITY, sum = 0;
    if constexpr (PACKS == 0) { // reads memory once: a thread rescales its sum whenever its largest element grows
        largest = LOWEST_FINITE;
        each_pack(n, [&](int p, u32 i) {
            const R (&x)[V] = row.pack(p, i);
            R before = largest;
            for (int v = 0; v < V; v++) largest = max(largest, x[v]);
            sum *= exp_for<T>(before - largest);
            for (int v = 0; v < V; v++) sum += exp_for<T>(x[v] - largest);
        });
        R all = of_row<0>(largest, [](R a, R b) { return max(a, b); });
        return {all, sum_of_row<1>(sum * exp_for<T>(largest - all))};
    }
    row.each(n, [&](R x) { largest = max(largest, x); });
    largest = of_row<0>(largest, [](R a, R b) { return max(a, b); });
    row.each(n, [&](R x) { sum += exp_for<T>(x - largest); });
    return {largest, sum_of_row<1>(sum)};
}

#ifdef KERNEL_losses
// With HAS_SCALES, scales[r] is written for the gradient.
KERNEL losses(O* y, Scale* scales, const T* x, const i64* target, Fault* fault, u64 site, u64 rows, u32 n) {
    u64 r = row_number(rows);
    Row<T> row(x + r * n, n);
    Scale scale = scale_of(row, n);
    if (threadIdx.x > 0) return;
    if (HAS_SCALES) scales[r] = scale;
    i64 right = target[r];
    R loss = exists(right, n, fault, site) ? log(scale.sum) - (real(x[r * n + right]) - scale.largest)
                                           : real(missing_value());
    y[r] = to<O>(loss);
}
#endif
#ifdef KERNEL_grad
// The gradient of a row's loss is dy[r · step], or 1 if there is none, times the factor.
KERNEL grad(T* dx, const T* x, const O* dy, const i64* target, const Scale* scales, u64 rows, u32 n, u64 step, u64 factor) {
    u64 r = row_number(rows);
    i64 right = target[r];
    R scaled = constant(factor);
    if (HAS_GRAD) scaled = real(dy[r * step]) * scaled;
    Row<T> row(x + r * n, n);
    Scale scale = HAS_SCALES ? scales[r] : scale_of(row, n);
    R share = R(1) / scale.sum;
    each_pack(n, [&](int p, u32 i) {
        R out[V];
        const R (&x)[V] = row.pack(p, i);
        for (int v = 0; v < V; v++)
            out[v] = (exp_for<T>(x[v] - scale.largest) * share - (i + v == u64(right) ? R(1) : R(0))) * scaled;
        write_pack(dx + r * n + i, out);
    });
}
#endif
