// correct += the number of rows of x [n, classes] whose largest number is at their label;   total += n.
// Of equal numbers the first counts as larger, and a NaN is larger than any number. One warp per row.

#define THREADS 256
#define WARP 32
#define EVERYONE 0xffffffffu

extern "C" __global__ void __launch_bounds__(THREADS)
count(i64* correct, i64* total, const T* x, const i64* labels, u64 n, u64 classes) {
    begin();
    u64 row = u64(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    x += row < n ? row * classes : 0;
    // Both loads are in flight at once: lanes load the first classes before they know the label.
    R first = row < n && lane < classes ? real(x[lane]) : R(0);
    u64 label = row < n ? u64(labels[row]) : classes;
    R own = __shfl_sync(EVERYONE, first, int(label % WARP));
    bool is_beaten = label >= classes; // a label that is no class, below 0 too, is never right
    if (!is_beaten) {
        if (label >= WARP) own = real(x[label]);
        for (u64 k = lane; k < classes; k += WARP) {
            R other = k == lane ? first : real(x[k]);
            is_beaten |= is_better(other, own) || (k < label && !is_better(own, other));
        }
    }
    bool is_right = !__any_sync(EVERYONE, is_beaten) && lane == 0;
    int right = __syncthreads_count(is_right);
    typedef unsigned long long Count;
    if (threadIdx.x > 0) return;
    // The order of atomic additions does not matter for integers.
    if (right > 0) atomicAdd(reinterpret_cast<Count*>(correct), Count(right));
    if (blockIdx.x == 0) atomicAdd(reinterpret_cast<Count*>(total), Count(n));
}
