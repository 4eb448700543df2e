//! Views, joins and selections by index.

use pagelock_tensor::{Result, Tensor};

use super::{checked_twice, signed};

/// Views are linear, so that alone their second derivatives are zero: a square makes them show.
fn view(f: impl Fn(&Tensor) -> Result<Tensor>, shape: &[usize]) {
    checked_twice(|x| f(&x[0])?.pow(2.0), &[signed(shape, 1)]);
}

#[test]
fn reshape_and_flatten() {
    view(|x| x.reshape([3, 2]), &[2, 3]);
    view(|x| x.reshape([-1]), &[2, 1, 3]);
    view(|x| x.reshape([]), &[1, 1]);
    view(|x| x.contiguous()?.view([2, -1]), &[2, 3, 2]);
    view(|x| x.flatten(1, -1), &[2, 3, 2]);
    view(|x| x.flatten(0, 0), &[]);
}

#[test]
fn permute_and_transpose() {
    view(|x| x.permute([2, 0, 1]), &[2, 3, 4]);
    view(|x| x.permute([1, -1, 0]), &[2, 3, 4]);
    view(|x| x.transpose(0, -1), &[2, 3, 4]);
    view(|x| x.t(), &[2, 3]);
    view(|x| x.t(), &[3]);
    view(|x| x.t()?.contiguous(), &[2, 3]);
}

#[test]
fn narrow_slice_and_select() {
    view(|x| x.narrow(1, 1, 2), &[2, 4]);
    view(|x| x.narrow(0, 0, 0), &[2, 2]);
    view(|x| x.slice(0, .., 2), &[5]);
    view(|x| x.slice(-1, [1, -1], 3), &[2, 8]);
    view(|x| x.select(0, -1), &[3, 2]);
    view(|x| x.select(-1, 0), &[3, 2]);
}

#[test]
fn squeeze_unsqueeze_and_expand() {
    view(|x| x.squeeze(1), &[2, 1, 3]);
    view(|x| x.squeeze(0), &[2, 1, 3]);
    view(|x| x.unsqueeze(-1), &[2, 3]);
    view(|x| x.unsqueeze(0), &[]);
    view(|x| x.expand([4, 2, 3]), &[2, 1]);
    view(|x| x.expand([2, 2]), &[]);
    view(|x| x.expand([2, 3]), &[2, 3]);
}

#[test]
fn chains_of_views() {
    view(|x| x.permute([1, 2, 0])?.slice(0, .., 2)?.flatten(0, 1)?.t()?.select(0, 1), &[3, 4, 2]);
    view(|x| x.expand([3, 2, 2])?.transpose(0, 2)?.reshape([4, 3])?.narrow(1, 1, 2), &[2, 1]);
}

#[test]
fn cat_and_stack() {
    let parts = [signed(&[2, 1], 0), signed(&[2, 3], 1), signed(&[2, 0], 2)];
    checked_twice(|x| Tensor::cat(&[&x[0], &x[1], &x[2], &x[0]], 1)?.pow(2.0), &parts);
    let rows = [signed(&[2, 3], 0), signed(&[2, 3], 1)];
    for dim in [0, 1, 2, -1] {
        checked_twice(|x| Tensor::stack(&[&x[0], &x[1]], dim)?.pow(2.0), &rows);
    }
}

#[test]
fn index_select() -> Result<()> {
    let index = Tensor::new([2, 0, 2, 1])?;
    view(|x| x.index_select(0, &index.to(&x.device())?), &[3, 2]);
    view(|x| x.index_select(-1, &index.to(&x.device())?), &[2, 3]);
    view(|x| x.index_select(1, &index.narrow(0, 0, 0)?.to(&x.device())?), &[2, 3]);
    Ok(())
}

#[test]
fn gather() -> Result<()> {
    let index = Tensor::new([[2, 0], [1, 1]])?;
    view(|x| x.gather(0, &index.to(&x.device())?), &[3, 2]);
    view(|x| x.gather(1, &index.to(&x.device())?), &[2, 3]);
    view(|x| x.gather(1, &index.t()?.to(&x.device())?), &[3, 4]);
    view(|x| x.gather(0, &index.narrow(1, 0, 1)?.to(&x.device())?), &[3, 4]);
    Ok(())
}
