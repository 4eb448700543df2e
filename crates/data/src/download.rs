//! Downloads a file with a known checksum from one of several mirrors.
//!
//! Whatever happens (no network, a stalled server, a wrong file, a crash), a file appears under its own name only
//! with the right content. The bytes go to a temporary file in the same folder and are checked on the way; then the
//! temporary file is renamed in one step (`pagelock-files`). No attempt takes longer than its [`Timeouts`].

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagelock_files::NewFile;

use crate::progress::Progress;
use crate::remote::{RemoteFile, without_user};
use crate::{Error, Result};

/// How long a download may take before the next mirror is tried.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use pagelock_data::{Mnist, Timeouts};
///
/// let patient = Timeouts { total: Duration::from_secs(600), ..Timeouts::default() };
/// let mnist = Mnist::new().timeouts(patient);
/// # let _ = mnist;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For the name look-up, and again for connecting, including TLS. Default: 5 s each.
    pub connect: Duration,
    /// The longest wait for the next bytes. Default: 10 s.
    pub silence: Duration,
    /// In total for one file from one mirror. Default: 60 s, enough at 165 kB/s for the largest file of MNIST.
    pub total: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), silence: Duration::from_secs(10), total: Duration::from_secs(60) }
    }
}

/// A download's sources, target folder, limits and progress report.
pub(crate) struct Job<'a> {
    pub(crate) mirrors: &'a [String],
    pub(crate) folder: &'a Path,
    pub(crate) timeouts: Timeouts,
    pub(crate) progress: &'a dyn Progress,
}

impl Job<'_> {
    /// Downloads `file` from the first mirror that delivers the right bytes; returns its path.
    pub(crate) fn fetch(&self, file: RemoteFile) -> Result<PathBuf> {
        let mut attempts = Vec::new();
        for url in file.urls(self.mirrors) {
            self.progress.start(file.name, file.len_bytes);
            let outcome = download(&url, file, self);
            self.progress.finish();
            match outcome {
                Ok(path) => return Ok(path),
                Err(Failure::Local(error)) => return Err(error),
                Err(Failure::Remote(what)) => attempts.push(format!("{url} {what}").replace(&url, &without_user(&url))),
            }
        }
        if attempts.is_empty() {
            attempts.push("no mirror was given".into());
        }
        Err(Error::Download { file: file.name, set: file.set, folder: self.folder.into(), md5: file.md5, attempts })
    }
}

/// Why a download failed. Another mirror is tried after a remote failure only.
enum Failure {
    Local(Error),
    Remote(String),
}

fn download(url: &str, file: RemoteFile, job: &Job<'_>) -> Result<PathBuf, Failure> {
    let local = |action| move |source| Failure::Local(Error::io(action, job.folder, source));
    let mut body = open(url, file, job.timeouts)?;
    let path = job.folder.join(file.name);
    let mut saved = NewFile::create(&path).map_err(local("create a file in"))?;
    let mut md5 = md5::Context::new();
    let (mut buffer, mut len_bytes) = (vec![0; 64 << 10], 0);
    loop {
        let n_bytes = body.read(&mut buffer).map_err(|error| {
            Failure::Remote(format!(
                "{} after {len_bytes} of {} bytes",
                explain(error.into(), job.timeouts),
                file.len_bytes
            ))
        })?;
        if n_bytes == 0 {
            break;
        }
        len_bytes += n_bytes as u64;
        if len_bytes > file.len_bytes {
            return Err(Failure::Remote(format!("sent more than the {} bytes of the right file", file.len_bytes)));
        }
        md5.consume(&buffer[..n_bytes]);
        saved.write_all(&buffer[..n_bytes]).map_err(local("write a file in"))?;
        job.progress.advance(n_bytes as u64);
    }
    check(file, len_bytes, &format!("{:x}", md5.finalize())).map_err(Failure::Remote)?;
    saved.commit().map_err(|error| Failure::Local(Error::io("create", &path, error)))?;
    Ok(path)
}

