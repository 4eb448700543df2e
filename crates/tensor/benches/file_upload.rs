//! How fast a safetensors file in the page cache reaches a GPU, and how much host memory that takes.
//!
//! ```sh
//! cargo bench -p pagelock-tensor --bench file_upload                          # 4 GiB in the folder for temporary files
//! cargo bench -p pagelock-tensor --bench file_upload -- --gib 32 --dir /data  # as large as disk, RAM and GPU hold
//! ```
//! Makes a file of tensors of 64 MiB and of 4 kB, uploads it several times, and checks the values that arrived. Fails
//! if more than 256 MiB became resident or, with `--goal 40`, if the rate is below 40 GB/s.

use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use std::{env, thread};

use pagelock_tensor::{Device, TensorMap};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

const LARGE: usize = 16 << 20; // floats
const SMALL: usize = 1_000;
const N_SMALL: usize = 1_000;
const MAX_RESIDENT: u64 = 256 << 20;
const RUNS: usize = 5;

fn main() -> ExitCode {
    let device = match Device::cuda(0) {
        Ok(device) => device,
        Err(missing) => {
            println!("nothing to measure: {missing}");
            return ExitCode::SUCCESS;
        }
    };
    match run(&device) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("stopped: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(device: &Device) -> Result<()> {
    let gib: usize = argument("--gib").map_or(Ok(4), |gib| gib.parse())?;
    let goal: Option<f64> = argument("--goal").map(|goal| goal.parse()).transpose()?;
    let folder = argument("--dir").map_or_else(env::temp_dir, PathBuf::from);
    let file = Temporary(folder.join(format!("pagelock-file-upload-{}.safetensors", std::process::id())));
    let n_large = gib << 4;
    let start = Instant::now();
    make(&file.0, n_large)?;
    println!("{} made in {:.1} s", file.0.display(), start.elapsed().as_secs_f64());
    if let Device::Cuda(cuda) = device {
        println!("staging: {:?}", cuda.cuda().staging());
    }
    device.synchronize()?;
    forget_peak()?;
    let before = resident()?;
    let mut rates = Vec::new();
    for run in 0..RUNS {
        let start = Instant::now();
        let opened = TensorMap::open(&file.0)?;
        let map = opened.to(device)?;
        device.synchronize()?;
        let seconds = start.elapsed().as_secs_f64();
        let rate = opened.len_bytes() as f64 / seconds / 1e9;
        println!("{} tensors, {:.1} GB in {seconds:.3} s: {rate:.1} GB/s", map.len(), opened.len_bytes() as f64 / 1e9);
        rates.push(rate);
        if run + 1 == RUNS {
            let grown = peak()?.saturating_sub(before);
            println!("resident: {} MiB before, at most {} MiB more", before >> 20, grown >> 20);
            if grown > MAX_RESIDENT {
                return Err("more than 256 MiB became resident".into());
            }
            check(&map, n_large)?;
        }
    }
    rates.sort_by(f64::total_cmp);
    let median = rates[RUNS / 2];
    println!("median: {median:.1} GB/s");
    match goal {
        Some(goal) if median < goal => Err(format!("less than {goal} GB/s").into()),
        _ => Ok(()),
    }
}

fn argument(name: &str) -> Option<String> {
    env::args().skip_while(|argument| argument != name).nth(1)
}

/// Element `at` of tensor `tensor`.
fn value(tensor: usize, at: usize) -> f32 {
    ((tensor * 31 + at) % 65_521) as f32
}

/// Writes the file on all cores, without waiting for the disk.
fn make(path: &Path, n_large: usize) -> Result<()> {
    let mut header = String::from("{");
    let mut end = 0;
    let mut add = |name: String, len: usize| {
        let comma = if end == 0 { "" } else { "," };
        let (start, len_bytes) = (end, 4 * len);
        end += len_bytes;
        header.push_str(&format!(
            "{comma}\"{name}\":{{\"dtype\":\"F32\",\"shape\":[{len}],\"data_offsets\":[{start},{end}]}}"
        ));
    };
    (0..n_large).for_each(|i| add(format!("large.x{i}"), LARGE));
    (0..N_SMALL).for_each(|i| add(format!("small.x{i}"), SMALL));
    header.push('}');
    header.push_str(&" ".repeat((8 + header.len()).next_multiple_of(8) - 8 - header.len()));
    let mut file = File::create_new(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let start = 8 + header.len() as u64;
    let threads = thread::available_parallelism()?.get();
    let file = &file;
    thread::scope(|scope| {
        let write = |thread: usize| -> Result<(), std::io::Error> {
            let mut floats = vec![0.0_f32; LARGE];
            for tensor in (thread..n_large + N_SMALL).step_by(threads) {
                let (len, at) = match tensor.checked_sub(n_large) {
                    None => (LARGE, tensor * LARGE * 4),
                    Some(small) => (SMALL, n_large * LARGE * 4 + small * SMALL * 4),
                };
                floats[..len].iter_mut().enumerate().for_each(|(at, float)| *float = value(tensor, at));
                file.write_all_at(bytemuck::cast_slice(&floats[..len]), start + at as u64)?;
            }
            Ok(())
        };
        let writers: Vec<_> = (0..threads).map(|thread| scope.spawn(move || write(thread))).collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("no panic"))
    })?;
    Ok(())
}

/// Compares the first, the last and some tensors in between, element by element.
fn check(map: &TensorMap, n_large: usize) -> Result<()> {
    let mut which: Vec<_> = (0..n_large).step_by((n_large / 8).max(1)).collect();
    which.extend([n_large - 1, n_large, n_large + 1, n_large + N_SMALL - 1]);
    for tensor in which {
        let path = match tensor.checked_sub(n_large) {
            None => format!("large.x{tensor}"),
            Some(small) => format!("small.x{small}"),
        };
        let values = map.get(&path)?.to_vec::<f32>()?;
        if let Some(at) = (0..values.len()).find(|&at| values[at] != value(tensor, at)) {
            return Err(format!("`{path}` is {} at {at}, not {}", values[at], value(tensor, at)).into());
        }
    }
    println!("what arrived is what was written");
    Ok(())
}

fn forget_peak() -> Result<()> {
    Ok(fs::write("/proc/self/clear_refs", "5")?)
}

fn resident() -> Result<u64> {
    status("VmRSS:")
}

/// The peak of resident memory since [`forget_peak`].
fn peak() -> Result<u64> {
    status("VmHWM:")
}

fn status(field: &str) -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line =
        status.lines().find_map(|line| line.strip_prefix(field)).ok_or("the system does not say what is resident")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

/// A file that is removed when this is dropped.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
