//! Processes that are killed while they save a state dict and a map, and processes with the same id that save in the
//! same folder: files stay whole, no save fails, and no temporary file is left behind.
//!
//! Not a `#[test]`: the program runs itself as the processes that save.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pagelock_nn::{StateDict, load_safetensors, save_safetensors};
use pagelock_tensor::{Device, Tensor, TensorMap};

const KILLS: usize = 200;
const SAVES: usize = 60; // of each process in the shared folder
const NUMBERS: usize = 20_000; // in each file, all the same

fn numbers(value: usize) -> Tensor {
    Tensor::full([NUMBERS], value as f32).unwrap()
}

/// Saves a state dict and a map, all of whose numbers are `value`.
fn save(folder: &Path, name: &str, value: usize) {
    let dict: StateDict = [("numbers".to_owned(), numbers(value))].into_iter().collect();
    save_safetensors(&dict, folder.join(format!("{name}.dict"))).unwrap();
    let mut map = TensorMap::new(()).unwrap();
    map.set("numbers", numbers(value)).unwrap();
    map.save(folder.join(format!("{name}.map"))).unwrap();
}

/// The number that fills each of the two files. Panics if a file holds different numbers.
fn values(folder: &Path, name: &str) -> [f32; 2] {
    let dict = load_safetensors(folder.join(format!("{name}.dict"))).unwrap();
    let map = TensorMap::open(folder.join(format!("{name}.map"))).unwrap();
    let both = [dict.get("numbers").unwrap(), map.get("numbers", &Device::Cpu).unwrap()];
    both.map(|tensor| {
        let numbers = tensor.to_vec::<f32>().unwrap();
        assert!(numbers.len() == NUMBERS && numbers.iter().all(|number| *number == numbers[0]), "half of a file");
        numbers[0]
    })
}

fn n_files(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

/// Prints a line, then saves until the process is killed.
fn save_until_killed(folder: &Path) -> ! {
    println!("begun");
    std::io::stdout().flush().unwrap();
    for value in 0_usize.. {
        save(folder, "weights", value % 1_000);
    }
    unreachable!("the numbers do not end")
}

/// Saves files that no other process writes, and files that the other process writes too.
fn save_beside_others(folder: &Path, name: &str) {
    for value in 0..SAVES {
        save(folder, name, value);
        assert_eq!(values(folder, name), [value as f32; 2], "a save was lost");
        save(folder, "shared", value);
        values(folder, "shared");
    }
}

fn killed_processes_leave_whole_files() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    save(folder, "weights", 0);
    let mut n_left = 0;
    for kill in 0..KILLS {
        let mut child = Command::new(env::current_exe().unwrap());
        let mut child = child.arg("until-killed").arg(folder).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (start, delay) = (Instant::now(), Duration::from_micros(kill as u64 * 7_919 % 5_000)); // anywhere within a save
        while start.elapsed() < delay {}
        child.kill().unwrap(); // SIGKILL
        assert!(!child.wait().unwrap().success(), "it ended by itself");
        values(folder, "weights");
        n_left += n_files(folder) - 2;
    }
    assert!(n_left > 0, "no process was killed while it wrote");
    save(folder, "weights", 7);
    assert_eq!((values(folder, "weights"), n_files(folder)), ([7.0; 2], 2));
    println!("{KILLS} processes killed, {n_left} of them while they wrote: the files are whole, and nothing is left");
}

/// A command that runs a program as the first process of a PID namespace, so that several processes have the same id,
/// as in containers. `None` if namespaces are not available.
fn in_a_container() -> Option<Command> {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork"]);
        command
    };
    let works = unshare().arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    works.then(unshare)
}

fn processes_that_share_a_folder_lose_no_save() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let names = ["one", "another"];
    let program = env::current_exe().unwrap();
    let children = names.map(|name| {
        let mut command = match in_a_container() {
            Some(mut container) => {
                container.arg(&program);
                container
            }
            None => Command::new(&program),
        };
        command.args(["beside-others", name]).arg(folder).spawn().unwrap()
    });
    for mut child in children {
        assert!(child.wait().unwrap().success(), "a save failed or was lost");
    }
    assert_eq!(n_files(folder), 6);
    let ids = if in_a_container().is_some() { "one id" } else { "two ids: no namespaces here" };
    println!("two processes with {ids} saved {SAVES} times each in one folder: nothing is lost");
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["until-killed", folder] => save_until_killed(Path::new(folder)),
        ["beside-others", name, folder] => save_beside_others(Path::new(folder), name),
        _ => {
            killed_processes_leave_whole_files();
            processes_that_share_a_folder_lose_no_save();
        }
    }
}