/// Requests `url` and reads the headers of the response.
fn open(url: &str, file: RemoteFile, timeouts: Timeouts) -> Result<impl Read, Failure> {
    let remote = |error| Failure::Remote(explain(error, timeouts));
    // The client adds a timeout to an `Instant`; the sum must not overflow.
    let limit = |timeout: Duration| Some(timeout.min(Duration::from_secs(365 * 24 * 3600)));
    let config = ureq::Agent::config_builder()
        .timeout_resolve(limit(timeouts.connect))
        .timeout_connect(limit(timeouts.connect))
        .timeout_per_read(limit(timeouts.silence))
        .timeout_global(limit(timeouts.total))
        .build();
    let response = ureq::Agent::new_with_config(config).get(url).call().map_err(remote)?;
    match response.body().content_length() {
        Some(len) if len != file.len_bytes => {
            Err(Failure::Remote(format!("offers {len} bytes where the right file has {}", file.len_bytes)))
        }
        _ => Ok(response.into_body().into_reader()),
    }
}

/// Describes an error of the HTTP client.
fn explain(error: ureq::Error, timeouts: Timeouts) -> String {
    match error {
        ureq::Error::StatusCode(status) => format!("answered with HTTP status {status}"),
        ureq::Error::HostNotFound => "could not be found: no such host".into(),
        ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) => {
            format!("timed out: no connection within {:?}", timeouts.connect)
        }
        ureq::Error::Timeout(ureq::Timeout::PerRead) => {
            format!("timed out: silent for {:?}", timeouts.silence)
        }
        ureq::Error::Timeout(_) => format!("timed out: not done within {:?}", timeouts.total),
        ureq::Error::Io(error) => format!("failed: {error}"),
        error => format!("failed: {error}"),
    }
}

