//! `cargo xtask consumers`: checks each crate as a user of that crate alone sees it.
//!
//! For each crate, a ten-line program (in `xtask/consumers/`) is checked in a temporary folder outside the workspace,
//! with that crate as its only dependency. A hidden dependency on a workspace setting, on a feature that another
//! member enables, or on a second crate is an error here. Then the program is run with the library that the tests
//! have built, since building each crate once more would take minutes. [`FORBIDDEN`] defines the layering of the
//! crates.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use lexopt::Parser;
use serde_json::Value;
use xshell::{Shell, cmd};

use crate::remaining_words;

/// A crate that is useful alone: its package, and its folder in the workspace.
pub(crate) struct Crate {
    package: &'static str,
    folder: &'static str,
}

/// The crate that re-exports all others.
pub(crate) const WHOLE: &Crate = &Crate { package: "pagelock", folder: "." };

const CRATES: &[Crate] = &[
    Crate { package: "pagelock-files", folder: "crates/files" },
    Crate { package: "pagelock-memory", folder: "crates/memory" },
    Crate { package: "pagelock-cuda", folder: "crates/cuda" },
    Crate { package: "pagelock-tensor", folder: "crates/tensor" },
    Crate { package: "pagelock-linalg", folder: "crates/linalg" },
    Crate { package: "pagelock-data", folder: "crates/data" },
    Crate { package: "pagelock-nn", folder: "crates/nn" },
    Crate { package: "pagelock-board", folder: "crates/board" },
    Crate { package: WHOLE.package, folder: WHOLE.folder },
];

/// For each crate, the packages that it must not depend on, directly or indirectly: the map in ARCHITECTURE.md.
const FORBIDDEN: &[(&str, &[&str])] = &[
    (
        "pagelock-files",
        &[
            "pagelock-memory",
            "pagelock-cuda",
            "pagelock-tensor",
            "pagelock-linalg",
            "pagelock-data",
            "pagelock-nn",
            "pagelock-board",
        ],
    ),
    (
        "pagelock-memory",
        &[
            "rayon",
            "pagelock-files",
            "pagelock-cuda",
            "pagelock-tensor",
            "pagelock-linalg",
            "pagelock-data",
            "pagelock-nn",
            "pagelock-board",
        ],
    ),
    (
        "pagelock-cuda",
        &["rayon", "pagelock-tensor", "pagelock-linalg", "pagelock-data", "pagelock-nn", "pagelock-board"],
    ),
    ("pagelock-tensor", &["pagelock-linalg", "pagelock-data", "pagelock-nn", "pagelock-board"]),
    ("pagelock-linalg", &["pagelock-data", "pagelock-nn", "pagelock-board"]),
    ("pagelock-data", &["pagelock-linalg", "pagelock-nn", "pagelock-board"]),
    ("pagelock-nn", &["pagelock-linalg", "pagelock-data", "pagelock-board"]),
    ("pagelock-board", &["pagelock-linalg", "pagelock-data", "pagelock-nn"]),
];

pub(crate) fn run(sh: &Shell, parser: Parser) -> Result<()> {
    check(sh, &remaining_words(parser)?)
}

/// Checks and runs the programs of the packages in `only` (all, if empty), and checks the layering.
pub(crate) fn check(sh: &Shell, only: &[String]) -> Result<()> {
    if let Some(unknown) = only.iter().find(|name| CRATES.iter().all(|krate| krate.package != **name)) {
        let known: Vec<_> = CRATES.iter().map(|krate| krate.package).collect();
        bail!("there is no crate `{unknown}`; there are: {}", known.join(", "));
    }
    for (package, forbidden) in FORBIDDEN {
        check_layering(sh, package, forbidden)?;
    }
    let libraries = Libraries::built_for_tests(sh)?;
    for krate in CRATES {
        if only.is_empty() || only.iter().any(|name| name == krate.package) {
            check_and_run(sh, krate, &libraries)?;
        }
    }
    Ok(())
}

