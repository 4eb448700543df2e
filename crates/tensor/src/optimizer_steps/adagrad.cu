// Adagrad, `adagrad.rs`. kept: the sum of squares. clock: steps.

struct Rule { f64 lr_decay, eps; };
struct Now { R rate, eps; };

INLINE Now now_of(const Rule& rule, f64 lr, const f64* clock) {
    return {R(-lr / (1.0 + (*clock - 1.0) * rule.lr_decay)), R(rule.eps)};
}

INLINE R step(const Now& now, R x, R g, R (&kept)[1]) {
    kept[0] = kept[0] + g * g;
    return x + now.rate * g / (sqrt(kept[0]) + now.eps);
}
