// Layer normalization of the rows of contiguous [rows, n], and its gradients. Read `rows.cu` first.
//
// m = Σ x / n,   s = 1 / √(Σ (x − m)² / n + eps),   x̂ = (x − m) · s
//
// layer_norm        y = x̂ · w + b                                   w, b: [n], or null: ones, zeros
// layer_norm_grad   ẋ = s · (h − Σ h / n − x̂ · Σ h·x̂ / n)            with h = g · w
//
// layer_norm_grads  the same, unless `dx` is null, and each block's part of ẇ = Σ g·x̂ and ḃ = Σ g: `partial` is
//                   [gridDim.x, 2, n]. Sizes alone decide which block has which rows.
// layer_norm_parameters  adds up `partial`: y is [2, n].
//
// CENTERED is 1 for layer_norm. It is 0 for rms_norm: m and the mean of h count as 0, and there is no b, so `partial`
// is [gridDim.x, 1, n].
//
// Halves are computed in f32.

#define PARAMETERS (CENTERED ? 2 : 1)

struct Scale { R mean, factor; };

// The mean of a row, and the factor s of its deviations.
INLINE Scale scale_of(Row<T>& row, u32 n, R eps) {
    R mean = 0, squares = 0;
    if constexpr (CENTERED) {
        R sum = 0;
        row.each(n, [&](R x) { sum += x; });
        mean = sum_of_row<0>(sum) / R(n);
    }
    row.each(n, [&](R x) { R d = x - mean; squares = multiply_add(d, d, squares); });
    return {mean, R(1) / sqrt(sum_of_row<1>(squares) / R(n) + eps)};
}

INLINE void read_or(const T* from, u32 i, R otherwise, R (&to)[V]) {
    if (from) return read_pack(from + i, to);
    for (int v = 0; v < V; v++) to[v] = otherwise;
}

#ifdef KERNEL_layer_norm
KERNEL layer_norm(T* y, const T* x, const T* w, const T* b, u64 rows, u32 n, u64 eps) {
    u64 start = row_number(rows) * n;
    Row<T> row(x + start, n);
    Scale scale = scale_of(row, n, constant(eps));
    each_pack(n, [&](int p, u32 i) {
        R weight[V], bias[V], out[V];
        read_or(w, i, 1, weight);
        read_or(b, i, 0, bias);
        const R (&x)[V] = row.pack(p, i);
        for (int v = 0; v < V; v++) out[v] = multiply_add((x[v] - scale.mean) * scale.factor, weight[v], bias[v]);
        write_pack(y + start + i, out);
    });
}
#endif
#if defined(KERNEL_layer_norm_grad) || defined(KERNEL_layer_norm_grads)
// Writes the gradient of a row if `is_own`. All threads of a block must call this, since it has barriers.
INLINE void grad_of_row(T* dx, Row<T>& row, Row<T>& grads, const T* w, const Scale& scale, u32 n, bool is_own) {
    R means[2] = {}; // of h, and of h·x̂
    each_pack(n, [&](int p, u32 i) {
        R weight[V];
        read_or(w, i, 1, weight);
        const R (&x)[V] = row.pack(p, i), (&g)[V] = grads.pack(p, i);
        for (int v = 0; v < V; v++) {
            R h = g[v] * weight[v];
            if constexpr (CENTERED) means[0] += h;
            means[1] = multiply_add(h, (x[v] - scale.mean) * scale.factor, means[1]);
        }
    });
    if constexpr (CENTERED) sums_of_row<2>(means);
    else means[1] = sum_of_row<2>(means[1]);
    for (int k = 0; k < 2; k++) means[k] /= R(n);
    if (is_own)
        each_pack(n, [&](int p, u32 i) {
            R weight[V], out[V];
            read_or(w, i, 1, weight);
            const R (&x)[V] = row.pack(p, i), (&g)[V] = grads.pack(p, i);
            for (int v = 0; v < V; v++) {
                R normal = (x[v] - scale.mean) * scale.factor;
                out[v] = scale.factor * (g[v] * weight[v] - means[0] - normal * means[1]);
            }
            write_pack(dx + i, out);
        });
}
#endif
#ifdef KERNEL_layer_norm_grad
KERNEL layer_norm_grad(T* dx, const T* x, const T* g, const T* w, u64 rows, u32 n, u64 eps) {
    u64 start = row_number(rows) * n;
    Row<T> row(x + start, n), grads(g + start, n);
    grad_of_row(dx + start, row, grads, w, scale_of(row, n, constant(eps)), n, true);
}
#endif
#ifdef KERNEL_layer_norm_grads
KERNEL layer_norm_grads(T* dx, R* partial, const T* x, const T* g, const T* w, u64 rows, u32 n, u64 eps) {
    static_assert(PACKS > 0, "sums are kept in registers");
    R sums[PARAMETERS][KEPT][V] = {};
    u64 stride = u64(gridDim.x) * blockDim.y;
    for (u64 first = u64(blockIdx.x) * blockDim.y; first < rows; first += stride) { // equally often for all threads
        u64 own = first + threadIdx.y, start = min(own, rows - 1) * n;
        Row<T> row(x + start, n), grads(g + start, n);
        Scale scale = scale_of(row, n, constant(eps));
        if (dx) grad_of_row(dx + start, row, grads, w, scale, n, own < rows);
        else if (!CENTERED) __syncthreads(); // the next row's sum overwrites this one's
        if (own < rows)
            each_pack(n, [&](int p, u32 i) {
                const R (&x)[V] = row.pack(p, i), (&g)[V] = grads.pack(p, i);
                for (int v = 0; v < V; v++) {
                    sums[0][p][v] = multiply_add(g[v], (x[v] - scale.mean) * scale.factor, sums[0][p][v]);
                    if constexpr (CENTERED) sums[PARAMETERS - 1][p][v] += g[v];
                }
            });
    }
    // From the last row of threads in a block to the first, each adds its sums to those of the rows after it.
    extern __shared__ __align__(16) unsigned char shared[];
    R* others = reinterpret_cast<R*>(shared); // [PARAMETERS, n], if there are several
    for (u32 y = blockDim.y; y-- > 0;) {
        if (threadIdx.y == y)
            for (int k = 0; k < PARAMETERS; k++)
                each_pack(n, [&](int p, u32 i) {
                    for (int v = 0; v < V; v++) {
                        R sum = sums[k][p][v];
                        if (y + 1 < blockDim.y) sum += others[k * n + i + v];
                        if (y > 0) others[k * n + i + v] = sum;
                        else partial[(u64(blockIdx.x) * PARAMETERS + k) * n + i + v] = sum;
                    }
                });
        if (blockDim.y > 1) __syncthreads();
    }
}
#endif
#ifdef KERNEL_layer_norm_parameters
// y[j] = Σ partial[block, j] for j < columns = PARAMETERS · n.   A block computes 32 columns, with 8 threads each.
extern "C" __global__ void __launch_bounds__(256) layer_norm_parameters(T* y, const R* partial, u32 blocks, u32 columns) {
    __shared__ R parts[8][33];
    u32 lane = threadIdx.x % 32, part = threadIdx.x / 32, j = blockIdx.x * 32 + lane;
    R sum = 0;
    if (j < columns)
        #pragma unroll 4
        for (u32 block = part; block < blocks; block += 8) sum += partial[u64(block) * columns + j];
    parts[part][lane] = sum;
    __syncthreads();
    if (part > 0 || j >= columns) return;
    for (int k = 1; k < 8; k++) sum += parts[k][lane];
    y[j] = to<T>(sum);
}
#endif
