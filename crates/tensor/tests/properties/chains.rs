//! Random chains of views, applied to a tensor and to its model.
//!
//! Each element is its own position in the base, so a model also says which elements of the base a view shows.

use pagelock_tensor::{Device, Int, Tensor};
use proptest::prelude::*;

use super::model::Model;

/// One view: its kind, and numbers from which fitting arguments are made.
pub(crate) type Step = (u8, u8, u8, u8);

pub(crate) fn chain() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(any::<Step>(), 0..6)
}

pub(crate) struct Chain {
    pub(crate) tensor: Tensor<Int>,
    pub(crate) model: Model<i64>,
}

/// A tensor of this shape on a device, and its model. The tensor is stored in the order of a base that `steps`
/// transpose.
pub(crate) fn viewed(device: &Device, shape: &[usize], steps: &[Step]) -> (Tensor<Int>, Model<i64>) {
    let rank = shape.len();
    let steps = if rank == 0 { &[] } else { steps };
    let turns: Vec<Step> = steps.iter().map(|&(_, a, b, c)| (0, a, b, c)).collect();
    let mut stored: Vec<usize> = shape.to_vec();
    turns.iter().rev().for_each(|&(_, a, b, _)| stored.swap(a as usize % rank, b as usize % rank));
    Chain::new(device, &stored).run(&turns)
}

impl Chain {
    pub(crate) fn new(device: &Device, shape: &[usize]) -> Chain {
        let n_elements = shape.iter().product::<usize>() as i64;
        let model = Model { shape: shape.to_vec(), data: (0..n_elements).collect() };
        let tensor = Tensor::from_slice(&model.data, shape).and_then(|tensor| tensor.to(device)).unwrap();
        Chain { tensor, model }
    }

    pub(crate) fn run(mut self, steps: &[Step]) -> (Tensor<Int>, Model<i64>) {
        for step in steps {
            self.step(*step);
        }
        (self.tensor, self.model)
    }

    fn step(&mut self, (kind, a, b, c): Step) {
        let rank = self.model.shape.len();
        let (a, b, c) = (a as usize, b as usize, c as usize);
        if rank == 0 {
            return self.unsqueeze(a);
        }
        let dim = a % rank;
        match kind % 11 {
            0 => self.transpose(dim, b % rank),
            1 => self.permute(b, c),
            2 => self.narrow(dim, b, c),
            3 => self.slice(dim, b, c),
            4 => self.select(dim, b),
            5 => self.squeeze(dim),
            6 => self.unsqueeze(a),
            7 => self.expand(b),
            8 => self.flatten(dim, b % rank),
            9 => self.split(dim, b),
            _ => self.reshape_all(b),
        }
    }

    /// The dimension counted from the start or, if `odd` is odd, from the end.
    fn named(&self, dim: usize, odd: usize) -> isize {
        if odd.is_multiple_of(2) { dim as isize } else { dim as isize - self.model.shape.len() as isize }
    }

    fn set(&mut self, tensor: Tensor<Int>, shape: &[usize], source: impl Fn(&[usize]) -> Vec<usize>) {
        self.model = Model::build(shape, |index| self.model.at(&source(index)));
        self.tensor = tensor;
    }

    fn transpose(&mut self, a: usize, b: usize) {
        let tensor = self.tensor.transpose(self.named(a, b), self.named(b, a)).unwrap();
        let mut shape = self.model.shape.clone();
        shape.swap(a, b);
        self.set(tensor, &shape, |index| {
            let mut index = index.to_vec();
            index.swap(a, b);
            index
        });
    }

    /// Rotates the dimensions by `by`, and reverses them if `back` is odd.
    fn permute(&mut self, by: usize, back: usize) {
        let rank = self.model.shape.len();
        let mut order: Vec<usize> = (0..rank).map(|dim| (dim + by) % rank).collect();
        if back % 2 == 1 {
            order.reverse();
        }
        let named: Vec<isize> = order.iter().map(|&dim| self.named(dim, back)).collect();
        let tensor = permuted(&self.tensor, &named);
        let shape: Vec<usize> = order.iter().map(|&dim| self.model.shape[dim]).collect();
        self.set(tensor, &shape, |index| {
            let mut source = vec![0; rank];
            order.iter().zip(index).for_each(|(&dim, &i)| source[dim] = i);
            source
        });
    }

    fn narrow(&mut self, dim: usize, start: usize, len: usize) {
        let size = self.model.shape[dim];
        let start = start % (size + 1);
        let len = len % (size - start + 1);
        let tensor = self.tensor.narrow(self.named(dim, start), start, len).unwrap();
        self.cut(tensor, dim, start, len, 1);
    }

