//! A tensor as a beginner would write it: a shape and a row-major `Vec`, and every operation by its definition.

use pagelock_tensor::{Element, Kind, Tensor};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Model<T> {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<T>,
}

impl<T: Copy> Model<T> {
    /// Makes every element from its index.
    pub(crate) fn build(shape: &[usize], mut element: impl FnMut(&[usize]) -> T) -> Model<T> {
        Model { shape: shape.to_vec(), data: indices(shape).iter().map(|index| element(index)).collect() }
    }

    pub(crate) fn at(&self, index: &[usize]) -> T {
        self.data[index.iter().zip(&self.shape).fold(0, |position, (&i, &size)| position * size + i)]
    }

    pub(crate) fn map<U>(&self, f: impl Fn(T) -> U) -> Model<U> {
        Model { shape: self.shape.clone(), data: self.data.iter().map(|&x| f(x)).collect() }
    }

    /// A tensor of these elements on the device of `like`. If `like` is not contiguous, the first and last dimensions
    /// are swapped in memory.
    pub(crate) fn onto<K: Kind>(&self, like: &Tensor<K>) -> Tensor<T::Kind>
    where
        T: Element,
    {
        let plain = Tensor::from_slice(&self.data, &self.shape[..]).and_then(|plain| plain.to(&like.device())).unwrap();
        match (like.is_contiguous(), like.rank()) {
            (true, _) | (_, 0 | 1) => plain,
            _ => plain.transpose(0, -1).unwrap().contiguous().unwrap().transpose(0, -1).unwrap(),
        }
    }

    /// Combines two models with broadcasting; `None` if their shapes do not broadcast.
    pub(crate) fn zip<U: Copy, V: Copy>(&self, other: &Model<U>, f: impl Fn(T, U) -> V) -> Option<Model<V>> {
        let rank = self.shape.len().max(other.shape.len());
        let size = |shape: &[usize], dim: usize| (dim + shape.len()).checked_sub(rank).map_or(1, |dim| shape[dim]);
        let shape: Option<Vec<usize>> = (0..rank)
            .map(|dim| match (size(&self.shape, dim), size(&other.shape, dim)) {
                (1, n) | (n, 1) => Some(n),
                (a, b) => (a == b).then_some(a),
            })
            .collect();
        let own = |index: &[usize], shape: &[usize]| -> Vec<usize> {
            let index = &index[rank - shape.len()..];
            index.iter().zip(shape).map(|(&i, &size)| if size == 1 { 0 } else { i }).collect()
        };
        let element = |index: &[usize]| f(self.at(&own(index, &self.shape)), other.at(&own(index, &other.shape)));
        Some(Model::build(&shape?, element))
    }

    /// Folds each group of elements whose indices differ only along `axes`, in row-major order.
    pub(crate) fn reduce<U: Copy>(&self, axes: &[usize], keepdim: bool, fold: impl Fn(&[T]) -> U) -> Model<U> {
        let kept: Vec<usize> =
            self.shape.iter().enumerate().map(|(dim, &size)| if axes.contains(&dim) { 1 } else { size }).collect();
        let result = Model::build(&kept, |place| {
            let same = |index: &[usize]| {
                index.iter().zip(place).enumerate().all(|(dim, (i, p))| axes.contains(&dim) || i == p)
            };
            let group: Vec<T> =
                indices(&self.shape).iter().filter(|index| same(index)).map(|index| self.at(index)).collect();
            fold(&group)
        });
        let shape = kept.iter().enumerate().filter(|(dim, _)| keepdim || !axes.contains(dim)).map(|(_, &size)| size);
        Model { shape: shape.collect(), data: result.data }
    }

    /// Adds a dimension along which everything repeats.
    pub(crate) fn repeat_along(&self, dim: usize, count: usize) -> Model<T> {
        let mut shape = self.shape.clone();
        shape.insert(dim, count);
        Model::build(&shape, |index| {
            let mut index = index.to_vec();
            index.remove(dim);
            self.at(&index)
        })
    }
}

/// All indices of a shape, in row-major order.
pub(crate) fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![Vec::new()], |indices, &size| {
        let longer = |index: Vec<usize>| (0..size).map(move |i| [&index[..], &[i]].concat());
        indices.into_iter().flat_map(longer).collect()
    })
}
