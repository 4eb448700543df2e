//! Steps on the CPU: one walk over the elements of a group, rounded where `descent.cu` rounds.

use arrayvec::ArrayVec;

use super::groups::{GRAD, Group, HALF, Lock, OP, Places, lock_all};
use crate::cpu::vectorized;
use crate::element::{Element, Floating};
use crate::error::Result;
use crate::parallel::for_each_chunk_mut;
use crate::tensor::Tensor;

/// Elements of a part of the work, at least.
const CHUNK: usize = 16 * 1024;
/// The most parts: a list on the stack.
const PARTS: usize = 64;

/// The elements of a group, or of a part of it. `T`: the parameter, and what is kept for it; `H`: half and gradient.
struct Elements<'a, T, H, const N: usize> {
    parameter: &'a mut [T],
    kept: [&'a mut [T]; N],
    /// Empty if there is none.
    half: &'a mut [H],
    grad: &'a [H],
}

impl<'a, T: Floating, H: Floating<Real = T::Real>, const N: usize> Elements<'a, T, H, N> {
    /// The first `n`, of which this keeps the others.
    fn split_off(&mut self, n: usize) -> Self {
        fn split<'a, T>(slice: &mut &'a mut [T], n: usize) -> &'a mut [T] {
            let (first, rest) = std::mem::take(slice).split_at_mut(n.min(slice.len()));
            *slice = rest;
            first
        }
        let (grad, rest) = self.grad.split_at(n);
        self.grad = rest;
        let kept = self.kept.each_mut().map(|kept| split(kept, n));
        Self { parameter: split(&mut self.parameter, n), kept, half: split(&mut self.half, n), grad }
    }

    /// Changes each element of the parameter and of what is kept by `f` of them and the gradient's.
    #[inline(always)]
    fn change<const HALF: bool>(&mut self, f: impl Fn(T::Real, [T::Real; N], T::Real) -> (T::Real, [T::Real; N])) {
        let n = self.parameter.len();
        let (parameter, grad) = (&mut self.parameter[..n], &self.grad[..n]);
        let half = &mut self.half[..if HALF { n } else { 0 }];
        let mut kept = self.kept.each_mut().map(|kept| &mut kept[..n]);
        for i in 0..n {
            let mut x = parameter[i].to_real();
            if HALF {
                let seen = half[i].to_real();
                x = if H::from_real(x).to_real() == seen { x } else { seen };
            }
            let (x, new) = f(x, std::array::from_fn(|k| kept[k][i].to_real()), grad[i].to_real());
            parameter[i] = T::from_real(x);
            kept.iter_mut().zip(new).for_each(|(kept, new)| kept[i] = T::from_real(new));
            if HALF {
                half[i] = H::from_real(x);
            }
        }
    }
}

/// Changes the parameter and what is kept for it, `N` tensors, by `f` of an element of each and of the gradient.
pub(super) fn change<G: Group, T: Floating, H: Floating<Real = T::Real>, const N: usize>(
    group: &G,
    f: impl Fn(T::Real, [T::Real; N], T::Real) -> (T::Real, [T::Real; N]) + Sync + Copy,
) -> Result<()> {
    let groups = [Some(group.clone())];
    let [mut locks, ..] = lock_all(&groups);
    let tensors = groups[0].as_ref().map_or([None; _], G::tensors);
    let mut rest = elements::<T, H, N>(&mut locks, tensors)?;
    let has_half = tensors[HALF].is_some();
    let len = rest.parameter.len().div_ceil(PARTS).max(CHUNK);
    let mut parts = ArrayVec::<_, PARTS>::new();
    while !rest.parameter.is_empty() {
        parts.push(rest.split_off(len.min(rest.parameter.len())));
    }
    for_each_chunk_mut(&mut parts, 1, |_, parts| {
        vectorized(
            #[inline(always)]
            || match has_half {
                true => parts.iter_mut().for_each(
                    #[inline(always)]
                    |part| part.change::<true>(f),
                ),
                false => parts.iter_mut().for_each(
                    #[inline(always)]
                    |part| part.change::<false>(f),
                ),
            },
        );
    });
    Ok(())
}

/// The elements of locked tensors.
fn elements<'a, T: Floating, H: Floating, const N: usize>(
    locks: &'a mut [Lock<'_>],
    tensors: Places<'a>,
) -> Result<Elements<'a, T, H, N>> {
    let mut places = locks.iter_mut().zip(tensors);
    let parameter = written::<T>(places.next())?;
    let mut kept = [const { None }; N];
    for (kept, place) in kept.iter_mut().zip(&mut places) {
        *kept = Some(written::<T>(Some(place))?);
    }
    let mut places = places.skip(HALF - 1 - N);
    let half = written::<H>(places.next())?;
    let grad: &[H] = match places.next() {
        Some((Lock::Read(locked), Some(grad))) => locked.cpu(grad.layout()).data,
        _ => unreachable!("every group has a gradient, in place {GRAD}"),
    };
    Ok(Elements { parameter, kept: kept.map(Option::unwrap_or_default), half, grad })
}

/// The elements of a tensor that is changed; none of one that is not there.
fn written<'a, T: Element>(place: Option<(&'a mut Lock<'_>, Option<&'a Tensor>)>) -> Result<&'a mut [T]> {
    match place {
        Some((Lock::Write(locked), Some(tensor))) => locked.of(OP, tensor.layout()),
        _ => Ok(&mut []),
    }
}

/// Calls a function with the types of a group: of its parameter, and of its gradient.
macro_rules! by_types {
    ($group:expr, |$T:ident, $H:ident| $body:expr) => {{
        use half::{bf16, f16};
        let types = [0, $crate::descent::groups::GRAD].map(|place| $group.tensors()[place].map(|x| x.dtype()));
        match types {
            [Some(DType::F32), Some(DType::F16)] => by_types!(@ $T = f32, $H = f16, $body),
            [Some(DType::F32), Some(DType::BF16)] => by_types!(@ $T = f32, $H = bf16, $body),
            [Some(DType::F64), _] => by_types!(@ $T = f64, $H = f64, $body),
            [Some(DType::F16), _] => by_types!(@ $T = f16, $H = f16, $body),
            [Some(DType::BF16), _] => by_types!(@ $T = bf16, $H = bf16, $body),
            _ => by_types!(@ $T = f32, $H = f32, $body),
        }
    }};
    (@ $T:ident = $t:ty, $H:ident = $h:ty, $body:expr) => {{
        type $T = $t;
        type $H = $h;
        $body
    }};
}
pub(super) use by_types;
