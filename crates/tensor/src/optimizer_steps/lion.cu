// Lion, `lion.rs`. kept: mean.

struct Rule { f64 keep, keep_mean; };
struct Now { R keep, new_share, keep_mean, new_mean, rate; };

INLINE Now now_of(const Rule& rule, f64 lr, const f64*) {
    return {R(rule.keep), R(1.0 - rule.keep), R(rule.keep_mean), R(1.0 - rule.keep_mean), R(-lr)};
}

INLINE R step(const Now& now, R x, R g, R (&kept)[1]) {
    R direction = kept[0] * now.keep + g * now.new_share;
    kept[0] = kept[0] * now.keep_mean + g * now.new_mean;
    R moved = direction > R(0) ? now.rate : direction < R(0) ? -now.rate : direction; // NaN stays, zero too
    return x + moved;
}