    fn slice(&mut self, dim: usize, start: usize, step: usize) {
        let size = self.model.shape[dim];
        let (start, step) = (start % (size + 2), step % 4 + 1);
        let tensor = self.tensor.slice(self.named(dim, start), start as isize.., step).unwrap();
        let start = start.min(size); // as in Python, bounds beyond the end are clipped
        self.cut(tensor, dim, start, (size - start).div_ceil(step), step);
    }

    fn cut(&mut self, tensor: Tensor<Int>, dim: usize, start: usize, len: usize, step: usize) {
        let mut shape = self.model.shape.clone();
        shape[dim] = len;
        self.set(tensor, &shape, |index| {
            let mut index = index.to_vec();
            index[dim] = start + step * index[dim];
            index
        });
    }

    fn select(&mut self, dim: usize, at: usize) {
        let size = self.model.shape[dim];
        if size == 0 {
            assert!(self.tensor.select(dim as isize, 0).is_err());
            return;
        }
        let at = at % size;
        let named = if at.is_multiple_of(2) { at as isize } else { at as isize - size as isize };
        let tensor = self.tensor.select(self.named(dim, at), named).unwrap();
        let mut shape = self.model.shape.clone();
        shape.remove(dim);
        self.set(tensor, &shape, |index| [&index[..dim], &[at], &index[dim..]].concat());
    }

    fn squeeze(&mut self, dim: usize) {
        let tensor = self.tensor.squeeze(dim as isize).unwrap();
        if self.model.shape[dim] != 1 {
            return self.tensor = tensor;
        }
        let mut shape = self.model.shape.clone();
        shape.remove(dim);
        self.set(tensor, &shape, |index| [&index[..dim], &[0], &index[dim..]].concat());
    }

    fn unsqueeze(&mut self, at: usize) {
        let rank = self.model.shape.len();
        if rank == pagelock_tensor::MAX_RANK {
            assert!(self.tensor.unsqueeze(0).is_err());
            return;
        }
        let dim = at % (rank + 1);
        let tensor =
            self.tensor.unsqueeze(if at.is_multiple_of(2) { dim as isize } else { dim as isize - rank as isize - 1 });
        let mut shape = self.model.shape.clone();
        shape.insert(dim, 1);
        self.set(tensor.unwrap(), &shape, |index| [&index[..dim], &index[dim + 1..]].concat());
    }

    /// Expands all sizes of 1 to `to % 4`, and adds a first dimension of size 2 if the rank is below 4.
    fn expand(&mut self, to: usize) {
        let mut shape: Vec<usize> =
            self.model.shape.iter().map(|&size| if size == 1 { to % 4 } else { size }).collect();
        let lead = usize::from(shape.len() < 4);
        shape.splice(0..0, vec![2; lead]);
        let tensor = self.tensor.expand(&shape[..]).unwrap();
        let sizes = self.model.shape.clone();
        self.set(tensor, &shape, |index| {
            index[lead..].iter().zip(&sizes).map(|(&i, &size)| if size == 1 { 0 } else { i }).collect()
        });
    }

    fn flatten(&mut self, a: usize, b: usize) {
        let (start, end) = (a.min(b), a.max(b));
        let tensor = self.tensor.flatten(self.named(start, b), self.named(end, a)).unwrap();
        let mut shape = self.model.shape.clone();
        let merged = shape[start..=end].iter().product();
        shape.splice(start..=end, [merged]);
        self.reshaped(tensor, shape);
    }

    /// Splits a dimension into two, one of which is inferred.
    fn split(&mut self, dim: usize, inner: usize) {
        let size = self.model.shape[dim];
        let inner = inner % 3 + 1;
        if !size.is_multiple_of(inner) || self.model.shape.len() > 5 || self.model.shape.contains(&0) {
            return;
        }
        let mut shape = self.model.shape.clone();
        shape.splice(dim..=dim, [size / inner, inner]);
        let mut sizes: Vec<isize> = shape.iter().map(|&size| size as isize).collect();
        sizes[dim] = -1;
        let tensor = self.tensor.reshape(&sizes[..]).unwrap();
        self.reshaped(tensor, shape);
    }

    /// Reshapes to a vector or a column.
    fn reshape_all(&mut self, column: usize) {
        let len = self.model.data.len();
        let shape = if column.is_multiple_of(2) { vec![len] } else { vec![len, 1] };
        let tensor = self.tensor.reshape(&shape).unwrap();
        self.reshaped(tensor, shape);
    }

    fn reshaped(&mut self, tensor: Tensor<Int>, shape: Vec<usize>) {
        self.model.shape = shape;
        self.tensor = tensor;
    }
}

fn permuted(tensor: &Tensor<Int>, order: &[isize]) -> Tensor<Int> {
    macro_rules! with_array {
        ($($len:literal)*) => {
            match order.len() {
                $($len => tensor.permute::<$len>(order.try_into().unwrap()),)*
                len => panic!("{len} dimensions"),
            }
        };
    }
    with_array!(1 2 3 4 5 6 7 8).unwrap()
}
