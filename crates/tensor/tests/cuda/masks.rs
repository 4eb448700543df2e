//! Masks on a GPU that another thread changes while their true elements are looked for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pagelock_tensor::{Bool, Result, Tensor};

use crate::common::gpu;

const LEN: usize = 1 << 20;

/// Calls `look` for 0.3 s, while another thread fills the mask with `true` and with `false` in turn.
fn while_filled(mask: &Tensor<Bool>, look: impl Fn() -> Result<()> + Sync) -> Result<()> {
    let is_over = AtomicBool::new(false); // Relaxed: it guards no other memory
    thread::scope(|scope| {
        let filling = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                mask.fill_(true)?;
                mask.fill_(false)?;
            }
            Ok(())
        });
        let looking = scope.spawn(|| {
            let end = Instant::now() + Duration::from_millis(300);
            while Instant::now() < end {
                look()?;
            }
            Ok(())
        });
        let looked = looking.join();
        is_over.store(true, Ordering::Relaxed);
        filling.join().unwrap().and(looked.unwrap())
    })
}

/// Before the fix, the places of a full mask were written to a result that had been made for an empty one.
#[test]
fn places_of_a_mask_that_changes_meanwhile_lie_inside_it() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let mask = Tensor::on(&device).full([LEN], false)?;
    while_filled(&mask, || {
        let places = mask.nonzero()?.to_vec::<i64>()?;
        assert!(places.iter().all(|&place| (0..LEN as i64).contains(&place)), "of {} places", places.len());
        Ok(())
    })
}

#[test]
fn elements_of_a_mask_that_changes_meanwhile_are_those_of_the_tensor() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (mask, x) = (Tensor::on(&device).full([LEN], false)?, Tensor::on(&device).full([LEN], 7.0)?);
    while_filled(&mask, || {
        let kept = x.masked_select(&mask)?.to_vec::<f32>()?;
        assert!(kept.iter().all(|&element| element == 7.0), "of {} elements", kept.len());
        Ok(())
    })
}
