// All forward steps of a recurrent layer in one launch, and all backward steps in another: for sequences of equal
// length, and states so small that the weight of the state fits into the registers of a few multiprocessors.
//
// A cluster of CLUSTER blocks computes ROWS sequences. Its threads keep the weight in registers. A block computes
// UNITS numbers of each state, a warp four of them. Blocks send them to each other's shared memory, where the next
// step reads them. Clusters never wait for one another.
//
// KIND, G and layouts as in recurrent.cu. Constants: HIDDEN, CLUSTER (2, 4 or 8), ROWS (1 or 2). Grid: CLUSTER blocks
// of THREADS threads for every ROWS sequences. Products are sums of fused multiply-adds in f32.

#define G (KIND == 2 ? 4 : KIND == 3 ? 3 : 1)
#define S (KIND >= 2 ? 4 : 1)            // slots for the gates of one number: a power of two
#define PADDED ((HIDDEN + 31) / 32 * 32) // numbers past HIDDEN are zeros
#define PACKS (PADDED / 32)
#define UNITS (PADDED / CLUSTER)
#define THREADS (UNITS * 8)
#define SENDS ((CLUSTER + 3) / 4) // blocks that a thread sends to

struct Sequences {
    u32 steps, batch, reverse, wants_h0;
    u64 cells; // elements from h to c in the result
};

// ---- what the blocks of a cluster send each other --------------------------------------------------------------------

INLINE u32 address(const void* shared) { return u32(__cvta_generic_to_shared(shared)); }
INLINE u32 of_block(u32 address, u32 block) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    return there;
}

// N numbers of each sequence, which every block receives from all blocks. A set's barrier (an mbarrier) completes
// when all bytes of the set have arrived.
//
// There are two sets: one is filled while the other is read. No block fills a set that is still read: before a block
// sends for step k + 2, it has received everything for step k + 1, and every warp sends for step k + 1 only after it
// has read step k.
template <int N> struct __align__(16) Exchange {
    R numbers[2][ROWS * N];
    u64 barriers[2];
};

// Called by one thread, once for each phase of a barrier.
template <int N> INLINE void expect(Exchange<N>& e, u32 set) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(address(&e.barriers[set])), "r"(u32(sizeof e.numbers[0])) : "memory");
}
// Called by one thread, before `all_blocks_are_ready`.
template <int N> INLINE void prepare(Exchange<N>& e) {
    for (int set = 0; set < 2; set++)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(address(&e.barriers[set])) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int set = 0; set < 2; set++) expect(e, set);
}
INLINE void all_blocks_are_ready() {
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}
// Waits for the numbers of a step, counted from 0, and returns them.
template <int N> INLINE const R* received(Exchange<N>& e, u32 step) {
    u32 barrier = address(&e.barriers[step & 1]), is_complete = 0;
    while (!is_complete)
        asm volatile("{ .reg .pred complete; mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2; selp.u32 %0, 1, 0, complete; }"
                     : "=r"(is_complete) : "r"(barrier), "r"(step >> 1 & 1) : "memory");
    if (threadIdx.x == 0) expect(e, step & 1);
    return e.numbers[step & 1];
}
INLINE void send(Pack<R, 1> x, u32 to, u32 barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                 :: "r"(to), "r"(__float_as_uint(x.at[0])), "r"(barrier) : "memory");
}
INLINE void send(Pack<R, 4> x, u32 to, u32 barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                 :: "r"(to), "r"(__float_as_uint(x.at[0])), "r"(__float_as_uint(x.at[1])), "r"(__float_as_uint(x.at[2])),
                    "r"(__float_as_uint(x.at[3])), "r"(barrier) : "memory");
}

// ---- which lane computes what ---------------------------------------------------------------------------------------

