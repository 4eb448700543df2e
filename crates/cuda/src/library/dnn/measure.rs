//! Finds the fastest plan of those that the library proposes, measured once and cached on disk.

use super::{
    Call, Dnn,
    plan::{Operation, Plan, UNSUPPORTED},
};
use crate::{
    error::Result,
    library::work::{self, Refusal},
    stream::Stream,
    sync::lock,
    user_cache::{UserCache, hash},
};

/// How often a plan is timed. The shortest time counts.
const REPETITIONS: usize = 3;

impl Dnn {
    /// The fastest plan, from the cache or measured now. The measurement computes the result with each plan in turn.
    pub(super) fn fastest(
        &self,
        stream: &Stream,
        operation: &Operation,
        call: &Call<'_>,
    ) -> Result<Result<Plan, Refusal>> {
        let cache = UserCache::of_user("plans", "PAGELOCK_PLAN_CACHE")?;
        let device = self.device.properties();
        let name = hash([&device.name[..], &format!("cuDNN {}", self.version), &format!("{operation:?}")]);
        let cached = cache.read(&name, 8).and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
        if let Some(plan) = cached.and_then(|cached| self.plans_of(operation, Some(cached as usize)).ok()?.pop()) {
            return Ok(Ok(plan.1));
        }
        let plans = match self.plans_of(operation, None) {
            Ok(plans) => plans,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut best: Option<(f64, usize, Plan)> = None;
        for (number, plan) in plans {
            let Some(seconds) = self.seconds(stream, &plan, call)? else { continue };
            if best.as_ref().is_none_or(|(least, ..)| seconds < *least) {
                best = Some((seconds, number, plan));
            }
        }
        let Some((_, number, plan)) = best else { return Ok(Err(UNSUPPORTED)) };
        let _ = cache.write(&name, &(number as u64).to_le_bytes()); // if that fails, it is measured again next time
        Ok(Ok(plan))
    }

    /// All plans with their numbers, or only the plan of number `only`.
    fn plans_of(&self, operation: &Operation, only: Option<usize>) -> Result<Vec<(usize, Plan)>, Refusal> {
        let handle = lock(&self.handle);
        let plans = Plan::all(self.api, handle.get(), operation, |number| only.is_none_or(|only| only == number))?;
        Ok(plans.collect())
    }

    /// How long the plan takes; `None` if it fails. A shortage of memory is an error: without the plan, another one would
    /// be stored as the fastest.
    fn seconds(&self, stream: &Stream, plan: &Plan, call: &Call<'_>) -> Result<Option<f64>> {
        let scratch = work::scratch(stream, plan.scratch_bytes())?;
        let mut least = f64::INFINITY;
        for time in 0..=REPETITIONS {
            let start = stream.record_timed()?;
            if self.run(stream, plan, scratch.as_ref(), call)?.is_err() {
                return Ok(None);
            }
            let elapsed = stream.record_timed()?.elapsed_since(&start)?.as_secs_f64();
            if time > 0 {
                least = least.min(elapsed); // the first run includes loading, so it does not count
            }
        }
        Ok(Some(least))
    }
}
