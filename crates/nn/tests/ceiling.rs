//! While checkpoints are read and written under `$PAGELOCK_HOST_LIMIT`, the resident memory of the process grows by
//! at most the limit plus 32 MiB.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use pagelock_nn::{Parameter, TorchValue, load_safetensors, save_safetensors};
use pagelock_tensor::Tensor;

const MIB: usize = 1 << 20;
const LIMIT: usize = 64 * MIB;
const ALLOWANCE: usize = 32 * MIB;

/// The environment variable with the folder of the files. It is set in the child process alone, which has the limit.
const FOLDER: &str = "PAGELOCK_TEST_FOLDER";

#[test]
fn checkpoints_exceed_the_limit_by_at_most_32_mib() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return read_and_write(&PathBuf::from(folder));
    }
    let folder = tempfile::tempdir().unwrap();
    checkpoint(&folder.path().join("large"), 100, MIB);
    checkpoint(&folder.path().join("small"), 20, MIB);
    checkpoint(&folder.path().join("many"), 10_000, 4);
    run_with_limit("checkpoints_exceed_the_limit_by_at_most_32_mib", folder.path());
}

/// Texts are in memory twice while a file is read, and again in its pickle while one is written.
#[test]
fn texts_of_pytorchs_files_exceed_the_limit_by_at_most_32_mib() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return read_and_write_texts(&PathBuf::from(folder));
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, n_texts) in [("few.pt", 4_000), ("many.pt", 16_000)] {
        texts(n_texts, 4_000).save(folder.path().join(name)).unwrap();
    }
    let (get, put) = (b"h\x00".repeat(4_000), |number: u32| [&b"r"[..], &number.to_le_bytes()].concat());
    let items = [&b"]q\x00("[..], &get, b"e"].concat(); // a list that holds itself
    let more = [&b"h\x00("[..], &get, b"e"].concat();
    fs::write(folder.path().join("items.pt"), of_pickle(&[items, more.repeat(6_000)].concat())).unwrap();
    let puts: Vec<u8> = (0..8_000_000).flat_map(put).collect();
    fs::write(folder.path().join("memo.pt"), of_pickle(&[b"N".to_vec(), puts].concat())).unwrap();
    run_with_limit("texts_of_pytorchs_files_exceed_the_limit_by_at_most_32_mib", folder.path());
}

/// Runs a test in a child process that has the limit.
fn run_with_limit(test: &str, folder: &Path) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(FOLDER, folder)
        .env("PAGELOCK_HOST_LIMIT", LIMIT.to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Writes a safetensors file of `n_tensors` tensors of `n_bytes` bytes each.
fn checkpoint(path: &Path, n_tensors: usize, n_bytes: usize) {
    let one = |i: usize| {
        let (start, end) = (i * n_bytes, (i + 1) * n_bytes);
        format!("\"{i:06}\":{{\"dtype\":\"F32\",\"shape\":[{}],\"data_offsets\":[{start},{end}]}}", n_bytes / 4)
    };
    let header = format!("{{{}}}", (0..n_tensors).map(one).collect::<Vec<_>>().join(","));
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len((8 + header.len() + n_tensors * n_bytes) as u64).unwrap();
}

fn read_and_write(folder: &Path) {
    let path = |name| folder.join(name);
    let before = resident("VmRSS:");
    is_refused(load_safetensors(path("large")));
    for _ in 0..5 {
        let dict = load_safetensors(path("small")).unwrap();
        save_safetensors(&dict, path("again")).unwrap();
        let model: Vec<Parameter> = (0..20).map(|_| Parameter::new(Tensor::zeros([MIB / 4]).unwrap())).collect();
        let renamed = dict
            .renamed(|name| Some(name.trim_start_matches('0').to_owned() + if name == "000000" { "0" } else { "" }));
        pagelock_nn::Module::load_state_dict(&model, &renamed).unwrap();
    }
    let mut kept = Vec::new();
    while let Ok(dict) = load_safetensors(path("many")) {
        kept.push(dict);
        assert!(kept.len() < 100, "nothing is refused");
    }
    check_growth(before);
}

fn texts(n_texts: usize, len: usize) -> TorchValue {
    TorchValue::List((0..n_texts).map(|_| TorchValue::Text("x".repeat(len))).collect())
}

fn read_and_write_texts(folder: &Path) {
    let before = resident("VmRSS:");
    assert!(
        matches!(TorchValue::load(folder.join("few.pt")).unwrap(), TorchValue::List(texts) if texts.len() == 4_000)
    );
    for name in ["many.pt", "items.pt", "memo.pt"] {
        is_refused(TorchValue::load(folder.join(name)));
    }
    check_growth(before);
    let long = texts(1, 110 * MIB); // memory of the program, which is not counted
    let before = resident("VmRSS:").max(resident("VmHWM:"));
    is_refused(long.save(folder.join("long.pt")));
    check_growth(before);
}

/// A file of the format before the zip archives. Its last pickle, the value, is not complete.
fn of_pickle(value: &[u8]) -> Vec<u8> {
    let magic = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.";
    [magic, value].concat()
}

fn check_growth(before: usize) {
    let grown = resident("VmHWM:").saturating_sub(before);
    assert!(grown <= LIMIT + ALLOWANCE, "took {} MiB under a limit of {} MiB", grown / MIB, LIMIT / MIB);
}

fn is_refused<T: std::fmt::Debug>(loaded: pagelock_nn::Result<T>) {
    let refused = loaded.unwrap_err().to_string();
    assert!(refused.contains(": budget `host` has "), "{refused}");
}

/// Resident memory in bytes: `VmRSS:` is the current value, `VmHWM:` the peak.
fn resident(what: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}
