//! Where NVRTC is looked for: by the dynamic linker, in CUDA's toolkits, and in Python's packages.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// What the dynamic linker is asked for.
pub(super) const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

/// Folders in which the library may be that the dynamic linker does not know, the likeliest first.
pub(super) fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = env::var_os("PAGELOCK_NVRTC").map(PathBuf::from).into_iter().collect();
    let toolkits = ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    let toolkits = toolkits.chain(matching(Path::new("/usr/local"), "cuda"));
    for toolkit in toolkits {
        folders.push(toolkit.join("lib64"));
        folders.push(toolkit.join("targets/x86_64-linux/lib"));
    }
    for packages in python_packages() {
        folders.push(packages.join("nvidia/cu13/lib"));
        folders.push(packages.join("nvidia/cuda_nvrtc/lib"));
    }
    folders.retain(|folder| folder.is_dir());
    folders.dedup();
    folders
}

/// The library in a folder, and what it loads itself, which has to be loaded first.
pub(super) fn in_folder(folder: &Path) -> Option<(PathBuf, Vec<PathBuf>)> {
    let library = NAMES.iter().map(|name| folder.join(name)).find(|path| path.is_file())?;
    let mut builtins = matching(folder, "libnvrtc-builtins.so");
    builtins.retain(|path| path.is_file());
    Some((library, builtins))
}

/// Folders of headers beside a library: `cuda_fp16.h` and its like.
pub(super) fn headers(library: &Path) -> Vec<PathBuf> {
    let near = library.ancestors().skip(2).take(3).map(|above| above.join("include"));
    let usual = [PathBuf::from("/usr/local/cuda/include")];
    near.chain(usual).find(|folder| folder.join("cuda_fp16.h").is_file()).into_iter().collect()
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

/// What in a folder starts with that, newest version first, as far as names can say so.
fn matching(folder: &Path, start: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(start)).map(|e| e.path()).collect();
    found.sort();
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_the_library_has_none() {
        assert_eq!(in_folder(Path::new("/nowhere")), None);
        assert_eq!(
            headers(Path::new("/nowhere/lib/libnvrtc.so.13")).iter().filter(|h| h.starts_with("/nowhere")).count(),
            0
        );
    }
}
