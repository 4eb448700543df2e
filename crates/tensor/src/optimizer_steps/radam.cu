// RAdam, `radam.rs`. kept: mean, square. clock: steps.

struct Rule { f64 keep_mean, keep_square, eps; };
struct Now { R new_mean, keep_square, new_square, rate, eps; bool is_known; };

INLINE Now now_of(const Rule& rule, f64 lr, const f64* clock) {
    f64 power = pow(rule.keep_square, *clock), most = 2.0 / (1.0 - rule.keep_square) - 1.0;
    f64 rho = most - 2.0 * *clock * power / (1.0 - power);
    f64 square = (rho - 4.0) * (rho - 2.0) * most / ((most - 4.0) * (most - 2.0) * rho);
    f64 rate = -lr / (1.0 - pow(rule.keep_mean, *clock));
    bool is_known = rho > 5.0;
    if (is_known) rate *= sqrt(square) * sqrt(1.0 - power);
    R new_mean = R(1.0 - rule.keep_mean), new_square = R(1.0 - rule.keep_square);
    return {new_mean, R(rule.keep_square), new_square, R(rate), R(rule.eps), is_known};
}

INLINE R step(const Now& now, R x, R g, R (&kept)[2]) {
    kept[0] = kept[0] * (1 - now.new_mean) + g * now.new_mean;
    kept[1] = kept[1] * now.keep_square + now.new_square * g * g;
    R moved = now.rate * kept[0];
    return x + (now.is_known ? moved / (sqrt(kept[1]) + now.eps) : moved);
}
