// A forward and a backward step of a recurrent layer, without the product with the state. One thread for each number
// of a state.
//
// KIND: 0 tanh, 1 relu, 2 LSTM, 3 GRU. All tensors are contiguous: of_x, of_h, gates are [rows, G · hidden] for G
// gates, the states [rows, hidden]. `at` is the first row of the step. Rows below `carried` have their state before the
// step in the result, from row `before` on; other rows have it in the first states, or have zeros if there are none.

#define G (KIND == 2 ? 4 : KIND == 3 ? 3 : 1)

struct Step {
    u32 rows, hidden, carried, products; // rows below `products` have a product with the state
    u64 at, before;                      // rows
    u64 cells;                           // elements from h to c in the result
};

INLINE R state_before(const T* out, const T* first, const Step& s, u64 cells, u32 row, u32 j) {
    if (row < s.carried) return real(out[cells + (s.before + row) * s.hidden + j]);
    return first ? real(first[u64(row) * s.hidden + j]) : R(0);
}

// The number of the state before that enters the next one without the product: c of an LSTM, h of a GRU.
INLINE R part_before(const T* out, const T* h0, const T* c0, const Step& s, u32 row, u32 j) {
    if (KIND <= 1) return R(0);
    return KIND == 2 ? state_before(out, c0, s, s.cells, row, j) : state_before(out, h0, s, 0, row, j);
}

// Computes one number of a state, given a(x), b(h), and `part_before`, and writes it.
INLINE void finish(T* out, T* kept, T* inner, const Step& s, u32 row, u32 j, R (&x)[G], const R (&h)[G], R before) {
    u64 place = (s.at + row) * s.hidden + j;
    R state;
    if (KIND == 0) state = tanh(x[0] + h[0]);
    if (KIND == 1) state = x[0] + h[0] < R(0) ? R(0) : x[0] + h[0];
    if (KIND == 2) {
        R i = sigmoid(x[0] + h[0]), f = sigmoid(x[1 % G] + h[1 % G]), c = tanh(x[2 % G] + h[2 % G]), o = sigmoid(x[3 % G] + h[3 % G]);
        R cell = f * before + i * c;
        state = o * tanh(cell);
        out[s.cells + place] = to<T>(cell);
        x[0] = i, x[1 % G] = f, x[2 % G] = c, x[3 % G] = o;
    }
    if (KIND == 3) {
        R r = sigmoid(x[0] + h[0]), z = sigmoid(x[1 % G] + h[1 % G]), n = tanh(x[2 % G] + r * h[2 % G]);
        state = n + z * (before - n);
        x[0] = r, x[1 % G] = z, x[2 % G] = n;
        if (kept) inner[place] = to<T>(h[2 % G]);
    }
    out[place] = to<T>(state);
    if (KIND >= 2 && kept)
        for (int g = 0; g < G; g++) kept[((s.at + row) * G + g) * s.hidden + j] = to<T>(x[g]);
}

#ifdef KERNEL_recurrent_step
extern "C" __global__ void recurrent_step(
    T* out, T* kept, T* inner, const T* of_x, const T* of_h, const T* bias, const T* h0, const T* c0, Step s
) {
    begin();
    u32 thread = thread_number(), row = thread / s.hidden, j = thread - row * s.hidden;
    if (row >= s.rows) return;
    R x[G], h[G];
    for (int g = 0; g < G; g++) {
        x[g] = real(of_x[((s.at + row) * G + g) * s.hidden + j]);
        h[g] = row < s.products ? real(of_h[(u64(row) * G + g) * s.hidden + j]) : R(0);
        if (bias) h[g] += real(bias[g * s.hidden + j]);
    }
    finish(out, kept, inner, s, row, j, x, h, part_before(out, h0, c0, s, row, j));
}
#endif

// `recurrent_step` and the product of the state with the weight, [G · hidden, hidden], on tensor cores. A block
// computes UNITS numbers of the states of ROWS sequences. Each warp takes its share of k, and the shares are added in
// a fixed order.
//
// T is a half type, or f32, whose factors are rounded to TF32. `hidden` is a multiple of 32, and rows begin at
// multiples of 16 bytes. A lane copies 16 bytes of a row at once to shared memory, STAGES - 1 shares ahead, and reads
// only what it has copied itself. Its columns along k therefore differ from PTX's layout of fragments, but equally
// for both factors, and the order along k does not matter.
//
// Constant: STAGES. Grid: hidden / UNITS blocks for every ROWS sequences, of WARPS warps.
#ifdef KERNEL_recurrent_step_with_product
#define ROWS 64
#define UNITS 8
#define WARPS 8
#define THREADS (WARPS * 32)
#define STATES (ROWS / 8)                // that a lane copies: of one in eight sequences
#define RESULTS (ROWS * UNITS / THREADS) // per thread
#define COPIED u32(16 / sizeof(T))       // numbers that a lane copies at once

