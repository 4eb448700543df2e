//! The error function in `f64`, and functions based on it.
//!
//! erf is a polynomial near 0. erfc(a) is e^(−a²) times a polynomial of (a − 3.5) / (a + 3.5); a² is a sum of two
//! numbers, for precision. For erf beyond 1, a shorter polynomial of (a − 2) / (a + 2) is precise enough. All are
//! minimax polynomials with relative errors below 2⁻⁵⁶. The inverse is Wichura's (1988, algorithm AS 241,
//! <https://doi.org/10.2307/2347330>).

use std::f64::consts::FRAC_1_SQRT_2;

use super::f64::{exp_below, exp_of_sum, ln, polynomial};

/// erfc(a) and e^(−a²), for a ≥ 0.
#[inline(always)]
fn erfc_parts(a: f64) -> (f64, f64) {
    let a = if a > 27.5 { 27.5 } else { a }; // erfc(27.5) rounds to 0
    let square = a * a;
    let bell = exp_of_sum(-square, -a.mul_add(a, -square));
    let t = (a - 3.5) / (a + 3.5);
    let q = polynomial(
        t,
        [
            -4.683_814_810_107_054e-10,
            -8.194_177_686_329_17e-10,
            4.384_670_218_708_924_6e-9,
            8.806_751_394_994_86e-9,
            -2.849_381_502_154_852_6e-8,
            -6.201_456_948_692_74e-8,
            1.923_899_214_528_315_4e-7,
            3.707_562_127_346_726e-7,
            -1.519_440_341_104_524_8e-6,
            -1.628_970_557_179_043_7e-6,
            1.334_631_923_052_617_1e-5,
            -4.673_573_468_220_051e-6,
            -1.080_848_338_944_215e-4,
            2.885_551_997_062_792_6e-4,
            2.673_850_926_342_580_4e-4,
            -4.242_238_603_875_166e-3,
            1.697_676_093_148_703e-2,
            -4.543_676_118_366_903e-2,
            9.442_780_690_918_358e-2,
            -1.613_385_247_645_058_3e-1,
            2.331_304_816_002_509_6e-1,
            -2.892_650_448_327_674_4e-1,
            1.552_936_556_088_943e-1,
        ],
    );
    (bell * q, bell)
}

#[inline(always)]
pub(crate) fn erf(x: f64) -> f64 {
    let a = x.abs();
    let z = a * a;
    let p = polynomial(
        z,
        [
            -7.779_465_729_549_996e-10,
            1.371_097_890_458_61e-8,
            -1.620_631_340_805_764_5e-7,
            1.644_713_152_450_353_5e-6,
            -1.492_471_229_809_411_3e-5,
            1.205_529_357_668_691_7e-4,
            -8.548_325_929_306_829e-4,
            5.223_977_606_118_295e-3,
            -2.686_617_064_311_144e-2,
            1.128_379_167_094_418_5e-1,
            -3.761_263_890_318_352e-1,
        ],
    );
    let near = a.mul_add(z.mul_add(p, 1.283_791_670_955_125_7e-1), a);
    let far = 1.0 - erfc_for_erf(if a > 6.0 { 6.0 } else { a });
    (if a >= 1.0 { far } else { near }).copysign(x)
}

/// erfc(a) for a from 1 to 6, precise enough for 1 − erfc(a).
#[inline(always)]
fn erfc_for_erf(a: f64) -> f64 {
    let q = polynomial(
        (a - 2.0) / (a + 2.0),
        [
            -1.261_470_533_429_604_5e-5,
            -2.657_939_886_137_096_5e-5,
            2.763_292_361_572_098e-5,
            1.742_873_194_746_917_3e-4,
            4.353_505_609_029_697e-5,
            -9.819_766_056_287_5e-4,
            -8.471_425_657_475_619e-4,
            6.997_461_791_268_451e-3,
            3.732_892_398_572_919_3e-3,
            -7.897_858_101_646_807e-2,
            2.416_581_942_424_665_4e-1,
            -4.271_858_474_139_567_7e-1,
            2.553_956_763_105_057_5e-1,
        ],
    );
    exp_below(-a * a) * q
}