// A number of a state belongs to eight lanes. Four of them have one gate each, of the first sequence; the other four
// do the same for the second sequence, or repeat the first if there is only one.
struct Place {
    u32 lane, first_unit, unit, gate, sequence, row;
    bool is_there, is_repeat;
};
INLINE Place place(const Sequences& s) {
    Place p;
    p.lane = threadIdx.x % 32;
    p.first_unit = blockIdx.x % CLUSTER * UNITS + threadIdx.x / 32 * 4;
    p.unit = p.first_unit + p.lane / 8;
    p.gate = p.lane % 4;
    p.sequence = ROWS == 2 ? p.lane / 4 % 2 : 0;
    p.row = blockIdx.x / CLUSTER * ROWS + p.sequence;
    p.is_there = p.row < s.batch && p.unit < HIDDEN;
    p.is_repeat = ROWS == 1 && p.lane & 4;
    return p;
}

// The blocks to which a lane sends. The four lanes of a number divide the blocks among them.
template <int N> struct Sender {
    Exchange<N>& e;
    u32 there[SENDS], number;

    __device__ __forceinline__ Sender(Exchange<N>& e, const Place& p) : e(e), number(p.sequence * N + p.unit * (N / PADDED)) {
        for (int i = 0; i < SENDS; i++) there[i] = of_block(address(&e), (p.gate + 4 * i) % CLUSTER);
    }
    template <int V> __device__ __forceinline__ void send_to_all(Pack<R, V> x, u32 step, const Place& p) const {
        u32 to = address(&e.numbers[step & 1][number]) - address(&e), barrier = address(&e.barriers[step & 1]) - address(&e);
        for (int i = 0; i < SENDS; i++)
            if (p.gate + 4 * i < CLUSTER && !p.is_repeat) send(x, there[i] + to, there[i] + barrier);
    }
};

// Reduces N numbers to N / 2: a lane keeps the half that `bit` of its index selects, and adds the same half from the
// lane whose index differs in `bit`.
template <int N> INLINE void halve(R* x, u32 lane, u32 bit) {
    for (int i = 0; i < N / 2; i++) {
        R keep = lane & bit ? x[N / 2 + i] : x[i], give = lane & bit ? x[i] : x[N / 2 + i];
        x[i] = keep + __shfl_xor_sync(~0u, give, bit);
    }
}
// Adds the N numbers of the lane that differs in `bit`; both lanes get the sums.
template <int N> INLINE void add_both(R* x, u32 bit) {
    for (int i = 0; i < N; i++) x[i] += __shfl_xor_sync(~0u, x[i], bit);
}

INLINE R of_lane(R x, u32 lane, u32 gate) { return __shfl_sync(~0u, x, (lane & ~3u) + gate); }
INLINE R element_or_zero(const T* at, bool is_there) { return is_there ? real(*at) : R(0); }

// The row of a sequence at a step, counted in the order of computing.
INLINE u64 row_at(const Sequences& s, u32 step, u32 row) { return u64(s.reverse ? s.steps - 1 - step : step) * s.batch + row; }

