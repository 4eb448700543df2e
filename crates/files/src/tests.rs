//! The files that are left after a fault or a crash at each step, and with concurrent writers.

use std::process::{Command, Stdio};
use std::{env, thread};

use tempfile::TempDir;

use super::*;
use crate::faults::Step;

struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn leftover(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, "half of a fi").unwrap();
        path
    }
}

/// The name of a temporary file.
const LEFTOVER: &str = ".pagelock-abcdefghijABCDEFGHI9.tmp";

#[test]
fn a_fault_at_any_step_is_an_error_and_leaves_a_whole_file_and_nothing_else() {
    for step in Step::ALL {
        let folder = Folder::new();
        let path = folder.path("file");
        replace(&path, "old").unwrap();
        let refuse = move || Err(io::Error::other(format!("no {step:?} today")));
        let error = faults::with(step, refuse, || replace(&path, "new")).unwrap_err().to_string();
        let is_in_place = step == Step::SyncFolder;
        assert_eq!(fs::read_to_string(&path).unwrap(), if is_in_place { "new" } else { "old" }, "{step:?}");
        assert_eq!(error.contains("the new file is in its place"), is_in_place, "{error}");
        assert_eq!(folder.names(), ["file"], "{step:?}");
        replace(&path, "newer").unwrap();
    }
}

#[test]
fn a_missing_folder_is_named() {
    let folder = Folder::new();
    let error = replace(folder.path("none/file"), "new").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert_eq!(error.to_string(), format!("the folder `{}` does not exist; create it", folder.path("none").display()));
}

/// Runs this test program again, with only the test `test`.
fn again(test: &str, variable: &str, value: &str, folder: &Path) -> std::process::ExitStatus {
    let program = env::current_exe().unwrap();
    let mut child = Command::new(program);
    child.args(["--exact", &format!("tests::{test}")]).env(variable, value).current_dir(folder);
    child.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap()
}

#[test]
fn a_process_that_dies_at_any_step_leaves_a_whole_file_and_the_next_one_removes_the_rest() {
    if let Ok(at) = env::var("FILES_DIE_AT") {
        let step = Step::ALL[at.parse::<usize>().unwrap()];
        return faults::with(step, || std::process::abort(), || replace("file", "new")).unwrap();
    }
    for (at, step) in Step::ALL.into_iter().enumerate() {
        let folder = Folder::new();
        replace(folder.path("file"), "old").unwrap();
        let name = "a_process_that_dies_at_any_step_leaves_a_whole_file_and_the_next_one_removes_the_rest";
        assert!(!again(name, "FILES_DIE_AT", &at.to_string(), folder.0.path()).success());
        let expected = if step == Step::SyncFolder { "new" } else { "old" };
        assert_eq!(fs::read_to_string(folder.path("file")).unwrap(), expected, "{step:?}");
        let is_temporary_there = ![Step::Create, Step::SyncFolder].contains(&step);
        assert_eq!(folder.names().len(), 1 + usize::from(is_temporary_there), "{step:?}: {:?}", folder.names());
        replace(folder.path("other"), "next").unwrap();
        assert_eq!(folder.names(), ["file", "other"], "{step:?}");
    }
}

#[test]
fn a_file_that_was_taken_for_a_leftover_before_it_was_locked_is_made_again() {
    let folder = Folder::new();
    let (path, there) = (folder.path("file"), folder.0.path().to_owned());
    let mut times = 3;
    let others_clean_up = move || {
        if times > 0 {
            leftovers::remove(&there);
            times -= 1;
        }
        Ok(())
    };
    faults::with(Step::Lock, others_clean_up, || replace(&path, "whole")).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
    assert_eq!(folder.names(), ["file"]);
}

