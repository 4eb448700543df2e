//! Folders of checkpoints: interrupted writes, damaged files, and which checkpoints are kept.
//! `../resumed_training.rs` tests that resumed trainings end with the same bits.

use std::fs;
use std::path::PathBuf;

use pagelock_cuda::software;
use pagelock_nn::optim::Adam;
use pagelock_nn::{
    AlphaDropout, Checkpoint, Checkpoints, Dropout, Dropout1d, Dropout2d, Dropout3d, Error, FeatureAlphaDropout,
    Forward, Linear, Module, Parameter, Result, StateDict,
};
use pagelock_tensor::{Device, Generator, Tensor};
use tempfile::TempDir;

/// A folder with checkpoints of steps 1 and 2. All weights of a checkpoint are its step, and so is its `epoch`.
struct Two {
    folder: TempDir,
    checkpoints: Checkpoints,
}

fn weight(number: f64) -> Parameter {
    Parameter::new(Tensor::full([3], number).unwrap())
}

fn holding(number: f64) -> Checkpoint {
    Checkpoint::new().model(&weight(number)).unwrap().value("epoch", number as u64).unwrap()
}

fn two() -> Two {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = Checkpoints::open(folder.path()).unwrap();
    checkpoints.save(1, holding(1.0)).unwrap();
    checkpoints.save(2, holding(2.0)).unwrap();
    checkpoints.wait().unwrap();
    Two { folder, checkpoints }
}

impl Two {
    fn file(&self, step: u64) -> PathBuf {
        self.folder.path().join(format!("step-{step:010}.safetensors"))
    }

    fn n_files(&self) -> usize {
        fs::read_dir(self.folder.path()).unwrap().count()
    }

    fn latest(&mut self) -> Result<f64> {
        let found = self.checkpoints.latest()?.unwrap();
        let w = weight(0.0);
        found.load_model(&w)?;
        let numbers = w.detach().to_vec::<f64>()?;
        assert_eq!(numbers, [found.value::<u64>("epoch")? as f64; 3], "weights and epoch are of different checkpoints");
        Ok(numbers[0])
    }
}

/// The name of a temporary file of `pagelock_files`.
const TEMPORARY: &str = ".pagelock-abcdefghijABCDEFGHI9.tmp";

#[test]
fn a_write_that_stopped_after_any_byte_leaves_the_checkpoint_before_and_the_next_save_removes_its_rest() {
    let mut there = two();
    let bytes = fs::read(there.file(2)).unwrap();
    fs::remove_file(there.file(2)).unwrap();
    let temporary = there.folder.path().join(TEMPORARY);
    for len in 0..=bytes.len() {
        fs::write(&temporary, &bytes[..len]).unwrap();
        assert_eq!(there.latest().unwrap(), 1.0, "{len} bytes written");
    }
    there.checkpoints.save(3, holding(3.0)).unwrap();
    assert_eq!(there.latest().unwrap(), 3.0);
    assert_eq!((there.n_files(), temporary.exists()), (2, false));
}

#[test]
fn a_save_that_stopped_between_any_two_of_its_steps_leaves_a_whole_checkpoint() {
    let mut there = two();
    let third = fs::read(there.file(2)).unwrap();
    fs::write(there.file(3), third).unwrap(); // the save renamed its file, and removed nothing yet
    assert_eq!(there.latest().unwrap(), 2.0);
    fs::remove_file(there.file(1)).unwrap(); // the first removal
    assert_eq!(there.latest().unwrap(), 2.0);
    there.checkpoints = Checkpoints::open(there.folder.path()).unwrap().keep_last(1);
    there.checkpoints.save(4, holding(4.0)).unwrap();
    assert_eq!((there.latest().unwrap(), there.n_files()), (4.0, 1));
}

#[test]
fn a_checkpoint_that_was_cut_short_anywhere_is_refused_and_the_one_before_is_named() {
    let mut there = two();
    let bytes = fs::read(there.file(2)).unwrap();
    for len in 0..bytes.len() {
        fs::write(there.file(2), &bytes[..len]).unwrap();
        let error = there.latest().unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::DamagedCheckpoint { previous: Some(1), .. }), "{len} bytes: {text}");
        assert!(
            text.contains("step-0000000002.safetensors: ") && text.contains("of step 1 is intact: delete "),
            "{text}"
        );
    }
    fs::remove_file(there.file(2)).unwrap();
    assert_eq!(there.latest().unwrap(), 1.0);
}