#ifdef KERNEL_recurrent_steps
extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(THREADS) recurrent_steps(
    T* out, T* kept, T* inner, const T* of_x, const T* weight, const T* bias, const T* h0, const T* c0, Sequences s
) {
    begin();
    __shared__ Exchange<PADDED> states;
    Place p = place(s);
    R w[G][PACKS][4]; // the rows of one number, an eighth of the columns
    #pragma unroll
    for (int i = 0; i < G * PACKS * 4; i++) {
        u32 g = i / (PACKS * 4), column = i / 4 % PACKS * 32 + p.lane % 8 * 4 + i % 4;
        bool is_there = p.unit < HIDDEN && column < HIDDEN;
        w[g][i / 4 % PACKS][i % 4] = element_or_zero(weight + u64(g * HIDDEN + p.unit) * HIDDEN + column, is_there);
    }
    if (threadIdx.x == 0) prepare(states);
    for (u32 i = threadIdx.x; i < ROWS * PADDED; i += THREADS) {
        u32 row = blockIdx.x / CLUSTER * ROWS + i / PADDED, column = i % PADDED;
        states.numbers[1][i] = element_or_zero(h0 + u64(row) * HIDDEN + column, h0 && row < s.batch && column < HIDDEN);
    }
    Sender<PADDED> sender(states, p);
    bool has_gate = p.gate < G && p.unit < HIDDEN;
    R bias_of_h = element_or_zero(bias + p.gate * HIDDEN + p.unit, KIND == 3 && bias && has_gate);
    u64 first = u64(p.row) * HIDDEN + p.unit;
    R state = element_or_zero(h0 + first, h0 && p.is_there), cell = element_or_zero(c0 + first, c0 && p.is_there);
    auto input = [&](u32 step) {
        u64 at = (row_at(s, step, p.row) * G + p.gate) * HIDDEN + p.unit;
        return element_or_zero(of_x + at, step < s.steps && p.gate < G && p.is_there);
    };
    R next = input(0);
    all_blocks_are_ready();

    #pragma unroll 1
    for (u32 step = 0; step < s.steps; step++) {
        R x = next;
        next = input(step + 1);
        const R* before = step == 0 ? states.numbers[1] : received(states, step - 1);
        R sums[ROWS * S] = {};
        #pragma unroll
        for (int i = 0; i < PACKS * ROWS; i++) {
            int r = i % ROWS;
            Pack<R, 4> h = *(const Pack<R, 4>*)(before + r * PADDED + i / ROWS * 32 + p.lane % 8 * 4);
            #pragma unroll
            for (int j = 0; j < 4 * G; j++)
                sums[r * S + j % G] = __fmaf_rn(w[j % G][i / ROWS][j / G], h.at[j / G], sums[r * S + j % G]);
        }
        if (ROWS == 2) halve<ROWS * S>(sums, p.lane, 4);
        else add_both<S>(sums, 4);
        if (S == 4) {
            halve<S>(sums, p.lane, 2);
            halve<S / 2>(sums, p.lane, 1);
        } else {
            add_both<1>(sums, 2);
            add_both<1>(sums, 1);
        }
        R b = sums[0] + bias_of_h, gate;
        if (KIND <= 1) {
            R sum = of_lane(x, p.lane, 0) + b; // all lanes take part in the shuffle
            state = KIND == 0 ? tanh(sum) : sum < R(0) ? R(0) : sum;
        }
        if (KIND == 2) {
            gate = p.gate == 2 ? tanh(x + b) : sigmoid(x + b);
            R i = of_lane(gate, p.lane, 0), f = of_lane(gate, p.lane, 1), g = of_lane(gate, p.lane, 2);
            cell = rounded(f * cell + i * g);
            state = of_lane(gate, p.lane, 3) * tanh(cell);
        }
        if (KIND == 3) {
            gate = sigmoid(x + b);
            R n = tanh(x + of_lane(gate, p.lane, 0) * b), z = of_lane(gate, p.lane, 1);
            gate = p.gate == 2 ? n : gate;
            n = of_lane(n, p.lane, 2);
            state = n + z * (state - n);
        }
        state = p.is_there ? rounded(state) : R(0);
        if (step + 1 < s.steps) sender.send_to_all(Pack<R, 1>{{state}}, step, p);
        if (!p.is_there || p.is_repeat) continue;
        u64 row = row_at(s, step, p.row), at = row * HIDDEN + p.unit;
        if (p.gate == 0) out[at] = to<T>(state);
        if (KIND == 2 && p.gate == 1) out[s.cells + at] = to<T>(cell);
        if (KIND == 3 && kept && p.gate == 2) inner[at] = to<T>(b);
        if (KIND >= 2 && kept && p.gate < G) kept[(row * G + p.gate) * HIDDEN + p.unit] = to<T>(gate);
    }
}
#endif

