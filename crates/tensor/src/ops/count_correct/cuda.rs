//! Counts correct predictions on a device, with the kernel of `count_correct.cu`.

use pagelock_cuda::{Argument, Launch};

use crate::capture;
use crate::cuda::{Code, CudaDevice, count};
use crate::error::Result;
use crate::inlined::Array;
use crate::profiler;
use crate::storage::lock_order;
use crate::tensor::Raw;

static CODE: Code = Code { name: "correct", text: include_str!("count_correct.cu") };

const THREADS: usize = 256;
const WARP: usize = 32;

/// Adds to both counts, which are `i64`. `scores`, `[n, classes]`, and `labels`, `[n]` of `i64`, are contiguous and
/// not empty. All tensors are on the device, in different storages.
pub(super) fn add_correct(
    op: &'static str,
    device: &CudaDevice,
    counts: [&Raw; 2],
    [scores, labels]: [&Raw; 2],
) -> Result<()> {
    let n = labels.shape().elements();
    let classes = scores.shape().elements() / n;
    count(op, n.div_ceil(THREADS / WARP))?;
    let storages = [counts[0], counts[1], scores, labels].mapped(|raw| &raw.storage);
    let (mut writing, mut reading) = ([const { None }; 2], [const { None }; 4]);
    for i in lock_order(storages.mapped(Some)) {
        if i < counts.len() {
            capture::note_write(storages[i]);
            writing[i] = Some(storages[i].lock_mut());
        } else {
            reading[i] = Some(storages[i].lock());
        }
    }
    let ([Some(correct), Some(total)], [.., Some(x), Some(row_labels)]) = (&mut writing, &reading) else {
        unreachable!("the loop locks all four storages")
    };
    let [correct, total] = [(correct, counts[0]), (total, counts[1])]
        .mapped(|(to, raw)| to.cuda(&raw.layout, raw.dtype()).into_argument());
    let [x, row_labels] =
        [(x, scores), (row_labels, labels)].mapped(|(from, raw)| from.cuda(&raw.layout, raw.dtype()).argument());
    let [n_bytes, classes] = [n, classes].mapped(|size| (size as u64).to_ne_bytes());
    let [n_bytes, classes] = [&n_bytes[..], &classes].mapped(Argument::Value);
    let kernel = ([scores.dtype(); 2], "count");
    let launch = Launch::covering(n * WARP, THREADS as u32);
    let queue = || {
        // SAFETY: the kernel takes these arguments; there are n labels, n rows of `classes` scores, and one number in
        // each count.
        unsafe { CODE.launch(device, op, kernel, launch, &[correct, total, x, row_labels, n_bytes, classes]) }
    };
    profiler::on_stream(op, || device.stream(), queue)
}
