//! The folders that are searched for NVIDIA's libraries if the dynamic linker does not find them: those of CUDA
//! toolkits and of Python packages.

use std::{
    collections::HashSet,
    env, fs,
    path::{Path, PathBuf},
};

/// Existing folders outside the dynamic linker's path that may have a library, the likeliest first: those of toolkits,
/// then `package_folders` inside the folders of Python packages.
pub(super) fn folders(package_folders: &[&str]) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let toolkits = ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    let toolkits = toolkits.chain(matching(Path::new("/usr/local"), "cuda"));
    for toolkit in toolkits {
        folders.push(toolkit.join("lib64"));
        folders.push(toolkit.join("targets/x86_64-linux/lib"));
    }
    for packages in python_packages() {
        folders.extend(package_folders.iter().map(|folder| packages.join(folder)));
    }
    let mut distinct = HashSet::new();
    folders.retain(|folder: &PathBuf| folder.is_dir() && distinct.insert(folder.clone()));
    folders
}

fn python_packages() -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(env::var_os).map(PathBuf::from).collect();
    let paths = env::var_os("PATH").unwrap_or_default();
    let pythons = env::split_paths(&paths).filter(|folder| folder.join("python3").exists());
    prefixes.extend(pythons.filter_map(|folder| folder.parent().map(Path::to_owned)));
    prefixes.extend(env::var_os("HOME").map(|home| Path::new(&home).join(".local")));
    let mut packages: Vec<PathBuf> =
        env::split_paths(&env::var_os("PYTHONPATH").unwrap_or_default()).filter(|path| path.is_dir()).collect();
    for prefix in prefixes {
        for python in matching(&prefix.join("lib"), "python3") {
            packages.push(python.join("site-packages"));
            packages.push(python.join("dist-packages"));
        }
    }
    packages
}

/// The entries of a folder whose names begin with `start`, in reverse alphabetical order, which mostly puts the
/// newest version first.
pub(super) fn matching(folder: &Path, start: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(start)).map(|e| e.path()).collect();
    found.sort();
    found.reverse();
    found
}
