// Steps of optimizers for some tensors at once, each contiguous: blockIdx.y says which. One thread per element, grid-stride loop.
// T: parameters and what is kept for them; O: gradients and halves. Without halves, both are one type.
//
// The text before this one is the method's: `Rule`, its settings; `Now`, what all elements of a step have in common, made by
// `now_of(rule, lr, clock)`; and `step(now, x, g, kept)`, which gives the new x and changes what is kept.
// Learning rates and the clock are read where the step runs, so a captured step finds today's.
//
// A half is the parameter, rounded, but for elements that something else has changed: these the parameter takes over before
// the step. So it is read and written here, and nothing else has to know of it.

#define TENSORS 6 // of one launch, at most

struct Lengths { u64 of[TENSORS]; };

// The rule is that of all tensors; the rest each has for itself.
struct Settings {
    Lengths n;
    u64 rate[TENSORS]; // lrs[rate] is the learning rate
    f64 sign[TENSORS]; // of gradients: -1 goes up
    f64 decay[TENSORS]; // g + decay * x is the gradient
    f64 shrink[TENSORS]; // x * (1 - lr * shrink) comes first
    Rule rule;
};

// Element i of a parameter, of which there may be a half; and what becomes of it.
INLINE R parameter_at(const T* p, const O* half, u64 i) {
    R x = real(p[i]);
    if (!half) return x;
    R seen = real(half[i]);
    return real(to<O>(x)) == seen ? x : seen;
}
INLINE void write_parameter(T* p, O* half, u64 i, R x) {
    p[i] = to<T>(x);
    if (half) half[i] = to<O>(x);
}

// The step of tensor k. What is kept may be null: then it is zero.
template <int KEPT> INLINE void change(
    int k, T* p, T* const (&kept)[KEPT], O* half, const O* grad, const f64* lrs, const f64* clock, const Settings& settings
) {
    f64 lr = lrs[settings.rate[k]];
    Now now = now_of(settings.rule, lr, clock);
    R sign = R(settings.sign[k]), decay = R(settings.decay[k]), shrink = R(1.0 - lr * settings.shrink[k]);
    bool decays = settings.decay[k] != 0.0;
    u64 n = settings.n.of[k];
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += u64(gridDim.x) * blockDim.x) {
        R x = parameter_at(p, half, i) * shrink, g = real(grad[i]) * sign;
        if (decays) g = g + x * decay;
        R own[KEPT];
        #pragma unroll
        for (int k = 0; k < KEPT; k++) own[k] = kept[k] ? real(kept[k][i]) : R(0);
        x = step(now, x, g, own);
        #pragma unroll
        for (int k = 0; k < KEPT; k++) if (kept[k]) kept[k][i] = to<T>(own[k]);
        write_parameter(p, half, i, x);
    }
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
