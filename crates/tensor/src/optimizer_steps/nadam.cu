// NAdam, `nadam.rs`. kept: mean, square. clock: steps, the product of momenta.

struct Rule { f64 keep_mean, keep_square, eps, momentum_decay; };
struct Now { R new_mean, keep_square, new_square, share, of_grad, of_mean, eps; };

INLINE f64 momentum(const Rule& rule, f64 step) { return rule.keep_mean * (1.0 - 0.5 * pow(0.96, step * rule.momentum_decay)); }

INLINE Now now_of(const Rule& rule, f64 lr, const f64* clock) {
    f64 steps = clock[0], product = clock[1], mu = momentum(rule, steps), next = momentum(rule, steps + 1.0);
    R of_grad = R(-lr * (1.0 - mu) / (1.0 - product)), of_mean = R(-lr * next / (1.0 - product * next));
    R new_mean = R(1.0 - rule.keep_mean), new_square = R(1.0 - rule.keep_square);
    R share = R(1.0 - pow(rule.keep_square, steps));
    return {new_mean, R(rule.keep_square), new_square, share, of_grad, of_mean, R(rule.eps)};
}

INLINE R step(const Now& now, R x, R g, R (&kept)[2]) {
    kept[0] = kept[0] * (1 - now.new_mean) + g * now.new_mean;
    kept[1] = kept[1] * now.keep_square + now.new_square * g * g;
    R root = sqrt(kept[1] / now.share) + now.eps;
    return x + now.of_grad * g / root + now.of_mean * kept[0] / root;
}
