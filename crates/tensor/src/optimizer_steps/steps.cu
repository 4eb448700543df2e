// Steps of optimizers for several contiguous tensors at once; blockIdx.y selects one. Threads take packs, or
// elements, in a grid-stride loop. T: parameters and the tensors that are kept for them; O: gradients and halves.
// Without halves, both are one type.
//
// The text before this one is the method's. It defines `Rule`, its settings; `Now`, the constants of a step, made by
// `now_of(rule, lr, clock)`; and `step(now, x, g, kept)`, which returns the new x and changes what is kept. Learning
// rates and the clock are read when the step runs, so a captured step uses their current values.
//
// A half is the rounded parameter, except for elements that something else has changed. These are copied to the
// parameter before the step, so no other code has to handle them.

#define TENSORS 6 // of one launch, at most

struct Lengths { u64 of[TENSORS]; };

// All tensors share the rule; each has its own value of everything else.
struct Settings {
    Lengths n;
    u64 rate[TENSORS]; // lrs[rate] is the learning rate
    f64 sign[TENSORS]; // of gradients: -1 to maximize
    f64 decay[TENSORS]; // g + decay * x is the gradient
    f64 shrink[TENSORS]; // x * (1 - lr * shrink) comes first
    Rule rule;
};

// Elements i to i + COUNT of a tensor.
template <int COUNT, typename Type> INLINE Pack<Type, COUNT>& pack_at(Type* x, u64 i) {
    return *reinterpret_cast<Pack<Type, COUNT>*>(x + i);
}

// An element of a parameter, where its half has the element `half`.
INLINE R parameter_of(R x, R half) { return real(to<O>(x)) == half ? x : half; }

// What a step needs to know of a tensor.
struct Step { Now now; R sign, decay, shrink; bool decays; };

// The step of elements i to i + COUNT. A pointer in `kept` may be null; its elements are then zero.
template <int COUNT, int KEPT> INLINE void change_at(
    u64 i, T* p, T* const (&kept)[KEPT], O* half, const O* grad, const Step& of
) {
    Pack<T, COUNT> x = pack_at<COUNT>(p, i), own[KEPT];
    Pack<O, COUNT> halves, g = pack_at<COUNT>(const_cast<O*>(grad), i);
    if (half) halves = pack_at<COUNT>(half, i);
    #pragma unroll
    for (int k = 0; k < KEPT; k++) if (kept[k]) own[k] = pack_at<COUNT>(kept[k], i);
    #pragma unroll
    for (int v = 0; v < COUNT; v++) {
        R old = (half ? parameter_of(real(x.at[v]), real(halves.at[v])) : real(x.at[v])) * of.shrink;
        R slope = real(g.at[v]) * of.sign, mine[KEPT];
        if (of.decays) slope = slope + old * of.decay;
        #pragma unroll
        for (int k = 0; k < KEPT; k++) mine[k] = kept[k] ? real(own[k].at[v]) : R(0);
        R now = step(of.now, old, slope, mine);
        x.at[v] = to<T>(now);
        if (half) halves.at[v] = to<O>(now);
        #pragma unroll
        for (int k = 0; k < KEPT; k++) own[k].at[v] = to<T>(mine[k]);
    }
    #pragma unroll
    for (int k = 0; k < KEPT; k++) if (kept[k]) pack_at<COUNT>(kept[k], i) = own[k];
    pack_at<COUNT>(p, i) = x;
    if (half) pack_at<COUNT>(half, i) = halves;
}