#[test]
fn a_file_that_is_being_written_is_no_leftover() {
    let folder = Folder::new();
    let mut slow = NewFile::create(folder.path("slow")).unwrap();
    slow.write_all(b"first half, ").unwrap();
    replace(folder.path("quick"), "").unwrap();
    slow.write_all(b"second half").unwrap();
    slow.commit().unwrap();
    assert_eq!(fs::read_to_string(folder.path("slow")).unwrap(), "first half, second half");
    assert_eq!(folder.names(), ["quick", "slow"]);
}

#[test]
fn only_what_has_the_name_of_a_temporary_file_is_a_leftover() {
    let folder = Folder::new();
    folder.leftover(LEFTOVER);
    fs::create_dir(folder.path(".pagelock-abcdefghijABCDEFGHI0.tmp")).unwrap();
    let others = [
        ".pagelock-abcdefghijABCDEFGHI9.tmpx",
        ".pagelock-abcdefghijABCDEFGHI99.tmp",
        ".pagelock-abcdefghijABCDEFGHI_.tmp",
        ".pagelock-.tmp",
        ".w.safetensors.7.0.tmp",
        "pagelock-abcdefghijABCDEFGHI9.tmp",
    ];
    others.iter().for_each(|name| drop(folder.leftover(name)));
    replace(folder.path("file"), "").unwrap();
    let names = folder.names();
    assert!(!names.contains(&LEFTOVER.to_owned()), "{names:?}");
    assert_eq!(names.len(), others.len() + 2, "{names:?}");
}

#[cfg(unix)]
#[test]
fn a_leftover_that_may_not_be_written_is_removed() {
    let folder = Folder::new();
    fs::set_permissions(folder.leftover(LEFTOVER), Permissions::from_mode(0o444)).unwrap();
    replace(folder.path("file"), "").unwrap();
    assert_eq!(folder.names(), ["file"]);
}

#[test]
fn many_writers_of_one_folder_lose_nothing() {
    let folder = Folder::new();
    let write = |writer: usize| {
        for at in 0..40 {
            let text = format!("{writer} {at} ").repeat(1_000);
            replace(folder.path(&format!("own {writer}")), &text).unwrap();
            assert_eq!(fs::read_to_string(folder.path(&format!("own {writer}"))).unwrap(), text);
            replace(folder.path("shared"), &text).unwrap();
            let shared = fs::read_to_string(folder.path("shared")).unwrap();
            let words: Vec<&str> = shared.split(' ').collect();
            assert!(words.len() == 2_001 && words.chunks_exact(2).all(|pair| pair == &words[..2]), "half of a file");
        }
    };
    thread::scope(|scope| (0..4).for_each(|writer| drop(scope.spawn(move || write(writer)))));
    assert_eq!(folder.names(), ["own 0", "own 1", "own 2", "own 3", "shared"]);
}

