//! Loads a library of NVIDIA's, which stays loaded until the process exits.

use std::path::{Path, PathBuf};

use libloading::Library;

use super::find;
use crate::error::LibraryAbsence;

/// A library and the places to search for it.
pub(super) struct Wanted {
    pub(super) name: &'static str,
    /// The names of its files, the newest first.
    pub(super) files: &'static [&'static str],
    /// The environment variable that names its folder.
    pub(super) variable: &'static str,
    /// Folders of Python's packages that may have it.
    pub(super) in_packages: &'static [&'static str],
    /// How to install it.
    pub(super) install: &'static str,
}

impl Wanted {
    /// Opens the library in the folder that the variable names. If the variable is not set, opens the library that
    /// the dynamic linker finds, else one in the usual folders.
    pub(super) fn open(&self) -> Result<Library, LibraryAbsence> {
        if let Some(folder) = std::env::var_os(self.variable).filter(|folder| !folder.is_empty()) {
            return self.open_chosen(Path::new(&folder));
        }
        let folders = find::folders(self.variable, self.in_packages);
        let linked = self.files.iter().find_map(|file| load(Path::new(file)));
        let found = linked.or_else(|| folders.iter().find_map(|folder| self.open_in(folder)));
        found.ok_or_else(|| LibraryAbsence::NoLibrary {
            library: self.name,
            names: self.files.join(", "),
            folders: folders.iter().map(|folder| folder.display().to_string()).collect(),
            install: self.install,
            variable: self.variable,
        })
    }

    /// Opens the library in the folder that the variable names. No other folder is searched, since the user chose
    /// this one.
    fn open_chosen(&self, folder: &Path) -> Result<Library, LibraryAbsence> {
        self.open_in(folder).ok_or_else(|| LibraryAbsence::NotInFolder {
            library: self.name,
            names: self.files.join(", "),
            variable: self.variable,
            folder: folder.display().to_string(),
        })
    }

    fn open_in(&self, folder: &Path) -> Option<Library> {
        let files = self.files.iter().map(|file| folder.join(file));
        let mut there: Vec<PathBuf> = files.filter(|path| path.is_file()).collect();
        there.drain(..).find_map(|path| load(&path))
    }
}

fn load(path: &Path) -> Option<Library> {
    // SAFETY: NVIDIA's library, whose initializers have no preconditions.
    unsafe { Library::new(path) }.ok()
}

/// Declares a table of a library's functions, looked up once by name. All return a status as a plain C integer.
macro_rules! functions {
    ($library:literal; $($field:ident = $symbol:literal ($($argument:ty),* $(,)?);)*) => {
        struct Api { $($field: unsafe extern "C" fn($($argument),*) -> std::ffi::c_int,)* }

        impl Api {
            fn load(library: &libloading::Library) -> Result<Self, crate::error::LibraryAbsence> {
                $(
                    // SAFETY: the library's header declares the function with these types.
                    let symbol = unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) -> std::ffi::c_int>(
                            concat!($symbol, "\0").as_bytes(),
                        )
                    };
                    let absent = |_| crate::error::LibraryAbsence::NoSymbol { library: $library, name: $symbol };
                    let $field = *symbol.map_err(absent)?;
                )*
                Ok(Self { $($field),* })
            }
        }
    };
}
pub(super) use functions;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_the_environment_without_the_library_is_an_error_that_names_it() {
        let files = &["libnot_there.so.2", "libnot_there.so.1"];
        let wanted = Wanted { name: "notlib", files, variable: "PAGELOCK_NOTLIB", in_packages: &[], install: "" };
        assert_eq!(
            wanted.open_chosen(Path::new("/nowhere")).unwrap_err().to_string(),
            "no notlib: $PAGELOCK_NOTLIB is `/nowhere`, but none of libnot_there.so.2, libnot_there.so.1 can be loaded \
             from there; name the library's folder, or unset the variable"
        );
    }
}
