//! NVRTC's functions, looked up once by name, and the library that has them.
//!
//! They are declared here for the reason that `driver/cuda/api.rs` gives. If the dynamic linker does not find the
//! library, it is loaded by its path. It stays loaded until the process exits.

use std::{
    ffi::{CStr, CString, c_char, c_int},
    path::{Path, PathBuf},
    ptr,
    sync::OnceLock,
};

use libloading::Library;

use super::find;
use crate::error::CompilerAbsence;

type Program = *mut std::ffi::c_void;

macro_rules! functions {
    ($($field:ident = $symbol:literal ($($argument:ty),*);)*) => {
        struct Api { $($field: unsafe extern "C" fn($($argument),*) -> c_int,)* }

        impl Api {
            fn load(library: &Library) -> Result<Self, CompilerAbsence> {
                $(
                    // SAFETY: NVRTC's header declares the function with these types.
                    let symbol = unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) -> c_int>(concat!($symbol, "\0").as_bytes())
                    };
                    let $field = *symbol.map_err(|_| CompilerAbsence::NoSymbol { name: $symbol })?;
                )*
                Ok(Self { $($field),* })
            }
        }
    };
}

functions! {
    version = "nvrtcVersion" (*mut c_int, *mut c_int);
    create = "nvrtcCreateProgram" (
        *mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
    );
    destroy = "nvrtcDestroyProgram" (*mut Program);
    compile = "nvrtcCompileProgram" (Program, c_int, *const *const c_char);
    log_len = "nvrtcGetProgramLogSize" (Program, *mut usize);
    log = "nvrtcGetProgramLog" (Program, *mut c_char);
    cubin_len = "nvrtcGetCUBINSize" (Program, *mut usize);
    cubin = "nvrtcGetCUBIN" (Program, *mut c_char);
}

/// The loaded NVRTC.
pub(super) struct Nvrtc {
    api: Api,
    pub(super) version: (u32, u32),
    pub(super) headers: Vec<PathBuf>,
}

/// NVRTC's status and log for a source that does not compile.
pub(super) struct Rejected {
    pub(super) status: i32,
    pub(super) log: String,
}

/// The library, found and loaded at the first call.
pub(super) fn nvrtc() -> Result<&'static Nvrtc, CompilerAbsence> {
    static NVRTC: OnceLock<Result<Nvrtc, CompilerAbsence>> = OnceLock::new();
    NVRTC.get_or_init(start).as_ref().map_err(CompilerAbsence::clone)
}

fn start() -> Result<Nvrtc, CompilerAbsence> {
    let (library, path) = open()?;
    let api = Api::load(&library)?;
    std::mem::forget(library); // its functions are used until the process exits
    let (mut major, mut minor) = (0, 0);
    // SAFETY: writes two local numbers.
    unsafe { (api.version)(&mut major, &mut minor) };
    let headers = find::headers(&path);
    Ok(Nvrtc { api, version: (major.unsigned_abs(), minor.unsigned_abs()), headers })
}

/// Opens the library in the folder that `PAGELOCK_NVRTC` names. If the variable is not set, opens the library that
/// the dynamic linker finds, else one in the usual folders.
fn open() -> Result<(Library, PathBuf), CompilerAbsence> {
    let names = || find::NAMES.join(", ");
    if let Some(folder) = std::env::var_os("PAGELOCK_NVRTC").filter(|folder| !folder.is_empty()) {
        let (folder, names) = (Path::new(&folder), names());
        return open_in(folder)
            .ok_or_else(|| CompilerAbsence::NotInFolder { folder: folder.display().to_string(), names });
    }
    let folders = find::folders();
    let linked = find::NAMES.iter().find_map(|name| Some((load(Path::new(name))?, PathBuf::from(name))));
    linked.or_else(|| folders.iter().find_map(|folder| open_in(folder))).ok_or_else(|| CompilerAbsence::NoLibrary {
        names: names(),
        folders: folders.iter().map(|folder| folder.display().to_string()).collect(),
    })
}

fn open_in(folder: &Path) -> Option<(Library, PathBuf)> {
    let (library, needs) = find::in_folder(folder)?;
    // NVRTC loads these by name, and the dynamic linker finds libraries that are loaded already.
    needs.iter().filter_map(|path| load(path)).for_each(std::mem::forget);
    Some((load(&library)?, library))
}

fn load(path: &Path) -> Option<Library> {
    // SAFETY: NVIDIA's library, whose initializers have no preconditions.
    unsafe { Library::new(path) }.ok()
}

impl Nvrtc {
    /// Compiles to a cubin.
    pub(super) fn compile(&self, name: &str, text: &str, options: &[String]) -> Result<Vec<u8>, Rejected> {
        let text = c_string(text)?;
        let options: Vec<CString> = options.iter().map(|option| c_string(option)).collect::<Result<_, _>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let program = OpenProgram::new(&self.api, &c_string(name)?, &text)?;
        // SAFETY: the program exists, and the options live until the call returns.
        let status = unsafe { (self.api.compile)(program.handle, options.len() as c_int, options.as_ptr()) };
        if status != 0 {
            return Err(Rejected { status, log: program.log() });
        }
        program.cubin()
    }
}

/// A program of NVRTC, destroyed on drop.
struct OpenProgram<'a> {
    api: &'a Api,
    handle: Program,
}

impl<'a> OpenProgram<'a> {
    fn new(api: &'a Api, name: &CStr, text: &CStr) -> Result<Self, Rejected> {
        let mut program = Self { api, handle: ptr::null_mut() };
        let no_headers = ptr::null();
        // SAFETY: writes a handle; both texts end with a zero byte, and NVRTC copies them.
        let status =
            unsafe { (api.create)(&mut program.handle, text.as_ptr(), name.as_ptr(), 0, no_headers, no_headers) };
        if status == 0 { Ok(program) } else { Err(Rejected { status, log: String::new() }) }
    }

    fn log(&self) -> String {
        let bytes = self.read(self.api.log_len, self.api.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
    }

    fn cubin(&self) -> Result<Vec<u8>, Rejected> {
        match self.read(self.api.cubin_len, self.api.cubin) {
            Ok(cubin) if !cubin.is_empty() => Ok(cubin),
            Ok(_) => Err(Rejected { status: 0, log: "NVRTC produced no device code".to_owned() }),
            Err(status) => Err(Rejected { status, log: self.log() }),
        }
    }

    fn read(
        &self,
        len: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        read: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>, c_int> {
        let mut len_bytes = 0;
        // SAFETY: writes one local number; the program exists.
        let status = unsafe { len(self.handle, &mut len_bytes) };
        if status != 0 {
            return Err(status);
        }
        let mut bytes = vec![0_u8; len_bytes];
        // SAFETY: writes `len_bytes` bytes, which is the length of `bytes`.
        let status = unsafe { read(self.handle, bytes.as_mut_ptr().cast()) };
        if status == 0 { Ok(bytes) } else { Err(status) }
    }
}

impl Drop for OpenProgram<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: made in `new`, and not used after this.
            unsafe { (self.api.destroy)(&mut self.handle) };
        }
    }
}

fn c_string(text: &str) -> Result<CString, Rejected> {
    CString::new(text).map_err(|_| Rejected { status: 0, log: "the source has a zero byte".to_owned() })
}
