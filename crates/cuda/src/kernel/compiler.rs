//! Compiles source to code for one architecture. The code is cached on disk, named by a hash of the source, its options
//! and the architecture.

use super::{
    archive::{self, KernelOrigin},
    nvrtc::nvrtc,
    source::KernelSource,
};
use crate::{
    error::{Error, Result},
    user_cache::{UserCache, hash},
};

const CACHE_FORMAT: &str = "pagelock kernel 2"; // changes when all sources must be compiled again
const MAX_CACHED_BYTES: u64 = 256 << 20;

/// Compiles for devices of that compute capability, for example `(9, 0)` for Hopper, or returns the code from the
/// user's cache if it was compiled before. Needs no device.
///
/// The cache is the folder `$PAGELOCK_KERNEL_CACHE`, or `pagelock/kernels` in the user's cache folder if the variable
/// is not set; an empty variable disables it. Cached code needs no NVRTC.
///
/// # Errors
/// [`Error::NoCompiler`] lists the places that were searched for NVRTC, and what to install; [`Error::Compile`] has
/// the compiler's log, with the lines of the source that it names; [`Error::Argument`] if the variable of the cache
/// does not name a folder.
pub fn compile(source: &KernelSource, compute_capability: (u32, u32)) -> Result<Vec<u8>> {
    let key_for = |source: &KernelSource, capability| key(source, &architecture(capability));
    if let Some((key, code)) = archive::find(source, compute_capability, key_for) {
        archive::note(&key, &code, KernelOrigin::Archive);
        return Ok(code);
    }
    let architecture = architecture(compute_capability);
    let key = key(source, &architecture);
    let cache = UserCache::of_user("kernels", "PAGELOCK_KERNEL_CACHE")?;
    if let Some(code) = cache.read(&key, MAX_CACHED_BYTES) {
        archive::note(&key, &code, KernelOrigin::Cache);
        return Ok(code);
    }
    let code = compile_now(source, &architecture)?;
    let _ = cache.write(&key, &code); // if that fails, it is compiled again next time
    archive::note(&key, &code, KernelOrigin::Compiler);
    Ok(code)
}

/// The file name of the code of that source for that architecture.
fn key(source: &KernelSource, architecture: &str) -> String {
    let texts = [CACHE_FORMAT, source.name(), source.text(), architecture];
    let texts = texts.into_iter().chain(source.options().iter().map(String::as_str));
    format!("{}.cubin", hash(texts))
}

fn architecture((major, minor): (u32, u32)) -> String {
    format!("sm_{major}{minor}")
}

/// The version of NVRTC.
///
/// # Errors
/// [`Error::NoCompiler`].
pub fn compiler_version() -> Result<(u32, u32)> {
    Ok(nvrtc()?.version)
}

fn compile_now(source: &KernelSource, architecture: &str) -> Result<Vec<u8>> {
    let nvrtc = nvrtc()?;
    let mut options = vec![format!("--gpu-architecture={architecture}"), "--std=c++17".to_owned()];
    options.extend(nvrtc.headers.iter().map(|folder| format!("--include-path={}", folder.display())));
    options.extend_from_slice(source.options());
    nvrtc.compile(source.name(), source.text(), &options).map_err(|rejected| Error::Compile {
        name: source.name().to_owned(),
        status: rejected.status,
        log: source.annotated(&rejected.log),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOPPER: &str = "sm_90";

    /// Whether there is a compiler. Prints the reason if there is none.
    fn has_compiler() -> bool {
        match compiler_version() {
            Ok(_) => true,
            Err(missing) => {
                eprintln!("SKIPPED: {missing}");
                false
            }
        }
    }

    #[test]
    fn another_text_name_option_or_architecture_is_another_kernel() {
        let source = KernelSource::new("a", "text");
        let keys = [
            key(&source, "sm_90"),
            key(&source, "sm_80"),
            key(&KernelSource::new("b", "text"), "sm_90"),
            key(&KernelSource::new("a", "text2"), "sm_90"),
            key(&source.clone().option("-x"), "sm_90"),
            key(&source.clone().option("-").option("x"), "sm_90"),
        ];
        let mut distinct = keys.to_vec();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), keys.len());
    }

    #[test]
    fn source_becomes_code_for_the_architecture() {
        if !has_compiler() {
            return;
        }
        let text = "extern \"C\" __global__ void set(float* y) { y[threadIdx.x] = VALUE; }";
        let code = compile_now(&KernelSource::new("set.cu", text).define("VALUE", 2.5), HOPPER).unwrap();
        assert!(code.starts_with(b"\x7fELF"), "a cubin is an ELF file");
    }

    #[test]
    fn an_error_shows_the_line() {
        if !has_compiler() {
            return;
        }
        let text = "extern \"C\" __global__ void set(float* y) {\n    y[0] = nothing;\n}";
        let error = compile_now(&KernelSource::new("set.cu", text), HOPPER).unwrap_err().to_string();
        assert_eq!(
            error.lines().take(3).collect::<Vec<_>>(),
            [
                "cannot compile set.cu (status 6 of NVRTC):",
                "set.cu(2): error: identifier \"nothing\" is undefined",
                "     2 |     y[0] = nothing;"
            ]
        );
    }

    #[test]
    fn an_architecture_that_does_not_exist_is_an_error() {
        if !has_compiler() {
            return;
        }
        let error = compile_now(&KernelSource::new("a.cu", ""), "sm_1").unwrap_err().to_string();
        assert!(error.contains("gpu-architecture"), "{error}");
    }

    #[test]
    fn a_zero_byte_in_the_source_is_an_error() {
        if !has_compiler() {
            return;
        }
        let error = compile_now(&KernelSource::new("a.cu", "a\0b"), HOPPER).unwrap_err().to_string();
        assert_eq!(error, "cannot compile a.cu (status 0 of NVRTC):\nthe source has a zero byte");
    }
}