#[test]
fn a_checkpoint_with_a_changed_byte_is_refused_or_has_the_same_bits() {
    let mut there = two();
    let bytes = fs::read(there.file(2)).unwrap();
    let mut n_refused = 0;
    for at in 0..bytes.len() {
        for flipped in [1, 0x20, 0x80] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flipped;
            fs::write(there.file(2), &damaged).unwrap();
            match there.latest() {
                Ok(number) => assert_eq!(number, 2.0, "byte {at}"),
                Err(Error::DamagedCheckpoint { previous: Some(1), .. }) => n_refused += 1,
                Err(error) => panic!("byte {at}: {error}"),
            }
        }
    }
    assert!(n_refused > 2 * bytes.len(), "{n_refused} of {}", bytes.len());
    let data = bytes.windows(12).position(|window| window == [2.0_f32.to_le_bytes(); 3].concat()).unwrap();
    let mut damaged = bytes.clone();
    damaged[data] ^= 1;
    fs::write(there.file(2), damaged).unwrap();
    let text = there.latest().unwrap_err().to_string();
    let problem = format!("`model.`, bytes {data} to {}, does not match its checksum", data + 12);
    assert!(text.contains(&problem), "{text}");
}

#[test]
fn without_a_whole_one_before_a_damaged_checkpoint_says_so() {
    let mut there = two();
    [1, 2].iter().for_each(|&step| fs::write(there.file(step), "").unwrap());
    let text = there.latest().unwrap_err().to_string();
    assert!(text.contains("no earlier checkpoint is intact"), "{text}");
}

#[test]
fn an_error_of_the_thread_comes_with_the_next_call_which_saves_nothing() {
    let mut there = two();
    fs::create_dir(there.file(3)).unwrap();
    there.checkpoints.save(3, holding(3.0)).unwrap();
    let error = there.checkpoints.save(4, holding(4.0)).unwrap_err().to_string();
    assert!(error.contains("step-0000000003.safetensors") && error.contains("folder of that name"), "{error}");
    assert!(!there.file(4).exists());
    fs::remove_dir(there.file(3)).unwrap();
    there.checkpoints.save(4, holding(4.0)).unwrap();
    there.checkpoints.wait().unwrap();
    assert_eq!(there.latest().unwrap(), 4.0);
}

#[test]
fn dropping_waits_for_what_is_being_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = Checkpoints::open(folder.path()).unwrap();
    checkpoints.save(1, holding(1.0)).unwrap();
    drop(checkpoints);
    assert_eq!(Checkpoints::open(folder.path()).unwrap().steps().unwrap(), [1]);
}

#[test]
fn the_last_and_the_best_are_kept() {
    let scores = [0.5, 0.9, f64::NAN, 0.9, 0.7, 0.1, -1.0];
    for (last, best, expected) in [
        (None, None, &[0, 1, 2, 3, 4, 5, 6][..]),
        (Some(2), None, &[5, 6]),
        (Some(2), Some(1), &[1, 5, 6]),
        (None, Some(3), &[1, 3, 4, 6]),
        (Some(0), Some(0), &[6]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut checkpoints = Checkpoints::open(folder.path()).unwrap();
        checkpoints = last.into_iter().fold(checkpoints, Checkpoints::keep_last);
        checkpoints = best.into_iter().fold(checkpoints, Checkpoints::keep_best);
        for (step, score) in (0..).zip(scores) {
            checkpoints.save(step, holding(1.0).score(score)).unwrap();
        }
        let best_step = checkpoints.best().unwrap().map(|best| (best.step(), best.score().unwrap()));
        assert_eq!(checkpoints.steps().unwrap(), expected, "{last:?} {best:?}");
        if best.is_some_and(|n| n > 0) || last.is_none() {
            assert_eq!(best_step, Some((1, Some(0.9))));
        }
    }
}

#[test]
fn a_checkpoint_whose_score_cannot_be_read_is_an_error_and_nothing_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = Checkpoints::open(folder.path()).unwrap();
    for (step, score) in [(1, 0.9), (2, 0.5), (3, 0.1)] {
        checkpoints.save(step, holding(1.0).score(score)).unwrap();
    }
    checkpoints.wait().unwrap();
    let (best, elsewhere) = (folder.path().join("step-0000000001.safetensors"), folder.path().join("elsewhere"));
    fs::rename(&best, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&best, &best).unwrap(); // the system refuses to open it: the link points to itself

    let mut checkpoints = checkpoints.keep_best(1);
    let error = checkpoints.best().unwrap_err().to_string();
    assert!(error.contains("step-0000000001.safetensors"), "{error}");
    checkpoints.save(4, holding(1.0).score(0.2)).unwrap();
    let error = checkpoints.wait().unwrap_err().to_string();
    assert!(error.contains("step-0000000001.safetensors"), "{error}");
    assert_eq!(checkpoints.steps().unwrap(), [1, 2, 3, 4]);

    fs::rename(&elsewhere, &best).unwrap();
    checkpoints.save(5, holding(1.0).score(0.3)).unwrap();
    checkpoints.wait().unwrap();
    assert_eq!(checkpoints.steps().unwrap(), [1, 5]);
}

