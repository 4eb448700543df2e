//! From luma and chroma to red, green and blue, a row at a time.

/// Twice as many samples as `near` has, between those of `near` and `far`: three parts of the nearer, one of the further, in both
/// directions.
#[inline(always)]
pub(super) fn widen_between(near: &[u8], far: &[u8], sums: &mut [u16], out: &mut [u8]) {
    let n = near.len();
    let sums = &mut sums[..n];
    for ((sum, &near), &far) in sums.iter_mut().zip(near).zip(far) {
        *sum = 3 * u16::from(near) + u16::from(far);
    }
    let out = &mut out[..2 * n];
    out[0] = ((4 * sums[0] + 8) >> 4) as u8;
    out[2 * n - 1] = ((4 * sums[n - 1] + 7) >> 4) as u8;
    let pairs = out[1..2 * n - 1].as_chunks_mut::<2>().0;
    for ((pair, &left), &right) in pairs.iter_mut().zip(&sums[..n - 1]).zip(&sums[1..]) {
        *pair = [((3 * left + right + 7) >> 4) as u8, ((3 * right + left + 8) >> 4) as u8];
    }
}

/// Likewise, in one direction.
#[inline(always)]
pub(super) fn widen(row: &[u8], out: &mut [u8]) {
    let n = row.len();
    let out = &mut out[..2 * n];
    (out[0], out[2 * n - 1]) = (row[0], row[n - 1]);
    let pairs = out[1..2 * n - 1].as_chunks_mut::<2>().0;
    for ((pair, &left), &right) in pairs.iter_mut().zip(&row[..n - 1]).zip(&row[1..]) {
        let (left, right) = (u16::from(left), u16::from(right));
        *pair = [((3 * left + right + 2) >> 2) as u8, ((3 * right + left + 1) >> 2) as u8];
    }
}

/// A row of pixels. The factors are those of JFIF times 2^16.
#[inline(always)]
pub(super) fn to_rgb(luma: &[u8], blue: &[u8], red: &[u8], out: &mut [u8]) {
    let pixels = out.as_chunks_mut::<3>().0;
    for (((pixel, &y), &cb), &cr) in pixels.iter_mut().zip(luma).zip(blue).zip(red) {
        let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
        let r = y + ((91881 * cr + 32768) >> 16);
        let g = y + ((-22554 * cb - 46802 * cr + 32768) >> 16);
        let b = y + ((116130 * cb + 32768) >> 16);
        *pixel = [r, g, b].map(|value| value.clamp(0, 255) as u8);
    }
}
