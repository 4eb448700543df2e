// The negative log-likelihood of the right classes after a log-softmax, and its gradient.   x: [rows, classes], contiguous.
//
// loss[r] = log Σ_c exp(x[r, c]) − x[r, target[r]]          ẋ[r, c] = (exp(x[r, c]) / Σ_c exp(x[r, c]) − [c = target[r]]) · ẏ[r]
//
// A group of `lanes` neighboring threads (a power of two, at most a warp) computes a row. Halves are computed in f32.

struct Rows {
    u64 rows, classes;
    u64 lanes;
    u64 factor;     // of the losses' sum, or of the gradient: the bytes of an R
    u64 grad_step;  // from one row's gradient to the next: 1, or 0 if there is one for all
};

INLINE R larger(R a, R b) { return b > a || is_nan(b) ? b : a; }

// A row's largest element, and log Σ exp(x[c] − largest), for all of its threads.
struct Scale { R largest, log; };
INLINE Scale scale_of(const T* x, const Rows& g) {
    u32 lanes = g.lanes, lane = threadIdx.x % lanes;
    R largest = -INFINITY, sum = 0;
    for (u64 c = lane; c < g.classes; c += lanes) largest = larger(largest, real(x[c]));
    for (u32 other = lanes / 2; other > 0; other /= 2) largest = larger(largest, from_lane(largest, other));
    for (u64 c = lane; c < g.classes; c += lanes) sum += exp(real(x[c]) - largest);
    return {largest, log(sum_of_lanes(sum, lanes))};
}
INLINE R loss_of(const T* x, const i64* target, u64 row, const Rows& g, Fault* fault, u64 site) {
    x += row * g.classes;
    i64 right = target[row];
    Scale scale = scale_of(x, g);
    return exists(right, g.classes, fault, site) ? scale.log - (real(x[right]) - scale.largest) : real(nothing());
}

#ifdef KERNEL_losses
// One loss for each row. Groups behind the last row compute it again.
extern "C" __global__ void losses(T* y, const T* x, const i64* target, Fault* fault, u64 site, Rows g) {
    u64 row = min(wide_thread_number() / g.lanes, g.rows - 1);
    R loss = loss_of(x, target, row, g, fault, site);
    if (threadIdx.x % g.lanes == 0) y[row] = to<T>(loss);
}

#endif
#ifdef KERNEL_total
// The losses' sum times the factor, by one block.
extern "C" __global__ void __launch_bounds__(1024) total(T* y, const T* x, const i64* target, Fault* fault, u64 site, Rows g) {
    u64 groups = blockDim.x / g.lanes, first = threadIdx.x / g.lanes;
    R sums[1] = {0}, result[1];
    for (u64 start = 0; start < g.rows; start += groups) {
        u64 row = start + first;
        R loss = loss_of(x, target, min(row, g.rows - 1), g, fault, site);
        if (row < g.rows && threadIdx.x % g.lanes == 0) sums[0] += loss;
    }
    __shared__ R shared[1];
    sums_of_block(sums, shared);
    if (threadIdx.x == 0) *y = to<T>(shared[0] * constant(g.factor));
}

#endif
#ifdef KERNEL_grad
extern "C" __global__ void grad(T* dx, const T* x, const T* dy, const i64* target, Rows g) {
    u64 row = min(wide_thread_number() / g.lanes, g.rows - 1);
    x += row * g.classes, dx += row * g.classes;
    Scale scale = scale_of(x, g);
    R factor = real(dy[row * g.grad_step]) * constant(g.factor);
    u64 right = target[row];
    for (u64 c = threadIdx.x % g.lanes; c < g.classes; c += g.lanes)
        dx[c] = to<T>((exp(real(x[c]) - scale.largest - scale.log) - (c == right ? R(1) : R(0))) * factor);
}
#endif
