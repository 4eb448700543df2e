//! Threads.
use crate::element::Num;
pub(crate) fn gemm<T: Num>(
    m: usize,
    k: usize,
    n: usize,
    a: &[T],
    sa: [usize; 2],
    b: &[T],
    sb: [usize; 2],
    c: &mut [T],
) {
    for i in 0..m {
        for j in 0..n {
            let mut s = T::Sum::ZERO;
            for p in 0..k {
                s = s.plus(a[i * sa[0] + p * sa[1]].times(b[p * sb[0] + j * sb[1]]).to_sum());
            }
            c[i * n + j] = T::from_sum(s);
        }
    }
}
use crate::element::Element;