#ifdef KERNEL_recurrent_steps_grad

// The inputs from which the gradient of one number at one step is computed.
struct Saved {
    R grad, grad_c, gate[G], inner, after, before;
};

// Computed from `Saved` before the later step's gradient arrives: that gradient's factors for the gates, for c of an
// LSTM or b(h)ₙ of a GRU (`inner`), and for the state before (`carried`).
struct Factors {
    R grad, grad_c, gate[G], inner, carried;
};

INLINE Factors factors(const Saved& x) {
    Factors y = {};
    y.grad = x.grad;
    if (KIND == 0) y.gate[0] = R(1) - x.after * x.after;
    if (KIND == 1) y.gate[0] = x.after;
    if (KIND == 2) {
        R i = x.gate[0], f = x.gate[1 % G], g = x.gate[2 % G], o = x.gate[3 % G], t = tanh(x.after);
        y.grad_c = x.grad_c;
        y.gate[0] = g * i * (R(1) - i);
        y.gate[1 % G] = x.before * f * (R(1) - f);
        y.gate[2 % G] = i * (R(1) - g * g);
        y.gate[3 % G] = t * o * (R(1) - o);
        y.inner = o * (R(1) - t * t);
        y.carried = f;
    }
    if (KIND == 3) {
        R r = x.gate[0], z = x.gate[1 % G], n = x.gate[2 % G];
        y.gate[0] = x.inner * r * (R(1) - r);
        y.gate[1 % G] = (x.before - n) * z * (R(1) - z);
        y.gate[2 % G] = (R(1) - z) * (R(1) - n * n);
        y.inner = r;
        y.carried = z;
    }
    return y;
}

// The gradients of a(x) and b(h), given `of_state`, the state's gradient through the product. `carried` is the
// gradient that bypasses the product: of an LSTM's c, or of a GRU's state.
INLINE void gradients(const Factors& y, R of_state, R& carried, Pack<R, S>& of_x, Pack<R, S>& of_h) {
    R of = y.grad + of_state;
    if (KIND == 0) of_x.at[0] = of * y.gate[0];
    if (KIND == 1) of_x.at[0] = y.gate[0] > R(0) ? of : R(0);
    if (KIND == 2) {
        R of_c = y.grad_c + carried + of * y.inner;
        for (int g = 0; g < 3; g++) of_x.at[g % S] = of_c * y.gate[g % G];
        of_x.at[3 % S] = of * y.gate[3 % G];
        carried = of_c * y.carried;
    }
    if (KIND == 3) {
        of += carried;
        R of_n = of * y.gate[2 % G];
        of_x.at[0] = of_n * y.gate[0];
        of_x.at[1 % S] = of * y.gate[1 % G];
        of_x.at[2 % S] = of_n;
        carried = of * y.carried;
    }
    of_h = of_x;
    if (KIND == 3) of_h.at[2 % S] = of_x.at[2 % S] * y.inner, of_h.at[3 % S] = R(0);
}

INLINE R of_gate(const Pack<R, S>& x, u32 gate) {
    R low = gate & 1 ? x.at[1 % S] : x.at[0], high = gate & 1 ? x.at[3 % S] : x.at[2 % S];
    return gate & 2 ? high : low;
}

extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(THREADS) recurrent_steps_grad(
    T* of_x, T* of_h, T* h, T* c, const T* grad, const T* weight, const T* kept, const T* inner, const T* out, const T* h0,
    const T* c0, Sequences s
) {
    begin();
    __shared__ Exchange<PADDED * S> grads;
    Place p = place(s);
    R w[PACKS][G][4]; // the columns of a warp's four numbers, a thirty-second of the rows
    #pragma unroll
    for (int i = 0; i < PACKS * G * 4; i++) {
        u32 g = i / 4 % G, row = i / (4 * G) * 32 + p.lane, column = p.first_unit + i % 4;
        bool is_there = row < HIDDEN && column < HIDDEN;
        w[i / (4 * G)][g][i % 4] = element_or_zero(weight + u64(g * HIDDEN + row) * HIDDEN + column, is_there);
    }
    if (threadIdx.x == 0) prepare(grads);
    Sender<PADDED * S> sender(grads, p);
    u64 cells = KIND == 2 ? s.cells : 0, first = u64(p.row) * HIDDEN + p.unit;
    const T* first_state = KIND == 2 ? c0 : h0;
    auto saved = [&](u32 k) { // of step k, counted back from the last
        bool is_there = k < s.steps && p.is_there, is_first = k + 1 == s.steps;
        u64 row = row_at(s, s.steps - 1 - k, p.row), at = row * HIDDEN + p.unit;
        const T* before = is_first ? first_state + first
                                   : out + cells + row_at(s, s.steps - 2 - k, p.row) * HIDDEN + p.unit;
        Saved x;
        x.grad = element_or_zero(grad + at, is_there);
        if (KIND == 2) x.grad_c = element_or_zero(grad + cells + at, is_there);
        for (int g = 0; g < G && KIND >= 2; g++) x.gate[g] = element_or_zero(kept + (row * G + g) * HIDDEN + p.unit, is_there);
        if (KIND == 3) x.inner = element_or_zero(inner + at, is_there);
        if (KIND != 3) x.after = element_or_zero(out + cells + at, is_there);
        if (KIND >= 2) x.before = element_or_zero(before, is_there && (!is_first || first_state));
        return x;
    };
    Factors now = factors(saved(0));
    Saved next = saved(1);
    R of_state = R(0), carried = R(0);
    all_blocks_are_ready();

    #pragma unroll 1
    for (u32 k = 0; k < s.steps; k++) {
        Saved later = saved(k + 2);
        Pack<R, S> x, b;
        gradients(now, of_state, carried, x, b);
        for (int g = 0; g < S; g++) b.at[g] = p.is_there ? b.at[g] : R(0);
        bool goes_on = k + 1 < s.steps || s.wants_h0;
        if (goes_on) sender.send_to_all(b, k, p);
        if (p.is_there && p.gate < G && !p.is_repeat) {
            u64 at = (row_at(s, s.steps - 1 - k, p.row) * G + p.gate) * HIDDEN + p.unit;
            of_x[at] = to<T>(of_gate(x, p.gate));
            if (KIND == 3) of_h[at] = to<T>(of_gate(b, p.gate));
        }
        if (!goes_on) break;
        now = factors(next), next = later;
        const R* of_gates = received(grads, k);
        R sums[ROWS * 4] = {};
        #pragma unroll
        for (int i = 0; i < PACKS * ROWS; i++) {
            int r = i % ROWS;
            Pack<R, S> y = *(const Pack<R, S>*)(of_gates + (r * PADDED + i / ROWS * 32 + p.lane) * S);
            #pragma unroll
            for (int j = 0; j < 4 * G; j++) sums[r * 4 + j % 4] = __fmaf_rn(w[i / ROWS][j / 4][j % 4], y.at[j / 4], sums[r * 4 + j % 4]);
        }
        for (int r = 0; r < ROWS; r++) {
            halve<4>(sums + r * 4, p.lane, 16);
            halve<2>(sums + r * 4, p.lane, 8);
            sums[r] = sums[r * 4];
        }
        if (ROWS == 2) halve<2>(sums, p.lane, 4);
        else add_both<1>(sums, 4);
        add_both<1>(sums, 2);
        add_both<1>(sums, 1);
        of_state = sums[0];
    }
    if (!p.is_there) return;
    if (s.wants_h0 && p.gate == 0) h[first] = to<T>(KIND == 3 ? of_state + carried : of_state);
    if (KIND == 2 && p.gate == 1) c[first] = to<T>(carried);
}
#endif