#[test]
fn what_is_not_committed_leaves_nothing() {
    let folder = Folder::new();
    let mut file = NewFile::create(folder.path("file")).unwrap();
    file.write_all(b"begun").unwrap();
    assert_eq!(folder.names().len(), 1);
    drop(file);
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn what_is_no_file_is_refused_and_stays() {
    let folder = Folder::new();
    fs::create_dir(folder.path("folder")).unwrap();
    let refusal = |path: &Path| NewFile::create(path).unwrap_err();
    assert_eq!(refusal(&folder.path("folder")).kind(), io::ErrorKind::IsADirectory);
    assert_eq!(refusal(Path::new("")).kind(), io::ErrorKind::InvalidInput);
    assert_eq!(refusal(Path::new("/")).kind(), io::ErrorKind::InvalidInput);
    let missing = refusal(&folder.path("no/such/file"));
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    assert!(!missing.to_string().contains(".pagelock-"), "{missing}");
    replace(folder.path("file"), "").unwrap();
    assert!(NewFile::create(folder.path("file/in it")).is_err());
    assert_eq!(folder.names(), ["file", "folder"]);
}

#[cfg(unix)]
mod unix {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_new_file_has_the_permissions_of_an_ordinary_one_and_a_replaced_one_keeps_its_own() {
        let folder = Folder::new();
        let (path, ordinary) = (folder.path("file"), folder.path("ordinary"));
        fs::write(&ordinary, "").unwrap();
        replace(&path, "").unwrap();
        assert_eq!(mode(&path), mode(&ordinary));
        for kept in [0o600, 0o640, 0o666, 0o444, 0o755] {
            fs::set_permissions(&path, Permissions::from_mode(kept)).unwrap();
            replace(&path, "new").unwrap();
            assert_eq!(mode(&path), kept, "{kept:o}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o4755)).unwrap();
        replace(&path, "new").unwrap();
        assert_eq!(mode(&path), 0o755, "a new file does not run as another user");
    }

    #[test]
    fn a_link_stays_and_the_file_that_it_names_is_replaced() {
        let folder = Folder::new();
        fs::create_dir(folder.path("run")).unwrap();
        fs::write(folder.path("run/weights"), "old").unwrap();
        symlink("run/weights", folder.path("latest")).unwrap();
        symlink(folder.path("latest"), folder.path("chain")).unwrap();
        replace(folder.path("chain"), "new").unwrap();
        assert_eq!(fs::read_to_string(folder.path("run/weights")).unwrap(), "new");
        assert!(fs::symlink_metadata(folder.path("latest")).unwrap().is_symlink());
        assert!(fs::symlink_metadata(folder.path("chain")).unwrap().is_symlink());

        symlink("run/not yet", folder.path("dangling")).unwrap();
        replace(folder.path("dangling"), "made").unwrap();
        assert_eq!(fs::read_to_string(folder.path("run/not yet")).unwrap(), "made");

        symlink("circle", folder.path("circle")).unwrap();
        assert!(NewFile::create(folder.path("circle")).unwrap_err().to_string().contains("symbolic links"));
        assert_eq!(folder.names(), ["chain", "circle", "dangling", "latest", "run"]);
    }

    #[test]
    fn a_link_of_a_temporary_files_name_is_not_followed() {
        let folder = Folder::new();
        fs::write(folder.path("precious"), "kept").unwrap();
        symlink("precious", folder.path(LEFTOVER)).unwrap();
        replace(folder.path("file"), "").unwrap();
        assert_eq!(fs::read_to_string(folder.path("precious")).unwrap(), "kept");
    }

    #[test]
    fn pipes_and_devices_are_refused_at_once() {
        let folder = Folder::new();
        let pipe = folder.path("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(Command::new("mkfifo").arg(folder.path(LEFTOVER)).status().unwrap().success());
        for path in [&pipe, Path::new("/dev/null")] {
            let error = replace(path, "").unwrap_err();
            assert!(error.to_string().contains("which cannot be replaced; name a file"), "{error}");
        }
        replace(folder.path("file"), "").unwrap();
        assert_eq!(folder.names().len(), 3);
    }

    #[test]
    fn names_may_be_as_long_as_the_system_allows_and_need_not_be_text() {
        let folder = Folder::new();
        for name in [&[b'n'; 255][..], b"\xff\xfe"] {
            let path = folder.0.path().join(OsStr::from_bytes(name));
            replace(&path, "contents").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "contents");
        }
    }
}

#[test]
fn a_relative_path_means_the_folder_that_was_current_when_the_file_was_begun() {
    if env::var_os("FILES_CHANGE_FOLDER").is_some() {
        let file = NewFile::create("file").unwrap();
        env::set_current_dir("elsewhere").unwrap();
        return file.commit().unwrap();
    }
    let folder = Folder::new();
    fs::create_dir(folder.path("elsewhere")).unwrap();
    let name = "a_relative_path_means_the_folder_that_was_current_when_the_file_was_begun";
    assert!(again(name, "FILES_CHANGE_FOLDER", "1", folder.0.path()).success());
    assert_eq!(folder.names(), ["elsewhere", "file"]);
}
