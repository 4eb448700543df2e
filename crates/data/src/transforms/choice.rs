//! Transforms of transforms: applied by chance, one of several, or in any order; and functions as transforms.

use std::fmt;

use pagelock_tensor::Generator;

use super::{Transform, below};
use crate::Result;

/// Applies a transform, or a tuple of them, with probability `p`.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{GaussianBlur, RandomApply, Transform};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let blur = RandomApply { transform: (GaussianBlur::new([3, 3]),), p: 0.5 };
/// assert_eq!(blur.apply(Tensor::ones([3, 8, 8])?, &Generator::new(0))?.dims(), [3, 8, 8]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RandomApply<T> {
    /// What may be applied.
    pub transform: T,
    /// From 0, never, to 1, always.
    pub p: f64,
}

impl<X, T: Transform<X, Out = X>> Transform<X> for RandomApply<T> {
    type Out = X;

    fn apply(&self, x: X, random: &Generator) -> Result<X> {
        if random.next_f64() < self.p { self.transform.apply(x, random) } else { Ok(x) }
    }
}

/// A transform behind a pointer, so that transforms of different types go into one list.
type Boxed<X> = Box<dyn Transform<X, Out = X> + Send + Sync>;

/// Applies one of several transforms, each with the same probability.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{RandomChoice, RandomHorizontalFlip, RandomVerticalFlip, Transform};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let flips = RandomChoice::new(vec![Box::new(RandomHorizontalFlip { p: 1.0 }), Box::new(RandomVerticalFlip { p: 1.0 })]);
/// let image = Tensor::new([[[1.0, 2.0], [3.0, 4.0]]])?;
/// let flipped: Vec<f32> = flips.apply(image, &Generator::new(0))?.to_vec()?;
/// assert!(flipped == [2.0, 1.0, 4.0, 3.0] || flipped == [3.0, 4.0, 1.0, 2.0]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub struct RandomChoice<X> {
    transforms: Vec<Boxed<X>>,
}

impl<X> RandomChoice<X> {
    /// One of these; without transforms, nothing changes.
    pub fn new(transforms: Vec<Box<dyn Transform<X, Out = X> + Send + Sync>>) -> Self {
        Self { transforms }
    }
}

impl<X> Transform<X> for RandomChoice<X> {
    type Out = X;

    fn apply(&self, x: X, random: &Generator) -> Result<X> {
        match self.transforms.len() {
            0 => Ok(x),
            n => self.transforms[below(random, n)].apply(x, random),
        }
    }
}

impl<X> fmt::Debug for RandomChoice<X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RandomChoice of {} transforms", self.transforms.len())
    }
}

/// Applies all of several transforms, in random order.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{Lambda, RandomOrder, Transform};
/// use pagelock_tensor::Generator;
///
/// let order = RandomOrder::new(vec![Box::new(Lambda::new(|x: f32| Ok(x + 1.0))), Box::new(Lambda::new(|x: f32| Ok(x * 2.0)))]);
/// let y = order.apply(1.0, &Generator::new(0))?;
/// assert!(y == 4.0 || y == 3.0);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub struct RandomOrder<X> {
    transforms: Vec<Boxed<X>>,
}

impl<X> RandomOrder<X> {
    /// All of these.
    pub fn new(transforms: Vec<Box<dyn Transform<X, Out = X> + Send + Sync>>) -> Self {
        Self { transforms }
    }
}

impl<X> Transform<X> for RandomOrder<X> {
    type Out = X;

    fn apply(&self, x: X, random: &Generator) -> Result<X> {
        let mut order: Vec<usize> = (0..self.transforms.len()).collect();
        random.shuffle(&mut order);
        order.into_iter().try_fold(x, |x, at| self.transforms[at].apply(x, random))
    }
}

impl<X> fmt::Debug for RandomOrder<X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RandomOrder of {} transforms", self.transforms.len())
    }
}

/// A function as a transform.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{Lambda, Transform};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let half = Lambda::new(|image: Tensor| Ok(image.mul_scalar(0.5)?));
/// assert_eq!(half.apply(Tensor::ones([1])?, &Generator::new(0))?.item::<f32>()?, 0.5);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Lambda<F> {
    f: F,
}

impl<F> Lambda<F> {
    /// Applies `f`.
    pub fn new<X, Y>(f: F) -> Self
    where
        F: Fn(X) -> Result<Y>,
    {
        Self { f }
    }
}

impl<X, Y, F: Fn(X) -> Result<Y>> Transform<X> for Lambda<F> {
    type Out = Y;

    fn apply(&self, x: X, _random: &Generator) -> Result<Y> {
        (self.f)(x)
    }
}

impl<F> fmt::Debug for Lambda<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lambda")
    }
}
