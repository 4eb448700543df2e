// Adamax, `adamax.rs`. kept: mean, largest gradient. clock: steps.

struct Rule { f64 keep_mean, keep_largest, eps; };
struct Now { R new_mean, keep, eps, rate; };

INLINE Now now_of(const Rule& rule, f64 lr, const f64* clock) {
    return {R(1.0 - rule.keep_mean), R(rule.keep_largest), R(rule.eps), R(-lr / (1.0 - pow(rule.keep_mean, *clock)))};
}

INLINE R step(const Now& now, R x, R g, R (&kept)[2]) {
    R fallen = kept[1] * now.keep, own = magnitude(g) + now.eps;
    kept[0] = kept[0] * (1 - now.new_mean) + g * now.new_mean;
    kept[1] = is_better(fallen, own) ? fallen : own;
    return x + now.rate * kept[0] / kept[1];
}