#[test]
fn a_damaged_checkpoint_has_no_score() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = Checkpoints::open(folder.path()).unwrap().keep_best(1);
    fs::write(folder.path().join("step-0000000001.safetensors"), "damaged").unwrap();
    checkpoints.save(2, holding(1.0).score(0.1)).unwrap();
    assert_eq!(checkpoints.best().unwrap().unwrap().step(), 2);
}

#[test]
fn a_checkpoint_with_a_damaged_tensor_or_score_displaces_none_that_is_intact() {
    let score = 0.9_f64.to_le_bytes();
    for (damaged, replacement) in
        [([1.0_f32.to_le_bytes(); 2].concat(), [0; 8]), (score.to_vec(), 0.8_f64.to_le_bytes())]
    {
        let folder = tempfile::tempdir().unwrap();
        let mut checkpoints = Checkpoints::open(folder.path()).unwrap().keep_best(1).keep_last(9);
        for (step, score) in [(1, 0.9), (2, 0.1), (3, 0.5), (4, 0.2)] {
            checkpoints.save(step, holding(1.0).score(score)).unwrap();
        }
        checkpoints.wait().unwrap();
        let path = folder.path().join("step-0000000001.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.windows(8).position(|window| window == damaged).unwrap();
        bytes[at..][..8].copy_from_slice(&replacement);
        fs::write(&path, bytes).unwrap();

        assert_eq!(checkpoints.best().unwrap().unwrap().step(), 3);
        let mut checkpoints = checkpoints.keep_last(1);
        checkpoints.save(5, holding(1.0).score(0.3)).unwrap();
        checkpoints.wait().unwrap();
        assert_eq!(checkpoints.steps().unwrap(), [3, 5]);
    }
}

#[test]
fn files_that_are_no_checkpoints_are_left_alone() {
    let mut there = two();
    let others = ["step-3.safetensors", "step-0000000004.safetensors.bak", "notes.txt", "step-.safetensors"];
    others.iter().for_each(|name| fs::write(there.folder.path().join(name), "mine").unwrap());
    assert_eq!((there.latest().unwrap(), there.checkpoints.steps().unwrap()), (2.0, vec![1, 2]));
    there.checkpoints.clear().unwrap();
    assert_eq!(there.n_files(), others.len());
}

#[test]
fn values_keep_their_bits() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = Checkpoints::open(folder.path()).unwrap();
    let nan = f64::from_bits(0x7ff8_0000_0000_1234);
    let checkpoint = Checkpoint::new().value("nan", nan).and_then(|all| all.value("best", f64::NEG_INFINITY));
    let checkpoint = checkpoint.and_then(|all| all.value("seed", u64::MAX)?.value("delta", -3_i64)?.value("on", true));
    let checkpoint = checkpoint.and_then(|all| all.value("empty", String::new())?.value("text", "größe".to_owned()));
    let checkpoint = checkpoint.and_then(|all| all.value("digits", "5".to_owned()));
    checkpoints.save(0, checkpoint.unwrap().loader("epoch 3, batch 4").unwrap()).unwrap();
    let found = checkpoints.latest().unwrap().unwrap();
    assert_eq!(found.value::<f64>("nan").unwrap().to_bits(), nan.to_bits());
    assert_eq!(found.value::<f64>("best").unwrap(), f64::NEG_INFINITY);
    assert_eq!(found.value::<u64>("seed").unwrap(), u64::MAX);
    assert_eq!((found.value::<i64>("delta").unwrap(), found.value::<bool>("on").unwrap()), (-3, true));
    assert_eq!(
        (found.value::<String>("empty").unwrap(), found.value::<String>("text").unwrap()),
        (String::new(), "größe".to_owned())
    );
    assert_eq!(found.loader::<String>().unwrap(), "epoch 3, batch 4");
    assert!(found.value::<u64>("delta").unwrap_err().to_string().contains("`values.delta` is int64 [], not u64"));
    assert!(found.value::<u64>("digits").is_err(), "a string of digits is no number");
}

