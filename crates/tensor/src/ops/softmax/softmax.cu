// Softmax and its logarithm along the rows of contiguous [rows, n], and their gradients. With COLUMNS, along the columns
// of contiguous [outer, n, inner], each computed by one thread. Read `rows.cu` first.
//
// softmax        y = exp(x − max) / Σ exp(x − max)            log_softmax        y = x − max − log Σ exp(x − max)
// softmax_grad   x = y · (g − Σ g·y)                          log_softmax_grad   x = g − exp(y) · Σ g
//
// Halves are computed in f32, and both may be mixed: T and O may differ, and with LAST_IS_WIDE the result y is of
// type R and its gradient g of type T. The largest element may be found without regard to NaN: its exponential makes
// the sum NaN, and so the whole row.

#if LAST_IS_WIDE
typedef R Y;
#else
typedef T Y;
#endif

#define APART (COLUMNS ? inner : 1)
INLINE u64 start_of_row(u64 rows, u32 n, u64 inner) {
    u64 row = row_number(rows);
    // Columns have 32-bit numbers.
    return COLUMNS ? u64(u32(row) / u32(inner)) * n * inner + u32(row) % u32(inner) : row * n;
}

INLINE R largest_of(Row<T>& row, u32 n) {
    R largest = -INFINITY;
    row.each(n, [&](R x) { largest = max(largest, x); });
    return of_row<0>(largest, [](R a, R b) { return max(a, b); });
}

#ifdef KERNEL_softmax
KERNEL softmax(O* y, const T* x, u64 rows, u32 n, u64 inner) {
    u64 start = start_of_row(rows, n, inner);
    Row<T> row(x + start, n, APART);
    R largest = largest_of(row, n), sum = 0;
    each_pack(n, [&](int p, u32 i) {
        const R (&x)[V] = row.pack(p, i);
        for (int v = 0; v < V; v++) {
            sum += row.kept[p][v] = exp_for<O>(x[v] - largest);
        }
    });
    R scale = R(1) / sum_of_row<1>(sum);
    each_pack(n, [&](int p, u32 i) {
        R out[V];
        const R (&x)[V] = row.pack(p, i);
        for (int v = 0; v < V; v++) out[v] = (PACKS > 0 ? x[v] : exp_for<O>(x[v] - largest)) * scale;
        write_pack(y + start + i * APART, out);
    });
}
#endif
#ifdef KERNEL_log_softmax
KERNEL log_softmax(O* y, const T* x, u64 rows, u32 n, u64 inner) {
    u64 start = start_of_row(rows, n, inner);
    Row<T> row(x + start, n, APART);
    R largest = largest_of(row, n), sum = 0;
    row.each(n, [&](R x) { sum += exp_for<O>(x - largest); });
    R log_sum = log(sum_of_row<1>(sum));
    each_pack(n, [&](int p, u32 i) {
        R out[V];
        const R (&x)[V] = row.pack(p, i);
        for (int v = 0; v < V; v++) out[v] = x[v] - largest - log_sum;
        write_pack(y + start + i * APART, out);
    });
}
#endif
#ifdef KERNEL_softmax_grad
KERNEL softmax_grad(O* x, const T* g, const Y* y, u64 rows, u32 n, u64 inner) {
    u64 start = start_of_row(rows, n, inner);
    Row<Y> row(y + start, n, APART);
    Row<T> grads(g + start, n, APART);
    R sum = 0;
    each_pack(n, [&](int p, u32 i) {
        const R (&y)[V] = row.pack(p, i), (&g)[V] = grads.pack(p, i);
        for (int v = 0; v < V; v++) sum += y[v] * g[v];
    });
    sum = sum_of_row<0>(sum);
    each_pack(n, [&](int p, u32 i) {
        R out[V];
        const R (&y)[V] = row.pack(p, i), (&g)[V] = grads.pack(p, i);
        for (int v = 0; v < V; v++) out[v] = y[v] * (g[v] - sum);
        write_pack(x + start + i * APART, out);
    });
}
#endif
#ifdef KERNEL_log_softmax_grad
KERNEL log_softmax_grad(O* x, const T* g, const Y* y, u64 rows, u32 n, u64 inner) {
    u64 start = start_of_row(rows, n, inner);
    Row<Y> row(y + start, n, APART);
    Row<T> grads(g + start, n, APART);
    R sum = 0;
    grads.each(n, [&](R g) { sum += g; });
    sum = sum_of_row<0>(sum);
    each_pack(n, [&](int p, u32 i) {
        R out[V];
        const R (&y)[V] = row.pack(p, i), (&g)[V] = grads.pack(p, i);
        for (int v = 0; v < V; v++) out[v] = g[v] - exp_for<O>(y[v]) * sum;
        write_pack(x + start + i * APART, out);
    });
}
#endif
