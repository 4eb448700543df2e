//! Loads a library of NVIDIA's, which stays loaded until the process exits.

use std::path::{Path, PathBuf};

use libloading::Library;

use super::find;
use crate::error::LibraryAbsence;

/// A library and the places to search for it.
pub(crate) struct LibrarySpec {
    /// The name in errors.
    pub(crate) name: &'static str,
    /// The names of its files, the newest first.
    pub(crate) files: &'static [&'static str],
    /// The environment variable that names its folder.
    pub(crate) variable: &'static str,
    /// Folders of Python's packages that may have it.
    pub(crate) package_folders: &'static [&'static str],
    /// How to install it.
    pub(crate) install: &'static str,
    /// The starts of the names of libraries beside it that it loads by name.
    pub(crate) dependencies: &'static [&'static str],
}

impl LibrarySpec {
    /// [Opens](Self::open) the library for the rest of the process, and looks up its functions with `functions`, whose
    /// error is the name of one that the library does not have.
    pub(crate) fn load<F>(
        &self,
        functions: impl FnOnce(&Library) -> Result<F, &'static str>,
    ) -> Result<(F, PathBuf), LibraryAbsence> {
        let (library, path) = self.open()?;
        let functions =
            functions(&library).map_err(|name| LibraryAbsence::NoSymbol { library: self.short_name(), name })?;
        std::mem::forget(library);
        Ok((functions, path))
    }

    /// The first word of the name, which may go on with what the library is needed for.
    fn short_name(&self) -> &'static str {
        self.name.split(' ').next().unwrap_or(self.name)
    }

    /// Opens the library in the folder that the variable names. If the variable is not set, opens the library that
    /// the dynamic linker finds, else one in the usual folders. Returns the library and its path, which is only a
    /// file name if the dynamic linker found it.
    fn open(&self) -> Result<(Library, PathBuf), LibraryAbsence> {
        if let Some(folder) = std::env::var_os(self.variable).filter(|folder| !folder.is_empty()) {
            return self.open_chosen(Path::new(&folder));
        }
        let folders = find::folders(self.package_folders);
        let linked = self.files.iter().find_map(|file| load(PathBuf::from(file)));
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
    fn open_chosen(&self, folder: &Path) -> Result<(Library, PathBuf), LibraryAbsence> {
        self.open_in(folder).ok_or_else(|| LibraryAbsence::NotInFolder {
            library: self.name,
            names: self.files.join(", "),
            variable: self.variable,
            folder: folder.display().to_string(),
        })
    }

    fn open_in(&self, folder: &Path) -> Option<(Library, PathBuf)> {
        self.files.iter().map(|file| folder.join(file)).filter(|path| path.is_file()).find_map(|path| {
            self.load_dependencies(folder);
            load(path)
        })
    }

    /// Loads the dependencies in this folder. When the library loads them by name, the dynamic linker finds those that
    /// are loaded already.
    fn load_dependencies(&self, folder: &Path) {
        let paths = self.dependencies.iter().flat_map(|start| find::matching(folder, start));
        paths.filter(|path| path.is_file()).filter_map(load).for_each(std::mem::forget);
    }
}

fn load(path: PathBuf) -> Option<(Library, PathBuf)> {
    // SAFETY: NVIDIA's library, whose initializers have no preconditions.
    let library = unsafe { Library::new(&path) }.ok()?;
    Some((library, path))
}

/// Declares a table of a library's functions, looked up once by name. All return a status of the same type.
macro_rules! functions {
    ($visibility:vis $status:ty; $($field:ident = $symbol:literal ($($argument:ty),* $(,)?);)*) => {
        $visibility struct Api { $($visibility $field: unsafe extern "C" fn($($argument),*) -> $status,)* }

        impl Api {
            /// Looks up every function; the error is the name of one that the library does not have.
            $visibility fn load(library: &libloading::Library) -> Result<Self, &'static str> {
                $(
                    // SAFETY: the library's header declares the function with these types.
                    let symbol = unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) -> $status>(concat!($symbol, "\0").as_bytes())
                    };
                    let $field = *symbol.map_err(|_| $symbol)?;
                )*
                Ok(Self { $($field),* })
            }
        }
    };
}
pub(crate) use functions;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_the_environment_without_the_library_is_an_error_that_names_it() {
        let spec = LibrarySpec {
            name: "notlib",
            files: &["libnot_there.so.2", "libnot_there.so.1"],
            variable: "PAGELOCK_NOTLIB",
            package_folders: &[],
            install: "",
            dependencies: &[],
        };
        assert_eq!(
            spec.open_chosen(Path::new("/nowhere")).unwrap_err().to_string(),
            "no notlib: $PAGELOCK_NOTLIB is `/nowhere`, but none of libnot_there.so.2, libnot_there.so.1 can be loaded \
             from there; name the library's folder, or unset the variable"
        );
    }
}