#[test]
fn what_does_not_fit_is_refused_by_name_and_changes_nothing() {
    let mut there = two();
    let found = there.checkpoints.latest().unwrap().unwrap();
    let other = Linear::new(2, 2).unwrap();
    let before = other.weight.to_vec::<f32>().unwrap();
    assert!(matches!(found.load_model(&other), Err(Error::StateDict(_))));
    assert_eq!(other.weight.to_vec::<f32>().unwrap(), before);
    let mut opt = Adam::new(other.parameters(), 0.1);
    let error = found.load_optimizer(&mut opt).unwrap_err().to_string();
    assert!(error.contains("it has no `optimizer`; it has epoch, model"), "{error}");
    assert!(found.load_random().is_err() && found.loader::<u64>().is_err());
    assert!(there.checkpoints.at(7).unwrap_err().to_string().contains("no checkpoint of step 7, only of [1, 2]"));
    let twice = holding(1.0).value("epoch", 1_u64).unwrap_err().to_string();
    assert!(twice.contains("`values.epoch` was added already"), "{twice}");
    assert!(Checkpoint::new().module("generators", &weight(1.0)).is_err());
    assert!(Checkpoint::new().tensors("a.b", &StateDict::new()).is_err());
}

#[test]
fn tensors_of_a_device_are_saved() {
    let device = pagelock_cuda::Device::software(software::Config::default()).unwrap();
    let device = Device::try_from(&device).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (trained, fresh) = (Linear::new(5, 4).unwrap().to(&device).unwrap(), Linear::new(5, 4).unwrap());
    let mut checkpoints = Checkpoints::open(folder.path()).unwrap();
    checkpoints.save(1, Checkpoint::new().model(&trained).unwrap()).unwrap();
    checkpoints.latest().unwrap().unwrap().load_model(&fresh).unwrap();
    assert_eq!(fresh.weight.to_vec::<f32>().unwrap(), trained.weight.to_vec::<f32>().unwrap());
}

/// Saves a layer that has drawn one mask, and checks that a new one loads its position, but not that of an older file.
fn masks_go_on<M: Module + Forward>(new: fn(f64, Generator) -> M, shape: &[usize]) {
    let folder = tempfile::tempdir().unwrap();
    let model = || (weight(1.0), new(0.5, Generator::new(3).stream(2)));
    let mask =
        |(_, layer): &(Parameter, M)| layer.forward(&Tensor::ones(shape).unwrap()).unwrap().to_vec::<f32>().unwrap();
    let (first, second, third) = (model(), model(), model());
    let first_mask = mask(&first);
    let mut checkpoints = Checkpoints::open(folder.path()).unwrap();
    let other = Checkpoint::new().tensors("other", &first.state_dict()).unwrap();
    checkpoints.save(1, other.model(&first).unwrap()).unwrap();
    let saved = checkpoints.latest().unwrap().unwrap();
    saved.load_model(&second).unwrap();
    saved.load_module("other", &third).unwrap();

    let next = mask(&first);
    assert_ne!(next, first_mask);
    assert_eq!((mask(&second), mask(&third)), (next, first_mask));
    assert_eq!(first.state_dict().names().collect::<Vec<_>>(), ["0"], "no file for PyTorch has more");
}

#[test]
fn layers_with_generators_of_their_own_go_on_with_the_next_mask() {
    masks_go_on(Dropout::new_with, &[64]);
    masks_go_on(Dropout1d::new_with, &[64, 2]);
    masks_go_on(Dropout2d::new_with, &[64, 2, 2]);
    masks_go_on(Dropout3d::new_with, &[64, 2, 2, 2]);
    masks_go_on(AlphaDropout::new_with, &[64]);
    masks_go_on(FeatureAlphaDropout::new_with, &[2, 64]);
}
