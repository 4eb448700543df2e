//! [`open_regular`]: opens a file whose path may name anything.

use std::{
    fs::{self, File, FileType, Metadata, OpenOptions},
    io,
    path::Path,
};

/// Opens the regular file at `path` for reading, and returns its length in bytes. Every reader of this workspace opens
/// its files here: a reader that reads at most that number of bytes never blocks and always ends.
///
/// # Errors
/// Errors of the system; a pipe, a device, a socket or a folder is refused, and the error says which it is. Opening
/// never blocks, unlike an ordinary open of a pipe that nobody writes to.
///
/// # Examples
/// ```
/// let (file, len_bytes) = pagelock_memory::open_regular("Cargo.toml")?;
/// assert_eq!(file.metadata()?.len(), len_bytes);
///
/// let error = pagelock_memory::open_regular("/dev/zero").unwrap_err();
/// assert_eq!(error.to_string(), "it is a device, not a regular file");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn open_regular(path: impl AsRef<Path>) -> io::Result<(File, u64)> {
    let path = path.as_ref();
    check(&fs::metadata(path)?)?; // before opening, which has effects on some devices
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // Another program may have replaced the file by a pipe meanwhile: then opening must not block.
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    }
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    check(&metadata)?;
    Ok((file, metadata.len()))
}

fn check(metadata: &Metadata) -> io::Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let kind = if metadata.is_dir() { io::ErrorKind::IsADirectory } else { io::ErrorKind::InvalidInput };
    Err(io::Error::new(kind, format!("it is {}, not a regular file", name_of(metadata.file_type()))))
}

fn name_of(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a pipe (FIFO)";
        }
        if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
        if kind.is_socket() {
            return "a socket";
        }
    }
    if kind.is_dir() { "a folder" } else { "something else" }
}

#[cfg(test)]
mod tests {
    use std::{io::Read, process::Command, sync::mpsc, thread, time::Duration};

    use super::*;

    #[test]
    fn a_regular_file_is_opened_and_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, b"four").unwrap();
        let link = file.path().with_extension("link");
        std::os::unix::fs::symlink(file.path(), &link).unwrap();
        for path in [file.path(), &link] {
            let (mut opened, len_bytes) = open_regular(path).unwrap();
            let mut text = String::new();
            opened.read_to_string(&mut text).unwrap();
            assert_eq!((len_bytes, &*text), (4, "four"));
        }
        fs::remove_file(link).unwrap();
    }

    #[test]
    fn what_is_no_file_is_named_and_nothing_waits_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, socket) = (folder.path().join("pipe"), folder.path().join("socket"));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, what) in [
            (pipe, "a pipe (FIFO)"),
            (socket, "a socket"),
            ("/dev/zero".into(), "a device"),
            (folder.path().to_owned(), "a folder"),
        ] {
            let (send, receive) = mpsc::channel();
            thread::spawn(move || send.send(open_regular(path).unwrap_err().to_string()));
            let said = receive.recv_timeout(Duration::from_secs(10)).expect("opening waits");
            assert_eq!(said, format!("it is {what}, not a regular file"));
        }
        assert_eq!(open_regular("/nowhere").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