#[inline(always)]
pub(crate) fn erfc(x: f64) -> f64 {
    let (tail, _) = erfc_parts(x.abs());
    if x < 0.0 { 2.0 - tail } else { tail }
}

/// The distribution function of the normal distribution, and e^(−x²/2).
#[inline(always)]
pub(crate) fn normal_and_bell(x: f64) -> (f64, f64) {
    let (tail, bell) = erfc_parts(x.abs() * FRAC_1_SQRT_2);
    let half = 0.5 * tail;
    (if x > 0.0 { 1.0 - half } else { half }, bell)
}

/// The inverse of the error function: ±∞ at ±1, NaN beyond.
#[inline(always)]
pub(crate) fn erfinv(x: f64) -> f64 {
    let a = x.abs();
    let root = (-ln(0.5 * (1.0 - a))).sqrt();
    let (is_near, is_middle) = (a <= 0.85, root <= 5.0);
    let r = if is_middle { root - 1.6 } else { root - 5.0 };
    let r = if is_near { 0.180625 - 0.25 * (x * x) } else { r };
    let (mut numerator, mut denominator) = (0.0_f64, 0.0_f64);
    // `while`, as in `polynomial`: the compiler unrolls it.
    let mut i = 0;
    while i < WICHURA.len() {
        let [near, middle, far] = WICHURA[i];
        let [over, under] = if is_near {
            near
        } else if is_middle {
            middle
        } else {
            far
        };
        (numerator, denominator) = (numerator.mul_add(r, over), denominator.mul_add(r, under));
        i += 1;
    }
    let y = numerator / denominator * FRAC_1_SQRT_2;
    let y = if is_near { x * (0.5 * y) } else { y.copysign(x) };
    if a == 1.0 { f64::INFINITY.copysign(x) } else { y }
}

/// The coefficients of numerator and denominator, highest degree first, for |x| up to 0.85, above it, and next to 1.
const WICHURA: [[[f64; 2]; 3]; 8] = [
    [
        [2.509_080_928_730_122_7e3, 5.226_495_278_852_855e3],
        [7.745_450_142_783_414e-4, 1.050_750_071_644_416_9e-9],
        [2.010_334_399_292_288_1e-7, 2.044_263_103_389_939_8e-15],
    ],
    [
        [3.343_057_558_358_813e4, 2.872_908_573_572_194_3e4],
        [2.272_384_498_926_918_4e-2, 5.475_938_084_995_345e-4],
        [2.711_555_568_743_487_6e-5, 1.421_511_758_316_446e-7],
    ],
    [
        [6.726_577_092_700_87e4, 3.930_789_580_009_271e4],
        [2.417_807_251_774_506e-1, 1.519_866_656_361_645_7e-2],
        [1.242_660_947_388_078_4e-3, 1.846_318_317_510_054_8e-5],
    ],
    [
        [4.592_195_393_154_987e4, 2.121_379_430_158_659_7e4],
        [1.270_458_252_452_368_4, 1.481_039_764_274_800_8e-1],
        [2.653_218_952_657_612_4e-2, 7.868_691_311_456_133e-4],
    ],
    [
        [1.373_169_376_550_946e4, 5.394_196_021_424_751e3],
        [3.647_848_324_763_204_5, 6.897_673_349_851e-1],
        [2.965_605_718_285_048_7e-1, 1.487_536_129_085_061_5e-2],
    ],
    [
        [1.971_590_950_306_551_3e3, 6.871_870_074_920_579e2],
        [5.769_497_221_460_691, 1.676_384_830_183_803_8],
        [1.784_826_539_917_291_3, 1.369_298_809_227_358e-1],
    ],
    [
        [1.331_416_678_917_843_8e2, 4.231_333_070_160_091e1],
        [4.630_337_846_156_546, 2.053_191_626_637_759],
        [5.463_784_911_164_114, 5.998_322_065_558_88e-1],
    ],
    [[3.387_132_872_796_366_5, 1.0], [1.423_437_110_749_683_5, 1.0], [6.657_904_643_501_103, 1.0]],
];