// The step of tensor k, in packs if all pointers are aligned to packs.
template <int KEPT> INLINE void change(
    int k, T* p, T* const (&kept)[KEPT], O* half, const O* grad, const f64* lrs, const f64* clock, const Settings& settings
) {
    constexpr int V = 16 / sizeof(T);
    f64 lr = lrs[settings.rate[k]];
    Step of = {now_of(settings.rule, lr, clock), R(settings.sign[k]), R(settings.decay[k]), R(1.0 - lr * settings.shrink[k]),
               settings.decay[k] != 0.0};
    u64 addresses = u64(p), other_addresses = u64(half) | u64(grad);
    #pragma unroll
    for (int k = 0; k < KEPT; k++) addresses |= u64(kept[k]);
    bool in_packs = addresses % 16 == 0 && other_addresses % (V * sizeof(O)) == 0;
    u64 n = settings.n.of[k], packs = in_packs ? n / V : 0;
    u64 first = u64(blockIdx.x) * blockDim.x + threadIdx.x, threads = u64(gridDim.x) * blockDim.x;
    for (u64 i = first; i < packs; i += threads) change_at<V>(i * V, p, kept, half, grad, of);
    for (u64 i = packs * V + first; i < n; i += threads) change_at<1>(i, p, kept, half, grad, of);
}

#define THREE(M) M(0), M(1), M(2)
#define FOUR(M) THREE(M), M(3)
#define FIVE(M) FOUR(M), M(4)
#define SIX(M) FIVE(M), M(5)
#define AND_SETTINGS const f64* lrs, const f64* clock, Settings settings
#define DO(k, half, ...) case k: { \
    T* const kept[] = {__VA_ARGS__}; \
    return change(k, p##k, kept, half, g##k, lrs, clock, settings); \
}
#define NO_HALF static_cast<O*>(nullptr)

#ifdef KERNEL_step_1
#define GROUP(k) T* p##k, T* a##k, const O* g##k
#define ONE(k) DO(k, NO_HALF, a##k)
extern "C" __global__ void step_1(SIX(GROUP), AND_SETTINGS) {
    begin();
    switch (blockIdx.y) { ONE(0) ONE(1) ONE(2) ONE(3) ONE(4) ONE(5) }
}
#endif
#ifdef KERNEL_step_1_of_halves
#define GROUP(k) T* p##k, T* a##k, O* h##k, const O* g##k
#define ONE(k) DO(k, h##k, a##k)
extern "C" __global__ void step_1_of_halves(FIVE(GROUP), AND_SETTINGS) {
    begin();
    switch (blockIdx.y) { ONE(0) ONE(1) ONE(2) ONE(3) ONE(4) }
}
#endif
#ifdef KERNEL_step_2
#define GROUP(k) T* p##k, T* a##k, T* b##k, const O* g##k
#define ONE(k) DO(k, NO_HALF, a##k, b##k)
extern "C" __global__ void step_2(FIVE(GROUP), AND_SETTINGS) {
    begin();
    switch (blockIdx.y) { ONE(0) ONE(1) ONE(2) ONE(3) ONE(4) }
}
#endif
#ifdef KERNEL_step_2_of_halves
#define GROUP(k) T* p##k, T* a##k, T* b##k, O* h##k, const O* g##k
#define ONE(k) DO(k, h##k, a##k, b##k)
extern "C" __global__ void step_2_of_halves(FOUR(GROUP), AND_SETTINGS) {
    begin();
    switch (blockIdx.y) { ONE(0) ONE(1) ONE(2) ONE(3) }
}
#endif
#ifdef KERNEL_step_3
#define GROUP(k) T* p##k, T* a##k, T* b##k, T* c##k, const O* g##k
#define ONE(k) DO(k, NO_HALF, a##k, b##k, c##k)
extern "C" __global__ void step_3(FOUR(GROUP), AND_SETTINGS) {
    begin();
    switch (blockIdx.y) { ONE(0) ONE(1) ONE(2) ONE(3) }
}
#endif
#ifdef KERNEL_step_3_of_halves
#define GROUP(k) T* p##k, T* a##k, T* b##k, T* c##k, O* h##k, const O* g##k
#define ONE(k) DO(k, h##k, a##k, b##k, c##k)
extern "C" __global__ void step_3_of_halves(THREE(GROUP), AND_SETTINGS) {
    begin();
    switch (blockIdx.y) { ONE(0) ONE(1) ONE(2) }
}
#endif