fn check_layering(sh: &Shell, package: &str, forbidden: &[&str]) -> Result<()> {
    let tree = cmd!(sh, "cargo tree --package {package} --edges normal,build --prefix none");
    let tree = tree.quiet().read()?;
    let found = tree.lines().filter_map(|line| line.split(' ').next()).find(|name| forbidden.contains(name));
    if let Some(name) = found {
        bail!("{package} must not depend on {name}; `cargo tree -p {package} -i {name}` shows how it does");
    }
    Ok(())
}

fn check_and_run(sh: &Shell, krate: &Crate, libraries: &Libraries) -> Result<()> {
    let root = sh.current_dir();
    let target = root.join("target");
    let folder = sh.create_temp_dir()?;
    let source = folder.path().join("src/main.rs");
    sh.write_file(&source, sh.read_file(root.join(format!("xtask/consumers/{}.rs", krate.package)))?)?;
    sh.write_file(folder.path().join("Cargo.toml"), manifest(&root, krate))?;
    // The same versions as in the workspace, so that nothing has to be resolved or downloaded again.
    sh.copy_file(root.join("Cargo.lock"), folder.path().join("Cargo.lock"))?;

    let _there = sh.push_dir(folder.path());
    let check = cmd!(sh, "cargo check --release --quiet").env("CARGO_TARGET_DIR", target).quiet().run();
    check.with_context(|| format!("xtask/consumers/{0}.rs does not build with {0} alone", krate.package))?;
    let program = libraries.compile(sh, krate, &source, folder.path(), &[])?;
    let printed = cmd!(sh, "{program}").quiet().read();
    let printed = printed.with_context(|| format!("xtask/consumers/{}.rs failed", krate.package))?;

    ensure!(!printed.is_empty(), "xtask/consumers/{}.rs printed nothing", krate.package);
    println!("   {}: {}", krate.package, printed.lines().next().unwrap_or_default());
    Ok(())
}

/// The release libraries of this workspace, as built for the tests.
pub(crate) struct Libraries(BTreeMap<String, PathBuf>);

impl Libraries {
    pub(crate) fn built_for_tests(sh: &Shell) -> Result<Libraries> {
        let build = cmd!(sh, "cargo test --release --quiet --workspace --no-run --message-format=json");
        let messages = build.quiet().read()?;
        let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let named = messages.filter_map(|message| {
            let files = message["filenames"].as_array()?;
            let library = files.iter().filter_map(Value::as_str).find(|file| file.ends_with(".rlib"))?;
            Some((message["target"]["name"].as_str()?.to_owned(), PathBuf::from(library)))
        });
        Ok(Libraries(named.collect()))
    }

    /// Compiles a program that uses a crate. `folder` must contain a manifest, because derive macros read it.
    pub(crate) fn compile(
        &self,
        sh: &Shell,
        krate: &Crate,
        source: &Path,
        folder: &Path,
        options: &[String],
    ) -> Result<PathBuf> {
        let name = krate.package.replace('-', "_");
        let library = self.0.get(&name).with_context(|| format!("cargo built no library `{name}`"))?;
        let dependencies = library.with_file_name("deps");
        let dependencies = if dependencies.is_dir() {
            &dependencies
        } else {
            library.parent().context("a library is a file in a folder")?
        };
        let program = folder.join("program");
        let compile = cmd!(
            sh,
            "rustc --edition 2024 --crate-type bin --crate-name program -C opt-level=3 --emit=link={program} {options...}
             --extern {name}={library} -L dependency={dependencies} {source}"
        );
        compile.env("CARGO_MANIFEST_DIR", folder).quiet().run()?;
        Ok(program)
    }
}

/// The smallest manifest of a program outside the workspace with one dependency. The second dependency,
/// `pagelock-features`, has no code. It keeps crates from being compiled again for each program, and enables no
/// features that a crate of ours could use without naming them. The profile is the workspace's, so that third-party
/// crates which other steps have checked are not checked again.
pub(crate) fn manifest(root: &Path, krate: &Crate) -> String {
    let package = krate.package;
    let path = root.join(krate.folder);
    let (path, features) = (path.display(), root.join("features"));
    let features = features.display();
    format!(
        "[package]\nname = \"{package}-consumer\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\n{package} = {{ path = '{path}' }}\n\
         pagelock-features = {{ path = '{features}', default-features = false }}\n\n\
         [profile.release]\nlto = \"off\"\n"
    )
}
