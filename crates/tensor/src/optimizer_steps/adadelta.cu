// Adadelta, `adadelta.rs`. kept: the running squares of gradients and of steps.

struct Rule { f64 rho, eps; };
struct Now { R keep, new_share, eps, rate; };

INLINE Now now_of(const Rule& rule, f64 lr, const f64*) {
    return {R(rule.rho), R(1.0 - rule.rho), R(rule.eps), R(-lr)};
}

INLINE R step(const Now& now, R x, R g, R (&kept)[2]) {
    kept[0] = kept[0] * now.keep + now.new_share * g * g;
    R delta = sqrt(kept[1] + now.eps) / sqrt(kept[0] + now.eps) * g;
    kept[1] = kept[1] * now.keep + now.new_share * delta * delta;
    return x + delta * now.rate;
}
