// Steps of optimizers for some tensors at once, each contiguous: blockIdx.y says which.
// T: parameters and what is kept for them; O: gradients and halves. Without halves, both are one type.
//
// What is read where the step runs: the learning rate, and for Adam the number of steps. Each intermediate result is
// rounded to T, as where the same is done with one operation after another; the rule's numbers are not.
//
// A half is the parameter, rounded, but for elements that something else has changed: these the parameter takes over before
// the step. So it is read and written here, and nothing else has to know of it.

#define TENSORS 6 // of one launch, at most

struct Lengths { u64 of[TENSORS]; };

INLINE R add_scaled(R to, R from, R by) { return rounded(to + from * by); }

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

#define FOR_EACH_ELEMENT(n) \
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += u64(gridDim.x) * blockDim.x)

#define NO_HALF static_cast<O*>(nullptr)

#if defined(KERNEL_sgd) || defined(KERNEL_sgd_of_halves)
struct Sgd {
    Lengths n;
    f64 momentum, share, weight_decay;
    u64 has_kept, is_first, nesterov;
};

INLINE void step(T* p, T* kept, O* half, const O* grad, u64 n, f64 lr, const Sgd& rule) {
    R momentum = R(rule.momentum), share = R(rule.share), rate = R(-lr);
    R shrink = R(1.0 - lr * rule.weight_decay), ahead = R(-lr * rule.momentum);
    R decay = R(rule.share * rule.weight_decay);
    bool decays = rule.weight_decay != 0.0;
    FOR_EACH_ELEMENT(n) {
        R x = parameter_at(p, half, i), g = real(grad[i]), b = 0;
        if (rule.has_kept) {
            b = rule.is_first ? R(0) : rounded(real(kept[i]) * momentum);
            b = add_scaled(b, g, share);
            if (decays) b = add_scaled(b, x, decay);
            kept[i] = to<T>(b);
        }
        if (rule.has_kept && !rule.nesterov) {
            x = add_scaled(x, b, rate);
        } else {
            if (decays) x = rounded(x * shrink);
            x = add_scaled(x, g, rate);
            if (rule.has_kept) x = add_scaled(x, b, ahead);
        }
        write_parameter(p, half, i, x);
    }
}
#endif
#ifdef KERNEL_sgd
#define STEP(k) case k: return step(p##k, b##k, NO_HALF, g##k, rule.n.of[k], *lr, rule)
extern "C" __global__ void sgd(
    T* p0, T* b0, const O* g0, T* p1, T* b1, const O* g1, T* p2, T* b2, const O* g2,
    T* p3, T* b3, const O* g3, T* p4, T* b4, const O* g4, T* p5, T* b5, const O* g5,
    const f64* lr, Sgd rule
) {
    begin();
    switch (blockIdx.y) { STEP(0); STEP(1); STEP(2); STEP(3); STEP(4); STEP(5); }
}
#endif
#ifdef KERNEL_sgd_of_halves
#define STEP(k) case k: return step(p##k, b##k, h##k, g##k, rule.n.of[k], *lr, rule)
extern "C" __global__ void sgd_of_halves(
    T* p0, T* b0, O* h0, const O* g0, T* p1, T* b1, O* h1, const O* g1, T* p2, T* b2, O* h2, const O* g2,
    T* p3, T* b3, O* h3, const O* g3, T* p4, T* b4, O* h4, const O* g4, const f64* lr, Sgd rule
) {
    begin();
    switch (blockIdx.y) { STEP(0); STEP(1); STEP(2); STEP(3); STEP(4); }
}
#endif

#if defined(KERNEL_adam) || defined(KERNEL_adam_of_halves)
struct Adam {
    Lengths n;
    f64 keep_mean, keep_square, eps, weight_decay;
    u64 is_decoupled;
};

INLINE void step(T* p, T* m, T* v, O* half, const O* grad, u64 n, f64 lr, f64 steps, const Adam& rule) {
    f64 mean_share = 1.0 - pow(rule.keep_mean, steps), square_share = 1.0 - pow(rule.keep_square, steps);
    R keep_mean = R(rule.keep_mean), keep_square = R(rule.keep_square);
    R new_mean = R(1.0 - rule.keep_mean), new_square = R(1.0 - rule.keep_square);
    R shrink = R(1.0 - lr * rule.weight_decay), decay = R(rule.weight_decay), eps = R(rule.eps);
    R unbias = R(1.0 / sqrt(square_share)), rate = R(-lr / mean_share);
    bool decays = rule.weight_decay != 0.0;
    FOR_EACH_ELEMENT(n) {
        R x = parameter_at(p, half, i), g = real(grad[i]);
        if (decays && rule.is_decoupled) x = rounded(x * shrink);
        if (decays && !rule.is_decoupled) g = add_scaled(g, x, decay);
        R mean = add_scaled(rounded(real(m[i]) * keep_mean), g, new_mean);
        R square = rounded(rounded(real(v[i]) * keep_square) + new_square * g * g);
        R root = rounded(rounded(rounded(sqrt(square)) * unbias) + eps);
        m[i] = to<T>(mean), v[i] = to<T>(square);
        write_parameter(p, half, i, x + rate * mean / root);
    }
}
#endif
#ifdef KERNEL_adam
#define STEP(k) case k: return step(p##k, m##k, v##k, NO_HALF, g##k, rule.n.of[k], *lr, *steps, rule)
extern "C" __global__ void adam(
    T* p0, T* m0, T* v0, const O* g0, T* p1, T* m1, T* v1, const O* g1, T* p2, T* m2, T* v2, const O* g2,
    T* p3, T* m3, T* v3, const O* g3, T* p4, T* m4, T* v4, const O* g4, const f64* lr, const f64* steps, Adam rule
) {
    begin();
    switch (blockIdx.y) { STEP(0); STEP(1); STEP(2); STEP(3); STEP(4); }
}
#endif
#ifdef KERNEL_adam_of_halves
#define STEP(k) case k: return step(p##k, m##k, v##k, h##k, g##k, rule.n.of[k], *lr, *steps, rule)
extern "C" __global__ void adam_of_halves(
    T* p0, T* m0, T* v0, O* h0, const O* g0, T* p1, T* m1, T* v1, O* h1, const O* g1,
    T* p2, T* m2, T* v2, O* h2, const O* g2, T* p3, T* m3, T* v3, O* h3, const O* g3,
    const f64* lr, const f64* steps, Adam rule
) {
    begin();
    switch (blockIdx.y) { STEP(0); STEP(1); STEP(2); STEP(3); }
}
#endif
