// The negative log-likelihood of the right classes after a log-softmax, and its gradient.   x: [rows, classes], contiguous.
//
// loss[r] = log Σ_c exp(x[r, c]) − x[r, target[r]]          ẋ[r, c] = (exp(x[r, c]) / Σ_c exp(x[r, c]) − [c = target[r]]) · ẏ[r]
//
// LANES neighboring threads (a power of two, at most a warp) compute a row. If there are no more classes than LANES,
// each thread has one class, which it reads once. Halves are computed in f32. `cuda.rs` defines LANES.

struct Rows {
    u64 rows, classes;
    u64 factor;     // multiplies the sum of losses, or the gradient; the bits of an R
    u64 grad_step;  // the distance between the gradients of rows: 1, or 0 if all rows share one
};

INLINE R larger(R a, R b) { return b > a || is_nan(b) ? b : a; }

// For the threads of a row: `mine`, a thread's first element; the row's largest element; and Σ exp(x[c] − largest).
struct Scale { R mine, largest, sum; };
INLINE Scale scale_of(const T* x, const Rows& g) {
    u32 lane = threadIdx.x % LANES;
    R mine = lane < g.classes ? real(x[lane]) : R(-INFINITY), largest = mine;
    for (u64 c = lane + LANES; c < g.classes; c += LANES) largest = larger(largest, real(x[c]));
    for (u32 other = LANES / 2; other > 0; other /= 2) largest = larger(largest, from_lane(largest, other));
    R sum = lane < g.classes ? exp(mine - largest) : R(0);
    for (u64 c = lane + LANES; c < g.classes; c += LANES) sum += exp(real(x[c]) - largest);
    return {mine, largest, sum_of_lanes(sum, LANES)};
}
// The loss of a row, for the first of its threads.
INLINE R loss_of(const T* x, i64 right, const Scale& scale, const Rows& g, Fault* fault, u64 site) {
    R score = __shfl_sync(EVERYONE, scale.mine, u32(right) % LANES, LANES);
    if (!exists(right, g.classes, fault, site)) return real(missing_value());
    return log(scale.sum) - ((right < LANES ? score : real(x[right])) - scale.largest);
}

// Writes the gradient of a row; each thread writes every LANES-th class.
INLINE void write_grad(T* dx, const T* x, i64 right, const Scale& scale, R factor, const Rows& g) {
    u64 c = threadIdx.x % LANES;
    R share = R(1) / scale.sum;
    for (R score = scale.mine; c < g.classes; c += LANES, score = c < g.classes ? real(x[c]) : R(0))
        dx[c] = to<T>((exp(score - scale.largest) * share - (c == u64(right) ? R(1) : R(0))) * factor);
}

#ifdef KERNEL_losses
// One loss for each row. Groups of threads beyond the last row compute the last row again.
extern "C" __global__ void losses(O* y, const T* x, const i64* target, Fault* fault, u64 site, Rows g) {
    begin();
    u64 row = min(wide_thread_number() / LANES, g.rows - 1);
    x += row * g.classes;
    R loss = loss_of(x, target[row], scale_of(x, g), g, fault, site);
    if (threadIdx.x % LANES == 0) y[row] = to<O>(loss);
}

#endif
#ifdef KERNEL_total
// The sum of losses times the factor, by one block, and with HAS_GRAD its gradient.
extern "C" __global__ void __launch_bounds__(1024) total(O* y, T* dx, const T* x, const i64* target, Fault* fault, u64 site, Rows g) {
    begin();
    __shared__ R sums[1024];
    u32 groups = blockDim.x / LANES, group = threadIdx.x / LANES;
    R sum = 0;
    for (u64 start = 0; start < g.rows; start += groups) {
        u64 row = min(start + group, g.rows - 1), at = row * g.classes;
        i64 right = target[row];
        Scale scale = scale_of(x + at, g);
        R loss = loss_of(x + at, right, scale, g, fault, site);
        if (start + group < g.rows) sum += loss;
        if (HAS_GRAD) write_grad(dx + at, x + at, right, scale, constant(g.factor), g);
    }
    if (threadIdx.x % LANES == 0) sums[group] = sum;
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    R result = 0;
    for (u32 i = threadIdx.x; i < groups; i += WARP) result += sums[i];
    result = sum_of_lanes(result, WARP);
    if (threadIdx.x == 0) *y = to<O>(result * constant(g.factor));
}

#endif
#ifdef KERNEL_grad
extern "C" __global__ void grad(T* dx, const T* x, const O* dy, const i64* target, Rows g) {
    begin();
    u64 row = min(wide_thread_number() / LANES, g.rows - 1), at = row * g.classes;
    R factor = constant(g.factor);
    if (HAS_GRAD) factor = real(dy[row * g.grad_step]) * factor;
    write_grad(dx + at, x + at, target[row], scale_of(x + at, g), factor, g);
}
#endif
