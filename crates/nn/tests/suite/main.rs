//! The tests of pagelock-nn, in one binary. PyTorch's results are in `../golden`, written by the scripts there.

mod attention;
mod averaged_models;
mod checkpoint_folders;
mod checkpoints;
mod document;
mod drawn;
mod edges;
mod files;
mod fit;
mod freezing;
mod functional_call;
mod hooks;
mod images;
mod init;
mod layer_rules;
mod layers;
mod lbfgs;
mod lr_schedulers;
mod masters;
mod metrics;
mod modules;
mod moving;
#[path = "../networks/mod.rs"]
mod networks;
mod normalizing;
mod optimizer_settings;
mod optimizer_states;
mod optimizers;
mod parametrizations;
mod precision;
mod printing;
mod pytorch;
mod recurrent;
mod replay;
mod torch_files;
mod torch_models;

use std::sync::{Mutex, MutexGuard, PoisonError};

use networks::cnn;

/// The lock of tests that set the number of threads, which is the same for the whole process.
fn lock_threads() -> MutexGuard<'static, ()> {
    static THREADS: Mutex<()> = Mutex::new(());
    THREADS.lock().unwrap_or_else(PoisonError::into_inner)
}
