//! Joins, and selections by index.

use pagelock_tensor::Tensor;
use serde_json::json;

use super::call::run;
use super::input::{index, signed};
use super::{Mixed, Operation, sample};

pub fn entries() -> Vec<Operation> {
    let dim = |dim: isize| json!({ "dim": dim });
    let joins = |name, torch, run| {
        Operation::new(name, torch, run).mixed(Mixed::Promotes).large(|n| {
            let both = |dim: isize| sample([signed([n / 64, 64]), signed([n / 64, 64])]).args(json!({ "dim": dim }));
            vec![both(0), both(1)]
        })
    };
    let rows = |shape: &[usize], along: isize| sample([signed(shape), signed(shape)]).args(dim(along));
    let picked = |shape: &[usize], high: i64, indices: &[usize], along: isize| {
        sample([signed(shape), index(high, indices)]).args(dim(along)).in_every_precision()
    };
    let turned = signed([4, 3]).view(json!(["transpose", 0, 1]));
    vec![
        joins("cat", "torch.cat(inputs, dim)", run! { elements |c| Tensor::cat(&c.all(), c.int("dim")) })
            .samples([
                sample([signed([2, 1]), signed([2, 3]), signed([2, 0])]).args(dim(1)).in_every_precision(),
                rows(&[2, 3], 0).in_every_precision(),
                rows(&[2, 3, 2], -1),
                sample([turned.clone(), signed([3, 4])]).args(dim(0)),
            ])
            .moves(),
        joins("stack", "torch.stack(inputs, dim)", run! { elements |c| Tensor::stack(&c.all(), c.int("dim")) })
            .samples([
                rows(&[2, 3], 0).in_every_precision(),
                rows(&[2, 3], 1),
                rows(&[2, 3], 2).in_every_precision(),
                sample([turned, signed([3, 4])]).args(dim(-1)),
            ])
            .moves(),
        Operation::new(
            "index_select",
            "x.index_select(dim, y)",
            run! { elements |c| c.x().index_select(c.int("dim"), c.index()) },
        )
        .samples([picked(&[3, 2], 3, &[4], 0), picked(&[2, 3], 3, &[4], -1), picked(&[2, 3], 3, &[0], 1)])
        .moves()
        .large(|n| {
            let case = |shape: [usize; 2], dim: usize| {
                let high = shape[dim];
                sample([signed(shape), index(high as i64, [high])]).args(json!({ "dim": dim }))
            };
            vec![case([n / 64, 64], 0), case([n / 64, 64], 1), case([64, n / 64], 1)]
        }),
        Operation::new("gather", "x.gather(dim, y)", run! { elements |c| c.x().gather(c.int("dim"), c.index()) })
            .samples([picked(&[3, 2], 3, &[2, 2], 0), picked(&[2, 3], 3, &[2, 2], 1), picked(&[3, 4], 3, &[2, 1], 0)])
            .moves()
            .large(|n| {
                let case = |dim: usize, high: usize| {
                    sample([signed([n / 64, 64]), index(high as i64, [n / 64, 8])]).args(json!({ "dim": dim }))
                };
                vec![case(0, n / 64), case(1, 64)]
            }),
    ]
}
