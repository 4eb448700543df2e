// Stochastic gradient descent, `sgd.rs`. kept: the direction b, or null without momentum.

struct Rule { f64 momentum, share; u64 has_kept, nesterov; };
struct Now { R momentum, share, rate; bool has_kept, nesterov; };

INLINE Now now_of(const Rule& rule, f64 lr, const f64*) {
    return {R(rule.momentum), R(rule.share), R(-lr), rule.has_kept != 0, rule.nesterov != 0};
}

INLINE R step(const Now& now, R x, R g, R (&kept)[1]) {
    if (!now.has_kept) return x + g * now.rate;
    kept[0] = kept[0] * now.momentum + g * now.share;
    return x + (now.nesterov ? g + kept[0] * now.momentum : kept[0]) * now.rate;
}