fn check(file: RemoteFile, len_bytes: u64, md5: &str) -> Result<(), String> {
    if len_bytes < file.len_bytes {
        return Err(format!("broke off after {len_bytes} of {} bytes", file.len_bytes));
    }
    if md5 != file.md5 {
        return Err(format!("sent the wrong bytes: their md5 is {md5}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    use super::*;
    use crate::progress::Silent;

    const CONTENT: &[u8] = b"0123456789abcdef";
    const FILE: RemoteFile = RemoteFile::new("mnist", "digits.gz", 16, "4032af8d61035123906e58e067140cc5");

    /// A mirror on the loopback interface. `answer` answers every request, and gets the connection after the request
    /// has been read. Returns the mirror's address and the requests.
    fn mirror(answer: impl Fn(&mut TcpStream) + Send + 'static) -> (String, Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/files/", listener.local_addr().unwrap());
        let (asked, requests) = channel();
        thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let mut lines = BufReader::new(connection.try_clone().unwrap()).lines().map_while(Result::ok);
                let request = lines.next().unwrap_or_default();
                let _headers: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
                // Nobody listens any more once the test is over.
                let _ = asked.send(request);
                answer(&mut connection);
            }
        });
        (address, requests)
    }

    fn respond(connection: &mut TcpStream, status: &str, len: usize, body: &[u8]) {
        // The client may hang up early; that is what some tests are about.
        let _ = write!(connection, "HTTP/1.1 {status}\r\ncontent-length: {len}\r\nconnection: close\r\n\r\n");
        let _ = connection.write_all(body);
    }

    fn good() -> String {
        mirror(|connection| respond(connection, "200 OK", CONTENT.len(), CONTENT)).0
    }

    /// Waits until the client hangs up.
    fn stall(connection: &mut TcpStream) {
        let _ = connection.read(&mut [0]);
    }

    const QUICK: Timeouts = Timeouts {
        connect: Duration::from_secs(5),
        silence: Duration::from_millis(150),
        total: Duration::from_secs(5),
    };

    fn fetch(folder: &Path, mirrors: &[String], timeouts: Timeouts) -> Result<PathBuf> {
        Job { mirrors, folder, timeouts, progress: &Silent }.fetch(FILE)
    }

    /// The reported failure of the only mirror; checks that nothing is left in the folder.
    fn failure(mirror: String, timeouts: Timeouts) -> String {
        let folder = tempfile::tempdir().unwrap();
        let error = fetch(folder.path(), std::slice::from_ref(&mirror), timeouts).unwrap_err();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "something was left behind");
        let Error::Download { attempts, .. } = error else { panic!("{error}") };
        attempts[0].replace(&mirror, "MIRROR/")
    }

    #[test]
    fn a_good_file_is_saved_under_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let (address, requests) = mirror(|connection| respond(connection, "200 OK", CONTENT.len(), CONTENT));

        let path = fetch(folder.path(), &[address], Timeouts::default()).unwrap();

        assert_eq!(requests.recv().unwrap(), "GET /files/digits.gz HTTP/1.1");
        assert_eq!(path, folder.path().join("digits.gz"));
        assert_eq!(std::fs::read(path).unwrap(), CONTENT);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_longest_possible_timeouts_are_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let [connect, silence, total] = [Duration::MAX; 3];
        assert!(fetch(folder.path(), &[good()], Timeouts { connect, silence, total }).is_ok());
    }

    #[test]
    fn the_next_mirror_is_tried_after_a_wrong_checksum() {
        let folder = tempfile::tempdir().unwrap();
        let (wrong, requests) = mirror(|connection| respond(connection, "200 OK", 16, b"0123456789abcdeX"));

        let path = fetch(folder.path(), &[wrong, good()], Timeouts::default()).unwrap();

        assert!(requests.recv().is_ok(), "the first mirror was asked");
        assert_eq!(std::fs::read(path).unwrap(), CONTENT);
    }

    #[test]
    fn a_wrong_checksum_is_reported() {
        let (wrong, _requests) = mirror(|connection| respond(connection, "200 OK", 16, b"0123456789abcdeX"));
        assert_eq!(
            failure(wrong, Timeouts::default()),
            "MIRROR/digits.gz sent the wrong bytes: their md5 is 50b77cb331de8d2b7bf2b275a1626ece"
        );
    }

    #[test]
    fn a_missing_file_is_reported_with_its_status() {
        let (empty, _requests) = mirror(|connection| respond(connection, "404 Not Found", 0, b""));
        assert_eq!(failure(empty, Timeouts::default()), "MIRROR/digits.gz answered with HTTP status 404");
    }

    #[test]
    fn a_body_shorter_than_promised_is_reported() {
        let (short, _requests) = mirror(|connection| respond(connection, "200 OK", 16, &CONTENT[..7]));
        let text = failure(short, Timeouts::default());
        assert!(text.starts_with("MIRROR/digits.gz failed: "), "{text}");
        assert!(text.ends_with("after 7 of 16 bytes"), "{text}");
    }

    #[test]
    fn a_file_of_another_length_is_refused_before_its_bytes_are_read() {
        let (long, _requests) = mirror(|connection| {
            respond(connection, "200 OK", 1 << 40, b"");
            stall(connection);
        });
        assert_eq!(
            failure(long, Timeouts::default()),
            "MIRROR/digits.gz offers 1099511627776 bytes where the right file has 16"
        );
    }

    #[test]
    fn a_body_without_a_length_is_read_no_further_than_the_right_file() {
        let (endless, _requests) = mirror(|connection| {
            let _ = connection.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n");
            while connection.write_all(&[7; 4096]).is_ok() {}
        });
        assert_eq!(
            failure(endless, Timeouts::default()),
            "MIRROR/digits.gz sent more than the 16 bytes of the right file"
        );
    }

    #[test]
    fn a_body_that_ends_early_without_a_length_is_reported() {
        let (short, _requests) = mirror(|connection| {
            let _ = connection.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n0123");
        });
        assert_eq!(failure(short, Timeouts::default()), "MIRROR/digits.gz broke off after 4 of 16 bytes");
    }

    #[test]
    fn a_server_that_never_answers_times_out() {
        let (silent, _requests) = mirror(stall);
        assert_eq!(failure(silent, QUICK), "MIRROR/digits.gz timed out: silent for 150ms");
    }

    #[test]
    fn a_server_that_stops_in_the_middle_times_out() {
        let (stalled, _requests) = mirror(|connection| {
            respond(connection, "200 OK", 16, &CONTENT[..5]);
            stall(connection);
        });
        assert_eq!(failure(stalled, QUICK), "MIRROR/digits.gz timed out: silent for 150ms after 5 of 16 bytes");
    }

    #[test]
    fn a_server_that_trickles_hits_the_total_limit() {
        let (_keep, pause) = channel::<()>();
        let pause = std::sync::Mutex::new(pause);
        let (slow, _requests) = mirror(move |connection| {
            respond(connection, "200 OK", 16, b"");
            let pause = pause.lock().unwrap();
            while connection.write_all(b"x").is_ok() && pause.recv_timeout(Duration::from_millis(40)).is_err() {}
        });
        let limit = Timeouts { total: Duration::from_millis(200), ..Timeouts::default() };
        let text = failure(slow, limit);
        assert!(text.starts_with("MIRROR/digits.gz timed out: not done within 200ms after "), "{text}");
    }

    #[test]
    fn a_port_without_a_server_is_reported() {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let text = failure(format!("http://{closed}/"), Timeouts::default());
        assert!(text.starts_with("MIRROR/digits.gz failed: "), "{text}");
    }

    #[test]
    fn the_report_has_no_password() {
        let (empty, _requests) = mirror(|connection| respond(connection, "404 Not Found", 0, b""));
        let with_password = empty.replace("http://", "http://me:p@secret@");
        let (folder, mirrors) = (tempfile::tempdir().unwrap(), [with_password, "http://me:p@secret@:x".into()]);
        let error = fetch(folder.path(), &mirrors, Timeouts::default()).unwrap_err().to_string();
        assert!(error.contains(&format!(": {empty}digits.gz answered")) && !error.contains("secret"), "{error}");
        let error = FILE.missing(folder.path(), &mirrors, crate::NoDownload::SwitchedOff).to_string();
        assert!(error.contains(&empty) && !error.contains("secret"), "{error}");
    }

    #[test]
    fn a_download_without_mirrors_says_so() {
        let error = fetch(Path::new("x"), &[], Timeouts::default()).unwrap_err().to_string();
        assert!(error.contains("into `x`: no mirror was given; check"), "{error}");
    }

    #[test]
    fn the_report_names_file_checksum_folder_mirrors_and_fix() {
        let folder = tempfile::tempdir().unwrap();
        let (empty, _requests) = mirror(|connection| respond(connection, "404 Not Found", 0, b""));
        let (broken, _more) = mirror(|connection| respond(connection, "500 Oops", 0, b""));

        let error = fetch(folder.path(), &[empty.clone(), broken.clone()], Timeouts::default()).unwrap_err();

        assert_eq!(
            error.to_string(),
            format!(
                "cannot download `digits.gz` (md5 4032af8d61035123906e58e067140cc5) into `{}`: \
                 {empty}digits.gz answered with HTTP status 404; {broken}digits.gz answered with HTTP status 500; \
                 check the network, put the file there by hand, or set PAGELOCK_DATA to a folder that has \
                 `mnist/digits.gz`",
                folder.path().display()
            )
        );
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_a_local_failure() {
        let folder = tempfile::tempdir().unwrap();
        let gone = folder.path().join("gone");

        let error = fetch(&gone, &[good()], Timeouts::default()).unwrap_err();

        assert!(error.to_string().starts_with(&format!("cannot create a file in `{}`: ", gone.display())), "{error}");
    }
}
