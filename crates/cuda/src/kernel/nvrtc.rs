//! NVRTC's functions, looked up once by name, and the library that has them, which stays loaded until the process
//! exits.

use std::{
    ffi::{CStr, CString, c_char, c_int},
    path::{Path, PathBuf},
    ptr,
    sync::OnceLock,
};

use crate::{
    error::{Error, LibraryAbsence},
    library::load::{LibrarySpec, functions},
};

type Program = *mut std::ffi::c_void;

const SPEC: LibrarySpec = LibrarySpec {
    name: "NVRTC to compile kernels",
    files: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
    variable: "PAGELOCK_NVRTC",
    package_folders: &["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"],
    install: "install the CUDA toolkit or `pip install nvidia-cuda-nvrtc`",
    dependencies: &["libnvrtc-builtins.so"],
};

functions! {
    c_int;
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
pub(super) fn nvrtc() -> Result<&'static Nvrtc, Error> {
    static NVRTC: OnceLock<Result<Nvrtc, LibraryAbsence>> = OnceLock::new();
    NVRTC.get_or_init(start).as_ref().map_err(|absence| Error::NoCompiler(absence.clone()))
}

fn start() -> Result<Nvrtc, LibraryAbsence> {
    let (api, path) = SPEC.load(Api::load)?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: writes two local numbers.
    unsafe { (api.version)(&mut major, &mut minor) };
    Ok(Nvrtc { api, version: (major.unsigned_abs(), minor.unsigned_abs()), headers: headers(&path) })
}

/// The folder of CUDA's headers, such as `cuda_fp16.h`, that belongs to a library.
fn headers(library: &Path) -> Vec<PathBuf> {
    let near = library.ancestors().skip(2).take(3).map(|above| above.join("include"));
    let usual = [PathBuf::from("/usr/local/cuda/include")];
    near.chain(usual).find(|folder| folder.join("cuda_fp16.h").is_file()).into_iter().collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_headers_has_none() {
        let found = headers(Path::new("/nowhere/lib/libnvrtc.so.13"));
        assert!(!found.iter().any(|folder| folder.starts_with("/nowhere")), "{found:?}");
    }
}