struct __align__(16) Factor { u32 at[4]; };

INLINE void copy(Factor* to, const T* row, u32 k) {
    u32 bytes = row ? 16 : 0; // else zeros
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(u32(__cvta_generic_to_shared(to))), "l"(row + k), "r"(bytes) : "memory");
}

INLINE u32 rounded_to_tf32(f32, u32 x) { asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(x) : "f"(__uint_as_float(x))); return x; }
template <typename Half> INLINE u32 rounded_to_tf32(Half, u32 x) { return x; }
INLINE Factor rounded_to_tf32(Factor x) {
    for (int i = 0; i < 4; i++) x.at[i] = rounded_to_tf32(T(), x.at[i]);
    return x;
}

#define MULTIPLY(shape, types)                                                                                                  \
    asm("mma.sync.aligned." shape ".row.col.f32." types ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                                            \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

// 16 rows of `a` by 8 of `b`.
INLINE void multiply(f32, R (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) { MULTIPLY("m16n8k8", "tf32.tf32"); }
INLINE void multiply(f16, R (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) { MULTIPLY("m16n8k16", "f16.f16"); }
INLINE void multiply(bf16, R (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) { MULTIPLY("m16n8k16", "bf16.bf16"); }

extern "C" __global__ void __launch_bounds__(THREADS) recurrent_step_with_product(
    T* out, T* kept, T* inner, const T* of_x, const T* weight, const T* bias, const T* h0, const T* c0, Step s
) {
    begin();
    extern __shared__ Factor copies[]; // [STAGES, STATES + G, THREADS]
    u32 warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, k = (threadIdx.x % 4 + warp * 4) * COPIED;
    u32 first_row = blockIdx.y * ROWS, first_unit = blockIdx.x * UNITS;
    const T *rows[STATES + G];
    for (int i = 0; i < STATES; i++) {
        u32 row = first_row + i * 8 + group;
        bool is_carried = row < s.carried, is_first = h0 && row < s.products;
        rows[i] = is_carried ? out + (s.before + row) * s.hidden : is_first ? h0 + u64(row) * s.hidden : nullptr;
    }
    for (int g = 0; g < G; g++) rows[STATES + g] = weight + u64(g * s.hidden + first_unit + group) * s.hidden;
    const u32 distance = WARPS * 4 * COPIED; // from a share of k to the same warp's next
    auto copy_share = [&](u32 share) {
        Factor* to = copies + share % STAGES * (STATES + G) * THREADS + threadIdx.x;
        if (k + share * distance < s.hidden)
            for (int i = 0; i < STATES + G; i++) copy(to + i * THREADS, rows[i], k + share * distance);
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    for (u32 share = 0; share + 1 < STAGES; share++) copy_share(share);
    u32 unit = threadIdx.x % UNITS, j = first_unit + unit;
    R x[RESULTS][G], before[RESULTS]; // loaded before they are needed
    #pragma unroll
    for (int i = 0; i < RESULTS; i++) {
        u32 row = first_row + (threadIdx.x + i * THREADS) / UNITS;
        for (int g = 0; g < G; g++) x[i][g] = row < s.rows ? real(of_x[((s.at + row) * G + g) * s.hidden + j]) : R(0);
        before[i] = row < s.rows ? part_before(out, h0, c0, s, row, j) : R(0);
    }

    R sums[ROWS / 16][G][4] = {};
    #pragma unroll 1
    for (u32 share = 0; k + share * distance < s.hidden; share++) {
        copy_share(share + STAGES - 1);
        asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 1) : "memory");
        const Factor* from = copies + share % STAGES * (STATES + G) * THREADS + threadIdx.x;
        Factor b[G];
        #pragma unroll
        for (int i = 0; i < G; i++) b[i] = rounded_to_tf32(from[(STATES + i) * THREADS]);
        #pragma unroll
        for (int i = 0; i < ROWS / 16; i++) {
            Factor a[] = {rounded_to_tf32(from[2 * i * THREADS]), rounded_to_tf32(from[(2 * i + 1) * THREADS])};
            #pragma unroll
            for (int j = 0; j < 2 * G; j++) {
                int low = j % 2 * 2, high = low + 1;
                multiply(T(), sums[i][j / 2], {a[0].at[low], a[1].at[low], a[0].at[high], a[1].at[high]},
                         {b[j / 2].at[low], b[j / 2].at[high]});
            }
        }
    }
    __syncthreads();
    // The warps of the second half write their sums, then the warps of the first half add theirs.
    R* shares = (R*)copies; // [WARPS / 2, G, ROWS, UNITS]
    #pragma unroll
    for (u32 turn = 0; turn < 2; turn++) {
        if ((warp < WARPS / 2) == (turn == 1)) {
            #pragma unroll
            for (int i = 0; i < ROWS / 8 * G; i++) {
                R* sum = &sums[i / (2 * G)][i / 2 % G][i % 2 * 2];
                u32 row = i / (2 * G) * 16 + i % 2 * 8 + group, column = threadIdx.x % 4 * 2;
                u32 place = ((warp % (WARPS / 2) * G + i / 2 % G) * ROWS + row) * UNITS + column;
                Pack<R, 2>& share = *(Pack<R, 2>*)(shares + place);
                Pack<R, 2> others = turn == 0 ? Pack<R, 2>{} : share;
                share = {others.at[0] + sum[0], others.at[1] + sum[1]};
            }
        }
        __syncthreads();
    }
    #pragma unroll
    for (int i = 0; i < RESULTS; i++) {
        u32 row = (threadIdx.x + i * THREADS) / UNITS;
        R h[G];
        for (int g = 0; g < G; g++) {
            h[g] = bias ? real(bias[g * s.hidden + j]) : R(0);
            for (int share = 0; share < WARPS / 2; share++)
                h[g] += shares[(share * G + g) * ROWS * UNITS + row * UNITS + unit];
        }
        if (first_row + row < s.rows) finish(out, kept, inner, s, first_row + row, j, x[i], h, before[i]);
    }
}
#endif

// A backward step. Rows below `products` have a gradient from the steps behind this one: of the state in of_state
// and, for a GRU, in `direct`; of an LSTM's c in `c`.
#ifdef KERNEL_recurrent_step_grad
extern "C" __global__ void recurrent_step_grad(
    T* of_x, T* of_h, T* c, T* direct, const T* grad, const T* of_state, const T* kept, const T* inner, const T* out,
    const T* h0, const T* c0, Step s
) {
    begin();
    u32 thread = thread_number(), row = thread / s.hidden, j = thread - row * s.hidden;
    if (row >= s.rows) return;
    u64 place = (s.at + row) * s.hidden + j, here = u64(row) * s.hidden + j;
    bool goes_on = row < s.products;
    R of = real(grad[place]) + (goes_on ? real(of_state[here]) : R(0));
    if (KIND == 3 && goes_on) of += real(direct[here]);
    R x[G], h[G];
    R gate[G];
    for (int g = 0; g < G; g++) gate[g] = KIND >= 2 ? real(kept[((s.at + row) * G + g) * s.hidden + j]) : R(0);
    if (KIND <= 1) {
        R y = real(out[place]);
        x[0] = KIND == 0 ? of * (R(1) - y * y) : y > R(0) ? of : R(0);
    }
    if (KIND == 2) {
        R i = gate[0], f = gate[1 % G], g = gate[2 % G], o = gate[3 % G], t = tanh(real(out[s.cells + place]));
        R of_c = real(grad[s.cells + place]) + (goes_on ? real(c[here]) : R(0)) + of * o * (R(1) - t * t);
        x[0] = of_c * g * i * (R(1) - i);
        x[1 % G] = of_c * state_before(out, c0, s, s.cells, row, j) * f * (R(1) - f);
        x[2 % G] = of_c * i * (R(1) - g * g);
        x[3 % G] = of * t * o * (R(1) - o);
        c[here] = to<T>(of_c * f);
    }
    if (KIND == 3) {
        R r = gate[0], z = gate[1 % G], n = gate[2 % G];
        R of_n = of * (R(1) - z) * (R(1) - n * n);
        x[0] = of_n * real(inner[place]) * r * (R(1) - r);
        x[1 % G] = of * (state_before(out, h0, s, 0, row, j) - n) * z * (R(1) - z);
        x[2 % G] = of_n;
        h[0] = x[0], h[1 % G] = x[1 % G], h[2 % G] = of_n * r;
        direct[here] = to<T>(of * z);
    }
    for (int g = 0; g < G; g++) {
        of_x[((s.at + row) * G + g) * s.hidden + j] = to<T>(x[g]);
        if (KIND == 3) of_h[((s.at + row) * G + g) * s.hidden + j] = to<T>(h[g]);
    }
}
#endif
