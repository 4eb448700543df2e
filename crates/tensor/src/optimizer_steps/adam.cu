// Adam, AdamW and AMSGrad, `adam.rs`. kept: mean, square, and for AMSGrad the largest square. clock: steps.

struct Rule { f64 keep_mean, keep_square, eps; };
struct Now { R keep_mean, keep_square, new_mean, new_square, unbias, rate, eps; };

INLINE Now now_of(const Rule& rule, f64 lr, const f64* clock) {
    f64 mean_share = 1.0 - pow(rule.keep_mean, *clock), square_share = 1.0 - pow(rule.keep_square, *clock);
    R new_mean = R(1.0 - rule.keep_mean), new_square = R(1.0 - rule.keep_square);
    R unbias = R(1.0 / sqrt(square_share)), rate = R(-lr / mean_share);
    return {R(rule.keep_mean), R(rule.keep_square), new_mean, new_square, unbias, rate, R(rule.eps)};
}

template <int KEPT> INLINE R step(const Now& now, R x, R g, R (&kept)[KEPT]) {
    kept[0] = kept[0] * now.keep_mean + g * now.new_mean;
    kept[1] = kept[1] * now.keep_square + now.new_square * g * g;
    R square = kept[1];
    if constexpr (KEPT == 3) square = kept[2] = is_better(kept[2], square) ? kept[2] : square;
    return x + now.rate * kept[0] / (sqrt(square) * now.unbias + now.eps);
}
